"""How close do chains of small NumPy operations come to a plain loop?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import actorflow as af
from benchmarks.harness import Budget, Harness, Relation, Table, per
from benchmarks.workloads import MatMul, chain_graph, matmul_factors, matmul_size

__all__ = ["measure"]

_US = 1e-6
_MATRIX = npt.NDArray[np.float32]

LOOP, LOOP_FRESH = "plain loop, reused buffers", "plain loop, new arrays"
KERNELS, FUNCTIONS = "actorflow, kernels", "actorflow, functions"


async def measure(harness: Harness) -> list[Table]:
    """Chains of square matrix products of about 10 and 400 us, against the same products in a loop."""
    tables = []
    for target_us, share, count in ((10, 0.92, harness.pick(1_000, 20)), (400, 0.97, harness.pick(100, 5))):
        size = matmul_size(target_us * _US)
        tables.append(await _compare(harness, size, share, count, target_us))
    return tables


async def _compare(harness: Harness, size: int, share: float, count: int, target_us: int) -> Table:
    x, w = matmul_factors(size)
    kernels, kernel_feeds = await _warm(count, x, w, MatMul())
    functions, function_feeds = await _warm(count, x, w, np.matmul)
    budgets = [
        Budget(f"{name}: at least {share} of the speed of the loop", name, Relation.BELOW, share, loop)
        for name, loop in ((KERNELS, LOOP), (FUNCTIONS, LOOP_FRESH))
    ]
    try:
        return await harness.compare(
            f"{count} products of {size} x {size} (about {target_us} us)",
            "us per op",
            {
                LOOP: per(count, _US, _loop_reusing(count, x, w)),
                KERNELS: per(count, _US, lambda: kernels.run(kernel_feeds)),
                LOOP_FRESH: per(count, _US, _loop_fresh(count, x, w)),
                FUNCTIONS: per(count, _US, lambda: functions.run(function_feeds)),
            },
            reference=LOOP,
            budgets=budgets,
        )
    finally:
        await kernels.aclose()
        await functions.aclose()


async def _warm(count: int, x: _MATRIX, w: _MATRIX, operation: Any) -> tuple[af.Graph, dict[Any, Any]]:
    """A graph whose ops know their cost: the first calls of an op go to the lane; then short ones fire as one."""
    graph, source = chain_graph(count, w, operation)
    feeds = {source: x}
    for _ in range(6):
        await graph.run(feeds)
    return graph, feeds


def _loop_reusing(count: int, x: _MATRIX, w: _MATRIX) -> Callable[[], None]:
    buffers = np.empty_like(x), np.empty_like(x)

    def loop() -> None:
        y = x
        for i in range(count):
            y = np.matmul(y, w, out=buffers[i % 2])

    return loop


def _loop_fresh(count: int, x: _MATRIX, w: _MATRIX) -> Callable[[], None]:
    def loop() -> None:
        y = x
        for _ in range(count):
            y = np.matmul(y, w)

    return loop
