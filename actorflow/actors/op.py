"""Ops at run time: they fire when their mailbox's count is met, and call a kernel or a plain function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from operator import attrgetter, is_not, itemgetter
from sys import getrefcount
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from actorflow import core
from actorflow.actors.attempts import ONCE, OpAttempts
from actorflow.actors.blob import BlobActor, UpdateActor, deliver
from actorflow.actors.finite import Look, look
from actorflow.actors.frame import Frame
from actorflow.core import Shift, Turnstile, clock_ns, release
from actorflow.devices.base import Fence, Lane, Stopped
from actorflow.devices.cpu import WorkerLane
from actorflow.devices.memory import IN_TWO_LISTS, OWNERS, Bucket
from actorflow.errors import DeviceError, GraphError, OpError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Op
from actorflow.interchange import as_array, read_only, to_numpy
from actorflow.ops.function import NOT_RUN, Function, check_has_run
from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel
from actorflow.spec import TensorSpec
from actorflow.threads import cores
from actorflow.trace.counters import NodeState, OpProfile
from actorflow.trace.ring import Trace, in_brief

#: An op that takes less runs on the loop: a round trip through a thread costs about as much.
INLINE_NS = 100_000
#: On a single core a thread that computes takes its time from the loop anyway: there a kernel runs on the loop that
#: leaves a slice of it time for others.
INLINE_ALONE_NS = 750_000
#: A long call is for the loop all the same where it ends within as many times what waking a lane's thread and then the
#: loop takes, and this at least; and within a slice of the loop's time.
HANDOVERS, LONG_NS, SLICE_NS = 3, 300_000, 1_000_000

_RUNNING, _FAILED = int(NodeState.RUNNING), int(NodeState.FAILED)


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
    look: Look | None = None  # at what it has made


class _Delivery:
    """Delivers new values of variables that an op has computed on a lane's thread, and closes the op's end."""

    __slots__ = ("_updates",)

    def __init__(self, updates: tuple[UpdateActor, ...]) -> None:
        self._updates = updates

    def fire(self, frame: Frame) -> int:
        """Do so."""
        deliver(self._updates, frame, None)
        frame.close_end()
        return clock_ns()


class OpActor(core.Op, ABC):
    """One op of a program. Most attributes are those of its `Wiring`; see `actorflow.core.plain.Op`, too.

    Attributes:
        read: Picks the inputs' values out of a frame's.
        joins: Whether it only computes, so that it may run on another lane than the plan's.
        uses_lane: Whether its lane has work of it: a task on the loop leaves it to others.
    """

    __slots__ = ("look", "node", "read", "unread")

    read: Callable[[list[Any]], Iterable[Any]]

    joins = False
    uses_lane = True
    #: Whether its calls are work that a lane's thread does from begin to end.
    is_work = False

    def __init__(self, wiring: Wiring, turnstile: Turnstile | None = None) -> None:
        super().__init__()
        self.index, node, self.node_id, self.key, inputs, freed, outputs, unread, followers, lane = wiring[:10]
        self.profile, ns, self.look = wiring[10:]
        self.node = node
        self.inputs = inputs
        self.outputs = outputs
        self.unread = unread
        self.followers = followers
        self.lane = lane
        self.inline_ns = INLINE_NS if ns is None else ns
        self.freed = freed + unread
        self.updates = tuple([blob for blob in outputs if isinstance(blob, UpdateActor)])
        self.delivery = _Delivery(self.updates) if self.updates else None
        self.ends = bool(self.updates) or not followers
        self.turnstile = turnstile
        self.attempts = None if node.attempts is None else OpAttempts(self, node.attempts)
        self.goes_on = self.is_work and self.attempts is None and isinstance(lane, WorkerLane)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "read":
                return object.__getattribute__(self, name)  # which says what is missing
            # Made when it is first asked for: the compiled core seldom does, and it is a tenth of an op's memory.
            self.read = reader([blob.slot for blob in self.inputs])
            return self.read

    @property
    def what(self) -> str:
        """Name of the op, or names of its parts, in messages about frames."""
        return " + ".join([part.what for part in self.parts]) or self.node.name

    def inside(self, frame: Frame) -> list[Frame]:
        """Frames of other graphs that its call awaits."""
        return []

    def times(self) -> Sequence[int]:
        """Numbers that are to each other as the times of the parts in a call."""
        return (1,) * len(self.parts)

    def measure(self) -> None:
        shares = [*accumulate(self.times())]
        self.shares = [share / shares[-1] for share in shares]

    def confine(self) -> None:
        """Keep a frame's failure to the ops that depend on it: nothing is called, or announced, ahead of its inputs."""
        self.goes_on = False
        if self.attempts is None:
            self.attempts = OpAttempts(self, ONCE)

    def move_to(self, lane: Lane, trace: Trace) -> None:
        """Run on another lane from now on, of the same device."""
        self.key = self._key_on(lane, trace)
        self.lane = lane

    def _key_on(self, lane: Lane, trace: Trace) -> int:
        return trace.key(self.node_id, trace.track_of(self.key).removesuffix(self.lane.name) + lane.name)

    @abstractmethod
    def replay(self, inputs: list[Any], number: int) -> Any:
        """Compute once more on the inputs of a failed call of frame ``number``."""

    def _again(self, inputs: list[Any], call: Callable[[], Any]) -> Any:
        """Repeat a call, alone, and wait for its end."""
        return call()

    def error_of(self, cause: BaseException, inputs: list[Any], number: int, node: Op | None = None) -> OpError:
        """The error of a call of frame ``number``, which can be repeated on its inputs.

        Args:
            cause: The exception.
            inputs: The arguments of the call.
            number: Number of the frame.
            node: The op that the error names, if it is not this one.
        """
        again, alone = partial(self.replay, inputs, number), partial(self.to_graph, inputs, number)
        return OpError.of(node or self.node, cause, again, alone)

    def to_graph(self, inputs: Sequence[Any], number: int) -> Graph:
        """A graph of this op alone, to save and to run elsewhere; variables have the values that a call read.

        Args:
            inputs: The values.
            number: Number of the frame, from which the graph counts.
        Raises:
            GraphError: if an input is not there any more, or is a Python object.
        """
        node = self.node
        names = [blob.name.replace("/", ".") for blob in node.inputs]  # all of it: most are called "out"
        if self.parts or len(names) != len(inputs):  # what the plan has made of several ops, or added
            names = [f"input{position}" for position in range(len(inputs))]
        for name, value in zip(names, inputs, strict=True):
            if getattr(value, "dtype", None) is None:
                why = "was not kept" if value is None else "is a Python object"
                raise GraphError(f"op {node.name!r} cannot be made a graph: its input {name!r} {why}")
        operation: Operation = getattr(self, "operation", node.operation)
        if isinstance(operation, Function) and operation.specs is None:
            operation = replace(operation, specs=tuple([blob.spec for blob in node.outputs]))
        root = node.graph.root
        graph = Graph(f"{node.name.rpartition('/')[2]} of frame {number}", check_finite=root.check_finite or False)
        graph._first_frame = number
        variables = []
        for name, value in zip(names, inputs, strict=True):
            array = to_numpy(value)
            variables.append(graph.variable(graph.unique_name(name), array.shape, array.dtype, init=array))
        graph.apply(operation, *variables, name=node.name.rpartition("/")[2])
        return graph

    def fire(self, frame: Frame) -> int:
        if frame.halted:
            return 0
        if frame.failures:
            for blob in self.inputs:
                if blob.slot in frame.failures:
                    return self._leave_out(frame, frame.failures[blob.slot])
        fences = None
        if frame.fences:
            fences = frame.fences.pop(self, None)
            if fences is not None:
                fences = [fence for fence in fences if not fence.done]
                if fences and self._waits_for(frame, fences):
                    return clock_ns()
        if frame.budget is not None and not frame.budget.admit(frame, self):
            if fences:
                frame.fences[self] = fences
            return clock_ns()
        turnstile = self.turnstile
        if turnstile is not None:
            if not turnstile.enter(frame, self):
                if fences:
                    frame.fences[self] = fences
                return clock_ns()
            if turnstile.running > 1:  # frames before this one are still on the lane: do not overtake them
                return self.begin(frame)
        is_watched = self.attempts is not None and self.attempts.policy is not ONCE
        if fences or is_watched or (self.cost_ns > self.inline_ns and not self._stays(frame)):
            return self.begin(frame)
        return self.call(frame)

    def _leave_out(self, frame: Frame, error: OpError) -> int:
        if self.turnstile is not None:
            self.turnstile.skip(frame)
        for blob in self.freed:
            if frame.read(blob.slot) and frame.values[blob.slot] is not None:
                blob.drop(frame)
        frame.go_on_without(self, error)
        return clock_ns()

    def _stays(self, frame: Frame) -> bool:
        """Return whether a long call is for the loop all the same: to hand it over would take nearly as long.

        That is so as long as the slice of the loop's time has not lasted, and nobody else waits for it.
        """
        if not (self.joins and self.goes_on and self.inline_ns >= 0 and self.cost_ns < SLICE_NS):
            return False
        ready = frame.ready
        if len(ready.running) != 1 or ready or frame.outstanding:
            return False
        most_ns: int = min(SLICE_NS, max(LONG_NS, HANDOVERS * self.lane.handover_ns))
        return clock_ns() - ready.begun_ns + self.cost_ns < most_ns

    def _waits_for(self, frame: Frame, fences: list[Fence]) -> bool:
        """Return whether there are inputs that the lane cannot wait for; it fires again when the loop has seen them."""
        elsewhere = [fence for fence in fences if not self._follows(fence)]
        if not elsewhere:
            return False
        if len(elsewhere) < len(fences):
            frame.fences[self] = [fence for fence in fences if fence not in elsewhere]
        frame.expect_messages(self.index, len(elsewhere))
        for fence in elsewhere:
            fence.add_waiter(partial(frame.guarded, self._input_passed, frame))
        return True

    def _input_passed(self, frame: Frame) -> None:
        """Count an input that the lane could not wait for: the loop has seen it pass."""
        if frame.count(self.index):
            frame.ready.append((self, frame))
            frame.wake()

    def _follows(self, fence: Fence) -> bool:
        """Return whether work that is submitted to the lane now runs after ``fence``, and may be submitted."""
        if self.attempts is not None and self.attempts.policy.timeout_s is not None:
            return False  # its time counts from when it is submitted, and what is in front is not to take it
        return fence.lane is self.lane or self.lane.wait(fence)

    def begin(self, frame: Frame) -> int:
        """Begin a call that does not end at once: here, put it in the lane's queue.

        Returns:
            The time, `clock_ns`.
        """
        attempts = self.attempts
        try:
            if self.goes_on and frame.budget is None:
                self.hand_over(frame)
                return clock_ns()
            urgent = self.ends or attempts is not None or frame.budget is not None
            fence = self.lane.submit(self._work, frame, self._passed, urgent)
        except BaseException as error:  # noqa: BLE001  for instance no thread to be had
            self.failed(frame, error, 0, clock_ns(), self.key)
            self.leave()
            return clock_ns()
        frame.outstanding[self] = fence
        if attempts is not None:
            attempts.begin(frame, fence)
        else:
            self._tell(frame, fence)
        return clock_ns()

    def hand_over(self, frame: Frame) -> None:
        if self.lanes and self.lane.outstanding and not frame.is_on_a_lane:
            with suppress(DeviceError):  # its own lane has a thread, if that one gets none
                return self._put(frame, min(self.lanes, key=attrgetter("outstanding")))
        return self._put(frame, self.lane)

    def _put(self, frame: Frame, lane: Lane) -> None:
        shift = Shift(self, frame)
        assert isinstance(lane, WorkerLane)
        if lane is not self.lane:
            shift.go_to(lane, self._key_on(lane, frame.trace))
        fence = lane.fence(_run_shift, shift, _shift_passed, False)
        frame.outstanding[self] = fence  # before the loop can be told of its end
        frame.ready.shifts.add(shift)
        try:
            lane.put(fence)
        except BaseException:
            frame.ready.shifts.discard(shift)
            del frame.outstanding[self]
            raise

    def leave(self) -> None:
        """Let the next frame come: the op is done with one, well or not."""
        if self.turnstile is not None:
            self.turnstile.leave()

    def _work(self, frame: Frame) -> None:
        if frame.halted:
            raise Stopped  # before its turn came on the lane
        if frame.monitor is not None:
            self.show(frame, _RUNNING)
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
        end_ns = fence.ended_ns or clock_ns()
        if type(error) is Stopped:
            late = None if self.attempts is None else self.attempts.end(frame, None)
            if late is not None:
                self._account_failed(frame, late, fence.elapsed_ns, end_ns, self.key)
            self.leave()
        elif self.attempts is not None:
            self._conclude(frame, error, fence.elapsed_ns, end_ns)
        else:
            if error is not None:
                self.failed(frame, error, fence.elapsed_ns, end_ns, self.key)
            else:  # whatever became of the frame meanwhile: the call has ended well
                self.account(frame, fence.elapsed_ns, end_ns, self.key)
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
            if error is not None and attempts.retry(frame, error):
                self._account_failed(frame, error, elapsed_ns, end_ns, self.key)
                return
        if not frame.halted:
            if error is not None:
                self.failed(frame, error, elapsed_ns, end_ns, self.key)
            else:
                self._succeeded(frame, elapsed_ns, end_ns, self.key)
                frame.wake()
        elif error is not None and not isinstance(error, CancelledError):
            self._account_failed(frame, error, elapsed_ns, end_ns, self.key)  # it was too late, or has failed as well
        self.leave()

    def _succeeded(self, frame: Frame, elapsed_ns: int, end_ns: int, key: int) -> None:
        self.account(frame, elapsed_ns, end_ns, key)
        self.announce(frame)

    def _tell(self, frame: Frame, fence: Fence | None) -> None:
        """Say that the outputs are there, or will be when ``fence`` has passed."""
        frame.announce(self.followers, fence)
        if self.updates:
            deliver(self.updates, frame, fence)

    def announce(self, frame: Frame) -> None:
        frame.announce(self.followers, None)
        if self.updates:
            deliver(self.updates, frame, None)
        if frame.budget is not None:
            frame.budget.ended(frame, self)
        if self.ends:
            frame.close_end()

    def _account_failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        self.profile.failed += 1
        if frame.monitor is not None:
            frame.monitor.dirty[self.node_id] = 1  # a call that will be repeated leaves the state as it is
        frame.trace.add_failed(end_ns, elapsed_ns, key, frame.number, in_brief(error))
        if frame.spans is not None:
            frame.spans.failed(self.node, frame.trace.track_of(key), end_ns - elapsed_ns, end_ns, error)
        self._leave_loop(frame, error)

    def failed(self, frame: Frame, error: BaseException, elapsed_ns: int, end_ns: int, key: int) -> None:
        self._account_failed(frame, error, elapsed_ns, end_ns, key)
        if frame.monitor is not None:
            self.show(frame, _FAILED)
        frame.op_failed(self, error)

    def _leave_loop(self, frame: Frame, error: BaseException) -> None:
        """As `dispatcher.leave_loop`, where the loop does not know of the error."""
        frame.leave_loop(error)


def parts_of(actor: OpActor) -> Iterator[OpActor]:
    """The ops that an actor stands for."""
    for part in actor.parts:
        yield from parts_of(part)
    if not actor.parts:
        yield actor


def _run_shift(shift: Shift) -> bool:
    if shift.frame.halted:
        raise Stopped  # before its turn came on the lane
    return shift.run()


def _shift_passed(fence: Fence) -> None:
    """Take note of the end of a shift, which the loop has seen; its calls have been accounted for."""
    shift: Shift = fence.argument
    frame: Frame = shift.frame
    op: Any = shift.at
    try:
        error = fence.error
        if error is not None:
            if type(error) is not Stopped:
                end_ns = fence.ended_ns or clock_ns()
                op.failed(frame, error, end_ns - shift.begun_ns, end_ns, shift.key_of(op))
            op.leave()
        for _ in range(shift.ends):
            frame.close_end()
    except BaseException as failure:  # noqa: BLE001  nothing may hang, whatever goes wrong here
        frame.fail(op, failure)
    frame.ready.shifts.discard(shift)
    frame.settle(shift.first)


def reader(slots: Sequence[int]) -> Callable[[list[Any]], Iterable[Any]]:
    """A function that picks the values of some slots, in a third of a comprehension's time."""
    if len(slots) > 1:
        return itemgetter(*slots)
    # Of a single index it would give the bare value.
    return itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0))


class KernelActor(OpActor):
    """An op with a registered kernel."""

    joins = is_work = True

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

    def described(self) -> core.Described:
        kind, kernel = type(self), self.kernel
        own = kind.compute, kind._call, kind._run_kernel
        if self.look is not None or own != (KernelActor.compute, KernelActor._call, KernelActor._run_kernel):
            return None
        ufunc = None if kernel.returns else getattr(kernel.function, "ufunc", None)
        how = kernel.returns, self.reuses, kernel.random, kernel.check, self.buckets, OWNERS, not_written
        return "kernel", kernel.function, self.operation, (*how, self.specs, ufunc)

    def replay(self, inputs: list[Any], number: int) -> Any:
        with np.errstate(all="ignore"):  # as wherever it runs
            results = self._again(inputs, partial(self._run_kernel, inputs, number))
        if self.look is not None and not self.look.check.pause:
            look(self.look.check, self.node, inputs, results)
        return results

    def _call(self, frame: Frame) -> None:
        values = frame.values
        results = self._run_kernel([*self.read(values)], frame.number)
        for blob, value in zip(self.outputs, results):  # noqa: B905  strict=True costs more than all else here
            values[blob.slot] = value
        if self.look is not None:  # nothing is given back yet, nor written over
            self.look.at(self, [*self.read(values)], results, frame.number)

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


def not_written() -> GraphError:
    """The error of a kernel that has put arrays in the places of its buffers, which nothing else would look for."""
    return GraphError("the kernel must write into its outputs, as outputs[0][...] = does: it has replaced one of them")


class FunctionActor(OpActor):
    """An op with a plain Python function.

    It is given read-only arrays: others may read them, too, and what was fed is the caller's. What is fed, and what a
    function returns, is kept as such; of all else (`guarded`) each call gets a view.
    """

    is_async: ClassVar[bool] = False
    is_work = True

    __slots__ = ("fn", "only_dtype", "only_input", "only_shape", "only_slot", "specs")

    def __init__(
        self,
        wiring: Wiring,
        *,
        fn: Callable[..., Any],
        specs: tuple[TensorSpec, ...],
        turnstile: Turnstile,
        guarded: Sequence[int] = (),
    ) -> None:
        super().__init__(wiring, turnstile)
        self.fn = _guarded(fn, guarded) if guarded else fn
        self.specs = specs
        # Of the only output, where there is just one: what nearly all functions have, and the quickest to check.
        self.only_input = self.inputs[0].slot if len(self.inputs) == 1 else None
        self.only_slot = self.outputs[0].slot if len(specs) == 1 else None
        self.only_shape: tuple[int, ...] | None = specs[0].shape if len(specs) == 1 else None
        self.only_dtype: np.dtype[Any] | None = specs[0].dtype if len(specs) == 1 and not specs[0].is_object else None

    def compute(self, frame: Frame) -> None:
        # A copy: a context cannot be entered by two threads at a time.
        context = frame.context.copy()
        slot = self.only_input
        if slot is None:
            result = context.run(self.fn, *self.read(frame.values))
        else:
            result = context.run(self.fn, frame.values[slot])
        self.store(frame, result)

    def described(self) -> core.Described:
        kind = type(self)
        is_plain = (kind.compute, kind.store) == (FunctionActor.compute, FunctionActor.store) and self.look is None
        if not is_plain or self.only_dtype is None:
            return None
        return "function", self.fn, None, (self.only_dtype, self.only_shape)

    def replay(self, inputs: list[Any], number: int) -> Any:
        return self._again(inputs, partial(self.fn, *inputs))

    def store(self, frame: Frame, result: Any) -> None:
        """Check and keep the function's result, and release the inputs.

        Raises:
            ShapeError, DTypeError, GraphError: if it does not fit the declared outputs.
            NotFiniteResultError: if that is looked for, and found.
        """
        slot = self.only_slot
        if (
            slot is not None
            and type(result) is np.ndarray
            and result.dtype is self.only_dtype
            and result.shape == self.only_shape
        ):
            frame.values[slot] = read_only(result) if result.flags.writeable else result
        elif self.outputs or result is not None:
            self._keep_all(frame, result)
        if self.look is not None:
            values = frame.values
            self.look.at(self, [*self.read(values)], [values[blob.slot] for blob in self.outputs], frame.number)
        release(self.freed, frame)

    def _keep_all(self, frame: Frame, result: Any) -> None:
        if type(result) in NOT_RUN:
            check_has_run((result,), self.specs, is_async=self.is_async)
        if self.only_slot is not None:
            self.keep(frame, 0, result)
        elif self.outputs:
            if not isinstance(result, tuple | list) or len(result) != len(self.specs):
                got = f"{len(result)} values" if isinstance(result, tuple | list) else repr(type(result).__name__)
                raise GraphError(f"the function must return {len(self.specs)} values in a tuple or list, got {got}")
            for position, item in enumerate(result):
                if type(item) in NOT_RUN:
                    check_has_run(result, self.specs, is_async=self.is_async)
                self.keep(frame, position, item)

    def keep(self, frame: Frame, position: int, value: Any) -> None:
        """Check one result, and convert it where nothing is lost."""
        what = "the result" if len(self.specs) == 1 else f"result {position}"
        frame.values[self.outputs[position].slot] = checked(value, self.specs[position], what)


def _guarded(fn: Callable[..., Any], positions: Sequence[int]) -> Callable[..., Any]:
    """The function, given read-only views of the arrays at some positions."""

    def call(*inputs: Any) -> Any:
        given = [*inputs]
        for i in positions:
            if type(given[i]) is np.ndarray:
                given[i] = view = given[i].view()
                view.setflags(False)  # as `read_only`
        return fn(*given)

    return call


def checked(value: Any, spec: TensorSpec, what: str) -> Any:
    """A value that a function has given, as a read-only array of a type.

    Raises:
        ShapeError, DTypeError: if it does not fit; the message says what it is.
    """
    return value if spec.is_object else read_only(as_array(value, spec, what))
