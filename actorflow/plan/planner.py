"""From a graph to a plan: the checks, then kernels, copies between devices, slots, and last the order and the lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np

from actorflow.devices import Device, device_kind
from actorflow.errors import DTypeError, GraphError, KernelNotFoundError, OutOfMemoryError, ShapeError
from actorflow.graph.flow import Loop, Switch, WithBodies
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Node, Op, Variable
from actorflow.loop import Steps, look_at
from actorflow.ops.collective import AllReduce
from actorflow.ops.elementwise import Cast, Copy, Sum
from actorflow.ops.fills import Constant
from actorflow.ops.function import Function
from actorflow.ops.operation import Operation, apart
from actorflow.ops.registry import Kernel
from actorflow.ops.shaping import Transpose
from actorflow.ops.transfer import Receive, Send, Stage, Transfer
from actorflow.place import Place
from actorflow.plan.capture import captures, find_segments
from actorflow.plan.emitting import Emission, emitting
from actorflow.plan.fuse import fuse as fused
from actorflow.plan.homes import given_at, taken_at
from actorflow.plan.kernels import Choice, Selector
from actorflow.plan.lengths import Closed
from actorflow.plan.memory import footprint, places_of
from actorflow.plan.order import assign_lanes, depth_first, put_critical_first, remaining_lengths
from actorflow.plan.plan import Plan, PlannedOp, Slot
from actorflow.plan.ranks import Identity, home_of, identity_of, is_gathered, ranks_of_edges
from actorflow.plan.together import gather
from actorflow.plan.validate import check_places, chosen, in_order
from actorflow.spec import Lengths, TensorSpec, said

#: Lanes of copies to a device and from it.
INBOUND, OUTBOUND = "inbound", "outbound"
#: Most bytes of a constant that has more elements than its inputs: some of that size are not felt, and
#: many large ones, such as a number spread over a batch, would fill the memory for good.
SMALL_BYTES = 1 << 16
#: Where collectives show.
REDUCE = "reduce"


class Inside(NamedTuple):
    """Values that a body is given by its op, and gives to it, with the places where they are."""

    op: Op
    given: Mapping[Blob, Place]
    outputs: Sequence[tuple[Blob, Place]]


def planning(
    graph: Graph,
    targets: Sequence[Blob | Op | Graph] | None,
    *,
    fuse: bool | None = None,
    lengths: Lengths | None = None,
    tapped: Sequence[Blob] = (),
    fed: Collection[Blob] = (),
    inside: Inside | None = None,
    at_home: bool = False,
) -> Steps[Plan]:
    """Check a graph, or the part of it that ``targets`` need, and plan it. The graph must not change meanwhile.

    Args:
        graph: A root graph.
        targets: Blobs, ops and sub-graphs; None for the whole graph.
        fuse: Whether to join ops that can be computed in one pass; None as the graph's options say.
        lengths: Lengths of the axes that are open there; None if there are none.
        tapped: Blobs whose values are kept as well, where the ops that are needed read or write them.
        fed: Blobs that are fed though ops write them.
        inside: Of a body, its inputs and outputs, and their places.
        at_home: Whether feeds are already at the places of their blobs; else they are copied there from the host.
    Raises:
        GraphError: for a cycle (`CycleError`), an op without inputs or outputs, a deleted input, nothing to run, or
            lengths that do not fit (`ShapeError`).
        PlaceError, DeviceUnavailableError: if a place is not to be had.
        KernelNotFoundError: if neither a device nor the CPU has a kernel for an operation.
        OutOfMemoryError: if it can never fit a device's budget.
    """
    ops, fetched = chosen(graph, targets, fed)
    if not ops and not fetched:
        raise GraphError(f"graph {graph.name!r} has no ops to run")
    yield look_at(ops)
    ordered = in_order(graph, ops)
    yield look_at(ops)
    check_places(ordered, fetched, graph.world)
    closed = None
    if lengths is not None:
        closed = Closed(lengths)
        yield from closed.close(ordered)
    fuses = graph.options.fuse if fuse is None else fuse
    planner = _Planner(graph, ordered, fuses, closed, inside, fed=fed, at_home=at_home)
    found = emitting(ordered, fetched, planner.spec, planner.operation)
    per_item = () if found is None or found.fetched else fetched
    if found is not None:
        planner = _Planner(graph, found.ops, fuses, closed, inside, hidden=found.hidden, fed=fed)
        fetched = found.fetched
    if tapped:
        used = {blob for op in planner.ordered for blob in (*op.inputs, *op.outputs)}
        tapped = [blob for blob in tapped if blob in used]
    plan = yield from planner.plan((*fetched, *tapped) if tapped else fetched)
    plan.lengths = lengths or ()
    plan.per_item = per_item
    if tapped:
        kept = plan.fetches
        plan.fetches = {blob: kept[blob] for blob in fetched if blob in kept}
        plan.tapped = {blob: kept[blob] for blob in tapped if blob in kept}
    yield from _add_bodies(plan, fuse, closed)
    for place in places_of(plan.slots):
        _check_budget(plan, place)
    return plan


def _add_bodies(plan: Plan, fuse: bool | None, closed: Closed | None) -> Steps[None]:
    for op in plan.ops:
        if isinstance(op.operation, WithBodies):
            op.bodies = tuple((yield from _bodies(plan, op, op.operation, fuse, closed)))


def _item_body(plan: Plan, op: PlannedOp, operation: Emission, fuse: bool | None, closed: Closed | None) -> Steps[Plan]:
    """The plan of the ops that run for each item of an op that emits; values from outside are its inputs."""
    graph, (body,) = plan.graph, operation.bodies
    fuses = graph.options.fuse if fuse is None else fuse
    planner = _Planner(graph, body.ops, fuses, closed, _inside(plan, op, operation, 0))
    part = yield from planner.plan(body.outputs)
    part.lengths = plan.lengths
    yield from _add_bodies(part, fuse, closed)
    return part


def _bodies(
    plan: Plan, op: PlannedOp, operation: WithBodies, fuse: bool | None, closed: Closed | None
) -> Steps[list[Plan | GraphError]]:
    made: list[Plan | GraphError] = []
    for i, body in enumerate(operation.bodies):
        lengths = plan.lengths or None
        try:
            if isinstance(operation, Emission):
                part = yield from _item_body(plan, op, operation, fuse, closed)
            else:
                inside = _inside(plan, op, operation, i)
                part = yield from planning(plan.graph, body.outputs, fuse=fuse, lengths=lengths, inside=inside)
        except ShapeError as error:
            if lengths is None or not isinstance(operation, Switch):
                raise
            made.append(error)  # a branch for other lengths: an error where it is taken
            continue
        if part.per_item:
            raise GraphError(
                f"op {op.node.name!r} computes {body.scope.name!r}, which gives a value for each item of an op that "
                f"emits: join them there by af.collect; created at {op.node.site}"
            )
        for text, names in part.notes.items():
            known = plan.notes.setdefault(text, [])
            known.extend(name for name in names if name not in known)
        made.append(part)
    if all(isinstance(part, GraphError) for part in made):
        raise cast(GraphError, made[0])
    return made


def _inside(plan: Plan, op: PlannedOp, operation: WithBodies, which: int) -> Inside:
    body, host = operation.bodies[which], op.place
    taken, given = [[plan.slots[slot].place for slot in each] for each in (op.inputs, op.outputs)]
    count = len(body.parameters)
    if isinstance(operation, Emission):
        places = [host] * count + taken[len(operation.op.inputs) :]
    else:
        first = int(isinstance(operation, Switch))
        places = taken[first : first + count] + [taken[position] for position in operation.reads[which]]
    homes = (
        given
        if isinstance(operation, Switch)
        else given[: operation.carries]
        if isinstance(operation, Loop) and not which
        else []
    )
    homes = homes + [host] * (len(body.outputs) - len(homes))  # entries of arrays, answers, and joined items
    return Inside(op.node, dict(zip(body.inputs, places, strict=True)), [*zip(body.outputs, homes, strict=True)])


def _check_budget(plan: Plan, place: Place) -> None:
    budget_bytes = plan.graph.budget_of(place)
    if budget_bytes is None:
        return
    cost = plan.footprint(place)
    variable_bytes = sum(variable.spec.size_bytes for variable in plan.graph.variables if variable.place == place)
    needed_bytes = variable_bytes + cost.constant_bytes + cost.peak_bytes
    if needed_bytes > budget_bytes:
        where = "" if device_kind(place.kind).is_host else f" on {place}"
        lengths = f" with {said(plan.lengths)}" if plan.lengths else ""
        raise OutOfMemoryError(
            f"graph {plan.graph.name!r} needs {needed_bytes:,} bytes{where}{lengths}, "
            f"its budget is {budget_bytes:,} bytes\n{cost}"
        )


class _Planner:
    """Builds one plan.

    Args:
        graph: A root graph.
        ordered: The ops, in a topological order.
        fuses: Whether to join some.
        closed: Types and operations for the lengths of open axes, if there are any.
        inside: As for `planning`.
        hidden: Ops that others stand for.
        fed, at_home: As for `planning`.
    """

    def __init__(
        self,
        graph: Graph,
        ordered: list[Op],
        fuses: bool,
        closed: Closed | None,
        inside: Inside | None,
        *,
        hidden: frozenset[Op] = frozenset(),
        fed: Collection[Blob] = (),
        at_home: bool = False,
    ) -> None:
        self._graph = graph
        self._fed = frozenset(fed)
        self._at_home = at_home
        self._inside = inside
        # Blobs whose values each frame is given, fed or from outside.
        self._given: Mapping[Blob, Place] = {} if inside is None else inside.given
        self._fuses = fuses
        self.ordered = ordered
        # Types and operations of nodes.
        self.spec: Callable[[Blob], TensorSpec] = _SPEC if closed is None else closed.spec
        self.operation: Callable[[Op], Operation] = _OPERATION if closed is None else closed.operation
        self._hidden = hidden
        self._chosen: set[Op] | None = None  # all of these, once it is asked for
        self._wanted: frozenset[Blob] = frozenset()
        self._selector = Selector(graph.options.hints, graph.options.devices)
        self._slots: list[Slot] = []
        self._values: dict[Blob, Slot] = {}  # where each blob's value is first
        self._copies: dict[tuple[int, Place], Slot] = {}
        self._forms: dict[tuple[int, Operation], Slot] = {}
        self._terms: dict[Blob, list[tuple[Op, Slot]]] = {}
        self._ops: list[PlannedOp] = []
        self._folded: list[PlannedOp] = []
        self._feeds: dict[Blob, int] = {}
        self._reads: dict[Variable, int] = {}
        self._updates: dict[Variable, int] = {}  # and the op that gives the new value
        self._notes: dict[str, list[str]] = {}
        self._rank = graph.world.rank
        self._host = Place(self._rank)
        self._edges: dict[str, Slot] = {}  # values sent to other ranks and received from there

    def plan(self, fetched: Sequence[Blob]) -> Steps[Plan]:
        rank, values = self._rank, self._values
        self._wanted = frozenset(fetched)
        for op in self.ordered:
            first = values.get(op.inputs[0]) if op.inputs else None
            # Asked here first: a call for each op of a large graph would be felt.
            is_candidate = not op.inputs or (first is not None and first.is_constant)
            once = self._choose_once(op) if is_candidate else None
            if once is not None or op.place.rank == rank:  # a constant is computed by all ranks, and never sent
                self._plan_op(op, once)
            else:
                self._plan_elsewhere(op)
            yield _CHOOSING
        if self._inside is None:
            fetches = {blob: self._fetched(blob, blob.place) for blob in fetched if self._is_brought(blob)}
            results: list[Slot] = []
        else:
            outputs = self._inside.outputs if fetched else ()
            results = [self._fetched(blob, home) for blob, home in outputs]
            fetches = {blob: slot for (blob, _), slot in zip(outputs, results, strict=True)}
        for variable, op_index in self._updates.items():
            self._await_turn(variable, self._ops[op_index])
        if self._fuses:
            yield from self._fuse()
        if any(self._graph.budget_of(place) is not None for place in places_of(self._slots)):
            self._save_memory()
        yield look_at(self._slots)
        lengths = remaining_lengths(self._ops, self._slots)
        yield look_at(self._slots)
        roots = put_critical_first(self._ops, self._slots, lengths)
        capture = captures(self._graph)
        yield look_at(self._slots)
        assign_lanes(self._ops, self._slots, lengths, capture)
        yield look_at(self._slots)
        identity: Identity | None = None
        if self._graph.world.size > 1:
            constants = frozenset(blob for blob, slot in self._values.items() if slot.is_constant)
            if ranks_of_edges(self.ordered, fetched, constants):
                identity = identity_of(self.ordered, fetched, constants, self.spec)
        return Plan(
            self._graph,
            self._ops,
            roots,
            self._slots,
            self._feeds,
            {blob: slot.index for blob, slot in fetches.items()},
            self._reads,
            tuple(self._updates),
            self._notes,
            find_segments(self._ops, self._slots) if capture else (),
            identity,
            self._folded,
            results=[slot.index for slot in results],
        )

    # -- ops ----------------------------------------------------------------------------------------------------

    def _choose_once(self, op: Op) -> Choice | None:
        """The kernel that computes an op once, on the host, for all frames; None for an op that each frame computes.

        It reads constants alone, or nothing, and gives the same each time it is called. Its outputs have no more
        elements than its inputs together, or are small: of a number spread to the shape of a large batch, the number
        is kept and not the batch. A literal array is kept in any case.
        """
        values, operation = self._values, self.operation(op)
        for blob in op.inputs:
            slot = values.get(blob)
            if slot is None or not slot.is_constant:
                return None
        if not op.outputs or op.attempts is not None or isinstance(operation, Function | AllReduce | WithBodies):
            return None
        specs = [self.spec(blob) for blob in op.outputs]
        if any(is_gathered(blob) or blob.dtype.hasobject for blob in op.outputs):
            return None
        is_small = type(operation) is Constant or sum(spec.size_bytes for spec in specs) <= SMALL_BYTES
        if not is_small and sum(spec.size for spec in specs) > sum(self.spec(blob).size for blob in set(op.inputs)):
            return None
        host = op.place if op.place == self._host else self._host
        try:
            choice = self._selector.choose(op, operation, host, (op.inputs or op.outputs)[0].dtype)
        except KernelNotFoundError:  # it has one for its own device alone
            return None
        return None if choice.kernel is None or choice.kernel.random else choice

    def _plan_op(self, op: Op, once: Choice | None = None) -> None:
        operation, results = self._needed(op)
        choice = once
        if choice is None:
            typed = op.inputs or op.outputs
            if isinstance(operation, AllReduce | WithBodies):
                choice = Choice(Place(self._rank), None)
            else:
                choice = self._choose(op, operation, op.place, typed[0].dtype if typed else _ANY)
        place, folds = choice.place, once is not None
        if isinstance(operation, WithBodies):
            inputs = [self._value(blob, taken_at(op, i), op) for i, blob in enumerate(op.inputs)]
            outputs = [self._output(op, blob, given_at(op, i)) for i, blob in enumerate(results)]
            self._add(op, op, operation, choice, inputs, outputs)
        elif choice.layout is None and choice.dtype is None:
            inputs = []
            for blob in op.inputs:
                slot = self._values.get(blob)
                # Nearly always there; a call for each input of a large graph would be felt.
                inputs.append(slot if slot is not None and slot.place is place else self._value(blob, place, op))
            outputs = [self._output(op, blob, place) for blob in results]
            lane = REDUCE if type(operation) is AllReduce else None
            self._add(op, op, operation, choice, inputs, outputs, lane, folds)
        else:
            self._plan_converted(op, operation, results, choice, folds)
        if self._terms:
            for blob in op.outputs:
                if blob in self._terms:
                    self._complete(op, blob)

    def _plan_converted(
        self, op: Op, operation: Operation, needed: Sequence[Blob], choice: Choice, folds: bool
    ) -> None:
        """An op whose kernel wants its arrays in another layout or dtype."""
        place = choice.place
        layout = None if choice.layout is None else operation.layouts[choice.layout]
        dtype = (op.inputs or op.outputs)[0].dtype
        inputs = []
        for i, blob in enumerate(op.inputs):
            slot = self._values.get(blob) or self._source(blob)
            if not slot.is_constant:  # which is converted where it is computed
                slot = self._at(slot, place, op)
            axes = None if layout is None else layout.input_axes(i, len(blob.shape))
            if axes is not None:
                slot = self._form(slot, Transpose(axes), op)
            if choice.dtype is not None and slot.spec.dtype == dtype:
                slot = self._form(slot, Cast(choice.dtype), op)
            inputs.append(self._at(slot, place, op))
        results = []
        for i, blob in enumerate(needed):
            axes = None if layout is None else layout.output_axes(i, len(blob.shape))
            spec = self.spec(blob)
            if choice.dtype is not None and spec.dtype == dtype:
                spec = TensorSpec(spec.shape, choice.dtype)
            if axes is not None:
                (spec,) = Transpose(axes).infer(spec)
            results.append((blob, axes, self._new_slot(blob, spec, place)))
        self._add(op, op, operation, choice, inputs, [slot for _, _, slot in results], None, folds)
        for blob, axes, slot in results:
            if slot.spec.dtype != blob.dtype:
                slot = self._form(slot, Cast(blob.dtype), op)
            if axes is not None:
                slot = self._form(slot, Transpose(axes).inverse(), op)
            self._written(op, blob, slot)

    def _needed(self, op: Op) -> tuple[Operation, Sequence[Blob]]:
        """An op's operation in this plan, and its outputs; without gradients, none that only they read."""
        operation, outputs = self.operation(op), op.outputs
        count = operation.saved
        if not count or not getattr(operation, "saves", False) or any(self._is_read(blob) for blob in outputs[-count:]):
            return operation, outputs
        lean: Any = replace
        return lean(operation, saves=False), outputs[:-count]

    def _is_read(self, blob: Blob) -> bool:
        if self._chosen is None:
            self._chosen = {*self.ordered, *self._hidden}
        return blob in self._wanted or not self._chosen.isdisjoint(blob.consumers)

    # -- other ranks --------------------------------------------------------------------------------------------

    def _plan_elsewhere(self, op: Op) -> None:
        """An op of another rank: send its inputs that are here, receive the terms it adds to blobs that are here."""
        for blob in op.inputs:
            if home_of(blob) == self._rank and not self._is_constant(blob):
                self._send(self._values.get(blob) or self._source(blob), op.place.rank, blob.name, op)
        for blob in op.outputs:
            if is_gathered(blob) and blob.place.rank == self._rank:
                slot = self._receive(blob, op.place.rank, f"{blob.name} from {op.name}", op)
                self._terms.setdefault(blob, []).append((op, slot))
                self._complete(op, blob)

    def _is_brought(self, blob: Blob) -> bool:
        """Return whether a fetched blob is this rank's; if its value is here and it is not, send it."""
        home, rank = home_of(blob), blob.place.rank
        if rank != self._rank and home == self._rank and not self._is_constant(blob):
            self._send(self._values.get(blob) or self._source(blob), rank, blob.name, blob.producers[0])
        return rank == self._rank

    def _is_constant(self, blob: Blob) -> bool:
        slot = self._values.get(blob)
        return slot is not None and slot.is_constant

    def _send(self, slot: Slot, rank: int, what: str, op: Op) -> None:
        edge = f"{what} to {rank}"
        if edge not in self._edges:
            self._edges[edge] = slot
            self._check_sendable(slot.blob)
            host = Place(self._rank)
            # A message that is received cannot: nothing would order it with the work of a stream on the buffer.
            sent = slot if self._graph.world.takes(slot.place.kind) else self._at(slot, host, op)
            self._add(op, slot.blob, Send(rank, edge), Choice(host, None), [sent], [], f"to {rank}")

    def _receive(self, blob: Blob, rank: int, what: str, op: Op) -> Slot:
        edge = f"{what} to {self._rank}"
        slot = self._edges.get(edge)
        if slot is None:
            self._check_sendable(blob)
            host = Place(self._rank)
            slot = self._edges[edge] = self._new_slot(blob, self.spec(blob), host)
            self._add(op, blob, Receive(rank, edge, self.spec(blob)), Choice(host, None), [], [slot], f"from {rank}")
        return slot

    def _check_sendable(self, blob: Blob) -> None:
        if blob.dtype.hasobject:
            raise DTypeError(f"blob {blob.name!r} of Python objects cannot be sent to another rank")

    # -- sums and updates ---------------------------------------------------------------------------------------

    def _complete(self, op: Op, blob: Blob) -> None:
        """A producer of a blob with several ones, or of a variable, is planned: sum up, update, or send it there."""
        terms = self._terms[blob]
        if blob.place.rank != self._rank:
            self._send(terms[-1][1], blob.place.rank, f"{blob.name} from {op.name}", op)
            return
        if len(terms) < self._expected(blob):
            return
        slot = terms[0][1] if len(terms) == 1 else self._sum(blob, op)
        if isinstance(blob, Variable):
            self._update(blob, slot, op)
        else:
            self._values[blob] = slot

    def _sum(self, blob: Blob, op: Op) -> Slot:
        """Add up the terms of several producers in the order in which they were connected, independent of timing."""
        written = dict(self._terms[blob])
        operation = Sum()
        try:
            operation.infer(*[self.spec(blob)] * len(written))
        except DTypeError:
            names = ", ".join(op.name for op in blob.producers)
            raise DTypeError(
                f"blob {blob.name!r} {blob.spec} has several producers ({names}), which only numbers can have"
            ) from None
        choice = self._choose(op, operation, blob.place, blob.dtype)
        inputs = [self._at(written[producer], choice.place, op) for producer in blob.producers if producer in written]
        slot = self._new_slot(blob, self.spec(blob), choice.place)
        self._add(op, blob, operation, choice, inputs, [slot])
        return slot

    def _update(self, variable: Variable, slot: Slot, op: Op) -> None:
        """A variable's new value is where it was computed: bring it home."""
        slot = self._alone(self._at(slot, variable.place, op), op)
        slot.updates = variable
        slot.readers += 1  # the variable itself
        index = len(self._ops) - 1
        while slot.index not in self._ops[index].outputs:
            index -= 1
        self._updates[variable] = index

    def _choose(self, op: Op, operation: Operation, place: Place, dtype: np.dtype[np.generic]) -> Choice:
        choice = self._selector.choose(op, operation, place, dtype)
        if choice.note:
            names = self._notes.setdefault(choice.note, [])
            if op.name not in names:
                names.append(op.name)
        return choice

    def _add(
        self,
        node: Op,
        site: Node,
        operation: Operation,
        choice: Choice,
        inputs: Sequence[Slot],
        outputs: Sequence[Slot],
        lane: str | None = None,
        folds: bool = False,
    ) -> None:
        steps = self._folded if folds else self._ops
        index, waits = len(steps), len(inputs)
        if choice.kernel is not None and choice.kernel.keeps and operation is node.operation and not folds:
            operation = node.own = node.own or apart(operation)
        if folds:
            waits = 0
            for slot in outputs:
                slot.is_constant = True
        else:
            for slot in inputs:
                slot.readers += 1
                if slot.is_constant:
                    waits -= 1
                else:
                    slot.consumers.append(index)
        steps.append(
            PlannedOp(
                operation,
                tuple([slot.index for slot in inputs]),
                tuple([slot.index for slot in outputs]),
                tuple([slot.spec for slot in outputs]),
                site=site,
                index=index,
                node=node,
                place=choice.place,
                kernel=choice.kernel,
                waits=waits,
                lane=lane,
            )
        )

    # -- values -------------------------------------------------------------------------------------------------

    def _new_slot(self, blob: Blob, spec: TensorSpec, place: Place) -> Slot:
        slot = Slot(len(self._slots), blob, spec, place, [])
        self._slots.append(slot)
        return slot

    def _value(self, blob: Blob, place: Place, op: Op) -> Slot:
        slot = self._values.get(blob) or self._source(blob)
        return slot if slot.place is place else self._at(slot, place, op)

    def _source(self, blob: Blob) -> Slot:
        given = self._given.get(blob)
        home = home_of(blob) if given is None else self._rank
        if home != self._rank:
            slot = self._receive(blob, home, blob.name, (blob.producers or blob.consumers)[0])
        elif isinstance(blob, Variable) and given is None:
            slot = self._new_slot(blob, self.spec(blob), blob.place)
            self._reads[blob] = slot.index
        else:
            # Fed from the host, as a rule.
            is_there = self._at_home or device_kind(blob.place.kind).is_host
            place = given or (blob.place if is_there else self._host)
            slot = self._new_slot(blob, self.spec(blob), place)
            slot.is_fed = True
            self._feeds[blob] = slot.index
        self._values[blob] = slot
        return slot

    def _output(self, op: Op, blob: Blob, place: Place) -> Slot:
        slot = self._new_slot(blob, self.spec(blob), place)
        self._written(op, blob, slot)
        return slot

    def _written(self, op: Op, blob: Blob, slot: Slot) -> None:
        if blob in self._fed:
            return  # the op is there for its other outputs
        if is_gathered(blob):
            self._terms.setdefault(blob, []).append((op, slot))
        else:
            self._values[blob] = slot

    def _fetched(self, blob: Blob, home: Place) -> Slot:
        """The slot that the application gets, or the op of a body: on a place, unless it was fed to the former."""
        slot = self._values.get(blob) or self._source(blob)
        if slot.is_constant:  # a copy: a fetched array is the application's
            constant, op, copy = slot, blob.producers[0], Copy()
            choice = self._choose(op, copy, home, blob.dtype)
            if choice.dtype is not None:
                choice = self._choose(op, copy, self._host, blob.dtype)
            slot = self._new_slot(blob, self.spec(blob), choice.place)
            self._add(op, blob, copy, choice, [self._at(constant, choice.place, op)], [slot])
        if self._inside is not None:
            slot = self._at(slot, home, self._inside.op)
        elif not slot.is_fed and not isinstance(blob, Variable):
            slot = self._alone(self._at(slot, home, blob.producers[0]), blob.producers[0])
        slot.is_fetched = True
        slot.readers += 1
        return slot

    def _alone(self, slot: Slot, op: Op) -> Slot:
        """The slot, or a copy of it if an op with bodies gives it on a device: it may hand on its input."""
        if not isinstance(op.operation, WithBodies) or device_kind(slot.place.kind).is_host:
            return slot
        copy = self._new_slot(slot.blob, slot.spec, slot.place)
        self._add(op, slot.blob, Copy(), self._choose(op, Copy(), slot.place, slot.spec.dtype), [slot], [copy])
        return copy

    def _at(self, slot: Slot, place: Place, op: Op) -> Slot:
        """A slot's value on a place: copied once for all that read it there."""
        if slot.place == place:
            return slot
        copy = self._copies.get((slot.index, place))
        if copy is None:
            copy = self._copies[slot.index, place] = self._copy(slot, place, op)
        return copy

    def _copy(self, slot: Slot, place: Place, op: Op) -> Slot:
        blob, source = slot.blob, slot.place
        if slot.is_constant:  # when the program is built, as for variables
            copy = self._new_slot(blob, slot.spec, place)
            self._add(op, blob, Transfer(source, place), Choice(place, None), [slot], [copy], None, folds=True)
            return copy
        if slot.spec.dtype.hasobject:
            raise DTypeError(f"blob {blob.name!r} of Python objects cannot be copied from {source} to {place}")
        kind, source_kind = device_kind(place.kind), device_kind(source.kind)
        are_peers = source.kind == place.kind and kind.copy_peer is not Device.copy_peer
        if not (kind.is_host or source_kind.is_host or are_peers):
            return self._at(self._at(slot, Place(place.rank), op), place, op)
        if source_kind.is_host and kind.is_staged:
            staged = self._new_slot(blob, slot.spec, source)
            self._add(op, blob, Stage(place), Choice(source, None), [slot], [staged], INBOUND)
            slot = staged
        copy = self._new_slot(blob, slot.spec, place)
        runs_on, lane = (source, OUTBOUND) if kind.is_host and not source_kind.is_host else (place, INBOUND)
        self._add(op, blob, Transfer(source, place), Choice(runs_on, None), [slot], [copy], lane)
        return copy

    def _form(self, slot: Slot, operation: Operation, op: Op) -> Slot:
        """A slot's value in another layout or dtype, converted once for all that read it so."""
        form = self._forms.get((slot.index, operation))
        if form is None:
            choice = self._choose(op, operation, slot.place, slot.spec.dtype)
            (spec,) = operation.infer(slot.spec) or (slot.spec,)
            form = self._new_slot(slot.blob, spec, choice.place)
            source = self._at(slot, choice.place, op)
            self._add(op, slot.blob, operation, choice, [source], [form], None, slot.is_constant)
            form = self._forms[slot.index, operation] = self._at(form, slot.place, op)
        return form

    def _expected(self, blob: Blob) -> int:
        if not isinstance(blob, Variable):
            return len(blob.producers)
        if self._chosen is None:
            self._chosen = {*self.ordered, *self._hidden}
        return sum(producer in self._chosen for producer in blob.producers)

    def _fuse(self) -> Steps[None]:
        """Fuse ops, and drop the slots of values that are not there any more."""
        found = yield from fused(self._ops, self._slots, self._folded, self._fused_kernel)
        gathered = yield from gather(found or self._ops, self._slots, self._fused_kernel)
        found = gathered or found
        if found is None:
            return
        yield look_at(self._slots)
        self._ops = found
        inside = {slot for op in found for part in op.parts for slot in part.outputs} - {
            slot for op in found for slot in op.outputs
        }
        self._slots = [slot for slot in self._slots if slot.index not in inside]
        number = {slot.index: i for i, slot in enumerate(self._slots)}
        yield look_at(self._slots)
        for op in (*found, *self._folded):
            op.inputs = tuple([number[slot] for slot in op.inputs])
            op.outputs = tuple([number[slot] for slot in op.outputs])
        self._feeds = {blob: number[index] for blob, index in self._feeds.items()}
        self._reads = {variable: number[index] for variable, index in self._reads.items()}
        for slot in self._slots:
            slot.index = number[slot.index]

    def _fused_kernel(self, op: PlannedOp, operation: Operation, dtype: np.dtype[Any]) -> Kernel | None:
        """The kernel for an operation on arrays of a dtype in the place of an op; None if the device has none."""
        try:
            choice = self._selector.choose(op.node, operation, op.place, dtype)
        except KernelNotFoundError:
            return None
        return choice.kernel if choice.place == op.place and (choice.dtype, choice.layout) == (None, None) else None

    # -- order --------------------------------------------------------------------------------------------------

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

    def _await_turn(self, variable: Variable, op: PlannedOp) -> None:
        """An update that does not read its variable still waits for the frames before to have had their turn."""
        slot = self._values.get(variable) or self._source(variable)
        if slot.index not in op.inputs:
            slot.consumers.append(op.index)
            op.waits += 1


#: For functions without inputs and outputs, which have no dtype.
_ANY = np.dtype(object)
#: Short steps of a slice of the loop's time (`actorflow.loop`) that it takes to choose an op's kernel.
_CHOOSING = 2
_SPEC = attrgetter("spec")
_OPERATION = attrgetter("operation")
