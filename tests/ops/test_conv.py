"""Convolution and its gradients, against loops over elements."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.cpu import conv as kernels
from actorflow.ops.cpu import depthwise
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.testing import check_gradient
from tests.support.layouts import LAYOUTS

ml_dtypes = pytest.importorskip("ml_dtypes")


class Case(NamedTuple):
    batch: int
    size: tuple[int, ...]
    channels: tuple[int, int]  # of a group
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: str
    layout: str
    piece_bytes: int  # small ones force bands, large ones several images per piece
    short_row: int = 16  # rows of fewer windows are added up across the images of a piece
    short_run_bytes: int = 0  # columns of shorter runs are gathered plane by plane
    turned_channels: int = 8  # data gradients of so many channels are convolutions, where they can

    @property
    def how(self) -> dict[str, Any]:
        return {"stride": self.stride, "pad": self.pad, "dilation": self.dilation, "groups": self.groups}

    @property
    def out(self) -> tuple[int, ...]:
        return tuple(
            (n + sum(p) - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(self.size, self.kernel, self.stride, self.pad, self.dilation, strict=True)
        )

    @property
    def operations(self) -> tuple[ops.Conv, ConvDown, ConvWeight]:
        how = self.how
        return ops.Conv(**how), ConvDown(**how, size=self.size), ConvWeight(**how, kernel=self.kernel)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    axis = lambda low, high: st.tuples(*[st.integers(low, high)] * rank)  # noqa: E731
    kernel, dilation = draw(axis(1, 3)), draw(axis(1, 2))
    pad = draw(st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * rank))
    least = [max(0, d * (k - 1) + 1 - sum(p)) for k, d, p in zip(kernel, dilation, pad, strict=True)]
    size = tuple(n + more for n, more in zip(least, draw(axis(0, 4)), strict=True))
    return Case(
        draw(st.integers(0, 3)),
        size,
        draw(st.tuples(st.sampled_from([1, 2, 17]), st.integers(1, 3))),
        kernel,
        draw(axis(1, 3)),
        pad,
        dilation,
        draw(st.sampled_from([1, 1, 2, 3, 4])),
        draw(st.sampled_from(["float32", "float64"])),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from([64, 512, 1 << 20])),
        draw(st.sampled_from([0, 16])),
        draw(st.sampled_from([0, 1 << 20])),
        draw(st.sampled_from([1, 99])),
    )


def taps(case: Case) -> Any:
    """(output element, kernel element, image element) of every product."""
    for window in np.ndindex(*case.out):
        for offset in np.ndindex(*case.kernel):
            place = tuple(
                i * s + a * d - p[0]
                for i, s, a, d, p in zip(window, case.stride, offset, case.dilation, case.pad, strict=True)
            )
            if all(0 <= i < n for i, n in zip(place, case.size, strict=True)):
                yield window, offset, place


def expected(case: Case, x: np.ndarray, weight: np.ndarray, g: np.ndarray) -> list[np.ndarray]:
    """y, dx, dweight."""
    y, dx, dweight = np.zeros_like(g), np.zeros_like(x), np.zeros_like(weight)
    c, o = case.channels
    every = slice(None)
    for group, (window, offset, place) in itertools.product(range(case.groups), list(taps(case))):
        into, out = slice(group * c, group * c + c), slice(group * o, group * o + o)
        y[(every, *window, out)] += x[(every, *place, into)] @ weight[(*offset, every, out)]
        dx[(every, *place, into)] += g[(every, *window, out)] @ weight[(*offset, every, out)].T
        dweight[(*offset, every, out)] += x[(every, *place, into)].T @ g[(every, *window, out)]
    return [y, dx, dweight]


def drawn(case: Case, dtype: str) -> list[np.ndarray]:
    """x, weight, g."""
    random = np.random.default_rng(0)
    inputs, outputs = case.channels[0] * case.groups, case.channels[1] * case.groups
    shapes = (
        (case.batch, *case.size, inputs),
        (*case.kernel, case.channels[0], outputs),
        (case.batch, *case.out, outputs),
    )
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


@settings(deadline=None)
@given(cases())
def test_convolution_and_its_gradients_are_what_loops_give(compute, laid_out, tolerance, case: Case) -> None:
    x, weight, g = drawn(case, case.dtype)
    wanted = expected(case, x, weight, g)
    x, weight, g = (laid_out(array, case.layout) for array in (x, weight, g))
    forward, down, of_weight = case.operations
    with (
        mock.patch.object(kernels, "_PIECE_BYTES", case.piece_bytes),
        mock.patch.object(kernels, "_IMAGE_BYTES", 2 * case.piece_bytes),
        mock.patch.object(kernels, "_SHORT_ROW", case.short_row),
        mock.patch.object(kernels, "_SHORT_RUN_BYTES", case.short_run_bytes),
        mock.patch.object(kernels, "_TURNED_CHANNELS", case.turned_channels),
        mock.patch.multiple(kernels, _TURNED_RATIO=99, _TURNED_WINDOWS=0),
        mock.patch.object(depthwise, "_PIECE_BYTES", case.piece_bytes),
    ):
        found = [*compute(forward, x, weight), *compute(down, g, weight), *compute(of_weight, g, x)]
    for actual, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(actual, right, **tolerance(case.dtype))


@pytest.mark.parametrize("channels", [1, 3, 8, 17])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pad", [0, 1])
def test_images_may_be_views(compute, laid_out, channels, layout, pad) -> None:
    """Every other pixel of a row, or mirrored ones, do not lie side by side."""
    case = Case(2, (6, 7), (channels, 4), (3, 3), (1, 1), ((pad, pad),) * 2, (1, 1), 1, "float32", layout, 1 << 20)
    x, weight, g = drawn(case, "float32")
    for operation, first, second in zip(case.operations, (x, g, g), (weight, weight, x), strict=True):
        (plain,) = compute(operation, first, second)
        (found,) = compute(operation, laid_out(first, layout), laid_out(second, layout))
        np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kernel", [1, 3])
def test_narrow_dtypes_are_added_up_in_float32(compute, dtype, groups, kernel) -> None:
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    even = kernel // 2
    case = Case(
        2, (5, 4), (4 // groups, 8 // groups), (kernel,) * 2, (1, 1), ((even, even),) * 2, (1, 1), groups, *"fC", 0
    )
    x, weight, g = (array.astype(narrow) for array in drawn(case, "float32"))
    wanted = expected(case, *(array.astype("float32") for array in (x, weight, g)))
    forward, down, of_weight = case.operations
    found = [*compute(forward, x, weight), *compute(down, g, weight), *compute(of_weight, g, x)]
    for actual, right in zip(found, wanted, strict=True):
        step = float(ml_dtypes.finfo(narrow).eps)
        np.testing.assert_allclose(actual.astype("float32"), right, rtol=step, atol=2e-3)


HOWS = [
    ((4, 5), (3, 2), {"pad": (1, 0)}, 1),
    ((5, 4), (2, 3), {"stride": (2, 3), "pad": ((0, 0), (2, 1))}, 1),
    ((3, 3), (1, 1), {}, 1),
    ((4, 4), (2, 2), {"dilation": 2, "pad": 1, "groups": 2}, 2),
    ((3, 3), (3, 3), {"pad": 1, "groups": 4}, 4),
    ((6,), (3,), {"stride": 2, "pad": 1}, 1),
    ((2, 3, 2), (2, 2, 1), {"pad": 1, "stride": 2}, 1),
]


@pytest.mark.parametrize(("size", "kernel", "how", "groups"), HOWS)
def test_gradients(size, kernel, how, groups) -> None:
    random = np.random.default_rng(1)
    x, weight = random.standard_normal((2, *size, 4)), random.standard_normal((*kernel, 4 // groups, 8))
    check_gradient(ops.Conv(**how), x, weight)


@pytest.mark.parametrize(("size", "kernel", "how", "groups"), HOWS)
def test_gradients_of_gradients(size, kernel, how, groups) -> None:
    random = np.random.default_rng(1)
    x, weight = random.standard_normal((1, *size, 4)), random.standard_normal((*kernel, 4 // groups, 4))
    g = random.standard_normal((1, *ops.Conv(**how).windows(size, kernel).out, 4))
    check_gradient(ConvDown(**how, size=size), g, weight)
    check_gradient(ConvWeight(**how, kernel=kernel), g, x)


def test_scratch_memory_is_needed_for_a_piece_not_for_the_batch() -> None:
    x = np.ones((64, 16, 16, 16), np.float32)
    weight = np.ones((3, 3, 16, 4), np.float32)
    operation = ops.Conv(pad=1)
    kernel = ops.find_kernel(operation, "cpu", x.dtype)
    y = np.empty((64, 16, 16, 4), np.float32)
    kernel.function(operation, [x, weight], [y])  # the thread's scratch memory is there now
    tracemalloc.start()
    kernel.function(operation, [x, weight], [y])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * 1024  # the columns of the batch are 9.4 MB


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("channels", [1, 2])
def test_what_is_not_finite_stays_in_its_group(compute, value, channels) -> None:
    x, weight = np.ones((1, 4, 4, 4 * channels)), np.ones((3, 3, channels, 8))
    x[..., 0] = value
    (y,) = compute(ops.Conv(groups=4), x, weight)
    np.testing.assert_array_equal(np.isfinite(y), np.broadcast_to(np.arange(8) >= 2, y.shape))
    (dx,) = compute(ConvDown(groups=4, size=(4, 4)), y, weight)
    np.testing.assert_array_equal(np.isfinite(dx), np.broadcast_to(np.arange(4 * channels) >= channels, dx.shape))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_in_a_weight_stays_where_it_is_used(compute, value) -> None:
    weight, g = np.ones((3, 3, 16, 2), np.float32), np.ones((1, 4, 4, 2), np.float32)
    weight[0, 0] = value
    (dx,) = compute(ConvDown(pad=1, size=(4, 4)), g, weight)
    # The last row and column belong to no window's first element.
    assert np.isfinite(dx[:, -1]).all()
    assert np.isfinite(dx[:, :, -1]).all()
    assert not np.isfinite(dx[:, :-1, :-1]).any()


def test_a_data_gradient_of_many_windows_adds_to_nothing(compute, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_scatter", None)
    g, weight = np.ones((2, 9, 9, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
    (dx,) = compute(ConvDown(pad=1, size=(9, 9)), g, weight)
    assert dx[0, 4, 4, 0] == 9 * 16


def test_without_channels_or_images_sums_are_0(compute) -> None:
    np.testing.assert_array_equal(
        compute(ops.Conv(), np.ones((1, 3, 3, 0)), np.ones((2, 2, 0, 1)))[0], np.zeros((1, 2, 2, 1))
    )
    x, g = np.ones((0, 3, 3, 2)), np.ones((0, 2, 2, 3))
    np.testing.assert_array_equal(compute(ConvWeight(kernel=(2, 2)), g, x)[0], np.zeros((2, 2, 2, 3)))
    # Nothing but border.
    y = compute(ops.Conv(pad=1), np.ones((2, 0, 3, 2)), np.ones((2, 2, 2, 3)))[0]
    np.testing.assert_array_equal(y, np.zeros((2, 1, 4, 3)))


# -- transposed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "how", "shape"),
    [
        ((4, 5), {"stride": 2, "pad": 1, "output_pad": 1}, (8, 10)),
        ((4, 5), {"stride": (2, 3), "output_pad": (0, 2)}, (9, 17)),
        ((4, 5), {"dilation": 2, "pad": ((0, 1), 2)}, (7, 5)),
        ((3,), {"stride": 3}, (9,)),
        ((2, 2, 2), {"stride": 2}, (5, 5, 5)),
    ],
)
def test_transposed_convolution_sends_each_element_to_its_windows(size, how, shape) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (1, *size, 2), "float64")
    weight = graph.blob("w", (*(3 for _ in size), 4, 2), "float64")
    y = ops.conv_transpose(x, weight, **how)
    assert y.shape == (1, *shape, 4)
    random = np.random.default_rng(0)
    feeds = {blob: random.standard_normal(blob.shape) for blob in (x, weight)}
    found = graph.run_sync(feeds)[y]
    wanted = np.zeros((*(n + 100 for n in shape), 4))
    rank = len(size)
    each = lambda name, default: value if isinstance(value := how.get(name, default), tuple) else (value,) * rank  # noqa: E731
    before = [p[0] if isinstance(p, tuple) else p for p in each("pad", 0)]
    for place in np.ndindex(*size):
        for offset in np.ndindex(*weight.shape[:rank]):
            axes = zip(place, each("stride", 1), offset, each("dilation", 1), before, strict=True)
            to = tuple(i * s + a * d - p for i, s, a, d, p in axes)
            if min(to) >= 0:
                wanted[to] += feeds[weight][offset] @ feeds[x][(0, *place)]
    np.testing.assert_allclose(found[0], wanted[tuple(slice(0, n) for n in shape)], rtol=1e-12, atol=1e-12)


def test_a_transposed_convolution_of_a_convolution_has_its_size() -> None:
    for size, stride, pad in itertools.product(range(4, 9), (1, 2, 3), (0, 1)):
        graph = af.Graph("g")
        y = ops.conv(graph.blob("x", (1, size, 1)), graph.blob("w", (3, 1, 2)), stride, pad)
        rest = (size + 2 * pad - 3) % stride
        back = ops.conv_transpose(y, graph.blob("v", (3, 1, 2)), stride, pad, output_pad=rest)
        assert back.shape == (1, size, 1)


@pytest.mark.parametrize(
    ("x", "weight", "how", "error", "message"),
    [
        (
            (1, 4, 2),
            (3, 1, 2),
            {"output_pad": 1},
            af.GraphError,
            r"output_pad must be less than the stride \(1,\) or the dilation \(1,\), got",
        ),
        ((1, 4, 2), (3, 1, 3), {}, af.ShapeError, r"weight must have shape \(\*kernel, out_channels / groups, in_"),
        ((1, 2, 2), (1, 1, 2), {"pad": 1}, af.ShapeError, r"nothing is left of \(2,\) with kernel \(1,\) and padding"),
        ((1, 0, 2), (1, 1, 2), {}, af.ShapeError, "x must have a spatial size of at least 1"),
        ((1, 4, 3), (3, 1, 3), {"groups": 2}, af.ShapeError, "channels, 3, must be a multiple of groups, 2"),
    ],
)
def test_what_cannot_be_transposed_is_an_error(x, weight, how, error, message) -> None:
    graph = af.Graph("g")
    with pytest.raises(error, match=message):
        ops.conv_transpose(graph.blob("x", x), graph.blob("w", weight), **how)
    with pytest.raises(af.GraphError, match="conv_transpose: weight must be a blob or an array, got ndarray"):
        ops.conv_transpose(graph.blob("y", x), np.ones(weight))


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"pad": 1}, r"Conv: kernel \(5, 5\) is larger than the image \(2, 6\) with padding \(1, 1\)"),
        ({"pad": ((0, 1), 0)}, r"is larger than the image \(2, 6\) with padding \(\(0, 1\), \(0, 0\)\)"),
        (
            {"dilation": 2, "pad": 3},
            r"kernel \(5, 5\) with dilation \(2, 2\), \(9, 9\) in all, is larger than the image",
        ),
    ],
)
def test_a_kernel_larger_than_the_padded_image_is_an_error(how, message) -> None:
    graph = af.Graph("g")
    x, weight = graph.blob("x", (1, 2, 6, 1)), graph.blob("w", (5, 5, 1, 1))
    with pytest.raises(af.ShapeError, match=message):
        ops.conv(x, weight, **how)


@pytest.mark.parametrize(
    ("x", "weight", "groups", "message"),
    [
        ((1, 4), (1, 1), 1, r"x must have shape \(batch, 1 to 3 spatial axes, channels\), got float32\[1, 4\]"),
        ((1, 1, 1, 1, 1, 1), (1,) * 6, 1, "x must have shape"),
        (
            (1, 4, 4, 2),
            (1, 1, 2),
            1,
            r"weight must have shape \(\*kernel, in_.* with x's 4 axes, got float32\[1, 1, 2\]",
        ),
        ((1, 4, 4, 2), (1, 1, 3, 1), 1, r"weight must have x's 2 channels on axis -2, got float32\[1, 1, 3, 1\]"),
        ((1, 4, 4, 4), (1, 1, 4, 2), 2, r"weight must have x's 4 channels / 2 groups on axis -2, got"),
        ((1, 4, 4, 3), (1, 1, 1, 2), 2, "x's channels, 3, must be a multiple of groups, 2"),
        ((1, 4, 4, 4), (1, 1, 2, 3), 2, "weight's output channels, 3, must be a multiple of groups, 2"),
        ((1, 4, 4, 4), (0, 1, 4, 3), 1, r"kernel must be at least 1, got \(0, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_errors_that_name_the_argument(x, weight, groups, message) -> None:
    graph = af.Graph("g")
    with pytest.raises((af.ShapeError, af.GraphError), match=f"Conv: {message}"):
        ops.conv(graph.blob("x", x), graph.blob("w", weight), groups=groups)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"stride": 0}, "stride must be at least 1, got"),
        ({"stride": 1.5}, "stride must be at least 1, got"),
        ({"stride": (1, 1, 1)}, r"stride must be a number, or one for each of 2 spatial axes, got \(1, 1, 1\)"),
        ({"dilation": 0}, "dilation must be at least 1"),
        ({"pad": -1}, "pad must be at least 0, got -1"),
        ({"pad": ((1, 2, 3), 0)}, r"pad must be a number, or a number or \(before, after\) for each of 2 spatial axes"),
        ({"groups": 0}, "groups must be at least 1, got 0"),
    ],
)
def test_parameters_out_of_range_are_errors(how, message) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.GraphError, match=message):
        ops.conv(graph.blob("x", (1, 4, 4, 1)), graph.blob("w", (1, 1, 1, 1)), **how)


def test_other_dtypes_are_errors() -> None:
    graph = af.Graph("g")
    x, weight = graph.blob("x", (1, 4, 1)), graph.blob("w", (1, 1, 1), "float64")
    with pytest.raises(af.DTypeError, match="Conv: weight must have x's dtype float32, got float64"):
        ops.conv(x, weight)
    with pytest.raises(af.DTypeError, match="Conv: x must be floating, got int64"):
        ops.conv(graph.blob("n", (1, 4, 1), "int64"), weight)


def test_numbers_of_numpy_and_lists_are_parameters() -> None:
    graph = af.Graph("g")
    x, weight = graph.blob("x", (1, 8, 8, 1)), graph.blob("w", (3, 3, 1, 1))
    assert ops.conv(x, weight, [np.int64(2), 1], [[0, 1], np.int32(1)]).shape == (1, 4, 8, 1)


def test_gradient_operations_check_their_inputs(compute) -> None:
    g, weight, x = np.ones((1, 2, 2, 3)), np.ones((3, 3, 2, 3)), np.ones((1, 5, 5, 2))
    with pytest.raises(af.ShapeError, match=r"ConvDown: g must have shape \(batch, 3, 3, 3\), got"):
        compute(ConvDown(size=(5, 5)), g, weight)
    with pytest.raises(af.ShapeError, match=r"ConvWeight: g must have shape \(1, 3, 3, out_channels\), got"):
        compute(ConvWeight(kernel=(3, 3)), g, x)
    with pytest.raises(af.GraphError, match=r"ConvDown: size must be a number, or one for each of 2 spatial axes"):
        compute(ConvDown(), g, weight)
