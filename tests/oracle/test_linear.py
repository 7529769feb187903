"""Inner products, biases and products of matrices against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow import ops
from tests.oracle.comparison import check, drawn, examples

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")
F = torch.nn.functional

pytestmark = pytest.mark.oracle

dtypes = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32 - 1)
many = examples(40)
sides = st.integers(0, 4)


@many
@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3),
    sides,
    sides,
    sides,
    st.booleans(),
    st.booleans(),
    dtypes,
    seeds,
)
def test_matmul(batches, rows, inner, columns, transpose_a, transpose_b, dtype, seed) -> None:
    a, b = batches.input_shapes
    a = (*a, *((inner, rows) if transpose_a else (rows, inner)))
    b = (*b, *((columns, inner) if transpose_b else (inner, columns)))
    check(
        lambda a, b: ops.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b),
        lambda a, b: torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b),
        drawn(seed, a, b, dtype=dtype),
    )


@many
@given(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4), sides, sides, dtypes, seeds)
def test_inner_and_bias(batch, features, outputs, dtype, seed) -> None:
    check(
        lambda x, weight, bias: ops.bias(ops.inner(x, weight), bias),
        F.linear,
        drawn(seed, (*batch, features), (outputs, features), (outputs,), dtype=dtype),
    )


VECTORS = [((4,), (4,)), ((4,), (3, 4, 2)), ((2, 3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4,))]


@pytest.mark.parametrize("shapes", VECTORS, ids=str)
def test_products_of_vectors(shapes) -> None:
    check(ops.matmul, torch.matmul, drawn(0, *shapes, dtype="float64"))


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("...ij,...jk->...ik", (4, 1, 2, 3), (5, 3, 2)),
    ("iij,j->i", (3, 3, 2), (2,)),
    ("ij,j,jk->k", (2, 3), (3,), (3, 4)),
    ("i,j", (2,), (3,)),
    ("ij->", (2, 3)),
    ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)),
]


@pytest.mark.parametrize("equation", EINSUMS, ids=lambda case: case[0])
def test_einsum(equation) -> None:
    subscripts, *shapes = equation
    arrays = drawn(0, *shapes, dtype="float64")
    check(lambda *xs: ops.einsum(subscripts, *xs), lambda *xs: torch.einsum(subscripts, *xs), arrays)


def test_one_sample_of_bias() -> None:
    check(ops.bias, lambda x, b: x + b, [np.ones(3), np.arange(3.0)])
