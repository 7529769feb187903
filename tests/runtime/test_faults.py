"""A fault of the engine's own bookkeeping ends the frames in flight; the graph goes on as if it were new.

Each step of the engine that follows a frame is made to raise once, at one of its calls. Nothing may hang, what comes
next must be right, and nothing may be left behind.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.actors import op as op_module
from actorflow.actors.attempts import OpAttempts
from actorflow.actors.blob import BlobActor, Turn, UpdateActor, VariableActor, VariableUse
from actorflow.actors.budget import Budget
from actorflow.actors.frame import Frame
from actorflow.actors.op import OpActor
from actorflow.core import IS_COMPILED, Turnstile
from actorflow.runtime.limits import FrameLimits
from actorflow.runtime.program import Program
from actorflow.trace.ring import Trace
from tests.support.effort import FULL

#: Only a failing test waits this long.
LIMIT_S = 60.0
VALUE = af.TensorSpec.of((2,), "float64")

#: Where faults are planted: what a frame calls as it begins, goes on and ends.
STEPS: tuple[tuple[Any, str], ...] = (
    (Frame, "announce"),
    (BlobActor, "drop"),
    (op_module, "deliver"),
    (UpdateActor, "commit"),
    (Budget, "open"),
    (Budget, "admit"),
    (Budget, "ended"),
    (Budget, "close"),
    (Frame, "close_end"),
    (Frame, "op_failed"),
    (OpAttempts, "begin"),
    (OpAttempts, "end"),
    (OpAttempts, "retry"),
    (OpActor, "fire"),
    (OpActor, "begin"),
    (OpActor, "leave"),
    (OpActor, "account"),
    (OpActor, "_account_failed"),
    (OpActor, "announce"),
    (OpActor, "_conclude"),
    (OpActor, "_input_passed"),
    (OpActor, "_take_end"),
    (Program, "begin"),
    (FrameLimits, "begin"),
    (Trace, "add_failed"),
    (Turn, "leave"),
    (Turn, "when_passed"),
    (VariableUse, "open"),
    (VariableUse, "enter"),
    (VariableUse, "_open_later"),
    (VariableActor, "commit"),
    (VariableActor, "read"),
)
if not IS_COMPILED:  # else nobody can have it raise
    STEPS += tuple([(Turnstile, step) for step in ("expect", "enter", "leave", "skip", "admit")])


class PlantedError(Exception):
    pass


class Fault:
    """Makes one call of a step raise, before or after it has done its work."""

    def __init__(self, owner: Any, name: str, at: int, after: bool) -> None:
        self.owner = owner
        self.name = name
        self.left = at
        self.after = after
        self.struck = False
        self.original: Callable[..., Any] = getattr(owner, name)

    def __enter__(self) -> Self:
        fault, original = self, self.original

        def step(*args: Any) -> Any:
            fault.left -= 1
            strikes = fault.left == -1
            if strikes and not fault.after:
                fault.struck = True
                raise PlantedError(fault.name)
            result = original(*args)
            if strikes:
                fault.struck = True
                raise PlantedError(fault.name)
            return result

        setattr(self.owner, self.name, step)
        return self

    def __exit__(self, *exc_info: object) -> None:
        setattr(self.owner, self.name, self.original)


class Subject:
    """A graph that takes every way through the engine: lanes, tasks, retries, variables, a budget, a failing op."""

    def __init__(self) -> None:
        self.armed = True
        self.tries = 0
        graph = self.graph = af.Graph("faults", memory_budget=4096, stall_limit=3600)
        self.x = x = graph.blob("x", VALUE.shape, "float64")
        self.total = graph.variable("total", VALUE.shape, "float64")
        self.count = graph.variable("count", (), "float64")
        plain = graph.function("plain", lambda value: value + 1.0, VALUE)(x)
        waited = graph.function("wait", self._wait, VALUE)(plain)
        one = graph.function("one", self._wait, VALUE, concurrency=1)(plain)
        tried = graph.function("try", self._try, VALUE, retries=2, lane="side")(waited)
        tried_async = graph.function("try_async", self._try_async, VALUE, retries=2, timeout=3600)(one)
        y = ops.add(tried, tried_async)
        self.y = ops.scale(y, 1.0)
        [self.total, y] >> graph.function("update", lambda old, new: old + new) >> [self.total]
        [self.count] >> graph.function("counted", self._count) >> [self.count]
        failing = graph.function("fail", self._fail, VALUE, lane="side")(waited)
        graph.function("after", lambda value: value * 0.0, VALUE, lane="other")(failing)

    async def _wait(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value * 2.0

    def _try(self, value: Any) -> Any:
        self.tries += 1
        if self.armed and self.tries % 2:
            raise ConnectionError
        return value

    async def _try_async(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return self._try(value)

    async def _count(self, old: Any) -> Any:
        await asyncio.sleep(0)
        return old + 1.0

    def _fail(self, value: Any) -> Any:
        if self.armed and value[0] > 6.0:
            raise LookupError
        return value

    def feed(self, number: int) -> dict[str, Any]:
        return {"x": np.full(2, float(number))}


async def outcome(subject: Subject, kind: str) -> list[Any]:
    graph = subject.graph
    if kind == "runs":
        return await asyncio.gather(*(graph.run(subject.feed(i)) for i in range(4)), return_exceptions=True)
    if kind == "atomic":
        runs = (graph.run(subject.feed(i), atomic=True, timeout=LIMIT_S) for i in range(3))
        return await asyncio.gather(*runs, return_exceptions=True)
    if kind == "cancelled":
        tasks = [asyncio.ensure_future(graph.run(subject.feed(i))) for i in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)
    try:
        return [result async for result in graph.stream(map(subject.feed, range(4)), in_flight=3)]
    except af.ActorflowError as error:
        return [error]


async def check(step: tuple[Any, str], at: int, after: bool, kind: str) -> bool:
    subject = Subject()
    with Fault(*step, at, after) as fault:
        async with asyncio.timeout(LIMIT_S):
            outcomes = await outcome(subject, kind)
    for found in outcomes:
        if isinstance(found, BaseException):
            assert isinstance(found, af.ActorflowError | asyncio.CancelledError), repr(found)
    subject.armed = False
    async with asyncio.timeout(LIMIT_S):
        before, counted = subject.total.value, float(subject.count.value)
        results = await asyncio.gather(*(subject.graph.run(subject.feed(i)) for i in range(3)))
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result[subject.y], np.full(2, 4.0 * (number + 1)))
    np.testing.assert_array_equal(subject.total.value, before + 4.0 * (1 + 2 + 3))
    assert float(subject.count.value) == counted + 3
    async with asyncio.timeout(LIMIT_S):
        await subject.graph.aclose()
    assert subject.graph.engine.frames.in_flight == 0
    return fault.struck


KINDS = ("runs", "atomic", "cancelled", "stream")


#: Which call of a step raises; in short, another one for each kind of run.
CALLS = (0, 1, 3)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0].__name__}.{step[1]}")
async def test_each_step(step: tuple[Any, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "actorflow")
    struck = 0
    for number, kind in enumerate(KINDS, STEPS.index(step)):
        for at in CALLS if FULL else (CALLS[number % len(CALLS)],):
            struck += await check(step, at, at == 1, kind)
    assert struck, "the step was never taken"


@given(step=st.sampled_from(STEPS), at=st.integers(0, 30), after=st.booleans(), kind=st.sampled_from(KINDS))
async def test_any_fault_ends_its_frames(step: tuple[Any, str], at: int, after: bool, kind: str) -> None:
    logging.getLogger("actorflow").setLevel(logging.CRITICAL)
    try:
        await check(step, at, after, kind)
    finally:
        logging.getLogger("actorflow").setLevel(logging.NOTSET)
