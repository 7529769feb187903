"""Powers, exponentials and logarithms, elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.ops.arithmetic import Binary, divide, multiply, scale, subtract
from actorflow.ops.broadcast import broadcast_shape, number_like, sum_to, with_numbers
from actorflow.ops.compare import equal, greater_equal, logical_and, where
from actorflow.ops.functional import blob_of
from actorflow.ops.operation import Operation, same_dtype, same_numbers
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


class _Smooth(Operation):
    """``y`` of the type of ``x``, which is floating."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        same_dtype(self.kind, x=inputs[0])
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient times the slope."""
        assert grads[0] is not None
        return [self.slope(grads[0], op.inputs[0], op.outputs[0])]

    def slope(self, g: Blob, x: Blob, y: Blob) -> Blob:
        """``g`` times the derivative."""
        raise NotImplementedError


@dataclass(frozen=True)
class Exp(_Smooth):
    """``y = e ** x``; see `exp`."""

    def slope(self, g: Blob, x: Blob, y: Blob) -> Blob:
        return multiply(g, y)


@dataclass(frozen=True)
class Log(_Smooth):
    """``y = log(x)``; see `log`."""

    def slope(self, g: Blob, x: Blob, y: Blob) -> Blob:
        return divide(g, x)


@dataclass(frozen=True)
class Sqrt(_Smooth):
    """``y = x ** 0.5``; see `sqrt`."""

    def slope(self, g: Blob, x: Blob, y: Blob) -> Blob:
        return scale(divide(g, y), 0.5)


@dataclass(frozen=True)
class Reciprocal(_Smooth):
    """``y = 1 / x``; see `reciprocal`."""

    def slope(self, g: Blob, x: Blob, y: Blob) -> Blob:
        return scale(multiply(g, square(y)), -1.0)


@dataclass(frozen=True)
class Square(_Smooth):
    """``y = x * x``; see `square`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        same_numbers("Square", x=inputs[0])
        return inputs

    def slope(self, g: Blob, x: Blob, y: Blob) -> Blob:
        return scale(multiply(g, x), 2.0)


@dataclass(frozen=True)
class Power(Binary):
    """``y = a ** b``; see `power`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape that ``a`` and ``b`` have together, and their dtype."""
        a, b = inputs
        same_numbers("Power", ordered=True, a=a, b=b)
        return (TensorSpec(broadcast_shape("Power", a=a, b=b), a.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """``b * a ** (b - 1)`` and ``y * log(a)``; 0 where the power does not depend on the operand."""
        (g,), (a, b) = grads, op.inputs
        assert g is not None
        zero = number_like(0.0, g)
        da = db = None
        if wanted[0]:
            slope = multiply(b, power(a, subtract(b, 1.0)))
            da = sum_to(where(equal(b, 0.0), zero, multiply(g, slope)), a.shape)
        if wanted[1]:
            is_flat = logical_and(equal(a, 0.0), greater_equal(b, 0.0))
            db = sum_to(multiply(g, where(is_flat, zero, multiply(op.outputs[0], log(a)))), b.shape)
        return [da, db]


def exp(x: Blob, name: str | None = None) -> Blob:
    """The exponential: ``y = e ** x``.

    Args:
        x: Any shape, floating.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is of another kind.
    Gradient: g * y.
    Source: `numpy.exp`.
    """
    return blob_of(Exp(), x, name=name)


def log(x: Blob, name: str | None = None) -> Blob:
    """The natural logarithm; minus infinity of 0, not a number of what is negative.

    Arguments, result and errors: those of `exp`.
    Gradient: g / x.
    Source: `numpy.log`.
    """
    return blob_of(Log(), x, name=name)


def sqrt(x: Blob, name: str | None = None) -> Blob:
    """The square root; not a number of what is negative.

    Arguments, result and errors: those of `exp`.
    Gradient: g / (2 * y).
    Source: `numpy.sqrt`.
    """
    return blob_of(Sqrt(), x, name=name)


def square(x: Blob, name: str | None = None) -> Blob:
    """The square: ``y = x * x``.

    Args:
        x: Any shape, numeric.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is of another kind.
    Gradient: 2 * g * x.
    Source: `numpy.square`.
    """
    return blob_of(Square(), x, name=name)


def reciprocal(x: Blob, name: str | None = None) -> Blob:
    """The reciprocal: ``y = 1 / x``; infinite for 0.

    Arguments, result and errors: those of `exp`.
    Gradient: -g * y * y.
    Source: `numpy.reciprocal`.
    """
    return blob_of(Reciprocal(), x, name=name)


def power(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The elementwise power: ``y = a ** b``.

    Args:
        a: Any shape, integer or floating; integers are raised to powers that are not negative. A number has the dtype
            of ``b``.
        b: A shape that broadcasts with ``a``, its dtype; or a number.
        name: Name of the op.
    Returns:
        Blob of the common shape and dtype.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Gradient: da = g * b * a ** (b - 1), 0 where b is 0; db = g * y * log(a), 0 where a is 0 and b is not negative;
        summed over what was broadcast.
    Source: `numpy.power`; its gradient is PyTorch's.
    """
    return blob_of(Power(), *with_numbers(a, b), name=name)
