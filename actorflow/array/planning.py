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

from actorflow.array.records import Input, Node
from actorflow.array.units import Unit

if TYPE_CHECKING:
    from actorflow.array.session import Session

__all__ = ["collect", "make_units"]


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
    kept = [node for node in nodes if node not in same]
    groups = _groups(kept, same)
    wanted = {node for node in kept if node in roots or node.is_held()}
    twins: dict[Node, list[Node]] = {}
    for node, first in same.items():
        if node in roots or node.is_held():
            twins.setdefault(first, []).append(node)
            wanted.add(first)
    for node in kept:
        for each in node.inputs:
            if type(each) is Node:
                read = same.get(each, each)
                if read in groups and groups[read] is not groups[node]:
                    wanted.add(read)
    members: dict[int, list[Node]] = {}
    for node in kept:
        members.setdefault(id(groups[node]), []).append(node)
    units = []
    for group in members.values():
        outputs = [node for node in group if node in wanted]
        if outputs:
            units.append(Unit(group, outputs, same, twins))
    return units, len(same)


def _common(nodes: Iterable[Node]) -> dict[Node, Node]:
    """For each record that repeats an earlier one, that one."""
    known: dict[Any, Node] = {}
    same: dict[Node, Node] = {}
    for node in nodes:
        op = node.op
        if op is None or not op.pure:
            continue
        inputs = tuple(same.get(each, each) if type(each) is Node else _constant(each) for each in node.inputs)
        first = known.setdefault((op, node.params, node.dtype, node.shape, inputs), node)
        if first is not node:
            same[node] = first
    return same


def _constant(value: Input) -> Any:
    assert isinstance(value, np.ndarray)
    return value.dtype, value.shape, value.tobytes()


def _groups(nodes: Iterable[Node], same: dict[Node, Node]) -> dict[Node, list[Node]]:
    """The group of each record: a list that all its members share."""
    groups: dict[Node, list[Node]] = {}
    levels: dict[Node, int] = {}
    for node in nodes:
        op = node.op
        assert op is not None
        level, joined = 0, []
        for each in node.inputs:
            if type(each) is not Node:
                continue
            read = same.get(each, each)
            if read not in levels:
                continue
            assert read.op is not None
            if read.op.elementwise and (op.reduction or (op.elementwise and read.shape == node.shape)):
                level = max(level, levels[read])
                joined.append(read)
            else:
                level = max(level, levels[read] + 1)
        levels[node] = level
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
