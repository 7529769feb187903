"""Plans: a graph checked and put in order, with kernels, lanes and slots chosen. Pure: nothing here runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from actorflow.collector import collector_paused
from actorflow.devices import check_place
from actorflow.devices.blas import cores
from actorflow.errors import CycleError, DeviceUnavailableError, DTypeError, GraphError, OutOfMemoryError, PlaceError
from actorflow.footprint import Footprint, footprint
from actorflow.graph import Graph
from actorflow.node import Blob, Node, Op, Variable
from actorflow.ops.basic import Sum
from actorflow.ops.function import Function
from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel, find_kernel
from actorflow.place import Place
from actorflow.schedule import DEFAULT_LANE, assign_lanes, depth_first, put_critical_first, remaining_lengths
from actorflow.spec import TensorSpec

__all__ = ["Plan", "PlannedOp", "Slot", "make_plan", "needed_ops"]


@dataclass(slots=True)
class Slot:
    """Where one value of a frame is kept.

    Attributes:
        index: Position in the frame.
        blob: The blob whose value it is, or whose term or update.
        consumers: Indices of the ops that wait for it, once per argument.
        is_fed: The value comes from the application.
        is_fetched: The value goes to the application.
        updates: The variable whose new value it is.
        readers: How many read it; the last one gives its buffer back.
    """

    index: int
    blob: Blob
    consumers: list[int] = field(default_factory=list)
    is_fed: bool = False
    is_fetched: bool = False
    updates: Variable | None = None
    readers: int = 0


@dataclass(slots=True)
class PlannedOp:
    """One step of a plan.

    Attributes:
        index: Position in the order of the plan, a topological one.
        node: The op; for a sum that the plan inserted, the last producer.
        shown_as: The node whose state it shows: the op, or the blob with several producers.
        operation: What it computes.
        kernel: The chosen kernel; None for functions, which are their own.
        inputs: Slots that it reads.
        outputs: Slots that it writes.
        waits: How many messages it waits for.
        lane: The lane of its device that it runs on when it is not short.
    """

    index: int
    node: Op
    shown_as: Node
    operation: Operation
    kernel: Kernel | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    waits: int = 0
    lane: str = DEFAULT_LANE

    @property
    def place(self) -> Place:
        """Where it runs."""
        return self.node.place


@dataclass(slots=True)
class Plan:
    """How one selection of a graph's ops runs.

    Attributes:
        graph: The root graph.
        ops: In a topological order.
        roots: Indices of those that read nothing that an op writes, in the order in which they are to be fired.
        slots: All values of a frame.
        feeds: Slot of each blob that must be fed.
        fetches: Slot of each blob that is returned.
        reads: Slot of each variable that is read or awaited.
        updates: Variables that the plan writes.
    """

    graph: Graph
    ops: list[PlannedOp]
    roots: list[int]
    slots: list[Slot]
    feeds: dict[Blob, int]
    fetches: dict[Blob, int]
    reads: dict[Variable, int]
    updates: tuple[Variable, ...]

    def footprint(self) -> Footprint:
        """How much memory one frame takes."""
        return footprint(self.ops, self.slots)

    def summary(self) -> str:
        """A table of the steps: op, kernel, place and lane, inputs and outputs; then what is fed and fetched."""
        from actorflow.describe import plan_table

        return plan_table(self)


@collector_paused()
def make_plan(graph: Graph, targets: Sequence[Blob | Op | Graph] | None) -> Plan:
    """Check a graph, or the part of it that ``targets`` need, and plan it.

    Raises:
        GraphError: for a cycle (`CycleError`), an op without inputs or outputs, a deleted input, nothing to run.
        PlaceError, DeviceUnavailableError: if a place is not to be had.
        KernelNotFoundError: if a device has no kernel for an operation.
        OutOfMemoryError: if it can never fit the graph's budget.
    """
    if targets is None:
        ops, fetched = graph.ops, graph.sinks
    else:
        ops = needed_ops(targets)
        fetched = tuple(dict.fromkeys(target for target in targets if isinstance(target, Blob)))
    if not ops and not fetched:
        raise GraphError(f"graph {graph.name!r} has no ops to run")
    ordered = _in_order(graph, ops)
    _check_places(ordered, fetched)
    _load_kernels()
    plan = _Planner(graph, ordered).plan(fetched)
    budget_bytes = graph.modes.memory_budget_bytes
    if budget_bytes is not None:
        _check_budget(plan, budget_bytes)
    return plan


def _check_budget(plan: Plan, budget_bytes: int) -> None:
    cost = plan.footprint()
    variable_bytes = sum(variable.spec.size_bytes for variable in plan.graph.variables)
    if variable_bytes + cost.peak_bytes > budget_bytes:
        raise OutOfMemoryError(
            f"graph {plan.graph.name!r} needs {variable_bytes + cost.peak_bytes:,} bytes, "
            f"its budget is {budget_bytes:,} bytes\n{cost}"
        )


def needed_ops(targets: Iterable[Blob | Op | Graph]) -> tuple[Op, ...]:
    """The ops that ``targets`` need, in order of creation: a blob needs its producers, a sub-graph all its ops.

    A variable needs nothing: its value is there.
    """
    todo: list[Op] = []
    for target in targets:
        if isinstance(target, Graph):
            todo.extend(target.ops)
        elif isinstance(target, Op):
            todo.append(target)
        elif not isinstance(target, Variable):
            todo.extend(target.producers)
    found = set(todo)
    while todo:
        for blob in todo.pop().inputs:
            if not isinstance(blob, Variable):
                for producer in blob.producers:
                    if producer not in found:
                        found.add(producer)
                        todo.append(producer)
    return tuple(sorted(found, key=lambda op: op.id))


def _load_kernels() -> None:
    import actorflow.ops.cpu  # noqa: F401  kernels register themselves, when the first plan asks for them


def _in_order(graph: Graph, ops: Collection[Op]) -> list[Op]:
    """Check each op's connections and sort topologically; ops that could run at once stay in order of creation."""
    waits = [1] * graph.size  # by id; an op that is not chosen waits for ever
    for op in ops:
        waits[op.id] = 0
    for op in ops:
        _check_connected(op)
        for blob in op.outputs:
            if not isinstance(blob, Variable):  # what reads one in this frame reads the value from before
                for consumer in blob.consumers:
                    waits[consumer.id] += 1
    ready = [op for op in ops if not waits[op.id]]
    ordered = []
    for op in ready:  # grows while it is read
        ordered.append(op)
        for blob in op.outputs:
            if isinstance(blob, Variable):
                continue
            for consumer in blob.consumers:
                left = waits[consumer.id] - 1
                waits[consumer.id] = left
                if not left:
                    ready.append(consumer)
    if len(ordered) < len(ops):
        done = set(ordered)
        raise CycleError(_find_cycle([op for op in ops if op not in done]))
    return ordered


def _check_places(ops: Iterable[Op], fetched: Iterable[Blob]) -> None:
    seen: set[Place] = set()
    last: Place | None = None
    for nodes in chain(((op, *op.inputs, *op.outputs) for op in ops), [fetched]):
        for node in nodes:
            if node.place is not last:  # or the hashes of so many equal places would take most of the time
                last = node.place
                if last not in seen:
                    seen.add(last)
                    _check_place(node)


def _check_place(node: Node) -> None:
    try:
        check_place(node.place)
    except (PlaceError, DeviceUnavailableError) as error:
        kind = "op" if isinstance(node, Op) else "blob"
        raise type(error)(f"{kind} {node.name!r}: {error}; created at {node.site}") from None


def _check_connected(op: Op) -> None:
    if not op.is_connected:
        try:
            op.operation.check_arity(0)
        except GraphError:
            raise GraphError(
                f"op {op.name!r} ({op.operation}) is missing its inputs "
                f"({', '.join(op.operation.arguments)}): connect them, [blobs] >> op; created at {op.site}"
            ) from None
    if not op.outputs and op.expects_outputs:
        raise GraphError(
            f"op {op.name!r} ({op.operation}) is missing its output blobs: connect them, op >> [blobs]; "
            f"created at {op.site}"
        )
    root = op.graph.root
    if not root._has_lost_nodes:
        return
    for blob in (*op.inputs, *op.outputs):
        if root._nodes.get(blob.name) is not blob:
            raise GraphError(f"op {op.name!r} ({op.operation}) is connected to blob {blob.name!r}, which was deleted")


def _find_cycle(stuck: Sequence[Op]) -> list[str]:
    """Names along a cycle among ops of which each waits for another one of them."""
    waiting = set(stuck)
    path: list[Op] = []
    position: dict[Op, int] = {}
    op = stuck[0]
    through: list[Blob] = []
    while op not in position:
        position[op] = len(path)
        path.append(op)
        op, blob = next(
            (producer, blob)
            for blob in op.inputs
            if not isinstance(blob, Variable)
            for producer in blob.producers
            if producer in waiting
        )
        through.append(blob)
    start = position[op]
    names = [op.name]
    for producer, blob in zip(reversed(path[start:]), reversed(through[start:]), strict=True):
        # `through[i]` lies between `path[i]`, its reader, and the next one on the path, its writer.
        names += [blob.name, producer.name]
    return names


class _Planner:
    """Builds one plan."""

    def __init__(self, graph: Graph, ordered: list[Op]) -> None:
        self._graph = graph
        self._ordered = ordered
        self._chosen: set[Op] | None = None  # the same, once it is asked for
        self._slots: list[Slot] = []
        self._values: dict[Blob, Slot] = {}
        self._ops: list[PlannedOp] = []
        self._kernels: dict[tuple[str, str, np.dtype[Any]], Kernel] = {}
        self._feeds: dict[Blob, int] = {}
        self._reads: dict[Variable, int] = {}
        self._updates: dict[Variable, int] = {}  # and the op that gives the new value

    def plan(self, fetched: Sequence[Blob]) -> Plan:
        values = self._values
        terms: dict[Blob, list[tuple[Op, int]]] = {}
        for op in self._ordered:
            inputs = tuple([(values.get(blob) or self._value(blob)).index for blob in op.inputs])
            outputs = tuple([self._output(op, blob, terms) for blob in op.outputs])
            self._add(op, op, op.operation, inputs, outputs)
            if terms:
                for blob in op.outputs:
                    if blob in terms and len(terms[blob]) == self._expected(blob):
                        self._add_sum(blob, terms[blob])
        for blob in fetched:
            slot = self._value(blob)
            slot.is_fetched = True
            slot.readers += 1
        for variable, op_index in self._updates.items():
            self._await_turn(variable, self._ops[op_index])
        if self._graph.modes.memory_budget_bytes is not None:
            self._save_memory()
        lengths = remaining_lengths(self._ops, self._slots)
        roots = put_critical_first(self._ops, self._slots, lengths)
        assign_lanes(self._ops, self._slots, lengths, cores())
        return Plan(
            self._graph,
            self._ops,
            roots,
            self._slots,
            self._feeds,
            {blob: self._values[blob].index for blob in fetched},
            self._reads,
            tuple(self._updates),
        )

    def _save_memory(self) -> None:
        """Take the ops depth first, if less is held at once then."""
        order = depth_first(self._ops, self._slots)
        new_index = [0] * len(order)
        for index, old in enumerate(order):
            new_index[old] = index
        before = footprint(self._ops, self._slots).peak_bytes
        if footprint([self._ops[old] for old in order], self._slots).peak_bytes >= before:
            return
        self._ops = [self._ops[old] for old in order]
        for index, op in enumerate(self._ops):
            op.index = index
        for slot in self._slots:
            slot.consumers = [new_index[old] for old in slot.consumers]

    def _expected(self, blob: Blob) -> int:
        """How many producers of a blob the plan runs: all of them, but for variables, whose updates are chosen."""
        if not isinstance(blob, Variable):
            return len(blob.producers)
        if self._chosen is None:
            self._chosen = set(self._ordered)
        return sum(producer in self._chosen for producer in blob.producers)

    def _new_slot(self, blob: Blob) -> Slot:
        slot = Slot(len(self._slots), blob, [])
        self._slots.append(slot)
        return slot

    def _value(self, blob: Blob) -> Slot:
        """The slot that readers of a blob read."""
        slot = self._values.get(blob)
        if slot is None:
            slot = self._values[blob] = self._new_slot(blob)
            if isinstance(blob, Variable):
                self._reads[blob] = slot.index
            elif not blob.producers:
                slot.is_fed = True
                self._feeds[blob] = slot.index
        return slot

    def _output(self, op: Op, blob: Blob, terms: dict[Blob, list[tuple[Op, int]]]) -> int:
        """The slot that one producer of a blob writes."""
        if blob._has_several_producers:
            slot = self._new_slot(blob)
            terms.setdefault(blob, []).append((op, slot.index))
            return slot.index
        return self._final(blob).index

    def _final(self, blob: Blob) -> Slot:
        """The slot that holds the whole value written to a blob."""
        if not isinstance(blob, Variable):
            return self._value(blob)
        slot = self._new_slot(blob)
        slot.updates = blob
        slot.readers = 1  # the variable itself
        self._updates[blob] = len(self._ops)
        return slot

    def _add_sum(self, blob: Blob, terms: list[tuple[Op, int]]) -> None:
        """Add up what several producers wrote, in the order in which they were connected, whatever the timing."""
        written = dict(terms)
        inputs = tuple(written[op] for op in blob.producers if op in written)
        operation = Sum()
        try:
            operation.infer(*[blob.spec] * len(inputs))
        except DTypeError:
            names = ", ".join(op.name for op in blob.producers)
            raise DTypeError(
                f"blob {blob.name!r} {blob.spec} has several producers ({names}), which only numbers can have"
            ) from None
        self._add(terms[-1][0], blob, operation, inputs, (self._final(blob).index,))

    def _add(
        self, node: Op, shown_as: Node, operation: Operation, inputs: tuple[int, ...], outputs: tuple[int, ...]
    ) -> None:
        kernel = None
        if not isinstance(operation, Function):
            kernel = self._kernel(operation, node.place.kind, _kernel_spec(self._slots, inputs or outputs).dtype)
        index = len(self._ops)
        self._ops.append(PlannedOp(index, node, shown_as, operation, kernel, inputs, outputs, len(inputs)))
        for slot_index in inputs:
            slot = self._slots[slot_index]
            slot.consumers.append(index)
            slot.readers += 1

    def _kernel(self, operation: Operation, device: str, dtype: np.dtype[Any]) -> Kernel:
        """Found once for all ops of a sort: the search takes longer than all else that is done for an op."""
        key = (operation.kind, device, dtype)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = find_kernel(operation, device, dtype)
        return kernel

    def _await_turn(self, variable: Variable, op: PlannedOp) -> None:
        """An update that does not read its variable still waits for the frames before to have had their turn."""
        slot = self._value(variable)
        if slot.index not in op.inputs:
            slot.consumers.append(op.index)
            op.waits += 1


def _kernel_spec(slots: Sequence[Slot], indices: Sequence[int]) -> TensorSpec:
    """The type that a kernel is chosen for: that of the first input, or of the first output where there is none."""
    return slots[indices[0]].blob.spec
