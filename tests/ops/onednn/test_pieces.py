"""Cores that are idle take part in a product, and its bits are those of one thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actorflow.ops.cpu import parallel
from actorflow.ops.linalg import Inner
from actorflow.ops.nn.conv import Conv
from actorflow.ops.onednn.weighted import Weighted
from tests.ops.test_parallel import with_help

RANDOM = np.random.default_rng(0)
#: Operation, its inputs, and in how many pieces it is computed.
CASES: dict[str, tuple[Conv | Inner, tuple[int, ...], tuple[int, ...], int]] = {
    "images": (Conv(pad=1), (5, 6, 7, 8), (3, 3, 8, 16), 5),
    "rows": (Conv(pad=((1, 2), 1)), (1, 14, 7, 8), (3, 3, 8, 16), 5),
    "rows, stride": (Conv(stride=2, pad=3), (1, 29, 7, 8), (7, 7, 8, 16), 5),
    "rows, dilation": (Conv(dilation=2, pad=2), (1, 12, 7, 8), (3, 3, 8, 16), 4),
    "rows, depthwise": (Conv(pad=1, groups=8), (1, 12, 7, 8), (3, 3, 1, 8), 4),
    "one axis": (Conv(pad=1), (1, 12, 8), (3, 8, 16), 0),
    "inner": (Inner(), (5, 2, 8), (16, 8), 5),
    "too few rows": (Conv(pad=1), (1, 5, 7, 8), (3, 3, 8, 16), 0),
    "a border alone": (Conv(pad=9), (1, 3, 3, 8), (3, 3, 8, 16), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_bits(compute: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    operation, x, weight, count = CASES[name]
    arrays = [RANDOM.standard_normal(shape).astype("f") for shape in (x, weight)]
    (alone,) = compute(operation, *arrays)
    cuts: list[int] = []
    cut = Weighted._cut

    def noted(self: Weighted) -> Any:
        found = cut(self)
        cuts.append(len(found))
        return found

    monkeypatch.setattr(Weighted, "_cut", noted)
    monkeypatch.setattr("actorflow.ops.onednn.weighted.WORTH_NS", 1)
    monkeypatch.setattr(parallel, "WORTH_NS", 0)
    again = replace(operation)  # of which nothing is kept
    for _ in range(3):  # in the first call, it is seen that the bits are the same
        (found,) = with_help(2, lambda: compute(again, *arrays))
        np.testing.assert_array_equal(found, alone)
    assert cuts == [count]


def test_where_bits_would_change_it_is_computed_as_a_whole(compute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, x, weight, _ = CASES["images"]
    arrays = [RANDOM.standard_normal(shape).astype("f") for shape in (x, weight)]
    (alone,) = compute(operation, *arrays)
    cut = Weighted._cut

    def wrong(self: Weighted) -> Any:
        """Pieces that compute other images."""
        found = cut(self)
        others = [piece.x for _, piece in found[::-1]]
        return [(compute, piece._replace(x=x)) for (compute, piece), x in zip(found, others, strict=True)]

    monkeypatch.setattr(Weighted, "_cut", wrong)
    monkeypatch.setattr("actorflow.ops.onednn.weighted.WORTH_NS", 1)
    monkeypatch.setattr(parallel, "WORTH_NS", 0)
    again = replace(operation)
    for _ in range(2):
        (found,) = with_help(2, lambda: compute(again, *arrays))
        np.testing.assert_array_equal(found, alone)
