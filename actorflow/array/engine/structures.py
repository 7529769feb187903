"""Structures: what records that follow each other compute, apart from their values, so that it is planned once.

The steps of a training are recorded again and again, with other values. Their structure is a key: operations, shapes,
dtypes, which of them reads what, and which values are wanted. From the second time on, a program computes what has a
key. What differs from step to step is given to it, like values: numbers, bounds of slices, streams of random numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow.array.record.primitives import DType, Primitive
from actorflow.array.record.record import OpStep, Origin, Record
from actorflow.array.transforms.cache import RecentCache
from actorflow.devices.memory import POOLED_BYTES
from actorflow.spec import TensorSpec
from actorflow.trace.counters import OpProfile

if TYPE_CHECKING:
    from actorflow.array.transforms.program import Program

#: Structures that are kept, and the lines that begin some.
_MOST_STRUCTURES = 256
_MOST_STARTS = 1_024
#: Least operations between two lines that begin the same structure.
_FEWEST = 16


#: One operation of a structure, or its name if it is given, as the first of what it reads; its further arguments, or
#: the slot where they are given; shape and dtype of its result; slots of what it reads. What is given has slots from -1
#: on downwards, the operations count from 0. A plain tuple, since one is made whenever records are planned.
Entry = tuple[Any, Any, tuple[int, ...], DType, tuple[int, ...]]


class Description(NamedTuple):
    """Records, as a structure and what differs.

    Attributes:
        entries: The operations.
        given: Records and constants that are read; operations, and parameters.
        produced: Records whose values are wanted, by position.
        key: The same for all records of one structure.
    """

    entries: list[Entry]
    given: list[Any]
    produced: dict[int, Record]
    key: Hashable


def describe(nodes: Sequence[Record], wanted: set[Record]) -> Description:
    """The structure of records, of which these are wanted: what an array shows, and what others than these read."""
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
                kind = each.shape, each.dtype
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
        elif op.view and not params:
            row.insert(0, give(op, op))
            op = op.name
        entries.append((op, params, node.shape, node.dtype, tuple(row)))
        if node in wanted:
            produced[i] = node
    return Description(entries, given, produced, (tuple(entries), tuple(types), tuple(produced)))


def name_of(entry: Entry) -> str:
    """Name of an operation."""
    op = entry[0]
    return op if isinstance(op, str) else str(op.name)


class Structure:
    """What is known of records of one structure.

    Args:
        is_fit: Whether they may be computed as one sequence.

    Attributes:
        work: Elements that it touches.
        repeats: How many of the records repeat others.
        entries: The operations, once there is a program.
        program: What computes them; None if it was not needed yet, or cannot be.
    """

    _given = Primitive("given", lambda op, *inputs: op.compute(*inputs), view=True)

    def __init__(self, is_fit: bool, work: int) -> None:
        self.is_fit = is_fit
        self.work = work
        self.repeats = 0
        self.entries: list[Entry] = []
        self.program: Program | None = None
        self._names: dict[str, list[Sequence[OpProfile]]] = {}  # of the ops of each step, by the step's name

    def bind(self, description: Description, repeated: Iterable[int]) -> None:
        """Make the program, if there is none yet."""
        if self.program is None:
            from actorflow.array.transforms.program import Program

            entries, given, produced, _ = description
            types = [TensorSpec(x.shape, x.dtype) if isinstance(x, Record | np.ndarray) else None for x in given]
            found = [len(given) + i for i in produced]
            program = Program([*self._steps(entries, len(given))], types, found, POOLED_BYTES)
            names: dict[str, list[Sequence[OpProfile]]] = {}
            for at, profiles in program.profiles.items():
                names.setdefault(name_of(entries[at]), []).append(profiles)
            # Last what others look for, as another thread may bind it at the same time.
            self.repeats, self.entries, self._names, self.program = len({*repeated}), entries, names, program

    def _steps(self, entries: Sequence[Entry], first: int) -> Iterator[OpStep]:
        """The steps of the program."""
        for op, params, shape, dtype, row in entries:
            reads = [-1 - slot if slot < 0 else first + slot for slot in row]
            if isinstance(op, str):
                op = self._given
            elif isinstance(params, int):
                reads = [-1 - params, *reads]
                op, params = _with_params(op, shape, dtype), ()
            yield OpStep(op, tuple(reads), params, shape, dtype, _NOWHERE)

    def note(self, calls: int, total_ns: int, profiles: dict[str, OpProfile]) -> None:
        """Add calls of the program to a profile; each operation has the share of their time that it has of all."""
        spent = {name: [each.total_ns for own in steps for each in own] for name, steps in self._names.items()}
        whole_ns = max(1, sum(map(sum, spent.values())))
        for name, steps in self._names.items():
            profile = profiles.setdefault(name, OpProfile())
            profile.calls += calls * len(steps)
            profile.total_ns += total_ns * sum(spent[name]) // whole_ns
            profile.last_ns = sum([each.last_ns for each in steps[-1]])


#: What is named for errors: of a program's there are none, as operations that fail are computed again one by one.
_NOWHERE: Origin = (describe.__code__, 0)


def _with_params(op: Primitive, shape: tuple[int, ...], dtype: DType) -> Primitive:
    """The operation, which is given its parameters first."""

    def compute(params: tuple[Any, ...], *inputs: Any) -> Any:
        if not (op.elementwise or op.into):
            return op.compute(*inputs, *params, **({"owned": False} if op.owns else {}))
        out = np.empty(shape, dtype)
        op.compute(*inputs, *params, out=out)
        return out

    return Primitive(op.name, compute, pure=False)


class Structures:
    """The structures that were seen last, and the lines that began them."""

    def __init__(self) -> None:
        self._known: RecentCache[Structure] = RecentCache(_MOST_STRUCTURES)
        #: By the identity of the code, which is kept, since a hash of it takes a hash of all its constants.
        self._starts: dict[tuple[int, int], CodeType] = {}

    def get(self, key: Hashable) -> Structure | None:
        """What is known of a structure."""
        return self._known.get(key)

    def put(self, key: Hashable, structure: Structure) -> None:
        """Remember a structure."""
        self._known.put(key, structure)

    def begin(self, node: Record) -> None:
        """Remember that a structure that has come again begins with a record."""
        if _start_of(node) not in self._starts:
            if len(self._starts) >= _MOST_STARTS:
                self._starts.clear()
            self._starts[_start_of(node)] = node._code

    def stretches(self, nodes: list[Record]) -> list[list[Record]]:
        """Records in order, cut where the line comes again that began them, or one that has begun others."""
        starts, begun = [0], self._starts
        first = _start_of(nodes[0])
        after = _FEWEST
        for i in range(_FEWEST, len(nodes)):
            if i >= after:
                node = nodes[i]
                origin = id(node._code), node._instruction
                if origin == first or origin in begun:
                    starts.append(i)
                    first, after = origin, i + _FEWEST
        if len(starts) == 1:
            return [nodes]
        return [nodes[start:stop] for start, stop in zip(starts, [*starts[1:], len(nodes)], strict=True)]


def _start_of(node: Record) -> tuple[int, int]:
    """The line that recorded it, as long as there is its code."""
    return id(node._code), node._instruction


structures = Structures()
