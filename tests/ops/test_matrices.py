"""Linear algebra and Fourier transforms, of blobs and arrays, against NumPy and against each other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow import ops
from actorflow.ops.cpu import linalg
from tests.operations.table import dtype_of


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def test_traced_functions_become_these_operations() -> None:
    def function(x: Any, y: Any) -> Any:
        q, r = xp.linalg.qr(xp.linalg.inv(x))
        return xp.fft.rfft(xp.linalg.det(q @ r) * y), x @ y

    graph = af.to_graph(function, numbers(3, 3), numbers(3))
    kinds = {op.operation.kind for op in graph.ops}
    assert {"Qr", "Inv", "Det", "Rfft", "Matmul"} <= kinds
    assert "Recorded" not in kinds


async def test_several_results_have_names() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3, 3))
    assert ops.linalg.qr(x).R.spec == x.spec
    assert ops.linalg.svd(x)._fields == ("U", "S", "Vh")
    assert ops.linalg.eigh(x).eigenvalues.name == "eigh/out0"
    assert xp.linalg.slogdet(xp.eye(2)).logabsdet.to_numpy() == 0.0


def test_arrays_are_promoted_and_blobs_are_not() -> None:
    x, y = xp.ones((2, 2), dtype=xp.float32), xp.ones((2, 2), dtype=xp.int16)
    for product in (x @ y, xp.linalg.solve(x + xp.eye(2), x), y @ np.ones((2, 2), "f"), np.ones(2) @ x):
        assert product.dtype in (xp.float32, xp.float64)
    assert (x @ (1j * y)).dtype == xp.complex128
    assert (y @ y).dtype == xp.int16
    assert ops.bias(ops.inner(x, xp.ones((3, 2))), xp.ones(3)).dtype == xp.float64
    graph = af.Graph("g")
    with pytest.raises(af.DTypeError, match="Matmul: b must have a's dtype float32"):
        graph.blob("x", (2, 2)) @ graph.blob("y", (2, 2), "float64")


def test_the_products_of_a_transformer_are_one_op_each() -> None:
    graph = af.Graph("g")
    q, k = graph.blob("q", (2, 5, 3, 4)), graph.blob("k", (2, 6, 3, 4))
    assert ops.einsum("bqhd,bkhd->bhqk", q, k).shape == (2, 3, 5, 6)
    assert [op.operation.kind for op in graph.ops if op.operation.kind != "Reshape"] == [
        "Transpose",
        "Transpose",
        "Matmul",
    ]


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
async def test_transforms_of_half_precision_are_of_single(name: str) -> None:
    x = numbers(3, 4).astype("f2")
    graph = af.Graph("g")
    blob = graph.blob("x", x.shape, x.dtype)
    y = getattr(ops.fft, name)(blob)
    async with graph:
        found = (await graph.run({blob: x}, fetch=[y]))[y]
    np.testing.assert_array_equal(found, getattr(np.fft, name)(x.astype("f4")), strict=True)
    assert found.dtype == y.dtype


def test_sums_over_a_stack_count_for_what_they_are_multiplied_in(compute: Any) -> None:
    a, b = np.full((3, 30, 40), 599), np.full((3, 40, 20), 599)
    a[0, 0, 0] = 600
    (found,) = compute(ops.Matmul(batch=()), a, b)
    np.testing.assert_array_equal(found, np.matmul(a, b).sum(0))
    assert found[0, 0] > 1 << 25
    assert found[0, 0] % 2


#: Largest number of the operands, and the dtype that sums of 40 products fit in.
LARGEST = [("int8", 127, "float32"), ("uint8", 255, "float32"), ("int32", 350, "float32"), ("int32", 10**6, "float64")]
LARGEST += [
    ("int32", 2**31 - 1, None),
    ("int64", 5 * 10**6, "float64"),
    ("int64", 2**62, None),
    ("uint64", 2**63, None),
]


@pytest.mark.parametrize(("dtype", "largest", "wide"), LARGEST)
@pytest.mark.parametrize(
    ("operation", "left", "right"),
    [
        (ops.Matmul(), (30, 40), (40, 20)),
        (ops.Matmul(True, True), (3, 40, 30), (20, 40)),
        (ops.Matmul(batch=()), (3, 30, 40), (3, 40, 20)),
        (ops.Matmul(), (40,), (50, 40, 20)),
    ],
    ids=str,
)
def test_products_of_integers_are_those_of_blas_as_long_as_they_are_exact(
    compute: Any,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    largest: int,
    wide: str | None,
    operation: ops.Matmul,
    left: tuple[int, ...],
    right: tuple[int, ...],
) -> None:
    random, kind = np.random.default_rng(0), np.dtype(dtype)
    a, b = (random.integers(0 if kind.kind == "u" else -largest, largest, shape, kind) for shape in (left, right))
    seen: list[str] = []
    multiply = linalg._matmul_of_stacks

    def noted(operation: ops.Matmul, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        seen.append(inputs[0].dtype.name)
        multiply(operation, inputs, outputs)

    monkeypatch.setattr(linalg, "_matmul_of_stacks", noted)
    monkeypatch.setattr(linalg, "narrow", lambda: None)  # which takes what fits 16 bits
    (found,) = compute(operation, a, b)
    with np.errstate(over="ignore"):
        products = np.matmul(
            a.swapaxes(-1, -2) if operation.transpose_a else a, b.swapaxes(-1, -2) if operation.transpose_b else b
        )
        expected = products.sum(0, dtype=kind) if operation.batch == () else products  # both wrap
    np.testing.assert_array_equal(found, expected)
    assert [name for name in seen if name.startswith("f")] == ([wide] if wide else [])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_half_precision_are_rounded_once(dtype: str) -> None:
    """By weights as they are now, however often a product is computed with the same ones; too large is infinite."""
    kind = dtype_of(dtype)
    x, first = (each.astype(kind) for each in (numbers(3, 700), numbers(700, 5).T))
    with af.Graph("g") as graph:
        fed, weight = graph.blob("x", x.shape, kind), graph.variable("w", first.shape, kind, first)
        y = ops.inner(fed, weight)
        g = graph.blob("g", y.shape, kind)
        down, of_weight = af.gradient(ops.sum(y * g), [fed, weight])
        for factor in (1, 1, 1, -2, 3_000):
            weight.value = now = (first.astype("f8") * factor).astype(kind)
            feeds = {fed: x, g: np.ones(y.shape, kind)}
            result = graph.run_sync(feeds, fetch=[y, down, of_weight])
            wide, exact = now.astype("f8"), x.astype("f8") @ now.astype("f8").T
            ones = np.ones(exact.shape)
            for blob, expected in ((y, exact), (down, ones @ wide), (of_weight, ones.T @ x.astype("f8"))):
                with np.errstate(over="ignore"):
                    rounded = expected.astype(kind)
                bound = np.abs(expected) * float(ml_dtypes.finfo(kind).eps) * 0.51 + 1e-4 * max(1, abs(factor))
                found, finite = result[blob], np.isfinite(rounded.astype("f8"))
                np.testing.assert_array_equal(found[~finite], rounded[~finite])
                assert (np.abs(found.astype("f8") - expected)[finite] <= bound[finite]).all()
