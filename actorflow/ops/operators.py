"""Python's operators, indices and the usual methods of arrays, for blobs: short forms of the functions of this room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from actorflow.errors import GraphError, ShapeError
from actorflow.foreign import NO_VALUE, in_graphs, missing_method
from actorflow.interchange import as_array
from actorflow.ops import elementwise as ew
from actorflow.ops import indexing, linalg, reductions, shaping
from actorflow.ops.operation import Operand, whole
from actorflow.spec import Length, TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob

_Kind = TypeVar("_Kind")
_Operator = Callable[[Any, "Blob | complex | np.generic | npt.NDArray[Any]"], "Blob"]
_NUMBERS = (bool, int, float, complex, np.generic)
#: Powers that have a function of their own, as for NumPy's ``**``.
_POWERS = {2: ew.square, 0.5: ew.sqrt}


def _operators(form: Callable[..., Blob], *numbers: type) -> tuple[_Operator, _Operator]:
    """The methods of an operator, with the blob on the left and on the right, beside blobs, arrays and numbers."""
    operands = (Operand, *numbers)

    def left(self: Any, other: Any, /) -> Blob:
        if isinstance(other, np.ndarray):
            return _beside(self, other, form)
        return form(self, other) if isinstance(other, operands) else NotImplemented

    def right(self: Any, other: Any, /) -> Blob:
        if isinstance(other, np.ndarray):
            return _beside(self, other, lambda a, b: form(b, a))
        return form(other, self) if isinstance(other, operands) else NotImplemented

    return left, right


@whole
def _beside(blob: Any, array: npt.NDArray[Any], form: Callable[[Blob, Blob], Blob]) -> Blob:
    """The result for a blob and the constant of an array."""
    values = as_array(array, TensorSpec(array.shape, blob.dtype), f"an array beside blob {blob.name!r}")
    return form(blob, blob.literal(values))


#: Operators by NumPy's functions, with the blob on the left and on the right.
_OPERATORS = {
    np.add: ("__add__", "__radd__"),
    np.subtract: ("__sub__", "__rsub__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.divide: ("__truediv__", "__rtruediv__"),
    np.floor_divide: ("__floordiv__", "__rfloordiv__"),
    np.remainder: ("__mod__", "__rmod__"),
    np.power: ("__pow__", "__rpow__"),
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.bitwise_and: ("__and__", "__rand__"),
    np.bitwise_or: ("__or__", "__ror__"),
    np.bitwise_xor: ("__xor__", "__rxor__"),
    np.less: ("__lt__", "__gt__"),
    np.less_equal: ("__le__", "__ge__"),
    np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
}


def _has_no_value(what: str) -> Callable[..., NoReturn]:
    """A method that raises, as a blob has no value: Python or NumPy asks for one."""

    def method(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise GraphError(f"{what} blob {self.name!r}: {NO_VALUE}")

    return method


def _power(a: Any, b: Any) -> Blob:
    own = _POWERS.get(b) if type(b) in (int, float) and a.dtype.kind in "fV" else None
    y: Blob = ew.power(a, b) if own is None else own(a)
    return y


@lru_cache
def _last_two_exchanged(rank: int) -> tuple[int, ...]:
    if rank < 2:
        raise ShapeError(f"mT: expected at least two axes, got {rank}")
    return (*range(rank - 2), rank - 1, rank - 2)


class Methods(Operand, Generic[_Kind]):
    """The usual methods of arrays that blobs and lazy arrays have alike."""

    __slots__ = ()

    if TYPE_CHECKING:
        #: Module of the functions of this kind.
        _module: ClassVar[str]

        def _reshaped(self, shape: tuple[int, ...], /) -> _Kind: ...

        def _permuted(self, axes: tuple[int, ...], /) -> _Kind: ...

    def reshape(self, *shape: int | Iterable[int]) -> _Kind:
        """The elements in another shape, given as lengths or as a tuple of them; one may be -1."""
        return self._reshaped(_numbers(shape))

    def flatten(self) -> _Kind:
        """All axes joined into one; `actorflow.ops.flatten` keeps the first."""
        return self._reshaped((self.size,))

    def squeeze(self, axis: int | Sequence[int] | None = None) -> _Kind:
        """The axes of length 1 left out: these, or all of them."""
        given = axis if axis is None or isinstance(axis, int) else tuple(axis)
        return self._reshaped(shaping.squeezed(self.shape, given))

    def transpose(self, *axes: int | Iterable[int] | None) -> _Kind:
        """The axes in another order, given as numbers or as a tuple of them; by default in reverse order."""
        return self._permuted(_numbers(axes) or tuple(range(self.ndim))[::-1])

    @property
    def T(self) -> _Kind:  # noqa: N802  the standard's name
        """The transpose of a matrix.

        Raises:
            ShapeError: if there are not two axes.
        """
        try:
            return self._permuted((1, 0))
        except ShapeError:
            raise ShapeError(f"T: expected two axes, got shape {self.shape}; mT transposes the last two") from None

    @property
    def mT(self) -> _Kind:  # noqa: N802  the standard's name
        """The last two axes exchanged.

        Raises:
            ShapeError: if there are fewer.
        """
        return self._permuted(_last_two_exchanged(len(self.shape)))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size

    def __neg__(self) -> Self:
        return ew.negative(self)

    def __abs__(self) -> Self:
        return ew.absolute(self)

    def __invert__(self) -> Self:
        return ew.bitwise_invert(self)

    if not TYPE_CHECKING:  # for which any name would be one that is there

        def __getattr__(self, name: str) -> NoReturn:
            missing_method(type(self), self._module, name)


def _numbers(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Single numbers, or the tuple of them that was given instead; nothing for None."""
    if len(given) == 1 and not isinstance(given[0], int | np.integer | Length | str):
        return () if given[0] is None else tuple(given[0])
    return given


class Operators(Methods["Blob"]):
    """Operators and methods of blobs.

    Each is the function of the same meaning (``a + b`` is `add`, ``a[1:]`` is `slice`) and makes its ops, of the same
    names. The other operand is a blob of the same dtype, a number, which takes the blob's dtype, or a NumPy array,
    which becomes a constant and is only widened, as feeds are.

    ``==`` and ``!=`` compare identity, as blobs are keys of dictionaries: `equal` and `not_equal` compare elements. The
    shifts connect blobs with ops. ``&``, ``|``, ``^`` and ``~`` are of bools and of bits. A blob has no value while the
    graph is defined, so it has no truth, length or iterator.
    """

    __slots__ = ()

    __iter__ = None
    __contains__ = None
    __array__ = _has_no_value("np.asarray of")
    __float__, __int__, __complex__ = map(_has_no_value, ("float() of", "int() of", "complex() of"))
    __len__ = _has_no_value("len() of")

    __add__, __radd__ = _operators(ew.add, *_NUMBERS)
    __sub__, __rsub__ = _operators(ew.subtract, *_NUMBERS)
    __mul__, __rmul__ = _operators(ew.multiply, *_NUMBERS)
    __truediv__, __rtruediv__ = _operators(ew.divide, *_NUMBERS)
    __floordiv__, __rfloordiv__ = _operators(ew.floor_divide, *_NUMBERS)
    __mod__, __rmod__ = _operators(ew.remainder, *_NUMBERS)
    __pow__, __rpow__ = _operators(_power, *_NUMBERS)
    __matmul__, __rmatmul__ = _operators(linalg.matmul)
    __and__, __rand__ = _operators(ew.bitwise_and, *_NUMBERS)
    __or__, __ror__ = _operators(ew.bitwise_or, *_NUMBERS)
    __xor__, __rxor__ = _operators(ew.bitwise_xor, *_NUMBERS)
    __lt__, __gt__ = _operators(ew.less, *_NUMBERS)[0], _operators(ew.greater, *_NUMBERS)[0]
    __le__, __ge__ = _operators(ew.less_equal, *_NUMBERS)[0], _operators(ew.greater_equal, *_NUMBERS)[0]

    def __bool__(self) -> bool:
        raise GraphError(
            "a blob has no value while the graph is defined, so it is neither true nor false: "
            "use af.ops.where(condition, a, b), (a < x) & (x < b) for a < x < b, and `is None` for a missing blob"
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Leave operators of NumPy's arrays with a blob to the blob.

        Raises:
            GraphError: for other functions of NumPy; it names that of `actorflow.ops`.
        """
        if method == "__call__" and not options:
            if ufunc in _OPERATORS:
                is_right = inputs[0] is not self
                return getattr(self, _OPERATORS[ufunc][is_right])(inputs[not is_right])
            if ufunc is np.equal or ufunc is np.not_equal:  # of identities, as `==` is
                return ufunc is np.not_equal
        return self.__array_function__(ufunc)

    def __array_function__(self, function: Callable[..., Any], *_: object) -> NoReturn:
        """Refuse one of NumPy's functions; it is named in `actorflow.ops` if that has it."""
        raise GraphError(f"np.{function.__name__} of a blob: {NO_VALUE}{in_graphs(function.__name__)}")

    def __pos__(self) -> Self:
        return self

    def __getitem__(self: Any, key: Any, /) -> Blob:
        """The part ``x[key]``; see `actorflow.ops.slice`."""
        y: Blob = indexing.slice(self, key)
        return y

    if TYPE_CHECKING:

        def _over_axes(self, axis: shaping.Axis = None, keepdims: bool = False, name: str | None = None) -> Blob: ...

        sum = mean = prod = max = min = all = any = argmax = argmin = _over_axes
    else:
        sum, mean, prod = reductions.sum, reductions.mean, reductions.prod
        max, min, argmax, argmin = reductions.max, reductions.min, reductions.argmax, reductions.argmin
        all, any = reductions.all, reductions.any
    astype = ew.cast
    _reshaped: Any = shaping.reshape
    _permuted: Any = shaping.transpose
    _module = "actorflow.ops"
