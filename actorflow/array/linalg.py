"""The linear algebra extension of the standard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.array.namespace.manipulation import permute_dims
from actorflow.array.namespace.operate import axes_of, axis_of, broadcast, node_of, simple
from actorflow.array.namespace.statistical import sum as sum_of
from actorflow.array.record.primitives import DType, Primitive, Value
from actorflow.array.record.record import Record, record, record_parts
from actorflow.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from actorflow.array.array import Array

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

Shape = tuple[int, ...]
Kind = tuple[Shape, DType]


class EigResult(NamedTuple):
    """Result of `eig`."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """Result of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Result of `qr`."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """Result of `slogdet`."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """Result of `svd`."""

    U: Array
    S: Array
    Vh: Array


# -- products ---------------------------------------------------------------------------------------------------


def _vecdot(x1: Value, x2: Value, axis: int) -> Value:
    vecdot: Any = np.vecdot  # its stub lacks `axis`
    return np.asarray(vecdot(x1, x2, axis=axis))


MATMUL = Primitive("matmul", np.matmul, into=True, threaded=True)
_VECDOT = Primitive("vecdot", _vecdot)
_TENSORDOT = Primitive("tensordot", lambda x1, x2, axes: np.tensordot(x1, x2, axes=axes))


def product_dtype(name: str, one: DType, other: DType) -> DType:
    """The dtype of a product of matrices.

    Raises:
        DTypeError: if they have none.
    """
    try:
        return np.result_type(one, other)
    except TypeError as error:
        raise DTypeError(f"{name}: no product of {one} and {other}") from error


def matmul(x1: Array, x2: Array, /) -> Array:
    """The matrix product over the last two axes; the others broadcast. A vector is a row on the left, a column right.

    Raises:
        ShapeError: if the lengths along which is summed differ, or an array is 0-d.
    """
    a, b = node_of("matmul", "x1", x1), node_of("matmul", "x2", x2)
    if not a.shape or not b.shape:
        raise ShapeError(f"matmul: arrays must have axes, got shapes {a.shape} and {b.shape}")
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if left[-1] != right[-2]:
        raise ShapeError(f"matmul: shapes {a.shape} and {b.shape} do not fit: {left[-1]} is not {right[-2]}")
    lead = broadcast("matmul", left[:-2], right[:-2]) if len(left) > 2 or len(right) > 2 else ()
    rows = left[-2:-1] if len(a.shape) > 1 else ()
    columns = right[-1:] if len(b.shape) > 1 else ()
    shape = (*lead, *rows, *columns)
    kind = product_dtype("matmul", a.dtype, b.dtype)
    return record(MATMUL, (a, b), shape, kind, (), a.evaluator, a.size * right[-1])


def matrix_transpose(x: Array, /) -> Array:
    """The array with its last two axes exchanged.

    Raises:
        ShapeError: if there are fewer.
    """
    shape = node_of("matrix_transpose", "x", x).shape
    rank = len(shape)
    if rank < 2:
        raise ShapeError(f"matrix_transpose: expected at least two axes, got shape {shape}")
    return permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The inner products of vectors along an axis, the first conjugated; the other axes broadcast."""
    a, b = node_of("vecdot", "x1", x1), node_of("vecdot", "x2", x2)
    least = min(len(a.shape), len(b.shape))
    if not -least <= axis < 0 and not (len(a.shape) == len(b.shape) and 0 <= axis < least):
        raise ShapeError(f"vecdot: axis {axis} is out of bounds for shapes {a.shape} and {b.shape}")
    ones, others = list(a.shape), list(b.shape)
    if ones[axis] != others[axis]:
        raise ShapeError(f"vecdot: shapes {a.shape} and {b.shape} differ along axis {axis}")
    del ones[axis], others[axis]
    shape = broadcast("vecdot", tuple(ones), tuple(others)) if ones or others else ()
    return record(_VECDOT, (a, b), shape, product_dtype("vecdot", a.dtype, b.dtype), (axis,), a.evaluator, a.size)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """The sum of products over axes: the last ones of ``x1`` with the first ones of ``x2``, or those that are named."""
    a, b = node_of("tensordot", "x1", x1), node_of("tensordot", "x2", x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(len(a.shape), len(b.shape)):
            raise ShapeError(f"tensordot: shapes {a.shape} and {b.shape} do not have {axes} axes to sum over")
        ones: tuple[int, ...] = tuple(range(len(a.shape) - axes, len(a.shape)))
        others: tuple[int, ...] = tuple(range(axes))
    else:
        ones = tuple([axis_of("tensordot", int(each), len(a.shape)) for each in axes[0]])
        others = tuple([axis_of("tensordot", int(each), len(b.shape)) for each in axes[1]])
    if [a.shape[i] for i in ones] != [b.shape[i] for i in others]:
        raise ShapeError(f"tensordot: shapes {a.shape} and {b.shape} differ along axes {ones} and {others}")
    left = [length for i, length in enumerate(a.shape) if i not in ones]
    right = [length for i, length in enumerate(b.shape) if i not in others]
    kind = product_dtype("tensordot", a.dtype, b.dtype)
    return record(_TENSORDOT, (a, b), (*left, *right), kind, ((ones, others),), a.evaluator, a.size)


# -- decompositions ---------------------------------------------------------------------------------------------


def _matrix(name: str, x: Array, square: bool = False) -> Record:
    node = node_of(name, "x", x)
    if len(node.shape) < 2 or (square and node.shape[-1] != node.shape[-2]):
        raise ShapeError(f"{name}: expected {'square ' if square else ''}matrices, got shape {node.shape}")
    return node


def _floating(name: str, dtype: DType) -> DType:
    if dtype.kind not in "fc":
        raise DTypeError(f"{name}: expected floating numbers, got {dtype}")
    return dtype


def _real(dtype: DType) -> DType:
    return np.empty(0, dtype).real.dtype


def _complex(dtype: DType) -> DType:
    return np.result_type(dtype, np.complex64)


def _slogdet_results(x: Record) -> Sequence[Kind]:
    return (x.shape[:-2], x.dtype), (x.shape[:-2], _real(x.dtype))


def _eig_results(x: Record) -> Sequence[Kind]:
    return (x.shape[:-1], _complex(x.dtype)), (x.shape, _complex(x.dtype))


def _eigh_results(x: Record) -> Sequence[Kind]:
    return (x.shape[:-1], _real(x.dtype)), (x.shape, x.dtype)


def _qr_results(x: Record, mode: str) -> Sequence[Kind]:
    *lead, rows, columns = x.shape
    inner = min(rows, columns) if mode == "reduced" else rows
    return ((*lead, rows, inner), x.dtype), ((*lead, inner, columns), x.dtype)


def _svd_results(x: Record, full_matrices: bool) -> Sequence[Kind]:
    *lead, rows, columns = x.shape
    inner = min(rows, columns)
    left, right = (rows, columns) if full_matrices else (inner, inner)
    return ((*lead, rows, left), x.dtype), ((*lead, inner), _real(x.dtype)), ((*lead, right, columns), x.dtype)


_CHOLESKY = Primitive("cholesky", lambda x, upper: np.linalg.cholesky(x, upper=upper))
_DET = Primitive("det", np.linalg.det)
_INV = Primitive("inv", np.linalg.inv)
_EIGVALSH = Primitive("eigvalsh", np.linalg.eigvalsh)
_SVDVALS = Primitive("svdvals", np.linalg.svdvals)
_EIGVALS = Primitive("eigvals", np.linalg.eigvals)
_EIG = Primitive("eig", lambda x: tuple(np.linalg.eig(x)), results=_eig_results)
_EIGH = Primitive("eigh", lambda x: tuple(np.linalg.eigh(x)), results=_eigh_results)
_SLOGDET = Primitive(
    "slogdet", lambda x: tuple(np.asarray(each) for each in np.linalg.slogdet(x)), results=_slogdet_results
)
_QR = Primitive("qr", lambda x, mode: tuple(np.linalg.qr(x, mode=mode)), results=_qr_results)
_SVD = Primitive("svd", lambda x, full: tuple(np.linalg.svd(x, full_matrices=full)), results=_svd_results)
_POWER = Primitive("matrix_power", np.linalg.matrix_power)
_DIAGONAL = Primitive("diagonal", lambda x, offset: np.linalg.diagonal(x, offset=offset))
_OUTER = Primitive("outer", np.linalg.outer)
_CROSS = Primitive("cross", lambda a, b, axis: np.linalg.cross(a, b, axis=axis))


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """The triangular factor of symmetric positive definite matrices."""
    node = _matrix("cholesky", x, square=True)
    return simple(_CHOLESKY, x, node.shape, bool(upper), dtype=_floating("cholesky", node.dtype))


def det(x: Array, /) -> Array:
    """The determinants of square matrices."""
    node = _matrix("det", x, square=True)
    return simple(_DET, x, node.shape[:-2], dtype=_floating("det", node.dtype))


def inv(x: Array, /) -> Array:
    """The inverses of square matrices; a singular one is an error when the value is asked for."""
    node = _matrix("inv", x, square=True)
    return simple(_INV, x, node.shape, dtype=_floating("inv", node.dtype))


def eig(x: Array, /) -> EigResult:
    """Eigenvalues, in any order, and eigenvectors of square matrices: complex numbers."""
    node = _matrix("eig", x, square=True)
    _floating("eig", node.dtype)
    return EigResult(*record_parts(_EIG, (node,), (), node.size))


def eigvals(x: Array, /) -> Array:
    """Eigenvalues of square matrices, in any order: complex numbers."""
    node = _matrix("eigvals", x, square=True)
    return simple(_EIGVALS, x, node.shape[:-1], dtype=_complex(_floating("eigvals", node.dtype)))


def eigh(x: Array, /) -> EighResult:
    """Eigenvalues, ascending, and eigenvectors of symmetric or Hermitian matrices."""
    node = _matrix("eigh", x, square=True)
    _floating("eigh", node.dtype)
    return EighResult(*record_parts(_EIGH, (node,), (), node.size))


def eigvalsh(x: Array, /) -> Array:
    """Eigenvalues, ascending, of symmetric or Hermitian matrices."""
    node = _matrix("eigvalsh", x, square=True)
    return simple(_EIGVALSH, x, node.shape[:-1], dtype=_real(_floating("eigvalsh", node.dtype)))


def slogdet(x: Array, /) -> SlogdetResult:
    """Signs and logarithms of the magnitudes of determinants."""
    node = _matrix("slogdet", x, square=True)
    _floating("slogdet", node.dtype)
    return SlogdetResult(*record_parts(_SLOGDET, (node,), (), node.size))


def qr(x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Orthonormal and upper triangular factors of matrices."""
    node = _matrix("qr", x)
    if mode not in ("reduced", "complete"):
        raise ShapeError(f"qr: mode must be 'reduced' or 'complete', got {mode!r}")
    _floating("qr", node.dtype)
    return QRResult(*record_parts(_QR, (node,), (mode,), node.size))


def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition ``U @ diag(S) @ Vh`` of matrices."""
    node = _matrix("svd", x)
    _floating("svd", node.dtype)
    return SVDResult(*record_parts(_SVD, (node,), (bool(full_matrices),), node.size))


def svdvals(x: Array, /) -> Array:
    """The singular values of matrices, descending."""
    node = _matrix("svdvals", x)
    shape = (*node.shape[:-2], min(node.shape[-2:]))
    return simple(_SVDVALS, x, shape, dtype=_real(_floating("svdvals", node.dtype)))


def matrix_power(x: Array, n: int, /) -> Array:
    """Square matrices to an integer power; negative ones are powers of the inverse."""
    node = _matrix("matrix_power", x, square=True)
    kind = _floating("matrix_power", node.dtype) if n < 0 else node.dtype
    return simple(_POWER, x, node.shape, int(n), dtype=kind)


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """The diagonals of matrices, ``offset`` to the right of the main one."""
    *lead, rows, columns = _matrix("diagonal", x).shape
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return simple(_DIAGONAL, x, (*lead, length), int(offset))


def trace(x: Array, /, *, offset: int = 0, dtype: npt.DTypeLike | None = None) -> Array:
    """The sums of the diagonals of matrices; integers are added up in 64 bits."""
    return sum_of(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def outer(x1: Array, x2: Array, /) -> Array:
    """The products of each element of a vector with each one of another."""
    a, b = node_of("outer", "x1", x1), node_of("outer", "x2", x2)
    if len(a.shape) != 1 or len(b.shape) != 1:
        raise ShapeError(f"outer: expected vectors, got shapes {a.shape} and {b.shape}")
    return record(_OUTER, (a, b), a.shape + b.shape, product_dtype("outer", a.dtype, b.dtype))


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The cross products of vectors of three elements along an axis; the other axes broadcast."""
    a, b = node_of("cross", "x1", x1), node_of("cross", "x2", x2)
    shape = broadcast("cross", a.shape, b.shape)
    least = min(len(a.shape), len(b.shape))
    if not -least <= axis < least or a.shape[axis] != 3 or b.shape[axis] != 3:
        raise ShapeError(f"cross: expected 3 elements along axis {axis}, got shapes {a.shape} and {b.shape}")
    return record(_CROSS, (a, b), shape, product_dtype("cross", a.dtype, b.dtype), (axis,))


def solve(x1: Array, x2: Array, /) -> Array:
    """The solutions ``x`` of ``x1 @ x = x2``; a one-dimensional ``x2`` is one vector."""
    a, b = _matrix("solve", x1, square=True), node_of("solve", "x2", x2)
    kind = product_dtype("solve", _floating("solve", a.dtype), _floating("solve", b.dtype))
    size = a.shape[-1]
    if not b.shape or b.shape[0 if len(b.shape) == 1 else -2] != size:
        raise ShapeError(f"solve: shapes {a.shape} and {b.shape} do not fit")
    if len(b.shape) == 1:
        shape = (*a.shape[:-2], size)
    else:
        shape = (*broadcast("solve", a.shape[:-2], b.shape[:-2]), size, b.shape[-1])
    return record(_SOLVE, (a, b), shape, kind, (), a.evaluator, a.size * size)


def _solve(a: Value, b: Value) -> Value:
    return np.linalg.solve(a, b[..., None])[..., 0] if b.ndim == 1 else np.linalg.solve(a, b)


_SOLVE = Primitive("solve", _solve)


def _tolerance(name: str, node: Record, value: Any) -> tuple[Any, ...]:
    """A tolerance as an input: an array for each matrix, a number, or None."""
    if type(value) is Record.array_type:
        if broadcast(name, value.shape, node.shape[:-2]) != node.shape[:-2]:
            raise ShapeError(f"{name}: rtol of shape {value.shape} does not fit matrices of shape {node.shape}")
        return (value._node,)
    return () if value is None else (np.asarray(value, np.float64),)


def _rank(x: Value, *rtol: Value) -> Value:
    return np.asarray(np.linalg.matrix_rank(x, rtol=rtol[0] if rtol else None), np.intp)


def _pinv(x: Value, *rtol: Value) -> Value:
    return np.linalg.pinv(x, rtol=rtol[0] if rtol else float(max(x.shape[-2:]) * np.finfo(x.dtype).eps))


_MATRIX_RANK = Primitive("matrix_rank", _rank)
_PINV = Primitive("pinv", _pinv)


def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """The number of singular values of matrices above ``rtol`` times the greatest."""
    node = _matrix("matrix_rank", x)
    _floating("matrix_rank", node.dtype)
    inputs = (node, *_tolerance("matrix_rank", node, rtol))
    return record(_MATRIX_RANK, inputs, node.shape[:-2], np.dtype(np.intp), (), node.evaluator, node.size)


def pinv(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """The pseudo-inverses of matrices; singular values below ``rtol`` times the greatest count as zero."""
    node = _matrix("pinv", x)
    kind = _floating("pinv", node.dtype)
    shape = (*node.shape[:-2], node.shape[-1], node.shape[-2])
    return record(_PINV, (node, *_tolerance("pinv", node, rtol)), shape, kind, (), node.evaluator, node.size)


_NORMS = ("fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2)


def _matrix_norm(x: Value, order: Any, keepdims: bool) -> Value:
    return np.asarray(np.linalg.matrix_norm(x, ord=order, keepdims=keepdims))


def _vector_norm(x: Value, axes: Any, keepdims: bool, order: Any) -> Value:
    return np.asarray(np.linalg.vector_norm(x, axis=axes, keepdims=keepdims, ord=order))


_MATRIX_NORM = Primitive("matrix_norm", _matrix_norm)
_VECTOR_NORM = Primitive("vector_norm", _vector_norm)


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norms of matrices: "fro", "nuc", 1, -1, 2, -2, inf or -inf."""
    node = _matrix("matrix_norm", x)
    kind = _real(_floating("matrix_norm", node.dtype))
    if ord not in _NORMS:
        raise ShapeError(f"matrix_norm: ord must be one of {_NORMS}, got {ord!r}")
    shape = (*node.shape[:-2], 1, 1) if keepdims else node.shape[:-2]
    return simple(_MATRIX_NORM, x, shape, ord, bool(keepdims), dtype=kind)


def vector_norm(
    x: Array, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: float = 2
) -> Array:
    """The norms of vectors along axes; of all elements as one vector if none is named."""
    node = node_of("vector_norm", "x", x)
    kind = _real(_floating("vector_norm", node.dtype))
    axes = axes_of("vector_norm", axis, len(node.shape))
    if keepdims:
        shape = tuple([1 if i in axes else length for i, length in enumerate(node.shape)])
    else:
        shape = tuple([length for i, length in enumerate(node.shape) if i not in axes])
    return simple(_VECTOR_NORM, x, shape, axes, bool(keepdims), ord, dtype=kind)
