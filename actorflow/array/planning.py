"""What is computed together: from records to units.

Records that are needed now are sorted into units, each of which is computed as one. Elementwise operations of one
shape that follow each other become one chain, with the reductions that end it. No two units wait for each other: a
record's level is how many edges that cannot be fused lie on the longest way to it, and only records of one level are
joined, so edges between units always lead to a higher level.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.placed import PlacedUnit
from actorflow.array.placement import accelerator_of
from actorflow.array.records import Input, Node
from actorflow.array.units import Unit

if TYPE_CHECKING:
    from actorflow.array.session import Session

__all__ = ["collect", "make_units"]

#: Elements up to which operations are computed one after the other, whatever they are.
_SMALL = 4_096
#: Records on a way through what a device computes at a time: graphs are made for it, and kept.
_DEEPEST = 256
#: Elements of a constant up to which it is compared with others.
_COMPARED = 64


def collect(roots: Iterable[Node], session: Session) -> tuple[list[Node], list[Node], list[Node]]:
    """What must be computed for ``roots``.

    Returns:
        The records of this session that nothing computes yet, in the order in which they were made; those that are
        being computed; those of other sessions.
    """
    seen: set[Node] = set()
    new: list[Node] = []
    under_way: list[Node] = []
    foreign: list[Node] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.done or node in seen:
            continue
        seen.add(node)
        if node.session is not session:
            foreign.append(node)
        elif node.unit is not None:
            under_way.append(node)
        else:
            new.append(node)
            stack.extend(each for each in node.inputs if type(each) is Node)
    new.sort(key=lambda node: node.number)
    return new, under_way, foreign


def make_units(nodes: list[Node], roots: set[Node]) -> tuple[list[Unit], int]:
    """Units for records, and how many of these repeat others.

    Args:
        nodes: In the order in which they were made; those that will be computed are marked with their units.
        roots: Those whose values are wanted even if no array shows them.
    """
    same = _common(nodes)
    kept = [node for node in nodes if node not in same] if same else nodes
    wanted = {node for node in kept if node in roots or node.is_held()}
    twins: dict[Node, list[Node]] = {}
    for node, first in same.items():
        if node in roots or node.is_held():
            twins.setdefault(first, []).append(node)
            wanted.add(first)
    is_placed = Node.placing is not None and any(accelerator_of(node) is not None for node in kept)
    if not is_placed and _are_small(kept):
        groups = [kept]
    else:
        groups = _groups(kept, same, wanted)
    units = []
    for group in groups:
        produced = {i: node for i, node in enumerate(group) if node in wanted}
        if produced:
            repeated = {node: twins.get(node, []) for node in produced.values()} if twins else {}
            if is_placed and accelerator_of(group[0]) is not None:
                units.append(PlacedUnit(group, produced, same, repeated))
                continue
            is_chain = group is not kept and group[0].op is not None and group[0].op.elementwise
            units.append(Unit(group, produced, same, repeated, is_chain))
    return units, len(same)


def _are_small(nodes: Iterable[Node]) -> bool:
    """Whether all of it is so little work that a unit for each part would cost more."""
    return all(node.size <= _SMALL and all(each.size <= _SMALL for each in node.inputs) for node in nodes)


def _common(nodes: Iterable[Node]) -> dict[Node, Node]:
    """For each record that repeats an earlier one, that one."""
    known: dict[Any, Node] = {}
    same: dict[Node, Node] = {}
    for node in nodes:
        op = node.op
        if op is None or not op.pure:
            continue
        inputs = tuple([same.get(each, each) if type(each) is Node else _constant(each) for each in node.inputs])
        first = known.setdefault((op, node.params, node.dtype, node.shape, inputs), node)
        if first is not node:
            same[node] = first
    return same


def _constant(value: Input) -> Any:
    assert isinstance(value, np.ndarray)
    return (value.dtype, value.shape, value.tobytes()) if value.size <= _COMPARED else id(value)


def _groups(nodes: list[Node], same: dict[Node, Node], wanted: set[Node]) -> list[list[Node]]:
    """Records by unit, in order; adds those that are read by other units to ``wanted``."""
    groups = _joined(nodes, same)
    members: dict[int, list[Node]] = {}
    for node in nodes:
        group = groups[node]
        members.setdefault(id(group), []).append(node)
        for each in node.inputs:
            if type(each) is Node:
                read = same.get(each, each)
                if groups.get(read, group) is not group:
                    wanted.add(read)
    return [*members.values()]


def _are_linked(read: Node, node: Node, depths: dict[Node, int]) -> bool:
    """Whether a record can be computed together with one that it reads."""
    op, before = node.op, read.op
    assert op is not None
    assert before is not None
    if Node.placing is not None:
        device = accelerator_of(node)
        if device is not accelerator_of(read):
            return False
        if device is not None:
            return depths[read] < _DEEPEST or read.dtype.hasobject
    return before.elementwise and (op.reduction or (op.elementwise and read.shape == node.shape))


def _joined(nodes: Iterable[Node], same: dict[Node, Node]) -> dict[Node, list[Node]]:
    """The group of each record: a list that all its members share."""
    groups: dict[Node, list[Node]] = {}
    levels: dict[Node, int] = {}
    depths: dict[Node, int] = {}
    for node in nodes:
        level, joined = 0, []
        for each in node.inputs:
            if type(each) is not Node:
                continue
            read = same.get(each, each)
            if read not in levels:
                continue
            if _are_linked(read, node, depths):
                level = max(level, levels[read])
                joined.append(read)
            else:
                level = max(level, levels[read] + 1)
        levels[node] = level
        depths[node] = 1 + max([depths[read] for read in joined], default=0)
        group = groups[node] = [node]
        for read in joined:
            other = groups[read]
            if levels[read] == level and other is not group:
                small, large = sorted((group, other), key=len)
                large.extend(small)
                for member in small:
                    groups[member] = large
                group = large
    return groups
