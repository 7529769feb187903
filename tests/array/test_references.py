"""Detection of values and records that are held, by whatever: see `tests/devices/test_references.py`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
import actorflow.array as xp
from actorflow.array.engine.chains import ChainUnit
from actorflow.array.engine.memory import Memory
from actorflow.array.engine.planning import collect
from actorflow.array.engine.sequences import Sequence
from tests.support.holders import CALLS, HOLDS, LOOKS, Call, Hold, Place, check_hold, check_holds

#: Just as large as a buffer that is used again.
SHAPE = (1 << 18,)
DTYPE = np.dtype(np.float32)


class Ended:
    """A value whose record has ended."""

    def __init__(self) -> None:
        self.memory = Memory(None)

    def make(self) -> Any:
        value = np.empty(SHAPE, DTYPE)
        self.memory.reclaim(value)
        return value

    def is_free(self) -> bool:
        self.memory.sort_out()
        return bool(self.memory.pool.bucket(af.TensorSpec(SHAPE, DTYPE)).free_bytes)


class Slot:
    """A value that the next operation of a sequence may write over."""

    steps: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.unit: Any = SimpleNamespace(_steps=self.steps, _values=[None], _foreign=set(), evaluator=None)
        self.unit._is_free = lambda *args: Sequence._is_free(self.unit, *args)

    def make(self) -> Any:
        self.unit._values[0] = value = np.empty(SHAPE, DTYPE)
        return value

    def is_free(self) -> bool:
        return Sequence._reused(self.unit, 1, [0], SHAPE, DTYPE) is not None


class WrittenSlot(Slot):
    """As one that a step before has written into a buffer."""

    steps = ((None, [], [], (), SHAPE, DTYPE, False, True, []),)


class ViewedSlot(Slot):
    """A value that a view of a part of it, which is wanted, would keep."""

    def __init__(self) -> None:
        super().__init__()
        self.unit.evaluator = SimpleNamespace(memory=SimpleNamespace(is_limited=False))

    def is_free(self) -> bool:
        return Sequence._keeps_too_much(self.unit, self.unit._values[0][: SHAPE[0] // 4])


class ChainInput(Slot):
    """A value that the result of a chain may be written into."""

    def is_free(self) -> bool:
        self.unit._steps, self.unit._produced = [SimpleNamespace(arguments=[0])], {0: None}
        self.unit._may_reuse = lambda *_: True
        return bool(ChainUnit._reusable(self.unit))


class Recorded:
    """A record that another one reads: whether its value is for that one alone."""

    def make(self) -> Any:
        x = xp.exp(xp.ones(SHAPE))
        self.reader = x + 1
        return x

    def is_free(self) -> bool:
        node = self.reader._node
        return not any(shared in node.inputs[:1] for shared in collect([node], node.evaluator).shared)


class Repeated(Recorded):
    """A record that another one reads twice."""

    def make(self) -> Any:
        x = xp.exp(xp.ones(SHAPE))
        self.reader = x * x
        return x


PLACES: list[Callable[[], Place]] = [Ended, Slot, WrittenSlot, ViewedSlot, ChainInput]
RECORDS: list[Callable[[], Place]] = [Recorded, Repeated]
places = pytest.mark.parametrize("place", PLACES + RECORDS)
pytestmark = pytest.mark.usefixtures("lazy")


def holds_of(place: Callable[[], Place]) -> list[Hold]:
    return HOLDS if place in RECORDS else HOLDS + LOOKS


@places
def test_what_nobody_holds_is_free(place: Callable[[], Place]) -> None:
    subject = place()
    subject.make()
    assert subject.is_free()


@pytest.mark.together(("place", "hold"), [(place, hold) for place in PLACES + RECORDS for hold in holds_of(place)])
def test_what_somebody_holds_is_not_free_until_it_is_let_go(place: Callable[[], Place], hold: Hold) -> None:
    check_hold(place, hold)


@places
@pytest.mark.together("call", CALLS)
def test_what_a_caller_holds_is_not_free(place: Callable[[], Place], call: Call) -> None:
    subject = place()
    assert not call(subject.make, subject.is_free)


@places
@given(data=st.data())
def test_any_number_of_holders(place: Callable[[], Place], data: st.DataObject) -> None:
    check_holds(place(), data.draw(st.lists(st.tuples(st.sampled_from(holds_of(place)), st.booleans()), max_size=4)))
