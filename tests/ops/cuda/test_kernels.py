"""The logic of the CUDA kernels, run on the host, against the CPU's kernels."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow import ops
from actorflow.ops import registry
from actorflow.ops.linalg import BiasDown
from actorflow.ops.nn.activation import ReluDown
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.ops.nn.loss import SoftmaxLossDown
from actorflow.ops.nn.norm import BatchNormDown, BatchNormInferenceDown, LayerNormDown
from actorflow.ops.nn.pool import MaxPoolDown
from actorflow.spec import TensorSpec
from tests.operations import row_of, samples
from tests.operations.nn.conv import convolutions
from tests.operations.nn.pool import poolings
from tests.support.effort import slow
from tests.support.kernels import check, compute_cpu, kernel_on_cpu
from tests.support.layouts import LAYOUTS

FLOATS = ("float16", "float32", "float64")
SAMPLES = samples("cuda")

layouts = st.sampled_from(LAYOUTS)
floats = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32 - 1)
examples = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _drawn(seed: int, *shapes: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [np.asarray(random.standard_normal(shape)).astype(dtype) for shape in shapes]


def test_the_operations_of_the_table_have_a_kernel(emulated) -> None:
    assert {key.operation for key in emulated.kernels} == {row.name for row, _ in SAMPLES}


def test_what_is_random_returned_or_in_place_is_so_on_both_devices(emulated) -> None:
    for key, kernel in emulated.kernels.items():
        on_cpu = kernel_on_cpu(key)
        assert kernel.random == on_cpu.random, key
        assert kernel.returns == (key.operation == "Reshape"), key  # parts, views on the CPU, are copied
        assert kernel.inplace or not on_cpu.inplace, key


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        ("float64", "F"),  # whose sources other tests here need compiled, too
        *slow([("float16", "C"), ("float32", "C"), ("float32", "strided"), ("float32", "mirrored")]),
        *slow([("int32", "strided"), ("uint8", "F"), ("complex64", "spaced")]),
    ],
)
@pytest.mark.parametrize("part", range(3))
def test_the_samples_of_a_gpu_hold_on_the_host(emulated, compute_cuda, dtype, layout, part) -> None:
    known = {(key.operation, key.dtype) for key in emulated.kernels}
    for row, sample in SAMPLES[part::3]:
        arrays = sample.specs(dtype)
        if dtype in sample.dtypes(row) and (not arrays or (row.name, arrays[0].dtype.name) in known):
            check(row, sample, dtype, compute_cuda, layout)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_numbers_come_out_as_on_the_cpu(compute_cuda, dtype) -> None:
    for row in {row.name: row for row, _ in SAMPLES}.values():
        for sample in (row.special, *row.corners):
            if sample is None:
                continue
            arrays, operation = sample.inputs(dtype), sample.operation
            with np.errstate(all="ignore"):
                found, wanted = compute_cuda(operation, *arrays), compute_cpu(operation, *arrays)
            relative, absolute = row.bounds(dtype)
            np.testing.assert_allclose(found[0], wanted[0], rtol=relative, atol=absolute, err_msg=row.name)


@pytest.mark.slow
def test_the_samples_of_a_gpu_hold_with_64_bit_indices(compute_cuda, wide_indices) -> None:
    for row, sample in SAMPLES:
        check(row, sample, "float32", compute_cuda)


def test_kernels_may_write_over_their_first_input(emulated) -> None:
    for _, sample in SAMPLES:
        operation, arrays = sample.operation, sample.inputs("float64")
        specs = operation.infer(*(TensorSpec(a.shape, a.dtype) for a in arrays))
        dtype = str(arrays[0].dtype if arrays else specs[0].dtype)
        kernel = emulated.kernels[registry.KernelKey(operation.kind, "cuda", "cupy", dtype, "any")]
        if not kernel.inplace or (arrays[0].shape, arrays[0].dtype) != specs[0]:
            continue
        expected = compute_cpu(operation, *arrays)
        outputs = [arrays[0], *(np.empty(spec.shape, spec.dtype) for spec in specs[1:])]
        kernel.function(operation, arrays, outputs, *([0] if kernel.random else []))
        for actual, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-12, atol=1e-12)


def test_products_cannot_be_captured(emulated, compute_cuda) -> None:
    """Calls that CuPy refuses while a stream is captured are noted, for `compute_cuda` to look at."""
    found = set()
    for row, sample in SAMPLES:
        compute_cuda(sample.operation, *sample.inputs("float64"))
        if emulated.emulator.uncapturable:
            found.add(row.name)
    products = {"Conv", "ConvDown", "ConvWeight", "Inner", "InnerDown", "InnerWeight", "Matmul"}
    products |= {f"{kind}{down}" for kind in ("LSTM", "GRU", "RNN") for down in ("", "Down")}
    assert found == products | {"ArgSort", "CumProd", "CumSum", "Ragged", "Sort"}


# -- windows ------------------------------------------------------------------------------------------------------


@examples
@given(poolings(), floats, layouts, seeds)
def test_pooling(compute_cuda, drawn, dtype, layout, seed) -> None:
    for sample in drawn:
        check(row_of(sample.operation), sample, dtype, compute_cuda, layout, seed)


def test_a_maximum_that_is_not_a_number_wins_and_takes_no_gradient(compute_cuda) -> None:
    x = np.array([1.0, np.nan, 3.0, 4.0]).reshape(1, 2, 2, 1)
    (y,) = compute_cuda(ops.MaxPool(2), x)
    assert np.isnan(y).all()
    np.testing.assert_array_equal(compute_cuda(MaxPoolDown(2), np.ones_like(y), x, y)[0], np.zeros_like(x))
    np.testing.assert_array_equal(compute_cuda(ops.MaxPool(2, return_indices=True), x)[1], np.ones_like(y))


@examples
@given(convolutions(), floats, layouts, st.sampled_from([1, 300, 3000, 1 << 26]), seeds)
def test_convolution(emulated, compute_cuda, drawn, dtype, layout, scratch_bytes, seed) -> None:
    with mock.patch.object(emulated.modules["conv"], "_SCRATCH_BYTES", scratch_bytes):
        for sample in drawn:
            check(row_of(sample.operation), sample, dtype, compute_cuda, layout, seed)


@pytest.mark.parametrize("groups", [1, 4])
def test_columns_fit_in_their_memory_whatever_the_batch_is(emulated, groups) -> None:
    conv = emulated.modules["conv"]

    def geometry(side: int):
        windows = ops.Conv(pad=2).windows((side, side), (5, 5))
        return conv._Geometry(windows, groups, 96 // groups)

    def fits(piece: slice) -> bool:
        return (piece.stop - piece.start) * 25 * 96 * 4 <= conv._SCRATCH_BYTES

    for batch in (0, 1, 7, 500):
        pieces = list(geometry(32).pieces(batch, 4))
        assert [0, *(piece.stop for piece in pieces)] == [*(piece.start for piece in pieces), batch * 1024]
        assert all(map(fits, pieces))
    pieces = list(geometry(512).pieces(2, 4))
    assert all(map(fits, pieces))
    assert all(piece.start // 512**2 == (piece.stop - 1) // 512**2 for piece in pieces)
    assert all(a.stop == b.start for a, b in pairwise(pieces))
    assert pieces[-1].stop == 2 * 512**2


def test_a_1x1_convolution_needs_no_columns(compute_cuda, launches) -> None:
    x, weight, g = _drawn(0, (2, 3, 3, 4), (1, 1, 4, 5), (2, 3, 3, 5), dtype="float32")
    compute_cuda(ops.Conv(), x, weight)
    compute_cuda(ConvDown(size=(3, 3)), g, weight)
    compute_cuda(ConvWeight(kernel=(1, 1)), g, x)
    assert launches == []


# -- reductions ---------------------------------------------------------------------------------------------------


def test_softmax_of_what_is_not_finite_is_that_of_the_cpu(compute_cuda) -> None:
    x = np.array([[np.inf, 1, 2], [np.nan, 1, 2], [1, 2, np.nan], [-np.inf, 0, 1], [-np.inf] * 3, [1e38, -1e38, 1e38]])
    with np.errstate(invalid="ignore"):
        (expected,) = compute_cpu(ops.Softmax(), x)
    np.testing.assert_allclose(compute_cuda(ops.Softmax(), x)[0], expected, rtol=1e-12)


@examples
@given(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=12), st.data(), layouts, st.booleans(), seeds)
def test_sums_over_any_axes(emulated, laid_out, shape, data, layout, by_parts, seed) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    (x,) = _drawn(seed, shape, dtype="float64")
    out = np.full([n for i, n in enumerate(shape) if i not in axes], np.nan)
    reduce = emulated.modules["reductions"]
    with mock.patch.object(reduce, "_LEAST_ELEMENTS", 1 if by_parts else 8), mock.patch.object(reduce, "_BLOCK", 64):
        reduce.sum_axes(laid_out(x, layout), sorted(axes), out, 2.0)
    np.testing.assert_allclose(out, x.sum(tuple(axes)) / 2, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(100_000, 3), (3000, 40), (7, 1000), (50_000, 1)])
def test_a_sum_takes_two_launches_at_most_and_sums_in_float32_at_least(compute_cuda, launches, shape, dtype) -> None:
    g = np.full(shape, 0.01, dtype)
    (found,) = compute_cuda(BiasDown(), g)
    assert len(launches) <= 2
    exact = float(g[0, 0]) * shape[0]
    np.testing.assert_allclose(found, exact, rtol={"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}[dtype])


# -- normalization ------------------------------------------------------------------------------------------------


def _normalized(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, offset: float, outlier: float) -> Any:
    """Inputs of batch norms over rows or layer norms over columns, far from 0, with something else at first."""
    random = np.random.default_rng(0)
    x = offset + random.standard_normal(shape)
    x[0, 0] += outlier
    width = shape[1]
    g, scale, shift = random.standard_normal(shape), random.uniform(0.5, 2, width), random.standard_normal(width)
    x, g, scale, shift = (array.astype(dtype) for array in (x, g, scale, shift))
    exact = x.astype(np.longdouble)
    mean, variance = exact.mean(axes, keepdims=True), exact.var(axes, keepdims=True)
    return x, g, scale, shift, mean, variance


#: One launch and two, few rows and many.
MATRICES = pytest.mark.parametrize("shape", [(2, 3), (50, 7), (4000, 20), (9000, 1), (3, 2000), (400, 130)])


@MATRICES
@pytest.mark.parametrize(
    ("dtype", "offset", "outlier"),
    [("float16", 0.0, 0.0), ("float32", 300.0, 0.0), ("float32", 0.0, 500.0), ("float64", 300.0, 0.0)],
)
def test_statistics_lose_no_digits(compute_cuda, shape, dtype, offset, outlier) -> None:
    """The mean is large beside the deviation, or the first element is: differences of large squares would show."""
    wide = "float64" if dtype == "float64" else "float32"

    def check(found: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> None:
        assert (np.abs(found - expected.reshape(-1)) <= bound.reshape(-1)).all()

    for axes, kind in (((0,), ops.BatchNorm), ((1,), ops.LayerNorm)):
        x, _, scale, shift, mean, variance = _normalized(shape, axes, dtype, offset, outlier)
        running = [np.ones(shape[1], wide)] * 2 if kind is ops.BatchNorm else []
        found = compute_cuda(kind(), x, scale, shift, *running)
        largest, deviation = np.abs(x).max(axes, keepdims=True).astype(float), np.sqrt(variance)
        of_mean = 4 * np.finfo(wide).eps * largest
        of_variance = 4 * of_mean * deviation + 100 * np.finfo(wide).eps * variance
        check(found[1], mean, of_mean)
        check(found[2], variance, of_variance)
        if running:
            check(found[3], 0.9 + 0.1 * mean, of_mean)
            check(found[4], 0.9 + 0.1 * variance * shape[0] / (shape[0] - 1), of_variance + np.finfo(wide).eps)
        y = (x - mean) / np.sqrt(variance + 1e-5) * scale + shift
        moved = (of_mean + of_variance / np.sqrt(variance + 1e-5)) / np.sqrt(variance + 1e-5)
        assert (np.abs(found[0] - y) <= (5 * moved + 4 * np.finfo(dtype).eps) * (1 + np.abs(y))).all()


@MATRICES
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_norms_are_their_formula(compute_cuda, shape, dtype) -> None:
    wide = "float64" if dtype == "float64" else "float32"
    rounding = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-11}[dtype]

    def check(found: np.ndarray, expected: np.ndarray) -> None:
        bound = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding * bound)

    for axes, operation in (((0,), BatchNormDown()), ((1,), LayerNormDown())):
        x, g, scale, _, mean, variance = _normalized(shape, axes, dtype, 1.0, 0.0)
        dx, dscale, dshift = compute_cuda(
            operation, g, x, scale, mean.reshape(-1).astype(wide), variance.reshape(-1).astype(wide)
        )
        x, g, scale = (array.astype(np.float64) for array in (x, g, scale))
        r = 1 / np.sqrt(variance + 1e-5)
        n, s = (x - mean) * r, g * scale
        check(dscale, (g * n).sum(0))
        check(dshift, g.sum(0))
        check(dx, r * (s - s.mean(axes, keepdims=True) - n * (s * n).mean(axes, keepdims=True)))


@pytest.mark.parametrize("shape", [(64, 5), (5000, 40)], ids=["one launch", "parts"])
def test_norms_take_few_passes_over_the_data(emulated, compute_cuda, shape) -> None:
    """Forwards x is read for its statistics, and again to be written as y; backwards g and x are, for sums and dx."""
    x, g, scale, shift, mean, variance = _normalized(shape, (0,), "float32", 0.0, 0.0)
    mean, variance = (statistic.reshape(-1).astype("f") for statistic in (mean, variance))
    of_rows = [statistic.astype("f") for statistic in (x.mean(1), x.var(1))]
    for operation, arrays, passes in (
        (ops.BatchNorm(), (x, scale, shift, mean, variance), 1 + 2),
        (BatchNormDown(), (g, x, scale, mean, variance), 2 + 3),
        (BatchNormInferenceDown(), (g, x, scale, mean, variance), 2 + 2),
        (ops.LayerNorm(), (x, scale, shift), 1 + 2),
        (LayerNormDown(), (g, x, scale, *of_rows), 2 + 2 + 3),
    ):
        emulated.emulator.touched.clear()
        compute_cuda(operation, *arrays)
        assert sum(size >= x.size for size in emulated.emulator.touched) == passes, operation


# -- losses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("label", "label_dtype"), [(-1, "int64"), (3, "int32"), (255, "uint8"), (2**64 - 1, "uint64")])
def test_a_label_that_is_no_class_makes_what_depends_on_it_not_a_number(compute_cuda, label, label_dtype) -> None:
    x = np.ones((2, 3), np.float32)
    labels = np.array([1, label], label_dtype)
    assert np.isnan(compute_cuda(ops.SoftmaxLoss(), x, labels)[0])
    assert np.isnan(compute_cuda(ops.Accuracy(), x, labels)[0])
    (dx,) = compute_cuda(SoftmaxLossDown(), np.float32(1), x, labels)
    np.testing.assert_array_equal(np.isnan(dx), [[False] * 3, [True] * 3])


def test_scores_that_are_not_numbers_never_look_right(compute_cuda) -> None:
    x = np.array([[np.nan, 1, 2], [0, 1, np.nan], [np.nan] * 3])
    assert compute_cuda(ops.Accuracy(), x, np.array([2, 1, 0]))[0] == 0


# -- noise and updates --------------------------------------------------------------------------------------------


@examples
@given(
    st.integers(0, 3000),
    st.integers(0, 2**128 - 1),
    st.integers(0, 2**63 - 1),
    st.floats(0, 0.99),
    st.sampled_from(FLOATS),
)
def test_dropout_drops_what_the_cpu_drops(compute_cuda, size, seed, frame, rate, dtype) -> None:
    (x,) = _drawn(size, (size,), dtype=dtype)
    expected = compute_cpu(ops.Dropout(rate, seed), x, frame=frame)
    for actual, wanted in zip(compute_cuda(ops.Dropout(rate, seed), x, frame=frame), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_a_factor_of_0_leaves_its_term_out(compute_cuda) -> None:
    x, infinite = np.ones(3), np.full(3, np.inf)
    weight, velocity = compute_cuda(ops.SgdUpdate(), x, x, infinite, np.float64(0.5))
    np.testing.assert_array_equal(velocity, [0.5] * 3)
    np.testing.assert_array_equal(weight, [0.5] * 3)
    assert not np.isfinite(compute_cuda(ops.SgdUpdate(momentum=0.1), x, x, infinite, np.float64(0.5))[1]).any()


# -- elementwise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float16", "int8", *slow(["float32", "float64", "int32", "uint64", "complex64", "complex128"])]
)
@pytest.mark.parametrize("terms", [1, 17, 50, *slow([2, 3, 16, 31, 32])])
def test_terms_are_added_in_their_order_and_rounded_as_on_the_cpu(compute_cuda, terms, dtype) -> None:
    random = np.random.default_rng(terms)
    arrays = [(random.standard_normal(20) * 10.0 ** random.integers(-2, 2)).astype(dtype) for _ in range(terms)]
    np.testing.assert_array_equal(compute_cuda(ops.Sum(), *arrays)[0], compute_cpu(ops.Sum(), *arrays)[0], strict=True)


def test_an_infinite_gradient_that_is_not_kept_is_0(compute_cuda) -> None:
    g = np.full(2, np.inf)
    np.testing.assert_array_equal(compute_cuda(ReluDown(), g, np.array([0.0, 1.0]))[0], [0, np.inf])
    kept = compute_cuda(ops.Where(), np.array([False, True]), g, np.array(0.0))[0]
    np.testing.assert_array_equal(kept, [0, np.inf])


def test_an_empty_batch_has_no_mean(compute_cuda) -> None:
    assert math.isnan(compute_cuda(ops.SoftmaxLoss(), np.ones((0, 3)), np.ones(0, np.int64))[0])
