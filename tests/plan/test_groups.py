"""Groups of items that do not wait for each other."""

from __future__ import annotations

from graphlib import TopologicalSorter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from actorflow.plan.groups import grouped

KINDS = ("alone", "chained", "left", "right")


def by_kind(kinds: list[str], reads: list[list[int]]) -> list[list[int]]:
    """Groups as the parts of the package make them, of items of these kinds: two have keys."""

    def joins(before: int, item: int) -> bool | None:
        return None if kinds[before] == "alone" else kinds[before] == kinds[item]

    return grouped(reads, joins, [kind if kind in ("left", "right") else None for kind in kinds])


@given(st.integers(0, 1 << 32))
def test_no_two_wait_for_each_other(seed: int) -> None:
    random = Random(seed)
    kinds = random.choices(KINDS, weights=[random.random() for _ in KINDS], k=random.randrange(1, 40))
    reads = [[random.randrange(i) for _ in range(random.randrange(3) if i else 0)] for i in range(len(kinds))]
    groups = by_kind(kinds, reads)
    assert sorted(item for group in groups for item in group) == [*range(len(kinds))]
    assert all(group == sorted(group) and len({kinds[item] for item in group}) == 1 for group in groups)
    assert all(len(group) == 1 for group in groups if kinds[group[0]] == "alone")
    of = {item: number for number, group in enumerate(groups) for item in group}
    waits = {number: {of[each] for item in group for each in reads[item]} for number, group in enumerate(groups)}
    order = TopologicalSorter({number: before - {number} for number, before in waits.items()})
    assert len([*order.static_order()]) == len(groups)  # a cycle is an error


def test_a_way_out_and_back_in_divides() -> None:
    reads: list[list[int]] = [[], [0], [0], [1, 2]]
    assert by_kind(["chained"] * 4, reads) == [[0, 1, 2, 3]]
    assert by_kind(["chained", "chained", "alone", "chained"], reads) == [[0, 1], [2], [3]]
    assert by_kind(["left", "left", "alone", "left"], reads) == [[0, 1], [2], [3]]


def test_those_of_a_key_need_not_read_each_other() -> None:
    assert by_kind(["left", "left"], [[], []]) == [[0, 1]]
    assert by_kind(["chained", "chained"], [[], []]) == [[0], [1]]
    assert by_kind(["chained", "chained", "chained"], [[], [], [0, 1]]) == [[0, 1, 2]]


def test_all_may_wait_for_what_is_in_no_group() -> None:
    reads: list[list[int]] = [[], [], [0, 1]]
    assert by_kind(["left", "alone", "left"], reads) == [[0, 2], [1]]
    assert grouped(reads, lambda before, item: before != 1) == [[0], [1], [2]]


def test_keys_take_turns() -> None:
    """Left and right need each other's both ways: the second of the two has its items together."""
    assert by_kind(["left", "right", "left", "right"], [[], [], [1], [0]]) == [[0], [1, 3], [2]]
