"""Normalizations of the library, beside NumPy's kernels: large means, special numbers, no elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.lrn import LRN
from actorflow.ops.nn.norm import BatchNorm, BatchNormDown, LayerNorm, LayerNormDown
from tests.support.kernels import compute_cpu


def _drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def _inputs(operation: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Of a normalization of images or samples, or of its gradient."""
    width = shape[-1:]
    x, scale, shift, g, mean = _drawn(shape, width, width, shape, width)
    if isinstance(operation, BatchNorm):
        return [x, scale, shift, mean, abs(mean)]
    if isinstance(operation, LayerNorm):
        return [x, scale, shift]
    axes = tuple(range(len(shape) - 1)) if isinstance(operation, BatchNormDown) else -1
    return [g, x, scale, x.mean(axes), x.var(axes)]


def _same(mine: list[np.ndarray], other: list[np.ndarray], what: str) -> None:
    """Close to each other, for the largest number in them; a mean with an infinity is one here, and NaN in NumPy's."""
    for a, b in zip(mine, other, strict=True):
        finite = np.isfinite(b)
        np.testing.assert_array_equal(np.isfinite(a), finite, err_msg=what)
        largest = max(1.0, float(abs(b[finite]).max(initial=0.0)))
        np.testing.assert_allclose(a[finite], b[finite], rtol=5e-5, atol=2e-5 * largest, err_msg=what)


OPERATIONS = [LayerNorm(), LayerNormDown(), BatchNorm(), BatchNormDown()]


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_shapes_and_special_numbers(compute: Any, left: list[str], operation: Any) -> None:
    for shape in ((4, 6, 5, 16), (3, 7), (5, 1, 33), (8, 3, 96)):
        for special in (0.5, np.nan, np.inf, -np.inf, -0.0, 1e30):
            arrays = _inputs(operation, shape)
            arrays[0][1, ..., 2] = special
            with np.errstate(all="ignore"):
                expected = compute_cpu(operation, *arrays)
            for _ in range(2):
                _same(compute(operation, *arrays), expected, f"{special} in {shape}")
    assert left == []
    empty = _inputs(operation, (0, 2, 4)) if "Batch" not in operation.kind else _inputs(operation, (3, 5, 0))
    _same(compute(operation, *empty), compute_cpu(operation, *empty), "nothing")
    assert left == [operation.kind]


@pytest.mark.parametrize("offset", [1e3, -1e4])
def test_a_large_mean_does_not_spoil_the_variance(compute: Any, offset: float) -> None:
    for operation in (LayerNorm(), BatchNorm()):
        arrays = _inputs(operation, (16, 24, 64))
        arrays[0] += np.float32(offset)
        axes = (0, 1) if isinstance(operation, BatchNorm) else 2
        _, mean, variance, *_ = compute(operation, *arrays)
        exact = arrays[0].astype(np.float64)
        np.testing.assert_allclose(mean, exact.mean(axes), rtol=1e-6)
        np.testing.assert_allclose(variance, exact.var(axes), rtol=1e-3)


@pytest.mark.parametrize("beta", [0.75, 0.6])
def test_response_normalization_of_images(compute: Any, left: list[str], beta: float) -> None:
    (x,) = _drawn((3, 5, 6, 24))
    for size in (1, 3, 5):
        for special in (0.5, np.nan, np.inf, -np.inf, -0.0, 1e6):
            x[1, 2, 3, 4] = special
            for operation in (LRN(0.5, beta, size, 2.0, saves=False), LRN(beta=beta, size=size, saves=False)):
                with np.errstate(all="ignore"):
                    (expected,) = compute_cpu(operation, x)
                    (found,) = compute(operation, x)
                np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6, err_msg=f"{special} by {size}")
    assert left == ["LRN"] * (4 if beta == 0.75 else 6)  # all but the usual one, of five channels
    for shape in ((3, 20), (2, 3, 3, 3, 20)):
        (y,) = compute(LRN(saves=False), *_drawn(shape))
        np.testing.assert_allclose(y, compute_cpu(LRN(saves=False), *_drawn(shape))[0], rtol=1e-6)
    assert left[-2:] == ["LRN"] * 2


def test_a_response_normalization_without_its_scale_has_the_same_gradient(by_default: None) -> None:
    (x,) = _drawn((2, 3, 3, 8))
    with af.Graph("g") as graph:
        fed = graph.blob("x", x.shape)
        found = []
        for saves in (True, False):
            made = ops.apply(LRN(saves=saves), fed)
            y = made[0] if saves else made
            found += [y, af.gradient(ops.sum(ops.square(y)), fed)]
        result = graph.run_sync({fed: x}, fetch=found)
    for one, other in zip(found[:2], found[2:], strict=True):
        np.testing.assert_allclose(result[one], result[other], rtol=1e-5, atol=1e-6)
