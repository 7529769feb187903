"""Planning: which records are computed together, as units.

Records that are needed now are sorted into units, each of which is computed as one: elementwise operations of one
large shape that follow each other, with the reductions that end them, are a chain; small operations of any kind that
follow each other are a sequence, since a thread of their own would cost more than they do. No two units wait for each
other (`actorflow.plan.groups`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
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
from actorflow.plan.groups import grouped

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
        groups = _sequences(range(len(nodes)), works)
    else:
        joined = _joined(nodes, kinds, same)
        groups = [part for all_ in joined for part in (_sequences(all_, works) if kinds[all_[0]] == JOINED else [all_])]
        groups.sort()
    if len(groups) > 1:
        unit_of = {nodes[i]: number for number, group in enumerate(groups) for i in group}
        for node, number in unit_of.items():
            for each in node.inputs:
                if type(each) is Record:
                    read = same.get(each, each)
                    if unit_of.get(read, number) != number:
                        wanted.add(read)
    return [([nodes[i] for i in group], kinds[group[0]]) for group in groups]


def _joined(nodes: list[Record], kinds: list[int], same: dict[Record, Record]) -> list[list[int]]:
    """Positions of the records that are computed together, whatever they do."""
    position = {node: i for i, node in enumerate(nodes)}
    reads = [
        [position[read] for each in _records(node) if (read := same.get(each, each)) in position] for node in nodes
    ]
    depths = [1] * len(nodes)

    def joins(before: int, i: int) -> bool:
        kind, node, read = kinds[i], nodes[i], nodes[before]
        if kind != kinds[before] or kind == ALONE:
            return False
        if kind == CHAINED:
            return _follows(node, read)
        if kind == ON_DEVICE:  # by one device, and as deep as that can go
            if accelerator_of(node) is not accelerator_of(read):
                return False
            if depths[before] >= _DEEPEST and not read.dtype.hasobject:
                return False
            depths[i] = max(depths[i], 1 + depths[before])
        return True

    return grouped(reads, joins, [kind if kind == JOINED else None for kind in kinds])


def _sequences(group: Iterable[int], works: list[int]) -> list[list[int]]:
    """Positions of records that are joined in sequences, cut where one would do too much."""
    sequences: list[list[int]] = [[]]
    work = 0
    for i in group:
        work += works[i]
        if sequences[-1] and (work > MOST_WORK or len(sequences[-1]) == _MOST_STEPS):
            sequences.append([])
            work = works[i]
        sequences[-1].append(i)
    return sequences


def _follows(node: Record, read: Record) -> bool:
    """Return whether a record may be in one chain with another one that it reads."""
    assert node.op is not None
    assert read.op is not None
    return read.op.elementwise and (node.op.reduction or (node.op.elementwise and read.shape == node.shape))
