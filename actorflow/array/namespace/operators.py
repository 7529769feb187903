"""Python's operators on arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from actorflow.array.namespace import ufuncs as ew
from actorflow.array.namespace.linear import matmul
from actorflow.array.namespace.operate import binary, constant, unary
from actorflow.array.namespace.operate import cast as cast_to
from actorflow.array.record.node import Node, given, replace
from actorflow.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from actorflow.array.array import Array

_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


class Operators:
    """What `Array` takes from here: arithmetic, bits, comparisons, products of matrices, and their in-place forms.

    The other operand is an array, a Python number, or an array of NumPy. ``x += y`` changes what ``x`` shows; shape and
    dtype stay.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    #: Operators between NumPy's arrays and this leave the work to this.
    __array_priority__ = 1_000.0

    _node: Node

    def __abs__(self) -> Array:
        return unary(ew.ABS, cast("Array", self))

    def __neg__(self) -> Array:
        return unary(ew.NEGATIVE, cast("Array", self))

    def __pos__(self) -> Array:
        return unary(ew.POSITIVE, cast("Array", self))

    def __invert__(self) -> Array:
        return unary(ew.BITWISE_INVERT, cast("Array", self))

    def __add__(self, other: Any, /) -> Array:
        return binary(ew.ADD, self, other) if _is_operand(other) else NotImplemented

    def __radd__(self, other: Any, /) -> Array:
        return binary(ew.ADD, other, self) if _is_operand(other) else NotImplemented

    def __iadd__(self, other: Any, /) -> Self:
        return self._in_place("+=", binary(ew.ADD, self, other)) if _is_operand(other) else NotImplemented

    def __sub__(self, other: Any, /) -> Array:
        return binary(ew.SUBTRACT, self, other) if _is_operand(other) else NotImplemented

    def __rsub__(self, other: Any, /) -> Array:
        return binary(ew.SUBTRACT, other, self) if _is_operand(other) else NotImplemented

    def __isub__(self, other: Any, /) -> Self:
        return self._in_place("-=", binary(ew.SUBTRACT, self, other)) if _is_operand(other) else NotImplemented

    def __mul__(self, other: Any, /) -> Array:
        return binary(ew.MULTIPLY, self, other) if _is_operand(other) else NotImplemented

    def __rmul__(self, other: Any, /) -> Array:
        return binary(ew.MULTIPLY, other, self) if _is_operand(other) else NotImplemented

    def __imul__(self, other: Any, /) -> Self:
        return self._in_place("*=", binary(ew.MULTIPLY, self, other)) if _is_operand(other) else NotImplemented

    def __truediv__(self, other: Any, /) -> Array:
        return binary(ew.DIVIDE, self, other) if _is_operand(other) else NotImplemented

    def __rtruediv__(self, other: Any, /) -> Array:
        return binary(ew.DIVIDE, other, self) if _is_operand(other) else NotImplemented

    def __itruediv__(self, other: Any, /) -> Self:
        return self._in_place("/=", binary(ew.DIVIDE, self, other)) if _is_operand(other) else NotImplemented

    def __floordiv__(self, other: Any, /) -> Array:
        return binary(ew.FLOOR_DIVIDE, self, other) if _is_operand(other) else NotImplemented

    def __rfloordiv__(self, other: Any, /) -> Array:
        return binary(ew.FLOOR_DIVIDE, other, self) if _is_operand(other) else NotImplemented

    def __ifloordiv__(self, other: Any, /) -> Self:
        return self._in_place("//=", binary(ew.FLOOR_DIVIDE, self, other)) if _is_operand(other) else NotImplemented

    def __mod__(self, other: Any, /) -> Array:
        return binary(ew.REMAINDER, self, other) if _is_operand(other) else NotImplemented

    def __rmod__(self, other: Any, /) -> Array:
        return binary(ew.REMAINDER, other, self) if _is_operand(other) else NotImplemented

    def __imod__(self, other: Any, /) -> Self:
        return self._in_place("%=", binary(ew.REMAINDER, self, other)) if _is_operand(other) else NotImplemented

    def __pow__(self, other: Any, /) -> Array:
        return binary(ew.POW, self, other) if _is_operand(other) else NotImplemented

    def __rpow__(self, other: Any, /) -> Array:
        return binary(ew.POW, other, self) if _is_operand(other) else NotImplemented

    def __ipow__(self, other: Any, /) -> Self:
        return self._in_place("**=", binary(ew.POW, self, other)) if _is_operand(other) else NotImplemented

    def __and__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_AND, self, other) if _is_operand(other) else NotImplemented

    def __rand__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_AND, other, self) if _is_operand(other) else NotImplemented

    def __iand__(self, other: Any, /) -> Self:
        return self._in_place("&=", binary(ew.BITWISE_AND, self, other)) if _is_operand(other) else NotImplemented

    def __or__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_OR, self, other) if _is_operand(other) else NotImplemented

    def __ror__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_OR, other, self) if _is_operand(other) else NotImplemented

    def __ior__(self, other: Any, /) -> Self:
        return self._in_place("|=", binary(ew.BITWISE_OR, self, other)) if _is_operand(other) else NotImplemented

    def __xor__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_XOR, self, other) if _is_operand(other) else NotImplemented

    def __rxor__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_XOR, other, self) if _is_operand(other) else NotImplemented

    def __ixor__(self, other: Any, /) -> Self:
        return self._in_place("^=", binary(ew.BITWISE_XOR, self, other)) if _is_operand(other) else NotImplemented

    def __lshift__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_LEFT_SHIFT, self, other) if _is_operand(other) else NotImplemented

    def __rlshift__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_LEFT_SHIFT, other, self) if _is_operand(other) else NotImplemented

    def __ilshift__(self, other: Any, /) -> Self:
        return (
            self._in_place("<<=", binary(ew.BITWISE_LEFT_SHIFT, self, other)) if _is_operand(other) else NotImplemented
        )

    def __rshift__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_RIGHT_SHIFT, self, other) if _is_operand(other) else NotImplemented

    def __rrshift__(self, other: Any, /) -> Array:
        return binary(ew.BITWISE_RIGHT_SHIFT, other, self) if _is_operand(other) else NotImplemented

    def __irshift__(self, other: Any, /) -> Self:
        return (
            self._in_place(">>=", binary(ew.BITWISE_RIGHT_SHIFT, self, other)) if _is_operand(other) else NotImplemented
        )

    def __matmul__(self, other: Any, /) -> Array:
        return matmul(cast("Array", self), self._matrix(other)) if _is_matrix(other) else NotImplemented

    def __rmatmul__(self, other: Any, /) -> Array:
        return matmul(self._matrix(other), cast("Array", self)) if _is_matrix(other) else NotImplemented

    def __imatmul__(self, other: Any, /) -> Self:
        return (
            self._in_place("@=", matmul(cast("Array", self), self._matrix(other)))
            if _is_matrix(other)
            else NotImplemented
        )

    def __lt__(self, other: Any, /) -> Array:
        return binary(ew.LESS, self, other) if _is_operand(other) else NotImplemented

    def __le__(self, other: Any, /) -> Array:
        return binary(ew.LESS_EQUAL, self, other) if _is_operand(other) else NotImplemented

    def __gt__(self, other: Any, /) -> Array:
        return binary(ew.GREATER, self, other) if _is_operand(other) else NotImplemented

    def __ge__(self, other: Any, /) -> Array:
        return binary(ew.GREATER_EQUAL, self, other) if _is_operand(other) else NotImplemented

    def __eq__(self, other: object, /) -> Array:  # type: ignore[override]
        return binary(ew.EQUAL, self, other) if _is_operand(other) else NotImplemented

    def __ne__(self, other: object, /) -> Array:  # type: ignore[override]
        return binary(ew.NOT_EQUAL, self, other) if _is_operand(other) else NotImplemented

    def _matrix(self, other: Any) -> Array:
        """The other factor of a product of matrices; one of NumPy goes where this one lives."""
        if type(other) is Node.array_type:
            found: Array = other
            return found
        node = self._node
        return given(constant("matmul", other, node.dtype), node.evaluator, place=node.place)

    def _in_place(self, name: str, result: Array) -> Self:
        node = self._node
        if result.shape != node.shape:
            raise ShapeError(f"{name}: the result has shape {result.shape}, the array {node.shape}")
        if result.dtype != node.dtype:
            if not np.can_cast(result.dtype, node.dtype, "same_kind"):
                raise DTypeError(f"{name}: the result is {result.dtype}, the array {node.dtype}")
            result = cast_to(result, node.dtype)
        replace(cast("Array", self), result)
        return self


def _is_matrix(value: object) -> bool:
    return type(value) is Node.array_type or isinstance(value, np.ndarray)


def _is_operand(value: object) -> bool:
    return type(value) is Node.array_type or isinstance(value, _NUMBERS)
