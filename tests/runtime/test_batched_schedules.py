"""Random schedules of batched runs on virtual time: each caller gets its own rows or its own error, and nothing hangs.

A schedule is drawn from its seed: when requests come, of how many rows, with which priority and time limit, when their
callers are cancelled, which rows an op fails for, which feeds are wrong, and what happens to the graph meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.runtime.batched import Batcher
from actorflow.testing import virtual_time_loop
from tests.support.effort import FULL

SCHEDULES, PER_TEST = (10_000, 500) if FULL else (300, 50)
WIDTH = 2
HORIZON_S = 0.03


@dataclass
class Ask:
    """A request, and what became of it."""

    ids: range
    at_s: float
    priority: int
    timeout_s: float | None
    cancel_s: float | None
    poisoned: bool
    wrong: bool
    group: int
    began_s: float | None = None
    left_s: float | None = None
    outcome: Any = None

    def feed(self) -> Any:
        rows = np.zeros((len(self.ids), 3 if self.wrong else WIDTH), np.float32)
        rows[:, 0], rows[:, 1] = self.ids, self.group
        if self.poisoned:
            rows[-1, 0] *= -1
        return rows


@dataclass
class Frame:
    ids: list[int]
    length: int
    at_s: float
    groups: set[int]


@dataclass
class Schedule:
    """All that happens, drawn from a seed."""

    seed: int
    asks: list[Ask] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    def __post_init__(self) -> None:
        draw = self.draw = random.Random(self.seed)
        self.options = {
            "max_rows": draw.choice((1, 4, 8)),
            "max_wait": draw.choice((0.0, 0.002, 0.01)),
            "queue_rows": draw.choice((6, 20, 1000)),
            "in_flight": draw.choice((1, 2, 3)),
            "isolate": draw.random() < 0.8,
            "buckets": draw.choice((None, (8,), (2, 5, 8))),
            "key": draw.choice((None, lambda feeds: next(iter(feeds.values()))[0, 1])),
        }
        self.durations = draw.choice(((0.0,), (0.001,), (0.0, 0.004, 0.01)))
        self.event = draw.choice((None,) * 4 + ("aclose", "close graph", "cancel", "pause", "leave by an error"))
        self.event_s = draw.uniform(0, HORIZON_S)
        first = 1
        for _ in range(draw.randint(1, 24)):
            rows = draw.choice((1, 1, 1, 2, 3, 5, 12))
            self.asks.append(
                Ask(
                    range(first, first + rows),
                    draw.choice((0.0, 0.001, round(draw.uniform(0, HORIZON_S), 3))),
                    draw.choice((0, 0, 0, 1, -1)),
                    draw.choice((None, None, None, 0.0, 0.001, 0.006)),
                    draw.choice((None, None, None, 0.0, 0.001, 0.006)),
                    draw.random() < 0.1,
                    draw.random() < 0.05,
                    draw.randint(0, 1),
                )
            )
            first += rows

    async def compute(self, x: Any) -> Any:
        ids = sorted({abs(int(row[0])) for row in x})
        groups = {int(row[1]) for row in x}
        self.frames.append(Frame(ids, len(x), asyncio.get_running_loop().time(), groups))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            duration_s = self.draw.choice(self.durations)
            if duration_s:
                await asyncio.sleep(duration_s)
            if (x[:, 0] < 0).any():
                raise ValueError("poisoned")
            return x * 2
        finally:
            self.running -= 1

    async def caller(self, batcher: Batcher, ask: Ask) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(ask.at_s)
        ask.began_s = loop.time()
        if ask.cancel_s is not None:
            task = asyncio.current_task()
            assert task is not None
            timer = loop.call_later(ask.cancel_s, task.cancel)
        try:
            result = await batcher.run({"x": ask.feed()}, priority=ask.priority, timeout=ask.timeout_s)
            ask.outcome = result["y"]
        except (af.ActorflowError, asyncio.CancelledError) as error:
            ask.outcome = error
        ask.left_s = loop.time()
        if ask.cancel_s is not None:
            timer.cancel()

    async def happen(self, graph: af.Graph, batcher: Batcher) -> None:
        """What happens to the graph meanwhile."""
        await asyncio.sleep(self.event_s)
        if self.event == "aclose":
            await batcher.aclose()
        elif self.event == "close graph":
            await graph.aclose()
        elif self.event == "cancel":
            graph.cancel()
        elif self.event == "pause":
            graph.pause()
            await asyncio.sleep(0.005)
            graph.resume()

    async def run(self) -> None:
        graph = af.Graph("schedule")
        x = graph.blob("x", ("batch", WIDTH))
        y = graph.blob("y", ("batch", WIDTH))
        [x] >> graph.function("compute", self.compute) >> [y]
        async with graph:
            batcher = graph.batched(fetch=y, **self.options)
            try:
                async with asyncio.TaskGroup() as group, batcher:
                    tasks = [group.create_task(self.caller(batcher, ask)) for ask in self.asks]
                    if self.event == "leave by an error":
                        await asyncio.sleep(self.event_s)
                        raise LookupError("the service ends")
                    if self.event is not None:
                        await self.happen(graph, batcher)
                    await asyncio.wait(tasks)
            except* LookupError:
                assert self.event == "leave by an error"
            self.check(batcher)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self, batcher: Batcher) -> None:
        for ask in self.asks:
            if ask.began_s is not None and ask.left_s is not None:
                self.check_outcome(ask)
        most = self.options["max_rows"]
        for frame in self.frames:
            assert len(frame.ids) <= most
            assert frame.length in (self.options["buckets"] or [len(frame.ids)])
            assert len(frame.groups) == 1 or self.options["key"] is None
        assert self.running == 0
        assert self.most_running <= self.options["in_flight"]
        figures = batcher.statistics()
        assert (figures.waiting_rows, figures.in_flight) == (0, 0)
        ends = figures.finished + figures.failed + figures.cancelled + figures.expired + figures.refused
        assert ends == sum(ask.began_s is not None for ask in self.asks)
        assert figures.frames >= len(self.frames)

    def check_outcome(self, ask: Ask) -> None:
        outcome = ask.outcome
        frames = [frame for frame in self.frames if set(frame.ids) & set(ask.ids)]
        assert not any(frame.at_s > ask.left_s for frame in frames), "computed although nobody waits"
        if isinstance(outcome, np.ndarray):
            assert not ask.poisoned
            assert not ask.wrong
            np.testing.assert_array_equal(outcome, 2 * ask.feed())
            if self.event is None and not self.failures:
                assert len(frames) == -(-len(ask.ids) // self.options["max_rows"]), "computed once"
            return
        ended = self.event in ("aclose", "close graph", "leave by an error")
        allowed: dict[type[BaseException], bool] = {
            af.ShapeError: ask.wrong,
            af.OpError: ask.poisoned or (self.failures and not self.options["isolate"]),
            af.RunTimeoutError: ask.timeout_s is not None,
            asyncio.CancelledError: ask.cancel_s is not None or self.event == "leave by an error",
            af.QueueFullError: self.options["queue_rows"] < 100,
            af.BatcherClosedError: ended,
            af.RunCancelledError: self.event == "cancel",
        }
        assert allowed.get(type(outcome)), repr(outcome)
        if ask.wrong or isinstance(outcome, af.QueueFullError):
            assert not frames

    @property
    def failures(self) -> bool:
        return any(ask.poisoned for ask in self.asks)


@pytest.mark.parametrize("first", range(0, SCHEDULES, PER_TEST))
def test_each_caller_gets_its_rows_or_its_error(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        schedule = Schedule(seed)
        with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
            try:
                runner.run(_limited(schedule.run))
            except BaseException as error:
                error.add_note(f"schedule {seed}: {schedule}")
                raise


async def _limited(main: Callable[[], Any]) -> None:
    async with asyncio.timeout(1000):  # virtual seconds: only what hangs takes them
        await main()
