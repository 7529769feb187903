"""Turns at variables: whatever the interleaving, they pass in order, once, and frames read what they should."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.actors.blob import Turn, VariableActor, VariableUse
from actorflow.devices import CPU


class Line:
    """Turns in a row, and when each passed."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.passed: list[int] = []

    def enter(self) -> Turn:
        turn = Turn(self.turns[-1] if self.turns else None)
        number = len(self.turns)
        turn.when_passed(lambda: self.passed.append(number))
        self.turns.append(turn)
        return turn


@given(st.lists(st.integers(-1, 15), max_size=60))
def test_turns_pass_in_order_exactly_once(steps: list[int]) -> None:
    """A step of -1 enters, any other one leaves that turn, again perhaps."""
    line = Line()
    left: set[int] = set()
    for step in steps:
        if step < 0:
            line.enter()
        elif step < len(line.turns):
            line.turns[step].leave()
            left.add(step)
        expected = next((i for i in range(len(line.turns)) if i not in left), len(line.turns))
        assert line.passed == list(range(expected))
        assert [turn.passed for turn in line.turns] == [i < expected for i in range(len(line.turns))]
    for turn in reversed(line.turns):
        turn.leave()
    assert line.passed == list(range(len(line.turns)))


def test_a_turn_left_by_a_waiter_passes_in_the_same_go() -> None:
    """The waiter's frame may end at once, and leave its own turn while the one before is passing."""
    line = Line()
    first, second, third = line.enter(), line.enter(), line.enter()
    first.when_passed(second.leave)
    first.when_passed(third.leave)
    first.leave()
    assert line.passed == [0, 1, 2]


def test_a_turn_entered_by_a_waiter() -> None:
    line = Line()
    first = line.enter()
    first.when_passed(lambda: line.enter().leave())
    first.leave()
    assert line.passed == [0, 1]


def test_a_long_line_passes_without_recursion() -> None:
    line = Line()
    for _ in range(20_000):
        line.enter()
    for turn in reversed(line.turns):
        turn.leave()
    assert line.passed == list(range(20_000))


def test_an_old_turn_does_not_keep_later_ones() -> None:
    class Watched(Turn):
        __slots__ = ("__weakref__",)

    first = Watched(None)
    second = Watched(first)
    third = Watched(second)
    first.leave()
    second.leave()
    gone = weakref.ref(third)
    third.leave()
    del second, third
    gc.collect()
    assert first.passed
    assert gone() is None


class StubFrame:
    """Stand-in for a frame, with what variables use of it."""

    def __init__(self) -> None:
        self.halted = False
        self.turns: dict[Any, Turn] = {}
        self.values: list[Any] = [None]
        self.opened = 0

    def close_end(self) -> None:
        self.opened += 1

    def wake(self) -> None:
        pass

    def announce(self, followers: Any, fence: Any) -> None:
        pass

    def guarded(self, step: Any, *arguments: Any) -> None:
        step(*arguments)

    def cancel(self) -> None:
        self.halted = True
        for turn in self.turns.values():
            turn.leave()


class Scene:
    """One variable, frames that start, commit, end and are cancelled, and what each must read."""

    def __init__(self) -> None:
        self.variable = af.Graph("g").variable("w", (), "int64", init=-1)
        self.actor = VariableActor(self.variable, CPU(af.Place()))
        self.uses = {updates: VariableUse(self.actor, 0, (), updates) for updates in (False, True)}
        self.frames: list[tuple[StubFrame, bool]] = []
        self.open: set[int] = set()
        self.committed: set[int] = set()

    def start(self, updates: bool) -> None:
        frame = StubFrame()
        self.open.add(len(self.frames))
        self.frames.append((frame, updates))
        self.uses[updates].enter(frame)  # type: ignore[arg-type]

    def commit(self, index: int) -> None:
        """Update, if the frame has read, may update, and has not yet; then or else end, if it has read."""
        frame, updates = self.frames[index]
        if index not in self.open or not frame.opened:
            return
        if updates and index not in self.committed:
            self.committed.add(index)
            self.actor.commit(frame, np.array(index), None)  # type: ignore[arg-type]
        else:
            self.end(index)

    def cancel(self, index: int) -> None:
        if index in self.open:
            self.frames[index][0].cancel()
            self.end(index)

    def end(self, index: int) -> None:
        frame, _ = self.frames[index]
        for turn in frame.turns.values():
            turn.leave()
        self.open.discard(index)

    def check(self) -> None:
        for index, (frame, _) in enumerate(self.frames):
            before = [i for i in range(index) if self.frames[i][1]]
            waits = any(i in self.open and i not in self.committed for i in before)
            if frame.opened:
                assert frame.opened == 1
                assert not waits or frame.halted
                assert frame.values[0] == max((i for i in before if i in self.committed), default=-1)
            else:
                assert waits or frame.halted


steps = st.one_of(
    st.tuples(st.just("start"), st.booleans()),
    st.tuples(st.sampled_from(["commit", "cancel"]), st.integers(0, 11)),
)


@given(st.lists(steps, max_size=80))
def test_frames_read_what_the_frames_before_them_wrote(steps: list[tuple[str, Any]]) -> None:
    scene = Scene()
    actions: dict[str, Callable[[Any], None]] = {"start": scene.start, "commit": scene.commit, "cancel": scene.cancel}
    for name, argument in steps:
        if name == "start" or argument < len(scene.frames):
            actions[name](argument)
            scene.check()
    while scene.open:  # all can end: nothing is stuck
        for index in sorted(scene.open):
            scene.commit(index)
        scene.check()
    assert all(frame.opened == 1 or frame.halted for frame, _ in scene.frames)
    assert scene.variable.value == max(scene.committed, default=-1)
    assert not any(isinstance(kept, StubFrame) for kept in gc.get_referents(scene.actor))


def test_a_frame_that_only_updates_gets_no_value() -> None:
    scene = Scene()
    gate = VariableUse(scene.actor, None, (), updates=True)
    frame = StubFrame()
    gate.enter(frame)  # type: ignore[arg-type]
    assert frame.opened == 1
    assert frame.values == [None]


class TestMemory:
    def test_assigned_and_committed_values_are_counted_once(self) -> None:
        device = CPU(af.Place())
        pool = device.memory
        variable = af.Graph("g").variable("w", (8,), "float64", init=1)
        actor = VariableActor(variable, device)
        for _ in range(3):
            actor.read()
        assert (pool.allocations, pool.held_bytes) == (1, 64)
        variable.value = np.zeros(8)
        actor.read()
        assert (pool.allocations, pool.held_bytes) == (2, 64)

    @pytest.mark.parametrize("is_held", [False, True])
    def test_an_old_value_goes_back_to_the_pool_unless_somebody_holds_it(self, is_held: bool) -> None:
        device = CPU(af.Place())
        pool = device.memory
        variable = af.Graph("g").variable("w", (8,), "float64", init=1)
        actor = VariableActor(variable, device)
        bucket = pool.bucket(variable.spec)
        frame = StubFrame()
        VariableUse(actor, None, (), updates=True).enter(frame)  # type: ignore[arg-type]
        held = actor.read()
        if not is_held:
            held = None
        actor.commit(frame, bucket.take(), bucket)  # type: ignore[arg-type]
        assert bucket.free_bytes == (0 if is_held else 64)
        assert held is None or held.tolist() == [1.0] * 8
