"""Arithmetic, copies, constants, reshapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops


def test_sum_is_in_the_declared_order(compute) -> None:
    big, small = np.full(40_000, 1e16), np.full(40_000, 1.0)
    np.testing.assert_array_equal(compute(ops.Sum(), big, small, -big)[0], np.zeros(40_000))
    np.testing.assert_array_equal(compute(ops.Sum(), big, -big, small)[0], small)


def test_fill_makes_its_blob_in_the_given_graph() -> None:
    graph = af.Graph("g")
    y = ops.fill(graph, 3, (2,), "int64")
    assert graph.run_sync()[y].tolist() == [3, 3]


@pytest.mark.together(
    ("value", "dtype"),
    [
        (300, "int8"),
        (-1, "uint8"),
        (1.5, "int32"),
        (float("nan"), "int32"),
        (1, "bool"),
        (1j, "float32"),
        (np.complex64(1), "float32"),
        ("1", "float32"),
    ],
)
def test_a_constant_that_its_dtype_does_not_have_is_refused_at_once(value: Any, dtype: str) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.DTypeError, match=r"fill: the value .* does not fit to \w+\[2]"):
        ops.fill(graph, value, 2, dtype)
    assert not graph.ops


@pytest.mark.together(
    ("value", "dtype"),
    [(-128, "int8"), (2**64 - 1, "uint64"), (True, "float32"), (np.int8(3), "float32"), (1j, "complex64")],
)
def test_a_constant_at_the_limits_of_its_dtype(value: Any, dtype: str) -> None:
    graph = af.Graph("g")
    y = ops.fill(graph, value, 2, dtype)
    np.testing.assert_array_equal(graph.run_sync()[y], np.full(2, value, dtype))


@pytest.mark.together(
    ("shape", "new", "expected"),
    [
        ((2, 6), (3, 4), (3, 4)),
        ((2, 6), (-1,), (12,)),
        ((2, 6), (4, -1), (4, 3)),
        ((), (1, 1), (1, 1)),
        ((0, 3), (0,), (0,)),
    ],
)
def test_reshape_is_a_view(compute, shape, new, expected) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    (y,) = compute(ops.Reshape(new), x)
    assert y.shape == expected
    assert y.reshape(-1).tolist() == x.reshape(-1).tolist()
    assert not x.size or np.shares_memory(x, y)


def test_flatten_keeps_the_first_axis() -> None:
    graph = af.Graph("g")
    assert ops.flatten(graph.blob("x", (2, 3, 4))).shape == (2, 12)
    assert ops.flatten(graph.blob("empty", (0, 3, 4))).shape == (0, 12)


def test_functional_forms_name_their_ops() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,))
    assert [ops.copy(x).name, ops.scale(x, 2, name="double").name, ops.copy(x).name] == [
        "copy/out",
        "double/out",
        "copy_1/out",
    ]


ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.9, -0.9, 1.0, -1.0, 127.5, 128.0, -128.9, -129.0, 255.9, 256.0, 32768.0,
       2147483520.0, 2147483648.0, -2147483904.0, 4294967296.0, 9.2e18, 9.3e18, 1.9e19, -9.3e18, 3e38]  # fmt: skip
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def nearest_integers(x: np.ndarray, dtype: str) -> list[int]:
    """Cut off towards 0, NaN is 0, and what is out of range the nearest integer."""
    limits = np.iinfo(dtype)
    found = []
    for value in x.tolist():
        if value != value:
            found.append(0)
        elif abs(value) == np.inf:
            found.append(limits.max if value > 0 else limits.min)
        else:
            found.append(min(max(int(value), limits.min), limits.max))
    return found


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_integers_of_numbers_out_of_range(compute, kind: str, dtype: str) -> None:
    """One rule, alone and in an array of any length, in a chain, in a graph and in lazy arrays."""
    with np.errstate(over="ignore"):
        x = np.array(ODD).astype(kind)
    expected = nearest_integers(x, dtype)
    operation = ops.Cast(np.dtype(dtype))
    assert compute(operation, x)[0].tolist() == expected
    assert [compute(operation, each)[0].item() for each in x] == expected
    assert compute(operation, np.tile(x, 7)[1:])[0].tolist() == (expected * 7)[1:]
    assert compute(operation, np.tile(x, 2)[::2])[0].tolist() == (expected * 2)[::2]
    for place in ("cpu", "sim:0"):
        for fuse in (True, False):
            graph = af.Graph("cast", fuse=fuse)
            with graph.at(place):
                blob = graph.blob("x", (3, x.size), kind)
                y = ops.cast(blob * 1.0, dtype) + 0 if kind != "float16" else ops.cast(blob, dtype)
            found: Any = graph.run_sync({blob: np.tile(x, (3, 1))}, fetch=[y])[y]
            found = found if place == "cpu" else found.get()
            assert found.tolist() == [expected] * 3
    assert af.array.astype(af.array.asarray(x) * 1.0, getattr(af.array, dtype)).to_numpy().tolist() == expected
