"""Random graphs under load: overlap, delays, failures, cancellations and timeouts, against a plain sequential program.

A case is one disturbance of one graph. After it, what each frame has updated is put into the plain program, frame by
frame: all results and all variables must come out bit for bit, and nothing may be left behind. All cases of a graph
run on one engine, so each is also the next run after the one before it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow.actors.frame import Frame, FrameState
from actorflow.testing import inject, interleave, virtual_time_loop
from actorflow.testing.clock import VirtualTimeLoop

SHAPES = ((3,), (3,), (), (2, 2))
LANES = (None, "left", "right")
#: Each test draws so many graphs; each graph has some ten cases.
GRAPHS = settings(max_examples=max(6, settings.default.max_examples // 12))
GRACE_S = 5.0
STATES = (FrameState.FINISHED, FrameState.FAILED, FrameState.CANCELLED)

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module", autouse=True)
def counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Say how many cases there were; keep what was there before out of the garbage collector's way."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(f"\ntest_under_load: {Subject.cases} cases")


class PlantedError(Exception):
    pass


@dataclass(frozen=True)
class Step:
    """One op. Values are numbered: sources, then variables, then what steps make; ``target`` is one of them."""

    inputs: tuple[int, ...]
    target: int
    shape: tuple[int, ...]
    kind: str
    lane: str | None
    concurrency: int
    retries: int


@dataclass(frozen=True)
class Recipe:
    sources: tuple[tuple[int, ...], ...]
    variables: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    slack: int | None
    sequential: bool
    atomic: bool
    streams: bool
    in_flight: int
    seed: int

    @property
    def first_blob(self) -> int:
        return len(self.sources) + len(self.variables)

    def is_variable(self, value: int) -> bool:
        return len(self.sources) <= value < self.first_blob


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    sources = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2)))
    variables = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)))
    shapes = [*sources, *variables]
    first = len(shapes)
    read: set[int] = set()
    steps = []
    for _ in range(draw(st.integers(2, 9))):
        inputs = tuple(draw(st.lists(st.integers(0, len(shapes) - 1), min_size=1, max_size=3)))
        read.update(inputs)
        # A blob that nothing reads yet may have a further producer; a variable always may, its readers see the old one.
        old = [i for i in range(len(sources), len(shapes)) if i < first or i not in read]
        target = draw(st.sampled_from([len(shapes), *old]))
        if target == len(shapes):
            shapes.append(draw(st.sampled_from(SHAPES)))
        kind = draw(st.sampled_from(("plain", "async", "kernel", "same")))
        concurrency = draw(st.integers(1, 3)) if kind == "async" else 1
        retries = draw(st.sampled_from((0, 0, 0, 1)))
        steps.append(Step(inputs, target, shapes[target], kind, draw(st.sampled_from(LANES)), concurrency, retries))
    return Recipe(
        sources,
        variables,
        tuple(steps),
        draw(st.sampled_from((None, None, 0, 100))),
        draw(st.integers(0, 9)) == 0,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(1, 8)),
        draw(st.integers(0, 2**32 - 1)),
    )


def evaluate(index: int, step: Step, values: list[Array]) -> Array:
    """What one step computes; each formula is the one that the op of its kind has."""
    same = all(value.shape == step.shape for value in values)
    if step.kind == "kernel" and same and len(values) > 1:
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total
    if step.kind == "kernel" and same:
        return 0.75 * values[0]
    if step.kind == "same" and same:
        return values[0]  # itself: its buffer has then more readers than the graph says
    number = index + 1.0
    for position, value in enumerate(values):
        number += float(np.sum(value)) / (position + 3)
    return np.full(step.shape, number) * np.linspace(0.1, 0.4, int(np.prod(step.shape))).reshape(step.shape)


class Reference:
    """The recipe as a plain program: one frame after the other, one step after the other."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.writers: dict[int, list[int]] = {}
        for index, step in enumerate(recipe.steps):
            self.writers.setdefault(step.target, []).append(index)
        self.state = [initial(i, shape) for i, shape in enumerate(recipe.variables)]

    def frame(self, feeds: list[Array]) -> tuple[list[Array], dict[int, Array]]:
        """All values of a frame, and the new values of the variables, by number."""
        recipe = self.recipe
        values: list[Array] = [*feeds, *self.state]
        terms: dict[int, list[Array]] = {}
        blobs = sorted(target for target in self.writers if target >= recipe.first_blob)
        values += [np.empty(0)] * len(blobs)
        for index, step in enumerate(recipe.steps):
            term = evaluate(index, step, [values[i] for i in step.inputs])
            terms.setdefault(step.target, []).append(term)
            if step.target >= recipe.first_blob:
                values[step.target] = added(terms[step.target])
        return values, {target: added(parts) for target, parts in terms.items() if recipe.is_variable(target)}

    def upstream(self, steps: set[int]) -> set[int]:
        """Steps that these need, themselves included."""
        todo, found = list(steps), set(steps)
        while todo:
            for value in self.recipe.steps[todo.pop()].inputs:
                if not self.recipe.is_variable(value):
                    new = set(self.writers.get(value, ())) - found
                    found |= new
                    todo += new
        return found


def added(terms: list[Array]) -> Array:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def initial(number: int, shape: tuple[int, ...]) -> Array:
    return np.full(shape, 0.5 + number)


class Subject:
    """The recipe as a graph, with its reference, and what happened since the last check."""

    cases = 0

    def __init__(self, recipe: Recipe) -> None:
        self.before = live_frames()
        self.had_no_input = False
        self.recipe = recipe
        self.reference = Reference(recipe)
        budget = None
        if recipe.slack is not None:
            self._build(None)
            cost = self.graph.memory_cost(fetch=self.fetch)
            variables = sum(variable.spec.size_bytes for variable in self.graph.variables)
            budget = variables + cost.peak_bytes + recipe.slack
        self._build(budget)
        interleave(self.graph, recipe.seed)
        self.frames: list[tuple[Frame, list[Array]]] = []
        self._fed = 0
        self._record_frames()

    def _build(self, budget: int | None) -> None:
        recipe = self.recipe
        self.graph = graph = af.Graph("load", memory_budget=budget, sequential=recipe.sequential)
        self.values: list[af.Blob] = [graph.blob(f"x{i}", s, "float64") for i, s in enumerate(recipe.sources)]
        for i, shape in enumerate(recipe.variables):
            self.values.append(graph.variable(f"w{i}", shape, "float64", initial(i, shape)))
        self.ops: list[af.Op] = []
        for index, step in enumerate(recipe.steps):
            self._add(index, step)
        self.fetch = [*self.values[len(recipe.sources) :], graph]

    def _add(self, index: int, step: Step) -> None:
        inputs = [self.values[i] for i in step.inputs]
        if step.target == len(self.values):
            self.values.append(self.graph.blob(f"y{index}", step.shape, "float64"))
        options: dict[str, Any] = {"lane": step.lane, "retries": step.retries, "backoff": 3e-4 * step.retries}
        if step.kind == "kernel" and all(blob.shape == step.shape for blob in inputs):
            operation = af.ops.Sum() if len(inputs) > 1 else af.ops.Scale(0.75)
            op = self.graph.op(f"op{index}", operation, **options)
        else:
            op = self.graph.function(f"op{index}", self._function(index, step), concurrency=step.concurrency, **options)
        inputs >> op >> [self.values[step.target]]
        self.ops.append(op)

    def _function(self, index: int, step: Step) -> Callable[..., Any]:
        def plain(*values: Array) -> Array:
            self.had_no_input |= any(value is None for value in values)
            return evaluate(index, step, list(values))

        async def asynchronous(*values: Array) -> Array:
            for _ in range(index % 3):
                await asyncio.sleep(0)
            return plain(*values)

        return asynchronous if step.kind == "async" else plain

    def _record_frames(self) -> None:
        engine = self.graph.engine
        start = engine.start

        def recording(program: Any, feeds: Any, atomic: bool = False) -> Frame:
            frame = start(program, feeds, atomic)
            self.frames.append((frame, [feeds[blob] for blob in self.values[: len(self.recipe.sources)]]))
            return frame

        engine.start = recording  # type: ignore[method-assign]

    @property
    def next_number(self) -> int:
        return self.graph.engine.frames.started

    def feed(self) -> dict[af.Blob, Array]:
        generator = np.random.default_rng([self.recipe.seed, self._fed])
        self._fed += 1
        return {blob: generator.standard_normal(blob.shape) for blob in self.values[: len(self.recipe.sources)]}

    async def drive(self, outcomes: dict[int, Any], **options: Any) -> None:
        """Run frames the way the recipe says; collects results and errors by the order of the frames."""
        recipe, graph = self.recipe, self.graph
        if recipe.streams:
            feeds = (self.feed() for _ in range(recipe.in_flight + 2))
            number = 0
            results = graph.stream(feeds, fetch=self.fetch, in_flight=recipe.in_flight, atomic=recipe.atomic)
            async with aclosing(results):
                try:
                    async for result in results:
                        outcomes[number] = result
                        number += 1
                except af.ActorflowError as error:
                    outcomes[number] = error
            return

        async def one(number: int) -> None:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            try:
                outcomes[number] = await graph.run(self.feed(), fetch=self.fetch, atomic=recipe.atomic, **options)
            except af.ActorflowError as error:
                outcomes[number] = error
                if isinstance(error, af.RunTimeoutError):  # neither threads nor async functions delay it
                    assert loop.time() == pytest.approx(began_s + options["timeout"], abs=1e-6)

        async with asyncio.TaskGroup() as group:
            for number in range(recipe.in_flight):
                group.create_task(one(number))

    async def check(self, outcomes: dict[int, Any], may_fail: set[int] | None) -> None:
        """Let what runs in threads end, then compare everything with the plain program.

        ``may_fail``: steps of which one must have failed some frame first; None for other errors, or none.
        """
        is_virtual = isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
        while self.graph.engine.frames.in_flight:
            await asyncio.sleep(is_virtual)  # a virtual clock jumps only while nobody is busy asking
        for position, (frame, feeds) in enumerate(self.frames):
            assert frame.state in STATES
            self._check_frame(frame, feeds, outcomes.get(position), may_fail)
        for variable, expected in zip(self.graph.variables, self.reference.state, strict=True):
            np.testing.assert_array_equal(variable.value, expected, err_msg=variable.name)
        assert not self.had_no_input
        assert set(outcomes) <= set(range(len(self.frames)))
        self.frames.clear()
        outcomes.clear()
        self._keep_finite()
        Subject.cases += 1

    def _keep_finite(self) -> None:
        """Begin anew before numbers overflow: a variable may double in each of very many frames."""
        if any(np.abs(value).max(initial=0) > 1e20 for value in self.reference.state):
            for i, variable in enumerate(self.graph.variables):
                variable.value = self.reference.state[i] = initial(i, variable.shape)

    def _check_frame(self, frame: Frame, feeds: list[Array], outcome: Any, may_fail: set[int] | None) -> None:
        reference, recipe = self.reference, self.recipe
        values, new = reference.frame(feeds)
        names = {f"w{target - len(recipe.sources)}": target for target in new}
        updated = list(frame.updated)
        assert len(set(updated)) == len(updated)
        if frame.state is FrameState.FINISHED:
            assert set(updated) == set(names)
        elif recipe.atomic:
            assert not updated
        if isinstance(outcome, af.OpError):
            assert frame.state is FrameState.FAILED
            assert outcome is frame.error
            assert list(outcome.updated) == updated
            assert isinstance(outcome.__cause__, PlantedError)
            assert may_fail is not None
            failed = self.ops.index(outcome.op)
            assert failed in may_fail, outcome
            for name in updated:
                assert failed not in reference.upstream(set(reference.writers[names[name]]))
        elif isinstance(outcome, af.ActorflowError):
            assert isinstance(outcome, af.RunTimeoutError)
            assert frame.error is outcome
        elif outcome is not None:
            assert frame.state is FrameState.FINISHED
            for blob, expected in zip(self.values, values, strict=True):
                if blob not in self.graph.sources:
                    np.testing.assert_array_equal(outcome[blob], expected, err_msg=blob.name)
        for name in updated:
            reference.state[names[name] - len(recipe.sources)] = new[names[name]]

    async def rest(self) -> None:
        """What every case must leave behind: a run that is right, and nothing else."""
        outcomes: dict[int, Any] = {}
        await self.drive(outcomes)
        await self.check(outcomes, None)
        engine = self.graph.engine
        counts = engine.frames
        assert counts.started == counts.finished + counts.failed + counts.cancelled
        # A lane's thread may let go of its last frame just after it has told the loop; with its next work, it has.
        loop = asyncio.get_running_loop()
        lanes = [] if isinstance(loop, VirtualTimeLoop) else engine.device(af.Place())._lanes.values()
        for lane in lanes:  # of this work, the virtual clock would not know
            idle = loop.create_future()
            lane.submit(lambda _: None, None, lambda _, idle=idle: idle.set_result(None), urgent=True)
            await idle
        deadline_s = time.monotonic() + GRACE_S
        gc.collect()
        while live_frames() != self.before and time.monotonic() < deadline_s:
            await asyncio.sleep(0)
            gc.collect()
        assert live_frames() == self.before, who_holds_frames()
        held = sum(variable.spec.size_bytes for variable in self.graph.variables)
        assert engine.device(af.Place()).memory.used_bytes <= held
        assert engine.budget is None or engine.budget.shared_bytes == 0
        assert all(turnstile.running == 0 for turnstile in engine._turnstiles.values())


def live_frames() -> int:
    return sum(isinstance(thing, Frame) for thing in gc.get_objects())


def who_holds_frames() -> str:
    held = [thing for thing in gc.get_objects() if isinstance(thing, Frame)]
    holders = [(frame.number, frame.state, type(h), str(h)[:200]) for frame in held for h in gc.get_referrers(frame)]
    return "\n".join(map(str, holders))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def leaves_nothing(
    recipe: Recipe, cases: Callable[[Subject], Coroutine[Any, Any, None]], limit_s: float = 60
) -> None:
    """Run a graph's cases, and compare threads, tasks and files with those before."""
    threads, tasks, files = threading.active_count(), asyncio.all_tasks(), open_files()
    async with asyncio.timeout(limit_s):
        subject = Subject(recipe)
        async with subject.graph:
            await subject.rest()
            await cases(subject)
            await subject.rest()
    assert subject.graph.engine.frames.in_flight == 0
    assert (threading.active_count(), asyncio.all_tasks(), open_files()) == (threads, tasks, files)


@GRAPHS
@given(recipe=recipes(), delays=st.lists(st.tuples(st.integers(0, 8), st.sampled_from((0.0, 2e-4))), max_size=3))
async def test_delays_change_no_result(recipe: Recipe, delays: list[tuple[int, float]]) -> None:
    async def cases(subject: Subject) -> None:
        for op, delay_s in delays:
            inject(subject.graph, subject.ops[op % len(subject.ops)], delay_s=delay_s)
            await subject.rest()

    await leaves_nothing(recipe, cases)


@GRAPHS
@given(recipe=recipes(), frame=st.integers(0, 7), other=st.integers(0, 8), once=st.booleans())
async def test_a_failure_at_every_op(recipe: Recipe, frame: int, other: int, once: bool) -> None:
    async def cases(subject: Subject) -> None:
        count = len(subject.ops)
        for op in range(count):
            number = subject.next_number + frame % recipe.in_flight
            faulty = {op, other % count}
            times = 1 if once else None
            failing = {i for i in faulty if not (once and recipe.steps[i].retries)}
            upstream = {i: subject.reference.upstream({i}) for i in failing}
            first = {i for i in failing if not upstream[i] & (failing - {i})}
            outcomes: dict[int, Any] = {}
            with ExitStack() as stack:
                for i in faulty:
                    stack.enter_context(
                        inject(subject.graph, subject.ops[i], error=PlantedError, frames={number}, times=times)
                    )
                await subject.drive(outcomes)
            failed = [position for position, outcome in outcomes.items() if isinstance(outcome, af.OpError)]
            assert failed == ([frame % recipe.in_flight] if failing else [])
            failed_number = subject.frames[failed[0]][0].number if failed else number
            assert failed_number == number
            await subject.check(outcomes, first)

    await leaves_nothing(recipe, cases)


@GRAPHS
@given(recipe=recipes(), victim=st.integers(0, 7), stride=st.integers(1, 4))
async def test_cancellation_at_every_turn(recipe: Recipe, victim: int, stride: int) -> None:
    async def cases(subject: Subject) -> None:
        dispatcher = subject.graph.engine.dispatcher
        take, turns, at_turn, task = dispatcher.take, 0, -1, None

        def counting() -> Any:
            nonlocal turns
            turns += 1
            if turns == at_turn:
                assert task is not None
                if recipe.streams or victim % 2:
                    task.cancel()
                else:
                    subject.frames[victim % len(subject.frames)][0].ended.cancel()
            return take()

        dispatcher.take = counting
        await subject.rest()
        for at_turn in range(1, turns + 1, stride):
            turns = 0
            outcomes: dict[int, Any] = {}
            task = asyncio.create_task(subject.drive(outcomes))
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
            # Without waiting for what still runs in threads: the next run is right meanwhile.
            at_turn = -1
            await subject.drive(following := {})
            assert [outcome for outcome in following.values() if isinstance(outcome, Exception)] == []
            shift = len(subject.frames) - len(following)
            outcomes.update({position + shift: outcome for position, outcome in following.items()})
            await subject.check(outcomes, None)
        dispatcher.take = take  # or the last task, and the frame in its traceback, would stay

    await leaves_nothing(recipe, cases)


@GRAPHS
@given(recipe=recipes(), timeout_s=st.sampled_from((0.5, 1.5, 2.5, 4.0)), op=st.integers(0, 8))
def test_timeouts(recipe: Recipe, timeout_s: float, op: int) -> None:
    """On the virtual clock: two ops that take one and two seconds, and a limit that some frames pass."""

    async def cases(subject: Subject) -> None:
        count = len(subject.ops)
        for index in range(count):
            outcomes: dict[int, Any] = {}
            with (
                inject(subject.graph, subject.ops[index], delay_s=1),
                inject(subject.graph, subject.ops[op % count], delay_s=2),
            ):
                await subject.drive(outcomes, **({} if recipe.streams else {"timeout": timeout_s}))
            await subject.check(outcomes, None)

    if not recipe.sequential:  # which blocks the loop, and no clock jumps
        with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
            runner.run(leaves_nothing(recipe, cases, limit_s=1e6))
