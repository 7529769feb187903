"""Arithmetic, comparisons, reductions, shapes and indices: what the comparison with PyTorch does not show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ops.indexing import TakeAlongAxisDown, TakeDown

ml_dtypes = pytest.importorskip("ml_dtypes")

SPEC = af.TensorSpec.of
F32 = np.dtype("float32")


@pytest.fixture
def graph() -> af.Graph:
    return af.Graph("g")


# -- dtypes ---------------------------------------------------------------------------------------------------------


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


def test_a_mean_of_nothing_is_no_number_and_no_warning(compute) -> None:
    np.testing.assert_array_equal(compute(ops.ReduceMean((0,)), np.zeros((0, 2)))[0], [np.nan, np.nan])


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


# -- indices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "arrays", "bounds"),
    [
        (ops.Take(), [np.ones(3), np.array([[0, 1], [3, 0]])], r"-3 to 2, got 3 at \(1, 0\)"),
        (ops.Take(1), [np.ones((0, 3)), np.array([3])], r"-3 to 2, got 3 at \(0,\)"),
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


@pytest.mark.together("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
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


@pytest.mark.together("kind", [ops.Gaussian, ops.Uniform, ops.Bernoulli])
@pytest.mark.together("dtype", ["float32", "float64"])
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


def test_numbers_take_the_dtype_of_the_blob() -> None:
    graph = af.Graph("g")
    x, n = graph.blob("x", (2,), "float16"), graph.blob("n", (2,), "int8")
    tops = [ops.add(x, 1), ops.subtract(1.5, x), ops.greater(n, 2), ops.where(ops.less(x, 0.0), x, 0.0), ops.add(n, 3)]
    result = graph.run_sync({x: [-1.0, 2.0], n: [2, 3]}, fetch=tops)
    assert [result[y].dtype.name for y in tops] == ["float16", "float16", "bool", "float16", "int8"]
    assert [result[y].tolist() for y in tops] == [[0, 3], [2.5, -0.5], [False, True], [-1, 0], [5, 6]]


@given(
    length=st.sampled_from([1, 2, 7, 300]),
    inner=st.integers(2, 5),
    axis=st.integers(0, 2),
    count=st.sampled_from([1, 8, 60, 1000]),
    seed=st.integers(0, 2**31),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_that_were_taken_are_added_up_one_after_the_other(compute, length, inner, axis, count, seed) -> None:
    """However often one was, and whether few or many were."""
    random = np.random.default_rng(seed)
    g = random.standard_normal((*(2, 3)[:axis], count, inner), np.float32)
    g[random.random(g.shape) < 0.02] = np.nan
    indices = np.minimum(random.integers(-length, length, count), random.integers(-length, length, count))
    expected = np.zeros((*(2, 3)[:axis], length, inner), np.float32)
    for i, place in enumerate(indices):
        expected[(slice(None),) * axis + (place,)] += g[(slice(None),) * axis + (i,)]
    np.testing.assert_array_equal(compute(TakeDown(length, axis), g, indices)[0], expected)
