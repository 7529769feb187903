"""Counters of a graph for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from actorflow.errors import require
from actorflow.web.vitals import memory_of

if TYPE_CHECKING:
    from actorflow.graph import Graph

__all__ = ["exposition"]


class _Collector:
    """What is read from an engine when it is asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def describe(self) -> Iterable[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        engine, name = self._graph.engine, self._graph.name
        frames = CounterMetricFamily("actorflow_frames", "Frames that have ended, by how.", labels=["graph", "end"])
        for end in ("finished", "failed", "cancelled"):
            frames.add_metric([name, end], getattr(engine.frames, end))
        yield frames
        in_flight = GaugeMetricFamily("actorflow_frames_in_flight", "Frames that run now.", labels=["graph"])
        in_flight.add_metric([name], engine.frames.in_flight)
        yield in_flight
        calls = CounterMetricFamily("actorflow_op_calls", "Finished calls of an op.", labels=["graph", "op"])
        seconds = CounterMetricFamily(
            "actorflow_op_seconds", "Wall time of the finished calls of an op.", labels=["graph", "op"]
        )
        for op in self._graph.ops:
            profile = engine.profile.get(op.id)
            if profile is not None and profile.calls:
                calls.add_metric([name, op.name], profile.calls)
                seconds.add_metric([name, op.name], profile.total_ns / 1e9)
        yield calls
        yield seconds
        memory = GaugeMetricFamily(
            "actorflow_memory_bytes", "Memory of a device's buffers.", labels=["graph", "place", "kind"]
        )
        for device in memory_of(engine):
            for kind in ("held", "used", "peak", "budget"):
                if device[kind] is not None:
                    memory.add_metric([name, device["place"], kind], device[kind])
        yield memory


def exposition(graph: Graph) -> tuple[bytes, str]:
    """The text that Prometheus reads, and its content type.

    Raises:
        MissingExtraError: without the package prometheus-client.
    """
    prometheus = require("prometheus_client", extra="metrics", purpose="/metrics")
    registry = prometheus.CollectorRegistry(auto_describe=False)
    registry.register(_Collector(graph))
    return prometheus.generate_latest(registry), prometheus.CONTENT_TYPE_LATEST
