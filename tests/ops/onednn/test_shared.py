"""Cores that are idle take part in a primitive as threads of OpenMP, and the bits are those of one thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actorflow.devices.team import team
from actorflow.ops.linalg import Inner
from actorflow.ops.nn.activation import Silu
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.norm import LayerNorm
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, GlobalAverage, MaxPool
from actorflow.ops.nn.softmax import Softmax
from actorflow.ops.onednn import steps
from actorflow.ops.onednn.library import libdnnl
from actorflow.ops.onednn.steps import Compute, Shared
from tests.ops.test_parallel import with_help

RANDOM = np.random.default_rng(0)
#: Operation, and its inputs.
CASES: dict[str, Any] = {
    "images": (Conv(pad=1), (5, 6, 7, 8), (3, 3, 8, 16)),
    "one image": (Conv(pad=((1, 2), 1)), (1, 14, 7, 8), (3, 3, 8, 16)),
    "a weight in another order, with AVX2": (Conv(pad=1), (1, 28, 28, 128), (3, 3, 128, 128)),
    "stride": (Conv(stride=2, pad=3), (1, 29, 7, 8), (7, 7, 8, 16)),
    "dilation": (Conv(dilation=2, pad=2), (1, 12, 7, 8), (3, 3, 8, 16)),
    "depthwise": (Conv(pad=1, groups=8), (1, 12, 7, 8), (3, 3, 1, 8)),
    "one axis": (Conv(pad=1), (1, 12, 8), (3, 8, 16)),
    "inner": (Inner(), (5, 2, 8), (16, 8)),
    "data gradient": (ConvDown(pad=1, size=(6, 7)), (5, 6, 7, 16), (3, 3, 8, 16)),
    "maxima": (MaxPool(2), (5, 6, 7, 8)),
    "averages": (AveragePool(2), (5, 6, 8, 8)),
    "their gradient": (AveragePoolDown(2, size=(6, 8)), (5, 3, 4, 8)),
    "average": (GlobalAverage(), (5, 6, 7, 8)),
    "softmax": (Softmax(), (5, 40)),
    "layer norm": (LayerNorm(1), (6, 40), (40,), (40,)),
    "in place": (Silu(), (6, 40)),
    "sums of parts": (ConvWeight(pad=1, kernel=(3, 3)), (6, 6, 7, 16), (6, 6, 7, 8)),
}


@pytest.fixture
def tried(compute: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All work is worth several threads, and is computed by them; what was found for each primitive."""
    if libdnnl().set_threads is None:
        pytest.skip("this library was made for one thread")
    found: list[Any] = []
    original = Shared._tried

    def noted(self: Shared, threads: int, arrays: Any) -> Any:
        assert threads == 2
        found.append(original(self, threads, arrays))
        return found[-1]

    monkeypatch.setattr(Shared, "_tried", noted)
    monkeypatch.setattr(steps, "SHARED_NS", 0)
    monkeypatch.setattr(steps.Worth, "judge", lambda *_: None)
    return found


@pytest.mark.parametrize("name", CASES)
def test_bits(compute: Any, tried: list[Any], name: str) -> None:
    operation, *shapes = CASES[name]
    arrays = [RANDOM.standard_normal(shape).astype("f") for shape in shapes]
    alone = compute(operation, *arrays)
    again = replace(operation)  # of which nothing is kept
    for _ in range(4):  # by one thread, by one and by several, and then by several
        found = with_help(1, lambda: compute(again, *arrays))
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_array_equal(one, other)
    is_cut = isinstance(operation, ConvWeight)  # into parts whose sums are always the same
    assert [each is not None for each in tried] == [True] * (not is_cut)


def test_several_threads_compute_on_idle_cores_alone(compute: Any, tried: list[Any]) -> None:
    operation, *shapes = CASES["images"]
    arrays = [RANDOM.standard_normal(shape).astype("f") for shape in shapes]
    seen: list[tuple[int, int]] = []

    def call(count: int) -> list[int]:
        seen.clear()
        original = Compute.__call__

        def noted(self: Compute, *arrays: Any) -> None:
            seen.append((self._primitive.threads, cores_at_work()))
            original(self, *arrays)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Compute, "__call__", noted)
            with_help(count, lambda: compute(operation, *arrays))
        return [threads for threads, _ in seen if threads > 1]

    def cores_at_work() -> int:
        return sum(member.at_work for member in team._members)

    assert [call(1) for _ in range(3)] == [[], [2], [2]]
    assert (2, 2) in seen, "what several compute, other lanes' work reckons with"
    assert not call(0)


def test_where_bits_would_change_one_thread_computes(
    compute: Any, tried: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation, *shapes = CASES["images"]
    arrays = [RANDOM.standard_normal(shape).astype("f") for shape in shapes]
    (alone,) = compute(operation, *arrays)
    made = Shared._made

    def wrong(self: Shared) -> Any:
        found = made(self)

        def call(*arrays: Any) -> None:
            found(*arrays)
            arrays[-1][...] += 1.0

        return call

    monkeypatch.setattr(Shared, "_made", wrong)
    again = replace(operation)
    for _ in range(4):
        (found,) = with_help(1, lambda: compute(again, *arrays))
        np.testing.assert_array_equal(found, alone)
    assert tried == [None]
