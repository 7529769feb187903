"""Random schedules of batched runs on virtual time: each caller gets its own rows or its own error, and nothing hangs.

A schedule is drawn from its seed: when requests come, of how many rows and columns, with which priority and time limit,
when their callers are cancelled, which rows an op fails for, which arguments are wrong, and what happens to the graph
meanwhile, often in the turn in which something else does. A batcher is entered several times, also on another loop.
"""

import asyncio
import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.runtime.batched import Batcher
from actorflow.testing import virtual_time_loop
from tests.support.effort import FULL, slow

SCHEDULES, PER_TEST = (10_000, 500) if FULL else (300, 25)
HORIZON_S = 0.03
#: Arguments that a batcher refuses, in place of right ones.
MISTAKES: tuple[dict[str, Any], ...] = (
    {"priority": "high"},
    {"priority": None},
    {"priority": math.nan},
    {"timeout": "1"},
    {"timeout": math.nan},
    {"timeout": -1},
    {"feeds": None},
    {"feeds": {}},
    {"feeds": {"x": "text"}},
    {"feeds": {"x": np.zeros((1, 2, 3), np.float32)}},
    {"feeds": {"x": np.zeros((0, 2), np.float32)}},
    {"feeds": {"z": 1}},
)


async def befall(event: str, graph: af.Graph, batcher: Batcher) -> None:
    """Have an event happen to a graph and its batcher; others than these happen elsewhere."""
    if event == "aclose":
        await batcher.aclose()
    elif event == "close graph":
        await graph.aclose()
    elif event == "cancel":
        graph.cancel()
    elif event == "pause":
        graph.pause()
        await asyncio.sleep(0.005)
        graph.resume()


@dataclass
class Ask:
    """A request, and what became of it."""

    ids: range
    at_s: float
    priority: int
    timeout_s: float | None
    cancel_s: float | None
    poisoned: bool
    mistake: dict[str, Any] | None
    key_fails: bool
    group: int
    width: int
    began_s: float | None = None
    left_s: float | None = None
    outcome: Any = None

    def feed(self) -> Any:
        rows = np.ones((len(self.ids), self.width), np.float32)
        rows[:, 0], rows[:, 1] = self.ids, self.group
        if self.poisoned:
            rows[-1, 0] *= -1
        if self.key_fails:
            rows[0, 1] = -1
        return rows


@dataclass
class Frame:
    ids: list[int]
    length: int
    at_s: float
    groups: set[int]
    width: int


def key_of(feeds: Any) -> Any:
    """The group of a request; of some there is none."""
    group = next(iter(feeds.values()))[0, 1]
    if group == -1:
        raise LookupError("no key")
    return group


def padded(requests: list[Any]) -> list[Any]:
    longest = max(rows.shape[1] for request in requests for rows in request.values())
    return [
        {blob: np.pad(rows, ((0, 0), (0, longest - rows.shape[1]))) for blob, rows in request.items()}
        for request in requests
    ]


@dataclass
class Schedule:
    """All that happens while a batcher is open, drawn from a seed."""

    seed: int
    options: dict[str, Any]
    asks: list[Ask] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    def __post_init__(self) -> None:
        draw = self.draw = random.Random(self.seed)
        self.durations = draw.choice(((0.0,), (0.001,), (0.0, 0.004, 0.01)))
        events = ("aclose", "close graph", "cancel", "pause", "leave by an error", "cancel callers and aclose")
        self.event = draw.choice((None,) * 4 + events)
        self.event_s = draw.choice((0.0, 0.001, 0.006, draw.uniform(0, HORIZON_S)))
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
                    draw.choice(MISTAKES) if draw.random() < 0.1 else None,
                    draw.random() < 0.05,
                    draw.randint(0, 1),
                    draw.choice((2, 2, 2, 3, 5)),
                )
            )
            first += rows

    async def compute(self, x: Any) -> Any:
        ids = sorted({abs(int(row[0])) for row in x})
        groups = {int(row[1]) for row in x} - {-1}
        self.frames.append(Frame(ids, len(x), asyncio.get_running_loop().time(), groups, x.shape[1]))
        check_places(self.batcher)
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
            request = {"feeds": {"x": ask.feed()}, "priority": ask.priority, "timeout": ask.timeout_s}
            result = await batcher.run(**request | (ask.mistake or {}))
            ask.outcome = result["y"]
        except (af.ActorflowError, asyncio.CancelledError, TypeError, LookupError) as error:
            ask.outcome = error
        ask.left_s = loop.time()
        if ask.cancel_s is not None:
            timer.cancel()

    async def happen(self, graph: af.Graph, batcher: Batcher, callers: list[asyncio.Task[None]]) -> None:
        """What happens to the graph meanwhile."""
        await asyncio.sleep(self.event_s)
        if self.event == "cancel callers and aclose":
            for caller in callers[::2]:
                caller.cancel()
            await batcher.aclose()
        await befall(self.event, graph, batcher)

    async def run(self, graph: af.Graph, batcher: Batcher) -> None:
        self.batcher = batcher
        before = ends_of(batcher)
        async with graph:
            try:
                async with asyncio.TaskGroup() as group, batcher:
                    tasks = [group.create_task(self.caller(batcher, ask)) for ask in self.asks]
                    if self.event == "leave by an error":
                        await asyncio.sleep(self.event_s)
                        raise LookupError("the service ends")
                    if self.event is not None:
                        await self.happen(graph, batcher, tasks)
                    await asyncio.wait(tasks)
            except* LookupError:
                assert self.event == "leave by an error"
            self.check(batcher, before)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self, batcher: Batcher, before: int) -> None:
        for ask in self.asks:
            if ask.began_s is not None and ask.left_s is not None:
                self.check_outcome(ask)
        most = self.options["max_rows"]
        for frame in self.frames:
            assert len(frame.ids) <= most
            assert frame.length in (self.options["buckets"] or [len(frame.ids)])
            assert len(frame.groups) <= 1 or self.options["key"] is None
            widths = {ask.width for ask in self.asks if set(ask.ids) & set(frame.ids)}
            assert frame.width == max(widths)
            assert len(widths) == 1 or self.options["pad"] is not None
        assert self.running == 0
        assert self.most_running <= self.options["in_flight"]
        figures = batcher.statistics()
        assert (figures.waiting_rows, figures.in_flight) == (0, 0)
        assert ends_of(batcher) - before == sum(ask.began_s is not None for ask in self.asks)
        assert figures.frames >= len(self.frames)
        check_places(batcher)
        assert not batcher._groups
        assert not batcher._batches

    def check_outcome(self, ask: Ask) -> None:
        outcome = ask.outcome
        frames = [frame for frame in self.frames if set(frame.ids) & set(ask.ids)]
        assert not any(frame.at_s > ask.left_s for frame in frames), "computed although nobody waits"
        if isinstance(outcome, np.ndarray):
            assert not ask.poisoned
            assert not ask.mistake
            assert not (ask.key_fails and self.has_key(ask))
            width = outcome.shape[1]
            assert width in {frame.width for frame in frames}
            feed = np.pad(ask.feed(), ((0, 0), (0, width - ask.width)))
            np.testing.assert_array_equal(outcome, 2 * feed)
            if self.event is None and not self.failures:
                assert len(frames) == -(-len(ask.ids) // self.options["max_rows"]), "computed once"
            return
        ended = self.event in ("aclose", "close graph", "leave by an error", "cancel callers and aclose")
        mistaken = ask.mistake is not None
        allowed: dict[type[BaseException], bool] = {
            af.ShapeError: mistaken,
            af.FeedError: mistaken,
            af.DTypeError: mistaken,
            af.GraphError: mistaken,
            TypeError: mistaken,
            LookupError: ask.key_fails and self.has_key(ask),
            af.OpError: ask.poisoned or (self.failures and not self.options["isolate"]),
            af.RunTimeoutError: ask.timeout_s is not None,
            asyncio.CancelledError: ask.cancel_s is not None
            or self.event in ("leave by an error", "cancel callers and aclose"),
            af.QueueFullError: self.options["queue_rows"] < 100,
            af.BatcherClosedError: ended,
            af.RunCancelledError: self.event == "cancel",
        }
        assert allowed.get(type(outcome)), repr(outcome)
        if mistaken or isinstance(outcome, af.QueueFullError | LookupError):
            assert not frames

    def has_key(self, ask: Ask) -> bool:
        """Whether the key of a request is asked for: parts of one that is padded are by themselves."""
        is_apart = self.options["pad"] is not None and len(ask.ids) > self.options["max_rows"]
        return self.options["key"] is not None and not is_apart

    @property
    def failures(self) -> bool:
        return any(ask.poisoned for ask in self.asks)


class Schedules:
    """A batcher, and what happens each time that it is open, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.options = {
            "max_rows": draw.choice((1, 4, 8)),
            "max_wait": draw.choice((0.0, 0.002, 0.01)),
            "queue_rows": draw.choice((6, 20, 1000)),
            "in_flight": draw.choice((1, 2, 3)),
            "isolate": draw.random() < 0.8,
            "buckets": draw.choice((None, (8,), (2, 5, 8))),
            "key": draw.choice((None, key_of)),
            "pad": draw.choice((None, padded)),
        }
        self.loops = draw.choice(([1], [1], [2], [1, 1], [1, 2]))  # how often it is open, on each loop
        self.each = [Schedule(seed * 10 + number, self.options) for number in range(sum(self.loops))]

    def run(self) -> None:
        schedules, now = iter(self.each), [self.each[0]]

        async def compute(rows: Any) -> Any:
            return await now[-1].compute(rows)

        graph = af.Graph("schedule")
        x, y = graph.blob("x", ("batch", "width")), graph.blob("y", ("batch", "width"))
        [x] >> graph.function("compute", compute) >> [y]
        batcher = graph.batched(fetch=y, **self.options)

        async def on_one_loop(times: int) -> None:
            async with asyncio.timeout(1000):  # virtual seconds: only what hangs takes them
                for _ in range(times):
                    now.append(next(schedules))
                    await now[-1].run(graph, batcher)

        for times in self.loops:
            with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
                runner.run(on_one_loop(times))


def ends_of(batcher: Batcher) -> int:
    """Number of requests that have ended."""
    figures = batcher.statistics()
    return figures.finished + figures.failed + figures.cancelled + figures.expired + figures.refused


def check_places(batcher: Batcher) -> None:
    """Each request is in one place, and knows which; what is counted of them is right."""
    groups = batcher._groups.values()
    places = [*groups, *batcher._batches]
    requests = [request for place in places for request in place.requests]
    assert len(set(requests)) == len(requests)
    assert all(request.place is place for place in places for request in place.requests)
    assert all(group.requests for group in groups)
    rows = [sum(request.rows for request in group.requests) for group in groups]
    assert rows == [group.rows for group in groups]
    assert batcher.statistics().waiting_rows == sum(rows)


@pytest.mark.parametrize("first", slow(range(0, SCHEDULES, PER_TEST), but={0, 50}))
def test_each_caller_gets_its_rows_or_its_error(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        schedules = Schedules(seed)
        try:
            schedules.run()
        except BaseException as error:
            error.add_note(f"schedules {seed}: {schedules.loops}, {schedules.each}")
            raise
