"""Products with packed weights beside float64, and what follows them beside NumPy's chains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.errors import ShapeError
from actorflow.ops.fused import Followed, Fused, Step
from actorflow.ops.linalg import Inner, InnerDown, InnerWeight
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.numba import (
    Routine,
    assembly,
    compiled,
    dense,
    depthwise,
    fused,
    gathered,
    outer,
    packing,
    product,
    row,
)
from actorflow.ops.numba import following as following_module
from actorflow.ops.numba.compile_queue import compile_queue
from actorflow.ops.operation import Operation
from actorflow.ops.registry import load_library, lookup
from actorflow.spec import TensorSpec
from tests.ops.numba.conftest import assert_same_bits
from tests.ops.numba.test_fused import everything
from tests.support.effort import FULL

SPECIALS = np.array([np.nan, np.inf, -np.inf, -0.0])
_CACHES = (
    assembly.vectors,
    product.multiply,
    following_module.follower,
    depthwise._routine,
    row.multiply_row,
    outer.outer_sums,
    outer._sums,
    packing._table,
    packing._routine,
    gathered.gather,
)


@pytest.fixture(autouse=True, scope="module", params=["all vectors", "half vectors"])
def processor(request: Any) -> Iterator[None]:
    """This processor, and what it would be with half as large vectors and half as many of them."""
    load_library("cpu", "numpy")
    load_library("cpu", "numba")
    known = assembly.processor()
    if request.param == "half vectors" and "+avx512f" not in known.features.split(","):
        pytest.skip("this processor has no larger vectors")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "half vectors":
            patch.setattr(assembly, "processor", lambda: known._replace(features="+avx2,+fma"))
        for cached in _CACHES:
            cached.cache_clear()
        yield
    for cached in _CACHES:
        cached.cache_clear()


def values(seed: int, shape: tuple[int, ...], dtype: Any = "f", odd: float = 0.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    found = random.standard_normal(shape)
    return np.where(random.random(shape) < odd, random.choice(SPECIALS, shape), found).astype(dtype)


def attempt(operation: Operation, inputs: list[np.ndarray]) -> np.ndarray:
    """What the compiled kernel computes, which must not leave it to NumPy's."""
    (spec,) = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs]) or ()
    known = lookup(operation, "cpu", "numba", inputs[0].dtype)
    assert known is not None
    y = np.full(*spec[:1], np.nan, spec[1])
    assert known.function.__wrapped__(operation, inputs, [y])
    return y


def exact(operation: Operation, inputs: list[np.ndarray]) -> np.ndarray:
    """What NumPy's kernel computes in float64."""
    wide = [x.astype(np.float64) for x in inputs]
    (spec,) = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in wide]) or ()
    y = np.empty(*spec)
    known = lookup(operation, "cpu", "numpy", np.dtype(np.float64))
    assert known is not None
    with np.errstate(all="ignore"):
        known.function(operation, wide, [y])
    return y


def check(operation: Operation, x: np.ndarray, weight: np.ndarray, depth: int) -> None:
    compare(attempt(operation, [x, weight]), operation, [x, weight], depth)


def compare(found: np.ndarray, operation: Operation, inputs: list[np.ndarray], depth: int) -> None:
    """Errors are at most those of ``depth`` roundings of the sum of all products' sizes."""
    expected, dtype = exact(operation, inputs), found.dtype
    bound = (depth + 1) * np.finfo(dtype).eps * exact(operation, [abs(x) for x in inputs])
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite].astype(dtype))
    errors = abs(found[finite] - expected[finite])
    np.testing.assert_array_less(errors, bound[finite] + np.finfo(dtype).tiny)


@st.composite
def convolutions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of images and a weight, and the parameters of a convolution."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    kernel = tuple(draw(st.integers(1, 4 if rank < 3 else 2)) for _ in range(rank))
    how = {
        "stride": tuple(draw(st.integers(1, 3)) for _ in kernel),
        "pad": tuple(draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in kernel),
        "dilation": tuple(draw(st.integers(1, 2)) for _ in kernel),
        "groups": groups,
    }
    size = tuple(draw(st.integers(1, 12)) for _ in kernel)
    channels = groups * draw(st.sampled_from([2, 3, 16, 33]))
    columns = groups * draw(st.sampled_from([8, 16, 24, 50, 64, 80, 131]))
    return (draw(st.integers(1, 3)), *size, channels), (*kernel, channels // groups, columns), how


@given(convolutions(), st.integers(0, 2**31), st.sampled_from([0.0, 0.02]), st.sampled_from("fd"))
@settings(max_examples=2000 if FULL else 50, deadline=None)
def test_convolutions(case: Any, seed: int, odd: float, dtype: str) -> None:
    images, kernel, how = case
    x, weight = values(seed, images, dtype, odd), values(seed + 1, kernel, dtype)
    try:
        check(Conv(**how), x, weight, math.prod(kernel[:-1]))
    except ShapeError:  # the kernel is larger than the images
        return


def gradients(images: Any, kernel: Any, how: dict[str, Any], seed: int, odd: float, dtype: str) -> None:
    """Both gradients of a convolution, where they are not left to NumPy."""
    w = Conv(**how).windows(images[1:-1], kernel[:-2])
    g = values(seed, (images[0], *w.out, kernel[-1]), dtype, odd)
    x, weight = values(seed + 1, images, dtype, odd), values(seed + 2, kernel, dtype, odd * 0.1)
    windows = images[0] * math.prod(w.out)
    for operation, other, depth in (
        (ConvDown(**how, size=images[1:-1]), weight, math.prod(kernel[:-2]) * kernel[-1]),
        (ConvWeight(**how, kernel=kernel[:-2]), x, windows),
    ):
        found = np.full_like(weight if other is x else x, np.nan)
        known = lookup(operation, "cpu", "numba", g.dtype)
        assert known is not None
        if known.function.__wrapped__(operation, [g, other], [found]):
            compare(found, operation, [g, other], depth)


@given(convolutions(), st.integers(0, 2**31), st.sampled_from([0.0, 0.02]), st.sampled_from("fd"))
@settings(max_examples=2000 if FULL else 100, deadline=None)
def test_gradients_of_convolutions(case: Any, seed: int, odd: float, dtype: str) -> None:
    try:
        gradients(*case, seed, odd, dtype)
    except ShapeError:
        return


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize(
    ("images", "kernel", "how"),
    [
        ((9, 30, 30, 100), (1, 1, 100, 40), {}),
        ((2, 7, 7, 60), (3, 3, 60, 130), {"pad": 1}),
        ((8, 2, 2, 48), (5, 5, 48, 40), {"pad": 2}),
        ((9, 60, 60, 24), (3, 3, 24, 24), {"pad": 1, "stride": 2}),
        ((9, 64, 64, 3), (7, 7, 3, 64), {"pad": 3, "stride": 2}),
        ((3, 20, 600, 16), (1, 3, 8, 32), {"groups": 2}),
        ((2, 9, 10, 11, 16), (2, 3, 2, 16, 24), {"pad": 1}),
    ],
)
def test_gradients_in_several_pieces(images: Any, kernel: Any, how: Any, dtype: str) -> None:
    gradients(images, kernel, how, 1, 0.0, dtype)


def test_infinite_gradients_at_a_border_are_numpys() -> None:
    g, x, weight = np.full((1, 4, 4, 16), np.inf, "f"), values(1, (1, 4, 4, 16)), values(2, (3, 3, 16, 16))
    found = compute(ConvWeight(pad=1, kernel=(3, 3)), [g, x])
    np.testing.assert_array_equal(found, compute(ConvWeight(pad=1, kernel=(3, 3)), [g, x], "numpy"))
    weight[0, 0, 0, 0] = np.inf
    found = compute(ConvDown(pad=1, size=(4, 4)), [x, weight])
    np.testing.assert_array_equal(found, compute(ConvDown(pad=1, size=(4, 4)), [x, weight], "numpy"))


@pytest.mark.together("dtype", ["f", "d"])
@pytest.mark.together(("rows", "features", "columns"), [(1, 5, 7), (2, 1, 1), (7, 33, 16), (600, 50, 100)])
def test_gradients_of_inner_products(rows: int, features: int, columns: int, dtype: str) -> None:
    g, x = values(1, (rows, features), dtype, 0.01), values(2, (rows, columns), dtype)
    compare(attempt(InnerWeight(), [g, x]), InnerWeight(), [g, x], rows)
    weight = values(3, (features, columns), dtype)
    if rows > 1:
        check(InnerDown(), g, weight, features)


@pytest.mark.parametrize(
    ("images", "kernel", "how"), [((32, 30, 30, 64), (1, 1, 64, 64), {}), ((9, 30, 30, 64), (3, 3, 64, 64), {"pad": 1})]
)
def test_the_order_of_sums_makes_no_difference(images: Any, kernel: Any, how: Any, monkeypatch: Any) -> None:
    operation = ConvWeight(**how, kernel=kernel[:-2])
    x, g = values(1, images), values(2, (*images[:-1], kernel[-1]))
    expected, counts = attempt(operation, [g, x]), []

    def backwards(routine: Any, given: Any, pieces: Any, work_ns: float) -> None:
        counts.append(len(pieces))
        for piece in reversed(pieces.tolist()):
            routine.function(*given, *piece)

    monkeypatch.setattr(outer, "spread", backwards)
    np.testing.assert_array_equal(attempt(operation, [g, x]), expected)
    assert counts[0] > 1


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize(
    ("taps", "inputs", "outputs", "groups"), [(1, 5, 7, 1), (9, 33, 130, 1), (4, 17, 40, 2), (9, 260, 130, 1)]
)
def test_turned_weights_are_packed_alike_before_they_are_compiled(
    taps: int, inputs: int, outputs: int, groups: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, counts = values(1, (taps, inputs, outputs), dtype), []

    def backwards(routine: Any, given: Any, pieces: Any, work_ns: float) -> None:
        counts.append(len(pieces))
        for piece in reversed(pieces.tolist()):
            routine.function(*given, *piece)

    packing.pack_turned(weight, groups)
    compile_queue.settled(60)
    monkeypatch.setattr(packing, "spread", backwards)
    found = packing.pack_turned(weight, groups)
    assert bool(counts) == (inputs > 200), "large ones in pieces"
    monkeypatch.setattr(packing, "_routine", lambda _dtype: SimpleNamespace(function=None))
    assert_same_bits(found, packing.pack_turned(weight, groups))


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize(
    ("images", "kernel", "how"),
    [
        ((1, 30, 30, 700), (1, 1, 700, 40), {}),
        ((1, 7, 7, 300), (3, 3, 300, 130), {"pad": 1}),
        ((9, 60, 60, 24), (3, 3, 24, 24), {"pad": 1, "stride": 2}),
        ((1, 64, 64, 3), (7, 7, 3, 64), {"pad": 3, "stride": 2}),
    ],
)
def test_deep_sums_and_several_pieces(images: Any, kernel: Any, how: Any, dtype: str) -> None:
    x, weight = values(1, images, dtype), values(2, kernel, dtype)
    check(Conv(**how), x, weight, math.prod(kernel[:-1]))


@pytest.mark.together("dtype", ["f", "d"], at_once=32)
@pytest.mark.together("rows", [1, 2, 7, 50])
@pytest.mark.together("columns", [1, 3, 4, 9, 64, 100])
@pytest.mark.together("depth", [1, 15, 33, 300])
def test_inner_products(rows: int, columns: int, depth: int, dtype: str) -> None:
    x, weight = values(1, (rows, depth), dtype, 0.01), values(2, (columns, depth), dtype)
    check(Inner(), x, weight, depth)


def test_the_order_of_pieces_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = values(1, (1, 60, 60, 64)), values(2, (3, 3, 64, 160))
    expected = attempt(Conv(pad=1), [x, weight])
    counts: list[int] = []
    in_pieces(monkeypatch, counts)
    np.testing.assert_array_equal(attempt(Conv(pad=1), [x, weight]), expected)
    assert counts[0] > 1


def in_pieces(monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> None:
    """Have calls computed as if threads shared them, the last piece first."""

    def backwards(routine: Routine, given: Any, pieces: Any, work_ns: float) -> None:
        counts.append(len(pieces))
        for piece in pieces[::-1].tolist():
            routine.wait()(*given, *piece)

    for module, name in ((product, "spread"), (row, "spread"), (depthwise, "spread_compiled")):
        monkeypatch.setattr(module, name, backwards)
        monkeypatch.setattr(module, "may_share", lambda *_: True)


@pytest.mark.together("dtype", ["f", "d"], at_once=32)
@pytest.mark.together(
    ("operation", "images", "kernel"),
    [
        (Conv(pad=1), (1, 33, 41, 40), (3, 3, 40, 97)),
        *[(Inner(), (rows, 300), (700, 300)) for rows in (50, 193, 385, 577)],
        (Conv(), (1, 1, 193, 300), (1, 1, 300, 700)),
        (Inner(), (1, 1031), (900, 1031)),
        (Conv(pad=1, groups=48), (2, 60, 61, 48), (3, 3, 1, 48)),
    ],
)
def test_pieces_are_what_one_call_for_all_is(
    monkeypatch: pytest.MonkeyPatch, operation: Any, images: Any, kernel: Any, dtype: str
) -> None:
    x, weight = values(1, images, dtype, 0.001), values(2, kernel, dtype)
    counts: list[int] = []
    compute(replace(operation), [x, weight])
    compiled()
    expected = attempt(replace(operation), [x, weight])
    in_pieces(monkeypatch, counts)
    np.testing.assert_array_equal(attempt(replace(operation), [x, weight]), expected)
    assert counts[0] > 1


@pytest.mark.parametrize("dtype", ["f", "d"])
@given(rows=st.integers(1, 2_000), depth=st.integers(1, 600), columns=st.integers(1, 300))
@settings(deadline=None)
def test_no_row_is_left_over(rows: int, depth: int, columns: int, dtype: str) -> None:
    """A row by itself is added up in another order."""
    compute = product.ready(product.multiply, np.dtype(dtype).name)
    assert compute is not None
    made = product.Product(compute, product.matrix_rows(rows, depth), columns, 1, np.dtype(dtype).name)
    at_once = made._told[0]
    for _, begin, end, _, _ in [*made._parts.tolist(), made._whole]:
        assert (end - begin) % at_once != 1 or rows == 1


def test_weights_that_change_are_packed_anew() -> None:
    operation, x = Conv(), values(1, (1, 6, 6, 16))
    weights = [values(seed, (1, 1, 16, 32)) for seed in (2, 3)]
    for which in (0, 0, 0, 1, 0, 1, 1, 1, 0):
        check(operation, x, weights[which], 16)
        expected = attempt(Conv(), [x, weights[which]])
        np.testing.assert_array_equal(attempt(operation, [x, weights[which]]), expected)


@pytest.mark.parametrize("name", ["multiply", "multiply_row"])
def test_without_machine_code_blas_multiplies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, name, lambda _dtype: Routine("nonsense", name, [], is_python=False))
    x, weight = values(1, (1 if name == "multiply_row" else 9, 20)), values(2, (30, 20))
    found = compute(Inner(), [x, weight])
    np.testing.assert_array_equal(found, compute(Inner(), [x, weight], "numpy"))


def followed(main: Operation, chain: Fused) -> Followed:
    known = lookup(main, "cpu", "numba", np.dtype(np.float32))
    assert known is not None
    return Followed(main, chain, 2, known)


def compute(operation: Operation, inputs: list[np.ndarray], library: str = "numba") -> np.ndarray:
    (spec,) = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs]) or ()
    y = np.full(*spec[:1], np.nan, spec[1])
    known = lookup(operation, "cpu", library, inputs[0].dtype)
    assert known is not None
    with np.errstate(all="ignore"):
        known.function(operation, inputs, [y])
    return y


MAINS: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = [
    (Conv(pad=1), (2, 5, 9, 16), (3, 3, 16, 40)),
    (Conv(groups=40, pad=1), (2, 5, 9, 40), (3, 3, 1, 40)),
    (Inner(), (90, 20), (40, 20)),
    (Inner(), (1, 20), (40, 20)),
]


@pytest.mark.together("dtype", ["f", "d"])
@pytest.mark.together("number", range(len(MAINS)))
def test_what_follows_is_numpys_to_the_bit(number: int, dtype: str) -> None:
    """Each element of the result goes through one of all operations that chains have, which an input chooses."""
    main, images, kernel = MAINS[number]
    main = replace(main)  # whose calls are bound
    x, weight = values(1, images, dtype), values(2, kernel, dtype)
    y = compute(main, [x, weight])
    other = values(3, y.shape, dtype, 0.3)
    which = np.resize(np.arange(len(fused._TEXTS)), y.shape).astype(dtype)
    chain = everything(np.dtype(dtype).name)
    operation = followed(main, chain)
    expected = compute(chain, [y, other, which], "numpy")
    for _ in range(3):
        found = compute(operation, [x, weight, other, which])
        assert_same_bits(found, expected, signs_of_zeros=False)
        compiled()
    assert fused._BOUND in operation.__dict__


def normalized(main: Operation) -> Followed:
    """``relu((y - center) * sqrt(factor) + residual)``."""
    steps = [
        Step(ops.Sqrt(), (1,)),
        Step(ops.Subtract(), (0, 2)),
        Step(ops.Multiply(), (5, 4)),
        Step(ops.Sum(), (6, 3)),
        Step(ops.Relu(), (7,)),
    ]
    return followed(main, Fused(tuple(steps), (4,)))


def test_calls_are_bound_to_weights_that_stay() -> None:
    operation = normalized(Conv(pad=1))
    weights = [[values(seed, (3, 3, 8, 24)), abs(values(seed + 1, (24,))), values(seed + 2, (24,))] for seed in (5, 9)]
    bound = []
    for turn, which in enumerate((0, 0, 0, 0, 1, 0, 0, 0)):
        x, residual = values(20 + turn, (1, 9, 7, 8)), values(40 + turn, (1, 9, 7, 24))
        found = compute(operation, [x, *weights[which], residual])
        compiled()
        weight, factor, center = weights[which]
        y = compute(Conv(pad=1), [x, weight])
        np.testing.assert_array_equal(found, np.maximum((y - center) * np.sqrt(factor) + residual, 0))
        bound.append(fused._BOUND in operation.__dict__)
    assert bound[3]
    assert not bound[4]
    assert bound[-1]


def test_bound_calls_see_other_shapes_and_orders() -> None:
    operation, weights = normalized(Conv()), [values(1, (1, 1, 8, 24)), abs(values(2, (24,))), values(3, (24,))]
    for turn in range(4):
        for size in (3, 5):
            x, residual = values(turn, (1, size, 7, 8)), values(7 + turn, (1, size, 7, 24))
            expected = compute(normalized(Conv()), [x, *weights, residual])
            np.testing.assert_array_equal(compute(operation, [x, *weights, residual]), expected)
            turned = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
            found = compute(operation, [turned, *weights, residual])
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            compiled()


@pytest.mark.usefixtures("by_default")
async def test_a_network_sees_new_values_of_its_variables() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (1, 6, 6, 8))
    weight = graph.variable("weight", (3, 3, 8, 16), init=af.nn.init.gaussian(std=0.3, seed=1))
    shift = graph.variable("shift", (16,), init=af.nn.init.gaussian(std=0.3, seed=2))
    y = ops.relu(ops.bias(ops.conv(x, weight, pad=1), shift))
    async with graph:
        for turn in range(9):
            if turn % 4 == 3:
                weight.value = values(turn, weight.shape)
            if turn % 4 == 1:
                shift.value = values(turn, shift.shape)
            feed = values(50 + turn, x.shape)
            found = (await graph.run({x: feed}))[y]
            compiled()
            expected = np.maximum(exact(Conv(pad=1), [feed, weight.value]) + shift.value, 0)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
