"""Timeouts, retries, atomic frames, replay: what users do about ops that fail."""

import asyncio
import copy
import gc
import math
import pickle
import threading
import traceback
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.actors.frame import Frame, what_it_waits_for
from actorflow.runtime import limits
from tests.support.waiting import HELD_S, held_limits, settle

SPEC = af.TensorSpec.of((), "int64")


class Flaky:
    """Fails a number of times, then works; plain or async."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def plain(self) -> int:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError(f"call {self.calls}")
        return self.calls

    async def asynchronous(self) -> int:
        await asyncio.sleep(0)
        return self.plain()


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
class TestRetries:
    async def test_a_failure_is_repeated(self, kind: str) -> None:
        flaky = Flaky(2)
        graph = af.Graph("retries")
        y = graph.function("flaky", getattr(flaky, kind), SPEC, retries=2)()
        z = graph.function("next", lambda a: a * 10, SPEC)(y)
        async with graph:
            assert (await graph.run())[z] == 30
            assert flaky.calls == 3
            assert (await graph.run())[z] == 40
        assert graph.engine.profile[graph["flaky"].id].calls == 2

    async def test_the_last_failure_counts(self, kind: str) -> None:
        flaky = Flaky(3)
        graph = af.Graph("retries")
        graph.function("flaky", getattr(flaky, kind), SPEC, retries=2)()
        async with graph:
            with pytest.raises(af.OpError, match="ConnectionError: call 3"):
                await graph.run()
            assert (await graph.run())["flaky/out"] == 4

    async def test_any_number_of_repetitions(self, kind: str) -> None:
        flaky = Flaky(1500)  # a wait that doubles each time would be too long for a float
        graph = af.Graph("retries")
        graph.function("flaky", getattr(flaky, kind), SPEC, retries=2000)()
        async with graph, asyncio.timeout(60):
            assert (await graph.run())["flaky/out"] == 1501

    async def test_no_frame_overtakes_one_that_will_be_repeated(self, kind: str) -> None:
        order: list[int] = []
        failed = False

        def plain(a: np.ndarray) -> np.ndarray:
            nonlocal failed
            if a == 1 and not failed:
                failed = True
                raise ConnectionError
            order.append(int(a))
            return a

        async def asynchronous(a: np.ndarray) -> np.ndarray:
            return plain(a)

        graph = af.Graph("retries")
        x = graph.blob("x", (), "int64")
        if kind == "plain":
            graph.function("flaky", plain, SPEC, retries=1, backoff=0.01)(x)
        else:
            graph.function("flaky", asynchronous, SPEC, retries=1, backoff=0.01, concurrency=1)(x)
        async with graph:
            await asyncio.gather(*(graph.run({x: i}) for i in range(5)))
        assert order == [0, 1, 2, 3, 4]

    async def test_cancellation_while_waiting(self, kind: str) -> None:
        flaky = Flaky(1)
        graph = af.Graph("retries")
        graph.function("flaky", getattr(flaky, kind), SPEC, retries=1, backoff=3600)()
        async with graph:
            task = asyncio.create_task(graph.run())
            while not (graph.engine.running and graph.engine.running[0].resting):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert graph.engine.frames.in_flight == 0
            async with asyncio.timeout(60):
                assert (await graph.run())["flaky/out"] == 2


def frames() -> list[Frame]:
    """All that there are."""
    return [thing for thing in gc.get_objects() if type(thing) is Frame]


async def test_a_retried_call_that_outlives_its_run_keeps_nothing() -> None:
    retried, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    calls = 0
    before = frames()  # of other tests

    def fails_then_waits() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError
        loop.call_soon_threadsafe(retried.set)
        assert release.wait(60)
        return 1

    graph = af.Graph("retries")
    graph.function("f", fails_then_waits, SPEC, retries=1)()
    async with graph:
        task = asyncio.create_task(graph.run())
        await retried.wait()
        task.cancel()
        await asyncio.wait([task])
        release.set()
        while graph.engine.frames.in_flight:
            await asyncio.sleep(0)
        # Another run has the lane's thread let go of the last one.
        await graph.run()
        del task
        gc.collect()
        assert [each for each in frames() if each.number == 0 and all(each is not other for other in before)] == []


class TestTimeouts:
    async def test_an_async_function_is_cancelled(self) -> None:
        cancelled = False

        async def forever() -> int:
            nonlocal cancelled
            try:
                await asyncio.Event().wait()
            finally:
                cancelled = True
            return 1

        graph = af.Graph("timeout")
        graph.function("forever", forever, SPEC, timeout=0.005)()
        async with graph:
            with pytest.raises(af.OpTimeoutError, match=r"op 'forever' .* timed out after 0\.005 s") as caught:
                await graph.run()
        assert cancelled
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.op is graph["forever"]
        with pytest.raises(af.GraphError, match="cannot be replayed"):
            caught.value.replay()

    async def test_a_timeout_is_retried(self) -> None:
        calls = 0

        async def slow_once() -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                await asyncio.Event().wait()
            return calls

        graph = af.Graph("timeout")
        y = graph.function("slow", slow_once, SPEC, timeout=HELD_S, retries=1)()
        async with graph:
            with held_limits() as end_limits:
                run = asyncio.create_task(graph.run())
                await settle()
                assert calls == 1
                end_limits()
                assert (await run)[y] == 2

    async def test_a_thread_is_left_behind_and_said_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "GRACE_S", 0.01)
        begun, release, reports = threading.Event(), threading.Event(), asyncio.Queue[str]()
        monkeypatch.setattr(limits._log, "warning", lambda text, *names: reports.put_nowait(text % names))
        graph = af.Graph("timeout")
        y = graph.function("slow", lambda: (begun.set(), release.wait(60))[1] and 1, SPEC, timeout=HELD_S)()
        graph.function("queued", lambda _: 1, SPEC)(y)
        async with graph:
            with held_limits() as end_limits:
                run = asyncio.create_task(graph.run())
                await asyncio.to_thread(begun.wait)
                end_limits()
                with pytest.raises(af.OpTimeoutError):
                    await run
            async with asyncio.timeout(60):
                report = await reports.get()
            assert report.startswith("op 'slow' of frame 0 of graph 'timeout' still runs in a thread")
            release.set()
            assert (await graph.run(fetch=[y]))[y] == 1
        assert reports.empty()

    async def test_a_thread_that_ends_soon_is_not_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        begun, release = threading.Event(), threading.Event()
        graph = af.Graph("timeout")
        graph.function("slow", lambda: (begun.set(), release.wait(60)) and 1, SPEC)()
        async with graph:
            running = asyncio.create_task(graph.run())
            await asyncio.to_thread(begun.wait)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert graph.engine.observer.limits.timers
            release.set()
        assert not graph.engine.observer.limits.timers
        assert not caplog.records

    async def test_a_run_times_out_and_says_what_it_waited_for(self) -> None:
        async def forever() -> int:
            await asyncio.Event().wait()
            return 1

        graph = af.Graph("timeout")
        y = graph.function("forever", forever, SPEC)()
        graph.function("after", lambda a: a, SPEC)(y)
        async with graph:
            with pytest.raises(af.RunTimeoutError) as caught:
                await graph.run(timeout=0.05)
            assert graph.engine.frames.failed == 1
        message = str(caught.value)
        assert "frame 0 timed out after 0.05 s; running: 'forever'" in message
        assert "op 'after' waits for 1 of 1 inputs: op 'forever'" in message
        assert isinstance(caught.value, TimeoutError)

    async def test_of_many_ops_that_wait_some_are_named(self) -> None:
        begun = asyncio.Event()

        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        graph = af.Graph("many")
        y = graph.function("forever", forever, SPEC)()
        for name in range(12):
            graph.function(str(name), lambda a: a, SPEC)(y)
        async with graph:
            run = asyncio.ensure_future(graph.run())
            await begun.wait()
            (frame,) = graph.engine.running
            assert what_it_waits_for(frame).endswith(
                "op '9' waits for 1 of 1 inputs: op 'forever'\n  and 2 more ops wait"
            )
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

    @pytest.mark.together(
        ("options", "message"),
        [
            ({"timeout": 0}, "timeout must be positive, got 0"),
            ({"timeout": math.nan}, "timeout must be a time in seconds, got nan"),
            ({"retries": 1, "backoff": math.inf}, "backoff must be finite"),
            ({"retries": 1, "backoff": math.nan}, "backoff must be a time in seconds, got nan"),
            ({"retries": -1}, "retries must be at least 0, got -1"),
            ({"backoff": -1.0, "retries": 1}, r"backoff must not be negative, got -1\.0"),
        ],
    )
    def test_wrong_options(self, options: dict[str, float], message: str) -> None:
        graph = af.Graph("options")
        with pytest.raises(af.GraphError, match=message):
            graph.function("f", lambda: 1, SPEC, **options)
        assert graph.ops == ()


class TestUpdates:
    def build(self, fails: list[bool]) -> tuple[af.Graph, af.Variable, af.Variable]:
        """``first`` is updated, then an op fails that ``second`` waits for."""
        graph = af.Graph("updates")
        first, second = graph.variable("first", (), "int64"), graph.variable("second", (), "int64")
        done = graph.blob("done", (), "int64")

        def step(value: np.ndarray) -> tuple[int, int]:
            return int(value) + 1, int(value)

        def check(value: np.ndarray, before: np.ndarray) -> int:
            if fails[0]:
                raise RuntimeError("planted")
            return int(value) + 1

        [first] >> graph.function("step", step) >> [first, done]
        [second, done] >> graph.function("check", check) >> [second]
        return graph, first, second

    async def test_the_error_lists_what_was_updated(self) -> None:
        fails = [True]
        graph, first, second = self.build(fails)
        async with graph:
            with pytest.raises(af.OpError) as caught:
                await graph.run()
            assert caught.value.updated == ("first",)
            assert (first.value, second.value) == (1, 0)
            fails[0] = False
            await graph.run()
        assert (first.value, second.value) == (2, 1)

    async def test_atomic_frames_update_all_or_nothing(self) -> None:
        fails = [True]
        graph, first, second = self.build(fails)
        async with graph:
            with pytest.raises(af.OpError) as caught:
                await graph.run(atomic=True)
            assert caught.value.updated == ()
            assert (first.value, second.value) == (0, 0)
            fails[0] = False
            await asyncio.gather(*(graph.run(atomic=True) for _ in range(10)))
            results = [result async for result in graph.stream([{}] * 5, in_flight=3, atomic=True)]
        assert len(results) == 5
        assert (first.value, second.value) == (15, 15)


class TestDebugging:
    async def test_replay_runs_the_failed_call_alone(self) -> None:
        armed = True

        def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            if armed:
                raise ZeroDivisionError
            return a // b

        graph = af.Graph("replay")
        a, b = graph.blob("a", (), "int64"), graph.blob("b", (), "int64")
        graph.function("divide", divide, SPEC)(a, b)
        async with graph:
            with pytest.raises(af.OpError) as caught:
                await graph.run({a: 12, b: 4})
        with pytest.raises(ZeroDivisionError):
            caught.value.replay()
        armed = False
        assert caught.value.replay() == 3

    async def test_replay_keeps_the_inputs_through_later_frames(self) -> None:
        graph = af.Graph("replay")
        x = graph.blob("x", (100,))
        doubled = af.ops.scale(x, 2.0)

        def check(a: np.ndarray) -> np.ndarray:
            if a[0] < 0:
                raise ValueError("negative")
            return a.copy()

        graph.function("check", check, af.TensorSpec.of((100,)))(doubled)
        async with graph:
            with pytest.raises(af.OpError) as caught:
                await graph.run({x: np.full(100, -3, "f")})
            for i in range(5):
                await graph.run({x: np.full(100, i, "f")})
        with pytest.raises(ValueError, match="negative") as replayed:
            caught.value.replay()
        (values,) = [frame.frame.f_locals["a"] for frame in replayed.traceback if frame.name == "check"]
        assert (values == -6).all()

    async def test_replay_of_an_async_function(self) -> None:
        async def fail() -> int:
            raise ValueError("planted")

        graph = af.Graph("replay")
        graph.function("fail", fail, SPEC)()
        async with graph:
            with pytest.raises(af.OpError) as caught:
                await graph.run()
        with pytest.raises(ValueError, match="planted"):
            await caught.value.replay()

    @pytest.mark.parametrize("repetition", range(3))
    async def test_the_users_lines_stand_out(self, repetition: int) -> None:
        def outer() -> int:
            return inner()

        def inner() -> int:
            raise ValueError("planted")

        graph = af.Graph("traceback")
        graph.function("outer", outer, SPEC)()
        async with graph:
            for _ in range(repetition):  # on the lane, then on the loop
                with pytest.raises(af.OpError):
                    await graph.run()
            with pytest.raises(af.OpError) as caught:
                await graph.run()
        assert caught.value.__cause__ is not None
        lines = traceback.extract_tb(caught.value.__cause__.__traceback__)
        assert [line.name for line in lines] == ["outer", "inner"]


@pytest.mark.together("name", ["stall_limit", "block_limit"])
@pytest.mark.together("seconds", [0, -1.0, math.nan])
def test_limits_that_are_none(name: str, seconds: float) -> None:
    limits: dict[str, Any] = {name: seconds}
    with pytest.raises(af.GraphError, match=rf"{name} must be (positive|a time in seconds), got {seconds}"):
        af.Graph("limits", **limits)


def chained(count: int, link: str, make: Callable[[str], BaseException] = ValueError) -> list[BaseException]:
    """Errors of which each is linked with the one before."""
    errors = [make(f"error {number}") for number in range(count)]
    for error, before in pairwise(reversed(errors)):
        setattr(error, link, before)
    return errors


def in_a_circle(link: str, make: Callable[[str], BaseException] = ValueError) -> BaseException:
    errors = chained(3, link, make)
    setattr(errors[0], link, errors[-1])
    return errors[-1]


def with_a_circle_at_its_end() -> BaseException:
    error = ValueError("in front of it")
    error.__cause__ = in_a_circle("__cause__")
    return error


def of_itself() -> BaseException:
    error = ValueError("its own cause")
    error.__cause__ = error
    return error


def deep_group() -> BaseException:
    error: Exception = ValueError("innermost")
    for _ in range(2_000):
        error = ExceptionGroup("group", [error])
    return error


def without_an_end() -> BaseException:
    def call_itself() -> None:
        call_itself()

    try:
        call_itself()
    except RecursionError as error:
        return error
    raise AssertionError


class UnreadableError(Exception):
    def __str__(self) -> str:
        return str(self)


CHAINS: dict[str, Callable[[], BaseException]] = {
    "causes in a circle": lambda: in_a_circle("__cause__"),
    "contexts in a circle": lambda: in_a_circle("__context__"),
    "a circle at the end": with_a_circle_at_its_end,
    "own errors in a circle": lambda: in_a_circle("__cause__", af.GraphError),
    "its own cause": of_itself,
    "many causes": lambda: chained(3_000, "__cause__")[-1],
    "many contexts": lambda: chained(3_000, "__context__")[-1],
    "many causes of our own": lambda: chained(3_000, "__cause__", af.GraphError)[-1],
    "groups in groups": deep_group,
    "RecursionError": without_an_end,
    "a text without an end": UnreadableError,
}


@pytest.mark.together("where", ["loop", "lane", "task"], at_once=25)
@pytest.mark.together("name", CHAINS)
async def test_chains_of_errors_are_harmless_however_they_are_linked(name: str, where: str) -> None:
    """Each is told, shown, copied and sent elsewhere as any other error, and is freed."""
    raised: list[BaseException] = []

    def plain() -> int:
        if raised:
            raise raised.pop()
        return 7

    async def asynchronous() -> int:
        return plain()

    graph = af.Graph("chains", sequential=where == "loop")
    y = graph.function("divide", asynchronous if where == "task" else plain, SPEC)()
    async with graph:
        error = CHAINS[name]()
        raised.append(error)
        with pytest.raises(af.OpError, match=rf"op 'divide' .* failed with {type(error).__name__}: ") as caught:
            await graph.run()
        assert caught.value.__cause__ is error
        assert "op 'divide'" in "".join(traceback.format_exception(caught.value))
        for other in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
            assert str(other) == str(caught.value)
        assert graph.engine.errors[-1].message == str(caught.value)
        assert (await graph.run())[y] == 7


async def test_a_call_that_cancels_its_own_frame_has_ended_well() -> None:
    graph = af.Graph("itself")
    x = graph.blob("x", (2,))
    cancels = [False]

    def step(value: np.ndarray) -> np.ndarray:
        if cancels[0]:
            graph.cancel()
        return value + 1

    y = graph.function("after", lambda value: value, x.spec)(graph.function("step", step, x.spec)(x))
    async with graph:
        for _ in range(3):
            await graph.run({x: [1.0, 2.0]})
        cancels[0] = True
        with pytest.raises(af.RunCancelledError):
            await graph.run({x: [1.0, 2.0]})
        cancels[0] = False
        counts = {op.name: (graph.engine.profile[op.id].calls, graph.engine.profile[op.id].failed) for op in graph.ops}
        assert counts == {"step": (4, 0), "after": (3, 0)}
        assert (await graph.run({x: [1.0, 2.0]}))[y].tolist() == [2.0, 3.0]
