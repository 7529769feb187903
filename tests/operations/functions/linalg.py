"""Sums of products by the names of their axes; what functions of linear algebra and Fourier transforms refuse."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from tests.operations.table import Row, call, complexes, normal, refused

EINSUMS: list[tuple[Any, ...]] = [
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


def _einsum(*operands: Any, subscripts: str) -> Any:
    return ops.einsum(subscripts, *operands)


ROWS = [
    Row(
        None,
        [
            call(_einsum, make, subscripts=subscripts)
            for subscripts, *shapes in EINSUMS
            for make in (normal(*shapes), complexes(*shapes))
        ],
        name="einsum",
        numpy=lambda *x, subscripts: np.einsum(subscripts, *x),
        torch=lambda torch, *x, subscripts: torch.einsum(subscripts, *x),
    )
]

_SQUARE = ("float64", 2, 2)
WRONG = [
    *refused(
        af.ShapeError,
        (ops.linalg.inv, [("float64", 2, 3)], r"inv: x must be square matrices of shape \(..., n, n\)"),
        (ops.linalg.svd, [(3,)], r"svd: x must be matrices of shape \(..., rows, columns\)"),
        (lambda x: ops.linalg.qr(x, mode="raw"), [_SQUARE], "mode must be 'reduced' or 'complete'"),
        (lambda x: ops.linalg.solve(x, x[0, :1]), [_SQUARE], r"solve: x2 must have shape \(n,\) or"),
        (lambda x: ops.linalg.outer(x, x), [_SQUARE], r"outer: x1 must have shape \(n\)"),
        (lambda x: ops.linalg.cross(x, x), [_SQUARE], "cross: expected 3 elements along axis -1"),
        (lambda x: ops.linalg.vecdot(x, x[0], axis=0), [_SQUARE], "vecdot: axis 0 is out of bounds"),
        (lambda x: ops.linalg.tensordot(x, x, axes=3), [_SQUARE], "do not have 3 axes"),
        (lambda x: ops.linalg.tensordot(x, x, axes=((0,), (1,))), [("float64", 2, 3)], "differ along axes"),
        (lambda x: ops.linalg.matrix_norm(x, ord="F"), [_SQUARE], "ord must be 'fro', 'nuc'"),
        (lambda x: ops.linalg.pinv(x, rtol=x), [_SQUARE], "pinv: rtol must be a number, or one"),
        (lambda x: ops.fft.fft(x, n=0), [(3,)], "fft: there must be at least one point"),
        (lambda x: ops.fft.fftn(x, s=(2,), axes=(0, 1)), [(3, 3)], "fftn: as many lengths as axes"),
        (lambda x: ops.einsum("ij->k", x), [_SQUARE], "the result of 'ij->k' must name axes"),
        (lambda x: ops.einsum("ij,jk", x), [_SQUARE], "is of 2 operands, got 1"),
        (lambda x: ops.einsum("ijk", x), [_SQUARE], "'ijk' does not name the axes of operand 0"),
        (lambda x: ops.einsum("ij,kj->ik", x, x[:, :2]), [("float64", 2, 3)], "axis 'j' of .* has"),
    ),
    *refused(
        af.DTypeError,
        (ops.linalg.det, [("float16", 2, 2)], "det: x must be of float32, float64 or complex"),
        (ops.linalg.qr, [("int64", 2, 2)], "qr: x must be of float32"),
        (ops.fft.rfft, [("complex128", 3)], "rfft: x must be real and floating, got complex128"),
    ),
]
