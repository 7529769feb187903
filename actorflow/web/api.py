"""Answers for programs: JSON, a trace to take away, metrics for Prometheus."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any

import numpy as np

from actorflow.actors.under_way import UnderWay
from actorflow.errors import MissingExtraError, require
from actorflow.graph.graph import Graph
from actorflow.trace.batches import HistogramStatistics
from actorflow.trace.counters import NodeState, OpProfile
from actorflow.trace.recording import TraceCopy
from actorflow.web.access import bearer
from actorflow.web.http import CHUNK_BYTES, Request, Response, Route, Writer, to_json
from actorflow.web.live import LiveStream
from actorflow.web.telemetry import Latencies
from actorflow.web.vitals import memory_of, pipelines
from actorflow.web.wire import columns

#: Samples that are made text at once.
_BLOCK = 100
#: Seconds that a loop may take to have its counters taken.
_TAKING_S = 10.0

#: Values of labels, and the number; of a histogram its buckets and the sum.
_Sample = tuple[Any, ...]


def exposition(
    graphs: Mapping[str, Graph], more: Callable[[], Iterable[Family]] = tuple
) -> tuple[Callable[[], Iterable[str]], str]:
    """Function that takes the counters of graphs and gives the text for Prometheus in pieces, and its content type.

    Args:
        graphs: The graphs, by the names that tell their samples apart.
        more: Gives further samples.
    Raises:
        MissingExtraError: without the package prometheus-client.
    """
    prometheus = require("prometheus_client", extra="metrics", purpose="/metrics")

    def begin() -> Iterator[str]:
        families = _merged(chain(*[_families(name, graph) for name, graph in graphs.items()], more()))
        return _texts(prometheus.generate_latest, families)

    return begin, prometheus.CONTENT_TYPE_LATEST


class GraphCollector:
    """Source of the counters of graphs for a registry of prometheus-client; see `collector`."""

    def __init__(self, graphs: Mapping[str, Graph]) -> None:
        self._graphs = graphs

    def collect(self) -> Iterator[Any]:
        """The counters of this moment, taken on the loops that the graphs run on; any thread may call it."""
        found = [each for name, graph in self._graphs.items() for each in _on_its_loop(name, graph)]
        return (_metric(family, family.samples) for family in _merged(found))


def collector(*graphs: Graph) -> GraphCollector:
    """The counters of graphs for a registry of prometheus-client of one's own, as ``/metrics`` of a page has them.

    Args:
        graphs: The graphs, of different names, which tell their samples apart.
    Raises:
        MissingExtraError: without the package prometheus-client.
        ValueError: if two have one name.

    Example:
        >>> from prometheus_client import CollectorRegistry
        >>> graph, registry = af.Graph("g"), CollectorRegistry()
        >>> registry.register(af.web.collector(graph))
        >>> registry.get_sample_value("actorflow_frames_total", {"graph": "g", "end": "finished"})
        0
    """
    require("prometheus_client", extra="metrics", purpose="collector")
    by_name = {graph.name: graph for graph in graphs}
    if len(by_name) < len(graphs):
        raise ValueError(f"graphs must have different names, got {', '.join(graph.name for graph in graphs)}")
    return GraphCollector(by_name)


def _on_its_loop(name: str, graph: Graph) -> list[Family]:
    async def taken() -> list[Family]:
        return [*_families(name, graph)]

    home = graph.engine.resources.home
    if home is None or not home.loop.is_running() or home.loop is asyncio._get_running_loop():
        return [*_families(name, graph)]
    return asyncio.run_coroutine_threadsafe(taken(), home.loop).result(_TAKING_S)


def _merged(families: Iterable[Family]) -> Iterable[Family]:
    """Families with all samples of a name together, as Prometheus wants them."""
    found: dict[str, Family] = {}
    for family in families:
        first = found.setdefault(family.about[0], family)
        if first is not family:
            first.samples += family.samples
    return found.values()


class Family:
    """Samples of one metric, with its description."""

    def __init__(self, kind: str, name: str, meaning: str, labels: Sequence[str], samples: Iterable[_Sample]) -> None:
        self.kind = kind
        self.about = name, meaning
        self.labels = labels
        self.samples = [*samples]


def _families(name: str, graph: Graph) -> Iterator[Family]:
    """Counters of an engine at this moment, read on the loop; any thread may make them text."""
    engine = graph.engine
    ends = [([name, end], getattr(engine.frames, end)) for end in ("finished", "failed", "cancelled")]
    yield Family("Counter", "actorflow_frames", "Frames that have ended, by how.", ["graph", "end"], ends)
    in_flight = [([name], engine.frames.in_flight)]
    yield Family("Gauge", "actorflow_frames_in_flight", "Frames that run now.", ["graph"], in_flight)
    profiles = [(op.name, engine.profile[op.id]) for op in graph.ops if op.id in engine.profile]
    labels = ["graph", "op"]
    called = [([name, op], profile) for op, profile in profiles if profile.calls]
    counts = [(of, profile.calls) for of, profile in called]
    yield Family("Counter", "actorflow_op_calls", "Calls of an op that have ended well.", labels, counts)
    failed = [([name, op], profile.failed) for op, profile in profiles if profile.failed]
    meaning = "Calls of an op that have failed, repeated or not."
    yield Family("Counter", "actorflow_op_failures", meaning, labels, failed)
    times = [(of, profile.total_ns / 1e9) for of, profile in called]
    meaning = "Wall time of the calls of an op that have ended well."
    yield Family("Counter", "actorflow_op_seconds", meaning, labels, times)
    memory = [
        ([name, device["place"], kind], device[kind])
        for device in memory_of(engine)
        for kind in ("held", "used", "peak", "budget")
        if device[kind] is not None
    ]
    yield Family("Gauge", "actorflow_memory_bytes", "Memory of a device's buffers.", ["graph", "place", "kind"], memory)
    if engine.batchers:
        yield from _batches(name, graph)


def _batches(name: str, graph: Graph) -> Iterator[Family]:
    figures = [([name, str(n)], batcher.statistics()) for n, batcher in graph.engine.batchers.items()]
    labels, ends = ["graph", "batcher"], ("finished", "failed", "cancelled", "expired", "refused")
    waiting = [(of, each.waiting_rows) for of, each in figures]
    yield Family("Gauge", "actorflow_batch_waiting_rows", "Rows that wait for a frame.", labels, waiting)
    sessions = [(of, each.sessions) for of, each in figures]
    yield Family("Gauge", "actorflow_batch_sessions", "Sessions that are open.", labels, sessions)
    slots = [(of, each.max_sessions) for of, each in figures]
    yield Family("Gauge", "actorflow_batch_session_slots", "Sessions that may be open.", labels, slots)
    steps = [(of, each.steps) for of, each in figures]
    yield Family("Counter", "actorflow_batch_steps", "Steps of sessions that got their result.", labels, steps)
    requests = [([*of, end], getattr(each, end)) for of, each in figures for end in ends]
    meaning = "Requests of batched runs that have ended, by how."
    yield Family("Counter", "actorflow_batch_requests", meaning, [*labels, "end"], requests)
    padded = [(of, each.padded_rows) for of, each in figures]
    yield Family("Counter", "actorflow_batch_padded_rows", "Rows that were added to fill frames up.", labels, padded)
    for kind, what, meaning in (
        ("rows", "rows", "Rows of requests per frame."),
        ("wait_seconds", "wait_s", "Time from a request to the start of its frame."),
        ("latency_seconds", "latency_s", "Time from a request to its result."),
        ("first_step_seconds", "first_step_s", "Time from the opening of a session to the result of its first step."),
        ("between_steps_seconds", "between_steps_s", "Time from the result of a step to that of the next one."),
    ):
        samples = [(of, *histogram(getattr(each, what))) for of, each in figures]
        yield Family("Histogram", f"actorflow_batch_{kind}", meaning, labels, samples)


def histogram(values: HistogramStatistics) -> tuple[list[tuple[str, int]], float]:
    """Upper ends of buckets with how many values are not above them, and the sum of all values."""
    limits = [*[str(float(limit)) for limit in values.limits], "+Inf"]
    return list(zip(limits, accumulate(values.counts), strict=True)), values.total


def _texts(generate_latest: Callable[[Any], bytes], families: Iterable[Family]) -> Iterator[str]:
    for family in families:
        for at in range(0, max(len(family.samples), 1), _BLOCK):
            block = _metric(family, family.samples[at : at + _BLOCK])
            text = generate_latest(SimpleNamespace(collect=lambda block=block: [block])).decode()
            yield text if at == 0 else text.split("\n", 2)[2]  # what it means is said once


def _metric(family: Family, samples: Iterable[_Sample]) -> Any:
    from prometheus_client import core

    made = getattr(core, f"{family.kind}MetricFamily")(*family.about, labels=family.labels)
    for sample in samples:
        made.add_metric(*sample)
    return made


_NEVER = OpProfile()


def routes(stream: LiveStream, writer: Writer) -> list[Route]:
    """Routes of the answers about a graph; long ones are written by ``writer``."""
    answers = {
        "/api/errors": partial(_errors, stream),
        "/api/pipelines": partial(_pipelines, stream),
        "/healthz": partial(_health, stream),
        "/api/graph": partial(_graph, stream, writer),
        "/api/state": partial(_state, stream, writer),
        "/api/curves": partial(_curves, stream, writer),
        "/trace.json": partial(_trace, stream, writer),
        "/metrics": partial(_metrics, stream, writer),
    }
    return [Route("GET", path, answer) for path, answer in answers.items()]


async def _graph(stream: LiveStream, writer: Writer, _: Request) -> Response:
    structure = await stream.structure()

    def pieces() -> Iterator[str]:
        for at in range(0, len(structure.message), CHUNK_BYTES):
            yield structure.message[at : at + CHUNK_BYTES]

    return Response.of_json(await writer.write("graph", pieces))


async def _state(stream: LiveStream, writer: Writer, _: Request) -> Response:
    return Response.of_json(await writer.write("state", partial(_states, stream)))


def _states(stream: LiveStream) -> Iterator[str]:
    graph = stream.graph
    engine = graph.engine
    row_of = np.full(graph.size, -1, np.int64)
    ops = list(graph.ops)
    ids = np.array([op.id for op in ops], np.int64)
    row_of[ids] = np.arange(len(ops))
    latencies = Latencies(engine.trace, row_of)
    rows = latencies.advance()
    medians, tails = (
        dict(zip(rows.tolist(), us.tolist(), strict=True)) for us in latencies.estimate_us(rows, 0.5, 0.99)
    )
    seen = np.frombuffer(b"" if engine.monitor is None else engine.monitor.states, np.uint8)
    states = UnderWay.of(engine.running).over(seen).tolist()
    profiles = [engine.profile.get(op.id, _NEVER) for op in ops]
    times = [(profile.calls, profile.failed, profile.total_ns, profile.last_ns) for profile in profiles]
    content = {"graph": graph.name, "frames": frames(graph), "memory": memory_of(engine)}

    def described() -> Iterator[str]:
        yield f'{json.dumps(content)[:-1]}, "ops": ['
        for row, (op, (calls, failed, total_ns, last_ns)) in enumerate(zip(ops, times, strict=True)):
            state = NodeState(states[op.id]) if op.id < len(states) else NodeState.IDLE
            if state is NodeState.IDLE and calls:
                state = NodeState.DONE  # before it was watched
            if op.id in engine.resources.constant_ops:
                state = NodeState.CONSTANT
            entry = {
                "name": op.name,
                "state": state.name.lower(),
                "calls": calls,
                "failed": failed,
                "total_us": total_ns / 1e3,
                "last_us": last_ns / 1e3,
                "p50_us": medians.get(row),
                "p99_us": tails.get(row),
            }
            yield (", " if row else "") + json.dumps(entry)
        yield "]}"

    return described()


async def _errors(stream: LiveStream, _: Request) -> Response:
    graph = stream.graph
    names = {op.id: op.name for op in graph.ops}
    failures = [
        {
            "time": failure.time_s,
            "frame": failure.frame,
            "op": None if failure.op_id is None else names.get(failure.op_id),
            "message": failure.message,
        }
        for failure in graph.engine.errors
    ]
    return Response.of_json(json.dumps({"graph": graph.name, "failed": graph.engine.frames.failed, "newest": failures}))


async def _pipelines(stream: LiveStream, _: Request) -> Response:
    return Response.of_json(to_json({"pipelines": pipelines(stream.graph)}))


async def _curves(stream: LiveStream, writer: Writer, _: Request) -> Response:
    graph, time_s = stream.graph, time.time()
    series = {name: list(points) for name, points in graph.engine.scalars.series.items()}

    def pieces() -> Iterator[str]:
        yield f'{{"graph": {json.dumps(graph.name)}, "time": {time_s}, "curves": {{'
        for number, (name, points) in enumerate(series.items()):
            yield f"{', ' if number else ''}{json.dumps(name)}: {json.dumps(columns(points), allow_nan=False)}"
        yield "}}"

    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(time_s))
    headers = {"Content-Disposition": f'attachment; filename="run-{stamp}.json"'}
    return Response.of_json(await writer.write("curves", pieces), headers=headers)


async def _trace(stream: LiveStream, writer: Writer, request: Request) -> Response:
    shows = stream.values.may(bearer(request.value("authorization")))
    what = "trace with values" if shows else "trace"
    chunks = await writer.write(what, lambda: TraceCopy.of(stream.graph, values=shows).pieces())
    return Response.of_json(chunks, headers={"Content-Disposition": 'attachment; filename="trace.json"'})


async def _metrics(stream: LiveStream, writer: Writer, _: Request) -> Response:
    try:
        begin, content_type = exposition({stream.graph.name: stream.graph})
    except MissingExtraError as error:
        return Response.of_text(501, str(error))
    return Response(200, await writer.write("metrics", begin), content_type, {"Cache-Control": "no-store"})


async def _health(stream: LiveStream, _: Request) -> Response:
    graph = stream.graph
    return Response.of_json(json.dumps({"status": "ok", "graph": graph.name, "frames": frames(graph)}))


def frames(graph: Graph) -> dict[str, int]:
    """Numbers of frames by outcome."""
    counts = graph.engine.frames
    return {name: getattr(counts, name) for name in ("started", "finished", "failed", "cancelled", "in_flight")}
