"""Linear algebra and Fourier transforms, of blobs and arrays, against NumPy and against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow import ops
from tests.array.derivatives import CASES, complexes, numbers, regular

A, C = regular(2, 3, 3), regular(3, 3) + 1j * numbers(3, 3, seed=7)
H = A @ A.mT + np.eye(3)
HERMITIAN = C @ C.conj().T + np.eye(3)
WIDE, VECTOR, WHOLE = numbers(2, 3, 5), numbers(3, seed=1), np.arange(12).reshape(3, 4) - 5

#: Functions with their arguments; NumPy has them by the same names.
LINALG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, (x,), {}) for name in ("det", "inv", "slogdet", "svdvals", "qr", "pinv", "matrix_rank") for x in (A, C)),
    *(("cholesky", (x,), {"upper": upper}) for x in (H, HERMITIAN) for upper in (False, True)),
    *((name, (x,), {}) for name in ("eigh", "eigvalsh") for x in (H, HERMITIAN)),
    *((name, (x,), {}) for name in ("eig", "eigvals") for x in (A, C)),
    *(("qr", (x,), {"mode": mode}) for x in (WIDE, WIDE.mT.copy()) for mode in ("reduced", "complete")),
    *(("svd", (x,), {"full_matrices": full}) for x in (WIDE, C[:, :2].copy()) for full in (False, True)),
    *(("pinv", (WIDE,), {"rtol": rtol}) for rtol in (None, 0.5, np.asarray([0.5, 1e-3]))),
    *(("matrix_rank", (WIDE,), {"rtol": rtol}) for rtol in (0.5, np.asarray([0.5, 1e-3]))),
    *(("matrix_power", (A, n), {}) for n in (-2, 0, 1, 5)),
    ("matrix_power", (WHOLE[:, :3].copy(), 3), {}),
    *(("solve", (A, b), {}) for b in (VECTOR, WIDE, numbers(4, 1, 3, 2))),
    *(("diagonal", (x,), {"offset": k}) for x in (WIDE, WHOLE) for k in (-5, -2, 0, 1, 4, 5)),
    *(("trace", (x,), {"offset": k}) for x in (WIDE, WHOLE.astype(np.int8), C) for k in (-2, 0, 1)),
    ("trace", (WHOLE.astype(np.int16),), {"dtype": np.int16}),
    *(("outer", (x, x[:2]), {}) for x in (VECTOR, WHOLE[0], C[0])),
    *(("cross", (x, y), {}) for x, y in ((VECTOR, A), (WHOLE[:2, :3].copy(), WHOLE[1, :3].copy()))),
    ("cross", (A, A[:, :, :1].copy()), {"axis": 1}),
    *(("matmul", pair, {}) for pair in ((WHOLE.T.copy(), WHOLE[:, 0].copy()), (C, C[0]), (VECTOR, VECTOR))),
    ("matrix_transpose", (WIDE,), {}),
    *(("vecdot", (x, x[0]), {}) for x in (A, WHOLE.astype(np.int8), C)),
    *(("vecdot", (WIDE, WIDE[:1]), {"axis": axis}) for axis in (-2, 1, 2)),
    *(("tensordot", (A, A), {"axes": axes}) for axes in (0, 3, ((0, -1), (0, 1)), ([], []))),
    ("tensordot", (A, A[0]), {}),
    ("tensordot", (WHOLE, WHOLE), {"axes": ((1,), (1,))}),
    *(
        ("matrix_norm", (x,), {"ord": order, "keepdims": keepdims})
        for x in (WIDE, C)
        for order, keepdims in (("fro", True), ("nuc", False), (1, True), (-1, False), (2, True), (-2, False))
    ),
    *(("matrix_norm", (WIDE,), {"ord": order}) for order in (np.inf, -np.inf)),
    *(("vector_norm", (x,), {"ord": order, "axis": (0, -1)}) for x in (WIDE, C) for order in (0, 1, 2, 2.5, -1)),
    *(("vector_norm", (C,), {"ord": order, "axis": 0, "keepdims": True}) for order in (np.inf, -np.inf)),
    ("vector_norm", (WIDE.astype(np.float32),), {}),
]

_ALONG = [{}, {"n": 4, "axis": 0, "norm": "ortho"}, {"n": 7, "axis": 1, "norm": "forward"}]
FFT: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, (C,), keywords) for name in ("fft", "ifft", "irfft", "hfft") for keywords in _ALONG),
    *((name, (WIDE.astype("f"),), keywords) for name in ("fft", "rfft", "ihfft") for keywords in _ALONG),
    *(
        (name, (x,), keywords)
        for name, x in (("fftn", WIDE), ("ifftn", WIDE * 1j), ("rfftn", WIDE), ("irfftn", WIDE * 1j))
        for keywords in (
            {},
            {"axes": (2, 0)},
            {"s": (4, 4), "axes": (0, 1), "norm": "ortho"},
            {"s": (3,), "axes": (-1,)},
        )
    ),
    *((name, (WIDE,), {"axes": axes}) for name in ("fftshift", "ifftshift") for axes in (None, 1, (0, 2))),
]


def parts(result: Any) -> list[Any]:
    return [*result] if isinstance(result, tuple | list) else [result]


async def on_blobs(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """What a graph of a function gives; its results are of the types that were inferred."""
    graph = af.Graph("g")
    blobs = [graph.blob(f"x{i}", x.shape, x.dtype) for i, x in enumerate(arrays)]
    results = parts(function(*blobs))
    async with graph:
        found = await graph.run(dict(zip(blobs, arrays, strict=True)), fetch=results)
    values = [found[blob] for blob in results]
    assert [(x.shape, x.dtype) for x in values] == [(blob.shape, blob.dtype) for blob in results]
    return values


def agree(found: Any, expected: Any) -> None:
    for mine, its in zip(found, expected, strict=True):
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
        tolerance = 1e-5 if its.dtype.itemsize < 8 or its.dtype == np.complex64 else 1e-11
        np.testing.assert_allclose(mine, its, rtol=tolerance, atol=tolerance)


CALLS = [*((ops.linalg, np.linalg, *each) for each in LINALG), *((ops.fft, np.fft, *each) for each in FFT)]


@pytest.mark.parametrize(("ours", "its", "name", "arguments", "keywords"), CALLS, ids=[call[2] for call in CALLS])
async def test_graphs_and_arrays_give_what_numpy_gives(ours, its, name, arguments, keywords) -> None:
    expected = [np.asarray(each) for each in parts(getattr(its, name)(*arguments, **keywords))]
    if name in ("eig", "eigvals"):
        expected = [each.astype(complex) for each in expected]
    given = [x for x in (*arguments, *keywords.values()) if isinstance(x, np.ndarray)]

    def function(*operands: Any) -> Any:
        rest = iter(operands)
        found = [next(rest) if isinstance(x, np.ndarray) else x for x in (*arguments, *keywords.values())]
        named = dict(zip(keywords, found[len(arguments) :], strict=True))
        return getattr(ours, name)(*found[: len(arguments)], **named)

    agree(await on_blobs(function, *given), expected)
    agree([x.to_numpy() for x in parts(function(*map(xp.asarray, given)))], expected)


#: Functions of arrays that are functions of blobs, too.
_OF_BOTH = (
    *("linalg.", "matmul", "tensordot", "vecdot", "diagonal", "trace", "cross", "svd_full", "pinv", "matrix_norm"),
    *("vector_norm", "fft", "ifft", "rfft", "irfft", "hfft", "ihfft"),
)
DERIVED = [name for name in CASES if name.startswith(_OF_BOTH)]


def loss_of(results: Any) -> Any:
    """A number that depends on each part of each result in another way; of blobs as of arrays."""
    terms = []
    for i, y in enumerate(parts(results)):
        for part in (ops.real(y), ops.imag(y) * 0.5) if y.dtype.kind == "c" else (y,):
            terms.append(ops.sum(part * np.random.default_rng(i).uniform(0.5, 1.5, y.shape)))
    return sum(terms[1:], terms[0])


@pytest.mark.parametrize("name", DERIVED)
async def test_gradients_of_graphs_are_those_of_arrays(name: str) -> None:
    function, _, arrays = CASES[name]
    slopes = af.grad(lambda *xs: loss_of(function(*xs)), argnums=range(len(arrays)))(*map(xp.asarray, arrays))
    expected = [each.to_numpy() for each in slopes]
    graph, feeds, operands = af.Graph("g"), {}, []
    for i, x in enumerate(arrays):
        real_and_imaginary = [x.real, x.imag] if x.dtype.kind == "c" else [x]
        blobs = [graph.blob(f"x{i}.{part}", x.shape, values.dtype) for part, values in enumerate(real_and_imaginary)]
        feeds |= dict(zip(blobs, real_and_imaginary, strict=True))
        operands.append(blobs[0] if len(blobs) == 1 else ops.cast(blobs[0], x.dtype) + ops.cast(blobs[1], x.dtype) * 1j)
    grads = af.gradient(loss_of(function(*operands)), [*feeds])
    async with graph:
        found = await graph.run(feeds, fetch=grads)
    wanted = [part for g in expected for part in ((g.real, g.imag) if g.dtype.kind == "c" else (g,))]
    for grad, its in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(found[grad], its, rtol=1e-9, atol=1e-9)


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


@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True)])
async def test_products_of_transposed_matrices(turned) -> None:
    a, b = complexes(2, 3, 4), WHOLE.astype(complex)
    left, right = (x.mT.copy() if turn else x for x, turn in zip((a, b.T), turned, strict=True))
    form = lambda a, b: ops.matmul(a, b, transpose_a=turned[0], transpose_b=turned[1])  # noqa: E731
    agree(await on_blobs(form, left, right), [a @ b.T])
    agree([form(xp.asarray(left), xp.asarray(right)).to_numpy()], [a @ b.T])


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


@pytest.mark.parametrize(
    ("form", "shape", "dtype", "message"),
    [
        (ops.linalg.inv, (2, 3), "f8", r"inv: x must be square matrices of shape \(..., n, n\), got float64\[2, 3\]"),
        (ops.linalg.svd, (3,), "f8", r"svd: x must be matrices of shape \(..., rows, columns\)"),
        (ops.linalg.det, (2, 2), "f2", "det: x must be of float32, float64 or complex numbers, got float16"),
        (ops.linalg.qr, (2, 2), "i8", "qr: x must be of float32"),
        (lambda x: ops.linalg.qr(x, mode="raw"), (2, 2), "f8", "mode must be 'reduced' or 'complete', got 'raw'"),
        (lambda x: ops.linalg.solve(x, x[0, :1]), (2, 2), "f8", r"solve: x2 must have shape \(n,\) or"),
        (lambda x: ops.linalg.outer(x, x), (2, 2), "f8", r"outer: x1 must have shape \(n\)"),
        (lambda x: ops.linalg.cross(x, x), (2, 2), "f8", "cross: expected 3 elements along axis -1"),
        (lambda x: ops.linalg.vecdot(x, x[0], axis=0), (2, 2), "f8", "vecdot: axis 0 is out of bounds"),
        (lambda x: ops.linalg.tensordot(x, x, axes=3), (2, 2), "f8", "do not have 3 axes"),
        (lambda x: ops.linalg.tensordot(x, x, axes=((0,), (1,))), (2, 3), "f8", "differ along axes"),
        (lambda x: ops.linalg.matrix_norm(x, ord="F"), (2, 2), "f8", "ord must be 'fro', 'nuc'"),
        (lambda x: ops.linalg.pinv(x, rtol=x), (2, 2), "f8", "pinv: rtol must be a number, or one for each matrix"),
        (ops.fft.rfft, (3,), "c16", "rfft: x must be real and floating, got complex128"),
        (lambda x: ops.fft.fft(x, n=0), (3,), "f8", "fft: there must be at least one point"),
        (lambda x: ops.fft.fftn(x, s=(2,), axes=(0, 1)), (3, 3), "f8", "fftn: as many lengths as axes"),
        (lambda x: ops.linalg.einsum("ij->k", x), (2, 2), "f8", "the result of 'ij->k' must name axes"),
        (lambda x: ops.linalg.einsum("ij,jk", x), (2, 2), "f8", "is of 2 operands, got 1"),
        (lambda x: ops.linalg.einsum("ijk", x), (2, 2), "f8", "'ijk' does not name the axes of operand 0"),
        (lambda x: ops.linalg.einsum("ij,kj->ik", x, x[:, :2]), (2, 3), "f8", "axis 'j' of .* has lengths 3 and 2"),
    ],
)
def test_what_does_not_fit_is_an_error_of_both(form, shape, dtype, message) -> None:
    graph = af.Graph("g")
    with pytest.raises((af.ShapeError, af.DTypeError), match=message):
        form(graph.blob("x", shape, dtype))
    with pytest.raises((af.ShapeError, af.DTypeError), match=message):
        form(xp.asarray(np.ones(shape, dtype))) if dtype != "f2" else form(graph.blob("y", shape, dtype))


EINSUMS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij->ji", (2, 3)),
    ("ba", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("iji->j", (2, 3, 2)),
    ("iii", (3, 3, 3)),
    ("i,i", (4,), (4,)),
    ("i,j->ji", (4,), (3,)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("bij,bjk->bik", (4, 2, 3), (4, 3, 2)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("...ij,...jk->...ik", (4, 2, 3), (3, 2)),
    ("...ij,...jk", (4, 1, 2, 3), (5, 3, 2)),
    ("i...->...", (3, 2, 4)),
    ("...", (3, 2)),
    ("i...j,jk->...k", (3, 2, 4), (4, 2)),
    ("...,...", (2, 1), (3,)),
    ("ij,j,jk,kl->il", (2, 3), (3,), (3, 4), (4, 2)),
    ("i,ij,ij,j", (2,), (2, 3), (2, 3), (3,)),
    ("ab,cd,ef->fdb", (2, 2), (2, 3), (3, 2)),
    ("ij,ik->jk", (2, 3), (1, 4)),
    ("ijj,jk->ik", (2, 3, 3), (3, 2)),
    ("ij->", (2, 3)),
    (",->", (), ()),
    ("i, ij -> j", (0,), (0, 3)),
]


@pytest.mark.parametrize("dtype", ["float64", "int32", "complex64"])
@pytest.mark.parametrize("equation", EINSUMS, ids=[case[0] for case in EINSUMS])
async def test_einsum_is_that_of_numpy(equation, dtype) -> None:
    subscripts, *shapes = equation
    arrays = [
        np.asarray(10 * (complexes(*s, seed=i) if "c" in dtype else numbers(*s, seed=i))) for i, s in enumerate(shapes)
    ]
    arrays = [x.astype(dtype) for x in arrays]
    expected = [np.asarray(np.einsum(subscripts, *arrays))]
    agree(await on_blobs(lambda *xs: ops.einsum(subscripts, *xs), *arrays), expected)
    agree([ops.einsum(subscripts, *map(xp.asarray, arrays)).to_numpy()], expected)


@pytest.mark.parametrize("equation", [case for case in EINSUMS if len(case) < 4], ids=lambda case: case[0])
async def test_gradients_of_einsum(equation) -> None:
    """The gradient by a factor is linear in the others: it is the einsum of what the others and the loss give."""
    subscripts, *shapes = equation
    arrays = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    loss = lambda *xs: loss_of(ops.einsum(subscripts, *xs))  # noqa: E731
    slopes = af.grad(loss, argnums=range(len(arrays)))(*map(xp.asarray, arrays))
    graph = af.Graph("g")
    blobs = [graph.blob(f"x{i}", x.shape, x.dtype) for i, x in enumerate(arrays)]
    grads = af.gradient(loss(*blobs), blobs)
    async with graph:
        found = await graph.run(dict(zip(blobs, arrays, strict=True)), fetch=grads)
    for i, (slope, grad) in enumerate(zip(slopes, grads, strict=True)):
        np.testing.assert_allclose(found[grad], slope.to_numpy(), rtol=1e-12)
        step = numbers(*arrays[i].shape, seed=9)
        ends = [
            float(loss(*map(xp.asarray, [*arrays[:i], arrays[i] + sign * step, *arrays[i + 1 :]]))) for sign in (1, -1)
        ]
        np.testing.assert_allclose(np.sum(found[grad] * step), (ends[0] - ends[1]) / 2, rtol=1e-9, atol=1e-12)


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
