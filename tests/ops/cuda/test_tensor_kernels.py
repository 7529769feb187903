"""The CUDA kernels of tensor operations, run on the host, against the CPU's: broadcasting, layouts, integers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow import ops
from actorflow.ops.indexing import INDEX, AddAt, Gather, TakeAlongAxisDown, TakeDown, numpy_key
from actorflow.spec import TensorSpec
from tests.ops.cuda import nvrtc
from tests.ops.test_basic import INTEGERS, ODD, nearest_integers
from tests.support import long_sums
from tests.support.effort import slow
from tests.support.kernels import compute_cpu
from tests.support.layouts import LAYOUTS

layouts = st.sampled_from(LAYOUTS)
seeds = st.integers(0, 2**32 - 1)
examples = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
slices = st.sampled_from([(None, None, None), (0, 3, None), (None, None, -1), (1, None, 2)])


@pytest.mark.parametrize("kind", [*slow(["float16", "float64"]), "float32"])
def test_integers_of_numbers_out_of_range(compute_cuda, kind) -> None:
    with np.errstate(over="ignore"):
        x = np.array(ODD).astype(kind)
    for dtype in INTEGERS:
        cast = ops.Cast(np.dtype(dtype))
        assert compute_cuda(cast, x)[0].tolist() == nearest_integers(x, dtype), dtype
        if kind == "float16":  # which no chain converts
            continue
        chain = ops.Fused((ops.Step(ops.Negative(), (0,)), ops.Step(cast, (1,))), (1,))
        assert compute_cuda(chain, -x)[0].tolist() == nearest_integers(x, dtype), dtype


#: Without norms, which have no kernel of their own there.
LONG = [case for case in long_sums.cases() if case.operation.kind != "VectorNorm"]


@pytest.mark.parametrize("case", LONG, ids=lambda case: f"{case.operation}-{case.output}")
def test_what_adds_up_many_elements_in_one_thread(compute_cuda, emulated, case) -> None:
    """As where columns alone fill the device: none is divided among blocks."""
    with mock.patch.object(emulated.modules["reductions"], "_ENOUGH_BLOCKS", 1):
        found = compute_cuda(case.operation, *case.arrays)[case.output]
    exact = case.exact(*(array.astype(np.float64) for array in case.arrays))
    assert long_sums.relative_errors(np.asarray(found), exact) < long_sums.BOUND


class Keyed(NamedTuple):
    key: tuple[Any, ...]
    shape: tuple[int, ...]
    indices: list[np.ndarray]


@st.composite
def keyed(draw: st.DrawFn) -> Keyed:
    """A key with arrays, in any order with the rest, for an array of a shape."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    picked = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5))
    random = np.random.default_rng(draw(seeds))
    key: list[Any] = []
    indices: list[np.ndarray] = []
    for n in shape[: draw(st.integers(1, len(shape)))]:
        kind = draw(st.sampled_from(["index", "index", "integer", "slice", "new"]))
        if kind == "index":
            own = draw(st.sampled_from([picked, picked[1:], (1,) * len(picked)]))
            dtype = draw(st.sampled_from(["int8", "int64", "uint8"]))
            indices.append(np.asarray(random.integers(0 if dtype[0] == "u" else -n, n, own)).astype(dtype))
        key += [None] if kind == "new" else []
        key.append({"index": INDEX, "integer": int(random.integers(-n, n))}.get(kind, draw(slices)))
    return Keyed(tuple(key), shape, indices)


def _check_keyed(compute_cuda, laid_out, case: Keyed, dtype: str, layout: str, seed: int) -> None:
    """Gathering, adding and all ways to put values, to the bit: what is put several times comes in its order."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(case.shape).astype(dtype)
    part = x[numpy_key(case.key, case.indices)]
    values = random.standard_normal(part.shape).astype(dtype)
    counts = [int(index.sum()) for index in case.indices if index.dtype == np.bool_]
    checked: list[tuple[ops.Operation, list[Any]]] = []
    if dtype != "bool" and (not counts or case.key[0] == INDEX):  # the gradient is told of a mask in front only
        checked.append((AddAt(case.key, case.shape), [values]))
    if case.indices:
        checked.append((Gather(case.key, *counts), [x]))
    modes = ("set", "add", "mul", "min", "max") if np.dtype(dtype).kind in "fi" else ("set",)
    checked += [(ops.Scatter(case.key, mode), [x, values]) for mode in modes]
    checked.append((ops.Scatter(case.key), [x, x.flat[0]]))
    for operation, arrays in checked:
        given = [*(laid_out(np.asarray(array), layout) for array in arrays), *case.indices]
        (found,) = compute_cuda(operation, *given)
        expected = compute_cpu(operation, *map(np.asarray, arrays), *case.indices)[0]
        np.testing.assert_array_equal(found, expected, strict=True)


@examples
@given(keyed(), st.sampled_from(["float16", "float32", "int32", "complex64", "bool"]), layouts, seeds)
def test_keys_with_indices(compute_cuda, laid_out, case: Keyed, dtype, layout, seed) -> None:
    _check_keyed(compute_cuda, laid_out, case, dtype, layout, seed)


@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64"])
def test_keys_with_masks(compute_cuda, laid_out, dtype) -> None:
    random = np.random.default_rng(0)
    shape, whole = (4, 3, 5), (None, None, None)
    for key, indices in (
        ((INDEX,), [random.random((4, 3)) < 0.5]),
        ((whole, INDEX), [random.random((3, 5)) < 0.5]),
        ((INDEX,), [np.zeros(shape, bool)]),
        ((INDEX, whole, INDEX), [np.arange(4) > 1, np.array([3, -5])]),
        ((INDEX, whole, INDEX), [np.arange(4) == 1, np.array([3, 3, 0])]),
        ((INDEX, INDEX), [np.array(True), np.array([1, 1, 2])]),
        ((2, INDEX), [np.array([False, True, True])]),
    ):
        _check_keyed(compute_cuda, laid_out, Keyed(key, shape, indices), dtype, "C", 1)


@pytest.mark.together("mode", ["set", "add", "mul", "min", "max"])
def test_what_is_not_a_number_is_put_as_on_the_cpu(compute_cuda, mode) -> None:
    x, values = np.array([0.0, np.nan, np.inf, 1.0]), np.array([np.nan, 1.0, -np.inf, np.nan, 5.0, -np.inf, 2.0])
    indices = np.array([0, 0, 2, 3, 3, 1, 1])
    operation = ops.Scatter((INDEX,), mode)
    with np.errstate(invalid="ignore"):
        (expected,) = compute_cpu(operation, x, values, indices)
    np.testing.assert_array_equal(compute_cuda(operation, x, values, indices)[0], expected)


def test_a_place_that_an_array_does_not_have_gives_nothing_and_takes_nothing(compute_cuda) -> None:
    rows, columns = np.array([0, 2, 1, 0]), np.array([0, 0, -4, 2], np.int8)
    x, key = np.arange(6.0).reshape(2, 3), (INDEX, INDEX)
    np.testing.assert_array_equal(compute_cuda(Gather(key), x, rows, columns)[0], [0, np.nan, np.nan, 2])
    np.testing.assert_array_equal(compute_cuda(AddAt(key, (2, 3)), np.ones(4), rows, columns)[0], [[1, 0, 1], [0] * 3])
    (found,) = compute_cuda(ops.Scatter(key), x, np.full(4, 9.0), rows, columns)
    np.testing.assert_array_equal(found, [[9, 1, 9], [3, 4, 5]])


@examples
@given(st.integers(0, 9000), st.sampled_from([1, 2, 63, 64, 65, 4096, 300_000, 1 << 40]), seeds)
def test_sorting_keeps_equal_keys_in_their_order(emulated, launches, count, bound, seed) -> None:
    launches.clear()
    keys = np.random.default_rng(seed).integers(0, bound, count, endpoint=True)
    found, places = emulated.modules["indexing"].sorted_places(keys.copy(), bound)
    expected = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(found, keys[expected])
    assert len(launches) == (count > 0 if count <= 4096 else 3 * math.ceil(bound.bit_length() / 6))


@pytest.mark.parametrize("picked", [*slow(["all the same", "all different"]), "some", *slow(["the last ones nowhere"])])
def test_what_is_picked_many_times_is_added_up_in_order(compute_cuda, picked) -> None:
    """To the bit, and in work that grows as the indices: with the square of their number this would take hours."""
    random = np.random.default_rng(0)
    count, length = 200_000, 250_000
    indices = {
        "all the same": np.full(count, 7),
        "all different": random.permutation(length)[:count],
        "some": random.integers(-length, 40 - length, count),
        "the last ones nowhere": np.where(np.arange(count) < 9, 3, length),
    }[picked]
    g = random.standard_normal(count).astype("f")
    expected = np.zeros(length, "f")
    np.add.at(expected, indices[indices < length], g[indices < length])
    for operation in (TakeDown(length), TakeAlongAxisDown(length), AddAt((INDEX,), (length,))):
        np.testing.assert_array_equal(compute_cuda(operation, g, indices)[0], expected)
    zeros = np.zeros_like(expected)
    np.testing.assert_array_equal(compute_cuda(ops.Scatter((INDEX,), "add"), zeros, g, indices)[0], expected)


def test_indices_out_of_range_pick_what_is_not_a_number(compute_cuda) -> None:
    indices = np.array([0, 3, -3, -4])
    np.testing.assert_array_equal(compute_cuda(ops.Take(), np.arange(3.0), indices)[0], [0, np.nan, 0, np.nan])
    np.testing.assert_array_equal(compute_cuda(ops.Take(), np.arange(3) + 5, indices)[0], [5, 0, 5, 0])
    for down in (TakeDown(3), TakeAlongAxisDown(3)):
        np.testing.assert_array_equal(compute_cuda(down, np.ones(4), indices)[0], [2, 0, 0])
    (found,) = compute_cuda(ops.OneHot(3, np.dtype("float32")), np.array([1, 3, -1]))
    np.testing.assert_array_equal(found, [[0, 1, 0], [0, 0, 0], [0, 0, 0]])


@pytest.mark.together("dtype", ["float16", "float32", "float64"], at_once=15)
@pytest.mark.together("size", [0, 1, 7, 8, 1001])
def test_random_numbers_are_those_of_the_cpu(compute_cuda, size, dtype) -> None:
    spec = TensorSpec.of((size,), dtype)
    tolerance = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    for operation in (ops.Gaussian(spec, 2**70 + 5), ops.Uniform(spec, 3, -1.0, 2.0), ops.Bernoulli(spec, 3, 0.4)):
        (found,), (wanted,) = compute_cuda(operation, frame=9), compute_cpu(operation, frame=9)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.nvrtc
@pytest.mark.together("name", ["fold", "indexing", "fills"], at_once=15)
@pytest.mark.together("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_a_source_compiles_for_integers(emulated, name, dtype) -> None:
    library, launch = nvrtc.load(), emulated.modules["launch"]
    c_type = launch.C_TYPES[dtype]
    macros = {"SCALAR": c_type, "RESULT": c_type, "LABEL": c_type, "INDEX": "int"}
    options = (*launch.OPTIONS, *(f"-D{macro}={value}" for macro, value in macros.items()))
    assert nvrtc.compile_to_cubin(library, launch.source(name), "sm_90", options)
