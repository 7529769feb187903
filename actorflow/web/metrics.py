"""Counters of a graph for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from actorflow.errors import require
from actorflow.web.vitals import memory_of

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph

#: Samples that are made text at once.
_BLOCK = 100

#: Values of labels, and the number.
_Sample = tuple[list[str], float]


def exposition(graph: Graph) -> tuple[Callable[[], Iterable[str]], str]:
    """What takes a graph's counters and makes, piece by piece, the text that Prometheus reads; and its content type.

    Raises:
        MissingExtraError: without the package prometheus-client.
    """
    prometheus = require("prometheus_client", extra="metrics", purpose="/metrics")

    def begin() -> Iterator[str]:
        return _texts(prometheus.generate_latest, [*_families(graph)])

    return begin, prometheus.CONTENT_TYPE_LATEST


class _Family:
    """Samples of one name, with what they mean."""

    def __init__(self, kind: str, name: str, meaning: str, labels: Sequence[str], samples: Iterable[_Sample]) -> None:
        self.kind = kind
        self.about = name, meaning
        self.labels = labels
        self.samples = [*samples]


def _families(graph: Graph) -> Iterator[_Family]:
    """What an engine counts, of the moment; the loop reads it, and any thread may make it text."""
    engine, name = graph.engine, graph.name
    ends = [([name, end], getattr(engine.frames, end)) for end in ("finished", "failed", "cancelled")]
    yield _Family("Counter", "actorflow_frames", "Frames that have ended, by how.", ["graph", "end"], ends)
    in_flight = [([name], engine.frames.in_flight)]
    yield _Family("Gauge", "actorflow_frames_in_flight", "Frames that run now.", ["graph"], in_flight)
    profiles = [(op.name, engine.profile[op.id]) for op in graph.ops if op.id in engine.profile]
    for what, meaning, samples in (
        (
            "calls",
            "Calls of an op that have ended well.",
            [([name, op], profile.calls) for op, profile in profiles if profile.calls],
        ),
        (
            "failures",
            "Calls of an op that have failed, repeated or not.",
            [([name, op], profile.failed) for op, profile in profiles if profile.failed],
        ),
        (
            "seconds",
            "Wall time of the calls of an op that have ended well.",
            [([name, op], profile.total_ns / 1e9) for op, profile in profiles if profile.calls],
        ),
    ):
        yield _Family("Counter", f"actorflow_op_{what}", meaning, ["graph", "op"], samples)
    memory = [
        ([name, device["place"], kind], device[kind])
        for device in memory_of(engine)
        for kind in ("held", "used", "peak", "budget")
        if device[kind] is not None
    ]
    yield _Family(
        "Gauge", "actorflow_memory_bytes", "Memory of a device's buffers.", ["graph", "place", "kind"], memory
    )


def _texts(generate_latest: Callable[[Any], bytes], families: Iterable[_Family]) -> Iterator[str]:
    from prometheus_client import core

    for family in families:
        for at in range(0, max(len(family.samples), 1), _BLOCK):
            block = getattr(core, f"{family.kind}MetricFamily")(*family.about, labels=family.labels)
            for labels, value in family.samples[at : at + _BLOCK]:
                block.add_metric(labels, value)
            text = generate_latest(SimpleNamespace(collect=lambda block=block: [block])).decode()
            yield text if at == 0 else text.split("\n", 2)[2]  # what it means is said once
