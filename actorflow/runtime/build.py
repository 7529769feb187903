"""From a plan to a program: actors on the lanes and with the buffers of devices, each complete when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from graphlib import TopologicalSorter
from typing import Any, ClassVar

import numpy as np

from actorflow.actors import stream
from actorflow.actors.blob import BlobActor, UpdateActor, VariableActor, VariableUse, ViewActor
from actorflow.actors.finite import Look
from actorflow.actors.fused import FusedActor, StreamFusedActor
from actorflow.actors.op import FunctionActor, KernelActor, OpActor, Wiring, kernel_inline_ns
from actorflow.actors.segment import SegmentActor
from actorflow.actors.task import AsyncActor
from actorflow.core import FOREVER_NS
from actorflow.devices import Bucket, Device
from actorflow.devices.memory import RoomBucket
from actorflow.devices.stream import StreamDevice, StreamLane
from actorflow.errors import GraphError
from actorflow.graph.flow import WithBodies
from actorflow.graph.nodes import Op, Variable
from actorflow.loop import Steps, look_at
from actorflow.ops.collective import AllReduce
from actorflow.ops.function import Function
from actorflow.ops.fused import Followed, Fused
from actorflow.ops.operation import Operation
from actorflow.ops.registry import ANY, Kernel, KernelKey, lookup
from actorflow.ops.together import Together
from actorflow.ops.transfer import Receive, Send, Stage, Transfer
from actorflow.place import Place
from actorflow.plan.emitting import Emission
from actorflow.plan.memory import rooms_of
from actorflow.plan.plan import Plan, PlannedOp, Slot
from actorflow.ranks.edges import AllReduceActor, ChannelActor, ChannelLane, Exchange, ReceiveActor, SendActor
from actorflow.runtime.bodies import Part, body_actor, bucket_of_output
from actorflow.runtime.constants import constants_of
from actorflow.runtime.emissions import EmitActor
from actorflow.runtime.program import Program
from actorflow.runtime.resources import Resources
from actorflow.trace.counters import OpProfile, SegmentProfile

#: Operations whose ops exchange messages with other ranks.
_MESSAGES = (Send, Receive, AllReduce)
#: Short steps of a slice of the loop's time (`actorflow.loop`) that it takes to make an op's actor, with its kernel.
_MAKING = 4


def building(plan: Plan, resources: Resources, builder: type[Builder] | None = None) -> Steps[Program]:
    """Make a plan ready to run.

    Args:
        plan: The plan, which the program does not keep.
        resources: Its frames will run on these.
        builder: Makes the actors; tests pass one whose actors fail.
    """
    made = (builder or Builder)(plan, resources)
    yield from made.make_actors()
    yield look_at(plan.slots)
    return Program(plan, made, resources)


class Builder:
    """Makes the actors of one plan, from the last op to the first, so that each op is given its followers.

    Attributes:
        receivers: The actor that fires for each op of the plan: its own, or that of its segment.
        fired: These actors, each once.
        kept: Slots whose values stay for as long as the frame does: readers neither count nor give back.
        exchange: Messages to and from other ranks, if there are any.
        uses: Reads and updates of variables whose frames take turns.
        variables_read: Slots of the other variables that are read, whose values are there when a frame starts.
        weights: Slots of variables on devices with streams, with their device.
    """

    # Classes of the ops' actors; tests bring actors that fail.
    kernel_kind: ClassVar[type[KernelActor]] = KernelActor
    function_kind: ClassVar[type[FunctionActor]] = FunctionActor
    async_kind: ClassVar[type[AsyncActor]] = AsyncActor
    stream_kernel_kind: ClassVar[type[stream.StreamKernelActor]] = stream.StreamKernelActor
    stream_function_kind: ClassVar[type[stream.StreamFunctionActor]] = stream.StreamFunctionActor

    def __init__(self, plan: Plan, resources: Resources) -> None:
        self._plan = plan
        self._resources = resources
        self.exchange = None if plan.identity is None else Exchange(resources.peers, plan.identity)
        self.constants: dict[int, Any] = {}  # values that frames begin with, by slot
        self.kept = _kept(plan, resources)
        self.blobs: list[BlobActor] = []  # one actor per slot
        self.uses: list[VariableUse] = []
        self.variables_read: list[tuple[int, VariableActor]] = []
        self.weights: list[tuple[int, Device]] = []
        self._writers: dict[int, PlannedOp] = {}  # what writes each slot
        self.pending = [op.waits for op in plan.ops]  # number of messages that each mailbox waits for
        self.ops: list[Any] = [None] * len(plan.ops)  # one actor per op of the plan
        self.receivers = self.ops if not plan.segments else [*self.ops]
        self.fired: list[OpActor] = self.ops
        self._users: dict[int, tuple[StreamLane, ...]] = {}
        self._rooms: dict[int, int] = {}
        self._is_sequential = plan.graph.options.sequential
        self._kernel_inline_ns = kernel_inline_ns()
        self._parts: dict[int, list[Part | GraphError]] = {}  # by the index of the op that computes them
        self._next: OpActor | None = None  # of a sequential graph: the op behind the one that is made now

    def make_actors(self) -> Steps[None]:
        """Make all of them, and compute the constants that they begin with."""
        plan, resources = self._plan, self._resources
        for op in plan.ops:
            if isinstance(op.operation, Function):
                assert op.lane is not None
                op.lane = resources.function_lane(op.node, op.lane)
        if plan.graph.options.deterministic:
            resources.device(Place())  # from here on BLAS has one thread
        self.constants = constants_of(plan, resources)
        resources.show_constants({op.site.id for op in plan.folded if op.site is op.node})
        yield look_at(plan.slots)
        for op in plan.ops:
            if isinstance(op.operation, WithBodies):
                parts: list[Part | GraphError] = []
                for i, body in enumerate(op.bodies):
                    if isinstance(body, GraphError):
                        parts.append(body)
                        continue
                    body.check, body.segments = plan.check, () if plan.check is not None else body.segments
                    program = yield from building(body, resources, type(self))
                    parts.append(Part(op.operation, i, body, program))
                self._parts[op.index] = parts
        self._users = _users(plan, resources)
        if resources.budget is None:
            self._rooms = yield from rooms_of(plan.ops, plan.slots)
        for slot in plan.slots if self._users else ():
            if isinstance(slot.blob, Variable) and slot.place == slot.blob.place:
                resources.variable_actor(slot.blob).lanes.update(dict.fromkeys(self._users[slot.index]))
        for variable in plan.reads:
            resources.variable_actor(variable)
            yield
        self._writers = writers = {slot: op for op in plan.ops for slot in op.outputs}
        for slot in plan.slots:  # those that an op reads stand before those that it writes
            self.blobs.append(self._blob_actor(slot, writers.get(slot.index)))
            yield
        for unit in self._units():
            for index in reversed(unit):
                self.ops[index] = self.receivers[index] = self.op_actor(plan.ops[index], index)
                yield _MAKING
            if len(unit) > 1:
                joined = self._segment_actor(unit)
                for index in unit:
                    self.receivers[index] = joined
        if plan.segments:
            self.fired = [*dict.fromkeys(self.receivers)]
        for variable, index in plan.reads.items():
            self._read_variable(variable, plan.slots[index])
            yield
        if self.exchange is not None:
            self.exchange.connect([actor for actor in self.fired if isinstance(actor, ChannelActor)])

    def _read_variable(self, variable: Variable, slot: Slot) -> None:
        actor, index = self._resources.variable_actor(variable), self.blobs[slot.index].slot
        readers = [self.receivers[op] for op in slot.consumers]
        if variable.producers:
            updates = variable in self._plan.updates
            self.uses.append(VariableUse(actor, index if slot.readers else None, tuple(readers), updates))
        else:
            self.variables_read.append((index, actor))
            for reader in readers:
                self.pending[reader.index] -= 1
        device = self._resources.device(variable.place)
        if device.is_stream:
            self.weights.append((slot.index, device))

    def _units(self) -> Iterable[tuple[int, ...]]:
        """The ops that fire together, each such unit behind all that follow it.

        The numbers are new ones, not the plan's: one that is kept would keep the memory of the plan around it.
        """
        ops, slots = self._plan.ops, self._plan.slots
        segments = [unit for unit in self._plan.segments if all(self.may_be_captured(ops[index]) for index in unit)]
        if not segments:
            return ((index,) for index in reversed(range(len(ops))))
        unit_of = {index: (index,) for index in range(len(ops))} | {index: unit for unit in segments for index in unit}
        sorter: TopologicalSorter[tuple[int, ...]] = TopologicalSorter()
        for index in range(len(ops)):
            following = {unit_of[consumer] for slot in ops[index].outputs for consumer in slots[slot].consumers}
            sorter.add(unit_of[index], *(following - {unit_of[index]}))
        return sorter.static_order()

    # -- blobs ---------------------------------------------------------------------------------------------------------

    def _blob_actor(self, slot: Slot, writer: PlannedOp | None) -> BlobActor:
        index = len(self.blobs)  # not the slot's number: kept, that would keep the memory of the plan around it, too
        if slot.updates is not None:
            actor = self._resources.variable_actor(slot.updates)
            return UpdateActor(index, self._home(slot.updates), actor, self._plan.reads[slot.updates])
        if isinstance(slot.blob, Variable) and writer is None:
            return BlobActor(index, self._home(slot.blob))
        if writer is None or slot.spec.dtype.hasobject:  # a bucket would keep Python objects alive
            return BlobActor(index, None)
        device = self._resources.device(slot.place)
        if isinstance(device, StreamDevice) and writer.bodies:
            # It has come out of a body, in which all work on it has ended.
            return stream.StreamViewActor(index, device.memory.bucket_of(slot.spec, self._users.get(slot.index, ())))
        if device.is_stream:
            returns = writer.kernel is None or writer.kernel.returns
            return (stream.StreamViewActor if returns else BlobActor)(index, self._bucket(slot, writer))
        if isinstance(writer.operation, Function | Emission):
            return BlobActor(index, None)
        if writer.bodies:
            position = writer.outputs.index(slot.index)
            return BlobActor(index, bucket_of_output(writer.operation, self._parts[writer.index], position))
        if writer.kernel is not None and writer.kernel.returns:
            return ViewActor(index, self.blobs[writer.inputs[0]].bucket if len(writer.inputs) == 1 else None)
        return BlobActor(index, self._bucket(slot, writer))

    def _bucket(self, slot: Slot, writer: PlannedOp) -> Bucket:
        resources, device = self._resources, self._resources.device(slot.place)
        if isinstance(device, StreamDevice):
            lanes = self._users[slot.index]
            assert writer.lane is not None
            lane = device.lane(writer.lane) if writer.place == slot.place else lanes[0]
            assert isinstance(lane, StreamLane)
            return device.memory.bucket(slot.spec, lane, lanes)
        # Memory that a device copies to or from by itself is of its own kind.
        operation = writer.operation
        partner = operation.source if isinstance(operation, Transfer) else None
        partner = operation.device if isinstance(operation, Stage) else partner
        if partner is not None and resources.device(partner).is_staged:
            return resources.device(partner).staging.bucket(slot.spec)
        room_bytes = self._rooms.get(slot.index)
        if room_bytes is not None and device.shares_memory:
            return RoomBucket(device.memory.room(room_bytes), slot.spec)
        return device.memory.bucket(slot.spec)

    def _home(self, variable: Variable) -> Bucket | None:
        device = self._resources.device(variable.place)
        if isinstance(device, StreamDevice):
            return device.memory.bucket_of(variable.spec, self._resources.variable_actor(variable).lanes)
        producers = variable.producers
        if not producers or (len(producers) == 1 and isinstance(producers[0].operation, Function)):
            return None
        return device.memory.bucket(variable.spec)

    # -- segments ------------------------------------------------------------------------------------------------------

    def may_be_captured(self, op: PlannedOp) -> bool:
        """Return whether this op may be a part of a segment."""
        return True

    def _segment_actor(self, segment: tuple[int, ...]) -> SegmentActor:
        """The actor of ops that are launched as one: messages from outside go to it, and there are none within it."""
        inside, ops = set(segment), [self._plan.ops[index] for index in segment]
        written = [self._plan.slots[slot] for op in ops for slot in op.outputs]
        within = {slot.index for slot in written}
        readers = [index for slot in written for index in slot.consumers]
        outer = [index for index in readers if index not in inside]
        leaving = [slot for slot in written if slot.updates is not None or not inside.issuperset(slot.consumers)]
        self.pending[segment[0]] = sum(self.pending[index] for index in segment) - (len(readers) - len(outer))
        for index in segment[1:]:
            self.pending[index] = 0
        first: OpActor = self.ops[segment[0]]
        wiring = Wiring(
            mailbox=first.index,
            node=first.node,
            node_id=first.node_id,
            key=first.node_id,
            inputs=tuple([self.blobs[slot] for op in ops for slot in op.inputs if slot not in within]),
            freed=(),
            outputs=tuple([self.blobs[slot.index] for slot in leaving]),
            unread=(),
            followers=tuple([self.receivers[index] for index in outer]),
            lane=first.lane,
            profile=first.profile,
        )
        device = self._resources.device(ops[0].place)
        assert isinstance(device, StreamDevice)
        usage = SegmentProfile(tuple([op.node.name for op in ops]))
        usage = self._resources.segments.setdefault(tuple([op.site.id for op in ops]), usage)
        return SegmentActor(wiring, parts=[self.ops[index] for index in segment], device=device, usage=usage)

    # -- ops -----------------------------------------------------------------------------------------------------------

    def op_actor(self, op: PlannedOp, index: int) -> OpActor:
        """The actor of an op of the plan; its followers have been made."""
        resources, slots = self._resources, self._plan.slots
        device = resources.device(op.place)
        assert op.lane is not None
        speaks = isinstance(op.operation, _MESSAGES)
        is_sequential = self._is_sequential and not speaks
        followers = [self.receivers[i] for slot in op.outputs for i in slots[slot].consumers]
        if is_sequential and self._next is not None:
            followers.append(self._next)
            self.pending[self._next.index] += 1
        blobs, node_id = self.blobs, op.site.id
        profile = resources.profile.get(node_id)
        if profile is None:
            profile = resources.profile[node_id] = OpProfile()
        inputs = tuple([blobs[slot] for slot in op.inputs])
        wiring = Wiring(  # by position, as there are very many
            index,
            op.node,
            node_id,
            resources.trace.key(node_id, _track(op)),
            inputs,
            inputs if self.kept.isdisjoint(op.inputs) else tuple([blobs[i] for i in op.inputs if i not in self.kept]),
            tuple([blobs[slot] for slot in op.outputs]),
            tuple([blobs[slot] for slot in op.outputs if not slots[slot].readers]),
            tuple(followers),
            ChannelLane(op.lane) if speaks else device.lane(op.lane),
            profile,
            FOREVER_NS if is_sequential else self._inline_ns(op.operation),
            self._look(op, device),
        )
        if speaks:
            return self._channel_actor(op, wiring)
        if isinstance(op.operation, Emission):
            (part,), (body,) = self._parts[op.index], op.bodies
            assert isinstance(part, Part)
            assert isinstance(body, Plan)
            values = [body.slots[slot].spec for slot in body.results]
            return EmitActor(wiring, op.operation, part, resources.turnstile(op.operation.op), op.specs, values)
        if isinstance(op.operation, WithBodies):
            parts = self._parts[op.index]
            in_turn = (
                resources.turnstile(op.node) if any(isinstance(part, Part) and part.guards for part in parts) else None
            )
            return body_actor(wiring, op.operation, parts, in_turn, op.specs)
        make = self._function_actor if isinstance(op.operation, Function) else self._kernel_actor
        actor: OpActor = make(op, device, wiring)
        if is_sequential:  # but for messages: ranks that wait for each other's in different orders would do so for ever
            self._next = actor
        return actor

    def _inline_ns(self, operation: Operation) -> int | None:
        if operation.may_last:
            return -1
        return None if isinstance(operation, Function) else self._kernel_inline_ns

    def _channel_actor(self, op: PlannedOp, wiring: Wiring) -> ChannelActor:
        operation, exchange = op.operation, self.exchange
        assert exchange is not None
        if isinstance(operation, Send):
            return SendActor(wiring, exchange, operation.target, operation.edge)
        bucket = self._bucket(self._plan.slots[op.outputs[0]], op)
        if isinstance(operation, Receive):
            return ReceiveActor(wiring, exchange, operation.source, operation.edge, bucket)
        assert isinstance(operation, AllReduce)
        return AllReduceActor(wiring, exchange, operation, bucket)

    def _on_stream(self, op: PlannedOp, device: Device) -> dict[str, Any]:
        at_once = self._resources.budget is None and op.node.attempts is None and not self._plan.is_partial
        slots = [self._plan.slots[slot] for slot in op.inputs]
        here = [self.blobs[slot.index] for slot in slots if slot.place == op.place and not slot.is_constant]
        label = f"copy of {op.site.name}" if isinstance(op.operation, Transfer) else op.node.name
        return {"device": device, "label": label, "early": tuple(here) if at_once else ()}

    def _function_actor(self, op: PlannedOp, device: Device, wiring: Wiring) -> FunctionActor:
        operation = op.operation
        assert isinstance(operation, Function)
        specs = op.specs if operation.specs is None else operation.specs
        turnstile = self._resources.turnstile(op.node)
        if device.is_stream and not operation.is_async:
            more = self._on_stream(op, device)
            return self.stream_function_kind(wiring, fn=operation.fn, specs=specs, turnstile=turnstile, **more)
        kind = self.async_kind if operation.is_async else self.function_kind
        guarded = [i for i, index in enumerate(op.inputs) if not self._is_read_only(index)]
        return kind(wiring, fn=operation.fn, specs=specs, turnstile=turnstile, guarded=guarded)

    def _is_read_only(self, index: int) -> bool:
        """Return whether a frame has an array that cannot be written to: a feed, or a function's result."""
        slot, writer = self._plan.slots[index], self._writers.get(index)
        return slot.is_fed or slot.spec.is_object or (writer is not None and isinstance(writer.operation, Function))

    def _kernel_actor(self, op: PlannedOp, device: Device, wiring: Wiring) -> KernelActor:
        resources, slots = self._resources, self._plan.slots
        operation, kernel = op.operation, op.kernel
        kind = self.stream_kernel_kind if device.is_stream else self.kernel_kind
        more = self._on_stream(op, device) if device.is_stream else {}
        if isinstance(operation, Stage):
            kernel, kind = _made(operation.kind, device, np.copyto), stream.CopyActor
            more["is_there"] = lambda source: not isinstance(source, np.ndarray)
        elif isinstance(operation, Transfer):
            target = resources.device(operation.target)
            kernel = _made(operation.kind, device, _copy(resources.device(operation.source), target))
            if device.is_stream:
                kind = stream.TransferActor
                more |= {"target": target, "for_segments": bool(self._plan.segments)}
            else:
                kind = stream.CopyActor
                more["is_there"] = lambda source: not target.is_host and target.is_array(source)
        assert kernel is not None
        kernel = kernel.bound(operation, [slots[slot].spec for slot in op.inputs])
        if op.parts:
            kind = StreamFusedActor if device.is_stream else FusedActor
            more["parts"] = tuple([self._part(op, wiring, site) for site in range(len(op.parts))])
        if kernel.keeps:
            strange = [i for i, slot in enumerate(op.inputs) if i and not self._is_own(slots[slot])]
            kernel = kernel.seeing_anew(strange) if strange else kernel
        buckets = tuple([self._bucket(slots[slot], op) for slot in op.outputs])
        reuses = self._reuses_input(op, buckets)
        return kind(wiring, operation=operation, kernel=kernel, buckets=buckets, reuses=reuses, **more)

    def _look(self, op: PlannedOp, device: Device) -> Look | None:
        """The look at an op's results, if that is wanted; what is written down is meant."""
        check, is_function = self._plan.check, isinstance(op.operation, Function)
        if check is None or (check.kernels_of_host and (is_function or not device.is_host)):
            return None
        return Look(check, self._resources.found) if op.inputs or is_function else None

    def _is_own(self, slot: Slot) -> bool:
        """Return whether nobody writes into the arrays that a slot has, for as long as something refers to them."""
        if slot.is_constant:
            return True
        if isinstance(slot.blob, Variable) and slot.index not in self._writers:
            return not any(map(_shows_others, slot.blob.producers))
        writer = self._writers.get(slot.index)
        return writer is not None and writer.kernel is not None and not writer.kernel.returns

    def _part(self, op: PlannedOp, wiring: Wiring, site: int) -> KernelActor:
        """The actor that a part of a fused op is traced and blamed under."""
        part, operation = op.parts[site], op.operation
        node_id = part.site.id
        assert isinstance(operation, Fused | Followed | Together)
        assert part.kernel is not None
        of = [operation.steps[step].site for step in operation.results]
        written = tuple([blob for blob, each in zip(wiring.outputs, of, strict=True) if each == site])
        profile = self._resources.profile.setdefault(node_id, OpProfile())
        key = self._resources.trace.key(node_id, _track(op))
        own = wiring._replace(node=part.node, node_id=node_id, key=key, inputs=(), freed=(), outputs=written, unread=())
        own = own._replace(followers=(), profile=profile)
        return KernelActor(own, operation=part.operation, kernel=part.kernel, buckets=(), reuses=False)

    def _reuses_input(self, op: PlannedOp, buckets: tuple[Bucket, ...]) -> bool:
        """Return whether an op may write into its first input: only it reads that, and both are of the same pool.

        A kernel's own array is not the pool's: written over, one more would go there in each frame.
        """
        if op.kernel is None or not op.kernel.inplace:
            return False
        if op.node.attempts is not None or self._plan.check is not None:  # a retry, or a look, needs its inputs
            return False
        slot = self._plan.slots[op.inputs[0]]
        bucket = self.blobs[slot.index].bucket
        is_alike = bucket is not None and bucket.pool is buckets[0].pool and bucket.spec == buckets[0].spec
        is_alike = is_alike and self._rooms.get(slot.index) == self._rooms.get(op.outputs[0])
        writer = self._writers.get(slot.index)
        is_alike = is_alike and not (writer is not None and writer.kernel is not None and writer.kernel.returns)
        # A buffer that a body has handed on may still be read on another stream, by work that refers to it no more.
        handed_on = writer is not None and writer.bodies and isinstance(self.blobs[slot.index], stream.StreamViewActor)
        is_alike = is_alike and not handed_on
        return is_alike and slot.readers == 1 and not isinstance(slot.blob, Variable)


def _kept(plan: Plan, resources: Resources) -> set[int]:
    """Slots of constants, and of variables that no op updates: these are the host's anyway, not a pool's."""
    constants = {slot.index for slot in plan.slots if slot.is_constant}
    reads = plan.reads.items()
    still = {i for each, i in reads if not each.producers and not resources.device(each.place).is_stream}
    return constants | still


def _shows_others(op: Op) -> bool:
    """Return whether an op's new value of a variable may be another's memory: a function's, or a view's."""
    if isinstance(op.operation, Function):
        return True
    kernel = lookup(op.operation, "cpu", "numpy", op.outputs[0].dtype)
    return kernel is not None and kernel.returns


def _track(op: PlannedOp) -> str:
    """Name in the trace of the track of an op's calls, unless inline."""
    if isinstance(op.operation, Function) and op.operation.is_async:
        return "async functions"
    if isinstance(op.operation, WithBodies):
        return "generators" if isinstance(op.operation, Emission) else "branches and loops"
    if isinstance(op.operation, Send | Receive):
        peer = op.operation.target if isinstance(op.operation, Send) else op.operation.source
        return f"channel with rank {peer}"
    return "collectives" if isinstance(op.operation, AllReduce) else f"{op.place} {op.lane}"


def _users(plan: Plan, resources: Resources) -> dict[int, tuple[StreamLane, ...]]:
    streams = {op.place for op in plan.ops if resources.device(op.place).is_stream}
    if not streams:
        return {}
    groups = {slot.index: {slot.index} for slot in plan.slots}
    for op in plan.ops:
        if op.bodies or (op.kernel is not None and op.kernel.returns):  # outputs may be inputs, or views of them
            merged = set().union(*[groups[slot] for slot in (*op.inputs, *op.outputs)])
            groups.update(dict.fromkeys(merged, merged))
    lanes: dict[int, dict[StreamLane, None]] = {slot.index: {} for slot in plan.slots}
    for op in plan.ops:
        if op.place in streams:
            assert op.lane is not None
            lane = resources.device(op.place).lane(op.lane)
            assert isinstance(lane, StreamLane)
            for slot in (*op.inputs, *op.outputs):
                if plan.slots[slot].place == op.place:
                    lanes[slot][lane] = None
    return {slot: tuple({lane: None for other in group for lane in lanes[other]}) for slot, group in groups.items()}


def _copy(source: Device, target: Device) -> Callable[[Any, Any], None]:
    if source.is_host:
        return lambda to, value: target.copy_in(value, to)
    if target.is_host:
        return lambda to, value: source.copy_out(value, to)
    return lambda to, value: target.copy_peer(value, to)


def _made(operation: str, device: Device, copy: Callable[[Any, Any], None]) -> Kernel:
    return Kernel(
        KernelKey(operation, device.place.kind, "device", ANY, ANY),
        lambda _, inputs, outputs: copy(outputs[0], inputs[0]),
    )
