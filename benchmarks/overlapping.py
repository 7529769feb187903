"""Copies in, computing and copies out of consecutive frames: how much of that runs at the same time?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

import actorflow as af
from actorflow.ops import Operation
from benchmarks.harness import Budget, Case, Harness, Relation, Row, Table, per

__all__ = ["ALONE", "IDEAL", "OVERLAPPED", "SERIAL", "Frames", "compare"]

_MS = 1e-3
#: As many as there are stages.
_IN_FLIGHT = 3
_SHARE = 0.95

IDEAL, OVERLAPPED, SERIAL = "ideal", f"actorflow, {_IN_FLIGHT} in flight", "actorflow, one by one"
#: What each stage is called, alone.
ALONE = {"in": "copy in alone", "compute": "compute alone", "out": "copy out alone"}


@dataclass(frozen=True)
class Frames:
    """Frames that overlap.

    Attributes:
        place: The accelerator.
        devices: Options of the devices of the graphs.
        values: One frame's input; every frame gets the same.
        operations: What computes, one after the other.
        count: Frames per round.
    """

    place: af.Place
    devices: Mapping[af.Place | str, Any]
    values: npt.NDArray[Any]
    operations: Sequence[Operation]
    count: int

    def graph(self, *, is_fed: bool = True, computes: bool = True, leaves: bool = True) -> tuple[af.Graph, Any, Any]:
        """A graph of some of the stages, the blob that is fed, if any, and what to fetch."""
        graph = af.Graph("overlap", devices=self.devices)
        shape, dtype = self.values.shape, self.values.dtype
        x = graph.blob("x", shape, dtype) if is_fed else graph.variable("x", shape, dtype, self.values, self.place)
        # A view costs no kernel, but has the values where it is.
        *operations, last = self.operations if computes else [af.ops.Reshape(shape)]
        y: af.Blob = x
        with graph.at(self.place):
            for i, operation in enumerate(operations):
                y = graph.op(f"op{i}", operation)(y)
            op = graph.op("last", last)
            if leaves:
                host = graph.blob("y", shape, dtype, "cpu")
                [y] >> op >> [host]
            else:
                op(y)
        return graph, x if is_fed else None, host if leaves else op

    async def run(self, graph: af.Graph, x: af.Blob | None, fetch: Any, in_flight: int) -> None:
        """All frames of a round."""
        feed = {} if x is None else {x: self.values}
        results = graph.stream([feed] * self.count, fetch=[fetch], in_flight=in_flight)
        async with aclosing(results):
            async for _ in results:
                pass


async def compare(
    harness: Harness, title: str, frames: Frames, peers: Mapping[str, Case], known: Mapping[str, float] | None = None
) -> Table:
    """All stages overlapped, against what the slowest of them allows.

    The ideal is that of a pipeline: the first frame passes through all stages, and each further one adds the time of
    the slowest.

    Args:
        harness: What it measures with.
        title: What was measured.
        frames: What is overlapped.
        peers: Others that do the same, in ms per frame.
        known: Milliseconds of each stage, by the names of `ALONE`; by default they are measured, one stage at a time.
    """
    whole = frames.graph()
    graphs = [whole[0]]
    cases: dict[str, Case] = {
        OVERLAPPED: per(frames.count, _MS, lambda: frames.run(*whole, _IN_FLIGHT)),
        SERIAL: per(frames.count, _MS, lambda: frames.run(*whole, 1)),
        **peers,
    }
    if known is None:
        for stage, name in ALONE.items():
            part = frames.graph(is_fed=stage == "in", computes=stage == "compute", leaves=stage == "out")
            graphs.append(part[0])
            cases[name] = per(frames.count, _MS, lambda part=part: frames.run(*part, _IN_FLIGHT))
    try:
        table = await harness.compare(title, "ms per frame", cases)
    finally:
        for graph in graphs:
            await graph.aclose()
    stages = [
        table.rows[name].samples if known is None else [known[stage]] * harness.rounds for stage, name in ALONE.items()
    ]
    ideal = [max(parts) + (sum(parts) - max(parts)) / frames.count for parts in zip(*stages, strict=True)]
    rows = {IDEAL: Row(IDEAL, ideal), **table.rows}
    budget = Budget(f"at least {_SHARE} of the ideal overlap", OVERLAPPED, Relation.BELOW, _SHARE, IDEAL)
    return Table(title, table.unit, rows, IDEAL, [budget])
