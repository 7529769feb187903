"""Ops at run time: they fire when their mailbox's count is met."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from operator import is_not, itemgetter
from sys import getrefcount
from time import perf_counter_ns
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from actorflow.actors.attempts import OpAttempts
from actorflow.actors.blob import BlobActor, UpdateActor, deliver
from actorflow.actors.dispatcher import leave_loop
from actorflow.actors.frame import Frame
from actorflow.actors.turnstile import Turnstile
from actorflow.devices.base import Fence, Lane, Stopped
from actorflow.devices.memory import IN_TWO_LISTS, OWNERS, UNSHARED, Bucket
from actorflow.errors import GraphError
from actorflow.graph.nodes import Op
from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel
from actorflow.spec import TensorSpec
from actorflow.threads import cores
from actorflow.trace.counters import NodeState, OpProfile
from actorflow.trace.ring import CALL_BYTES, in_brief, pack_call

#: An op that takes less runs on the loop: a round trip through a thread costs about as much.
INLINE_NS = 100_000
#: On a single core a thread that computes takes its time from the loop anyway: there a kernel runs on the loop that
#: leaves a slice of it time for others.
INLINE_ALONE_NS = 750_000
#: Longer than any call; the expected time of an op that has not run.
FOREVER_NS = 1 << 62

_RUNNING, _DONE, _FAILED = int(NodeState.RUNNING), int(NodeState.DONE), int(NodeState.FAILED)

#: Calls ops one behind the other, given the frame, what each has `bound`, a list to which it appends the time behind
#: each, and the time, `perf_counter_ns`, behind which it calls no other. It goes on where it has stopped when it is
#: given the same iterator again, and it stops behind the op that runs when the frame does.
Play: TypeAlias = Callable[[Frame, Iterator[Any], list[int], int], None]


def kernel_inline_ns() -> int:
    """Longest expected time of a kernel's call that runs on the loop."""
    return max(INLINE_NS, INLINE_ALONE_NS) if cores() == 1 else INLINE_NS


class Wiring(NamedTuple):
    """Connections of one op of a program, from which its actor is made."""

    mailbox: int  # index of its mailbox in a frame; the actor's `index`
    node: Op  # errors name it
    node_id: int  # `Node.id` of the node that it shows up as: the op, or the blob whose terms it sums
    key: int  # of its calls in the trace, but for those that ran inline; see `Trace.key`
    inputs: tuple[BlobActor, ...]
    freed: tuple[BlobActor, ...]  # inputs that are given back when they have been read; others stay
    outputs: tuple[BlobActor, ...]
    unread: tuple[BlobActor, ...]  # outputs that nothing reads
    followers: tuple[OpActor, ...]  # ops that read the outputs, once per argument
    lane: Lane  # where it runs when it is not short
    profile: OpProfile
    inline_ns: int | None = None  # longest expected time of a call that runs on the loop, if not the usual one


class OpActor(ABC):
    """One op of a program. Most attributes are those of its `Wiring`.

    Attributes:
        read: Picks the inputs' values out of a frame's.
        freed: Blobs that a call gives back when it has ended: inputs, and the outputs that nothing reads.
        updates: Outputs that are new values of variables.
        ends: Whether the frame waits for its end: nothing in the frame follows it, or it updates a variable, as what
            follows an update on another stream may be seen to end before the update is.
        turnstile: Keeps the frames of a function in order; None for kernels.
        attempts: Keeps the op's timeout and retries; None without.
        parts: The ops that it stands for, if it stands for several.
        joins: Whether it may be a part of a tape on a lane although it takes long: it computes, and nobody waits for
            when it begins.
        uses_lane: Whether its lane has work of it: a task on the loop leaves it to others.
        cost_ns: Expected time of a call. The smaller one of the last two times: one slow call (a page fault, another
            thread's turn) does not send an op to a lane, and two do.
    """

    __slots__ = (
        "attempts",
        "cost_ns",
        "ends",
        "followers",
        "freed",
        "index",
        "inline_ns",
        "inputs",
        "key",
        "lane",
        "last_ns",
        "node",
        "node_id",
        "outputs",
        "profile",
        "read",
        "turnstile",
        "unread",
        "updates",
    )

    parts: Sequence[OpActor] = ()
    joins = False
    uses_lane = True

    def __init__(self, wiring: Wiring, turnstile: Turnstile | None = None) -> None:
        self.index, node, self.node_id, self.key, inputs, freed, outputs, unread, followers, lane, profile, ns = wiring
        self.node = node
        self.inputs = inputs
        self.outputs = outputs
        self.unread = unread
        self.followers = followers
        self.lane = lane
        self.profile = profile
        self.inline_ns = INLINE_NS if ns is None else ns
        self.read = reader([blob.slot for blob in inputs])
        self.freed = freed + unread
        self.updates = tuple([blob for blob in outputs if isinstance(blob, UpdateActor)])
        self.ends = bool(self.updates) or not followers
        self.turnstile = turnstile
        self.attempts = None if node.attempts is None else OpAttempts(self, node.attempts)
        self.cost_ns = self.last_ns = FOREVER_NS

    @property
    def what(self) -> str:
        """Name of the op in messages about frames."""
        return self.node.name

    def under_way(self, frame: Frame) -> Op:
        """The op that is called, while a call of ``frame`` is under way."""
        return self.node

    def progress(self, frame: Frame) -> Iterator[tuple[int, NodeState]]:
        """How far a call of ``frame`` that runs has come: `Node.id` of each op that it stands for, and its state."""
        yield self.node_id, NodeState.RUNNING

    def twin(
        self, followers: tuple[OpActor, ...], freed: tuple[BlobActor, ...], lane: Lane, key_on: Callable[[int], int]
    ) -> Self:
        """The same op in another program, where others follow it, it gives back other blobs, or has another lane.

        Args:
            followers, freed, lane: As in `Wiring`.
            key_on: Gives the key of a call in the trace, on that lane.
        """
        if followers == self.followers and freed == self.freed and lane is self.lane:
            return self
        twin = copy(self)
        twin.followers = followers
        twin.freed = freed
        if lane is not self.lane:
            twin.lane, twin.key = lane, key_on(self.key)
        if self.attempts is not None:
            twin.attempts = OpAttempts(twin, self.attempts.policy)
        return twin

    @abstractmethod
    def compute(self, frame: Frame) -> None:
        """Read the inputs' values, write the outputs', release the inputs. On the loop's or the lane's thread."""

    def bound(self, counted: Container[int]) -> tuple[Play, Any]:
        """What calls this op in a row with others of its kind, and what it needs for that: the same as `compute` does.

        Args:
            counted: Slots whose readers are counted.
        """
        return play_each, self.compute

    @abstractmethod
    def replay(self, inputs: list[Any], number: int) -> Any:
        """Compute once more on the inputs of a failed call of frame ``number``."""

    def fire(self, frame: Frame) -> int:
        """Run now, go to the lane, or wait for what the lane cannot wait for: all inputs are announced.

        Returns:
            The time, `perf_counter_ns`, at the end.
        """
        if frame.halted:
            return 0
        fences = None
        if frame.fences:
            fences = frame.fences.pop(self, None)
            if fences is not None:
                fences = [fence for fence in fences if not fence.done]
                if fences and self._waits_for(frame, fences):
                    return perf_counter_ns()
        if frame.budget is not None and not frame.budget.admit(frame, self):
            if fences:
                frame.fences[self] = fences
            return perf_counter_ns()
        turnstile = self.turnstile
        if turnstile is not None:
            if not turnstile.enter(frame, self):
                if fences:
                    frame.fences[self] = fences
                return perf_counter_ns()
            if turnstile.running > 1:  # frames before this one are still on the lane: do not overtake them
                return self.begin(frame)
        if fences or self.cost_ns > self.inline_ns or self.attempts is not None:
            return self.begin(frame)
        return self._call_inline(frame)

    def _call_inline(self, frame: Frame) -> int:
        start = perf_counter_ns()
        try:
            self.compute(frame)
        except BaseException as error:  # noqa: BLE001
            # Whatever is raised becomes the frame's OpError, as on a lane.
            end = perf_counter_ns()
            self._failed(frame, error, end - start, end, self.node_id)
            self.leave()
            return perf_counter_ns()
        end = perf_counter_ns()
        self._account(frame, end - start, end, self.node_id)
        # What follows is `_succeeded`, without the price of its calls.
        if self.updates or frame.budget is not None:
            self._announce(frame)
        else:
            pending = frame.pending
            for actor in self.followers:
                index = actor.index
                left = pending[index] - 1
                pending[index] = left
                if not left:
                    frame.ready.append((actor, frame))
            if self.ends:
                frame.close_end()
        turnstile = self.turnstile
        if turnstile is not None:
            turnstile.running -= 1
            if turnstile.parked:
                turnstile.admit()
        return end

    def _waits_for(self, frame: Frame, fences: list[Fence]) -> bool:
        """Return whether there are inputs that the lane cannot wait for; it fires again when the loop has seen them."""
        elsewhere = [fence for fence in fences if not self._follows(fence)]
        if not elsewhere:
            return False
        if len(elsewhere) < len(fences):
            frame.fences[self] = [fence for fence in fences if fence not in elsewhere]
        frame.pending[self.index] = len(elsewhere)

        for fence in elsewhere:
            fence.add_waiter(partial(frame.guarded, self._input_passed, frame))
        return True

    def _input_passed(self, frame: Frame) -> None:
        """Count an input that the lane could not wait for: the loop has seen it pass."""
        left = frame.pending[self.index] - 1
        frame.pending[self.index] = left
        if not left:
            frame.ready.append((self, frame))
            frame.wake()

    def _follows(self, fence: Fence) -> bool:
        """Return whether work that is submitted to the lane now runs after ``fence``, and may be submitted."""
        if self.attempts is not None and self.attempts.is_timed:  # from when it is submitted: not with what is in front
            return False
        return fence.lane is self.lane or self.lane.wait(fence)

    def begin(self, frame: Frame) -> int:
        """Begin a call that does not end at once: here, put it in the lane's queue.

        Returns:
            The time, `perf_counter_ns`.
        """
        attempts = self.attempts
        try:
            urgent = self.ends or attempts is not None or frame.budget is not None
            fence = self.lane.submit(self._work, frame, self._passed, urgent)
        except BaseException as error:  # noqa: BLE001  for instance no thread to be had
            self._failed(frame, error, 0, perf_counter_ns(), self.key)
            self.leave()
            return perf_counter_ns()
        frame.outstanding[self] = fence
        if attempts is not None:
            attempts.begin(frame, fence)
        else:
            self._tell(frame, fence)
        return perf_counter_ns()

    def leave(self) -> None:
        """Let the next frame come: the op is done with one, well or not."""
        if self.turnstile is not None:
            self.turnstile.leave()

    def _work(self, frame: Frame) -> None:
        if frame.halted:
            raise Stopped  # before its turn came on the lane
        if frame.monitor is not None:
            self._show(frame, _RUNNING)
        try:
            self.compute(frame)
        except BaseException:
            if self.attempts is None:
                frame.halted = True  # what is queued behind must not run on missing inputs
            raise

    def _passed(self, fence: Fence) -> None:
        """Take note of the end of the work on the lane, which the loop has seen."""
        frame: Frame = fence.argument
        try:
            self._take_end(frame, fence)
        except BaseException as failure:  # noqa: BLE001  nothing may hang, whatever goes wrong here
            frame.fail(self, failure)
        frame.settle(self)

    def _take_end(self, frame: Frame, fence: Fence) -> None:
        error = fence.error
        end_ns = fence.ended_ns or perf_counter_ns()
        if type(error) is Stopped:
            late = None if self.attempts is None else self.attempts.end(frame, None)
            if late is not None:
                self._account_failed(frame, late, fence.elapsed_ns, end_ns, self.key)
            self.leave()
        elif self.attempts is not None:
            self._conclude(frame, error, fence.elapsed_ns, end_ns)
        else:
            if error is not None:
                self._failed(frame, error, fence.elapsed_ns, end_ns, self.key)
            else:  # whatever became of the frame meanwhile: the call has ended well
                self._account(frame, fence.elapsed_ns, end_ns, self.key)
                if not frame.halted:
                    if frame.budget is not None:
                        frame.budget.ended(frame, self)
                    if self.ends:
                        frame.close_end()
            self.leave()

    def _conclude(self, frame: Frame, error: BaseException | None, elapsed_ns: int, end_ns: int) -> None:
        attempts = self.attempts
        if attempts is not None:
            error = attempts.end(frame, error)
            if error is None:
                attempts.succeeded(frame)
            elif attempts.retry(frame, error):
                self._account_failed(frame, error, elapsed_ns, end_ns, self.key)
                return
        if not frame.halted:
            if error is not None:
                self._failed(frame, error, elapsed_ns, end_ns, self.key)
            else:
                self._succeeded(frame, elapsed_ns, end_ns, self.key)
                frame.wake()
        elif error is not None and not isinstance(error, CancelledError):
            self._account_failed(frame, error, elapsed_ns, end_ns, self.key)  # it was too late, or has failed as well
        self.leave()

    def _succeeded(self, frame: Frame, elapsed_ns: int, end_ns: int, key: int) -> None:
        self._account(frame, elapsed_ns, end_ns, key)
        self._announce(frame)

    def _tell(self, frame: Frame, fence: Fence | None) -> None:
        """Say that the outputs are there, or will be when ``fence`` has passed."""
        frame.announce(self.followers, fence)
        if self.updates:
            deliver(self.updates, frame, fence)

    def _announce(self, frame: Frame) -> None:
        frame.announce(self.followers, None)
        if self.updates:
            deliver(self.updates, frame, None)
        if frame.budget is not None:
            frame.budget.ended(frame, self)
        if self.ends:
            frame.close_end()

    def _account(self, frame: Frame, elapsed_ns: int, end_ns: int, key: int) -> None:
        last = self.last_ns
        self.cost_ns = elapsed_ns if elapsed_ns < last else last  # noqa: FURB136  min() costs twice as much
        self.last_ns = elapsed_ns
        profile = self.profile
        profile.calls += 1
        profile.total_ns += elapsed_ns
        profile.last_ns = elapsed_ns
        # `Trace.add`, spelt out: a call would cost as much again.
        trace = frame.trace
        total = trace.total
        pack_call(trace.buffer, (total & trace.mask) * CALL_BYTES, end_ns, elapsed_ns, key, frame.number)
        trace.total = total + 1
        if frame.monitor is not None:
            self._show(frame, _DONE)

    def _show(self, frame: Frame, state: int) -> None:
        monitor = frame.monitor
        assert monitor is not None
        monitor.states[self.node_id] = state
        monitor.dirty[self.node_id] = 1

    def _account_failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        """Account for a failed call, which may be repeated."""
        self.profile.failed += 1
        if frame.monitor is not None:
            frame.monitor.dirty[self.node_id] = 1  # a call that will be repeated leaves the state as it is
        frame.trace.add_failed(end_ns, elapsed_ns, key, frame.number, in_brief(error))
        if frame.spans is not None:
            frame.spans.failed(self.node, frame.trace.track_of(key), end_ns - elapsed_ns, end_ns, error)
        self._leave_loop(frame, error)

    def _failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        self._account_failed(frame, error, elapsed_ns, end_ns, key)
        if frame.monitor is not None:
            self._show(frame, _FAILED)
        frame.op_failed(self, error)

    def _leave_loop(self, frame: Frame, error: BaseException) -> None:
        """As `dispatcher.leave_loop`, where the loop does not know of the error."""
        leave_loop(error)


def release(blobs: Iterable[BlobActor], frame: Frame) -> None:
    """One reader of each is done. May be called from a lane's thread."""
    readers, values = frame.readers, frame.values
    counted = frame.budget is not None
    for blob in blobs:
        slot = blob.slot
        tokens = readers[slot]
        if tokens is None or next(tokens):
            if counted or blob.bucket is not None:
                blob.drop(frame)
            else:  # as `drop` would, at half the price
                values[slot] = None


def play_each(frame: Frame, steps: Iterator[Callable[[Frame], None]], stamps: list[int], due_ns: int) -> None:
    """The `Play` of ops of any kind: what they have bound is their `compute`."""
    for compute in steps:
        compute(frame)
        now_ns = perf_counter_ns()
        stamps.append(now_ns)
        if now_ns > due_ns or frame.halted:
            return


def picks(inputs: Sequence[BlobActor]) -> tuple[int, Any, int, int]:
    """The number of inputs, and the slots of up to three, which are picked quicker one by one; else, first, a `reader`.

    What is bound refers to as little as it can that no other op does: all of it comes from memory anew for each call.
    """
    slots = [blob.slot for blob in inputs]
    if not 0 < len(slots) < 4:
        return 0, reader(slots), 0, 0
    first, second, third = [*slots, 0, 0][:3]
    return len(slots), first, second, third


def reader(slots: Sequence[int]) -> Callable[[list[Any]], Iterable[Any]]:
    """A function that picks the values of some slots, in a third of a comprehension's time."""
    if len(slots) > 1:
        return itemgetter(*slots)
    # Of a single index it would give the bare value.
    return itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0))


class KernelActor(OpActor):
    """An op with a registered kernel."""

    joins = True

    __slots__ = ("buckets", "kernel", "operation", "reuses", "specs")

    def __init__(
        self, wiring: Wiring, *, operation: Operation, kernel: Kernel, buckets: tuple[Bucket, ...], reuses: bool
    ) -> None:
        super().__init__(wiring)
        self.reuses = reuses  # whether the first output may take the buffer of the first input, unless that is a view
        self.operation = operation  # the mathematics
        self.kernel = kernel  # its implementation
        self.buckets = buckets  # where the outputs' buffers come from
        self.specs = tuple([bucket.spec for bucket in buckets])

    def compute(self, frame: Frame) -> None:
        self._call(frame)
        # After the call's own references are gone: only an unshared buffer goes back to the pool.
        release(self.freed, frame)

    def bound(self, counted: Container[int]) -> tuple[Play, Any]:
        kernel = self.kernel
        is_plain = len(self.outputs) == 1 and not (kernel.random or self.unread)
        if not is_plain or type(self).compute is not KernelActor.compute:
            return super().bound(counted)
        own = [blob for blob in self.freed if type(blob).drop is BlobActor.drop and blob.slot not in counted][:1]
        gone, home = (own[0].slot, own[0].bucket) if own else (-1, None)
        bucket = None if kernel.returns or self.reuses else self.buckets[0]
        call = self._over_input if self.reuses else kernel.function, self.operation, *picks(self.inputs)
        rest = tuple([blob for blob in self.freed if blob not in own])
        checked = kernel if kernel.returns and not kernel.is_own else None
        return _play_kernels, (*call, bucket, self.outputs[0].slot, *self.specs[0], checked, gone, home, rest)

    def replay(self, inputs: list[Any], number: int) -> Any:
        return self._run_kernel(inputs, number)

    def _call(self, frame: Frame) -> None:
        values = frame.values
        results = self._run_kernel([*self.read(values)], frame.number)
        for blob, value in zip(self.outputs, results):  # noqa: B905  strict=True costs more than all else here
            values[blob.slot] = value

    def _over_input(self, operation: Operation, inputs: list[Any], outputs: None) -> list[Any]:
        """As a kernel that returns its results, where the first one may take the buffer of the first input."""
        return self._run_kernel(inputs, 0)

    def _run_kernel(self, inputs: list[Any], number: int) -> list[Any]:
        return self._compute_into(self._take_buffers(inputs), inputs, number)

    def _take_buffers(self, inputs: list[Any]) -> list[Any] | None:
        """Buffers for the outputs; None for a kernel that returns its results."""
        if self.kernel.returns:
            return None
        if self.reuses and getrefcount(inputs[0]) == IN_TWO_LISTS and type(inputs[0].base) in OWNERS:
            # It is in ``inputs`` and the frame's values alone, and nothing else can show its memory.
            return [inputs[0], *[bucket.take() for bucket in self.buckets[1:]]]
        return [bucket.take() for bucket in self.buckets]

    def _compute_into(self, outputs: list[Any] | None, inputs: list[Any], number: int) -> list[Any]:
        kernel = self.kernel
        more = (number,) if kernel.random else ()
        if outputs is None:
            returned: list[Any] = kernel.function(self.operation, inputs, None, *more)
            kernel.check(returned, self.specs)
            return returned
        written = [*outputs]
        kernel.function(self.operation, inputs, written, *more)
        if written[0] is not outputs[0] or (len(outputs) > 1 and any(map(is_not, written, outputs))):
            raise not_written()
        return outputs


def _play_kernels(frame: Frame, steps: Iterator[Any], stamps: list[int], due_ns: int) -> None:
    """The `Play` of kernels with one output: `KernelActor.compute`, spelt out for all of them."""
    values, ndarray = frame.values, np.ndarray
    inputs: Any
    results: Any
    for function, operation, count, first, second, third, bucket, slot, shape, dtype, kernel, gone, home, rest in steps:
        if count == 1:
            inputs = [values[first]]
        elif count == 2:
            inputs = [values[first], values[second]]
        elif count == 3:
            inputs = [values[first], values[second], values[third]]
        else:
            inputs = [*first(values)]
        if bucket is not None:
            output = bucket.take()
            results = [output]
            function(operation, inputs, results)
            if results[0] is not output:
                raise not_written()
        else:
            results = function(operation, inputs, None)
            output = results[0] if kernel is None or len(results) == 1 else None
            if kernel and (type(output) is not ndarray or output.dtype is not dtype or output.shape != shape):
                kernel.check(results, (TensorSpec(shape, dtype),))
        values[slot] = output
        inputs = results = None  # what they refer to would not seem to be unshared
        if gone >= 0:  # as `BlobActor.drop`
            output, values[gone] = values[gone], None
            if home is not None and getrefcount(output) == UNSHARED:
                home.give_back(output)
        output = None
        if rest:
            release(rest, frame)
        now_ns = perf_counter_ns()
        stamps.append(now_ns)
        if now_ns > due_ns or frame.halted:
            return


def not_written() -> GraphError:
    """The error of a kernel that has put arrays in the places of its buffers, which nothing else would look for."""
    return GraphError("the kernel must write into its outputs, as outputs[0][...] = does: it has replaced one of them")
