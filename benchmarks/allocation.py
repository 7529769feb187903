"""Are buffers allocated once a training step has found its own?"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from benchmarks.harness import Budget, Harness, Relation, Table
from benchmarks.workloads import Training, training_step

__all__ = ["measure"]

_FIRST = 2

ONE, TWO, LOSS = "one by one", "two in flight", "one by one, loss fetched"


async def measure(harness: Harness) -> list[Table]:
    """Buffers that the pool allocates after the second frame, training a small Network in Network."""
    steps = harness.pick(20, 3)
    cases = {
        ONE: lambda: _allocations(1, steps, with_loss=False),
        TWO: lambda: _allocations(2, steps, with_loss=False),
        LOSS: lambda: _allocations(1, steps, with_loss=True),
    }
    budgets = [Budget(f"{name}: no buffer after the second frame", name, Relation.AT_MOST, 0.0) for name in (ONE, TWO)]
    table = await harness.compare(f"{steps} training steps", "buffers", cases, budgets=budgets, warm_up=0)
    return [table]


async def _allocations(in_flight: int, steps: int, with_loss: bool) -> int:
    training = training_step()
    fetch: list[Any] = [training.updates, training.loss] if with_loss else [training.updates]
    try:
        await _train(training, _FIRST, fetch, in_flight)
        memory = training.graph.engine.resources.device(training.loss.place).memory
        before = memory.allocations
        await _train(training, steps, fetch, in_flight)
        return memory.allocations - before
    finally:
        await training.graph.aclose()


async def _train(training: Training, steps: int, fetch: list[Any], in_flight: int) -> None:
    results = training.graph.stream([training.feeds] * steps, fetch=fetch, in_flight=in_flight)
    async with aclosing(results):
        async for _ in results:
            pass
