"""The dispatcher: slices of the loop's time, and order."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actorflow.actors.dispatcher import Dispatcher

FAR_NS = 1 << 62


class StubLoop:
    """Keeps what it is asked to call."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.calls.append(callback)

    def turn(self) -> None:
        """One turn of the loop; what is asked for meanwhile comes in the next one."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class StubActor:
    def __init__(self, act: Callable[[], Any] = lambda: None, end_ns: int = 0) -> None:
        self.act = act
        self.end_ns = end_ns

    def fire(self, frame: Any) -> int:
        self.act()
        return self.end_ns


class StubFrame:
    def __init__(self) -> None:
        self.failures: list[tuple[Any, BaseException]] = []

    def fail(self, actor: Any, error: BaseException) -> None:
        self.failures.append((actor, error))


@pytest.fixture
def loop() -> StubLoop:
    return StubLoop()


@pytest.fixture
def dispatcher(loop: StubLoop) -> Dispatcher:
    return Dispatcher(loop)  # type: ignore[arg-type]


def test_nothing_ready_nothing_scheduled(dispatcher: Dispatcher, loop: StubLoop) -> None:
    dispatcher.wake()
    assert loop.calls == []


def test_one_slice_however_often_it_is_woken(dispatcher: Dispatcher, loop: StubLoop) -> None:
    order: list[int] = []
    for i in range(5):
        dispatcher.ready.append((StubActor(lambda i=i: order.append(i)), None))  # type: ignore[arg-type]
        dispatcher.wake()
    assert len(loop.calls) == 1
    assert order == []  # not before the loop's turn
    loop.turn()
    assert order == [0, 1, 2, 3, 4]
    assert loop.calls == []


def test_actors_made_ready_in_a_slice_are_fired_in_it(dispatcher: Dispatcher, loop: StubLoop) -> None:
    order: list[str] = []

    def first() -> None:
        order.append("first")
        dispatcher.ready.append((StubActor(lambda: order.append("third")), None))  # type: ignore[arg-type]
        dispatcher.wake()

    dispatcher.ready.append((StubActor(first), None))  # type: ignore[arg-type]
    dispatcher.ready.append((StubActor(lambda: order.append("second")), None))  # type: ignore[arg-type]
    dispatcher.wake()
    loop.turn()
    assert order == ["first", "second", "third"]
    assert loop.calls == []


def test_a_slice_ends_with_the_actor_that_goes_past_it(dispatcher: Dispatcher, loop: StubLoop) -> None:
    order: list[int] = []
    for i, end_ns in enumerate([0, FAR_NS, 0, FAR_NS, 0]):
        dispatcher.ready.append((StubActor(lambda i=i: order.append(i), end_ns), None))  # type: ignore[arg-type]
    dispatcher.wake()
    loop.turn()
    assert order == [0, 1]
    loop.turn()
    assert order == [0, 1, 2, 3]
    loop.turn()
    assert order == [0, 1, 2, 3, 4]
    assert loop.calls == []


def test_another_order(dispatcher: Dispatcher, loop: StubLoop) -> None:
    order: list[int] = []
    dispatcher.take = dispatcher.ready.pop
    for i in range(3):
        dispatcher.ready.append((StubActor(lambda i=i: order.append(i)), None))  # type: ignore[arg-type]
    dispatcher.wake()
    loop.turn()
    assert order == [2, 1, 0]


def test_what_goes_wrong_fails_its_frame_and_stops_nobody_else(dispatcher: Dispatcher, loop: StubLoop) -> None:
    order: list[str] = []
    frame = StubFrame()
    broken = StubActor(lambda: 1 / 0)
    dispatcher.ready.append((broken, frame))  # type: ignore[arg-type]
    dispatcher.ready.append((StubActor(lambda: order.append("other")), None))  # type: ignore[arg-type]
    dispatcher.wake()
    loop.turn()
    loop.turn()
    assert order == ["other"]
    ((actor, error),) = frame.failures
    assert actor is broken
    assert isinstance(error, ZeroDivisionError)
    assert loop.calls == []


async def test_the_application_gets_its_turn_between_slices() -> None:
    dispatcher = Dispatcher(asyncio.get_running_loop(), slice_ns=0)
    fired = 0
    stop = asyncio.Event()

    def again() -> None:
        nonlocal fired
        fired += 1
        if not stop.is_set():
            dispatcher.ready.append((actor, None))  # type: ignore[arg-type]

    actor = StubActor(again, FAR_NS)
    dispatcher.ready.append((actor, None))  # type: ignore[arg-type]
    dispatcher.wake()
    for _ in range(20):
        before = fired
        await asyncio.sleep(0)
        assert fired <= before + 2  # one slice at a time, and one actor in each
    stop.set()
    assert 1 <= fired <= 40
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not dispatcher.ready


class TestNow:
    """Slices that a task runs for itself."""

    def test_what_is_ready_is_fired_at_once(self, dispatcher: Dispatcher, loop: StubLoop) -> None:
        fired: list[str] = []
        dispatcher.ready.append((StubActor(lambda: fired.append("a")), StubFrame()))
        dispatcher.run_now()
        assert fired == ["a"]

    def test_the_loop_has_its_turn_when_their_time_is_over(self, dispatcher: Dispatcher, loop: StubLoop) -> None:
        fired: list[str] = []

        def fire(name: str, end_ns: int) -> None:
            dispatcher.ready.append((StubActor(lambda: fired.append(name), end_ns), StubFrame()))
            dispatcher.run_now()

        dispatcher.slice_ns = 0
        fire("a", FAR_NS)
        fire("b", 0)
        assert fired == ["a"]
        loop.turn()
        assert fired == ["a", "b"]
        dispatcher.slice_ns = FAR_NS
        fire("c", 0)
        assert fired == ["a", "b", "c"]

    def test_not_within_another_slice(self, dispatcher: Dispatcher, loop: StubLoop) -> None:
        fired: list[str] = []

        def start() -> None:
            dispatcher.ready.append((StubActor(lambda: fired.append("inner")), StubFrame()))
            dispatcher.run_now()
            fired.append("outer")

        dispatcher.ready.append((StubActor(start), StubFrame()))
        dispatcher.run_now()
        assert fired == ["outer", "inner"]
