"""Programs: plans made ready to run. A program has the actors; each frame brings its own counts and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from actorflow.actors.blob import BlobActor, UpdateActor, ViewActor
from actorflow.actors.budget import Account
from actorflow.actors.frame import Frame
from actorflow.actors.function import AsyncActor, FunctionActor
from actorflow.actors.op import FOREVER_NS, KernelActor, OpActor
from actorflow.actors.variable import Gate
from actorflow.collector import collector_paused
from actorflow.devices import Bucket
from actorflow.errors import FeedError, GraphError
from actorflow.footprint import slot_charges
from actorflow.node import Blob, Variable
from actorflow.ops.function import Function
from actorflow.plan import Plan, PlannedOp, Slot
from actorflow.spec import as_array
from actorflow.trace import NodeState, OpProfile

if TYPE_CHECKING:
    from actorflow.runtime import Engine

__all__ = ["Program", "Result"]

_NOT_FED = object()


class Result(Mapping["Blob | str", Any]):
    """What a frame fetched: arrays by blob or by name; iterates over the names.

    The arrays are the application's: no later frame changes them.
    """

    __slots__ = ("_blobs", "_by_name", "_values")

    def __init__(self, blobs: Mapping[Blob, int], by_name: Mapping[str, int], values: list[Any]) -> None:
        self._blobs = blobs
        self._by_name = by_name
        self._values = values

    def __getitem__(self, key: Blob | str) -> Any:
        index = self._by_name.get(key) if isinstance(key, str) else self._blobs.get(key)
        if index is None:
            name = key if isinstance(key, str) else getattr(key, "name", key)
            raise KeyError(f"{name!r} was not fetched; fetched: {', '.join(self._by_name) or 'nothing'}")
        return self._values[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Result {', '.join(f'{name}: {_describe(value)}' for name, value in self.items())}>"


class Program:
    """The actors of one plan, and what each frame starts from. It does not keep the plan.

    Attributes:
        graph: The root graph.
    """

    # What its ops become; tests bring actors that fail.
    kernel_kind: ClassVar[type[KernelActor]] = KernelActor
    function_kind: ClassVar[type[FunctionActor]] = FunctionActor
    async_kind: ClassVar[type[AsyncActor]] = AsyncActor

    @collector_paused()
    def __init__(self, plan: Plan, engine: Engine) -> None:
        self.graph = plan.graph
        self._engine = engine
        self._pending = [op.waits for op in plan.ops]
        writers = {slot: op for op in plan.ops for slot in op.outputs}
        blobs: list[BlobActor] = []
        for slot in plan.slots:  # those that an op reads stand before those that it writes
            blobs.append(self._blob_actor(plan, slot, writers.get(slot.index), blobs))
        ops = [self._op_actor(plan, op, blobs) for op in plan.ops]
        for slot, blob in zip(plan.slots, blobs, strict=True):
            blob.consumers = tuple([ops[index] for index in slot.consumers])
        if plan.graph.modes.sequential:
            self._chain(ops)
        for index, (actor, op) in enumerate(zip(ops, plan.ops, strict=True)):
            actor.index = index  # not the plan's number: kept, it would keep the memory around it, too
            actor.unread = tuple([blobs[slot] for slot in op.outputs if not plan.slots[slot].readers])
            actor.ends = not any(blob.consumers for blob in actor.outputs)

        self._ops = ops
        self._turnstiles = [actor.turnstile for actor in ops if actor.turnstile is not None]
        self._values = [_NOT_FED if slot.is_fed else None for slot in plan.slots]
        self._unshared: list[bytearray | None] = [None] * len(plan.slots)
        self._shared = [b.slot for s, b in zip(plan.slots, blobs, strict=True) if s.readers > 1]
        tokens = {count: b"\x01" + bytes(count - 1) for count in {slot.readers for slot in plan.slots} if count > 1}
        self._tokens = [tokens[slot.readers] for slot in plan.slots if slot.readers > 1]
        self._feeds: dict[Blob | str, tuple[int, Blob]] = {}
        for source, slot_index in plan.feeds.items():
            self._feeds[source] = self._feeds[source.name] = (slot_index, source)

        # What is there when a frame starts counts as delivered: only variables that take turns are waited for.
        self._constants: list[tuple[int, Variable]] = []
        self._gates: list[Gate] = []
        for slot_index in plan.feeds.values():
            self._deliver_ahead(plan.slots[slot_index])
        for variable, slot_index in plan.reads.items():
            slot = plan.slots[slot_index]
            if variable.producers:
                turns = engine.variable_actor(variable)
                updates = variable in plan.updates
                self._gates.append(Gate(turns, blobs[slot_index], bool(slot.readers), updates))
            else:
                self._constants.append((slot_index, variable))
                self._deliver_ahead(slot)
        self._first = [ops[index] for index in plan.roots if not self._pending[index]]
        # One end more than there are: the frame's start, so that an empty frame ends, too.
        self._open_ends = sum(actor.ends for actor in ops) + len(self._gates) + 1
        self._node_ids = np.array([actor.node_id for actor in ops], dtype=np.intp)

        self._sources = plan.feeds
        self._account = None if engine.budget is None else _account(plan)
        self._fetch_specs = [blob.spec for blob in plan.fetches]
        self._fetch_slots = list(plan.fetches.values())
        self._fetch_by_blob = {blob: i for i, blob in enumerate(plan.fetches)}
        self._fetch_by_name = {blob.name: i for i, blob in enumerate(plan.fetches)}
        self._scalars = [
            (blob.name, i)
            for i, blob in enumerate(plan.fetches)
            if blob.shape == () and np.issubdtype(blob.dtype, np.number) and blob.dtype.kind != "c"
        ]

    # -- frames -------------------------------------------------------------------------------------------------

    def feed(self, feeds: Mapping[Blob | str, npt.ArrayLike]) -> list[Any]:
        """The values that a frame starts with.

        Raises:
            FeedError, ShapeError, DTypeError: if the feeds do not fit the sources.
        """
        values = self._values.copy()
        for key, value in feeds.items():
            known = self._feeds.get(key)
            if known is None:
                self._check_unneeded(key)
                continue
            index, blob = known
            if values[index] is not _NOT_FED:
                raise FeedError(f"blob {blob.name!r} is fed twice")
            spec = blob.spec
            if type(value) is np.ndarray and value.shape == spec.shape and value.dtype == spec.dtype:
                values[index] = value
            else:
                values[index] = value if spec.is_object else as_array(value, spec, f"feed for blob {blob.name!r}")
        missing = [f"{b.name!r} {b.spec}" for b, index in self._sources.items() if values[index] is _NOT_FED]
        if missing:
            fed = ", ".join(repr(getattr(key, "name", key)) for key in feeds) or "nothing"
            raise FeedError(f"graph {self.graph.name!r} needs values for {', '.join(missing)}; fed: {fed}")
        return values

    def frame(self, number: int, values: list[Any], on_end: Callable[[Frame], None], atomic: bool) -> Frame:
        """A frame that has not begun."""
        engine = self._engine
        readers = self._unshared.copy()
        for slot, tokens in zip(self._shared, self._tokens):  # noqa: B905  the lengths are equal, and it costs time
            readers[slot] = bytearray(tokens)
        dispatcher = engine.dispatcher

        def ended(frame: Frame) -> None:
            for gate in self._gates:
                gate.forget(frame)
            if frame.budget is not None:
                frame.budget.close(frame)
            on_end(frame)

        return Frame(
            number=number,
            pending=self._pending.copy(),
            values=values,
            readers=readers,
            open_ends=self._open_ends,
            dispatcher=dispatcher,
            ended=dispatcher.loop.create_future(),
            on_end=ended,
            monitor=engine.monitor,
            turnstiles=self._turnstiles,
            ops=self._ops,
            atomic=atomic,
            budget=engine.budget,
        )

    def begin(self, frame: Frame) -> None:
        """Deliver what is there. The caller wakes the dispatcher."""
        if self.graph.modes.dry_run:
            frame.open = 1
            frame.close_end()
            return
        if frame.monitor is not None:
            np.frombuffer(frame.monitor.states, dtype=np.uint8)[self._node_ids] = NodeState.WAITING
            np.frombuffer(frame.monitor.dirty, dtype=np.uint8)[self._node_ids] = 1
        if frame.budget is not None:
            assert self._account is not None
            frame.budget.open(frame, Account(*self._account))
        for turnstile in self._turnstiles:
            turnstile.expect(frame)
        for slot, variable in self._constants:
            frame.values[slot] = variable.value
        frame.ready.extend([(actor, frame) for actor in self._first])
        for gate in self._gates:
            gate.enter(frame)
        frame.close_end()

    def result(self, frame: Frame) -> Result:
        """What a finished frame fetched."""
        values, frame.values = frame.values, []
        if self.graph.modes.dry_run:
            fetched: list[Any] = list(self._fetch_specs)
        else:
            fetched = [values[slot] for slot in self._fetch_slots]
        return Result(self._fetch_by_blob, self._fetch_by_name, fetched)

    def scalars(self, result: Result) -> list[tuple[str, Any]]:
        """The fetched 0-d numbers, by name."""
        if self.graph.modes.dry_run:
            return []
        return [(name, result._values[index]) for name, index in self._scalars]

    # -- construction -------------------------------------------------------------------------------------------

    def _blob_actor(self, plan: Plan, slot: Slot, writer: PlannedOp | None, earlier: Sequence[BlobActor]) -> BlobActor:
        index = len(earlier)  # not the slot's number, as for ops
        if slot.updates is not None:
            actor = self._engine.variable_actor(slot.updates)
            return UpdateActor(index, self._bucket(slot.updates), actor, plan.reads[slot.updates])
        if isinstance(slot.blob, Variable):
            return BlobActor(index, self._bucket(slot.blob))
        if writer is None or writer.kernel is None or slot.blob.dtype.hasobject:  # which a bucket would keep alive
            return BlobActor(index, None)
        if writer.kernel.returns:
            return ViewActor(index, earlier[writer.inputs[0]].bucket if len(writer.inputs) == 1 else None)
        return BlobActor(index, self._engine.device(slot.blob.place).memory.bucket(slot.blob.spec))

    def _bucket(self, variable: Variable) -> Bucket | None:
        """Where a variable's old values go: to where its new ones come from."""
        producers = variable.producers
        if not producers or (len(producers) == 1 and isinstance(producers[0].operation, Function)):
            return None
        return self._engine.device(variable.place).memory.bucket(variable.spec)

    def _op_actor(self, plan: Plan, op: PlannedOp, blobs: list[BlobActor]) -> OpActor:
        engine = self._engine
        device = engine.device(op.place)
        profile = engine.profile.setdefault(op.shown_as.id, OpProfile())
        arguments: Any = (
            op.index,
            op.node,
            op.shown_as.id,
            tuple([blobs[slot] for slot in op.inputs]),
            tuple([blobs[slot] for slot in op.outputs]),
            device.lane(op.lane),
            profile,
        )
        operation = op.operation
        if isinstance(operation, Function):
            specs = operation.specs
            if specs is None:
                specs = tuple([plan.slots[slot].blob.spec for slot in op.outputs])
            kind = self.async_kind if operation.is_async else self.function_kind
            turnstile = engine.turnstile(op.node)
            return kind(*arguments, fn=operation.fn, specs=specs, turnstile=turnstile)
        assert op.kernel is not None
        buckets = tuple([device.memory.bucket(plan.slots[slot].blob.spec) for slot in op.outputs])
        reuses = _reuses_input(plan, op, buckets, blobs)
        return self.kernel_kind(*arguments, operation=operation, kernel=op.kernel, buckets=buckets, reuses=reuses)

    def _chain(self, ops: Sequence[OpActor]) -> None:
        """Make every op wait for the one before it in the plan, and run on the loop."""
        for actor, following in pairwise(ops):
            baton = BlobActor(-1, None)
            baton.consumers = (following,)
            actor.outputs = (*actor.outputs, baton)
            self._pending[following.index] += 1
        for actor in ops:
            if not isinstance(actor, AsyncActor):
                actor.inline_ns = FOREVER_NS

    def _deliver_ahead(self, slot: Slot) -> None:
        for index in slot.consumers:
            self._pending[index] -= 1

    def _check_unneeded(self, key: Any) -> None:
        """A source that this program does not need may be fed; nothing else may."""
        graph = self.graph
        try:
            blob = graph.resolve(key)
        except GraphError as error:
            sources = ", ".join(repr(source.name) for source in graph.sources) or "none"
            raise FeedError(f"cannot feed {key!r}: {error}; sources: {sources}") from None
        if not isinstance(blob, Blob):
            raise FeedError(f"cannot feed {blob!r}: it is no blob")
        if isinstance(blob, Variable):
            raise FeedError(f"cannot feed variable {blob.name!r}: assign its .value")
        if blob.producers:
            raise FeedError(f"cannot feed blob {blob.name!r}: op {blob.producers[0].name!r} writes it")


def _reuses_input(plan: Plan, op: PlannedOp, buckets: Sequence[Bucket], blobs: Sequence[BlobActor]) -> bool:
    """Whether an op may write into its first input: nothing else reads that, and it came from the same bucket."""
    if op.kernel is None or not op.kernel.inplace or op.node.attempts is not None:  # a retry needs its inputs
        return False
    slot = plan.slots[op.inputs[0]]
    return slot.readers == 1 and not isinstance(slot.blob, Variable) and blobs[slot.index].bucket is buckets[0]


def _account(plan: Plan) -> tuple[int, list[int], list[int]]:
    """What each frame's account in a budget begins with; see `Account`."""
    charges = slot_charges(plan.ops, plan.slots)
    needs = [sum(charges[slot] for slot in op.outputs) for op in plan.ops]
    return plan.footprint().peak_bytes, needs, charges


def _describe(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) and value.shape else repr(value)
