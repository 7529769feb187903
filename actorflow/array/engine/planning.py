"""Planning: which records are computed together, as units.

Records that are needed now are sorted into units, each of which is computed as one: elementwise operations of one
large shape that follow each other, with the reductions that end them, are a chain; small operations of any kind that
follow each other are a sequence, since a thread of their own would cost more than they do. No two units wait for each
other: a record's level is how many edges between units lie on the longest way to it, and only records of one level are
joined, so edges between units always lead to a higher level.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import pairwise
from operator import attrgetter
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow.array.engine.chains import ChainUnit
from actorflow.array.engine.device_unit import DeviceUnit
from actorflow.array.engine.sequences import KnownSequence, Sequence
from actorflow.array.engine.structures import Description, Structure, describe, structures
from actorflow.array.engine.units import Group, Unit
from actorflow.array.record.placement import accelerator_of
from actorflow.array.record.record import Evaluator, Input, Record, bytes_of
from actorflow.array.record.work import ALONE, CHAINED, JOINED, MOST_WORK, ON_DEVICE, measure

if TYPE_CHECKING:
    from actorflow.array.array import Array
    from actorflow.array.engine.memory import Memory

#: Most operations of a sequence.
_MOST_STEPS = 4_096
#: Least and most operations whose structure is looked at: a program is planned, some 300 us for each.
_FEWEST_KNOWN, _MOST_KNOWN = 4, 512
#: Elements that an operation may touch to be part of a program: what touches more is worth a thread of its own.
_BRIEF = 1 << 19
#: Longest way through the records that a device computes as one graph.
_DEEPEST = 256
_number = attrgetter("number")
#: Elements of a constant up to which it is compared with others.
_COMPARED = 64


class Found(NamedTuple):
    """The records that must be computed.

    Attributes:
        new: The records of the session that nothing computes yet, in the order in which they were made.
        under_way: Those that are being computed.
        foreign: Those of other sessions.
        shared: Of the new ones, those that others than these read: worth keeping.
    """

    new: list[Record]
    under_way: list[Record]
    foreign: list[Record]
    shared: set[Record]


def collect(roots: Iterable[Record], evaluator: Evaluator) -> Found:
    """Find the records that must be computed for ``roots``."""
    readers: dict[Record, int] = {}
    new: list[Record] = []
    under_way: list[Record] = []
    foreign: list[Record] = []
    stack = [*roots]
    while stack:
        node = stack.pop()
        if node in readers:
            readers[node] += 1
            continue
        if node.value is not None or node.error is not None:
            continue
        readers[node] = 1
        if node.evaluator is not evaluator:
            foreign.append(node)
        elif node.unit is not None:
            under_way.append(node)
        else:
            new.append(node)
            for each in node.inputs:
                if type(each) is Record and each.value is None:
                    stack.append(each)  # noqa: PERF401  a comprehension is a call
    node = each = None  # type: ignore[assignment]  # they would count as references
    new.sort(key=_number)
    shared = {new[i] for i, others in enumerate(_references(new)) if others > readers[new[i]] + _UNREFERRED}
    return Found(new, under_way, foreign, shared)


def between_sessions(roots: Iterable[Record]) -> list[Record]:
    """The records, and those that they need from other sessions, in the order in which they were made.

    Computed one after the other, none of them waits for another session's computation within its own.
    """
    found = dict.fromkeys(roots)
    seen: set[Record] = set()
    stack = [*found]
    while stack:
        node = stack.pop()
        if node in seen or node.done:
            continue
        seen.add(node)
        for each in _records(node):
            if each.evaluator is not node.evaluator:
                found[each] = None
            stack.append(each)
    return sorted(found, key=_number)


def node_to_compute(ref: weakref.ref[Array]) -> Record | None:
    """The record that an array shows, if there is something to compute."""
    array = ref()
    return None if array is None or array._node.done else array._node


def _references(nodes: list[Any]) -> list[int]:
    return [*map(getrefcount, nodes)]


def _calibrate() -> int:
    nodes = [object()]
    held = dict.fromkeys(nodes, 1)
    return _references(nodes)[0] * len(held)


#: Reference count, as `_references` gives it, of a record that only a list and a dictionary refer to.
_UNREFERRED = _calibrate()


def window(nodes: list[Record], memory_of: Callable[[Record], Memory]) -> list[Record]:
    """The first of the records that fit together, without those that never fit and their dependents."""
    chosen: list[Record] = []
    skipped: set[Record] = set()
    rooms: dict[Memory, tuple[int, int]] = {}  # total and left
    for node in nodes:
        memory = memory_of(node)
        size_bytes = bytes_of(node)
        room_bytes, left_bytes = rooms.get(memory) or (memory.room_bytes,) * 2
        if size_bytes > room_bytes or (skipped and not skipped.isdisjoint(_records(node))):
            skipped.add(node)
            continue
        if size_bytes > left_bytes:
            break
        rooms[memory] = room_bytes, left_bytes - size_bytes
        chosen.append(node)
    return chosen


def _records(node: Record) -> list[Record]:
    return [each for each in node.inputs if type(each) is Record]


def make_units(nodes: list[Record], roots: set[Record], units: list[Unit]) -> int:
    """Make units for records: programs, for those of structures that were seen before; else see `_make_units`."""
    if len(nodes) < _FEWEST_KNOWN or not nodes[0].evaluator.takes_programs:
        return _make_units(nodes, roots, units)
    if Record.placing is not None and any(accelerator_of(node) is not None for node in nodes):
        return _make_units(nodes, roots, units)
    stretches = structures.stretches(nodes)
    if len(stretches) > 1 and _have_common(stretches):
        return _make_units(nodes, roots, units)
    wanted = {*roots}
    found: list[tuple[list[Record], Description, Structure, bool]] = []
    for own in reversed(stretches):
        description = describe(own, wanted)
        structure = structures.get(description.key)
        is_known = structure is not None
        if structure is None:
            measured = [*map(_measure, own)]
            work = sum([touched for _, touched in measured])
            is_fit = all(kind == JOINED or (kind == ALONE and touched <= _BRIEF) for kind, touched in measured)
            is_fit = is_fit and work <= MOST_WORK and len(own) <= _MOST_KNOWN
            structure = Structure(is_fit, work)
            structures.put(description.key, structure)
        if not structure.is_fit:
            return _make_units(nodes, roots, units)
        found.append((own, description, structure, is_known))
        wanted.update([each for each in description.given if type(each) is Record])
    shared = 0
    for own, description, structure, is_known in reversed(found):
        if is_known and structure.program is None:
            repeated = common(own)
            structure.bind(description, [i for i, node in enumerate(own) if node in repeated])
            structures.begin(own[0])
        if is_known and structure.program is not None:
            units.append(KnownSequence(own, description, structure))
            shared += structure.repeats
        else:
            shared += _make_units(own, wanted, units)
    return shared


def _have_common(stretches: list[list[Record]]) -> bool:
    """Return whether an operation that is more than a view or a constant repeats one of another stretch."""
    same = common([node for own in stretches for node in own])
    if not same:
        return False
    of = {node: i for i, own in enumerate(stretches) for node in own}
    return any(
        of[node] != of[first] and not first.op.view and any(type(each) is Record for each in first.inputs)  # type: ignore[union-attr]
        for node, first in same.items()
    )


def _make_units(nodes: list[Record], roots: set[Record], units: list[Unit]) -> int:
    """Make units for records.

    Args:
        nodes: In the order in which they were made; those that will be computed are marked with their units.
        roots: Those whose values are wanted even if no array shows them.
        units: Where they go.

    Returns:
        How many of the records repeat others.
    """
    same = common(nodes) if len(nodes) > 1 else {}
    kept = [node for node in nodes if node not in same] if same else nodes
    wanted = {node for node in kept if node.is_held()}
    wanted.update(roots)
    twins: dict[Record, list[Record]] = {}
    for node, first in same.items():
        if node in roots or node.is_held():
            twins.setdefault(first, []).append(node)
            wanted.add(first)
    for group, kind in _groups(kept, same, wanted):
        produced = {i: node for i, node in enumerate(group) if node in wanted}
        if produced:
            units.append(_UNITS[kind](Group(group, produced, same, twins)))
    return len(same)


def common(nodes: Iterable[Record]) -> dict[Record, Record]:
    """For each record that repeats an earlier one, that one."""
    known: dict[Any, Record] = {}
    same: dict[Record, Record] = {}
    for node in nodes:
        op = node.op
        if op is None or not op.pure:
            continue
        inputs = [each if type(each) is Record else _constant(each) for each in node.inputs]
        if same:
            inputs = [same.get(each, each) for each in inputs]
        first = known.setdefault((op, node.params, node.dtype, node.shape, *inputs), node)
        if first is not node:
            same[node] = first
    return same


def _constant(value: Input) -> Any:
    assert isinstance(value, np.ndarray)
    if not value.shape:
        return value.dtype, value.tobytes()
    return (value.dtype, value.shape, value.tobytes()) if value.size <= _COMPARED else id(value)


_UNITS: dict[int, type[Sequence | ChainUnit | DeviceUnit]] = {
    ALONE: Sequence,
    JOINED: Sequence,
    CHAINED: ChainUnit,
    ON_DEVICE: DeviceUnit,
}


def _measure(node: Record) -> tuple[int, int]:
    """The way in which a record is joined with others, and about how many elements it touches."""
    assert node.op is not None
    if Record.placing is not None and accelerator_of(node) is not None:
        return ON_DEVICE, node.size
    return measure(node.op, node.inputs, node.size, node.params)


def _groups(nodes: list[Record], same: dict[Record, Record], wanted: set[Record]) -> list[tuple[list[Record], int]]:
    """Records by unit, in order, and how they are joined; adds those that are read by other units to ``wanted``."""
    kinds: list[int] = []
    works: list[int] = []
    for node in nodes:
        kind, touched = _measure(node)
        kinds.append(kind)
        works.append(touched)
    if kinds.count(JOINED) == len(kinds):
        return _sequences(nodes, works, same, wanted)
    joined = _Groups()
    for node, kind, touched in zip(nodes, kinds, works, strict=True):
        joined.add(node, [same.get(each, each) for each in _records(node)], kind, touched)
    found: dict[int, tuple[list[Record], int]] = {}
    groups = joined.groups
    for node, kind in zip(nodes, kinds, strict=True):
        group = groups[node]
        entry = found.get(id(group))
        if entry is None:
            entry = found[id(group)] = [], kind
        entry[0].append(node)
        for each in node.inputs:
            if type(each) is Record:
                read = same.get(each, each)
                if groups.get(read, group) is not group:
                    wanted.add(read)
    return [*found.values()]


def _sequences(
    nodes: list[Record], works: list[int], same: dict[Record, Record], wanted: set[Record]
) -> list[tuple[list[Record], int]]:
    """The result of `_groups` for records that are all joined in sequences: each is a stretch of them."""
    starts, work = [0], 0
    for i, touched in enumerate(works):
        work += touched
        if (work > MOST_WORK and i > starts[-1]) or i - starts[-1] == _MOST_STEPS:
            starts.append(i)
            work = touched
    groups = [nodes[start:stop] for start, stop in pairwise([*starts, len(nodes)])]
    for group in groups[1:]:
        first = group[0].number
        for node in group:
            for each in node.inputs:
                if type(each) is Record:
                    read = same.get(each, each) if same else each
                    if read.number < first:
                        wanted.add(read)
    return [(group, JOINED) for group in groups]


class _Groups:
    """The groups that records are joined to, one by one, in their order.

    Attributes:
        groups: Of each record: a list that all its members share.
    """

    def __init__(self) -> None:
        self.groups: dict[Record, list[Record]] = {}
        self._kinds: dict[Record, int] = {}
        self._levels: dict[Record, int] = {}
        self._depths: dict[Record, int] = {}
        self._sequences: dict[int, tuple[list[Record], list[int]]] = {}

    def add(self, node: Record, reads: list[Record], kind: int, touched: int) -> None:
        level, chained = 0, []
        for read in reads:
            other = self._kinds.get(read)
            if other is None:
                continue
            at = self._levels[read]
            if kind == other and (_follows(node, read) if kind == CHAINED else self._are_together(node, read, kind)):
                chained.append(read)
            elif not kind == other == JOINED:
                at += 1
            level = max(level, at)
        self._kinds[node], self._levels[node] = kind, level
        if kind == ON_DEVICE:
            self._depths[node] = 1 + max([self._depths[read] for read in chained], default=0)
        if kind == JOINED:
            self.groups[node] = self.sequence(node, level, touched)
        else:
            self.groups[node] = self._chain(node, [read for read in chained if self._levels[read] == level])

    def _are_together(self, node: Record, read: Record, kind: int) -> bool:
        """Return whether one device computes a record together with one that it reads."""
        if kind != ON_DEVICE or accelerator_of(node) is not accelerator_of(read):
            return False
        return self._depths[read] < _DEEPEST or read.dtype.hasobject

    def sequence(self, node: Record, level: int, touched: int) -> list[Record]:
        members, work = self._sequences.get(level, ([], [MOST_WORK]))
        work[0] += touched
        if work[0] > MOST_WORK or len(members) == _MOST_STEPS:
            members, _ = self._sequences[level] = [], [touched]
        members.append(node)
        return members

    def _chain(self, node: Record, reads: Iterable[Record]) -> list[Record]:
        group = [node]
        for read in reads:
            other = self.groups[read]
            if other is not group:
                small, large = sorted((group, other), key=len)
                large.extend(small)
                for member in small:
                    self.groups[member] = large
                group = large
        return group


def _follows(node: Record, read: Record) -> bool:
    """Return whether a record may be in one chain with another one that it reads."""
    assert node.op is not None
    assert read.op is not None
    return read.op.elementwise and (node.op.reduction or (node.op.elementwise and read.shape == node.shape))
