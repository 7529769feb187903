"""Ops at run time that are computed by one call, whose times and errors are told of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actorflow.actors.frame import Frame
from actorflow.actors.op import KernelActor, OpActor
from actorflow.actors.stream import StreamKernelActor
from actorflow.devices.base import Lane
from actorflow.errors import DeviceError
from actorflow.ops.fused import Followed, Fused
from actorflow.ops.step import StepError
from actorflow.ops.together import Together
from actorflow.trace.counters import NodeState
from actorflow.trace.ring import Trace

_CANCELLED = int(NodeState.CANCELLED)


class FusedActor(KernelActor):
    """Ops that are computed in one pass."""

    operation: Fused | Followed | Together

    def __init__(self, *arguments: Any, parts: tuple[OpActor, ...], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.parts = parts

    def move_to(self, lane: Lane, trace: Trace) -> None:
        super().move_to(lane, trace)
        for part in self.parts:
            part.move_to(lane, trace)

    def times(self) -> Sequence[int]:
        found = [0] * len(self.parts)
        for step, spent_ns in zip(self.operation.steps, self.operation.times(), strict=True):
            found[step.site] += spent_ns
        return found if any(found) else super().times()

    def replay(self, inputs: list[Any], number: int) -> Any:
        try:
            return super().replay(inputs, number)
        except Exception as error:
            _, own = self._own(error)
            if own is error:
                raise
            raise own from own.__cause__

    def failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        part, error = self._own(error)
        part._account_failed(frame, error, elapsed_ns, end_ns, key - self.node_id + part.node_id)
        if frame.monitor is not None:
            self.show(frame, _CANCELLED)
            part.show(frame, int(NodeState.FAILED))
        frame.op_failed(self, error, part.node)

    def _own(self, error: BaseException) -> tuple[OpActor, BaseException]:
        """The part that has failed, and its error as if it had been computed by itself."""
        # A cause further back may be a step of another op, whose result this one has not got.
        failed = next((each for each in (error, error.__cause__) if isinstance(each, StepError)), None)
        if failed is None:
            return self.parts[-1], error
        part = self.parts[self.operation.steps[failed.step].site]
        cause = failed.__cause__ or failed
        if failed is error:
            return part, cause
        where = f"lane {self.lane.name!r} of {part.node.place}"
        said = DeviceError(f"op {part.what!r} on {where} failed with {type(cause).__name__}: {cause}")
        said.__cause__ = cause  # devices name the work that has failed: all of the parts
        return part, said


class StreamFusedActor(FusedActor, StreamKernelActor):
    """Ops that are computed in one pass on a stream."""
