"""Arithmetic, comparisons, reductions, shapes and indices: what the comparison with PyTorch does not show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import actorflow as af
from actorflow import ops
from actorflow.ops.indexing import AddAt, PadDown, TakeAlongAxisDown, TakeDown
from actorflow.testing import check_gradient

ml_dtypes = pytest.importorskip("ml_dtypes")

SPEC = af.TensorSpec.of
F32 = np.dtype("float32")
layouts = st.sampled_from(["C", "F", "strided"])
seeds = st.integers(0, 2**32 - 1)


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def graph() -> af.Graph:
    return af.Graph("g")


# -- dtypes ---------------------------------------------------------------------------------------------------------

UNARY = {
    "negative": np.negative,
    "absolute": np.absolute,
    "sign": np.sign,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "square": np.square,
    "floor": np.floor,
    "round": np.rint,
    "log": np.log,
    "reciprocal": np.reciprocal,
    "ceil": np.ceil,
}
KINDS = {name: getattr(ops, name.capitalize()) for name in UNARY}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_comes_near_float32(compute, name, dtype) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.linspace(0.25, 4.0, 70).astype(kind)
    (y,) = compute(KINDS[name](), x)
    assert y.dtype == kind
    np.testing.assert_allclose(y.astype("f4"), UNARY[name](x.astype("f4")), rtol=2e-2 if dtype == "bfloat16" else 2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_are_computed_in_float32(compute, dtype) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    ones = np.ones((5000, 3), kind)
    for axis, count in (((0,), 5000), (None, 15000)):
        total = compute(ops.ReduceSum(axis), ones)[0].astype("f4")
        np.testing.assert_allclose(total, np.full(total.shape, count), rtol=1e-2)
        np.testing.assert_array_equal(compute(ops.ReduceMean(axis), ones)[0].astype("f4"), np.ones(total.shape))
    g, indices = np.ones((5000, 2), kind), np.zeros(5000, np.int64)
    np.testing.assert_allclose(compute(TakeDown(1), g, indices)[0].astype("f4"), [[5000, 5000]], rtol=1e-2)
    column = compute(TakeAlongAxisDown(1, 0), g[:, :1], indices[:, None])[0].astype("f4")
    np.testing.assert_allclose(column, [[5000]], rtol=1e-2)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_integers(compute, dtype) -> None:
    a, b = np.array([[3, 4, 0]], dtype), np.array([[2], [1]], dtype)
    for operation, expected in (
        (ops.Sum(), a + b),
        (ops.Multiply(), a * b),
        (ops.Power(), a**b),
        (ops.Maximum(), np.maximum(a, b)),
        (ops.Greater(), a > b),
    ):
        np.testing.assert_array_equal(compute(operation, a, b)[0], expected, strict=True)
    many = np.full((3, 100), 100, dtype)
    wide = np.uint64 if dtype[0] == "u" else np.int64
    np.testing.assert_array_equal(compute(ops.ReduceSum((1,)), many)[0], np.full(3, 10000, wide), strict=True)
    np.testing.assert_array_equal(compute(ops.ReduceProd((0,)), many)[0], np.full(100, 1000000, wide), strict=True)
    np.testing.assert_array_equal(
        compute(ops.AtLeast(), a, np.asarray(2, dtype))[0],
        np.maximum(a, np.asarray(2, dtype)),
        strict=True,
    )


def test_what_is_infinite_or_no_number_is_no_warning(compute) -> None:
    x = np.array([0.0, -1.0, np.inf, np.nan])
    np.testing.assert_array_equal(compute(ops.Log(), x)[0], [-np.inf, np.nan, np.inf, np.nan])
    np.testing.assert_array_equal(compute(ops.Sqrt(), x)[0], [0, np.nan, np.inf, np.nan])
    np.testing.assert_array_equal(compute(ops.Reciprocal(), x)[0], [np.inf, -1, 0, np.nan])
    np.testing.assert_array_equal(compute(ops.Divide(), x, np.zeros(4))[0], [np.nan, -np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(compute(ops.ReduceMean((0,)), np.zeros((0, 2)))[0], [np.nan, np.nan])


def test_the_order_of_terms_is_kept_when_they_broadcast(compute) -> None:
    big, small = np.full((1, 3), 1e16), np.ones((2, 1))
    np.testing.assert_array_equal(compute(ops.Sum(), big, small, -big)[0], np.zeros((2, 3)))
    np.testing.assert_array_equal(compute(ops.Sum(), big, -big, small)[0], np.ones((2, 3)))


# -- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "arrays"),
    [
        (ops.Sum(), [_random(2, 3), _random(3), _random(2, 1)]),
        (ops.WeightedSum((0.5, -2.0)), [_random(2, 3), _random(3)]),
        (ops.Subtract(), [_random(2, 3), _random(3)]),
        (ops.Multiply(), [_random(2, 1), _random(3)]),
        (ops.Divide(), [_random(2, 3), 2 + np.abs(_random(3))]),
        (ops.Power(), [1 + np.abs(_random(2, 3)), _random(3)]),
        (ops.Maximum(), [_random(2, 3), _random(3, seed=1)]),
        (ops.Minimum(), [_random(2, 3), _random(3, seed=1)]),
        (ops.Exp(), [_random(3)]),
        (ops.Log(), [1 + np.abs(_random(3))]),
        (ops.Sqrt(), [1 + np.abs(_random(3))]),
        (ops.Square(), [_random(3)]),
        (ops.Reciprocal(), [1 + np.abs(_random(3))]),
        (ops.Negative(), [_random(3)]),
        (ops.Absolute(), [_random(3)]),
        (ops.AtMost(), [np.array([-1.0, 0.1, 0.3, 2.0]), np.array(0.5)]),
        (ops.AtLeast(), [np.array([-1.0, 0.1, 0.3, 2.0]), np.array(-0.5)]),
        (ops.Floor(), [np.array([0.5, 1.5])]),
        (ops.Where(), [np.array([True, False]), _random(2, 2), _random(2)]),
        (ops.BroadcastTo((3, 2, 4)), [_random(2, 1)]),
        (ops.ReduceSum((0,)), [_random(2, 3)]),
        (ops.ReduceMean((1,), True), [_random(2, 3)]),
        (ops.ReduceMax((0,)), [_random(4, 3)]),
        (ops.ReduceMin(), [_random(4, 3)]),
        (ops.ReduceProd((1,)), [np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]])]),
        (ops.ReduceProd((2, 0), True), [_random(3, 2, 5)]),
        (ops.ReduceProd(), [_random(1)]),
        (ops.Concat(1), [_random(2, 3), _random(2, 1)]),
        (ops.Split((1, 2), 1), [_random(2, 3)]),
        (ops.Slice(((0, 2, 1), (1, 3, 2))), [_random(2, 3)]),
        (AddAt(((0, 2, 1), (1, 3, 2)), (2, 3)), [_random(2, 1)]),
        (ops.Flip((1,)), [_random(2, 3)]),
        (ops.Pad(((1, 0), (2, 1)), "constant", 3.0), [_random(2, 3)]),
        (ops.Pad(((1, 0), (2, 1)), "reflect"), [_random(2, 3)]),
        (ops.Pad(((1, 2), (2, 3)), "wrap"), [_random(2, 3)]),
        (PadDown(((1, 0), (2, 1)), "edge"), [_random(3, 6)]),
        (PadDown(((1, 2), (2, 3)), "wrap"), [_random(5, 8)]),
        (ops.Take(1), [_random(2, 3), np.array([[0, 2], [0, -3]])]),
        (TakeDown(3, 1), [_random(2, 4), np.array([0, 2, 0, 0])]),
        (ops.TakeAlongAxis(1), [_random(2, 3), np.array([[0, 0], [1, 2]])]),
        (TakeAlongAxisDown(3, 1), [_random(2, 2), np.array([[0, 0], [1, 2]])]),
        (ops.Dummy(), [_random(3), _random(2)]),
    ],
    ids=str,
)
def test_gradients(operation, arrays) -> None:
    wrt = [0] if isinstance(operation, ops.Dummy) else None
    check_gradient(operation, *arrays, wrt=wrt)


# -- parts, views of what they are cut from -------------------------------------------------------------------------


def test_parts_are_views(compute) -> None:
    x = np.arange(24.0).reshape(4, 6)
    pieces = compute(ops.Split((1, 3), 0), x) + compute(ops.Slice(((1, 4, 2), (2, 6, 3))), x)
    assert all(np.shares_memory(piece, x) for piece in pieces)


async def test_slices_of_slices_keep_the_offset_and_outlive_their_parent(graph) -> None:
    """A nested slice that began at its parent's start would give other elements; a reused buffer, later ones."""
    x = graph.blob("x", (6, 8), "float64")
    whole = ops.scale(x, 1.0)
    inner = ops.slice(ops.slice(ops.slice(whole, np.s_[2:, 1:]), np.s_[1:3, ::2]), np.s_[-1, 1:])
    flat = ops.reshape(ops.slice(whole, np.s_[:, 3:5]), (-1,))
    async with graph:
        kept = []
        for frame in range(5):
            value = np.arange(48.0).reshape(6, 8) + 100 * frame
            result = await graph.run({x: value}, fetch=[inner, flat])
            kept.append((result[inner], result[flat], value))
        for found, row, value in kept:
            np.testing.assert_array_equal(found, value[2:, 1:][1:3, ::2][-1, 1:])
            np.testing.assert_array_equal(row, value[:, 3:5].reshape(-1))


async def test_buffers_of_what_was_cut_are_used_again(graph) -> None:
    x = graph.blob("x", (40, 60))
    left, right = ops.split(ops.scale(x, 2.0), 2, axis=1)
    y = ops.sum(ops.multiply(ops.flatten(left), ops.flatten(right)))
    async with graph:
        for _ in range(3):
            await graph.run({x: np.ones((40, 60), "f")}, fetch=[y])
        memory = graph.engine.resources.device(af.Place()).memory
        before = memory.allocations
        for _ in range(20):
            assert (await graph.run({x: np.ones((40, 60), "f")}, fetch=[y]))[y] == 4 * 1200
        assert memory.allocations - before <= 20  # the fetched scalars


@settings(deadline=None, max_examples=30)
@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), layouts, st.data())
def test_reshape_of_any_layout(compute, laid_out, shape, layout, data) -> None:
    x = laid_out(np.arange(np.prod(shape, dtype=int)).reshape(shape), layout)
    (y,) = compute(ops.Reshape((x.size,)), x)
    np.testing.assert_array_equal(y, x.reshape(-1))
    assert y.base is None or y.base is x or y.base is x.base


# -- indices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("widths", [((2, 1), (0, 3), (2, 2)), ((0, 0), (3, 0), (0, 2)), ((0, 0), (0, 0), (0, 0))])
def test_borders_are_numpys(compute, mode, widths) -> None:
    x = np.arange(60).reshape(3, 4, 5)
    for array in (x, x.astype("f2"), x > 30):
        np.testing.assert_array_equal(compute(ops.Pad(widths, mode), array)[0], np.pad(array, widths, mode))


def test_repeated_indices_are_summed_in_their_order(compute) -> None:
    g = np.array([[1e16], [1.0], [-1e16], [3.0]])
    indices = np.array([2, 2, 2, 0])
    assert compute(TakeDown(3), g, indices)[0].tolist() == [[3.0], [0.0], [0.0]]
    assert compute(TakeAlongAxisDown(3, 0), g, indices[:, None])[0].tolist() == [[3.0], [0.0], [0.0]]
    random = np.random.default_rng(0)
    g, indices = random.standard_normal((3000, 5)).astype("f"), random.integers(0, 7, 3000)
    first = compute(TakeDown(7), g, indices)[0]
    for _ in range(3):
        np.testing.assert_array_equal(compute(TakeDown(7), g, indices)[0], first)


@pytest.mark.parametrize(
    ("operation", "arrays", "bounds"),
    [
        (ops.Take(), [np.ones(3), np.array([[0, 1], [3, 0]])], r"-3 to 2, got 3 at \(1, 0\)"),
        (TakeDown(3), [np.ones(2), np.array([0, -4])], r"-3 to 2, got -4 at \(1,\)"),
        (ops.TakeAlongAxis(), [np.ones(3), np.array([5])], r"-3 to 2, got 5 at \(0,\)"),
        (ops.OneHot(3, F32), [np.array([0, -1])], r"0 to 2, got -1 at \(1,\)"),
    ],
    ids=str,
)
def test_an_index_out_of_range_is_named(compute, operation, arrays, bounds) -> None:
    with pytest.raises(ValueError, match=rf"{operation.kind}: indices must be from {bounds}"):
        compute(operation, *arrays)


# -- random numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_moments(compute, dtype) -> None:
    size = 300_000
    spec = SPEC((3, size // 3), dtype)
    (normal,) = compute(ops.Gaussian(spec, 1, mean=2.0, std=3.0))
    (uniform,) = compute(ops.Uniform(spec, 1, low=-1.0, high=3.0))
    (coins,) = compute(ops.Bernoulli(spec, 1, 0.3))
    bound = 5 / np.sqrt(size)  # five standard deviations
    for drawn, mean, std in ((normal, 2, 3), (uniform, 1, 4 / np.sqrt(12)), (coins, 0.3, np.sqrt(0.21))):
        assert drawn.dtype == dtype
        values = drawn.astype("f8")
        assert abs(values.mean() - mean) < bound * std
        assert abs(values.std() - std) < bound * std * 2
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert set(np.unique(coins)) == {0, 1}
    fourth = np.mean(((normal.astype("f8") - 2) / 3) ** 4)
    assert abs(fourth - 3) < 5 * np.sqrt(96 / size) + 1e-2


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
def test_bernoulli_writes_the_dtype_that_it_says(compute, dtype) -> None:
    """Integers written into the memory of floats would be tiny numbers."""
    (y,) = compute(ops.Bernoulli(SPEC(1000, dtype), 3, 0.5))
    assert set(y.tolist()) == {0, 1}
    assert compute(ops.Bernoulli(SPEC(9, dtype), 3, 0.0))[0].tolist() == [0] * 9
    assert compute(ops.Bernoulli(SPEC(9, dtype), 3, 1.0))[0].tolist() == [1] * 9


@pytest.mark.parametrize("kind", [ops.Gaussian, ops.Uniform, ops.Bernoulli])
def test_random_numbers_need_a_type_and_a_seed(kind: type[ops.Operation]) -> None:
    name = kind.__name__
    for arguments in ((0.5,), (0.5, 3), ((2, 3), 3), ("float32", 1, 0.5)):
        with pytest.raises(af.DTypeError, match=rf"{name}: spec must be a TensorSpec, .*af.ops.{name.lower()}\("):
            kind(*arguments)
    with pytest.raises(af.GraphError, match="seed must be from 0"):
        af.Graph("g").apply(kind(SPEC(9)))


@pytest.mark.parametrize("kind", [ops.Gaussian, ops.Uniform, ops.Bernoulli])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_element_depends_on_seed_frame_and_position_alone(compute, kind, dtype) -> None:
    (longer,) = compute(kind(SPEC(70_001, dtype), 5), frame=3)
    (shorter,) = compute(kind(SPEC((11, 3), dtype), 5), frame=3)
    np.testing.assert_array_equal(longer[:33].reshape(11, 3), shorter)
    for seed, frame in ((6, 3), (5, 4)):
        assert np.mean(compute(kind(SPEC(70_001, dtype), seed), frame=frame)[0] == longer) < 0.6


def test_functional_forms_of_fills() -> None:
    graph = af.Graph("g")
    weight = (3, 3, 4, 8)
    made = {
        "gaussian": ops.gaussian(graph, weight, 1.0, 0.1),
        "uniform": ops.uniform(graph, weight, 0.0, 2.0),
        "bernoulli": ops.bernoulli(graph, weight, 0.2, dtype="int32"),
        "xavier": ops.xavier(graph, weight),
        "he": ops.he(graph, weight),
        "he_1": ops.he(graph, weight),
    }
    assert [y.name for y in made.values()] == [f"{name}/out" for name in made]
    result = graph.run_sync()
    assert {result[y].shape for y in made.values()} == {weight}
    assert np.abs(result[made["xavier"]]).max() <= np.sqrt(6 / (36 + 72))
    assert abs(result[made["he"]].std() - np.sqrt(2 / 36)) < 0.05
    assert (result[made["he"]] != result[made["he_1"]]).all()


def test_uniform_numbers_are_from_0_to_1_by_default() -> None:
    graph = af.Graph("g")
    value = graph.run_sync(fetch=(drawn := ops.uniform(graph, 10_000, seed=1)))[drawn]
    assert 0 <= value.min() < 0.01
    assert 0.99 < value.max() <= 1


# -- order ----------------------------------------------------------------------------------------------------------


async def test_dummy_waits_for_what_it_is_given(graph) -> None:
    x = graph.blob("x", (2,))
    seen = []

    def note(value: np.ndarray) -> np.ndarray:
        seen.append("first")
        return value

    def follow(value: np.ndarray) -> np.ndarray:
        seen.append("second")
        return value

    first = graph.function("first", note, [x.spec])(ops.scale(x, 3.0))
    second = graph.function("second", follow, [x.spec])(ops.dummy(x, first))
    async with graph:
        result = await graph.run({x: [1.0, 2.0]}, fetch=[second])
    assert seen == ["first", "second"]
    assert result[second].tolist() == [1.0, 2.0]


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda x, y, n: ops.add(x, y),
            af.ShapeError,
            r"Sum: terms\[1\] must broadcast with terms\[0\]'s shape \(2, 3",
        ),
        (
            lambda x, y, n: ops.multiply(x, n),
            af.DTypeError,
            r"Multiply: b must have a's dtype float32, got int64\[2, 3",
        ),
        (lambda x, y, n: ops.divide(n, n), af.DTypeError, "Divide: a must be floating"),
        (lambda x, y, n: ops.maximum(n, 0.5), af.DTypeError, "the number 0.5 does not fit to blob 'n'"),
        (lambda x, y, n: ops.add(x, np.ones(3)), af.GraphError, "Sum: terms must be a blob or an array, got ndarray"),
        (lambda x, y, n: ops.logical_not(x), af.DTypeError, "LogicalNot: x must be bool, got float32"),
        (lambda x, y, n: ops.where(x, x, x), af.DTypeError, "Where: condition must be bool"),
        (lambda x, y, n: ops.where(ops.equal(x, x), x, n), af.DTypeError, "Where: b must have a's dtype float32"),
        (lambda x, y, n: ops.weighted_sum([x, x], [1.0]), af.GraphError, "a weight for each of 2 terms, got 1"),
        (lambda x, y, n: ops.clip(x, 2.0, 1.0), af.GraphError, "clip: low must not be more than high"),
        (lambda x, y, n: ops.clip(n, 0.5), af.DTypeError, "the number 0.5 does not fit"),
        (lambda x, y, n: ops.negative(ops.cast(n, "uint8")), af.DTypeError, "Negative: x must be numeric and signed"),
        (lambda x, y, n: ops.sum(x, 2), af.ShapeError, "ReduceSum: axis must be from -2 to 1, got 2"),
        (lambda x, y, n: ops.sum(x, (0, -2)), af.ShapeError, "each axis can be given once"),
        (lambda x, y, n: ops.any(x), af.DTypeError, "ReduceAny: x must be bool"),
        (lambda x, y, n: ops.mean(n), af.DTypeError, "ReduceMean: x must be floating"),
        (
            lambda x, y, n: ops.max(ops.slice(x, np.s_[:0]), 0),
            af.ShapeError,
            "ReduceMax: x must have at least 1 element",
        ),
        (
            lambda x, y, n: ops.broadcast_to(x, (2, 4)),
            af.ShapeError,
            r"BroadcastTo: x must broadcast to shape \(2, 4\)",
        ),
        (lambda x, y, n: ops.squeeze(x, 1), af.ShapeError, "squeeze: x must have length 1 on axis 1"),
        (lambda x, y, n: ops.expand_dims(x, 3), af.ShapeError, "expand_dims: axis must be from -3 to 2"),
        (lambda x, y, n: ops.concat([x, y]), af.ShapeError, r"Concat: parts\[1\] must have parts\[0\]'s shape beside"),
        (lambda x, y, n: ops.concat([x, n]), af.DTypeError, r"Concat: parts\[1\] must have parts\[0\]'s dtype"),
        (lambda x, y, n: ops.stack([x, y]), af.ShapeError, r"stack: parts\[1\] must have parts\[0\]'s shape"),
        (lambda x, y, n: ops.split(x, 2, 1), af.ShapeError, "split: x must have a length on axis 1 that 2 divides"),
        (lambda x, y, n: ops.split(x, [1, 3], 1), af.ShapeError, r"Split: lengths \(1, 3\) must add up"),
        (lambda x, y, n: ops.slice(x, 2), af.ShapeError, "index 2 is out of bounds for an axis of length 2"),
        (lambda x, y, n: ops.slice(x, np.s_[0, 0, 0]), af.ShapeError, "3 indices for an array of shape"),
        (lambda x, y, n: ops.slice(x, "a"), af.GraphError, "slice: an index must be an integer, slice, array, "),
        (lambda x, y, n: ops.slice(x, y), af.DTypeError, "an index must be of integers or bools, got float32"),
        (lambda x, y, n: ops.slice(x, ops.equal(x, x)), af.DTypeError, "that only the values tell"),
        (lambda x, y, n: ops.flip(x, 2), af.ShapeError, "flip: axis must be from -2 to 1"),
        (lambda x, y, n: ops.pad(x, 2, "reflect"), af.ShapeError, r"Pad: widths \(2, 2\) on axis 0 must be at most 1"),
        (lambda x, y, n: ops.pad(x, 4, "wrap"), af.ShapeError, r"Pad: widths \(4, 4\) on axis 0 must be at most 2"),
        (
            lambda x, y, n: ops.pad(x, 1, "around"),
            af.GraphError,
            "mode must be 'constant', 'reflect', 'edge' or 'wrap'",
        ),
        (lambda x, y, n: ops.take(x, y), af.DTypeError, "Take: indices must be of integers"),
        (lambda x, y, n: ops.take(ops.slice(x, np.s_[:0]), n), af.ShapeError, "Take: x must have at least 1 element"),
        (
            lambda x, y, n: ops.take_along_axis(y, n),
            af.ShapeError,
            "take_along_axis: axis must be|TakeAlongAxis: indices must have|must broadcast",
        ),
        (
            lambda x, y, n: ops.embedding(n, ops.sum(x, 0)),
            af.ShapeError,
            r"embedding: weight must have shape \(rows, f",
        ),
        (lambda x, y, n: ops.one_hot(n, 0), af.GraphError, "OneHot: depth must be at least 1"),
        (lambda x, y, n: ops.gaussian(x.graph, 2, std=-1.0), af.GraphError, "Gaussian: std must not be negative"),
        (lambda x, y, n: ops.uniform(x.graph, 2, 1.0, 0.0), af.GraphError, "Uniform: high must be at least low"),
        (lambda x, y, n: ops.bernoulli(x.graph, 2, 1.5), af.GraphError, "Bernoulli: probability must be from 0 to 1"),
        (lambda x, y, n: ops.uniform(x.graph, 2, seed=-1), af.GraphError, "Uniform: seed must be from 0"),
        (lambda x, y, n: ops.gaussian(x.graph, 2, dtype="int8"), af.DTypeError, "Gaussian: spec must be floating"),
    ],
)
def test_errors_name_the_argument(graph, make, error, message) -> None:
    x, y, n = graph.blob("x", (2, 3)), graph.blob("y", (4, 5)), graph.blob("n", (2, 3), "int64")
    with pytest.raises(error, match=message):
        make(x, y, n)


def test_numbers_take_the_dtype_of_the_blob() -> None:
    graph = af.Graph("g")
    x, n = graph.blob("x", (2,), "float16"), graph.blob("n", (2,), "int8")
    tops = [ops.add(x, 1), ops.subtract(1.5, x), ops.greater(n, 2), ops.where(ops.less(x, 0.0), x, 0.0), ops.add(n, 3)]
    result = graph.run_sync({x: [-1.0, 2.0], n: [2, 3]}, fetch=tops)
    assert [result[y].dtype.name for y in tops] == ["float16", "float16", "bool", "float16", "int8"]
    assert [result[y].tolist() for y in tops] == [[0, 3], [2.5, -0.5], [False, True], [-1, 0], [5, 6]]
