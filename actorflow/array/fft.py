"""The Fourier transforms of the standard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from actorflow.array.namespace.creation import made_on
from actorflow.array.namespace.operate import axes_of, axis_of, cast, node_of
from actorflow.array.record.primitives import DType, Primitive
from actorflow.array.record.record import current_evaluator, record
from actorflow.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from actorflow.array.array import Array

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

Norm = Literal["backward", "ortho", "forward"]

_LINES = (np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft, np.fft.hfft, np.fft.ihfft)
_GRIDS = (np.fft.fftn, np.fft.ifftn, np.fft.rfftn, np.fft.irfftn)
_ONE = {function.__name__: Primitive(function.__name__, function) for function in _LINES}
_SEVERAL = {function.__name__: Primitive(function.__name__, function) for function in _GRIDS}
_SHIFT = Primitive("fftshift", np.fft.fftshift)
_SHIFT_BACK = Primitive("ifftshift", np.fft.ifftshift)


def _complex(dtype: DType) -> DType:
    return np.dtype(np.complex64) if dtype.itemsize <= (8 if dtype.kind == "c" else 4) else np.dtype(np.complex128)


def _real(dtype: DType) -> DType:
    return np.dtype(np.float32) if _complex(dtype) == np.complex64 else np.dtype(np.float64)


def _checked(name: str, x: Array, kinds: str) -> DType:
    dtype = node_of(name, "x", x).dtype
    if dtype.kind not in kinds:
        raise DTypeError(f"{name}: expected {'real' if kinds == 'f' else 'floating'} numbers, got {dtype}")
    return dtype


def _norm(name: str, norm: str) -> str:
    if norm not in ("backward", "ortho", "forward"):
        raise ShapeError(f"{name}: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    return norm


def _line(
    name: str, x: Array, n: int | None, axis: int, norm: str, length: Callable[[int], int], dtype: DType
) -> Array:
    """Record a transform along one axis; ``length`` gives how many elements ``n`` become."""
    node = x._node
    axis = axis_of(name, axis, len(node.shape))
    if name in ("irfft", "hfft"):
        points = 2 * (node.shape[axis] - 1) if n is None else int(n)
    else:
        points = node.shape[axis] if n is None else int(n)
    if points < 1:
        raise ShapeError(f"{name}: expected at least one point, got {points}")
    shape = (*node.shape[:axis], length(points), *node.shape[axis + 1 :])
    return record(_ONE[name], (node,), shape, dtype, (points, axis, _norm(name, norm)), node.evaluator, node.size)


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The discrete Fourier transform along an axis."""
    return _line("fft", x, n, axis, norm, lambda n: n, _complex(_checked("fft", x, "fc")))


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The inverse of `fft`."""
    return _line("ifft", x, n, axis, norm, lambda n: n, _complex(_checked("ifft", x, "fc")))


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The transform of real numbers along an axis, its redundant half left out."""
    return _line("rfft", x, n, axis, norm, lambda n: n // 2 + 1, _complex(_checked("rfft", x, "f")))


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The inverse of `rfft`."""
    return _line("irfft", x, n, axis, norm, lambda n: n, _real(_checked("irfft", x, "fc")))


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The transform of Hermitian-symmetric numbers, of which one half is given."""
    return _line("hfft", x, n, axis, norm, lambda n: n, _real(_checked("hfft", x, "fc")))


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The inverse of `hfft`."""
    return _line("ihfft", x, n, axis, norm, lambda n: n // 2 + 1, _complex(_checked("ihfft", x, "f")))


def _grid(
    name: str, x: Array, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str, half: str, dtype: DType
) -> Array:
    """Record a transform along several axes; ``half`` says where the last one holds a half: nowhere, in, or out."""
    node = x._node
    rank = len(node.shape)
    if axes is None:
        along = tuple(range(rank)) if s is None else tuple(range(rank - len(s), rank))
    else:
        along = tuple([axis_of(name, int(each), rank) for each in axes])
    if s is not None and len(s) != len(along):
        raise ShapeError(f"{name}: as many lengths as axes, got {tuple(s)} and {along}")
    points = [node.shape[axis] for axis in along] if s is None else [int(each) for each in s]
    if s is None and half == "in" and points:
        points[-1] = 2 * (points[-1] - 1)
    shape = list(node.shape)
    for axis, count in zip(along, points, strict=True):
        shape[axis] = count
    if half == "out" and along:
        shape[along[-1]] = points[-1] // 2 + 1
    params = (tuple(points), along, _norm(name, norm))
    return record(_SEVERAL[name], (node,), tuple(shape), dtype, params, node.evaluator, node.size)


def fftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """The discrete Fourier transform along several axes; all if none is named."""
    return _grid("fftn", x, s, axes, norm, "", _complex(_checked("fftn", x, "fc")))


def ifftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """The inverse of `fftn`."""
    return _grid("ifftn", x, s, axes, norm, "", _complex(_checked("ifftn", x, "fc")))


def rfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """The transform of real numbers along several axes, the redundant half of the last one left out."""
    return _grid("rfftn", x, s, axes, norm, "out", _complex(_checked("rfftn", x, "f")))


def irfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """The inverse of `rfftn`."""
    return _grid("irfftn", x, s, axes, norm, "in", _real(_checked("irfftn", x, "fc")))


def _shift(op: Primitive, x: Array, axes: int | Sequence[int] | None) -> Array:
    _checked(op.name, x, "fc")
    node = x._node
    return record(op, (node,), node.shape, node.dtype, (axes_of(op.name, axes, len(node.shape)),), node.evaluator)


def fftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The elements moved so that frequency zero is in the middle."""
    return _shift(_SHIFT, x, axes)


def ifftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The inverse of `fftshift`."""
    return _shift(_SHIFT_BACK, x, axes)


_FREQUENCIES = Primitive("fftfreq", np.fft.fftfreq)
_HALF_FREQUENCIES = Primitive("rfftfreq", np.fft.rfftfreq)


def _frequencies(op: Primitive, n: int, d: float, count: int, dtype: npt.DTypeLike | None, device: Any) -> Array:
    if n < 1:
        raise ShapeError(f"{op.name}: n must be positive, got {n}")
    kind = np.dtype(np.float64 if dtype is None else dtype)
    if kind.kind != "f":
        raise DTypeError(f"{op.name}: dtype must be real and floating, got {kind}")
    found = record(op, (), (count,), np.dtype(np.float64), (int(n), float(d)), current_evaluator())
    return cast(made_on(device, found), kind)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: npt.DTypeLike | None = None, device: Any = None) -> Array:
    """The frequencies that the elements of an `fft` of ``n`` points with distance ``d`` belong to."""
    return _frequencies(_FREQUENCIES, n, d, n, dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: npt.DTypeLike | None = None, device: Any = None) -> Array:
    """The frequencies that the elements of an `rfft` belong to."""
    return _frequencies(_HALF_FREQUENCIES, n, d, n // 2 + 1, dtype, device)
