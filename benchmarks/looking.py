"""What looks at values cost a training: taps, and the check for what is not finite; part of ``watched``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import numpy as np

import actorflow as af
from benchmarks.harness import Budget, Case, Harness, Relation, Table

__all__ = ["measure"]

NEVER, CLOSED, OPEN, CHECK = "no tap ever", "50 taps, closed", "50 taps, 10 times a second", "check_finite=True"
_TAPS, _INTERVAL_S = 50, 0.1


class _Training:
    """LeNet in training on noise."""

    def __init__(self) -> None:
        self.graph = graph = af.Graph("lenet")
        images, labels = graph.blob("images", (64, 28, 28, 1)), graph.blob("labels", (64,), "int64")
        net = af.nn.LeNet(10)
        loss = af.ops.softmax_loss(net(images), labels)
        self.fetch = [loss, af.nn.SGD(1e-4, momentum=0.9).minimize(loss)]
        random = np.random.default_rng(0)
        self.feed = {
            images: random.standard_normal((64, 28, 28, 1), np.float32),
            labels: random.integers(0, 10, 64),
        }
        # The first of them, from the pixels to the first weights' gradients: large ones are among them.
        outputs = [blob for op in graph.ops for blob in op.outputs if not isinstance(blob, af.Variable)]
        self.blobs = [*outputs, *graph.variables][:_TAPS]
        assert len(self.blobs) == _TAPS

    async def steps(self, seconds: float) -> float:
        """Milliseconds per step."""
        count, start = 0, perf_counter()
        while perf_counter() - start < seconds:
            await self.graph.run(self.feed, fetch=self.fetch)
            count += 1
        return (perf_counter() - start) / count * 1e3

    @asynccontextmanager
    async def tapped(self) -> AsyncIterator[None]:
        """Someone takes a sample of each of 50 blobs out, ten times a second."""
        taps = [self.graph.tap(blob, interval=_INTERVAL_S) for blob in self.blobs]

        async def take(tap: af.Tap) -> None:
            async for _ in tap:
                pass

        tasks = [asyncio.create_task(take(tap)) for tap in taps]
        try:
            yield
        finally:
            for tap in taps:
                tap.close()
            await asyncio.gather(*tasks)


async def measure(harness: Harness) -> Table:
    """Steps of LeNet's training while nobody looks, while values are taken out, and while results are checked."""
    seconds = harness.pick(700, 100) / 1000
    # All but the first in one graph: two that are alike differ by some per cent, by where their arrays lie.
    never, looked_at = _Training(), _Training()

    async def tapped() -> float:
        async with looked_at.tapped():
            return await looked_at.steps(seconds)

    async def checked() -> float:
        looked_at.graph.check_finite = True
        try:
            return await looked_at.steps(seconds)
        finally:
            looked_at.graph.check_finite = False

    cases: dict[str, Case] = {
        NEVER: lambda: never.steps(seconds),
        CLOSED: lambda: looked_at.steps(seconds),
        OPEN: tapped,
        CHECK: checked,
    }
    budgets = [
        Budget("closed taps cost nothing to be seen: at most 1.05x", CLOSED, Relation.TIMES, 1.05, NEVER),
        Budget("50 taps at 10 Hz: at most 1.05x", OPEN, Relation.TIMES, 1.05, CLOSED),
    ]
    async with never.graph, looked_at.graph:
        await tapped()
        return await harness.compare(
            "training of LeNet, 64 images", "ms per step", cases, reference=CLOSED, budgets=budgets, warm_up=2
        )
