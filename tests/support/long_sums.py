"""Sums of so many elements, that to add them up one after the other would lose half of float32's digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from actorflow import ops
from actorflow.ops.linalg import BiasDown, VectorNorm
from actorflow.ops.nn.norm import BatchNorm, BatchNormDown, LayerNorm, LayerNormDown
from actorflow.ops.nn.pool import GlobalAverage
from actorflow.ops.nn.softmax import LogSoftmax, Softmax, SoftmaxDown
from actorflow.ops.operation import Operation

ROWS = 200_003
#: What all results have relative to the exact ones: a hundred roundings, at most.
BOUND = 100 * 2.0**-24


class Case(NamedTuple):
    """An operation on arrays, and one of its results, of the arrays in float64."""

    operation: Operation
    arrays: tuple[np.ndarray, ...]
    exact: Callable[..., Any]
    output: int = 0


def _array(*shape: int) -> np.ndarray:
    return np.full(shape, 0.1, np.float32) + np.arange(shape[-1], dtype=np.float32) / 8


def _down(scale: np.ndarray, mean: np.ndarray, variance: np.ndarray, epsilon: float) -> Any:
    return lambda g, x, *_: (g * (x - mean.astype(float)) / np.sqrt(variance.astype(float) + epsilon)).sum(0)


def _spread() -> np.ndarray:
    """Rows around 0.1."""
    return (_array(ROWS, 3) + np.linspace(0, 1, ROWS)[:, np.newaxis]).astype(np.float32)


def _softmax(x: np.ndarray, axis: int = 0) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def cases() -> list[Case]:
    """All kinds of operations that add up along an axis."""
    rows, apart, last = _array(ROWS, 3), _array(ROWS, 2, 3), _array(2, ROWS)
    spread, ones, mean = _spread(), np.ones(3, np.float32), np.full(3, 0.5, np.float32)
    wide = _array(2, ROWS)
    scale = np.ones(ROWS, np.float32)
    small = (_array(ROWS, 3) % 0.05).astype(np.float32)
    return [
        Case(ops.ReduceSum((0,)), (rows,), lambda x: x.sum(0)),
        Case(ops.ReduceSum((0, 2), True), (apart,), lambda x: x.sum((0, 2), keepdims=True)),
        Case(ops.ReduceSum((1,)), (last,), lambda x: x.sum(1)),
        Case(ops.ReduceSum(), (rows,), lambda x: x.sum()),
        Case(ops.ReduceMean((0,)), (rows,), lambda x: x.mean(0)),
        Case(ops.ReduceMean((1,)), (last,), lambda x: x.mean(1)),
        Case(BiasDown(), (rows,), lambda g: g.sum(0)),
        Case(BiasDown(), (apart,), lambda g: g.sum((0, 1))),
        Case(VectorNorm((0,)), (rows,), lambda x: np.sqrt((x * x).sum(0))),
        Case(VectorNorm((0,), order=3), (rows,), lambda x: (x**3).sum(0) ** (1 / 3)),
        Case(GlobalAverage(), (_array(1, ROWS, 3),), lambda x: x.mean(1)),
        Case(BatchNorm(), (spread, ones, ones, ones, ones), lambda x, *_: x.mean(0), 1),
        Case(BatchNorm(), (spread, ones, ones, ones, ones), lambda x, *_: x.var(0), 2),
        Case(BatchNormDown(epsilon=0.5), (rows, spread, ones, mean, ones), lambda g, *_: g.sum(0), 2),
        Case(BatchNormDown(epsilon=0.5), (rows, spread, ones, -mean, ones), _down(ones, -mean, ones, 0.5), 1),
        Case(LayerNorm(), (wide, scale, scale), lambda x, *_: x.mean(1), 1),
        Case(LayerNorm(), (np.float32([[1], [2]]) * np.linspace(0, 1, ROWS, dtype=np.float32), scale, scale),
             lambda x, *_: x.var(1), 2),
        Case(LayerNormDown(), (rows, rows, ones, np.zeros(ROWS, np.float32), np.ones(ROWS, np.float32)),
             lambda g, *_: g.sum(0), 2),
        Case(Softmax(0), (small,), _softmax),
        Case(LogSoftmax(0), (small,), lambda x: np.log(_softmax(x))),
        Case(SoftmaxDown(0), (rows, rows), lambda g, y: (g - (g * y).sum(0)) * y),
    ]  # fmt: skip


def relative_errors(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference, relative to the largest element of a result."""
    return float(np.abs(found.astype(float) - exact).max() / np.abs(exact).max())
