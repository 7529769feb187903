"""Kernels in pieces: the same bits however many threads take part, and what NumPy gives for the whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow import ops
from actorflow.devices import team as teams
from actorflow.devices.team import Team
from actorflow.ops import Operation
from actorflow.ops.cpu import buffers, conv, fills, linalg, parallel, pool
from actorflow.ops.linalg import BiasDown, InnerDown, InnerWeight
from actorflow.ops.nn.activation import ReluDown
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.ops.nn.norm import BatchNormDown, LayerNormDown
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from actorflow.ops.nn.softmax import SoftmaxDown
from tests.operations import EACH
from tests.ops.conftest import Compute

#: What is cut at which size: sizes at which small arrays are cut, too.
SMALL = {
    buffers: {"BLOCK": 16},
    conv: {
        "_PIECE_WINDOWS": 4,
        "_SCATTERED_WINDOWS": 3,
        "_SUMMED_PIECES": 2,
        "_IMAGE_BYTES": 4096,
        "_TURNED_CHANNELS": 3,
    },
    fills: {"BLOCK": 16},
    linalg: {"_SUMMED": 24},
    parallel: {
        "WORTH_NS": 0,
        "_PIECE_ELEMENTS": 40,
        "_PIECE_PRODUCTS": 60,
        "_PIECE_ROWS": 3,
        "_PIECE_DEPTH": 2,
        "_DEEP": 1,
        "_ROWS": 2,
        "BLOCK": 16,
    },
    pool: {"_PIECE_BYTES": 256, "_LEAST_BYTES": 256, "_IMAGE_BYTES": 2048},
}


@contextmanager
def cut_small() -> Iterator[None]:
    with ExitStack() as stack:
        for module, sizes in SMALL.items():
            stack.enter_context(mock.patch.multiple(module, **sizes))
        yield


def with_help(helpers: int, function: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    """Call something on the thread of a lane that so many others help."""
    crew = Team(longest_pause=0)
    results: list[list[np.ndarray]] = []
    errors: list[BaseException] = []

    def lane() -> None:
        member = crew.join()
        member.at_work = True
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)
        crew.leave(member)

    with mock.patch.object(parallel, "team", crew), mock.patch.object(teams, "cores", return_value=helpers + 1):
        thread = threading.Thread(target=lane)
        thread.start()
        thread.join()
    for error in errors:
        raise error
    return results[0]


def check_bits(compute: Compute, operation: Operation, *inputs: Any) -> list[np.ndarray]:
    """The kernel's results in pieces, which do not depend on who computes them."""
    with cut_small():
        alone = compute(operation, *inputs)
        for helpers in (1, 2, 3):
            for found, expected in zip(with_help(helpers, lambda: compute(operation, *inputs)), alone, strict=True):
                assert found.tobytes() == expected.tobytes()
    return alone


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f")


@pytest.mark.parametrize("name", EACH)
def test_every_kernel(compute: Compute, name: str) -> None:
    operation, inputs = EACH[name]
    check_bits(compute, operation, *inputs)


SEEDS = st.integers(0, 1 << 20)
SIZES = st.integers(1, 9)


@given(SEEDS, st.integers(0, 7), SIZES, SIZES, st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.data())
def test_convolutions(
    compute: Compute,
    seed: int,
    batch: int,
    rows: int,
    columns: int,
    channels: int,
    out: int,
    k: int,
    data: st.DataObject,
) -> None:
    stride, pad = data.draw(st.integers(1, 2)), data.draw(st.integers(k // 2, 2))
    groups = data.draw(st.sampled_from([1, 1, 2]))
    how = {"stride": stride, "pad": pad, "groups": groups}
    x, weight = numbers(seed, batch, rows, columns, channels * groups), numbers(seed, k, k, channels, out * groups)
    (y,) = check_bits(compute, ops.Conv(**how), x, weight)
    (dx,) = check_bits(compute, ConvDown(**how, size=(rows, columns)), y, weight)
    (dweight,) = check_bits(compute, ConvWeight(**how, kernel=(k, k)), y, x)
    # <y, y> is what the gradients give along x and the weight, as y is linear in both.
    expected = np.vdot(y, y)
    assert np.vdot(dx, x) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert np.vdot(dweight, weight) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(SEEDS, SIZES, st.integers(1, 40), st.integers(0, 40), st.booleans())
def test_products_of_matrices(
    compute: Compute, seed: int, depth: int, rows: int, columns: int, is_turned: bool
) -> None:
    x, weight = numbers(seed, rows, depth), numbers(seed, columns, depth)
    if is_turned:
        x, weight = np.asfortranarray(x), np.asfortranarray(weight)
    (y,) = check_bits(compute, ops.Inner(), x, weight)
    np.testing.assert_allclose(y, x @ weight.T, rtol=1e-4, atol=1e-5)
    (dx,) = check_bits(compute, InnerDown(), y, weight)
    np.testing.assert_allclose(dx, y @ weight, rtol=1e-4, atol=1e-4)
    (dweight,) = check_bits(compute, InnerWeight(), y, x)
    np.testing.assert_allclose(dweight, y.T @ x, rtol=1e-4, atol=1e-4)


@given(SEEDS, st.integers(0, 5), SIZES, SIZES, st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_pools(compute: Compute, seed: int, batch: int, rows: int, columns: int, channels: int, k: int, s: int) -> None:
    how = (min(k, rows, columns), s, 0)
    x = numbers(seed, batch, rows, columns, channels)
    (y,) = check_bits(compute, ops.MaxPool(*how), x)
    (dx,) = check_bits(compute, MaxPoolDown(*how), y, x, y)
    assert dx.sum() == pytest.approx(y.sum(), rel=1e-4, abs=1e-4)
    (mean,) = check_bits(compute, ops.AveragePool(*how), x)
    (dx,) = check_bits(compute, AveragePoolDown(*how, size=(rows, columns)), mean)
    assert dx.sum() == pytest.approx(mean.sum(), rel=1e-4, abs=1e-4)


@given(SEEDS, st.integers(0, 30), st.integers(0, 5), st.integers(1, 12))
def test_rows_and_elements(compute: Compute, seed: int, batch: int, rows: int, channels: int) -> None:
    x, bias = numbers(seed, batch, rows, channels), numbers(seed, channels)
    (y,) = check_bits(compute, ops.Bias(), x, bias)
    np.testing.assert_array_equal(y, x + bias)
    (dbias,) = check_bits(compute, BiasDown(), x)
    np.testing.assert_allclose(dbias, x.sum(axis=(0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(check_bits(compute, ops.Relu(), x)[0], np.maximum(x, 0))
    np.testing.assert_array_equal(check_bits(compute, ReluDown(), x, y)[0], np.where(y > 0, x, 0))
    rate = np.float32(0.1)
    weight, velocity = check_bits(compute, ops.SgdUpdate(0.9, 0.1), x, y, x, rate)
    np.testing.assert_allclose(velocity, 0.9 * x + rate * (y + 0.1 * x), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(weight, x - velocity, rtol=1e-4, atol=1e-6)


@given(SEEDS, st.integers(1, 9), st.integers(1, 9))
def test_inputs_of_other_shapes(compute: Compute, seed: int, rows: int, columns: int) -> None:
    """As many elements in a row as there are rows, one of them, or none that lie one after the other."""
    x, whole = numbers(seed, rows, columns), numbers(seed, columns, rows).T
    for other in (numbers(seed, columns), numbers(seed, rows, 1), numbers(seed, 1, 1), numbers(seed), whole):
        (product,) = check_bits(compute, ops.Multiply(), x, other)
        np.testing.assert_array_equal(product, x * other)
    np.testing.assert_array_equal(
        check_bits(compute, ops.Bias(), x, numbers(seed, columns))[0], x + numbers(seed, columns)
    )


def test_small_work_is_not_spread(compute: Compute) -> None:
    """Nobody is woken for less than a thread takes to wake."""
    x = numbers(0, 50, 40)
    with cut_small(), mock.patch.object(parallel, "WORTH_NS", 1e9), mock.patch.object(Team, "spread") as spread:
        np.testing.assert_array_equal(with_help(3, lambda: compute(ops.Relu(), x))[0], np.maximum(x, 0))
    spread.assert_not_called()


@given(st.integers(0, 100), st.integers(0, 12), st.integers(1, 9))
def test_even_cuts(count: int, pieces: int, unit: int) -> None:
    found = parallel.even_cuts(count, pieces, unit)
    assert [i for cut in found for i in range(cut.start, cut.stop)] == [*range(count)]
    assert all(cut.start % unit == 0 for cut in found)
    assert len(found) <= max(1, pieces)
    lengths = [cut.stop - cut.start for cut in found[:-1]]
    assert not lengths or max(lengths) - min(lengths) <= unit


@given(SEEDS, st.integers(0, 3), st.integers(0, 130), st.sampled_from(["float32", "float64"]))
def test_random_numbers_are_those_of_one_stream(seed: int, frame: int, size: int, dtype: str) -> None:
    def drawn() -> list[np.ndarray]:
        found = np.empty(size, dtype)
        fills.spread_uniform(seed, frame, size, found.dtype, found.__setitem__)
        return [found]

    stream = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, frame, 0]))
    expected = stream.random(size, np.dtype(dtype).type)
    with cut_small():
        np.testing.assert_array_equal(drawn()[0], expected)
        np.testing.assert_array_equal(with_help(2, drawn)[0], expected)


@given(SEEDS, st.integers(0, 40), st.integers(1, 9), st.integers(1, 5))
def test_lines_and_losses(compute: Compute, seed: int, batch: int, classes: int, inner: int) -> None:
    x = numbers(seed, batch, classes, inner)
    (y,) = check_bits(compute, ops.Softmax(axis=1), x)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    (logs,) = check_bits(compute, ops.LogSoftmax(axis=1), x)
    np.testing.assert_allclose(np.exp(logs), y, rtol=1e-5)
    (dx,) = check_bits(compute, SoftmaxDown(axis=1), x, y)
    np.testing.assert_allclose(dx, y * (x - (x * y).sum(axis=1, keepdims=True)), rtol=1e-3, atol=1e-5)
    rows, labels = np.ascontiguousarray(x[..., 0]), np.arange(batch) % classes
    (loss,) = check_bits(compute, ops.SoftmaxLoss(reduction="none"), rows, labels)
    np.testing.assert_allclose(loss, -logs[np.arange(batch), labels, 0], rtol=1e-4, atol=1e-5)


@given(SEEDS, st.integers(2, 60), st.integers(1, 9))
def test_norms(compute: Compute, seed: int, batch: int, channels: int) -> None:
    x, g = numbers(seed, batch, channels), numbers(seed + 1, batch, channels)
    ones, zeros = np.ones(channels, "f"), np.zeros(channels, "f")
    y, mean, variance, *_ = check_bits(compute, ops.BatchNorm(), x, ones, zeros, zeros, ones)
    np.testing.assert_allclose(mean, x.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, x.var(axis=0), rtol=1e-4, atol=1e-5)
    _, dscale, dshift = check_bits(compute, BatchNormDown(), g, x, ones, mean, variance)
    np.testing.assert_allclose(dscale, (g * y).sum(axis=0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(dshift, g.sum(axis=0), rtol=1e-4, atol=1e-5)
    y, *statistics = check_bits(compute, ops.LayerNorm(), x, ones, zeros)
    _, dscale, dshift = check_bits(compute, LayerNormDown(), g, x, ones, *statistics)
    np.testing.assert_allclose(dscale, (g * y).sum(axis=0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(dshift, g.sum(axis=0), rtol=1e-4, atol=1e-5)
