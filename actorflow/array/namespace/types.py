"""Dtypes, and information about the namespace."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.array.namespace.apply import cast, node_of
from actorflow.array.record.placement import default_place, place_of
from actorflow.array.record.primitives import DType
from actorflow.array.record.record import HOST, Record
from actorflow.errors import DTypeError
from actorflow.ops import elementwise as ew
from actorflow.place import Place

if TYPE_CHECKING:
    from actorflow.array.array import Array

bool = np.dtype(np.bool_)
int8, int16, int32, int64 = map(np.dtype, (np.int8, np.int16, np.int32, np.int64))
uint8, uint16, uint32, uint64 = map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64))
float32, float64, complex64, complex128 = map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128))


def checked_dtype(name: str, dtype: npt.DTypeLike) -> DType:
    """A dtype of the standard, in the machine's byte order; DTypeError if it is another one."""
    kind = np.dtype(dtype)
    if kind.kind not in "biufc":
        raise DTypeError(f"{name}: expected booleans or numbers, got {kind}")
    return kind if kind.isnative else kind.newbyteorder("=")


def astype(
    x: Array, dtype: npt.DTypeLike, /, *, copy: builtins.bool = True, device: Place | str | None = None
) -> Array:
    """As `numpy.astype`; the array itself if there is nothing to do and ``copy`` is false, else on ``device``.

    Raises:
        DTypeError: for complex numbers that would lose their imaginary parts, and for a dtype of something else than
            booleans and numbers.
    Gradient: g in the dtype of ``x``, where both are floating.
    Example:
        >>> xp.astype(xp.asarray([1.9, -1.9]), "int32")
        Array([ 1, -1], dtype=int32)
    """
    node, kind = node_of("astype", "x", x), checked_dtype("astype", dtype)
    if device is not None and place_of(device) is not node.place:
        return astype(x.to_device(device), kind, copy=False)
    if node.dtype.kind == "c" and kind.kind in "iuf":
        raise DTypeError(f"astype: {node.dtype} to {kind} would drop imaginary parts; take real(x) or imag(x)")
    if kind != node.dtype:
        return cast(x, kind)
    return ew.copy(x) if copy else x


def _dtype_of(value: Any) -> Any:
    if type(value) is Record.array_type:
        return value.dtype
    if isinstance(value, builtins.bool | int | float | complex | np.dtype):
        return value
    return np.dtype(value)


def can_cast(from_: DType | Array, to: npt.DTypeLike, /) -> builtins.bool:
    """As `numpy.can_cast`, of a dtype or an array, by the rules of promotion.

    Example:
        >>> print(xp.can_cast("int32", "float64"), xp.can_cast("float64", "float32"))
        True False
    """
    return np.can_cast(_dtype_of(from_), np.dtype(to), "safe")


def result_type(*arrays_and_dtypes: Any) -> DType:
    """As `numpy.result_type`; numbers of Python take the dtypes of the others where they can.

    Raises:
        DTypeError: if they have none in common.
    Example:
        >>> xp.result_type(xp.asarray([1], dtype="int32"), xp.float32, 1.0)
        dtype('float64')
    """
    try:
        return np.result_type(*[_dtype_of(each) for each in arrays_and_dtypes])
    except (TypeError, ValueError) as error:
        raise DTypeError(f"result_type: {error}") from error


def isdtype(dtype: npt.DTypeLike, kind: Any) -> builtins.bool:
    """As `numpy.isdtype`: whether a dtype is another, of a kind ("bool", "integral", ...), or of one of several.

    Raises:
        DTypeError: if there is no such kind.
    Example:
        >>> print(xp.isdtype(xp.float32, "real floating"), xp.isdtype(xp.int8, ("bool", "integral")))
        True True
    """
    try:
        return np.isdtype(np.dtype(dtype), kind)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"isdtype: {error}") from error


def finfo(type: npt.DTypeLike | Array, /) -> SimpleNamespace:
    """The limits of a floating dtype, or of an array's: bits, eps, max, min, smallest_normal, dtype; as `numpy.finfo`.

    Raises:
        DTypeError: if it is not floating.
    Example:
        >>> print(xp.finfo("float32").bits, xp.finfo("float32").max)
        32 3.4028234663852886e+38
    """
    info = np.finfo(_of_kinds("finfo", type, "fc"))
    limits = {name: float(getattr(info, name)) for name in ("eps", "max", "min", "smallest_normal")}
    return SimpleNamespace(bits=info.bits, dtype=np.dtype(info.dtype), **limits)


def iinfo(type: npt.DTypeLike | Array, /) -> SimpleNamespace:
    """The limits of an integer dtype, or of an array's: bits, max, min, dtype; as `numpy.iinfo`.

    Raises:
        DTypeError: if it is not an integer one.
    Example:
        >>> xp.iinfo("int8").max
        127
    """
    kind = _of_kinds("iinfo", type, "iu")
    info = np.iinfo(kind)
    return SimpleNamespace(bits=info.bits, dtype=kind, max=int(info.max), min=int(info.min))


def _of_kinds(name: str, type: npt.DTypeLike | Array, kinds: str) -> DType:
    kind: DType = np.dtype(_dtype_of(type))
    if kind.kind not in kinds:
        raise DTypeError(f"{name}: expected {'an integer' if kinds == 'iu' else 'a floating'} dtype, got {kind}")
    return kind


class _Info:
    """Result of `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Place:
        return default_place()

    def devices(self) -> list[Place]:
        """Devices of every machine; accelerators are named by the user."""
        return [HOST]

    def default_dtypes(self, *, device: Place | str | None = None) -> dict[str, DType]:
        return {"real floating": float64, "complex floating": complex128, "integral": int64, "indexing": int64}

    def dtypes(
        self, *, device: Place | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The dtypes, of some kinds or all."""
        every = {name: value for name, value in globals().items() if isinstance(value, np.dtype)}
        return every if kind is None else {name: dtype for name, dtype in every.items() if isdtype(dtype, kind)}


def __array_namespace_info__() -> _Info:  # noqa: N807  the standard's name
    """Capabilities of the namespace, its devices and dtypes.

    Example:
        >>> info = xp.__array_namespace_info__()
        >>> print(info.default_dtypes()["real floating"], info.capabilities()["boolean indexing"])
        float64 True
    """
    return _Info()
