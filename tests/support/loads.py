"""Random graphs, their plain sequential programs, and what every disturbance of them must leave behind.

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
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, aclosing
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import actorflow as af
from actorflow.actors.frame import Frame
from actorflow.core import FrameState
from actorflow.devices import DeviceOptions
from actorflow.devices.sim import SimOptions
from actorflow.devices.stream import StreamDevice
from actorflow.testing import inject, interleave
from actorflow.testing.clock import VirtualTimeLoop
from tests.support.recipes import Array, Recipe, Reference, Step, evaluate, initial, is_view

#: Each test draws so many graphs; each graph has some ten cases.
GRAPHS = settings(max_examples=max(6, settings.default.max_examples // 12))
GRACE_S = 30.0
STATES = (FrameState.FINISHED, FrameState.FAILED, FrameState.CANCELLED)


class PlantedError(Exception):
    pass


class Subject:
    """The recipe as a graph, with its reference, and what happened since the last check."""

    cases = 0

    def __init__(self, recipe: Recipe, fetches: bool = True) -> None:
        self.fetches = fetches
        self.before = live_frames()
        self.had_no_input = False
        self.recipe = recipe
        self.reference = Reference(recipe)
        self.budgets: dict[str, int] = {}
        self._build()
        if recipe.slack is not None:
            # With a limit, the plan's order is another one.
            places = {"cpu", *recipe.homes, *(step.place for step in recipe.steps)}
            self.budgets = dict.fromkeys(places, 1 << 40)
            self._build()
            plan = self.graph.compile(self.fetch)
            for name in places:
                place = af.Place.parse(name)
                held = sum(variable.spec.size_bytes for variable in self.graph.variables if variable.place == place)
                self.budgets[name] = held + plan.footprint(place).peak_bytes + recipe.slack
            self._build()
        interleave(self.graph, recipe.seed)
        self.frames: list[tuple[Frame, list[Array]]] = []
        self._fed = 0
        self._traced = 0
        self._calls: Counter[tuple[int, bool]] = Counter()  # by op, and whether they have failed
        self._record_frames()

    def _build(self) -> None:
        recipe = self.recipe
        self.graph = graph = af.Graph(
            "load", sequential=recipe.sequential, deterministic=recipe.deterministic, devices=self._options()
        )
        self.values: list[af.Blob] = []
        for i, shape in enumerate(recipe.sources):
            self.values.append(graph.blob(f"x{i}", shape, "float64", recipe.home(i)))
        for i, shape in enumerate(recipe.variables):
            home = recipe.home(len(recipe.sources) + i)
            self.values.append(graph.variable(f"w{i}", shape, "float64", initial(i, shape), home))
        self.ops: list[af.Op] = []
        outer = graph.subgraph("outer")
        self._scopes = [graph, outer, outer.subgraph("inner")]
        for index, step in enumerate(recipe.steps):
            self._add(index, step)
        self.fetch = [*(self.values[len(recipe.sources) :] if self.fetches else ()), graph]

    def _options(self) -> dict[str, DeviceOptions]:
        limits: dict[str, int | None] = {place: self.budgets.get(place) for place in (*self.recipe.homes, "cpu")}
        limits |= {step.place: self.budgets.get(step.place) for step in self.recipe.steps}
        return {
            place: DeviceOptions(memory_budget=limit)
            if place == "cpu"
            else SimOptions(memory_budget=limit, kernel_s=self.recipe.kernel_s)
            for place, limit in limits.items()
        }

    def _add(self, index: int, step: Step) -> None:
        inputs, scope = [self.values[i] for i in step.inputs], self._scopes[index % 3]
        if step.target == len(self.values):
            self.values.append(scope.blob(f"y{index}", step.shape, "float64", step.place))
        options: dict[str, Any] = {
            "place": step.place,
            "lane": step.lane,
            "retries": step.retries,
            "backoff": 3e-4 * step.retries,
        }
        if step.kind == "kernel" and all(blob.shape == step.shape for blob in inputs):
            operation = af.ops.Sum() if len(inputs) > 1 else af.ops.Scale(0.75)
            op = scope.op(f"op{index}", operation, **options)
        elif is_view(step, [blob.shape for blob in inputs]):
            op = scope.op(f"op{index}", af.ops.Reshape(step.shape), **options)
        else:
            op = scope.function(f"op{index}", self._function(index, step), concurrency=step.concurrency, **options)
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
        self._check_profile()
        assert set(outcomes) <= set(range(len(self.frames)))
        self.frames.clear()
        outcomes.clear()
        self._keep_finite()
        Subject.cases += 1

    def _check_profile(self) -> None:
        """Every call that the trace has is counted once."""
        engine = self.graph.engine
        calls = engine.trace.since(self._traced)
        assert not calls.lost
        self._traced = engine.trace.total
        self._calls.update(zip(calls.node.tolist(), calls.failed.tolist(), strict=True))
        counted = Counter({(node_id, False): profile.calls for node_id, profile in engine.profile.items()})
        counted.update({(node_id, True): profile.failed for node_id, profile in engine.profile.items()})
        assert counted == self._calls

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
            assert outcome.frame == frame.number
            assert frame.error in (None, outcome)
            assert list(outcome.updated) == updated
            assert isinstance(outcome.__cause__, PlantedError)
            assert may_fail is not None
            failed = self.ops.index(outcome.op)
            assert failed in may_fail, outcome
            for name in updated:
                assert failed not in reference.upstream(set(reference.writers[names[name]]))
        elif isinstance(outcome, af.ActorflowError):
            assert isinstance(outcome, af.RunTimeoutError)
            assert str(outcome).startswith(f"frame {frame.number} timed out")
            assert frame.error in (None, outcome)
        elif outcome is not None:
            assert frame.state is FrameState.FINISHED
            for blob, expected in zip(self.values, values, strict=True):
                if blob not in self.graph.sources:
                    np.testing.assert_array_equal(af.to_numpy(outcome[blob]), expected, err_msg=blob.name)
        for name in updated:
            reference.state[names[name] - len(recipe.sources)] = new[names[name]]

    async def rest(self) -> None:
        """Check what every case must leave behind: a run that is right, and nothing else."""
        outcomes: dict[int, Any] = {}
        await self.drive(outcomes)
        await self.check(outcomes, None)
        engine = self.graph.engine
        counts = engine.frames
        assert counts.started == counts.finished + counts.failed + counts.cancelled
        # A lane's thread may let go of its last frame just after it has told the loop; with its next work, it has.
        loop = asyncio.get_running_loop()
        lanes = [] if isinstance(loop, VirtualTimeLoop) else engine.resources.device(af.Place())._lanes.values()
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
        for place, device in engine.resources.devices.items():
            variables = [variable for variable in self.graph.variables if variable.place == place]
            assert device.memory.used_bytes <= sum(variable.spec.size_bytes for variable in variables), str(place)
            if isinstance(device, StreamDevice):
                assert all(lane.completed == lane.submitted for lane in device._all_lanes())
        assert engine.resources.budget is None or engine.resources.budget.shared_bytes == 0
        assert all(turnstile.running == 0 for turnstile in engine.resources.turnstiles.values())


def live_frames() -> int:
    return sum(type(thing) is Frame for thing in gc.get_objects())


def who_holds_frames() -> str:
    held = [thing for thing in gc.get_objects() if type(thing) is Frame]
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


async def fail_at_every_op(subject: Subject, frame: int, other: int, once: bool) -> None:
    """Let each op fail in turn, together with another one, in one of the frames in flight."""
    recipe, count = subject.recipe, len(subject.ops)
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


async def cancel_at_every_turn(subject: Subject, victim: int, stride: int, again: int = 1) -> None:
    """Cancel the whole or one frame before every ``stride``-th actor that the dispatcher takes.

    The whole is cancelled ``again`` times more, at each turn of the loop that follows.
    """
    recipe, dispatcher = subject.recipe, subject.graph.engine.resources.dispatcher
    take, turns, at_turn, task = dispatcher.take, 0, -1, None
    take_next = take or dispatcher.ready.popleft

    def cancel(times_left: int) -> None:
        if task is not None and not task.done():
            task.cancel()
            if times_left:
                asyncio.get_running_loop().call_soon(cancel, times_left - 1)

    def counting() -> Any:
        nonlocal turns
        turns += 1
        if turns == at_turn:
            assert task is not None
            if recipe.streams or victim % 2:
                cancel(again)
            else:
                subject.frames[victim % len(subject.frames)][0].ended.cancel()
        return take_next()

    dispatcher.take = counting
    await subject.rest()
    for at_turn in range(1, turns + 1, stride):
        turns = 0
        outcomes: dict[int, Any] = {}
        tasks = asyncio.all_tasks()
        task = asyncio.create_task(subject.drive(outcomes))
        await asyncio.wait([task])
        assert asyncio.all_tasks() == tasks
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
