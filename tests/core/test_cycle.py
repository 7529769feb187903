"""Frames that begin again and again, on both forms of the core."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices.memory import BufferPool
from tests.core.test_forms import Program, add_one, rows

SPEC = af.TensorSpec.of((64,))


class Repeated:
    """A frame with a cycle: one op that reads slots 0 and 1, and writes 2 and 3."""

    def __init__(self, form: Any, compute: Callable[[Any, Any], None], length: int, **more: Any) -> None:
        self.program = program = Program(form, compute, "a")
        self.woken = 0
        self.turnstile = form.Turnstile(1)
        ops, turnstiles = (program.ops[0],), (self.turnstile,)
        counts = [1], [1] * 4, 2
        start = form.Start(
            *counts, program.ready, self.wake, None, None, program.trace, first=ops, turnstiles=turnstiles
        )
        context = contextvars.copy_context()
        self.owner, self.frame = program.Frame(start, 0, [], context), program.Frame(start, 0, [], context)
        made = [form.Blob(slot, None) for slot in (2, 3)]
        self.cycle = form.Cycle(self.owner, [None] * 4, [1], [0], more.pop("made", made), length, **more)
        self.frame.cycle = self.cycle

    def wake(self) -> None:
        self.woken += 1

    def run(self, number: int = 0) -> int:
        assert self.cycle.begin(self.frame, number)
        slices = 0
        while self.program.ready:
            self.program.ready.run(0)
            slices += 1
        return slices


def double(op: Any, frame: Any) -> None:
    value = frame.values[0]
    frame.values[2:] = [2 * value, np.array(2 * value < 20)]


def test_what_it_makes_is_what_it_is_given_next(form: Any) -> None:
    repeated = Repeated(form, double, 5)
    assert repeated.run(7) == 5, "each call is a slice of its own here"
    assert (repeated.cycle.carried, repeated.cycle.steps, repeated.cycle.error) == ([32], 5, None)
    assert repeated.program.finished == [7]
    assert rows(repeated.program.trace) == [(0, 7)] * 5
    assert repeated.turnstile.expected == [repeated.frame] * 5, "each time in its turn"


def test_it_ends_when_it_says_so(form: Any) -> None:
    repeated = Repeated(form, double, -1, tests=True)
    repeated.run()
    assert (repeated.cycle.carried, repeated.cycle.steps) == ([32], 5)


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64", "O"])
def test_entries_are_given_and_taken(form: Any, is_backward: bool, dtype: str) -> None:
    given: list[Any] = []

    def compute(op: Any, frame: Any) -> None:
        entry = frame.values[1]
        given.append((entry.shape, entry.flags.writeable))
        frame.values[2:] = [frame.values[0] + entry.sum(), entry * frame.values[0]]

    entries = np.arange(12).reshape(4, 3).astype(dtype)
    taken, kept = np.zeros((4, 3), dtype), np.zeros((4,), dtype)
    repeated = Repeated(
        form, compute, 4, is_backward=is_backward, scanned=[(entries, 1)], taken=[(taken, 1)], kept=[(kept, 0)]
    )
    repeated.run()
    carried, expected = 1, np.zeros((4, 3))
    before = np.zeros(4)
    for i in range(4)[:: -1 if is_backward else 1]:
        expected[i], before[i] = entries[i] * carried, carried
        carried += entries[i].sum()
    assert repeated.cycle.carried == [carried]
    assert taken.tolist() == expected.tolist()
    assert kept.tolist() == before.tolist()
    assert given == [((3,), True)] * 4


def test_an_entry_without_axes_is_an_array(form: Any) -> None:
    entries = np.arange(3.0)
    seen: list[Any] = []

    def compute(op: Any, frame: Any) -> None:
        seen.append(frame.values[1])
        frame.values[2:] = [0, 0]

    Repeated(form, compute, 3, scanned=[(entries, 1)]).run()
    assert [(type(x), x.shape, float(x), x.base is entries) for x in seen] == [
        (np.ndarray, (), i, True) for i in range(3)
    ]


def test_arrays_are_guarded(form: Any) -> None:
    def compute(op: Any, frame: Any) -> None:
        assert not frame.values[0].flags.writeable
        frame.values[2:] = [np.ones(3), 0]

    repeated = Repeated(form, compute, 2, guards=True)
    repeated.cycle.carried[0] = np.zeros(3)
    repeated.run()
    assert repeated.cycle.steps == 2
    assert repeated.cycle.carried[0].flags.writeable, "only the view is not"


def test_buffers_go_back_when_they_have_been_read(form: Any) -> None:
    bucket = BufferPool().bucket(SPEC)

    def compute(op: Any, frame: Any) -> None:
        made = bucket.take()
        np.add(frame.values[0], 1, out=made)
        frame.values[2:] = [made, 0]

    repeated = Repeated(form, compute, 100, made=[form.Blob(2, bucket), form.Blob(3, None)])
    repeated.cycle.carried[0] = np.zeros(64, np.float32)
    repeated.run()
    assert repeated.cycle.carried[0].tolist() == [100] * 64
    assert bucket.pool.allocations == 2, "what it began with is another's"


def test_what_goes_wrong_in_between_ends_it(form: Any) -> None:
    repeated = Repeated(form, double, 5, taken=[(np.zeros(2), 0)])
    repeated.run()
    assert isinstance(repeated.cycle.error, IndexError)
    assert repeated.program.finished == [0]
    assert repeated.cycle.steps == 2


def test_it_stops_with_its_owner(form: Any) -> None:
    def compute(op: Any, frame: Any) -> None:
        double(op, frame)
        repeated.owner.halted = repeated.cycle.steps == 2

    repeated = Repeated(form, compute, 10)
    repeated.run()
    assert repeated.cycle.steps == 2, "what the last one has made is not taken"
    assert repeated.program.finished == [0]


def test_it_is_numbered(form: Any) -> None:
    repeated = Repeated(form, double, 3, numbered=lambda steps: 100 + steps)
    repeated.run(5)
    assert rows(repeated.program.trace) == [(0, 5), (0, 101), (0, 102)]


def test_others_have_their_turn_where_there_is_nothing_to_compute(form: Any) -> None:
    program = Program(form, add_one, "a")
    start = form.Start([], [1, 1], 1, program.ready, lambda: None, None, None, program.trace)
    owner, frame = (program.Frame(start, 0, [], contextvars.copy_context()) for _ in range(2))
    cycle = form.Cycle(owner, [None] * 2, [3], [0], [form.Blob(0, None)], 100_000)
    frame.cycle = cycle
    assert cycle.begin(frame, 0), "it goes on later"
    assert [*program.ready] == [(cycle, owner)]
    before = cycle.steps
    program.ready.run(0)
    assert cycle.steps > before
    while program.ready:
        program.ready.run(0)
    assert (cycle.steps, cycle.carried, program.finished) == (100_000, [3], [0])


def test_work_whose_end_is_not_seen_ends_the_usual_way(form: Any) -> None:
    def compute(op: Any, frame: Any) -> None:
        double(op, frame)
        frame.outstanding["a lane"] = None

    repeated = Repeated(form, compute, 10)
    repeated.run()
    assert (repeated.cycle.steps, repeated.program.finished) == (0, [0])


def test_places_that_are_not_there_are_refused() -> None:
    def made(slots: Iterable[int]) -> list[Any]:
        return [compiled.Blob(slot, None) for slot in slots]

    compiled: Any = pytest.importorskip("actorflow.core.compiled")
    program = Program(compiled, add_one, "a")
    start = compiled.Start([], [1, 1], 1, program.ready, lambda: None, None, None, program.trace)
    owner = program.Frame(start, 0, [], contextvars.copy_context())
    array = np.zeros(3)
    compiled.Cycle(owner, [None] * 2, [3], [-1], made([1]), 1, taken=[(array, 0)])
    for into, slots, more, error in [
        ([2], [1], {}, IndexError),
        ([0], [2], {}, IndexError),
        ([0], [-1], {}, IndexError),
        ([0], [1], {"taken": [(array, 1)]}, IndexError),
        ([0], [1], {"kept": [(array, 1)]}, IndexError),
        ([0], [1], {"scanned": [(array, -1)]}, IndexError),
        ([0], [], {}, ValueError),
        ([0], [1], {"tests": True}, ValueError),
        ([], [1], {}, ValueError),
    ]:
        with pytest.raises(error):
            compiled.Cycle(owner, [None] * 2, [3], into, made(slots), 1, **more)  # type: ignore[arg-type]
