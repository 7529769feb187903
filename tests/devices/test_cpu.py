"""Lanes of the CPU: order, wake-ups, errors, ends."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

import actorflow as af
from actorflow.devices import CPU, Fence, Lane, open_device
from actorflow.devices.base import Stopped
from actorflow.devices.cpu import on_lane, stoppable

LIMIT_S = 60  # only a failing test waits


class Gate:
    """Work that says when it starts and goes on when it may."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.open = threading.Event()

    def __call__(self, _: Any) -> None:
        self.started.set()
        assert self.open.wait(LIMIT_S)


class CountingLoop:
    """The running loop, with its wake-ups counted."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.wake_ups = 0

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self.wake_ups += 1
        self.loop.call_soon_threadsafe(callback)


class Ends:
    """The ends that the loop has been told of."""

    def __init__(self) -> None:
        self.told: list[Fence] = []
        self._changed = asyncio.Event()

    def __call__(self, fence: Fence) -> None:
        self.told.append(fence)
        self._changed.set()

    async def until(self, fence: Fence) -> None:
        async with asyncio.timeout(LIMIT_S):
            while fence not in self.told:
                self._changed.clear()
                await self._changed.wait()


def nothing(_: Any) -> None:
    pass


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def device() -> Iterator[CPU]:
    device = CPU(af.Place())
    yield device
    device.close()
    device.join()


@pytest_asyncio.fixture
async def lane(device: CPU) -> AsyncIterator[Lane]:
    device.bind(asyncio.get_running_loop())
    yield device.lane("main")
    device.close()
    device.join()


class TestOrder:
    async def test_waiters_are_called_before_the_end_is_told(self, lane: Lane) -> None:
        calls: list[Any] = []
        gate, told = Gate(), asyncio.Event()
        first = lane.submit(gate, 1, lambda fence: calls.append(fence.argument), urgent=False)
        second = lane.submit(nothing, 2, lambda fence: (calls.append(fence.argument), told.set()), urgent=True)
        for fence, name in ((second, "c"), (first, "a"), (first, "b")):
            fence.add_waiter(lambda name=name: calls.append(name))
        gate.open.set()
        async with asyncio.timeout(LIMIT_S):
            await told.wait()
        assert calls == ["a", "b", 1, "c", 2]

    async def test_a_worker_lane_cannot_wait_on_the_device(self, lane: Lane, device: CPU) -> None:
        ends = Ends()
        fence = lane.submit(nothing, None, ends, urgent=True)
        assert device.lane("other").wait(fence) is False
        await ends.until(fence)


class TestWakeUps:
    async def test_many_ends_are_told_in_one_go(self, device: CPU) -> None:
        loop, gate, ends = CountingLoop(), Gate(), Ends()
        lane = device.lane("main")
        lane.bind(loop)  # type: ignore[arg-type]
        fences = [lane.submit(gate, None, ends, urgent=False)]
        fences += [lane.submit(nothing, i, ends, urgent=False) for i in range(100)]
        gate.open.set()
        await ends.until(fences[-1])
        assert ends.told == fences
        assert loop.wake_ups == 1

    async def test_an_end_that_nobody_needs_waits_for_later_ones(self, device: CPU) -> None:
        loop, gate, ends = CountingLoop(), Gate(), Ends()
        lane = device.lane("main")
        lane.bind(loop)  # type: ignore[arg-type]
        held = Gate()
        lane.submit(held, None, ends, urgent=False)
        early = lane.submit(nothing, None, ends, urgent=False)
        late = lane.submit(gate, None, ends, urgent=False)
        held.open.set()
        assert gate.started.wait(LIMIT_S)
        assert early.done
        assert loop.wake_ups == 0
        gate.open.set()
        await ends.until(late)
        assert loop.wake_ups == 1

    async def test_work_is_done_before_the_loop_can_be_told(self, lane: Lane) -> None:
        """Else a consumer that fires while the worker is between the two would wait for a call that has been made."""

        class SlowAppend(deque[Any]):
            appended, go_on = threading.Event(), threading.Event()

            def append(self, item: Any) -> None:
                super().append(item)
                self.appended.set()
                assert self.go_on.wait(LIMIT_S)

        finished = lane._finished = SlowAppend()  # type: ignore[attr-defined]
        seen: list[bool] = []
        ends = Ends()
        fence = lane.submit(nothing, None, lambda fence: (seen.append(fence.done), ends(fence)), urgent=False)
        assert finished.appended.wait(LIMIT_S)
        lane.wake()  # type: ignore[attr-defined]  # as other work that has ended would
        await ends.until(fence)
        finished.go_on.set()
        assert seen == [True]


class TestErrors:
    async def test_a_waiter_that_raises_takes_no_end_away(self, lane: Lane) -> None:
        loop, raised, waited = asyncio.get_running_loop(), list[BaseException](), list[str]()
        loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
        gate, ends = Gate(), Ends()
        fence = lane.submit(gate, None, ends, urgent=False)
        behind = lane.submit(nothing, None, ends, urgent=True)
        error = ValueError("no")

        def fail() -> None:
            raise error

        fence.add_waiter(fail)
        fence.add_waiter(lambda: waited.append("second"))
        gate.open.set()
        await ends.until(behind)
        assert ends.told == [fence, behind]
        assert (raised, waited) == ([error], ["second"])
        loop.set_exception_handler(None)

    async def test_nothing_of_the_last_work_is_kept_alive(self, lane: Lane) -> None:
        class Argument:
            pass

        ends = Ends()
        argument = Argument()
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        weakref.finalize(argument, lambda: loop.call_soon_threadsafe(gone.set))
        fence = lane.submit(nothing, argument, ends, urgent=True)
        await ends.until(fence)
        ends.told.clear()
        del argument, fence
        async with asyncio.timeout(LIMIT_S):
            await gone.wait()

    async def test_a_thread_that_is_held_up_keeps_nothing_alive(
        self, lane: Lane, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a dropped graph is not collected, and its threads stay, if one of them lost its core just then."""

        class Argument:
            pass

        held, go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(lane, "wake", lambda: (held.set(), go_on.wait(LIMIT_S)))
        argument = Argument()
        alive = weakref.ref(argument)
        ends = Ends()
        lane.submit(nothing, argument, ends, urgent=True)
        try:
            assert held.wait(LIMIT_S)
            lane._tell()  # type: ignore[attr-defined]  # as work of before that has ended would have the loop do
            assert len(ends.told) == 1
            ends.told.clear()
            del argument
            assert alive() is None
        finally:
            go_on.set()


class TestEnds:
    def test_a_lane_without_work_has_no_thread(self, device: CPU) -> None:
        lane = device.lane("idle")
        assert "actorflow-idle" not in thread_names()
        lane.close()
        lane.join()
        with pytest.raises(af.DeviceError, match="lane 'idle' is closed"):
            lane.submit(nothing, None, nothing, urgent=True)
        assert "actorflow-idle" not in thread_names()

    def test_work_that_ends_after_its_loop_was_closed_is_told_on_the_next_one(self, device: CPU) -> None:
        gate, behind = Gate(), Gate()
        told: list[int] = []

        async def submit() -> None:
            device.bind(asyncio.get_running_loop())
            device.lane("main").submit(gate, 1, lambda fence: told.append(fence.argument), urgent=True)
            device.lane("main").submit(behind, 2, lambda fence: told.append(fence.argument), urgent=True)

        asyncio.run(submit())
        gate.open.set()
        assert behind.started.wait(LIMIT_S)
        assert told == []

        async def look() -> None:
            device.bind(asyncio.get_running_loop())
            async with asyncio.timeout(LIMIT_S):
                end = asyncio.Event()
                device.lane("main").submit(
                    nothing, 3, lambda fence: (told.append(fence.argument), end.set()), urgent=True
                )
                await turns()
                assert told == [1]
                behind.open.set()
                await end.wait()

        asyncio.run(look())
        assert told == [1, 2, 3]

    def test_a_wake_up_that_the_closed_loop_never_made_is_made_up_for(self, device: CPU) -> None:
        told: list[int] = []
        loop = asyncio.new_event_loop()  # never runs
        device.bind(loop)
        lane = device.lane("main")
        lane.submit(nothing, 1, lambda fence: told.append(fence.argument), urgent=True)
        lane.close()
        lane.join()
        loop.close()

        async def look() -> None:
            device.bind(asyncio.get_running_loop())
            await turns()

        asyncio.run(look())
        assert told == [1]


class TestPlaces:
    def test_the_cpu_is_there(self) -> None:
        device = open_device(af.Place())
        assert isinstance(device, CPU)
        assert device.place == af.Place()

    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(
            af.DeviceUnavailableError, match="place 'none:0': no device of kind 'none'; known: cpu, sim, cuda"
        ) as caught:
            open_device(af.Place.parse("none:0"))
        assert isinstance(caught.value, RuntimeError)


class TestStopping:
    class Loop:
        """Work that goes on until it is stopped."""

        def __init__(self) -> None:
            self.started, self.stopped = threading.Event(), threading.Event()

        def __call__(self, _: Any) -> None:
            with stoppable(self.stopped.set):
                self.started.set()
                assert self.stopped.wait(LIMIT_S)
                raise ValueError("stopped in the middle")

    async def test_work_that_runs(self, lane: Lane) -> None:
        loop, ends = self.Loop(), Ends()
        fence = lane.submit(loop, None, ends, urgent=True)
        assert loop.started.wait(LIMIT_S)
        fence.stop()
        await ends.until(fence)
        assert isinstance(fence.error, Stopped)
        assert isinstance(fence.error.__cause__, ValueError)

    async def test_work_that_has_not_begun(self, lane: Lane) -> None:
        gate, loop, ends = Gate(), self.Loop(), Ends()
        lane.submit(gate, None, ends, urgent=True)
        fence = lane.submit(loop, None, ends, urgent=True)
        fence.stop()
        gate.open.set()
        await ends.until(fence)
        assert isinstance(fence.error, Stopped)
        assert not loop.started.is_set()

    async def test_other_work_goes_on(self, lane: Lane) -> None:
        gate, ends = Gate(), Ends()
        stopped: list[int] = []

        def work(_: Any) -> None:
            with stoppable(lambda: stopped.append(1)):
                pass
            gate(None)
            raise ValueError("of its own")

        fence = lane.submit(work, None, ends, urgent=True)
        assert gate.started.wait(LIMIT_S)
        fence.stop()
        gate.open.set()
        await ends.until(fence)
        assert isinstance(fence.error, ValueError)
        assert not stopped

    async def test_errors_are_those_of_the_work_until_it_is_stopped(self, lane: Lane) -> None:
        def work(_: Any) -> None:
            assert on_lane()
            with stoppable(lambda: None):
                raise ValueError("of its own")

        ends = Ends()
        fence = lane.submit(work, None, ends, urgent=True)
        await ends.until(fence)
        assert isinstance(fence.error, ValueError)

    def test_on_no_lane(self) -> None:
        assert not on_lane()
        with pytest.raises(ValueError, match="mine"), stoppable(lambda: None):
            raise ValueError("mine")
