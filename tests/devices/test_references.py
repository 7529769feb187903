"""Detection of buffers that are held, by whatever: each place that may use one again asks by itself.

Reference counts depend on how an interpreter compiles the very expression that asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.actors.blob import BlobActor, VariableActor, ViewActor
from actorflow.actors.op import KernelActor
from actorflow.actors.segment import SegmentActor, _Arrays, _release
from actorflow.actors.stream import StreamViewActor
from actorflow.devices.memory import Bucket, BufferPool
from actorflow.interchange import read_only
from actorflow.runtime.program import _parted
from tests.support.holders import CALLS, HOLDS, LOOKS, Call, Hold, check_hold, check_holds

SPEC = af.TensorSpec.of((4, 8))
#: The flat view of a buffer.
FLAT = 32


class Place:
    """Somewhere that a buffer is in when its last reader has read it."""

    actor: type[BlobActor] = BlobActor

    def __init__(self) -> None:
        self.bucket: Bucket = BufferPool().bucket(SPEC)
        self.frame: Any = SimpleNamespace(values=[None, None], read=lambda slot: True, budget=None)

    def make(self) -> Any:
        self.frame.values[0] = buffer = self.bucket.take()
        return buffer

    def is_free(self) -> bool:
        self.actor(0, self.bucket).drop(self.frame)
        return bool(self.bucket.free_bytes)


class Viewed(Place):
    actor = ViewActor

    def make(self) -> Any:
        buffer = self.bucket.take()
        self.frame.values[0] = buffer.reshape(FLAT)
        return buffer


class OfAStream(Place):
    actor = StreamViewActor


class ViewedOfAStream(Viewed):
    actor = StreamViewActor


class InASegment(Place):
    """Read by an op that is launched with others: what they use is held until then, and counted."""

    def is_free(self) -> bool:
        arrays = _Arrays(SimpleNamespace(whereabouts=id), ())
        arrays.hold(self.frame.values[:1])
        _release([self.actor(0, self.bucket)], self.frame, arrays)
        return bool(self.bucket.free_bytes)


class ViewedInASegment(InASegment, Viewed):
    actor = StreamViewActor


class ForTheResult(Place):
    """Read by an op that may write over it."""

    def is_free(self) -> bool:
        given: list[Any] = []
        kernel = SimpleNamespace(returns=False, random=False, function=lambda _, ins, outs: given.extend([*ins, *outs]))
        actor: Any = KernelActor.__new__(KernelActor)
        actor.kernel, actor.reuses, actor.buckets, actor.operation = kernel, True, [self.bucket], None
        actor._run_kernel([*self.frame.values[:1]], 0)
        return given[0] is given[1]


class ForTheResultInASegment(Place):
    def __init__(self, uses: int) -> None:
        super().__init__()
        self.uses = uses

    def is_free(self) -> bool:
        arrays = _Arrays(SimpleNamespace(whereabouts=id), ())
        for _ in range(self.uses):
            arrays.hold(self.frame.values[:1])
        part: Any = SimpleNamespace(
            reuses=True,
            buckets=[self.bucket],
            read=lambda values: values[:1],
            outputs=[BlobActor(1, self.bucket)],
            early=(),
            unread=(),
        )
        _, inputs, outputs = SegmentActor._prepare(SimpleNamespace(), part, self.frame, arrays)
        return inputs == outputs


class OfAVariable(Place):
    """Its value, which a frame replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.variable = af.Graph("g").variable("w", SPEC.shape)
        self.actor = VariableActor(self.variable, None)
        self.user: Any = SimpleNamespace(turns={self.actor: SimpleNamespace(leave=lambda: None)})

    def make(self) -> Any:
        buffer = self.bucket.take()
        self.variable.commit(buffer)
        self.actor._counted = buffer
        return buffer

    def is_free(self) -> bool:
        self.actor.commit(self.user, np.empty(SPEC.shape, SPEC.dtype), self.bucket)
        return bool(self.bucket.free_bytes)


class Fetched(Place):
    """Among a frame's results: what nobody else has is handed out without a copy."""

    def is_free(self) -> bool:
        address = self.frame.values[0].ctypes.data
        return bool(_parted(self.frame.values, 0).ctypes.data == address)


class ViewFetched(Fetched, Viewed):
    """A view of a whole buffer, or of its columns, among them."""

    def make(self) -> Any:
        buffer = self.bucket.take()
        self.frame.values[0] = buffer.T
        return buffer


class ReadOnlyFetched(Fetched):
    def make(self) -> Any:
        buffer = self.bucket.take()
        self.frame.values[0] = read_only(buffer)
        return buffer


PLACES: dict[str, Callable[[], Place]] = {
    "slot": Place,
    "viewed slot": Viewed,
    "slot of a stream": OfAStream,
    "viewed slot of a stream": ViewedOfAStream,
    "segment": InASegment,
    "viewed in a segment": ViewedInASegment,
    "result": ForTheResult,
    "result in a segment": lambda: ForTheResultInASegment(0),
    "result of what is used in a segment": lambda: ForTheResultInASegment(1),
    "variable": OfAVariable,
    "fetched": Fetched,
    "fetched by a view": ViewFetched,
    "fetched by a read-only view": ReadOnlyFetched,
}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


@places
def test_what_nobody_holds_is_free(place: Callable[[], Place]) -> None:
    subject = place()
    subject.make()
    assert subject.is_free()


@places
@pytest.mark.together("hold", HOLDS + LOOKS)
def test_what_somebody_holds_is_not_free_until_it_is_let_go(place: Callable[[], Place], hold: Hold) -> None:
    check_hold(place, hold)


@places
@pytest.mark.together("call", CALLS)
def test_what_a_caller_holds_is_not_free(place: Callable[[], Place], call: Call) -> None:
    subject = place()
    assert not call(subject.make, subject.is_free)


@places
@given(holds=st.lists(st.tuples(st.sampled_from(HOLDS + LOOKS), st.booleans()), max_size=4))
def test_any_number_of_holders(place: Callable[[], Place], holds: list[tuple[Hold, bool]]) -> None:
    check_holds(place(), holds)
