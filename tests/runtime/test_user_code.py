"""Whatever user code raises, wherever the engine calls it: the frame ends with an error that says where.

A case is a graph, a place in it where the user's code is called, and what that raises there. The run must end with an
error that names the op (or the blob, the variable, the stream) and has what was raised as its cause; the next run must
be right; nothing may be left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops

#: Only a failing test waits this long.
LIMIT_S = 60.0
VALUE = af.TensorSpec.of((2,), "float64")
PAIR = (VALUE, VALUE)


class OwnError(Exception):
    pass


class OwnBaseError(BaseException):
    pass


class SilentError(Exception):
    """One that cannot be shown, and takes no attributes."""

    __slots__ = ()

    def __str__(self) -> str:
        raise GeneratorExit

    def __repr__(self) -> str:
        raise KeyboardInterrupt

    def __setattr__(self, name: str, value: object) -> None:
        raise asyncio.CancelledError


KINDS: dict[str, Callable[[], BaseException]] = {
    kind.__name__: kind
    for kind in (
        OwnError,
        OwnBaseError,
        SilentError,
        TimeoutError,
        asyncio.CancelledError,
        GeneratorExit,
        StopIteration,
        StopAsyncIteration,
        KeyboardInterrupt,
        SystemExit,
    )
}
#: What ends a program wherever it is raised.
ENDS_PROGRAM = (KeyboardInterrupt, SystemExit)


@dataclass(eq=False)
class Case:
    """Planted error: ``strike()`` raises it while the case is armed."""

    kind: str
    armed: bool = True
    strikes: int = 0
    raised: list[BaseException] = field(default_factory=list)

    def strike(self) -> None:
        if self.armed:
            self.strikes += 1
            error = KINDS[self.kind]()
            self.raised.append(error)
            raise error


class Odd:
    """A result whose protocols are the user's code."""

    def __init__(self, case: Case, where: str, value: Any) -> None:
        self.case = case
        self.where = where
        self.inner = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.where == "array":
            self.case.strike()
        return np.asarray(self.inner, dtype)


class OddList(list[Any]):
    case: Case
    where: str

    def __len__(self) -> int:
        if self.where == "len":
            self.case.strike()
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        if self.where == "iter":
            self.case.strike()
        return super().__iter__()


@dataclass(frozen=True)
class Struck(ops.Operation):
    """A user's operation whose kernel, and text, are the user's code."""

    arguments = ("x",)
    differentiable = False

    case: Case
    where: str

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs

    def __str__(self) -> str:
        if self.where == "text":
            self.case.strike()
        return "Struck"


@ops.kernel(Struck)
def struck_cpu(operation: Struck, inputs: list[Any], outputs: list[Any]) -> None:
    if operation.where == "kernel":
        operation.case.strike()
    if operation.where == "text" and operation.case.armed:
        raise OwnError("the kernel")
    np.multiply(inputs[0], 2.0, out=outputs[0])


# -- places: each makes an op named "struck" that doubles its input, and raises while the case is armed ----------------

Place = Callable[[Case, af.Graph, af.Blob, dict[str, Any]], af.Blob]


def plain(case: Case, graph: af.Graph, x: af.Blob, options: dict[str, Any]) -> af.Blob:
    def call(value: Any) -> Any:
        case.strike()
        return value * 2.0

    return graph.function("struck", call, VALUE, **options)(x)


def slow(case: Case, graph: af.Graph, x: af.Blob, options: dict[str, Any]) -> af.Blob:
    def call(value: Any) -> Any:
        end = time.perf_counter() + 0.0003  # long enough to be sent to a lane
        while time.perf_counter() < end:
            pass
        case.strike()
        return value * 2.0

    return graph.function("struck", call, VALUE, **options)(x)


def asynchronous(when: str) -> Place:
    def place(case: Case, graph: af.Graph, x: af.Blob, options: dict[str, Any]) -> af.Blob:
        async def body(value: Any) -> Any:
            if when == "at once":
                case.strike()
            await asyncio.sleep(0)
            if when == "after an await":
                case.strike()
            return Odd(case, "array", value * 2.0) if when == "result" else value * 2.0

        class Caller(functools.partial[Any]):
            """An async callable, by what it is made of, whose call may raise before there is a coroutine."""

            def __call__(self, value: Any) -> Any:
                case.strike()
                return super().__call__(value)

        function = Caller(body) if when == "call" else body
        return graph.function("struck", function, VALUE, **options)(x)

    return place


def result(where: str) -> Place:
    def place(case: Case, graph: af.Graph, x: af.Blob, options: dict[str, Any]) -> af.Blob:
        return graph.function("struck", lambda value: Odd(case, where, value * 2.0), VALUE, **options)(x)

    return place


def results(where: str) -> Place:
    def place(case: Case, graph: af.Graph, x: af.Blob, options: dict[str, Any]) -> af.Blob:
        def call(value: Any) -> Any:
            made = OddList([value * 2.0, value])
            made.case, made.where = case, where
            return made

        return graph.function("struck", call, PAIR, **options)(x)[0]

    return place


def text_of_callable(case: Case, graph: af.Graph, x: af.Blob, options: dict[str, Any]) -> af.Blob:
    class Model:
        def __call__(self, value: Any) -> Any:
            if case.armed:
                raise OwnError("bad input")
            return value * 2.0

        def __repr__(self) -> str:
            case.strike()
            return "Model()"

    return graph.function("struck", Model(), VALUE, **options)(x)


def text_of_error(case: Case, graph: af.Graph, x: af.Blob, options: dict[str, Any]) -> af.Blob:
    class OddError(Exception):
        def __str__(self) -> str:
            case.strike()
            return "odd"

        __repr__ = __str__

    def call(value: Any) -> Any:
        if case.armed:
            raise OddError
        return value * 2.0

    return graph.function("struck", call, VALUE, **options)(x)


def operation(where: str) -> Place:
    def place(case: Case, graph: af.Graph, x: af.Blob, options: dict[str, Any]) -> af.Blob:
        armed, case.armed = case.armed, False  # a definition shows its operations, and that is the user's own call
        blob: af.Blob = graph.op("struck", Struck(case, where), **options)(x)
        case.armed = armed
        return blob

    return place


PLACES: dict[str, Place] = {
    "plain": plain,
    "slow": slow,
    "async at once": asynchronous("at once"),
    "async after an await": asynchronous("after an await"),
    "async call": asynchronous("call"),
    "async result": asynchronous("result"),
    "result array": result("array"),
    "results len": results("len"),
    "results iter": results("iter"),
    "text of callable": text_of_callable,
    "text of error": text_of_error,
    "kernel": operation("kernel"),
    "text of operation": operation("text"),
}
#: There another error ends the frame, and what is planted is raised as that is described.
DESCRIBING = {"text of callable", "text of error", "text of operation"}

SHAPES = ("alone", "chain", "lanes", "diamond", "variable", "two frames", "stream")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"lane": "side"}, {"retries": 1}, {"timeout": 3600.0})


# -- running -----------------------------------------------------------------------------------------------------------


def settle(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, Any]) -> tuple[Any, list[BaseException]]:
    """Run a coroutine to its end, and note what leaves the loop meanwhile."""
    task = loop.create_task(main)
    left: list[BaseException] = []
    while not task.done():
        try:
            loop.run_until_complete(asyncio.wait([task], timeout=LIMIT_S))
        except ENDS_PROGRAM as error:
            left.append(error)
            continue
        assert task.done(), "it hangs"
    return task, left


def build(case: Case, shape: str, place: str, options: dict[str, Any], sequential: bool) -> tuple[af.Graph, af.Blob]:
    graph = af.Graph("user", sequential=sequential)
    x = graph.blob("x", VALUE.shape, "float64")
    source = x
    if shape in ("chain", "lanes"):
        source = graph.function("before", lambda value: value + 0.0, VALUE, lane="main" if shape == "lanes" else None)(
            x
        )
    y = PLACES[place](case, graph, source, options)
    if shape == "chain":
        y = graph.function("after", lambda value: value + 0.0, VALUE)(y)
    elif shape == "lanes":
        y = graph.function("after", lambda value: value + 0.0, VALUE, lane="other")(y)
    elif shape == "diamond":
        other = graph.function("other", lambda value: value * 0.0, VALUE, lane="other")(x)
        y = ops.add(y, other)
    elif shape == "variable":
        total = graph.variable("total", VALUE.shape, "float64")
        update = graph.function("update", lambda old, new: old + new)
        [total, y] >> update >> [total]
    return graph, y


async def run_case(case: Case, graph: af.Graph, y: af.Blob, shape: str) -> BaseException | None:
    feed = {"x": np.array([1.0, 2.0])}
    failure: BaseException | None = None
    try:
        if shape == "stream":
            async with contextlib.aclosing(graph.stream([feed] * 4, fetch=[y], in_flight=3)) as stream:
                async for _ in stream:
                    pass
        elif shape == "two frames":
            outcomes = await asyncio.gather(
                graph.run(feed, fetch=[y]), graph.run(feed, fetch=[y]), return_exceptions=True
            )
            failure = outcomes[0] if isinstance(outcomes[0], BaseException) else None
            assert isinstance(outcomes[1], af.OpError) or not case.armed
        else:
            await graph.run(feed)
    except af.ActorflowError as error:
        failure = error
    return failure


def check(case: Case, shape: str, place: str, options: dict[str, Any], sequential: bool, loop: Any) -> None:
    graph, y = build(case, shape, place, options, sequential)
    task, left = settle(loop, run_case(case, graph, y, shape))
    failure = task.result()
    assert case.strikes, "the place was not reached"
    assert isinstance(failure, af.OpError), failure
    assert failure.op_name == "struck"
    assert failure.op.site.filename == __file__
    assert "'struck'" in str(failure)
    if place in DESCRIBING:
        assert not left
    else:
        cause = failure.__cause__
        coroutine_stop = isinstance(cause, RuntimeError) and case.kind in ("StopIteration", "StopAsyncIteration")
        assert any(cause is raised for raised in case.raised) or coroutine_stop, cause
        assert {type(error) for error in left} == {type(case.raised[0])} & set(ENDS_PROGRAM)
        assert len(left) <= len(case.raised), "it has left the loop twice"
    case.armed = False
    task, left = settle(loop, graph.run({"x": np.array([3.0, 4.0])}, fetch=[y]))
    assert not left
    np.testing.assert_array_equal(task.result()[y], [6.0, 8.0])
    task, left = settle(loop, graph.aclose())
    assert task.result() is None
    assert graph.engine.frames.in_flight == 0
    assert not asyncio.all_tasks(loop)


def descriptors() -> set[str]:
    """Open files, by number and what they are."""
    here = "/proc/self/fd"
    open_files = set()
    for number in os.listdir(here) if os.path.isdir(here) else ():
        with contextlib.suppress(OSError):  # that of the listing itself
            open_files.add(f"{number} {os.readlink(f'{here}/{number}')}")
    return open_files


both_loops = pytest.mark.parametrize("kind_of_loop", ["asyncio", "uvloop"])


@contextlib.contextmanager
def a_loop(kind: str) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that must tell of nothing, and leave nothing open."""
    make = asyncio.new_event_loop if kind == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    make().close()  # libuv opens a pipe with the first loop of a process, and keeps it
    before = descriptors()
    loop = make()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        yield loop
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    assert not told, told
    assert descriptors() <= before


@both_loops
@pytest.mark.together("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_every_place_and_kind(place: str, kind: str, kind_of_loop: str) -> None:
    with a_loop(kind_of_loop) as loop:
        check(Case(kind), "alone", place, {}, False, loop)


@both_loops
@pytest.mark.parametrize("kind", [kind.__name__ for kind in ENDS_PROGRAM])
@pytest.mark.parametrize("place", ["plain", "slow", "async at once", "async after an await"])
def test_a_program_that_is_ended_still_ends_in_order(place: str, kind: str, kind_of_loop: str) -> None:
    graph, _ = build(Case(kind), "alone", place, {}, False)
    steps = 0

    async def main() -> None:
        nonlocal steps
        running = asyncio.ensure_future(graph.run({"x": np.array([1.0, 2.0])}))
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):  # whatever a program awaits at its end: all of it must have its turns
                await asyncio.sleep(0)
                steps += 1
            await asyncio.gather(running, return_exceptions=True)
            await graph.aclose()

    make = asyncio.new_event_loop if kind_of_loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    with pytest.raises(ENDS_PROGRAM), asyncio.Runner(loop_factory=make) as runner:
        runner.run(main())
    assert steps == 10
    assert graph.engine.frames.in_flight == 0


@both_loops
@pytest.mark.together("kind", KINDS)
@pytest.mark.parametrize("place", ["plain", "async at once", "async after an await"])
def test_what_ends_programs_is_not_repeated(place: str, kind: str, kind_of_loop: str) -> None:
    case = Case(kind)
    with a_loop(kind_of_loop) as loop:
        check(case, "alone", place, {"retries": 2}, False, loop)
    assert case.strikes == (1 if isinstance(case.raised[0], ENDS_PROGRAM) else 3)


@both_loops
@pytest.mark.parametrize("kind", ENDS_PROGRAM)
def test_what_ends_programs_does_so_from_a_thread_that_was_given_up(
    kind: type[BaseException], kind_of_loop: str
) -> None:
    given_up = threading.Event()
    begun: list[int] = []

    def call(value: Any) -> Any:
        begun.append(threading.get_ident())
        assert given_up.wait(LIMIT_S)
        raise kind

    graph = af.Graph("user")
    graph.function("struck", call, VALUE, timeout=0.01)(graph.blob("x", VALUE.shape, "float64"))
    with a_loop(kind_of_loop) as loop:
        while not begun:  # a busy machine may take the whole time limit to begin the call
            task, left = settle(loop, graph.run({"x": np.array([1.0, 2.0])}))
            assert isinstance(task.exception(), af.OpTimeoutError)
            assert not left
            while graph.engine.frames.in_flight and not begun:  # it may begin after all
                settle(loop, asyncio.sleep(0))
        given_up.set()
        task, left = settle(loop, graph.aclose())
        assert task.result() is None
    assert [type(error) for error in left] == [kind] * len(begun)


@both_loops
@given(
    kind=st.sampled_from(sorted(KINDS)),
    place=st.sampled_from(sorted(PLACES)),
    shape=st.sampled_from(SHAPES),
    options=st.sampled_from(OPTIONS),
    sequential=st.booleans(),
)
def test_any_graph_ends_with_an_error_that_names_the_op(
    kind_of_loop: str,
    kind: str,
    place: str,
    shape: str,
    options: dict[str, Any],
    sequential: bool,
) -> None:
    with a_loop(kind_of_loop) as loop:
        check(Case(kind), shape, place, options, sequential, loop)


# -- what is called before a frame has begun, and between frames -------------------------------------------------------


class OddFeeds(dict[str, Any]):
    case: Case

    def items(self) -> Any:
        self.case.strike()
        return super().items()


class OddSource:
    """Feeds whose protocol is the user's code: of a plain or an async iterator."""

    def __init__(self, case: Case, where: str) -> None:
        self.case = case
        self.where = where
        self.given = 0

    def _next(self) -> dict[str, Any]:
        if self.given == 2:
            if self.where == "next":
                self.case.strike()
            raise IndexError
        self.given += 1
        return {"x": np.zeros(2)}


class OddIterator(OddSource):
    def __iter__(self) -> OddIterator:
        return self

    def __next__(self) -> dict[str, Any]:
        try:
            return self._next()
        except IndexError:
            raise StopIteration from None

    def close(self) -> None:
        if self.where == "close":
            self.case.strike()


class OddAsyncIterator(OddSource):
    def __aiter__(self) -> OddAsyncIterator:
        return self

    async def __anext__(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        try:
            return self._next()
        except IndexError:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        if self.where == "close":
            self.case.strike()


class OddGenerator(OddSource):
    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {"x": np.zeros(2)}
            if self.where == "next":
                self.case.strike()
        finally:
            await asyncio.sleep(0)
            if self.where == "close":
                self.case.strike()


SOURCES = {"iterator": OddIterator, "async iterator": OddAsyncIterator, "async generator": OddGenerator}


@both_loops
@pytest.mark.together("kind", KINDS)
@pytest.mark.together("where", ["next", "close"])
@pytest.mark.parametrize("source", SOURCES)
def test_feeds_of_a_stream(source: str, where: str, kind: str, kind_of_loop: str) -> None:
    case = Case(kind)
    graph = af.Graph("user")
    y = ops.scale(graph.blob("x", (2,), "float64"), 2.0)

    async def consume() -> BaseException | None:
        try:
            async with contextlib.aclosing(graph.stream(SOURCES[source](case, where), in_flight=2)) as stream:
                async for _ in stream:
                    pass
        except Exception as error:  # noqa: BLE001
            return error
        return None

    with a_loop(kind_of_loop) as loop:
        task, left = settle(loop, consume())
        failure = task.result()
        planted = KINDS[kind]
        if kind == "StopAsyncIteration" or (kind == "StopIteration" and source == "iterator"):
            # By the protocol it is the end, or an error of Python's own.
            assert failure is None or isinstance(failure, RuntimeError | StopIteration | StopAsyncIteration)
        elif issubclass(planted, Exception):
            assert type(failure) is planted or isinstance(failure, RuntimeError)
        else:
            assert isinstance(failure, af.FeedError), failure
            assert "stream 0 of graph 'user'" in str(failure)
            assert any(failure.__cause__ is raised for raised in case.raised)
        assert {type(error) for error in left} == {planted} & set(ENDS_PROGRAM)
        case.armed = False
        task, left = settle(loop, graph.run({"x": np.ones(2)}))
        np.testing.assert_array_equal(task.result()[y], [2.0, 2.0])
        settle(loop, graph.aclose())
        assert not asyncio.all_tasks(loop)


@both_loops
@pytest.mark.together("kind", KINDS)
@pytest.mark.parametrize("place", ["feed", "feeds", "init", "init array"])
def test_what_a_frame_begins_with(place: str, kind: str, kind_of_loop: str) -> None:
    case = Case(kind)
    graph = af.Graph("user")
    x = graph.blob("x", (2,), "float64")

    def init(spec: af.TensorSpec, name: str) -> Any:
        if place == "init":
            case.strike()
        return Odd(case, "array" if place == "init array" else "", np.ones(2))

    w = graph.variable("w", (2,), "float64", init=init)
    y = ops.add(x, w)

    async def run() -> BaseException | None:
        feeds: Any = {"x": Odd(case, "array" if place == "feed" else "", np.ones(2))}
        if place == "feeds":
            feeds = OddFeeds(feeds)
            feeds.case = case
        try:
            await graph.run(feeds)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    with a_loop(kind_of_loop) as loop:
        task = loop.create_task(run())
        planted = KINDS[kind]
        if issubclass(planted, ENDS_PROGRAM):  # in the caller's own task, which asyncio ends the program for
            with pytest.raises(planted):
                loop.run_until_complete(task)
        else:
            failure = loop.run_until_complete(task)
            if place == "feeds" and issubclass(planted, Exception):
                assert type(failure) is planted or isinstance(failure, RuntimeError)
            else:
                assert isinstance(failure, af.GraphError), failure
                assert {"feed": "'x'", "feeds": "'user'"}.get(place, "'w'") in str(failure)
                assert any(failure.__cause__ is raised for raised in case.raised)
        case.armed = False
        failure = loop.run_until_complete(run())
        assert failure is None
        assert graph.engine.frames.in_flight == 0
        result = loop.run_until_complete(graph.run({"x": np.ones(2)}))
        np.testing.assert_array_equal(result[y], [2.0, 2.0])
        loop.run_until_complete(graph.aclose())
        assert not asyncio.all_tasks(loop)
