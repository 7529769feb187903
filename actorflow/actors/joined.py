"""Ops at run time that are computed, or launched, as one: what is told of such a call is told of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Self

from actorflow.actors.blob import BlobActor
from actorflow.actors.frame import Frame
from actorflow.actors.op import KernelActor, OpActor
from actorflow.actors.stream import StreamKernelActor
from actorflow.devices.base import Lane
from actorflow.errors import DeviceError
from actorflow.ops.fused import Followed, Fused, StepError
from actorflow.ops.together import Together
from actorflow.trace.counters import NodeState
from actorflow.trace.ring import CALL_BYTES, pack_call

_CANCELLED, _DONE = int(NodeState.CANCELLED), int(NodeState.DONE)


class Joined(OpActor):
    """An op that stands for several ones.

    Attributes:
        parts: The ops, in order; they are never fired.
    """

    # No slots: a class cannot have those of two bases.
    _accounted = 0
    _ends: Sequence[float] = ()  # of the parts in a call, as parts of its time

    @property
    def what(self) -> str:
        return " + ".join([part.what for part in self.parts])

    def progress(self, frame: Frame) -> Iterator[tuple[int, NodeState]]:
        for part in self.parts:
            yield from part.progress(frame)

    def shares(self) -> Sequence[int]:
        """Numbers that are to each other as the times of the parts in a call."""
        return (1,) * len(self.parts)

    def ends_within(self) -> list[float]:
        """When each part of a call ends, as a part of its time."""
        shares = [*accumulate(self.shares())]
        return [share / shares[-1] for share in shares]

    def _account(self, frame: Frame, elapsed_ns: int, end_ns: int, key: int) -> None:
        self._note(elapsed_ns)
        begun_ns = 0
        for part, end in zip(self.parts, self._ends, strict=True):
            ended_ns = int(elapsed_ns * end)
            part._account(frame, ended_ns - begun_ns, end_ns - elapsed_ns + ended_ns, self._key_of(part, key))
            begun_ns = ended_ns

    def _note(self, elapsed_ns: int) -> None:
        """Take note of the time of a call."""
        self.cost_ns, self.last_ns = min(elapsed_ns, self.last_ns), elapsed_ns
        self._accounted += 1
        if self._accounted & (self._accounted - 1) == 0:  # seldom: what was measured changes little
            self._ends = self.ends_within()

    def _key_of(self, part: OpActor, key: int) -> int:
        """The key in the trace of a part of a call: on the loop, if the call has been there, or on the lane."""
        return part.node_id if key == self.node_id else part.key

    def _show(self, frame: Frame, state: int) -> None:
        for part in self.parts:
            part._show(frame, state)


class FusedActor(Joined, KernelActor):
    """Ops that are computed in one pass."""

    operation: Fused | Followed | Together

    def __init__(self, *arguments: Any, parts: Sequence[OpActor], steps: Sequence[int], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.parts = parts
        self.steps = steps  # for each of them, its last step in the operation

    def twin(
        self, followers: tuple[OpActor, ...], freed: tuple[BlobActor, ...], lane: Lane, key_on: Callable[[int], int]
    ) -> Self:
        twin = super().twin(followers, freed, lane, key_on)
        if lane is not self.lane:
            twin.parts = [part.twin(part.followers, part.freed, lane, key_on) for part in self.parts]
        return twin

    def shares(self) -> Sequence[int]:
        spent_ns = self.operation.times()
        begins = [0, *[step + 1 for step in self.steps]]
        found = [sum(spent_ns[begin : step + 1]) for begin, step in zip(begins, self.steps, strict=False)]
        return found if any(found) else super().shares()

    def _account(self, frame: Frame, elapsed_ns: int, end_ns: int, key: int) -> None:
        # As above, with what each part would do spelt out: its calls would cost as much again.
        self._note(elapsed_ns)
        trace, number, begin_ns, begun_ns = frame.trace, frame.number, end_ns - elapsed_ns, 0
        buffer, mask, total, is_inline = trace.buffer, trace.mask, trace.total, key == self.node_id
        for part, end in zip(self.parts, self._ends, strict=True):
            ended_ns = int(elapsed_ns * end)
            profile, own_ns = part.profile, ended_ns - begun_ns
            profile.calls += 1
            profile.total_ns += own_ns
            profile.last_ns = own_ns
            own_key = part.node_id if is_inline else part.key
            pack_call(buffer, (total & mask) * CALL_BYTES, begin_ns + ended_ns, own_ns, own_key, number)
            total += 1
            begun_ns = ended_ns
        trace.total = total
        if frame.monitor is not None:
            self._show(frame, _DONE)

    def replay(self, inputs: list[Any], number: int) -> Any:
        try:
            return super().replay(inputs, number)
        except Exception as error:
            _, own = self._own(error)
            if own is error:
                raise
            raise own from own.__cause__

    def _failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        part, error = self._own(error)
        part._account_failed(frame, error, elapsed_ns, end_ns, self._key_of(part, key))
        if frame.monitor is not None:
            self._show(frame, _CANCELLED)
            part._show(frame, int(NodeState.FAILED))
        frame.op_failed(self, error, part.node)

    def _own(self, error: BaseException) -> tuple[OpActor, BaseException]:
        """The part that has failed, and its error as if it had been computed by itself."""
        # What lies further behind may be a step of another op, whose result this one has not got.
        failed = next((each for each in (error, error.__cause__) if isinstance(each, StepError)), None)
        if failed is None:
            return self.parts[-1], error
        part = next(part for part, last in zip(self.parts, self.steps, strict=True) if last >= failed.step)
        cause = failed.__cause__ or failed
        if failed is error:
            return part, cause
        where = f"lane {self.lane.name!r} of {part.node.place}"
        said = DeviceError(f"op {part.what!r} on {where} failed with {type(cause).__name__}: {cause}")
        said.__cause__ = cause  # devices name the work that has failed: all of the parts
        return part, said


class StreamFusedActor(FusedActor, StreamKernelActor):
    """Ops that are computed in one pass on a stream."""


def parts_of(actor: OpActor) -> Iterator[OpActor]:
    """The ops that an actor stands for."""
    for part in actor.parts:
        yield from parts_of(part)
    if not actor.parts:
        yield actor
