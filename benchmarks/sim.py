"""Do copies and kernels of a simulated accelerator overlap as its model allows?"""

from __future__ import annotations

import numpy as np

import actorflow as af
from actorflow.devices.sim import SimOptions
from benchmarks.harness import Budget, Harness, Relation, Row, Table, per
from benchmarks.overlapping import Frames, compare

__all__ = ["measure"]

_MS = 1e-3
_PLACE = af.Place.parse("sim:0")
_SIZE = 1 << 18

SUM, ACTORFLOW = "sum of its kernels", "actorflow"


async def measure(harness: Harness) -> list[Table]:
    """Copies in and out beside kernels, each as long as the other, in frames that overlap; and a chain on one lane."""
    stage_ms = harness.pick(8, 2)
    return [await _overlap(harness, stage_ms), await _chain(harness)]


async def _overlap(harness: Harness, stage_ms: int) -> Table:
    values = np.random.default_rng(0).standard_normal(_SIZE // 4, np.float32)
    latency_s, kernels = 50e-6, 4
    options = SimOptions(
        latency_s=latency_s,
        bandwidth=values.nbytes / (stage_ms * _MS - latency_s),
        kernel_s=stage_ms * _MS / kernels,
    )
    known = {"in": float(stage_ms), "compute": float(stage_ms), "out": float(stage_ms)}
    frames = Frames(_PLACE, {_PLACE: options}, values, _scales(kernels), harness.pick(40, 4))
    title = f"{frames.count} frames on {_PLACE}: copy in, {kernels} kernels, copy out, {stage_ms} ms each"
    return await compare(harness, title, frames, {}, known)


async def _chain(harness: Harness) -> Table:
    count, kernel_s = harness.pick(200, 10), 500e-6
    graph = af.Graph("chain", devices={_PLACE: SimOptions(kernel_s=kernel_s)})
    with graph.at(_PLACE):
        y: af.Blob = graph.variable("x", (1,), init=1)
        for i, operation in enumerate(_scales(count)):
            y = graph.op(f"op{i}", operation)(y)
    last = y.producers[0]
    try:
        table = await harness.compare(
            f"a chain of {count} kernels of {kernel_s / _MS:g} ms on one lane",
            "ms per kernel",
            {ACTORFLOW: per(count, _MS, lambda: graph.run(fetch=[last]))},
        )
    finally:
        await graph.aclose()
    rows = {SUM: Row(SUM, [kernel_s / _MS] * harness.rounds), **table.rows}
    budget = Budget(f"at least 0.95 of the speed of {SUM}", ACTORFLOW, Relation.BELOW, 0.95, SUM)
    return Table(table.title, table.unit, rows, SUM, [budget])


def _scales(count: int) -> list[af.ops.Scale]:
    return [af.ops.Scale((0.5, 2.0)[i % 2]) for i in range(count)]
