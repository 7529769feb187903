"""Compiled kernels against NumPy's, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.errors import GraphError, ShapeError
from actorflow.ops.indexing import TakeDown
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.lrn import LRN, ChannelWindowSum, LRNDown
from actorflow.ops.nn.norm import BatchNorm, BatchNormDown, BatchNormInference, LayerNormDown
from actorflow.ops.nn.pool import AveragePool, AveragePoolDown, MaxPool, MaxPoolDown
from actorflow.ops.nn.updates import AdagradUpdate, AdamUpdate, RmsPropUpdate, SgdUpdate
from actorflow.ops.numba import norm, updates
from actorflow.spec import TensorSpec
from tests.support.effort import slow


@pytest.fixture(autouse=True, scope="module")
def however_small() -> Iterator[None]:
    """Small arrays are not left to NumPy, as they are where that is faster."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (norm, updates):
            patch.setattr(module, "LEAST", 0)
        yield


SPECIALS = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e38, 1e-45])
seeds = st.integers(0, 2**31)


def values(seed: int, shape: tuple[int, ...], dtype: Any = "f", odd: float = 0.0, few: bool = False) -> np.ndarray:
    """Random numbers, a share of them odd ones; with ``few`` many are equal, and as many of either sign are 0."""
    random = np.random.default_rng(seed)
    found = random.integers(-2, 3, shape) * random.choice([0.5, -0.5], shape) if few else random.standard_normal(shape)
    return np.where(random.random(shape) < odd, random.choice(SPECIALS, shape), found).astype(dtype)


@st.composite
def depthwise(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of images and a weight, and the parameters of a convolution; few kernels, as each is compiled."""
    kernel = draw(st.sampled_from([(3, 3), (1, 2)]))
    how = {
        "stride": (draw(st.integers(1, 3)), draw(st.integers(1, 2))),
        "pad": tuple(draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in kernel),
        "dilation": (draw(st.integers(1, 3)), draw(st.integers(1, 2))),
    }
    size = tuple(draw(st.integers(1, 12)) for _ in kernel)
    channels = draw(st.sampled_from([2, 3, 8, 17, 33]))
    return (draw(st.integers(0, 3)), *size, channels), (*kernel, 1, channels), how


def convolve(agree: Any, x: np.ndarray, weight: np.ndarray, how: dict[str, Any], seed: int, odd: float) -> None:
    """Compare the convolution and both gradients."""
    forward = Conv(**how, groups=x.shape[-1])
    try:
        (spec,) = forward.infer(*(TensorSpec(array.shape, array.dtype) for array in (x, weight)))
    except ShapeError:  # the kernel is larger than the images
        return
    g = values(seed + 1, spec.shape, x.dtype, odd)
    agree(forward, x, weight)
    agree(ConvDown(**how, groups=x.shape[-1], size=x.shape[1:-1]), g, weight)
    agree(ConvWeight(**how, groups=x.shape[-1], kernel=weight.shape[:-2]), g, x)


@pytest.mark.slow
@given(depthwise(), seeds, st.sampled_from([0.0, 0.1]))
def test_depthwise_convolutions(agree: Any, case: Any, seed: int, odd: float) -> None:
    images, kernel, how = case
    convolve(agree, values(seed, images, odd=odd), values(seed + 2, kernel), how, seed, odd)


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("rank", [*slow([1]), 2, *slow([3])])
def test_convolutions_of_several_ranks(agree: Any, rank: int, dtype: str) -> None:
    x = values(1, (2, *(11, 9, 8)[:rank], 9), dtype)
    convolve(agree, x, values(2, (*[3] * rank, 1, 9), dtype), {"stride": 2, "pad": 1}, 3, 0.0)


@pytest.mark.slow
def test_images_of_several_bands_and_pieces(agree: Any) -> None:
    x = values(1, (1, 70, 60, 96))
    convolve(agree, x, values(2, (3, 3, 1, 96)), {"pad": 1}, 3, 0.0)
    convolve(agree, x, values(2, (3, 3, 1, 96)), {}, 3, 0.0)


@pytest.mark.parametrize("stride", [1, 2])
def test_rows_of_any_number_of_windows(agree: Any, stride: int) -> None:
    """Some are computed side by side, those that are left by themselves."""
    weight = values(1, (3, 3, 1, 9))
    for width in range(1, 26):
        agree(Conv(groups=9, pad=1, stride=stride), values(width, (1, 4, width, 9), odd=0.05), weight)


@pytest.mark.slow
def test_several_outputs_of_a_channel(agree: Any) -> None:
    agree(Conv(groups=5, pad=1), values(1, (2, 7, 6, 5)), values(2, (3, 3, 1, 15)))


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_weights_that_are_not_finite_meet_no_border(agree: Any, odd: float) -> None:
    """Their products with a border of zeros would be NaN."""
    from actorflow.ops.numba.conv import _conv_down

    x, weight = values(1, (1, 4, 4, 8)), np.full((3, 3, 1, 8), odd, "f")
    agree(Conv(groups=8, pad=1), x, weight)
    assert not _conv_down(ConvDown(groups=8, pad=1, size=(4, 4)), [x, weight], [np.empty_like(x)])


@pytest.mark.together("channels", [1, 5, 16, 40, 120])
@pytest.mark.together("kernel", [(9, 9), (1, 16), (5, 4)])
def test_kernels_larger_than_images(agree: Any, kernel: tuple[int, int], channels: int) -> None:
    x, weight = values(1, (2, 7, 30, channels + 1), odd=0.01), values(2, (*kernel, 1, channels + 1))
    agree(Conv(groups=channels + 1, pad=8, stride=(1, 3)), x, weight)


def test_gradients_of_small_groups_or_many_taps_are_left_to_numpy() -> None:
    from actorflow.ops.numba.conv import _conv_down, _conv_weight

    for kernel, channels, groups in (((3, 3), 6, 3), ((9, 9), 6, 6)):
        x = values(1, (1, 10, 10, channels))
        weight = values(2, (*kernel, channels // groups, channels))
        g = values(3, (1, 11 - kernel[0], 11 - kernel[1], channels))
        assert not _conv_down(ConvDown(groups=groups, size=x.shape[1:-1]), [g, weight], [x])
        if groups != channels:
            assert not _conv_weight(ConvWeight(groups=groups, kernel=kernel), [g, x], [weight])


@st.composite
def pooled(draw: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
    kernel = draw(st.sampled_from([(2, 2), (3, 3)]))
    how = {
        "kernel": kernel,
        "stride": (draw(st.integers(1, 4)), draw(st.integers(1, 2))),
        "pad": tuple(draw(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1))) for k in kernel),
        "ceil": draw(st.booleans()),
        "dilation": (draw(st.integers(1, 3)), 1),
    }
    size = tuple(draw(st.integers(1, 10)) for _ in kernel)
    return (draw(st.integers(0, 3)), *size, draw(st.sampled_from([1, 3, 8, 19]))), how


@pytest.mark.slow
@given(pooled(), seeds, st.sampled_from([0.0, 0.2]), st.booleans(), st.sampled_from("fd"))
def test_poolings(agree: Any, case: Any, seed: int, odd: float, count_pad: bool, dtype: str) -> None:
    shape, how = case
    x = values(seed, shape, dtype, odd, few=True)
    try:
        spec, _ = MaxPool(**how, return_indices=True).infer(TensorSpec(x.shape, x.dtype))
    except (GraphError, ShapeError):
        return
    if spec.shape[1:-1] == (1, 1) and how["kernel"] == shape[1:-1]:
        return  # one window, the image, is left to NumPy
    g = values(seed + 1, spec.shape, dtype, odd)
    agree(MaxPool(**how, return_indices=True), x, signs_of_zeros=False)  # NumPy's are those of the processor
    agree(AveragePool(**how, count_pad=count_pad), x)
    agree(AveragePoolDown(**how, count_pad=count_pad, size=x.shape[1:-1]), g)
    y = np.empty(spec.shape, dtype)
    af.ops.find_kernel(MaxPool(**how), "cpu", x.dtype).function(MaxPool(**how), [x], [y])
    agree(MaxPoolDown(**how), g, x, y)


@pytest.mark.together("dilation", [(1, 1), (2, 1), (1, 3), (2, 2)])
@pytest.mark.together("size", [(4, 2), (4, 4), (6, 6), (7, 5)])
def test_gradients_of_maxima_of_windows_that_touch_or_overlap(
    agree: Any, size: tuple[int, int], dilation: tuple[int, int]
) -> None:
    how = {"kernel": 2, "stride": 2, "dilation": dilation}
    x = values(1, (2, *size, 3))
    if any(n <= d for n, d in zip(size, dilation, strict=True)):
        return  # no window fits
    y = np.empty(MaxPool(**how).infer(TensorSpec(x.shape, x.dtype))[0].shape, x.dtype)
    af.ops.find_kernel(MaxPool(**how), "cpu", x.dtype).function(MaxPool(**how), [x], [y])
    agree(MaxPoolDown(**how), values(2, y.shape), x, y)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(13,), (7, 5, 6)])
def test_poolings_of_rows_and_volumes(agree: Any, size: tuple[int, ...]) -> None:
    x = values(1, (2, *size, 6))
    agree(MaxPool(3, 2, 1), x)
    agree(AveragePool(3, 2, 1), x)


@pytest.mark.slow
@given(
    st.integers(0, 5),
    st.sampled_from([1, 2, 5, 40]),
    st.sampled_from([1, 4, 5]),
    seeds,
    st.sampled_from("fd"),
    st.sampled_from([0.0, 0.1]),
)
def test_windows_of_channels(
    agree: Any, rows: int, channels: int, size: int, seed: int, dtype: str, odd: float
) -> None:
    x, how = values(seed, (rows, channels), dtype, odd), {"alpha": 0.3, "size": size}
    agree(LRN(**how, k=2.0), x)
    y, scale = values(seed + 1, x.shape, dtype, odd), abs(values(seed + 2, x.shape, dtype, odd))
    agree(LRNDown(**how), values(seed + 3, x.shape, dtype, odd), x, y, scale)
    most = channels - 1
    assert ChannelWindowSum(size).reach(channels) == (min(size // 2, most), min((size - 1) // 2, most))


@given(st.integers(2, 50), st.integers(1, 40), seeds, st.sampled_from("fd"), st.sampled_from([0.0, 0.1]))
def test_normalization_of_batches(agree: Any, rows: int, channels: int, seed: int, dtype: str, odd: float) -> None:
    x, g = values(seed, (rows, channels), dtype, odd), values(seed + 1, (rows, channels), dtype, odd)
    scale, shift, mean, variance = (values(seed + i, (channels,), dtype) for i in range(4))
    mean_of_rows = values(seed, (rows,), dtype)
    agree(BatchNorm(), x, scale, shift, mean, abs(variance))
    agree(BatchNormInference(), x, scale, shift, mean, abs(variance))
    agree(BatchNormDown(), g, x, scale, mean, abs(variance))
    agree(LayerNormDown(), g, x, scale, mean_of_rows, abs(mean_of_rows))


STEPS = [
    SgdUpdate(),
    SgdUpdate(0.9, 1e-2),
    SgdUpdate(0.9, nesterov=True),
    AdamUpdate(),
    AdamUpdate(weight_decay=0.1),
    AdamUpdate(weight_decay=0.1, decoupled=True),
    AdagradUpdate(weight_decay=0.1),
    RmsPropUpdate(),
    RmsPropUpdate(centered=True, momentum=0.9, weight_decay=0.1),
]


@pytest.mark.parametrize("step", slow(STEPS), ids=str)
@given(
    st.sampled_from([(), (0,), (7,), (3, 5), (100_000,), (1_200_000,)]),
    seeds,
    st.sampled_from("fd"),
    st.sampled_from([0.0, 0.01]),
)
def test_steps_of_optimizers(agree: Any, step: Any, shape: tuple[int, ...], seed: int, dtype: str, odd: float) -> None:
    scalars = {"rate": np.array(0.1, dtype), "step": np.array(4)}
    arrays = []
    for number, name in enumerate(step.names):
        array = values(seed + number, shape, dtype, odd)
        arrays.append(scalars.get(name, abs(array) if name == "square" else array))
    agree(step, *arrays)


@given(st.sampled_from([1, 2, 7, 300]), st.integers(2, 5), st.integers(0, 2), st.sampled_from([1, 8, 60, 1000]), seeds)
def test_gradients_of_what_is_taken(agree: Any, length: int, inner: int, axis: int, count: int, seed: int) -> None:
    shape = (*(2, 3)[:axis], count, inner)
    indices = np.random.default_rng(seed).integers(-length, length, count)
    agree(TakeDown(length, axis), values(seed, shape, "f", 0.02, few=True), indices)


@pytest.mark.parametrize("order", ["F", "strided"])
def test_arrays_in_other_orders_are_left_to_numpy(order: str) -> None:
    from actorflow.ops.numba.lrn import _lrn

    x = values(1, (6, 8))
    x = np.asfortranarray(x) if order == "F" else x[::2]
    assert not _lrn(LRN(), [x], [np.empty(x.shape, "f"), np.empty(x.shape, "f")])
