"""Frames that begin on the items of an iterator, on both forms of the core."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.core.plain import BURST, FOREVER_NS, QUICK_NS
from actorflow.devices.memory import BufferPool
from tests.core.test_forms import Program, rows

ITEM = np.ones(3)


class Emitting:
    """An op that doubles slot 0 into slot 1, computed for each item."""

    def __init__(
        self, form: Any, given: Iterable[Any], in_flight: int = 1, inline_ns: int = FOREVER_NS, **more: Any
    ) -> None:
        def compute(op: Any, frame: Any) -> None:
            frame.values[1] = 2 * frame.values[0]

        program = self.program = Program(form, compute, "a")
        start = form.Start(
            [1], [1, 1], 2, program.ready, lambda: None, None, None, program.trace, first=(program.ops[0],)
        )
        self.owner = program.Frame(start, 7, [], contextvars.copy_context())
        self.told: list[str] = []
        self.taken: list[Any] = []
        test = self

        class Emitter(form.Emitter):  # type: ignore[misc]
            def make(self) -> Any:
                frame = program.Frame(start, 0, [], contextvars.copy_context())
                frame.cycle = self
                test.told.append("make")
                return frame

            def ask(self) -> None:
                test.told.append("ask")

            def enter(self, item: Any, values: list[Any]) -> None:
                test.told.append(f"enter {item}")
                values[0] = np.full(3, item)

            def failed(self, error: BaseException) -> None:
                test.told.append(repr(error))
                self.is_stopped = True
                self.frames.clear()

            def conclude(self) -> None:
                self.done = True
                test.told.append("conclude")

        spec = more.pop("into", 0), ITEM.dtype, ITEM.shape
        self.emitter = Emitter(
            self.owner, in_flight, inline_ns, *spec, more.pop("guards", False), more.pop("numbered", None)
        )
        self.emitter.pull_ns = 0
        self.emitter.begin_with = [None, None]
        self.emitter.context = contextvars.copy_context()
        self.emitter.iterator = iter(given)
        self.emitter.joins = [(self.taken.append, 1)]
        for name, value in more.items():
            setattr(self.emitter, name, value)

    def run(self) -> None:
        self.emitter.advance()
        while self.program.ready:
            self.program.ready.run(0)

    @property
    def sums(self) -> list[float]:
        return [float(each.sum()) for each in self.taken]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_items_are_computed_and_joined_in_their_order(form: Any, in_flight: int) -> None:
    emitting = Emitting(form, [ITEM * i for i in range(5)], in_flight)
    emitting.run()
    assert emitting.sums == [0, 6, 12, 18, 24]
    assert emitting.told == ["make"] * in_flight + ["conclude"]
    assert (emitting.emitter.steps, len(emitting.emitter.idle)) == (5, in_flight)
    assert rows(emitting.program.trace) == [(0, 7)] * 5
    assert emitting.emitter.pull_ns < FOREVER_NS


def test_what_ends_early_is_taken_in_its_turn(form: Any) -> None:
    emitting = Emitting(form, [ITEM, ITEM * 2], 2)
    emitting.emitter.advance()
    first, second = emitting.emitter.frames
    assert (first.item, second.item) == (0, 1)
    emitting.program.ready.rotate(-1)
    emitting.program.ready.run(0)
    assert (second.has_ended, emitting.taken) == (True, [])
    emitting.program.ready.run(0)
    assert emitting.sums == [6, 12]


def test_arrays_are_guarded_and_others_are_looked_at(form: Any) -> None:
    emitting = Emitting(form, [ITEM, 3, ITEM.astype("f4")], 3, guards=True)
    emitting.emitter.advance()
    given = [frame.values[0] for frame in emitting.emitter.frames[:2]]
    assert [(each.base is ITEM, each.flags.writeable) for each in given] == [(True, False), (False, True)]
    assert [told for told in emitting.told if told.startswith("enter")] == ["enter 3", "enter [1. 1. 1.]"]
    unread = Emitting(form, [ITEM], into=-1)
    unread.emitter.begin_with[0] = np.zeros(3)
    unread.run()
    assert unread.sums == [0]


def test_results_wait_for_room(form: Any) -> None:
    arrived: list[int] = []

    class Items(form.Items):  # type: ignore[misc]
        def arrived(self) -> None:
            arrived.append(len(self.results))

    class Result(form.Fetched):  # type: ignore[misc]
        pass

    items, taken = Items(), (form.Blob(1, None),)
    items.least = items.room = 17  # more than come in a burst
    fetcher = form.Fetcher(Result, taken, (), None, ({"blob": 0}, {"y": 0}, (("n", 3),)))
    emitting = Emitting(form, [ITEM] * 20, 18, items=items, fetcher=fetcher, joins=[])
    emitting.run()
    assert (len(items.results), emitting.emitter.steps, arrived) == (17, 17, [0])
    assert items.resting is emitting.emitter
    items.results.clear()
    emitting.run()
    assert (len(items.results), arrived, emitting.told[-1]) == (3, [0, 0], "conclude")
    result = items.results[-1]
    assert type(result) is Result
    assert [each.tolist() for each in result._values] == [[2, 2, 2]]
    assert (result._blobs, result._by_name, result.frames) == ({"blob": 0}, {"y": 0}, (7,))
    assert (result._lengths, result.errors) == ((("n", 3),), {})


def test_quick_results_come_in_bursts(form: Any) -> None:
    now_ns = 0
    form.set_clock(lambda: now_ns)
    try:
        items = type("Items", (form.Items,), {"arrived": lambda items: None})()
        rooms = []
        for number, now_ns in enumerate([QUICK_NS, QUICK_NS + 9, 2 * QUICK_NS + 9]):  # noqa: B007
            items.put("result", number)
            items.results.clear()
            rooms.append(items.room)
        now_ns += 2 * QUICK_NS - 1
        items.put("result", 4)
        items.put("another", 5)
        assert (rooms, items.room, [*items.results]) == ([1, BURST, 1], BURST, ["result", "another"])
        items.results.clear()
        items.least = BURST + 1
        items.put("result", 6)
        assert items.room == BURST + 1
    finally:
        form.set_clock(None)


def test_what_takes_long_is_asked_for_elsewhere(form: Any) -> None:
    emitting = Emitting(form, [ITEM] * 2, 2, inline_ns=0)
    emitting.emitter.pull_ns = 1
    emitting.run()
    assert emitting.told == ["ask"]
    for _ in range(2):
        emitting.emitter.pulled(5)
        emitting.emitter.give(ITEM)
    assert (emitting.emitter.pull_ns, len(emitting.emitter.frames)) == (5, 2)
    emitting.emitter.is_exhausted = True
    emitting.run()
    assert (emitting.sums, emitting.told[-1]) == ([6, 6], "conclude")


def test_failures_are_told_and_nothing_follows(form: Any) -> None:
    def failing() -> Any:
        yield ITEM
        raise LookupError("planted")

    emitting = Emitting(form, failing())
    emitting.run()
    assert emitting.told == ["make", "LookupError('planted')", "conclude"]
    stack = Full(form, 1)
    emitting = Emitting(form, [ITEM] * 3, joins=[(stack, 1)])
    emitting.run()
    assert emitting.told == ["make", "OverflowError(1)", "conclude"]


def test_nothing_begins_when_the_owner_has_stopped(form: Any) -> None:
    emitting = Emitting(form, [ITEM] * 3)
    emitting.emitter.advance()
    emitting.owner.halted = True
    emitting.program.ready.run(0)
    assert (emitting.emitter.steps, emitting.program.finished, emitting.taken) == (1, [7], [])


def test_frames_are_numbered_and_buffers_go_back(form: Any) -> None:
    bucket = BufferPool().bucket(af.TensorSpec.of((3,), "float64"))
    emitting = Emitting(
        form, [ITEM] * 3, numbered=lambda steps: 100 + steps, recycled=(form.Blob(1, bucket),), joins=[]
    )
    emitting.run()
    assert rows(emitting.program.trace) == [(0, 100), (0, 101), (0, 102)]
    assert len(bucket.free) == 3


def test_others_have_their_turn_where_there_is_nothing_to_compute(form: Any) -> None:
    emitting = Emitting(form, (ITEM for _ in range(100_000)), joins=[])
    start = form.Start([], [1, 1], 1, emitting.program.ready, lambda: None, None, None, emitting.program.trace)
    emitting.emitter.idle = [emitting.program.Frame(start, 0, [], contextvars.copy_context())]
    emitting.emitter.advance()
    assert [*emitting.program.ready] == [(emitting.emitter, emitting.owner)]
    assert 0 < emitting.emitter.steps < 100_000
    emitting.run()
    assert (emitting.emitter.steps, emitting.told) == (100_000, ["conclude"])


def Full(form: Any, length: int) -> Any:  # noqa: N802  a class of each form
    """A stack that cannot grow."""

    class Stack(form.Stack):  # type: ignore[misc]
        def grow(self) -> None:
            raise OverflowError(self.count)

    return Stack(np.zeros((length, 3)))


def test_values_are_taken_out_of_a_frame(form: Any) -> None:
    bucket = BufferPool().bucket(af.TensorSpec.of((3,), "float64"))
    program = Program(form, lambda op, frame: None, "aa")
    frame, shown = program.frame(), np.arange(3.0)
    frame.values = [shown, np.zeros(3), None]
    blobs = form.Blob(1, bucket), form.Blob(0, None), form.Blob(0, bucket), form.Blob(2, None)
    handed: list[Any] = []
    found = form.Fetcher(form.Fetched, blobs, (0, 2), handed.append, ({}, {}, ())).values(frame)
    assert handed == [found]
    assert [None if each is None else each.tolist() for each in found] == [[0] * 3, [0, 1, 2], [0, 1, 2], None]
    assert (found[1] is shown, found[2] is shown, frame.values, len(bucket.free)) == (True, False, [], 1)


def test_places_that_are_not_there_are_refused(form: Any) -> None:
    for more in (
        {"into": 2},
        {"joins": [(print, 2)]},
        {"recycled": (form.Blob(5, BufferPool().bucket(af.TensorSpec.of((3,)))),)},
    ):
        emitting = Emitting(form, [ITEM], **more)
        emitting.run()
        assert "IndexError" in "".join(emitting.told)
