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

from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import DType, Numbered, Primitive
from actorflow.array.record.record import HOST, SEVERAL, OpStep, Origin, Record
from actorflow.place import Place
from actorflow.runtime.recent import RecentCache
from actorflow.spec import TensorSpec
from actorflow.trace.counters import OpProfile

if TYPE_CHECKING:
    from actorflow.array.transforms.program import Compiled, Program
    from actorflow.runtime.service import Service

#: Structures that are kept, and the lines that begin some.
_MOST_STRUCTURES = 256
_MOST_STARTS = 1_024
#: Least operations between two lines that begin the same structure.
_FEWEST = 16
#: Most operations of a structure: a program is planned, some 300 us for each.
MOST_STEPS = 512
#: Most graphs that differ in numbers alone; beyond that, the numbers are fed.
_MOST_VARIANTS = 4


#: One operation of a structure, or its name if it is given, as the first of what it reads; its further arguments, or
#: the slot where they are given; shape and dtype of its result; slots of what it reads; where it is computed, None for
#: the host. What is given has slots from -1 on downwards, the operations count from 0. A plain tuple, since one is made
#: whenever records are planned.
Entry = tuple[Any, Any, tuple[int, ...], DType, tuple[int, ...], Place | None]


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
            each.value if type(each) is Record else each.whole.value[each.part] if type(each) is _Part else each  # type: ignore[index]
            for each in self.given
        ]


class _Part(NamedTuple):
    """A result of an operation with several that was computed before."""

    whole: Record
    part: int
    spec: TensorSpec
    place: Place


def describe(nodes: Sequence[Record], wanted: set[Record], is_placed: bool = False) -> Description:
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
                kind: Any = each.shape, each.dtype
                if is_placed:
                    kind = (*kind, each.place if type(each) is Record else None)
                    if each.dtype == SEVERAL:
                        assert isinstance(each, Record)
                        part = _Part(each, node.params[0], TensorSpec(node.shape, node.dtype), each.place)
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
        elif op.view and not params and not is_placed:
            row.insert(0, give(op, op))
            op = op.name
        place = node.place if node.place is not HOST or op is TRANSFER else None
        entries.append((op, params, node.shape, node.dtype, tuple(row), place))
        if node in wanted or node.is_held():
            produced[i] = node
    return Description(entries, given, produced, (tuple(entries), tuple(types), tuple(produced)), is_placed)


def name_of(entry: Entry) -> str:
    """Name of an operation."""
    op = entry[0]
    return op if isinstance(op, str) else str(op.name)


class Structure:
    """Knowledge of records of one structure.

    Args:
        is_large: Whether an operation is worth a thread of its own, so that the service computes them.

    Attributes:
        times_met: How often there were records of it.
        repeats: How many of the records repeat others, once there is a program.
        program: What computes them; None if it was not needed yet, or the service does.
    """

    _given = Primitive("given", lambda op, *inputs: op.compute(*inputs), view=True)

    def __init__(self, is_large: bool) -> None:
        self.is_large = is_large
        self.times_met = 0
        self.repeats = 0
        self.program: Program | None = None
        self._variants: set[Hashable] = set()  # numbers that graphs were made for

    def bind(self, description: Description, repeats: int) -> None:
        """Make the program for threads that compute it themselves, if there is none yet."""
        if self.program is None:
            from actorflow.array.transforms.program import Program

            entries, given = description.entries, description.given
            types = [TensorSpec(x.shape, x.dtype) if isinstance(x, Record | np.ndarray) else None for x in given]
            found = [len(given) + i for i in description.produced]
            program = Program([*self._steps(entries, len(given))], types, found)
            self.program = program
        self.repeats = repeats

    def compiled(self, service: Service, description: Description, outputs: Sequence[int], capture: bool) -> Compiled:
        """The graph of some results, which a service keeps."""
        from actorflow.array.transforms.program import Compiled, Given

        given = description.given
        numbers = self._numbers(description) if description.is_placed else {}

        def make() -> Compiled:
            types = []
            for i, each in enumerate(given):
                if type(each) is _Part:
                    types.append(Given(each.spec, each.place))
                elif isinstance(each, Record | np.ndarray):
                    place = each.place if isinstance(each, Record) else HOST
                    types.append(Given(TensorSpec(each.shape, each.dtype), place, each if i in numbers else None))  # type: ignore[arg-type]
                else:
                    types.append(Given(None))
            steps = [*self._steps(description.entries, len(given))]
            places = [entry[-1] or HOST for entry in description.entries]
            return Compiled(steps, places, types, [len(given) + i for i in outputs], capture)

        return service.kept((description.key, tuple(outputs), tuple(numbers.items())), make)

    def _numbers(self, description: Description) -> dict[int, bytes]:
        """The numbers that are made part of a graph, by position: not where others come again and again."""
        given = description.given
        numbers = {i: x.tobytes() for i, x in enumerate(given) if type(x) is np.ndarray and not x.shape}
        if len(self._variants) < _MOST_VARIANTS:
            self._variants.add(tuple(numbers.values()))
        return numbers if tuple(numbers.values()) in self._variants else {}

    def _steps(self, entries: Sequence[Entry], first: int) -> Iterator[OpStep]:
        """The steps of the program."""
        for op, params, shape, dtype, row, _ in entries:
            reads = [-1 - slot if slot < 0 else first + slot for slot in row]
            if isinstance(op, str):
                op = self._given
            elif isinstance(params, int):
                reads = [-1 - params, *reads]
                op, params = Numbered(op, shape, dtype), ()
            yield OpStep(op, tuple(reads), params, shape, dtype, _NOWHERE)


def note(
    names: Iterable[str], profiles: Sequence[Sequence[OpProfile]], calls: int, total_ns: int, to: dict[str, OpProfile]
) -> None:
    """Add calls of a program to a profile; each operation has the share of their time that it has of all.

    Args:
        names: Of its steps.
        profiles: Of the ops of each step.
        calls: How often it was called.
        total_ns: How long that took.
        to: The profile.
    """
    spent = [sum([each.total_ns for each in own]) for own in profiles]
    whole_ns = max(1, sum(spent))
    for name, own, own_ns in zip(names, profiles, spent, strict=True):
        profile = to.setdefault(name, OpProfile())
        profile.calls += calls
        profile.total_ns += total_ns * own_ns // whole_ns
        profile.last_ns = sum([each.last_ns for each in own])


#: The node that errors name: a program has none, as operations that fail are computed again one by one.
_NOWHERE: Origin = (describe.__code__, 0)


class Structures:
    """The structures that were seen last, and the lines that began them."""

    def __init__(self) -> None:
        self._known: RecentCache[Structure] = RecentCache(_MOST_STRUCTURES)
        #: By the identity of the code, which is kept, since a hash of it takes a hash of all its constants.
        self._starts: dict[tuple[int, int], CodeType] = {}

    def get(self, key: Hashable) -> Structure | None:
        """The knowledge of a structure."""
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
