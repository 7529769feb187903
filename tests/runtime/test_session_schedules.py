"""Random schedules of sessions on virtual time: each gets what it would get alone or its own error; nothing is left.

A schedule is drawn from its seed: when sessions come and hang up, how many slots there are, when each calls its steps,
several at once too, with which time limits, which of them are cancelled, or fail inside an op, and what happens to the
graph meanwhile, that weights are swapped for one. What a step gives tells which steps were computed before it: a
session keeps a number that all of them are mixed into, the last two values, along another axis, and in a cache all
values, of which there may be few blocks. Some callers iterate, read slowly, take other steps in between, and leave.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.runtime.batched import Batcher
from actorflow.runtime.sessions import Session
from actorflow.testing import virtual_time_loop
from tests.runtime.test_batched_schedules import befall
from tests.support.effort import FULL, slow

SCHEDULES, PER_TEST = (10_000, 500) if FULL else (300, 20)
HORIZON_S = 0.04
_PRIME = 1_000_003


@dataclass
class Caller:
    """A session's caller, what it expects to be kept, and how its steps have ended."""

    number: int
    mixed: int = 7
    trail: tuple[int, int] = (0, 0)
    read: list[int] = field(default_factory=list)
    finished: int = 0

    def expect(self, value: int, new: int, times: int, result: Any) -> None:
        """A step was returned: it must be the one that follows those before it, and no other."""
        self.mixed = (self.mixed * 31 + value) % _PRIME
        self.trail = (value, self.trail[0])
        self.finished += 1
        assert result["mixed_next"].tolist() == [self.mixed]
        assert result["apart/out"].tolist() == [0]
        self.read += [new] * times
        if "mean/out" in result:
            assert result["mean/out"][0, -1, 0] == pytest.approx(np.mean(self.read))

    def check_kept(self, session: Session) -> None:
        kept = session.state_dict()
        assert (kept["mixed"].tolist(), kept["trail"].tolist()) == (self.mixed, [*self.trail])
        for name in {"cache_keys", "cache_values"} & kept.keys():
            assert kept[name][:, 0].tolist() == self.read


@dataclass
class Schedule:
    """All that happens while a batcher is open, drawn from a seed."""

    seed: int
    outcomes: list[Any] = field(default_factory=list)
    steps: int = 0
    refusals: list[type[Exception]] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = self.draw = random.Random(self.seed)
        self.durations = draw.choice(((0.0,), (0.001,), (0.0, 0.004, 0.01)))
        events = ("aclose", "close graph", "cancel", "pause", "leave by an error", "swap", "swap")
        self.event = draw.choice((None,) * 4 + events)
        self.event_s = draw.choice((0.0, 0.001, 0.006, draw.uniform(0, HORIZON_S)))
        self.slots = draw.choice((1, 2, 5, 100))
        self.most_rows = draw.choice((1, 3, 8))
        self.blocks = draw.choice((None, 3, 6, 3000))
        self.isolates = draw.random() < 0.8
        self.poisons = draw.choice((0.0, 0.1, 0.3))
        self.running = self.most_running = self.read_steps = 0

    def graph(self) -> tuple[af.Graph, Batcher]:
        graph = af.Graph("schedule")
        x = graph.blob("x", ("row", 3), "int64")
        mixed = graph.state("mixed", ("row",), "int64", init=7)
        trail = graph.state("trail", (2, "row"), "int64")
        mixed_next = graph.blob("mixed_next", ("row",), "int64")
        trail_next = graph.blob("trail_next", (2, "row"), "int64")
        before, after = (graph.variable(name, (), "int64") for name in ("before", "after"))
        read = mixed + 0 * before
        outputs = [mixed_next, trail_next, graph.blob("x_next", x.shape, "int64"), graph.blob("done", ("row",), "bool")]
        [x, read, trail] >> graph.function("compute", self.compute) >> outputs
        mixed.assign(mixed_next)
        trail.assign(trail_next)
        apart = af.ops.subtract(before + 0 * read, after + 0 * mixed_next, name="apart")
        fetch = [mixed_next, apart, *outputs[2:]]
        self.model = af.Model.of(graph)
        if self.blocks is not None:
            new = graph.blob("new", ("row", "time", 1))
            cache = graph.cache("cache", most=600, blocks=self.blocks, block=2)
            fetch.append(cache.attention(new * 0.0, new, new, heads=1, name="mean"))  # the mean of all that was read
            fetch.append(af.ops.add(new, 1.0, name="new_next"))
        batcher = graph.batched(
            fetch=fetch,
            max_cells=self.draw.choice((None, 4)),
            max_rows=self.most_rows,
            max_wait=self.draw.choice((0.0, 0.002, 0.01)),
            in_flight=self.draw.choice((1, 2, 3)),
            buckets=self.draw.choice((None, (8,))),
            queue_rows=self.draw.choice((3, 1000)),
            isolate=self.isolates,
            max_sessions=self.slots,
        )
        return graph, batcher

    async def compute(self, x: Any, mixed: Any, trail: Any) -> Any:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            duration_s = self.draw.choice(self.durations)
            if duration_s:
                await asyncio.sleep(duration_s)
            callers = dict.fromkeys(x[:, 0].tolist())
            assert len(callers) <= self.most_rows
            if (x[:, 2] == 1).any():
                raise ValueError("poisoned")
            following = np.stack([x[:, 0], x[:, 1] * 5 % _PRIME, np.maximum(x[:, 2] - 1, 0)], 1)
            return (mixed * 31 + x[:, 1]) % _PRIME, np.stack([x[:, 1], trail[0]]), following, x[:, 1] % 7 == 0
        finally:
            self.running -= 1

    def feeds(self, caller: Caller, poisoned: int, times: int) -> tuple[int, dict[str, Any]]:
        """A new value, and feeds of it; from ``poisoned`` each step counts down to 1, which fails."""
        self.steps += 1
        feeds: dict[str, Any] = {"x": np.array([[caller.number, self.steps, poisoned]], np.int64)}
        if self.blocks is not None:
            feeds["new"] = np.full((1, times, 1), self.steps, np.float32)
        return self.steps, feeds

    async def call(self, caller: Caller, session: Session, timeout_s: float | None, poisoned: bool, times: int) -> None:
        value, feeds = self.feeds(caller, poisoned, times)
        with self.noted(timeout_s, poisoned):
            caller.expect(value, value, times, await session.run(feeds, timeout=timeout_s))
            self.outcomes.append((None, timeout_s is not None, poisoned))

    @contextmanager
    def noted(self, timeout_s: float | None, poisoned: bool) -> Iterator[None]:
        try:
            yield
        except (af.ActorflowError, asyncio.CancelledError) as error:
            self.outcomes.append((error, timeout_s is not None, poisoned))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def iterate(
        self, draw: random.Random, caller: Caller, session: Session | Batcher, timeout_s: float | None, times: int
    ) -> None:
        """Read steps that feed each other, some of them slowly, and leave at some time."""
        poisoned = draw.choice((2, 3, 5)) if draw.random() < self.poisons else 0
        first, feeds = self.feeds(caller, poisoned, times)
        value, until, limit = first, draw.choice((None, "done")), draw.choice((1, 2, 5, 9))
        leaves, naps = draw.choice((1, 3, 100, 100)), draw.choice(((0.0,), (0.0, 0.001), (0.0, 0.008)))
        feedback = {"x": "x_next"} if self.blocks is None else {"x": "x_next", "new": "new_next/out"}

        steps: Any = session.iterate(feeds, feedback=feedback, until=until, limit=limit, timeout=timeout_s)
        count, is_last = 0, False
        with self.noted(timeout_s if isinstance(session, Session) else None, bool(poisoned)):
            try:
                async for result in steps:
                    assert not is_last
                    caller.expect(value, first + count, times, result)
                    self.read_steps += 1
                    self.outcomes.append((None, False, False))
                    if isinstance(session, Session):
                        caller.check_kept(session)
                    count, is_last = count + 1, until is not None and value % 7 == 0
                    assert bool(result["done"][0]) == (value % 7 == 0)
                    value = value * 5 % _PRIME
                    if count == leaves:
                        break
                    await asyncio.sleep(draw.choice(naps))
                    if isinstance(session, Session) and draw.random() < 0.15:
                        await self.call(caller, session, None, False, 1)
                else:
                    assert is_last or count == limit
            finally:
                if draw.random() < 0.5:
                    await steps.aclose()

    async def converse(self, batcher: Batcher, number: int) -> None:
        """A caller with a session, or with two, of which the second one goes on from the first."""
        draw, caller = random.Random(f"{self.seed} {number}"), Caller(number)
        await asyncio.sleep(draw.choice((0.0, 0.0, 0.001, round(draw.uniform(0, HORIZON_S), 3))))
        kept = None
        if draw.random() < 0.1:
            await self.iterate(draw, Caller(number), batcher, draw.choice((0, 0.002, None)), 1)
        for _ in range(draw.choice((1, 1, 2))):
            session = batcher.session(
                state=kept,
                timeout=draw.choice((0, 0.002, None)),
                ttl=draw.choice((None, None, 0.003)),
                priority=draw.choice((0, 0, 1)),
                key=draw.choice((None, None, "a", "b")),
                weight=draw.choice((1, 3)),
            )
            try:
                async with session:
                    await self.talk(draw, caller, session)
            except (af.SessionsFullError, af.BatcherClosedError) as error:
                self.refusals.append(type(error))
            caller.check_kept(session)
            kept = session.state_dict()

    async def talk(self, draw: random.Random, caller: Caller, session: Session) -> None:
        calls: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(draw.randint(1, 6)):
                poisoned = draw.random() < self.poisons
                timeout_s, times = draw.choice((None, None, None, 0.0, 0.001, 0.006)), draw.choice((1, 1, 3))
                if draw.random() < 0.3:
                    call = self.iterate(draw, caller, session, timeout_s, times)
                else:
                    call = self.call(caller, session, timeout_s, poisoned, times)
                how = draw.choice(("wait", "wait", "wait", "go on", "hang up"))
                if how == "wait":
                    await call
                    caller.check_kept(session)
                    await asyncio.sleep(draw.choice((0.0, 0.0, 0.001, 0.005)))
                    continue
                calls.append(group.create_task(call))
                if how == "hang up":
                    await asyncio.sleep(draw.choice((0.0, 0.001, 0.004)))
                    calls[-1].cancel()
            if draw.random() < 0.3:  # with steps under way
                await asyncio.sleep(draw.choice((0.0, 0.001)))
                session.close()

    @property
    def ends(self) -> bool:
        return self.event in ("aclose", "close graph", "leave by an error")

    async def happen(self, graph: af.Graph, batcher: Batcher) -> None:
        await asyncio.sleep(self.event_s)
        await befall(self.event, graph, batcher)
        for number in range(1, 6) if self.event == "swap" else ():
            await self.model.swap({"before": number, "after": number})
            await asyncio.sleep(0.002)

    async def main(self) -> None:
        graph, batcher = self.graph()
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(1000), graph:  # virtual seconds: only what hangs takes them
            try:
                async with asyncio.TaskGroup() as group, batcher:
                    tasks = [group.create_task(self.converse(batcher, n)) for n in range(self.draw.randint(1, 12))]
                    if self.event == "leave by an error":
                        await asyncio.sleep(self.event_s)
                        raise LookupError("the service ends")
                    await self.happen(graph, batcher)
                    await asyncio.wait(tasks)
            except* LookupError:
                assert self.event == "leave by an error"
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not complaints
        self.check(batcher)

    def check(self, batcher: Batcher) -> None:
        figures = batcher.statistics()
        assert (figures.waiting_rows, figures.in_flight, figures.sessions, self.running) == (0, 0, 0, 0)
        assert not batcher._slots._waiting
        blocks = batcher._rows.blocks
        if blocks is not None:
            assert (figures.blocks, figures.max_blocks, [*blocks._waiting]) == (0, self.blocks, [])
            assert sorted(blocks._free) == [*range(self.blocks or 0)]
        assert af.SessionsFullError not in self.refusals or self.slots < 100
        assert af.BatcherClosedError not in self.refusals or self.ends
        for error, has_limit, poisoned in self.outcomes:
            if error is None:
                assert not poisoned
                continue
            allowed: dict[type[BaseException], bool] = {
                af.OpError: poisoned or (bool(self.poisons) and not self.isolates),
                af.RunTimeoutError: has_limit,
                af.QueueFullError: True,
                af.CacheFullError: self.blocks in (3, 6),
                af.SessionsFullError: self.slots < 100,
                af.SessionClosedError: True,
                af.BatcherClosedError: self.ends,
                af.RunCancelledError: self.event == "cancel",
                asyncio.CancelledError: True,
            }
            assert allowed.get(type(error)), repr(error)


@pytest.mark.parametrize("first", slow(range(0, SCHEDULES, PER_TEST), but={0, 20, 80}))
def test_each_session_gets_what_it_would_get_alone(first: int) -> None:
    finished = failed = full = 0
    for seed in range(first, first + PER_TEST):
        schedule = Schedule(seed)
        try:
            with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
                runner.run(schedule.main())
        except BaseException as error:
            error.add_note(f"seed {seed}: {schedule}, {schedule.event}")
            raise
        finished += sum(error is None for error, *_ in schedule.outcomes)
        failed += sum(error is not None for error, *_ in schedule.outcomes)
        full += sum(type(error) is af.CacheFullError for error, *_ in schedule.outcomes)
    assert finished > 5 * PER_TEST  # the schedules are about something
    assert failed > PER_TEST
    assert full > PER_TEST // 10
