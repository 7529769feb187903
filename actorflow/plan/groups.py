"""Groups: items that are computed as one, so that no two groups wait for each other.

An item's level is the number of edges on the longest way to it that no group may contain. Only items of one level are
joined, so an edge between two groups always leads to a higher level, and the graph of the groups has no cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence


def grouped(
    reads: Sequence[Iterable[int]], joins: Callable[[int, int], bool | None], keys: Sequence[Hashable] | None = None
) -> list[list[int]]:
    """Join items, each of which is named by its position.

    Args:
        reads: For each item the items before it that it waits for.
        joins: Called with an item and one that waits for it: True if one group may have both, False if the group of the
            second one comes behind that of the first. None if the first one is in no group, and the whole group of the
            second one may wait for it.
        keys: Items of one level with the same key are one group, whether or not one waits for another; None for an item
            that is joined only with those that it waits for, or that wait for it. Keys take turns: each level is for
            one of them, so of two that need each other's items both ways one still has its items together.

    Returns:
        The groups, each ascending, in the order of their first items.
    """
    turns = {key: i for i, key in enumerate(dict.fromkeys(key for key in keys or () if key is not None))}
    levels: list[int] = []
    group_of: list[list[int]] = []
    keyed: dict[tuple[Hashable, int], list[int]] = {}
    for item, befores in enumerate(reads):
        level, near = 0, []
        for before in befores:
            joined = joins(before, item)
            if joined:
                near.append(before)
            if (least := levels[before] + (joined is False)) > level:  # max() costs much more, for each edge
                level = least
        key = None if keys is None else keys[item]
        group: list[int] = []
        if key is not None:
            level += (turns[key] - level) % len(turns)
            group = keyed.setdefault((key, level), group)
        group.append(item)
        levels.append(level)
        group_of.append(group)
        for before in near:
            other = group_of[before]
            if levels[before] == level and other is not group:
                small, group = sorted((other, group), key=len)
                group += small
                for member in small:
                    group_of[member] = group
    return [sorted(group) for group in {id(group): group for group in group_of}.values()]
