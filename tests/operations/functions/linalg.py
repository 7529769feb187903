"""Linear algebra and Fourier transforms; NumPy has them by the same names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from tests.operations.linalg import LAPACK, definite, qr_of_torch, regular
from tests.operations.shaping import parts
from tests.operations.table import SINGLE_AND_DOUBLE, Make, Row, Sample, call, complexes, fixed, normal, refused

A, C, H, HERMITIAN = (
    regular(2, 3, 3),
    regular(3, 3, is_complex=True),
    definite(2, 3, 3),
    definite(3, 3, is_complex=True),
)
WIDE, TALL, VECTOR = normal((2, 3, 5)), normal((2, 5, 3)), normal((3,))
NARROW, COMPLEX_VECTOR = complexes((3, 2)), complexes((4,))
WHOLE = np.arange(12).reshape(3, 4) - 5
INT8 = fixed(WHOLE.astype(np.int8))


def _and(*makes: Make) -> Make:
    return lambda random: [x for make in makes for x in make(random)]


def _row(
    name: str,
    *samples: tuple[Make, dict[str, Any]],
    numpy: Callable[..., Any] | None = None,
    smooth: bool | Callable[[Sample], bool] = True,
    room: Any = ops.linalg,
    its: Any = np.linalg,
    **more: Any,
) -> Row:
    """A function with its arguments, and parameters by name."""
    made = [call(getattr(room, name), make, **parameters) for make, parameters in samples]
    smooths = [smooth(each) if callable(smooth) else smooth for each in made]
    made = [Sample(each.what, each.make, smooth=is_smooth) for each, is_smooth in zip(made, smooths, strict=True)]
    full = f"{room.__name__.rpartition('.')[2]}.{name}"
    own = {**LAPACK, "torch": full, "standard": full, **more}
    return Row(None, made, name=full, numpy=numpy or getattr(its, name), **own)


def _complex(name: str) -> Callable[..., Any]:
    return lambda x: [each.astype(complex) for each in parts(getattr(np.linalg, name)(x))]


def _power(x: Any, n: int) -> Any:
    return ops.linalg.matrix_power(x, n)


_ONES = ((A, {}), (C, {}))
_FULL = [(x, {"full_matrices": full}) for x in (WIDE, NARROW) for full in (False, True)]
_ORDERS = [("fro", True), ("nuc", False), (1, True), (-1, False), (2, True), (-2, False)]
_TORCH = {"torch": None, "standard": None}

ROWS = [
    *(_row(name, *_ONES) for name in ("det", "inv", "slogdet", "svdvals")),
    _row("matrix_rank", *_ONES, *((WIDE, {"rtol": rtol}) for rtol in (0.5, 1e-3)), differentiable=False),
    _row(
        "qr",
        *_ONES,
        *((x, {"mode": mode}) for x in (WIDE, TALL) for mode in ("reduced", "complete")),
        smooth=lambda sample: sample.parameters.get("mode") != "complete",
        torch=lambda torch, x, mode="reduced": qr_of_torch(torch, x, mode),
    ),
    _row("pinv", *_ONES, (WIDE, {}), (WIDE, {"rtol": 0.01}), (TALL, {"rtol": None})),
    _row(
        "cholesky",
        *((x, {"upper": upper}) for x in (H, HERMITIAN) for upper in (False, True)),
        smooth=False,
        torch=lambda torch, x, upper: torch.linalg.cholesky(x.detach(), upper=upper),  # as of eigenvalues
    ),
    _row("eigh", (H, {}), (HERMITIAN, {}), smooth=False),
    _row(
        "eigvalsh",
        (H, {}),
        (HERMITIAN, {}),
        smooth=False,
        # Gradients agree among Hermitian matrices: rows of arrays compare these.
        torch=lambda torch, x: torch.linalg.eigvalsh(x.detach()),
    ),
    _row("eig", *_ONES, numpy=_complex("eig"), smooth=False),
    _row("eigvals", *_ONES, numpy=lambda x: _complex("eigvals")(x)[0], smooth=False),
    _row("svd", *_FULL, smooth=False),
    Row(
        None,
        [
            *(call(_power, A, n=n) for n in (-2, 1, 5)),
            Sample(partial(_power, n=0), A, smooth=False),  # the same whatever x is
            call(_power, fixed(WHOLE[:, :3]), n=3),
        ],
        name="linalg.matrix_power",
        numpy=np.linalg.matrix_power,
        torch=lambda torch, x, n: torch.linalg.matrix_power(x, n),
        **LAPACK,
    ),
    _row(
        "solve",
        *((_and(A, b), {}) for b in (VECTOR, WIDE, normal((4, 1, 3, 2)))),
        (_and(C, complexes((3, 2))), {}),
    ),
    _row("diagonal", *((x, {"offset": k}) for x in (WIDE, INT8, C) for k in (-5, -2, 0, 1, 4, 5)), **_TORCH),
    _row(
        "trace",
        *((x, {"offset": k}) for x in (WIDE, INT8, C) for k in (-2, 0, 1)),
        (fixed(WHOLE.astype(np.int16)), {"dtype": np.int16}),
        **_TORCH,
    ),
    _row(
        "outer",
        (normal((3,), (2,)), {}),
        (complexes((3,), (4,)), {}),
        (fixed(WHOLE[0], WHOLE[0, :2]), {}),
        torch="outer",
    ),
    _row(
        "cross",
        (_and(VECTOR, A), {}),
        (normal((2, 3, 3), (2, 3, 1)), {"axis": 1}),
        (fixed(WHOLE[:2, :3], WHOLE[1, :3]), {}),
        (complexes((1, 2, 3), (4, 1, 3)), {}),
        torch=lambda torch, x, y, axis=-1: torch.linalg.cross(*torch.broadcast_tensors(x, y), dim=axis),
    ),
    _row(
        "matmul",
        *(
            (normal(*pair), {})
            for pair in (((3, 4), (4, 2)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,)), ((4,), (3, 4, 2)))
        ),
        *((complexes(*pair), {}) for pair in (((3, 4), (4, 2)), ((4,), (3, 4, 2)), ((3, 3), (3,)))),
        (normal((2, 3, 4), (4,)), {}),
        (fixed(WHOLE.T, WHOLE[:, 0]), {}),
    ),
    _row("matrix_transpose", (WIDE, {}), torch=lambda torch, x: x.mT),
    _row(
        "vecdot",
        *((make, {}) for make in (normal((3, 4), (4,)), complexes((3, 4), (2, 1, 4)), fixed(WHOLE, WHOLE[0]))),
        *((normal((2, 3, 5), (1, 3, 5)), {"axis": axis}) for axis in (-2, -1)),
        (complexes((3, 4), (3, 4)), {"axis": -2}),
        # Torch has it of floating numbers alone.
        torch=lambda torch, x, y, axis=-1: (
            torch.linalg.vecdot(x, y, dim=axis) if x.dtype.is_floating_point or x.is_complex() else (x * y).sum(axis)
        ),
    ),
    _row(
        "tensordot",
        *(
            (complexes((2, 3, 4), right), {"axes": axes})
            for right, axes in (((3, 4, 2), 2), ((2,), 0), ((4, 2, 3), ((0, 2), (1, 0))), ((4, 2, 3), ((2, 0), (0, 1))))
        ),
        *((normal((2, 3, 3), (2, 3, 3)), {"axes": axes}) for axes in (0, 3, ((0, -1), (0, 1)), ([], []))),
        (normal((2, 3, 3), (3, 3)), {"axes": 2}),
        (fixed(WHOLE, WHOLE), {"axes": ((1,), (1,))}),
        torch=lambda torch, x, y, axes: torch.tensordot(x, y, dims=axes),
    ),
    _row(
        "matrix_norm",
        *((x, {"ord": order, "keepdims": keepdims}) for x in (WIDE, C) for order, keepdims in _ORDERS),
        *((WIDE, {"ord": order}) for order in (np.inf, -np.inf)),
        torch=lambda torch, x, keepdims=False, **how: torch.linalg.matrix_norm(
            x, how.get("ord", "fro"), keepdim=keepdims
        ),
    ),
    _row(
        "vector_norm",
        *((x, {"ord": order, "axis": (0, -1)}) for x in (WIDE, NARROW) for order in (0, 1, 2, 2.5, -1, 0.5)),
        *((NARROW, {"ord": order, "axis": 0, "keepdims": True}) for order in (np.inf, -np.inf)),
        (WIDE, {}),
        smooth=lambda sample: sample.parameters.get("ord") != 0,
        torch=lambda torch, x, axis=None, keepdims=False, **how: torch.linalg.vector_norm(
            x, how.get("ord", 2), axis, keepdims
        ),
    ),
]

_ALONG: list[dict[str, Any]] = [
    {},
    {"n": 4, "axis": 0, "norm": "ortho"},
    {"n": 7, "axis": 1, "norm": "forward"},
    {"n": 5, "norm": "backward"},
]
_IN_AXES: list[dict[str, Any]] = [
    {},
    {"axes": (2, 0)},
    {"s": (4, 4), "axes": (0, 1), "norm": "ortho"},
    {"s": (3,), "axes": (-1,)},
    {"s": (2, 4), "axes": (-1, 1), "norm": "forward"},
]


def _transform(name: str, makes: list[Make], keywords: list[dict[str, Any]], **more: Any) -> Row:
    def of_torch(torch: Any, x: Any, axis: int = -1, **others: Any) -> Any:
        named = {"dim" if key == "axes" else key: value for key, value in others.items()}
        along = {} if name.endswith(("n", "shift")) else {"dim": axis}
        return getattr(torch.fft, name)(x, **along, **named)

    samples = [(make, each) for make in makes for each in keywords]
    tolerance = {"tolerance": {}, "particular": False, "closed": 0}
    return _row(name, *samples, room=ops.fft, its=np.fft, **{**tolerance, "torch": of_torch, **more})


_CUBE, _COMPLEX_CUBE = normal((2, 3, 5)), complexes((2, 3, 5))
ROWS += [
    *(_transform(name, [complexes((3, 3))], _ALONG) for name in ("ifft", "irfft", "hfft")),
    _transform("fft", [complexes((3, 3)), normal((2, 3, 5))], _ALONG),
    *(_transform(name, [_CUBE], _ALONG, dtypes=SINGLE_AND_DOUBLE) for name in ("rfft", "ihfft")),
    _transform("fftn", [_CUBE], _IN_AXES),
    _transform("rfftn", [_CUBE], _IN_AXES, dtypes=SINGLE_AND_DOUBLE),
    *(_transform(name, [_COMPLEX_CUBE], _IN_AXES) for name in ("ifftn", "irfftn")),
    *(_transform(name, [_CUBE], [{"axes": axes} for axes in (None, 1, (0, 2))]) for name in ("fftshift", "ifftshift")),
]

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


ROWS.append(
    Row(
        None,
        [
            call(_einsum, make, subscripts=subscripts)
            for subscripts, *shapes in EINSUMS
            for make in (
                normal(*shapes),
                complexes(*shapes),
                fixed(*(10 * np.random.default_rng(i).standard_normal(s) for i, s in enumerate(shapes))),
            )
        ],
        name="einsum",
        numpy=lambda *x, subscripts: np.einsum(subscripts, *x),
        torch=lambda torch, *x, subscripts: torch.einsum(subscripts, *x),
    )
)

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
