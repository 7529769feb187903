"""Products of stacks of matrices; PyTorch checks the values in tests/oracle."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.testing import check_gradient


def _drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_matmul_is_that_of_numpy(compute, laid_out, layout, dtype) -> None:
    a, b = (laid_out(x.astype(dtype), layout) for x in _drawn((3, 1, 4, 5), (2, 5, 6)))
    (y,) = compute(ops.Matmul(), a, b)
    np.testing.assert_allclose(y, np.matmul(a.astype("f8"), b.astype("f8")), rtol=2e-3, atol=1e-2)


def test_bfloat16(compute) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b = (x.astype(ml_dtypes.bfloat16) for x in _drawn((2, 3, 4), (4, 5)))
    (y,) = compute(ops.Matmul(), a, b)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(y.astype("f8"), a.astype("f8") @ b.astype("f8"), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("operation", "a", "b"),
    [
        (ops.Matmul(), (2, 3), (3, 2)),
        (ops.Matmul(True, True), (2, 3, 2), (2, 2, 3)),
        (ops.Matmul(), (2, 1, 2, 3), (2, 3, 2)),
        (ops.Matmul(transpose_b=True), (2, 2, 3), (4, 3)),
        (ops.Matmul(True, False, ()), (2, 3, 2), (2, 3, 2)),
        (ops.Matmul(False, False, (1, 2)), (3, 1, 2, 2), (2, 2, 2)),
        (ops.Matmul(False, False, (2, 2)), (2, 2, 2), (2, 2)),
    ],
    ids=str,
)
def test_gradients_and_their_gradients(operation, a, b) -> None:
    check_gradient(operation, *_drawn(a, b))


def test_products_without_terms_are_0(compute) -> None:
    np.testing.assert_array_equal(compute(ops.Matmul(), np.ones((2, 3, 0)), np.ones((0, 4)))[0], np.zeros((2, 3, 4)))
    none = np.ones((0, 3, 2))
    np.testing.assert_array_equal(compute(ops.Matmul(True, False, ()), none, none)[0], np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((3,), (3, 2), r"Matmul: a must have shape \(..., rows, columns\), got float32\[3\]"),
        ((2, 3), (2, 3), r"Matmul: b must have length 3 on its second last axis, got float32\[2, 3\]; a is"),
        ((2, 2, 3), (4, 3, 2), r"Matmul: b must broadcast with a's batch \(2,\), got float32\[4, 3, 2\]"),
    ],
)
def test_shapes_that_do_not_fit_are_errors(a, b, message) -> None:
    graph = af.Graph("g")
    with pytest.raises(af.ShapeError, match=message):
        ops.matmul(graph.blob("a", a), graph.blob("b", b))


def test_a_sum_to_a_batch_that_does_not_fit_is_an_error(compute) -> None:
    with pytest.raises(af.ShapeError, match=r"products of batch \(2,\) cannot be summed to \(3,\)"):
        compute(ops.Matmul(batch=(3,)), np.ones((2, 3, 3)), np.ones((3, 3)))


def test_dtypes_that_differ_are_errors() -> None:
    graph = af.Graph("g")
    with pytest.raises(af.DTypeError, match="Matmul: b must have a's dtype float32"):
        ops.matmul(graph.blob("a", (2, 2)), graph.blob("b", (2, 2), "float64"))
