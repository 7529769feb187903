"""Cores that are idle take part in a product, and its bits are those of one thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actorflow.devices import team
from actorflow.ops.linalg import Inner
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, GlobalAverage, MaxPool
from actorflow.ops.nn.softmax import Softmax
from actorflow.ops.onednn import conv, steps
from actorflow.ops.onednn.steps import Divisible
from actorflow.ops.onednn.weighted import Weighted
from tests.ops.test_parallel import with_help

RANDOM = np.random.default_rng(0)
#: Operation, its inputs, and in how many pieces it is computed; None where pieces are those of sums, always the same.
CASES: dict[str, Any] = {
    "images": (Conv(pad=1), (5, 6, 7, 8), (3, 3, 8, 16), 5),
    "rows": (Conv(pad=((1, 2), 1)), (1, 14, 7, 8), (3, 3, 8, 16), 5),
    "rows, stride": (Conv(stride=2, pad=3), (1, 29, 7, 8), (7, 7, 8, 16), 5),
    "rows, dilation": (Conv(dilation=2, pad=2), (1, 12, 7, 8), (3, 3, 8, 16), 4),
    "rows, depthwise": (Conv(pad=1, groups=8), (1, 12, 7, 8), (3, 3, 1, 8), 4),
    "one axis": (Conv(pad=1), (1, 12, 8), (3, 8, 16), 0),
    "inner": (Inner(), (5, 2, 8), (16, 8), 5),
    "too few rows": (Conv(pad=1), (1, 5, 7, 8), (3, 3, 8, 16), 0),
    "data gradient": (ConvDown(pad=1, size=(6, 7)), (5, 6, 7, 16), (3, 3, 8, 16), 5),
    "weight gradient": (ConvWeight(pad=1, kernel=(3, 3)), (6, 6, 7, 16), (6, 6, 7, 8), None),
    "maxima": (MaxPool(2), (5, 6, 7, 8), 5),
    "averages": (AveragePool(2), (5, 6, 8, 8), 5),
    "their gradient": (AveragePoolDown(2, size=(6, 8)), (5, 3, 4, 8), 5),
    "average": (GlobalAverage(), (5, 6, 7, 8), 5),
    "softmax": (Softmax(), (5, 40), 5),
    "softmax, first axis": (Softmax(0), (5, 40), None),
    "a border alone": (Conv(pad=9), (1, 3, 3, 8), (3, 3, 8, 16), 0),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All work is worth pieces; how many there were of each step that was tried."""
    counts: list[int] = []
    tried = Divisible._tried

    def noted(self: Divisible, *arguments: Any) -> Any:
        found = tried(self, *arguments)
        counts.append(len(found))
        return found

    monkeypatch.setattr(Divisible, "_tried", noted)
    for module in (steps, conv, team):
        monkeypatch.setattr(module, "WORTH_NS", 1)
    return counts


@pytest.mark.parametrize("name", CASES)
def test_bits(compute: Any, small: list[int], name: str) -> None:
    operation, *shapes, count = CASES[name]
    arrays = [RANDOM.standard_normal(shape).astype("f") for shape in shapes]
    (alone,) = compute(operation, *arrays)
    again = replace(operation)  # of which nothing is kept
    for _ in range(3):  # in the first call, it is seen that the bits are the same
        (found,) = with_help(2, lambda: compute(again, *arrays))
        np.testing.assert_array_equal(found, alone)
    assert small == ([] if count is None else [count])


def test_where_bits_would_change_it_is_computed_as_a_whole(
    compute: Any, small: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation, *shapes, _ = CASES["images"]
    arrays = [RANDOM.standard_normal(shape).astype("f") for shape in shapes]
    (alone,) = compute(operation, *arrays)
    pieces = Weighted._pieces

    def wrong(self: Weighted, count: int) -> Any:
        """Pieces that compute other images."""
        found = pieces(self, count)
        others = [places[0] for _, places in found[::-1]]
        return [(compute, [x, *places[1:]]) for (compute, places), x in zip(found, others, strict=True)]

    monkeypatch.setattr(Weighted, "_pieces", wrong)
    again = replace(operation)
    for _ in range(2):
        (found,) = with_help(2, lambda: compute(again, *arrays))
        np.testing.assert_array_equal(found, alone)
    assert small == [0]
