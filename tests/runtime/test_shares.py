"""Shares of callers: while steps wait, rows are computed in proportion to weights, and none waits for long."""

import asyncio
import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.runtime.test_batched import on_virtual_time
from tests.support.effort import FULL

SEEDS = 2_000 if FULL else 20
FRAMES = 60


class Service:
    """A graph whose frames tell whose rows they have computed."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.frames: list[Counter[int]] = []
        self.graph = graph = af.Graph("shares")
        self.x, y = graph.blob("x", ("row",), "int64"), graph.blob("y", ("row",), "int64")
        [self.x] >> graph.function("compute", self.compute) >> [y]
        self.batcher = graph.batched(fetch=y, max_rows=max_rows, in_flight=1)

    async def compute(self, x: Any) -> Any:
        await asyncio.sleep(0.001)
        self.frames.append(Counter(x.tolist()))
        return x

    async def call(self, key: int, weight: float, steps: list[int] | None = None, **options: Any) -> None:
        """A session that asks again as soon as it has an answer; notes how many frames have ended before each."""
        async with self.batcher.session(key=key, weight=weight, **options) as session:
            while len(self.frames) < FRAMES:
                begun = len(self.frames)
                await session.run({self.x: [key]})
                if steps is not None:
                    steps.append(len(self.frames) - begun)


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_rows_are_computed_in_proportion_to_weights(first: int) -> None:
    async def main(draw: random.Random) -> None:
        service = Service(draw.choice((1, 3, 8)))
        weights = [draw.choice((0.5, 1, 1, 2, 3.7, 10)) for _ in range(draw.randint(2, 5))]
        single = len(weights)  # a caller with one session, which comes later
        weights.append(draw.choice((0.5, 1, 5)))
        waited: list[int] = []
        async with service.graph, service.batcher, asyncio.TaskGroup() as group:
            for key, weight in enumerate(weights[:-1]):
                for _ in range(draw.randint(2, 4) * service.max_rows):
                    group.create_task(service.call(key, weight, priority=draw.choice((0, 0, 1))))
            await asyncio.sleep(draw.randint(0, FRAMES // 2) / 1000)
            group.create_task(service.call(single, weights[-1], waited))
        rows = Counter[int]()
        for frame in service.frames[:FRAMES]:
            rows += frame
            had = [rows[key] / weight for key, weight in enumerate(weights[:-1])]
            assert max(had) - min(had) <= 2 / min(weights[:-1]) + 1e-9, rows
            assert frame.total() == service.max_rows
        # The frame that runs, and those until the others have had as much as its row counts for.
        others = sum(math.ceil(weight / weights[-1]) + 1 for weight in weights[:-1])
        assert waited
        assert max(waited) <= 2 + math.ceil(others / service.max_rows)

    for seed in range(first, first + 10):
        try:
            on_virtual_time(lambda seed=seed: main(random.Random(seed)))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_what_a_caller_has_not_asked_for_is_not_kept_for_it() -> None:
    """One that was away has no claim to what it might have had, and one that has had more waits for that."""

    async def main() -> None:
        service = Service(1)
        async with service.graph, service.batcher, asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(service.call(0, 1))
            await asyncio.sleep(0.0205)
            for _ in range(4):
                group.create_task(service.call(1, 1))
        order = [next(iter(frame)) for frame in service.frames[:FRAMES]]
        assert set(order[:20]) == {0}
        begun = order.index(1)
        for until in range(begun, FRAMES):
            assert abs(sum(1 if key else -1 for key in order[begun:until])) <= 2, order

    on_virtual_time(main)


def test_weights_are_positive() -> None:
    graph = af.Graph("wrong")
    graph.blob("x", ("row",)) * 2
    for wrong in (0, -1, np.nan, "2"):
        with pytest.raises((af.GraphError, TypeError), match="weight must be"):
            graph.batched().session(weight=wrong)  # type: ignore[arg-type]
