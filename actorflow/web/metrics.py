"""Counters of a graph for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from actorflow.errors import require
from actorflow.threads import in_thread
from actorflow.web.vitals import memory_of

if TYPE_CHECKING:
    from actorflow.graph import Graph

__all__ = ["exposition"]


class _Collector:
    """What an engine counts, of the moment; the loop reads it, and any thread may make it text."""

    def __init__(self, graph: Graph) -> None:
        engine = graph.engine
        self._graph = graph.name
        self._frames = {end: getattr(engine.frames, end) for end in ("finished", "failed", "cancelled")}
        self._in_flight = engine.frames.in_flight
        profiles = ((op.name, engine.profile.get(op.id)) for op in graph.ops)
        self._ops = [
            (name, profile.calls, profile.failed, profile.total_ns) for name, profile in profiles if profile is not None
        ]
        self._memory = memory_of(engine)

    def describe(self) -> Iterable[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        name = self._graph
        frames = CounterMetricFamily("actorflow_frames", "Frames that have ended, by how.", labels=["graph", "end"])
        for end, count in self._frames.items():
            frames.add_metric([name, end], count)
        yield frames
        in_flight = GaugeMetricFamily("actorflow_frames_in_flight", "Frames that run now.", labels=["graph"])
        in_flight.add_metric([name], self._in_flight)
        yield in_flight
        calls = CounterMetricFamily(
            "actorflow_op_calls", "Calls of an op that have ended well.", labels=["graph", "op"]
        )
        seconds = CounterMetricFamily(
            "actorflow_op_seconds", "Wall time of the calls of an op that have ended well.", labels=["graph", "op"]
        )
        failures = CounterMetricFamily(
            "actorflow_op_failures", "Calls of an op that have failed, repeated or not.", labels=["graph", "op"]
        )
        for op, count, failed, total_ns in self._ops:
            if count:
                calls.add_metric([name, op], count)
                seconds.add_metric([name, op], total_ns / 1e9)
            if failed:
                failures.add_metric([name, op], failed)
        yield calls
        yield failures
        yield seconds
        memory = GaugeMetricFamily(
            "actorflow_memory_bytes", "Memory of a device's buffers.", labels=["graph", "place", "kind"]
        )
        for device in self._memory:
            for kind in ("held", "used", "peak", "budget"):
                if device[kind] is not None:
                    memory.add_metric([name, device["place"], kind], device[kind])
        yield memory


async def exposition(graph: Graph) -> tuple[bytes, str]:
    """The text that Prometheus reads, and its content type; of a large graph it is long, so a thread writes it.

    Raises:
        MissingExtraError: without the package prometheus-client.
    """
    prometheus = require("prometheus_client", extra="metrics", purpose="/metrics")
    registry = prometheus.CollectorRegistry(auto_describe=False)
    registry.register(_Collector(graph))
    return await in_thread(lambda: prometheus.generate_latest(registry)), prometheus.CONTENT_TYPE_LATEST
