"""Normalization across channels."""

from __future__ import annotations

import numpy as np

from actorflow import ops
from actorflow.ops.nn.lrn import ChannelWindowSum, LRNDown
from tests.operations.table import FLOATING, Row, Sample, backward, normal, positive


def _summed(x: np.ndarray, size: int, transposed: bool = False) -> np.ndarray:
    """Over the channels from ``size // 2`` before to as many behind as are left."""
    before, after = size // 2, (size - 1) // 2
    before, after = (after, before) if transposed else (before, after)
    return np.stack([x[..., max(0, i - before) : i + after + 1].sum(-1) for i in range(x.shape[-1])], -1)


def _normalized(x: np.ndarray, alpha: float, beta: float, size: int, k: float, saves: bool) -> list[np.ndarray]:
    scale = k + alpha / size * _summed(x * x, size)
    return [x / scale**beta, scale][: 1 + saves]


def _down(
    g: np.ndarray, x: np.ndarray, y: np.ndarray, scale: np.ndarray, alpha: float, beta: float, size: int
) -> np.ndarray:
    return g / scale**beta - 2 * alpha * beta / size * x * _summed(g * y / scale, size, transposed=True)


ROWS = [
    Row(
        ops.LRN,
        [
            Sample(ops.LRN(0.4, 0.75, 4, 2.0), normal((2, 5))),
            *(Sample(ops.LRN(0.4, 0.6, size, 2.0), normal((3, 6))) for size in (1, 2, 5, 8)),
            *(Sample(ops.LRN(0.5, beta, 5, 2.0), normal((3, 5, 9))) for beta in (0.75, 0.6)),
            *(Sample(ops.LRN(0.5, beta, 5, 2.0, saves=False), normal((2, 3, 3, 9))) for beta in (0.75, 0.6)),
        ],
        numpy=_normalized,
        onnx="LRN",
        without={"torch": "its window is of channels-first images, and its scale is not a result: tests/oracle"},
        dtypes=FLOATING,
    ),
    backward(
        LRNDown,
        _down,
        [
            *(Sample(LRNDown(0.4, beta, 4), positive(*[(2, 5)] * 4, first=3)) for beta in (0.75, 0.6)),
            *(Sample(LRNDown(0.5, beta, 4), positive(*[(3, 5, 9)] * 4, first=3)) for beta in (0.75, 0.6)),
        ],
    ),
    backward(
        ChannelWindowSum,
        _summed,
        [
            Sample(ChannelWindowSum(4), normal((2, 5))),
            *(Sample(ChannelWindowSum(size, side), normal((6, 9))) for size in (4, 5) for side in (False, True)),
        ],
    ),
]
