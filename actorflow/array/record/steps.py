"""Steps: records apart from their values, as recipes and programs have them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import DType, Numbered, Primitive
from actorflow.array.record.record import HOST, SEVERAL, Record
from actorflow.place import Place
from actorflow.spec import TensorSpec

#: A record in a description: its operation, or the name of that if it is given, as the first of what it reads; its
#: further arguments, or the slot where they are given; shape and dtype of its result; slots of what it reads; where it
#: is computed, None for the host. Records count from 0, what is given has slots from -1 on downwards. A plain tuple,
#: since one is made whenever records are planned.
Entry = tuple[Any, Any, tuple[int, ...], DType, tuple[int, ...], Place | None]
_N = TypeVar("_N")


class Step(NamedTuple):
    """One operation apart from its record: an `Entry` whose operation and arguments are known.

    Attributes:
        op: The operation.
        params: Its further arguments.
        shape: Shape of the result.
        dtype: Dtype of the result.
        reads: Slots of its inputs.
        place: Where it is computed; None for the host.
    """

    op: Primitive
    params: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: DType
    reads: tuple[int, ...]
    place: Place | None = None

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.op.name


class Description(NamedTuple):
    """Records, as a structure and what differs.

    Attributes:
        entries: The operations.
        given: Records and constants that are read; operations, and parameters.
        produced: Records whose values are wanted, by position.
        key: The same for all records of one structure.
        is_placed: Whether some of them are on accelerators.
    """

    entries: list[Entry]
    given: list[Any]
    produced: dict[int, Record]
    key: Hashable
    is_placed: bool

    def values(self) -> list[Any]:
        """The values that are read."""
        return [
            each.value if type(each) is Record else each.whole.value[each.part] if type(each) is Part else each  # type: ignore[index]
            for each in self.given
        ]


class Part(NamedTuple):
    """A result of an operation with several that was computed before."""

    whole: Record
    part: int
    spec: TensorSpec
    place: Place


def describe(nodes: Sequence[Record], wanted: set[Record], is_placed: bool = False, varies: bool = True) -> Description:
    """The structure of records, of which these are wanted: what an array shows, and what others than these read.

    Args:
        nodes: In order.
        wanted: Whose values are wanted even if no array shows them.
        is_placed: Whether some are on accelerators.
        varies: Whether views differ from one time to the next: then they are given.
    """
    slots: dict[Any, int] = {}
    given: list[Any] = []
    types: list[Any] = []
    entries: list[Entry] = []
    produced: dict[int, Record] = {}

    def give(key: Any, value: Any, kind: Any = None) -> int:
        slot = slots.get(key)
        if slot is None:
            given.append(value)
            types.append(kind)
            slot = slots[key] = -len(given)
        return slot

    for i, node in enumerate(nodes):
        row: list[int] = []
        for each in node.inputs:
            slot = slots.get(id(each))
            if slot is None:
                kind: Any = each.shape, each.dtype
                if is_placed:
                    kind = (*kind, each.place if type(each) is Record else None)
                    if each.dtype == SEVERAL:
                        assert isinstance(each, Record)
                        part = Part(each, node.params[0], TensorSpec(node.shape, node.dtype), each.place)
                        row.append(give((id(each), part.part), part, (part.spec, part.place)))
                        continue
                if type(each) is Record or each.size > 1:
                    slot = give(id(each), each, kind)
                else:  # equal numbers are one
                    slot = slots[id(each)] = give((kind, each.tobytes()), each, kind)  # type: ignore[union-attr]
            row.append(slot)
        slots[id(node)] = i
        op: Any = node.op
        params: Any = node.params
        if not op.pure:
            params = give(id(params), params)
        elif varies and op.view and not params and not is_placed:
            row.insert(0, give(op, op))
            op = op.name
        place = node.place if node.place is not HOST or op is TRANSFER else None
        entries.append((op, params, node.shape, node.dtype, tuple(row), place))
        if node in wanted or node.is_held():
            produced[i] = node
    return Description(entries, given, produced, (tuple(entries), tuple(types), tuple(produced)), is_placed)


@cache
def _given(name: str) -> Primitive:
    """Calls a view that is given, as the first of what it reads."""
    return Primitive(name, lambda op, *inputs: op.compute(*inputs), view=True)


def steps_of(entries: Iterable[Entry]) -> Iterator[Step]:
    """The steps of a description, which are given what it gives."""
    for op, params, shape, dtype, row, place in entries:
        if isinstance(op, str):
            op = _given(op)
        elif isinstance(params, int):
            op, row, params = Numbered(op, shape, dtype), (params, *row), ()
        yield Step(op, params, shape, dtype, row, place)


def reached(steps: Sequence[Step], results: Iterable[int]) -> dict[int, None]:
    """The steps that results need, by position, in order."""
    wanted = {*results}
    for i in range(len(steps) - 1, -1, -1):
        if i in wanted:
            wanted.update(steps[i].reads)
    return dict.fromkeys(i for i in range(len(steps)) if i in wanted)


def common(rows: Sequence[tuple[_N, Primitive | None, Hashable, Sequence[Any]]]) -> tuple[dict[_N, _N], set[_N]]:
    """For each step that repeats an earlier one, that one; and those of them that are copies of it.

    Two arrays stay two for a step that reads both, unless it goes element by element: BLAS adds up in another order
    where it multiplies an array with itself.

    Args:
        rows: For each step, in order: the step; its operation, None for a value; what else equal ones have in common;
            what it reads, steps and others.
    """
    apart: set[_N] = set()
    while True:
        known: dict[Any, _N] = {}
        same: dict[_N, _N] = {}
        one: dict[Any, Any] = {}  # steps whose array is that of another one
        for step, op, what, reads in rows:
            if op is not None and op.pure:
                first = known.setdefault((op, what, *([one.get(x, x) for x in reads] if one else reads)), step)
                if first is not step:
                    same[step] = first
                    if step not in apart:
                        one[step] = first
        confused = {*_confused(rows, one)} if one else None
        if not confused:
            return same, apart & same.keys()
        apart |= confused


def _confused(rows: Iterable[tuple[_N, Primitive | None, Hashable, Sequence[Any]]], same: dict[_N, _N]) -> Iterator[_N]:
    """Steps that repeat another one which is read beside them."""
    shown: dict[Any, set[Any]] = {}  # steps whose memory a result may be
    for step, op, _, reads in rows:
        if op is None or op.elementwise:
            continue
        read = [shown.get(x) or {x} for x in reads]
        if op.view or (len(read) == 1 and not op.into):
            shown[step] = set().union(*read) if op.view else {step, *read[0]}
            continue
        for one, other in combinations(read, 2):
            for x in one - other:
                yield from (y if y in same else x for y in other - one if same.get(x, x) == same.get(y, y))
