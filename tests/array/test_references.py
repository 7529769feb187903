"""Detection of values and records that are held, by whatever: see `tests/devices/test_references.py`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow.array as xp
from actorflow.array.jobs import Steps
from actorflow.array.sessions import collect
from tests.support.holders import CALLS, HOLDS, LOOKS, Call, Hold, Place, check_hold, check_holds

#: Large enough to be written over.
SHAPE = (1 << 18,)
DTYPE = np.dtype(np.float32)


class Read:
    """A value that the operation which reads it may write over."""

    def __init__(self) -> None:
        x = xp.ones(SHAPE, dtype=xp.float32)
        self.node: Any = (xp.exp(x) + 1.0)._node

    def make(self) -> Any:
        value = np.empty(SHAPE, DTYPE)
        self.node.inputs[0].value = value
        return value

    def is_free(self) -> bool:
        return Steps(self.node.evaluator, [])._free_input(self.node, [self.node.inputs[0].value, None]) is not None


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


class WrittenOver(Recorded):
    """A record whose value the one that reads it may write over."""

    def is_free(self) -> bool:
        node: Any = self.reader._node
        node.inputs[0].value = np.empty(SHAPE)
        try:
            return Steps(node.evaluator, [])._free_input(node, [node.inputs[0].value, None]) is not None
        finally:
            node.inputs[0].value = None


PLACES: list[Callable[[], Place]] = [Read]
RECORDS: list[Callable[[], Place]] = [Recorded, Repeated, WrittenOver]
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
