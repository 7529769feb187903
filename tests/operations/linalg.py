"""Products, decompositions, equations, norms."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.linalg import (
    BiasDown,
    Cholesky,
    Cofactors,
    Det,
    Eig,
    Eigh,
    InnerDown,
    InnerWeight,
    Inv,
    Pinv,
    Qr,
    Slogdet,
    Solve,
    Svd,
    VectorNorm,
)
from tests.operations.elementwise import FEW_POINTS, triples
from tests.operations.table import (
    COMPLEX,
    FLOATING,
    HOST,
    SINGLE_AND_DOUBLE,
    Make,
    Row,
    Sample,
    backward,
    complexes,
    normal,
    refused,
)

_NUMBERS = (*FLOATING, *COMPLEX)
#: LAPACK refuses matrices without a result, or does not end: suites that replace inputs leave these as they are.
LAPACK: dict[str, Any] = {"dtypes": (*SINGLE_AND_DOUBLE, *COMPLEX), "devices": HOST, "particular": True, "closed": 2}
#: Decompositions lose digits with the condition of the matrix.
LAPACK["tolerance"] = {
    **dict.fromkeys(("float32", "complex64"), (2e-4, 2e-4)),
    **dict.fromkeys(("float64", "complex128"), (1e-11, 1e-11)),
}


def regular(*shape: int, is_complex: bool = False) -> Make:
    """Square matrices far from singular."""

    def make(random: np.random.Generator) -> list[np.ndarray]:
        (x,) = (complexes if is_complex else normal)(shape)(random)
        return [x + 3 * np.eye(shape[-1])]

    return make


def definite(*shape: int, is_complex: bool = False) -> Make:
    """Hermitian matrices whose eigenvalues are positive."""

    def make(random: np.random.Generator) -> list[np.ndarray]:
        (x,) = regular(*shape, is_complex=is_complex)(random)
        return [x @ x.mT.conj()]

    return make


def _matmul(a: Any, b: Any, transpose_a: bool, transpose_b: bool, batch: Any) -> Any:
    a, b = a.mT if transpose_a else a, b.mT if transpose_b else b
    y = a @ b
    if batch is None:
        return y
    for axis in range(y.ndim - 2 - len(batch)):
        del axis
        y = y.sum(0)
    if len(batch) > y.ndim - 2:
        y = np.broadcast_to(y, (*batch, *y.shape[-2:]))
    for axis, (n, m) in enumerate(zip(batch, y.shape, strict=False)):
        if n == 1 != m:
            y = y.sum(axis, keepdims=True)
    return np.broadcast_to(y, (*batch, *y.shape[-2:]))


def _matmul_of_torch(torch: Any, a: Any, b: Any, transpose_a: bool, transpose_b: bool, batch: Any) -> Any:
    y = torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)
    if batch is None:
        return y
    kept = y.shape[-2:]
    known = y.shape[:-2][max(0, y.ndim - 2 - len(batch)) :]
    small = [1 if n == 1 else m for n, m in zip(batch[len(batch) - len(known) :], known, strict=True)]
    return y.sum_to_size(*small, *kept).expand(*batch, *kept)


def qr_of_torch(torch: Any, x: Any, mode: str) -> Any:
    """PyTorch has no gradient of what completes the basis."""
    return torch.linalg.qr(x.detach() if mode == "complete" and x.shape[-2] > x.shape[-1] else x, mode)


def _norm(x: np.ndarray, axis: Any, keepdims: bool, order: float) -> np.ndarray:
    return (abs(x) ** order).sum(axis, keepdims=keepdims) ** (1 / order)


def _matrices(kind: Any, numpy: Any, torch: Any, *samples: Sample, **more: Any) -> Row:
    return Row(
        kind,
        samples or [Sample(kind(), regular(2, 3, 3)), Sample(kind(), regular(3, 3, is_complex=True))],
        numpy=numpy,
        torch=torch,
        **{"standard": f"linalg.{kind.function_name}", **LAPACK, **more},
    )


def _regular_and(*shapes: tuple[int, ...]) -> Make:
    return lambda random: [*regular(2, 3, 3)(random), *normal(*shapes)(random)]


def _with_tolerance(random: np.random.Generator) -> list[Any]:
    return [*regular(2, 3, 3)(random), np.asarray(1e-3)]


_BATCHES = [
    (ops.Matmul(), (2, 3), (3, 2)),
    (ops.Matmul(), (4, 5), (5, 6)),
    (ops.Matmul(), (2, 3, 4, 5), (5, 6)),
    (ops.Matmul(), (2, 1, 4, 5), (3, 5, 6)),
    (ops.Matmul(), (5,), (3, 5, 6)),
    (ops.Matmul(), (3, 4, 5), (5,)),
    (ops.Matmul(), (5,), (5,)),
    (ops.Matmul(), (2, 3, 0), (0, 4)),
    (ops.Matmul(True, True), (2, 3, 5, 4), (6, 5)),
    (ops.Matmul(True, True), (2, 3, 2), (2, 2, 3)),
    (ops.Matmul(transpose_b=True), (2, 2, 3), (4, 3)),
    (ops.Matmul(True, False, ()), (2, 3, 5, 4), (2, 3, 5, 6)),
    (ops.Matmul(True, False, ()), (2, 3, 2), (2, 3, 2)),
    (ops.Matmul(True, False, ()), (0, 3, 2), (0, 3, 2)),
    (ops.Matmul(False, True, (1, 3)), (2, 3, 4, 5), (3, 6, 5)),
    (ops.Matmul(False, False, (2, 3)), (3, 4, 5), (5, 6)),
    (ops.Matmul(False, False, (1, 2)), (3, 1, 2, 2), (2, 2, 2)),
    (ops.Matmul(False, False, (2, 2)), (2, 2, 2), (2, 2)),
]

#: Rows of the left operand, depth, columns: of two axes, of three, and with lengths of 0.
_PRODUCTS = [((2,), 5, 4), ((9,), 20, 6), ((37,), 9, 33), ((2, 3), 5, 4), ((0,), 5, 4), ((2,), 0, 4), ((2,), 5, 0)]


def _rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(int(np.prod(x.shape[:-1])), x.shape[-1])


ROWS = [
    Row(
        ops.Inner,
        [Sample(ops.Inner(), normal((*rows, depth), (columns, depth))) for rows, depth, columns in _PRODUCTS],
        numpy=lambda x, weight: x @ weight.T,
        torch="nn.functional.linear",
        dtypes=FLOATING,
        onnx="Gemm",
    ),
    backward(
        InnerDown,
        lambda g, weight: g @ weight,
        [Sample(InnerDown(), normal((*rows, columns), (columns, depth))) for rows, depth, columns in _PRODUCTS],
    ),
    backward(
        InnerWeight,
        lambda g, x: _rows(g).T @ _rows(x),
        [Sample(InnerWeight(), normal((*rows, columns), (*rows, depth))) for rows, depth, columns in _PRODUCTS],
    ),
    Row(
        ops.Bias,
        [Sample(ops.Bias(), normal(x, x[-1:])) for x in ((2, 6, 6, 3), (3, 4, 4, 6), (2, 2, 3))],
        numpy=lambda x, bias: x + bias,
        torch="add",
        dtypes=FLOATING,
        onnx="Add",
    ),
    backward(
        BiasDown,
        lambda g: g.sum(tuple(range(g.ndim - 1))),
        [
            Sample(BiasDown(), normal(shape))
            for shape in [(2, 6, 6, 3), (3, 4, 4, 6), (5000, 3), (70, 192), (5,), (0, 4)]
        ],
    ),
    Row(
        ops.Matmul,
        [Sample(operation, normal(a, b)) for operation, a, b in _BATCHES],
        numpy=_matmul,
        torch=_matmul_of_torch,
        dtypes=_NUMBERS,
        onnx="MatMul",
    ),
    _matrices(Det, np.linalg.det, "linalg.det", onnx="Det"),
    _matrices(Inv, np.linalg.inv, "linalg.inv"),
    _matrices(Slogdet, np.linalg.slogdet, "linalg.slogdet"),
    _matrices(
        Qr,
        np.linalg.qr,
        qr_of_torch,
        *(
            Sample(Qr(mode), make, smooth=mode == "reduced")
            for make in (regular(2, 3, 3), normal((2, 3, 5)), normal((2, 5, 3)), complexes((3, 3)))
            for mode in ("reduced", "complete")
        ),
    ),
    _matrices(
        Svd,
        lambda x, full_matrices, vectors: np.linalg.svd(x, full_matrices, compute_uv=vectors),
        lambda torch, x, full_matrices, vectors: (
            torch.linalg.svd(x, full_matrices) if vectors else torch.linalg.svdvals(x)
        ),
        *(
            Sample(Svd(full, vectors), make, smooth=not vectors)
            for full, vectors in ((True, True), (False, True), (False, False))
            for make in (regular(2, 3, 3), normal((2, 3, 5)), complexes((3, 2)))
        ),
        standard=lambda xp, x, full_matrices, vectors: (
            tuple(xp.linalg.svd(x, full_matrices=full_matrices)) if vectors else xp.linalg.svdvals(x)
        ),
    ),
    _matrices(
        Eigh,
        lambda x, vectors: np.linalg.eigh(x) if vectors else np.linalg.eigvalsh(x),
        lambda torch, x, vectors: torch.linalg.eigh(x) if vectors else torch.linalg.eigvalsh(x),
        *(
            Sample(Eigh(vectors), definite(2, 3, 3, is_complex=is_complex), smooth=False)
            for is_complex in (False, True)
            for vectors in (True, False)
        ),
        without={"differences": "its gradient is that of Hermitian matrices: a function of tests/array makes them"},
        standard=lambda xp, x, vectors: tuple(xp.linalg.eigh(x)) if vectors else xp.linalg.eigvalsh(x),
    ),
    _matrices(
        Eig,
        lambda x, vectors: np.linalg.eig(x) if vectors else np.linalg.eigvals(x),
        lambda torch, x, vectors: torch.linalg.eig(x) if vectors else torch.linalg.eigvals(x),
        *(
            Sample(Eig(vectors), regular(2, 3, 3, is_complex=is_complex), smooth=False)
            for is_complex in (False, True)
            for vectors in (True, False)
        ),
        without={"differences": "its vectors turn: a function of tests/array has what does not depend on that"},
        standard=lambda xp, x, vectors: tuple(xp.linalg.eig(x)) if vectors else xp.linalg.eigvals(x),
    ),
    _matrices(
        Cholesky,
        lambda x, upper: np.linalg.cholesky(x, upper=upper),
        lambda torch, x, upper: torch.linalg.cholesky(x.detach(), upper=upper),  # gradients: of Hermitian matrices
        *(
            Sample(Cholesky(upper), definite(2, 3, 3, is_complex=is_complex), smooth=False)
            for is_complex in (False, True)
            for upper in (False, True)
        ),
        without={"differences": "its gradient is that of Hermitian matrices: a function of tests/array makes them"},
    ),
    _matrices(
        Cofactors,
        lambda x: np.conj(np.linalg.det(x)[..., None, None] * np.linalg.inv(x).mT),
        None,
        standard=None,
        without={"torch": "only gradients are made of it"},
    ),
    _matrices(
        Pinv,
        lambda x, rtol: np.linalg.pinv(x, rtol=rtol),
        lambda torch, x, rtol: torch.linalg.pinv(x, rtol=rtol),
        Sample(Pinv(), _with_tolerance, wrt=(0,)),
        Sample(
            Pinv(), lambda random: [random.standard_normal((2, 3, 5)), np.array([0.5, 1e-3])], smooth=False, wrt=(0,)
        ),
        standard=lambda xp, x, rtol: xp.linalg.pinv(x, rtol=rtol),
    ),
    _matrices(
        Solve,
        np.linalg.solve,
        "linalg.solve",
        *(Sample(Solve(), _regular_and(b)) for b in ((3,), (3, 5), (4, 1, 3, 2))),
    ),
    Row(
        VectorNorm,
        [
            Sample(VectorNorm((0, -1), order=3.0), normal((2, 6, 6, 3))),
            *(
                Sample(VectorNorm(axis, keepdims, order), make)
                for make in (normal((2, 3, 4)), complexes((3, 2)))
                for axis, keepdims, order in ((None, False, 2.0), ((0, -1), True, 2.5), ((0,), False, 1.0))
            ),
        ],
        numpy=_norm,
        torch=lambda torch, x, axis, keepdims, order: torch.linalg.vector_norm(x, order, axis, keepdims),
        corners=[Sample(VectorNorm((1,), False, order), triples(FEW_POINTS)) for order in (1.0, 2.0, 3.0)],
        standard=lambda xp, x, axis, keepdims, order: xp.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=order),
        dtypes=_NUMBERS,
        devices=HOST,
        onnx="ReduceL2",
    ),
]

_DOUBLE = ("float64", 2, 3)

WRONG = [
    *refused(
        af.DTypeError,
        (ops.Inner(), [(2, 3), _DOUBLE], r"Inner: weight must have x's dtype float32, got float64\[2, 3\]"),
        (ops.Matmul(), [(2, 2), _DOUBLE], "Matmul: b must have a's dtype float32"),
    ),
    *refused(
        af.ShapeError,
        (
            ops.Inner(),
            [(2, 3), (4, 5)],
            r"Inner: weight must have x's 3 features on its last axis, got float32\[4, 5\]",
        ),
        (ops.Inner(), [(3,), (4, 3)], r"Inner: x must have shape \(batch, ..., in_features\), got float32\[3\]"),
        (ops.Inner(), [(2, 3), (3,)], r"Inner: weight must have shape \(out_features, in_features\), got float32\[3"),
        (ops.Bias(), [(2, 3), (2,)], r"Bias: bias must have the shape of x's last axis \(3,\), got float32\[2\]"),
        (ops.Bias(), [(), (2,)], r"Bias: x must have shape \(..., features\), got float32\[\]"),
        (InnerDown(), [(2, 3), (2, 3)], "InnerDown: weight must have g's 3 features on its first axis"),
        (InnerWeight(), [(2, 3), (3, 3)], r"InnerWeight: x must have g's batch \(2,\)"),
        (BiasDown(), [()], "BiasDown: g must have shape"),
        (ops.Matmul(), [(), (3, 2)], r"Matmul: a must have shape \(n,\) or \(..., rows, columns\), got float32\[\]"),
        (ops.Matmul(), [(2, 3), (2, 3)], r"Matmul: b must have length 3 on its second last axis, got float32\[2, 3"),
        (ops.Matmul(), [(2, 2, 3), (4, 3, 2)], r"Matmul: b must broadcast with a's batch \(2,\), got float32\[4, 3"),
        (ops.Matmul(batch=(3,)), [(2, 3, 3), (3, 3)], r"products of batch \(2,\) cannot be summed to \(3,\)"),
    ),
]
