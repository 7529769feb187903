"""Compiled loops over float32: the bits of NumPy's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pytest

from actorflow import ops
from actorflow.ops.cpu import activation, buffers, indexing, lrn, pool, softmax, updates
from actorflow.ops.indexing import TakeDown
from actorflow.ops.linalg import BiasDown
from actorflow.ops.nn.activation import GeluDown
from actorflow.ops.nn.conv import ConvWeight
from actorflow.ops.nn.lrn import LRNDown
from actorflow.ops.nn.pool import MaxPoolDown
from actorflow.ops.nn.softmax import SoftmaxDown
from tests.support.kernels import compute_cpu

RANDOM = np.random.default_rng(0)
#: Windows that overlap, leave elements out, see nothing but border, reach beyond it, are dilated; of 1 to 3 axes.
WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 7, 5), {"kernel": 2, "stride": 2}),
    ((2, 7, 6, 17), {"kernel": 3, "stride": 2, "pad": 1}),
    ((1, 5, 5, 3), {"kernel": (2, 3), "stride": 1, "pad": (1, 2), "dilation": (2, 1)}),
    ((3, 9, 4), {"kernel": 3, "stride": 4, "ceil": True}),
    ((1, 3, 4, 5, 9), {"kernel": 2, "stride": 1}),
    ((2, 3, 3, 40), {"kernel": 3}),
    ((1, 4, 5, 3), {"kernel": (40, 2), "stride": 1, "pad": ((38, 0), 0)}),
    ((1, 2, 2, 1), {"kernel": 1, "stride": 1, "pad": 0}),
]


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("f")


def odd(*shape: int) -> np.ndarray:
    """Few different numbers, so that maxima are there twice, and those that are no usual ones."""
    return RANDOM.choice(np.array([0.0, -0.0, 1, 1, 2, -3, np.nan, np.inf, -np.inf], "f"), shape)


def pools() -> Iterator[tuple[Any, list[np.ndarray]]]:
    for shape, how in WINDOWS:
        # Of two zeros, NumPy's maximum has the sign of either.
        for x in (numbers(*shape), odd(*shape) + np.float32(0), np.full(shape, -np.inf, "f")):
            y, _ = compute_cpu(ops.MaxPool(**how, return_indices=True), x)
            yield ops.MaxPool(**how, return_indices=True), [x]
            for g in (numbers(*y.shape), odd(*y.shape)):
                yield MaxPoolDown(**how), [g, x, y]


def norms() -> Iterator[tuple[Any, list[np.ndarray]]]:
    for size, channels in ((5, 33), (4, 7), (1, 3), (3, 1)):
        x, how = numbers(2, 3, 2, channels) * 9, {"size": size, "alpha": 0.3}
        y, scale = compute_cpu(ops.LRN(**how, k=1.5), x)
        yield ops.LRN(**how, k=1.5), [x]
        yield LRNDown(**how), [numbers(*x.shape), x, y, scale]


def steps() -> Iterator[tuple[Any, list[np.ndarray]]]:
    rate = np.array(0.1)
    for size in (1, 37, 5000):
        arrays = [numbers(size) for _ in range(3)]
        for how in ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "rate_scale": 0.3}):
            yield ops.SgdUpdate(**how), [*arrays, rate]
        for how in ({}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled": True, "beta1": 0.7}):
            yield ops.AdamUpdate(**how), [*arrays, abs(numbers(size)), rate, np.array(2)]


def rows() -> Iterator[tuple[Any, list[np.ndarray]]]:
    for axis, shape in ((0, (40, 6)), (1, (2, 40, 3)), (1, (1, 40, 17))):
        yield TakeDown(axis=axis, length=9), [odd(*shape), RANDOM.integers(-9, 9, 40)]


@pytest.mark.parametrize("cases", [pools, norms, steps, rows])
def test_bits_are_those_without(cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if buffers.compiled("loops") is None:
        pytest.skip("there is no compiled code")
    for operation, inputs in cases():
        with np.errstate(all="ignore"):
            found = compute_cpu(operation, *inputs)
            with monkeypatch.context() as without:
                for module in (indexing, lrn, pool, updates):
                    without.setattr(module, "loops_for", lambda *_, **_how: None)
                expected = compute_cpu(operation, *inputs)
        for mine, its in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, its, err_msg=f"{operation} {inputs[0].shape}")
            usual = ~np.isnan(its)
            np.testing.assert_array_equal(np.signbit(mine)[usual], np.signbit(its)[usual], err_msg=f"{operation}")


def test_weights_of_depthwise_convolutions() -> None:
    """Each image's products are added up, then the images' sums: other bits than NumPy's, the same ones each time."""
    module = buffers.compiled("loops")
    if module is None:
        pytest.skip("there is no compiled code")
    for shape, kernel, how in (
        ((2, 9, 8, 5), (5, 5), {"pad": 2}),
        ((3, 9, 8, 17), (3, 2), {"stride": 2, "dilation": 2}),
        ((2, 4, 5, 6, 9), (3, 1, 2), {"pad": 1}),
        ((2, 12, 40), (5,), {"pad": ((0, 3),)}),
    ):
        operation = ConvWeight(groups=shape[-1], kernel=kernel, **how)
        x = numbers(*shape)
        g = numbers(shape[0], *operation.windows(shape[1:-1], kernel).out, shape[-1])
        with patch.object(buffers, "compiled", return_value=MagicMock(wraps=module)) as found:
            (mine,) = compute_cpu(operation, g, x)
        assert found.return_value.depthwise_weight.called
        (exact,) = compute_cpu(operation, g.astype("f8"), x.astype("f8"))
        np.testing.assert_allclose(mine, exact, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(mine, compute_cpu(operation, g, x)[0])


def test_tails_of_the_normal_distribution() -> None:
    """Nearly NumPy's: the exponential function is another one; the same bits wherever an element is."""
    x = np.concatenate([np.linspace(0, 13, 1001), [np.inf, np.nan, 1e-30]]).astype("f")
    found = activation.tail(x)
    with patch.object(activation, "loops_for", return_value=None):
        np.testing.assert_allclose(found, activation.tail(x), rtol=2e-6, atol=0)
    np.testing.assert_array_equal(activation.tail(x[3:]), found[3:])
    np.testing.assert_array_equal(activation.tail(x[::-2]), found[::-2])
    module = buffers.loops_for(x)
    if module is not None:
        with pytest.raises(ValueError, match="shapes do not fit"):
            module.normal_tail(x, found[1:], np.zeros(12, "f"))


def test_gradients_of_gelu_softmax_and_biases() -> None:
    """Nearly NumPy's, which adds up in another order; loops give the same bits wherever a row, or a column, is."""
    module = buffers.compiled("loops")
    line = np.concatenate([np.linspace(-14, 14, 2098), [np.nan, np.inf]]).astype("f").reshape(7, 300)
    cases = [(GeluDown(), line), *[(SoftmaxDown(), abs(numbers(7, n))) for n in (1, 15, 300, 2600)]]
    for operation, x in cases:
        g = numbers(*x.shape)
        (found,) = compute_cpu(operation, g, x)
        with (
            patch.object(activation, "loops_for", return_value=None),
            patch.object(softmax, "loops_for", return_value=None),
        ):
            (expected,) = compute_cpu(operation, g, x)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6 * np.nanmax(abs(expected)))
        if module is not None:
            np.testing.assert_array_equal(compute_cpu(operation, g[3:], x[3:])[0], found[3:])
    rows = numbers(1000, 37) + np.float32(9)
    (found,) = compute_cpu(BiasDown(), rows)
    np.testing.assert_allclose(found, rows.astype("f8").sum(0), rtol=1e-6)
    if module is not None:
        np.testing.assert_array_equal(compute_cpu(BiasDown(), np.ascontiguousarray(rows[:, :20]))[0], found[:20])
        with pytest.raises(ValueError, match="shapes do not fit"):
            module.sum_rows(rows, found[1:])
        with pytest.raises(ValueError, match="shapes do not fit"):
            module.gelu_down(*[np.zeros(n, "f") for n in (3, 3, 2, 12)])


def test_arrays_that_begin_between_two_numbers_are_left_to_numpy() -> None:
    """Compiled loops may read several numbers at once, from where they are expected to be."""
    x, g = numbers(7, 33), numbers(7, 33)
    shifted = [np.frombuffer(b"\0" + each.tobytes(), np.uint8)[1:].view("f").reshape(7, 33) for each in (g, x)]
    assert not shifted[0].flags.aligned
    assert buffers.loops_for(shifted[0], x) is None
    for operation in (GeluDown(), SoftmaxDown()):
        found, expected = compute_cpu(operation, *shifted), compute_cpu(operation, g, x)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
