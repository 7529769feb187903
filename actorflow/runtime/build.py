"""From a plan's steps and slots to actors, on the lanes and with the buffers of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from actorflow.actors.blob import BlobActor, UpdateActor, ViewActor
from actorflow.actors.function import AsyncActor, FunctionActor
from actorflow.actors.op import KernelActor, OpActor
from actorflow.actors.segment import SegmentActor
from actorflow.actors.stream import (
    StagingActor,
    StreamFunctionActor,
    StreamKernelActor,
    StreamViewActor,
    TransferActor,
    WorkerTransferActor,
)
from actorflow.devices import Bucket, Device
from actorflow.devices.stream import StreamDevice, StreamLane
from actorflow.graph.nodes import Variable
from actorflow.ops.collective import AllReduce
from actorflow.ops.function import Function
from actorflow.ops.registry import ANY, Kernel, KernelKey
from actorflow.ops.transfer import Receive, Send, Stage, Transfer
from actorflow.plan.plan import Plan, PlannedOp, Slot
from actorflow.ranks.edges import AllReduceActor, ChannelActor, ChannelLane, Exchange, ReceiveActor, SendActor
from actorflow.trace.counters import OpProfile, SegmentProfile

if TYPE_CHECKING:
    from actorflow.runtime.engine import Engine


class Wiring:
    """Makes the actors of one plan.

    Attributes:
        blobs: One actor per slot.
        ops: One actor per step.
        receivers: What fires for each step: its actor, or that of its segment.
        fired: Those, each once.
        pending: Messages that each mailbox waits for.
        exchange: What is exchanged with other ranks, if anything.
    """

    # What ops become; tests bring actors that fail.
    kernel_kind: ClassVar[type[KernelActor]] = KernelActor
    function_kind: ClassVar[type[FunctionActor]] = FunctionActor
    async_kind: ClassVar[type[AsyncActor]] = AsyncActor
    stream_kernel_kind: ClassVar[type[StreamKernelActor]] = StreamKernelActor
    stream_function_kind: ClassVar[type[StreamFunctionActor]] = StreamFunctionActor

    def __init__(self, plan: Plan, engine: Engine) -> None:
        self._plan = plan
        self._engine = engine
        self.exchange = None if plan.identity is None else Exchange(engine.peers, plan.identity)
        self._writers = {slot: op for op in plan.ops for slot in op.outputs}
        self._users = _users(plan, engine)
        for slot in plan.slots if self._users else ():
            if isinstance(slot.blob, Variable) and slot.place == slot.blob.place:
                engine.variable_actor(slot.blob).lanes.update(dict.fromkeys(self._users[slot.index]))
        self.blobs: list[BlobActor] = []
        for slot in plan.slots:  # those that an op reads stand before those that it writes
            self.blobs.append(self._blob_actor(slot, self._writers.get(slot.index)))
        self.ops: list[OpActor] = []
        for op in plan.ops:
            self.ops.append(self.op_actor(op))
        self.receivers = self.ops
        self.fired = self.ops
        self.pending = [op.waits for op in plan.ops]
        if plan.segments:
            self._join_segments()
        else:
            for slot, blob in zip(plan.slots, self.blobs, strict=True):
                blob.consumers = tuple([self.ops[index] for index in slot.consumers])
        for actor, op in zip(self.ops, plan.ops, strict=True):
            actor.disregard(tuple([self.blobs[slot] for slot in op.outputs if not plan.slots[slot].readers]))

    # -- blobs --------------------------------------------------------------------------------------------------

    def _blob_actor(self, slot: Slot, writer: PlannedOp | None) -> BlobActor:
        index = len(self.blobs)  # not the slot's number: kept, that would keep the memory of the plan around it, too
        if slot.updates is not None:
            actor = self._engine.variable_actor(slot.updates)
            return UpdateActor(index, self._home(slot.updates), actor, self._plan.reads[slot.updates])
        if isinstance(slot.blob, Variable) and writer is None:
            return BlobActor(index, self._home(slot.blob))
        if writer is None or slot.spec.dtype.hasobject:  # a bucket would keep Python objects alive
            return BlobActor(index, None)
        if self._engine.device(slot.place).is_stream:
            returns = writer.kernel is None or writer.kernel.returns
            return (StreamViewActor if returns else BlobActor)(index, self._bucket(slot, writer))
        if isinstance(writer.operation, Function):
            return BlobActor(index, None)
        if writer.kernel is not None and writer.kernel.returns:
            return ViewActor(index, self.blobs[writer.inputs[0]].bucket if len(writer.inputs) == 1 else None)
        return BlobActor(index, self._bucket(slot, writer))

    def _bucket(self, slot: Slot, writer: PlannedOp) -> Bucket:
        """Where the buffers of a slot come from."""
        engine, device = self._engine, self._engine.device(slot.place)
        if isinstance(device, StreamDevice):
            lanes = self._users[slot.index]
            assert writer.lane is not None
            lane = device.lane(writer.lane) if writer.place == slot.place else lanes[0]
            assert isinstance(lane, StreamLane)
            return device.memory.bucket(slot.spec, lane, lanes)
        # What a device copies to or from by itself is memory of its own kind.
        operation = writer.operation
        partner = operation.source if isinstance(operation, Transfer) else None
        partner = operation.device if isinstance(operation, Stage) else partner
        if partner is not None and engine.device(partner).is_staged:
            return engine.device(partner).staging.bucket(slot.spec)
        return device.memory.bucket(slot.spec)

    def _home(self, variable: Variable) -> Bucket | None:
        """Where a variable's old values go: to where its new ones come from."""
        device = self._engine.device(variable.place)
        if isinstance(device, StreamDevice):
            return device.memory.bucket_of(variable.spec, self._engine.variable_actor(variable).lanes)
        producers = variable.producers
        if not producers or (len(producers) == 1 and isinstance(producers[0].operation, Function)):
            return None
        return device.memory.bucket(variable.spec)

    # -- segments -----------------------------------------------------------------------------------------------

    def may_be_captured(self, op: PlannedOp) -> bool:
        """Whether a segment of the plan may have this op as a part of it."""
        return True

    def _join_segments(self) -> None:
        """Messages from outside a segment go to its actor; there are none within it."""
        plan = self._plan
        receivers: list[OpActor] = [*self.ops]
        segments = [segment for segment in plan.segments if all(self.may_be_captured(plan.ops[i]) for i in segment)]
        for segment in segments:
            joined = self._segment_actor(segment)
            for index in segment:
                receivers[index] = joined
        for slot, blob in zip(plan.slots, self.blobs, strict=True):
            writer = self._writers.get(slot.index)
            inside = None if writer is None else receivers[writer.index]
            consumers = [receivers[index] for index in slot.consumers]
            blob.consumers = tuple([actor for actor in consumers if actor is not inside])
            for actor in consumers:
                if actor is inside:
                    self.pending[actor.index] -= 1
        for segment in segments:
            first = receivers[segment[0]].index
            for index in segment:
                if index != first:
                    self.pending[first] += self.pending[index]
                    self.pending[index] = 0
        self.receivers, self.fired = receivers, list(dict.fromkeys(receivers))

    def _segment_actor(self, segment: Sequence[int]) -> SegmentActor:
        plan, engine, indices = self._plan, self._engine, set(segment)
        parts = [part for part in map(self.ops.__getitem__, segment) if isinstance(part, StreamKernelActor)]
        ops = [plan.ops[index] for index in segment]
        written = [plan.slots[slot] for op in ops for slot in op.outputs]
        within = {slot.index for slot in written}
        device = engine.device(ops[0].place)
        assert isinstance(device, StreamDevice)
        ids = tuple([op.shown_as.id for op in ops])
        return SegmentActor(
            parts,
            tuple([self.blobs[slot] for op in ops for slot in op.inputs if slot not in within]),
            tuple(
                [
                    self.blobs[slot.index]
                    for slot in written
                    if slot.updates is not None or not indices.issuperset(slot.consumers)
                ]
            ),
            device,
            engine.segments.setdefault(ids, SegmentProfile(tuple([op.node.name for op in ops]))),
        )

    # -- ops ----------------------------------------------------------------------------------------------------

    def op_actor(self, op: PlannedOp) -> OpActor:
        """The actor of a step."""
        engine = self._engine
        device = engine.device(op.place)
        assert op.lane is not None
        speaks = isinstance(op.operation, Send | Receive | AllReduce)
        arguments = (
            len(self.ops),  # not the plan's number, as for blobs
            op.node,
            op.shown_as.id,
            tuple([self.blobs[slot] for slot in op.inputs]),
            tuple([self.blobs[slot] for slot in op.outputs]),
            ChannelLane(op.lane) if speaks else device.lane(op.lane),
            engine.profile.setdefault(op.shown_as.id, OpProfile()),
        )
        if speaks:
            return self._channel_actor(op, arguments)
        actor: OpActor
        if isinstance(op.operation, Function):
            actor = self._function_actor(op, device, arguments)
        else:
            actor = self._kernel_actor(op, device, arguments)
        if isinstance(actor, StreamKernelActor | StreamFunctionActor):
            is_here = [self._plan.slots[slot].place == op.place for slot in op.inputs]
            actor.split(device, is_here, at_once=engine.budget is None and op.node.attempts is None)
            if isinstance(op.operation, Transfer):
                actor.label = f"copy of {op.shown_as.name}"
        actor.key = engine.trace.key(actor.node_id, _track(op))
        return actor

    def _channel_actor(self, op: PlannedOp, arguments: Any) -> ChannelActor:
        operation, exchange = op.operation, self.exchange
        assert exchange is not None
        actor: ChannelActor
        if isinstance(operation, Send):
            actor = SendActor(*arguments, exchange=exchange, peer=operation.target, edge=operation.edge)
            exchange.add_edge(actor.peer, actor.edge, is_sent=True)
        else:
            bucket = self._bucket(self._plan.slots[op.outputs[0]], op)
            if isinstance(operation, Receive):
                peer, edge = operation.source, operation.edge
                actor = ReceiveActor(*arguments, exchange=exchange, peer=peer, edge=edge, bucket=bucket)
                exchange.add_edge(peer, edge, is_sent=False)
            else:
                assert isinstance(operation, AllReduce)
                actor = AllReduceActor(*arguments, exchange=exchange, operation=operation, bucket=bucket)
        exchange.actors.append(actor)
        actor.key = self._engine.trace.key(actor.node_id, _track(op))
        return actor

    def _function_actor(self, op: PlannedOp, device: Device, arguments: Any) -> FunctionActor:
        operation = op.operation
        assert isinstance(operation, Function)
        specs = operation.specs
        if specs is None:
            specs = tuple([self._plan.slots[slot].spec for slot in op.outputs])
        kind = self.stream_function_kind if device.is_stream else self.function_kind
        return (self.async_kind if operation.is_async else kind)(
            *arguments,
            fn=operation.fn,
            specs=specs,
            turnstile=self._engine.turnstile(op.node),
        )

    def _kernel_actor(self, op: PlannedOp, device: Device, arguments: Any) -> KernelActor:
        engine, slots = self._engine, self._plan.slots
        operation, kernel = op.operation, op.kernel
        kind: type[KernelActor] = self.stream_kernel_kind if device.is_stream else self.kernel_kind
        if isinstance(operation, Stage):
            kernel, kind = _made(operation.kind, device, np.copyto), StagingActor
        elif isinstance(operation, Transfer):
            kernel = _made(
                operation.kind, device, _copy(engine.device(operation.source), engine.device(operation.target))
            )
            kind = TransferActor if device.is_stream else WorkerTransferActor
        assert kernel is not None
        buckets = tuple([self._bucket(slots[slot], op) for slot in op.outputs])
        actor = kind(
            *arguments, operation=operation, kernel=kernel, buckets=buckets, reuses=self._reuses_input(op, buckets)
        )
        if isinstance(actor, TransferActor | WorkerTransferActor):
            assert isinstance(operation, Transfer)
            actor.target = engine.device(operation.target)
        return actor

    def _reuses_input(self, op: PlannedOp, buckets: tuple[Bucket, ...]) -> bool:
        """Whether an op may write into its first input: nothing else reads that, and it came from the same pool."""
        if op.kernel is None or not op.kernel.inplace or op.node.attempts is not None:  # a retry needs its inputs
            return False
        slot = self._plan.slots[op.inputs[0]]
        bucket = self.blobs[slot.index].bucket
        is_alike = bucket is not None and bucket.pool is buckets[0].pool and bucket.spec == buckets[0].spec
        return is_alike and slot.readers == 1 and not isinstance(slot.blob, Variable)


def _track(op: PlannedOp) -> str:
    """What the trace says that the calls of a step run on, unless inline."""
    if isinstance(op.operation, Function) and op.operation.is_async:
        return "async functions"
    if isinstance(op.operation, Send | Receive):
        peer = op.operation.target if isinstance(op.operation, Send) else op.operation.source
        return f"channel with rank {peer}"
    return "collectives" if isinstance(op.operation, AllReduce) else f"{op.place} {op.lane}"


def _users(plan: Plan, engine: Engine) -> dict[int, tuple[StreamLane, ...]]:
    """The streams whose work uses each slot of a device with streams, or a slot whose memory it shows."""
    streams = {op.place for op in plan.ops if engine.device(op.place).is_stream}
    if not streams:
        return {}
    groups = {slot.index: {slot.index} for slot in plan.slots}
    for op in plan.ops:
        if op.kernel is not None and op.kernel.returns:  # outputs may be views of inputs
            merged = set().union(*[groups[slot] for slot in (*op.inputs, *op.outputs)])
            groups.update(dict.fromkeys(merged, merged))
    lanes: dict[int, dict[StreamLane, None]] = {slot.index: {} for slot in plan.slots}
    for op in plan.ops:
        if op.place in streams:
            assert op.lane is not None
            lane = engine.device(op.place).lane(op.lane)
            assert isinstance(lane, StreamLane)
            for slot in (*op.inputs, *op.outputs):
                if plan.slots[slot].place == op.place:
                    lanes[slot][lane] = None
    return {slot: tuple({lane: None for other in group for lane in lanes[other]}) for slot, group in groups.items()}


def _copy(source: Device, target: Device) -> Callable[[Any, Any], None]:
    """What copies from one device to another."""
    if source.is_host:
        return lambda to, value: target.copy_in(value, to)
    if target.is_host:
        return lambda to, value: source.copy_out(value, to)
    return lambda to, value: target.copy_peer(value, to)


def _made(operation: str, device: Device, copy: Callable[[Any, Any], None]) -> Kernel:
    """A kernel that is the device's own."""
    return Kernel(
        KernelKey(operation, device.place.kind, "device", ANY, ANY),
        lambda _, inputs, outputs: copy(outputs[0], inputs[0]),
    )
