"""Structures: what records that follow each other compute, apart from their values, so that it is planned once.

The steps of a training are recorded again and again, with other values. Their structure is a key: operations, shapes,
dtypes, which of them reads what, and which values are wanted. From the second time on, a program computes what has a
key. What differs from step to step is given to it, like values: numbers, bounds of slices, streams of random numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.record.record import HOST, Record
from actorflow.array.record.steps import Description, Entry, Part, steps_of
from actorflow.runtime.recent import RecentCache
from actorflow.spec import TensorSpec
from actorflow.threads import simulation
from actorflow.trace.counters import OpProfile

if TYPE_CHECKING:
    from actorflow.array.transforms.program import Compiled, Given, Program
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

            types = [_given(each) for each in description.given]
            self.program = Program([*steps_of(description.entries)], types, [*description.produced])
        self.repeats = repeats

    def compiled(self, service: Service, description: Description, outputs: Sequence[int], capture: bool) -> Compiled:
        """The graph of some results, which a service keeps."""
        from actorflow.array.transforms.program import Compiled

        given = description.given
        numbers = self._numbers(description) if description.is_placed else {}

        def make() -> Compiled:
            types = [_given(each, i in numbers) for i, each in enumerate(given)]
            return Compiled([*steps_of(description.entries)], types, outputs, capture)

        return service.kept((description.key, tuple(outputs), tuple(numbers.items())), make)

    def _numbers(self, description: Description) -> dict[int, bytes]:
        """The numbers that are made part of a graph, by position: not where others come again and again."""
        given = description.given
        numbers = {i: x.tobytes() for i, x in enumerate(given) if type(x) is np.ndarray and not x.shape}
        if len(self._variants) < _MOST_VARIANTS:
            self._variants.add(tuple(numbers.values()))
        return numbers if tuple(numbers.values()) in self._variants else {}


def _given(each: Any, is_number: bool = False) -> Given:
    """The type of what is given."""
    from actorflow.array.transforms.program import Given

    if isinstance(each, Part):
        return Given(each.spec, each.place)
    if not isinstance(each, Record | np.ndarray):
        return Given(None)
    place = each.place if isinstance(each, Record) else HOST
    return Given(TensorSpec(each.shape, each.dtype), place, each if is_number else None)  # type: ignore[arg-type]


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


class Structures:
    """The structures that were seen last, and the lines that began them."""

    def __init__(self) -> None:
        self.forget()
        simulation.forgets.append(self.forget)

    def forget(self) -> None:
        """Begin without any."""
        self.known: RecentCache[Structure] = RecentCache(_MOST_STRUCTURES)
        #: By the identity of the code, which is kept, since a hash of it takes a hash of all its constants.
        self._starts: dict[tuple[int, int], CodeType] = {}

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
