"""Steps: records apart from their values, as recipes and programs have them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import numpy as np

from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import DType, Numbered, Primitive
from actorflow.array.record.record import HOST, SEVERAL, Record
from actorflow.place import Place
from actorflow.spec import TensorSpec

_N = TypeVar("_N")
#: The key of a step, the step or its record, and what it reads: keys of steps, and others.
_Row = tuple[_N, Any, Iterable[Any]]
#: Elements of a constant up to which it is compared with others.
_COMPARED = 64


class Step(NamedTuple):
    """One operation apart from its record.

    Attributes:
        op: The operation; where that or its arguments differ from time to time, they are the first of what it reads.
        reads: Slots of its inputs: steps count from 0, what is given has slots from -1 on downwards.
        place: Where it is computed; None for the host.
    """

    op: Primitive
    params: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: DType
    reads: tuple[int, ...]
    place: Place | None = None


class Description(NamedTuple):
    """Records, as a structure and what differs.

    Attributes:
        given: Records and constants that are read; operations, and parameters.
        produced: Records whose values are wanted, by position.
        key: The same for all records of one structure.
    """

    steps: list[Step]
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
    """The structure of records, in order, of which these are wanted, and those that an array shows.

    Views, and the arguments of random operations, are given if they may vary from one time to the next.
    """
    slots: dict[Any, int] = {}
    given: list[Any] = []
    types: list[Any] = []
    steps: list[Step] = []
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
        if varies and not op.pure:
            row.insert(0, give(id(params), params))
            op, params = _numbered(op, node.shape, node.dtype), ()
        elif varies and op.view and not params and not is_placed:
            row.insert(0, give(op, op))
            op = _given(op.name)
        place = node.place if node.place is not HOST or op is TRANSFER else None
        steps.append(Step(op, params, node.shape, node.dtype, tuple(row), place))
        if node in wanted or node.is_held():
            produced[i] = node
    return Description(steps, given, produced, (tuple(steps), tuple(types), tuple(produced)), is_placed)


_numbered = lru_cache(maxsize=4_096)(Numbered)


@cache
def _given(name: str) -> Primitive:
    """Calls a view that is given, as the first of what it reads."""
    return Primitive(name, lambda op, *inputs: op.compute(*inputs), view=True)


def needed(results: Sequence[Record], known: Sequence[Record], first: int) -> tuple[list[Record], list[Record]]:
    """The records that results need, in order, up to those that are known: those of the tracing, and those before."""
    seen, before = set(known), []
    found = []
    stack = [*results]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is None or node.number < first or not node.evaluator.dry_run:
            if node.op is not None or node.value is None or node.number < first:
                before.append(node)
        else:
            found.append(node)
            stack.extend(each for each in node.inputs if type(each) is Record)
    found.sort(key=lambda node: node.number)
    before.sort(key=lambda node: node.number)
    return found, before


def reached(steps: Sequence[Step], results: Iterable[int]) -> dict[int, None]:
    """The steps that results need, by position, in order."""
    wanted = {*results}
    for i in range(len(steps) - 1, -1, -1):
        if i in wanted:
            wanted.update(steps[i].reads)
    return dict.fromkeys(i for i in range(len(steps)) if i in wanted)


def common(rows: Iterable[_Row[_N]]) -> tuple[dict[_N, _N], set[_N]]:
    """For each step that repeats an earlier one, that one; and those of them that are copies of it.

    Two arrays stay two for a step that reads both, unless it goes element by element: BLAS adds up in another order
    where it multiplies an array with itself.
    """
    keyed: list[_Row[_N]] = [(key, step, [*map(_value_key, reads)]) for key, step, reads in rows]
    apart: set[_N] = set()
    while True:
        known: dict[Any, _N] = {}
        same: dict[_N, _N] = {}
        one: dict[Any, Any] = {}  # steps whose array is that of another one
        for key, step, reads in keyed:
            if step.op.pure:
                row = step.op, step.params, step.shape, step.dtype, step.place or HOST, *[one.get(x, x) for x in reads]
                first = known.setdefault(row, key)
                if first is not key:
                    same[key] = first
                    if key not in apart:
                        one[key] = first
        confused = {*_confused(keyed, one)} if one else None
        if not confused:
            return same, apart & same.keys()
        apart |= confused


def _value_key(each: Any) -> Any:
    """Equal for numbers, and for arrays of few elements, that are equal in bits."""
    if not isinstance(each, np.ndarray):
        return each
    return (each.dtype, each.shape, each.tobytes()) if each.size <= _COMPARED else id(each)


def _confused(rows: Iterable[_Row[_N]], same: dict[_N, _N]) -> Iterator[_N]:
    """Steps that repeat another one which is read beside them."""
    shown: dict[Any, set[Any]] = {}  # steps whose memory a result may be
    for key, step, reads in rows:
        op = step.op
        if op.elementwise:
            continue
        read = [shown.get(x) or {x} for x in reads]
        if op.view or (len(read) == 1 and not op.into):
            shown[key] = set().union(*read) if op.view else {key, *read[0]}
            continue
        for one, other in combinations(read, 2):
            for x in one - other:
                yield from (y if y in same else x for y in other - one if same.get(x, x) == same.get(y, y))
