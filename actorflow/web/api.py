"""What the page shows, for programs: JSON, a trace to take away, metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from actorflow.errors import MissingExtraError
from actorflow.trace.recording import Snapshot
from actorflow.trace.ring import NodeState, OpProfile
from actorflow.web.exchange import CHUNK_BYTES, Request, Response, Route, to_json
from actorflow.web.latency import Latencies
from actorflow.web.metrics import exposition
from actorflow.web.pipelines import pipelines
from actorflow.web.stream import Stream
from actorflow.web.vitals import memory_of
from actorflow.web.writing import Writer

_NEVER = OpProfile()


def routes(stream: Stream, writer: Writer) -> list[Route]:
    """What this module answers of a graph's stream; what may be long, it has written by ``writer``."""
    answers = {
        "/api/errors": partial(_errors, stream),
        "/api/pipelines": partial(_pipelines, stream),
        "/healthz": partial(_health, stream),
        "/api/graph": partial(_graph, stream, writer),
        "/api/state": partial(_state, stream, writer),
        "/trace.json": partial(_trace, stream, writer),
        "/metrics": partial(_metrics, stream, writer),
    }
    return [Route("GET", path, answer) for path, answer in answers.items()]


async def _graph(stream: Stream, writer: Writer, _: Request) -> Response:
    structure = await stream.structure()

    def pieces() -> Iterator[str]:
        for at in range(0, len(structure.message), CHUNK_BYTES):
            yield structure.message[at : at + CHUNK_BYTES]

    return Response.of_json(await writer.write("graph", pieces))


async def _state(stream: Stream, writer: Writer, _: Request) -> Response:
    return Response.of_json(await writer.write("state", partial(_states, stream)))


def _states(stream: Stream) -> Iterator[str]:
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
    states = b"" if engine.monitor is None else bytes(engine.monitor.states)
    profiles = [engine.profile.get(op.id, _NEVER) for op in ops]
    times = [(profile.calls, profile.failed, profile.total_ns, profile.last_ns) for profile in profiles]
    content = {"graph": graph.name, "frames": _frames(graph), "memory": memory_of(engine)}

    def described() -> Iterator[str]:
        yield f'{json.dumps(content)[:-1]}, "ops": ['
        for row, (op, (calls, failed, total_ns, last_ns)) in enumerate(zip(ops, times, strict=True)):
            state = NodeState(states[op.id]) if op.id < len(states) else NodeState.IDLE
            if state is NodeState.IDLE and calls:
                state = NodeState.DONE  # before anybody watched
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


async def _errors(stream: Stream, _: Request) -> Response:
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


async def _pipelines(stream: Stream, _: Request) -> Response:
    return Response.of_json(to_json({"pipelines": pipelines(stream.graph)}))


async def _trace(stream: Stream, writer: Writer, _: Request) -> Response:
    chunks = await writer.write("trace", lambda: Snapshot.of(stream.graph).pieces())
    return Response.of_json(chunks, headers={"Content-Disposition": 'attachment; filename="trace.json"'})


async def _metrics(stream: Stream, writer: Writer, _: Request) -> Response:
    try:
        begin, content_type = exposition(stream.graph)
    except MissingExtraError as error:
        return Response.of_text(501, str(error))
    return Response(200, await writer.write("metrics", begin), content_type, {"Cache-Control": "no-store"})


async def _health(stream: Stream, _: Request) -> Response:
    graph = stream.graph
    return Response.of_json(json.dumps({"status": "ok", "graph": graph.name, "frames": _frames(graph)}))


def _frames(graph: Any) -> dict[str, int]:
    frames = graph.engine.frames
    return {name: getattr(frames, name) for name in ("started", "finished", "failed", "cancelled", "in_flight")}
