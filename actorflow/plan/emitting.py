"""Ops that emit, as ops with a body: the ops behind an item, up to where items are joined, run once per item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from actorflow.errors import GraphError, PlaceError
from actorflow.graph.emits import Collect
from actorflow.graph.flow import WithBodies
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.ops.fills import Constant
from actorflow.ops.function import Emitting
from actorflow.ops.operation import Operation
from actorflow.plan.ranks import is_gathered
from actorflow.spec import TensorSpec

#: The ops that emit around an op, from the outside in: it is computed once per item of the last one.
Around = tuple[Op, ...]


class ItemBody:
    """The ops that run for each item of an op that emits: it has the part of a `Body` in a plan.

    Attributes:
        parameters: Outputs of the op that emits.
        captured: Blobs from outside that are read.
        outputs: Blobs that are joined, or are results of a stream.
        ops: In a topological order.
    """

    def __init__(
        self, parameters: tuple[Blob, ...], captured: tuple[Blob, ...], outputs: tuple[Blob, ...], ops: list[Op]
    ) -> None:
        self.parameters = parameters
        self.captured = captured
        self.outputs = outputs
        self.ops = ops
        self._readers: dict[Blob, list[tuple[Op, int]]] = {}
        for op in ops:
            for i, blob in enumerate(op.inputs):
                self._readers.setdefault(blob, []).append((op, i))

    def readers(self, blob: Blob) -> list[tuple[Op, int]]:
        """As of a `Body`."""
        return self._readers.get(blob, [])

    @property
    def inputs(self) -> tuple[Blob, ...]:
        """Its parameters, then the blobs from outside."""
        return (*self.parameters, *self.captured)


class Join(NamedTuple):
    """A way of joining the items' values of one blob."""

    operation: Collect
    position: int  # of the blob among the body's outputs
    node: Op


@dataclass(frozen=True)
class Emission(WithBodies):
    """An op that emits, with all that is computed per item, as a plan has it; its outputs are the joined values.

    Attributes:
        op: The op of the graph.
        function: Its operation; lengths of open axes are known.
        items: Types of the values it emits.
        joins: How each output is made.
        is_streamed: Whether the body's outputs are results by themselves, one for each item.
    """

    op: Op
    function: Emitting
    items: tuple[TensorSpec, ...]
    joins: tuple[Join, ...]
    is_streamed: bool

    @property
    def bodies_at_once(self) -> int:
        return self.function.in_flight

    def __str__(self) -> str:
        return f"{self.function}, emits"


class Found(NamedTuple):
    """A selection of ops in which each op that emits stands for everything that follows once per item."""

    ops: list[Op]  # in a topological order
    fetched: tuple[Blob, ...]  # if a frame has them once: all that are asked for, or none
    hidden: frozenset[Op]  # ops that others stand for


def emitting(
    ordered: Sequence[Op],
    fetched: Sequence[Blob],
    spec_of: Callable[[Blob], TensorSpec],
    operation_of: Callable[[Op], Operation],
) -> Found | None:
    """Find the ops that run per item; None if no op emits.

    Args:
        ordered: The chosen ops, in a topological order.
        fetched: The blobs that are asked for.
        spec_of, operation_of: Types of blobs, and operations of ops.
    Raises:
        GraphError: if an op reads items of several ops that emit, or an item and the value joined of all of them; if
            nothing emits the joined blob; if a variable is updated per item; if some fetched blobs are per item, and
            some are not. PlaceError if an op that follows an item is on another rank.
    """
    if not any(isinstance(op.operation, Emitting | Collect) for op in ordered):
        return None
    return _Emitting(ordered, spec_of, operation_of).found(fetched)


class _Emitting:
    def __init__(
        self,
        ordered: Sequence[Op],
        spec_of: Callable[[Blob], TensorSpec],
        operation_of: Callable[[Op], Operation],
    ) -> None:
        self._spec_of = spec_of
        self._operation_of = operation_of
        self._around: dict[Blob, Around] = {}  # of the blobs that are per item
        self._ops: dict[Around, list[Op]] = {(): []}  # by the emitting ops around them
        self._joins: dict[Op, list[Op]] = {}  # by the op that emits
        for op in ordered:
            self._enter(op)
        self._constants = {blob: op for op in self._ops[()] if type(op.operation) is Constant for blob in op.outputs}

    def found(self, fetched: Sequence[Blob]) -> Found:
        """The selection for the fetched blobs."""
        streamed = [blob for blob in fetched if blob in self._around]
        around: Around = self._around[streamed[0]] if streamed else ()
        for blob in fetched:
            if self._around.get(blob, ()) != around:
                raise GraphError(
                    f"blob {streamed[0].name!r} has a value for each item of op {around[-1].name!r}, and "
                    f"{blob.name!r} has not: fetch either, or join the items by af.collect"
                )
        ops = self._with_emissions((), tuple(streamed), around)
        read = {blob for op in ops for blob in op.inputs} | set(fetched)
        ops = [op for op in ops if type(op.operation) is not Constant or not read.isdisjoint(op.outputs)]
        hidden = {op for inside, members in self._ops.items() if inside for op in members}
        hidden.update(*self._joins.values(), self._joins)
        return Found(ops, () if streamed else tuple(fetched), frozenset(hidden))

    def _enter(self, op: Op) -> None:
        around: Around = ()
        for blob in op.inputs:
            other = () if isinstance(blob, Variable) else self._around.get(blob, ())
            longer, shorter = (other, around) if len(other) > len(around) else (around, other)
            if longer[: len(shorter)] != shorter:
                emit = " and ".join(repr(each[len(_common(around, other))].name) for each in (around, other))
                raise GraphError(
                    f"op {op.name!r} reads items of {emit}, which emit them independently of each other: join those of "
                    f"one by af.collect; created at {op.site}"
                )
            around = longer
        given = around
        if isinstance(op.operation, Collect):
            if not around:
                raise GraphError(f"op {op.name!r} joins items, and nothing emits any; created at {op.site}")
            given = around[:-1]
            self._joins[around[-1]].append(op)
        else:
            self._ops.setdefault(around, []).append(op)
            if isinstance(op.operation, Emitting):
                given = (*around, op)
                self._joins[op] = []
                self._ops[given] = []
        for blob in op.outputs:
            if is_gathered(blob) and given:
                what = "updates a variable" if isinstance(blob, Variable) else "adds to a blob of several producers"
                raise GraphError(
                    f"op {op.name!r} {what}, {blob.name!r}, for each item of op {given[-1].name!r}: join the items by "
                    f"af.collect first; created at {op.site}"
                )
            if given:
                self._around[blob] = given

    def _with_emissions(self, around: Around, streamed: tuple[Blob, ...], to: Around) -> list[Op]:
        """The ops inside the given emitting ops, where each one that emits stands for the ops behind it."""
        ops = [
            self._emission(op, (*around, op), streamed, to) if isinstance(op.operation, Emitting) else op
            for op in self._ops[around]
        ]
        return _sorted(ops) if any(isinstance(op.operation, Emission) for op in ops) else ops

    def _emission(self, op: Op, inside: Around, streamed: tuple[Blob, ...], to: Around) -> Op:
        ops, joins = self._with_emissions(inside, streamed, to), self._joins[op]
        for each in (*ops, *joins):
            if each.place.rank != op.place.rank:
                raise PlaceError(
                    f"op {each.name!r} is on {each.place}, but is computed for each item of op {op.name!r} on "
                    f"{op.place}: all of that has one rank; created at {each.site}"
                )
        is_streamed = inside == to
        outputs = dict.fromkeys([*[join.inputs[0] for join in joins], *(streamed if is_streamed else ())])
        own = {*op.outputs, *[blob for each in ops for blob in each.outputs]}
        read = dict.fromkeys(blob for each in ops for blob in each.inputs if blob not in own)
        constants = dict.fromkeys(self._constants[blob] for blob in read if blob in self._constants)
        captured = tuple([blob for blob in read if blob not in self._constants])
        body: Any = ItemBody(op.outputs, captured, tuple(outputs), [*constants, *ops])
        function: Any = self._operation_of(op)
        reads = tuple(range(len(op.outputs), len(op.outputs) + len(captured)))
        at = {blob: position for position, blob in enumerate(outputs)}
        found: list[Join] = []
        for join in joins:
            operation: Any = self._operation_of(join)
            found.append(Join(operation, at[join.inputs[0]], join))
        items = tuple([self._spec_of(blob) for blob in op.outputs])
        made = copy(op)
        made.inputs = (*op.inputs, *captured)
        made.outputs = tuple([join.outputs[0] for join in joins])
        made.operation = Emission((body,), (reads,), op, function, items, tuple(found), is_streamed)
        return made


def _common(one: Around, other: Around) -> Around:
    count = 0
    while count < min(len(one), len(other)) and one[count] is other[count]:
        count += 1
    return one[:count]


def _sorted(ops: Iterable[Op]) -> list[Op]:
    """Ops in topological order, else in the order given.

    Raises:
        GraphError: if an op needs an item and a value joined of all items.
    """
    ops = [*ops]
    made = {blob: op for op in ops for blob in op.outputs if not isinstance(blob, Variable)}
    needed = {op: {made[blob] for blob in op.inputs if blob in made} for op in ops}
    readers: dict[Op, list[Op]] = {op: [] for op in ops}
    for op, others in needed.items():
        for other in others:
            readers[other].append(op)
    ready = [op for op in ops if not needed[op]]
    for op in ready:  # grows while it is read
        for reader in readers[op]:
            needed[reader].discard(op)
            if not needed[reader]:
                ready.append(reader)
    if len(ready) < len(ops):
        stuck = next(op for op in ops if needed[op] and isinstance(op.operation, Emission))
        raise GraphError(
            f"what follows an item of op {stuck.name!r} needs a value that is joined of all items, of that op or of "
            f"another one that needs it: an item would wait for those behind it; created at {stuck.site}"
        )
    return ready
