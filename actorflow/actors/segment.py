"""Runs of ops at run time that a device captures and replays as one.

A segment fires once for all its ops: it waits for values from elsewhere, is one piece of work on its lane, and
announces with one fence the values for others. Buffers are taken and given back op by op, as always, but before
anything is launched. When all arrays of a call are where they were in an earlier one, the capture of that call is
replayed. That is soon the rule: copies of feeds take their buffers in turn, one per frame in flight
(`actorflow.actors.stream`), and a call takes the buffers that an earlier one with the same inputs had.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from sys import getrefcount
from typing import Any

from actorflow.actors.blob import BlobActor
from actorflow.actors.frame import Frame
from actorflow.actors.op import Wiring
from actorflow.actors.stream import StreamKernelActor, StreamViewActor, _OnStream
from actorflow.core import UNSHARED
from actorflow.devices.memory import IN_ONE_LIST, IN_TWO_LISTS, Bucket
from actorflow.devices.segment import Segment, SegmentState
from actorflow.devices.stream import StreamBucket, StreamDevice
from actorflow.errors import DeviceError, GraphError, listed
from actorflow.trace.counters import NodeState, SegmentProfile

#: Sets of arrays of which a segment keeps what was captured, and those that it knows to have seen once.
_MAX_KEYS, _MAX_SEEN = 16, 64
#: A capture costs as much as many launches. Where addresses come in hardly ever the same sets, captures would come and
#: go without end: there are a few, and then one more in so many calls.
_CAPTURES, _CALLS_PER_CAPTURE = 8, 64
_CANCELLED = int(NodeState.CANCELLED)


class _Arrays:
    """The arrays of one call. Each is held once, so that other references to it can be counted.

    Args:
        device: Where they are.
        known: Keys of earlier calls that are best repeated.
    """

    __slots__ = ("_alike", "_device", "_views", "_whereabouts", "held", "key")

    def __init__(self, device: StreamDevice, known: Iterable[tuple[Hashable, ...]]) -> None:
        self._device = device
        self._alike = [*known]
        self._whereabouts: dict[int, Hashable] = {}  # where the arrays are
        self.key: list[Hashable] = []  # the same, in the order in which they were held
        self.held: dict[int, Any] = {}  # the arrays, by their ids
        self._views: dict[int, list[int]] = {}  # ids of views, by that of the array whose memory they show

    def hold(self, arrays: Iterable[Any]) -> tuple[int, ...]:
        """Hold arrays until `clear`; returns their ids."""
        return tuple([self._hold(array) for array in arrays])

    def take(self, bucket: Bucket) -> Any:
        """A buffer, where a known call that was like this one so far had its own if that can be had."""
        at, whereabouts = len(self.key), self._device.whereabouts
        wanted = {key[at] for key in self._alike}
        if wanted and isinstance(bucket, StreamBucket):
            buffer = bucket.find(lambda free: whereabouts(free) in wanted)
            if buffer is not None:
                return buffer
        return bucket.take()

    def get(self, ids: Iterable[int]) -> list[Any]:
        return [self.held[i] for i in ids]

    def references(self, array: Any) -> int:
        """Number of references to an array that end with the call.

        They are its own, and those of views that are held here alone: a view that something else refers to as well, as
        a frame does for a copy to another device, lives on and shows the memory of the array.
        """
        key, held = id(array), self.held
        count = 1 if key in held else 0
        if key in self._views:
            count += sum(getrefcount(held[view]) == IN_ONE_LIST for view in self._views[key])
        return count

    def clear(self) -> None:
        """Let go of all: an exception may keep the call alive."""
        self.held.clear()

    def _hold(self, array: Any) -> int:
        key = id(array)
        if key not in self.held:
            self.held[key] = array
            self._whereabouts[key] = self._device.whereabouts(array)
            if array.base is not None:
                self._views.setdefault(id(array.base), []).append(key)
        at, where = len(self.key), self._whereabouts[key]
        self.key.append(where)
        self._alike = [known for known in self._alike if known[at] == where]
        return key


#: An op, and the ids of its inputs and outputs.
_Call = tuple[StreamKernelActor, tuple[int, ...], tuple[int, ...]]


class SegmentActor(_OnStream):
    """Ops of one lane that are launched as one."""

    compiles = True

    def __init__(
        self, wiring: Wiring, *, parts: Sequence[StreamKernelActor], device: StreamDevice, usage: SegmentProfile
    ) -> None:
        label = f"{parts[0].node.name} to {parts[-1].node.name}"
        super().__init__(wiring, device=device, label=label, early=())
        self.late = ()  # the parts give back their own
        self.parts: tuple[StreamKernelActor, ...] = tuple(parts)
        self.usage = usage  # what became of its calls
        self._device = device
        self._known: OrderedDict[tuple[Hashable, ...], Segment] = OrderedDict()
        # Apart: what never recurs must not drive out what does.
        self._seen: OrderedDict[tuple[Hashable, ...], None] = OrderedDict()
        self._dropped: deque[tuple[int, Segment]] = deque()
        self._at: StreamKernelActor | None = None  # what is prepared or launched now
        self._culprits: dict[Frame, StreamKernelActor | None] = {}

    def launch(self, frame: Frame) -> None:
        if self._outcome is not None:
            self.usage.calls += 1
            culprit, error = self._outcome
            if error is not None:
                self._culprits[frame] = culprit
                raise error
            return
        arrays = _Arrays(self._device, [*self._known, *self._seen])
        try:
            calls = [self._prepare(part, frame, arrays) for part in self.parts]
            self._launch_as_one(calls, arrays)
        except BaseException:
            self._culprits[frame] = self._at
            raise
        finally:
            arrays.clear()

    def replay(self, inputs: list[Any], number: int) -> Any:
        raise GraphError(f"ops {self._names()} were launched as one and cannot be replayed: run with capture=False")

    def _kernels(self) -> Iterator[StreamKernelActor]:
        return iter(self.parts)

    # -- one call ------------------------------------------------------------------------------------------------------

    def _prepare(self, part: StreamKernelActor, frame: Frame, arrays: _Arrays) -> _Call:
        self._at = part
        values = frame.values
        inputs = [*part.read(values)]
        held = arrays.hold(inputs)
        written: list[int] = []
        for position, (blob, bucket) in enumerate(zip(part.outputs, part.buckets, strict=True)):
            if position or not (
                part.reuses
                and inputs[0].base is None
                and getrefcount(inputs[0]) == IN_TWO_LISTS + arrays.references(inputs[0])
            ):
                values[blob.slot] = arrays.take(bucket)
            else:
                values[blob.slot] = inputs[0]
            written += arrays.hold([values[blob.slot]])
        call = part, held, tuple(written)
        inputs.clear()
        _release(part.early, frame, arrays)
        _release(part.unread, frame, arrays)
        return call

    def _launch_as_one(self, calls: Sequence[_Call], arrays: _Arrays) -> None:
        self._at = None
        usage = self.usage
        usage.calls += 1
        if usage.refusal is not None:
            self._launch_each(calls, arrays)
            return
        self._sweep()
        known = self._known
        key = tuple(arrays.key)
        segment = known.get(key)
        if segment is None:
            if not self._is_worth_it(key):
                self._launch_each(calls, arrays)
                return
            known[key] = segment = self._device.make_segment(
                self.label, [lambda argument: self._launch_each(*argument)]
            )
            if len(known) > _MAX_KEYS:
                self._drop(known.popitem(last=False)[1])
        known.move_to_end(key)
        try:
            segment((calls, arrays))
        except BaseException:
            del known[key]  # what fails as it is launched says nothing of whether it can be captured
            self._drop(segment)
            raise
        if segment.state is SegmentState.REFUSED:
            usage.refusal = segment.refusal
            known.clear()
        elif segment.replays == 1:
            usage.captures += 1
        else:
            usage.replays += 1

    def _is_worth_it(self, key: tuple[Hashable, ...]) -> bool:
        """Return whether to capture a call: its arrays were the same before, and not too much was captured so far."""
        seen, usage = self._seen, self.usage
        if key not in seen:
            seen[key] = None
            if len(seen) > _MAX_SEEN:
                seen.popitem(last=False)
            return False
        if usage.captures >= _CAPTURES + usage.calls // _CALLS_PER_CAPTURE:
            seen.move_to_end(key)
            return False
        del seen[key]
        return True

    def _launch_each(self, calls: Sequence[_Call], arrays: _Arrays) -> None:
        stream = self.lane.stream
        for part, inputs, outputs in calls:
            self._at = part
            stream.label = part.label
            part.kernel.function(part.operation, arrays.get(inputs), arrays.get(outputs))

    def _drop(self, segment: Segment) -> None:
        """Let go of the captures, once it does not run any more."""
        self._dropped.append((self.lane.submitted, segment))

    def _sweep(self) -> None:
        dropped = self._dropped
        while dropped and dropped[0][0] <= self.lane.completed:
            dropped.popleft()

    # -- what is told of it --------------------------------------------------------------------------------------------

    def failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        culprit = self._culprits.pop(frame, None) or self._named_by(error)
        if culprit is None:
            culprit, cause = self.parts[0], error
            what = f"{type(cause).__name__}: {cause}"
            error = DeviceError(f"ops {self._names()} were launched as one, and one of them failed with {what}")
            error.__cause__ = cause
        if frame.monitor is not None:
            self.show(frame, _CANCELLED)
        culprit.failed(frame, error, elapsed_ns, end_ns, culprit.key)

    def _named_by(self, error: BaseException) -> StreamKernelActor | None:
        work = error.work if isinstance(error, DeviceError) else None
        return next((part for part in self.parts if part.label == work), None)

    def _names(self) -> str:
        return listed([repr(part.node.name) for part in self.parts])


def _release(blobs: Iterable[BlobActor], frame: Frame, arrays: _Arrays) -> None:
    """One reader of each is done; as `actorflow.core.release`, but for the references that ``arrays`` holds."""
    values = frame.values
    for blob in blobs:
        if not frame.read(blob.slot):
            continue
        buffer = values[blob.slot]
        values[blob.slot] = None
        if isinstance(blob, StreamViewActor) and buffer.base is not None:
            buffer = buffer.base
        if blob.bucket is not None and getrefcount(buffer) == UNSHARED + arrays.references(buffer):
            blob.bucket.give_back(buffer)
