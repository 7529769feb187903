"""Elementwise operations, with broadcasting: arithmetic, powers, rounding, comparison, logic, choice, dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError
from actorflow.ops.fills import number_like, with_numbers
from actorflow.ops.operation import Application, Grads, Operation, apply, blob_of, same_dtype, same_numbers
from actorflow.ops.shaping import broadcast_shape, sum_to
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


@dataclass(frozen=True)
class Copy(Operation):
    """``y = x``, any dtype."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return grads


@dataclass(frozen=True)
class Dummy(Operation):
    """``y = x``, once everything in ``after`` has been computed; see `dummy`."""

    arguments = ("x", "*after")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return inputs[:1]

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [grads[0] if wanted[0] else None, *[None] * (len(wanted) - 1)]


def copy(x: Blob, name: str | None = None) -> Blob:
    """A copy of a blob.

    Args:
        x: Any shape and dtype.
    Returns:
        Blob of the type of ``x``.
    Gradient: dx = g.
    Source: Purine2 ``MemCopy``.
    """
    return blob_of(Copy(), x, name=name)


def dummy(x: Blob, *after: Blob, name: str | None = None) -> Blob:
    """A blob, once others have been computed: nothing but an order.

    Args:
        x: Any shape and dtype.
        after: One or more blobs of any type, of which only the end is waited for.
    Returns:
        Blob of the type of ``x``; its readers run after the producers of ``after``. On the CPU nothing is copied
        where nothing else reads ``x``.
    Gradient: dx = g; none for ``after``.
    Source: Purine2 ``Dummy``.
    """
    return blob_of(Dummy(), x, *after, name=name)


@dataclass(frozen=True)
class Cast(Operation):
    """``y = x`` in another dtype, rounded or cut off as NumPy's ``astype`` does."""

    dtype: np.dtype[np.generic]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if inputs[0].dtype.hasobject:
            raise DTypeError(f"Cast: x must be of numbers, got {inputs[0]}")
        return (TensorSpec(inputs[0].shape, self.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [None if grads[0] is None or not wanted[0] else apply(Cast(op.inputs[0].dtype), grads[0])]


def cast(x: Blob, dtype: npt.DTypeLike, *, name: str | None = None) -> Blob:
    """``x`` in another dtype.

    Args:
        x: Any shape, any dtype of numbers.
        dtype: The dtype of the result.
    Returns:
        The blob of the same shape.
    Raises:
        DTypeError: if NumPy does not know the dtype.
    Gradient: g in the dtype of ``x``, where both are floating.
    Source: `numpy.ndarray.astype`.
    """
    return blob_of(Cast(TensorSpec.of((), dtype).dtype), x, name=name)


_BOOL = np.dtype(np.bool_)


def _check_bool(kind: str, **inputs: TensorSpec) -> None:
    for name, spec in inputs.items():
        if spec.dtype != _BOOL:
            raise DTypeError(f"{kind}: {name} must be bool, got {spec}")


class _Comparison(Operation):
    """A bool for each pair of elements; there is no gradient."""

    arguments = ("a", "b")
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        a, b = inputs
        if a.dtype != _BOOL or not isinstance(self, Equal | NotEqual):
            same_numbers(self.kind, ordered=not isinstance(self, Equal | NotEqual), a=a, b=b)
        else:
            _check_bool(self.kind, b=b)
        return (TensorSpec(broadcast_shape(self.kind, a=a, b=b), _BOOL),)


@dataclass(frozen=True)
class Equal(_Comparison):
    """``y = a == b``; see `equal`."""


@dataclass(frozen=True)
class NotEqual(_Comparison):
    """``y = a != b``; see `not_equal`."""


@dataclass(frozen=True)
class Less(_Comparison):
    """``y = a < b``; see `less`."""


@dataclass(frozen=True)
class LessEqual(_Comparison):
    """``y = a <= b``; see `less_equal`."""


@dataclass(frozen=True)
class Greater(_Comparison):
    """``y = a > b``; see `greater`."""


@dataclass(frozen=True)
class GreaterEqual(_Comparison):
    """``y = a >= b``; see `greater_equal`."""


class _Logic(Operation):
    """A bool for each pair of bools."""

    arguments: ClassVar[tuple[str, ...]] = ("a", "b")
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        named = dict(zip(self.arguments, inputs, strict=True))
        _check_bool(self.kind, **named)
        return (TensorSpec(broadcast_shape(self.kind, **named), _BOOL),)


@dataclass(frozen=True)
class LogicalAnd(_Logic):
    """``y = a and b``; see `logical_and`."""


@dataclass(frozen=True)
class LogicalOr(_Logic):
    """``y = a or b``; see `logical_or`."""


@dataclass(frozen=True)
class LogicalXor(_Logic):
    """``y = a != b`` of bools; see `logical_xor`."""


@dataclass(frozen=True)
class LogicalNot(_Logic):
    """``y = not x``; see `logical_not`."""

    arguments = ("x",)


@dataclass(frozen=True)
class Where(Operation):
    """``y = a if condition else b``, elementwise; see `where`."""

    arguments = ("condition", "a", "b")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        condition, a, b = inputs
        _check_bool("Where", condition=condition)
        if b.dtype != a.dtype:
            raise DTypeError(f"Where: b must have a's dtype {a.dtype}, got {b}")
        return (TensorSpec(broadcast_shape("Where", condition=condition, a=a, b=b), a.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,), (condition, a, b) = grads, op.inputs
        zero = number_like(0.0, g)
        return [
            None,
            sum_to(apply(self, condition, g, zero), a.shape) if wanted[1] else None,
            sum_to(apply(self, condition, zero, g), b.shape) if wanted[2] else None,
        ]


def equal(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Elementwise comparison for equality: ``y = a == b``.

    Args:
        a: Any shape, any numeric dtype or bool; a number has the dtype of ``b``.
        b: A shape that broadcasts with ``a``, its dtype; or a number.
    Returns:
        Blob of the common shape, bool.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Source: `numpy.equal`.
    """
    return blob_of(Equal(), *with_numbers(a, b), name=name)


def not_equal(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Elementwise comparison for difference: ``y = a != b``.

    Arguments, result and errors: those of `equal`.
    Source: `numpy.not_equal`.
    """
    return blob_of(NotEqual(), *with_numbers(a, b), name=name)


def less(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Elementwise "less than": ``y = a < b``.

    Arguments, result and errors: those of `equal`, but ``a`` is neither bool nor complex.
    Source: `numpy.less`.
    """
    return blob_of(Less(), *with_numbers(a, b), name=name)


def less_equal(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Elementwise "less than or equal": ``y = a <= b``.

    Arguments, result and errors: those of `less`.
    Source: `numpy.less_equal`.
    """
    return blob_of(LessEqual(), *with_numbers(a, b), name=name)


def greater(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Elementwise "greater than": ``y = a > b``.

    Arguments, result and errors: those of `less`.
    Source: `numpy.greater`.
    """
    return blob_of(Greater(), *with_numbers(a, b), name=name)


def greater_equal(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Elementwise "greater than or equal": ``y = a >= b``.

    Arguments, result and errors: those of `less`.
    Source: `numpy.greater_equal`.
    """
    return blob_of(GreaterEqual(), *with_numbers(a, b), name=name)


def logical_and(a: Blob | bool, b: Blob | bool, name: str | None = None) -> Blob:
    """Elementwise "and": true where both are.

    Args:
        a: Any shape, bool.
        b: A shape that broadcasts with ``a``, bool.
    Returns:
        Blob of the common shape, bool.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Source: `numpy.logical_and`.
    """
    return blob_of(LogicalAnd(), *with_numbers(a, b), name=name)


def logical_or(a: Blob | bool, b: Blob | bool, name: str | None = None) -> Blob:
    """Elementwise "or": true where one or both are.

    Arguments, result and errors: those of `logical_and`.
    Source: `numpy.logical_or`.
    """
    return blob_of(LogicalOr(), *with_numbers(a, b), name=name)


def logical_xor(a: Blob | bool, b: Blob | bool, name: str | None = None) -> Blob:
    """Elementwise "exclusive or": true where exactly one is.

    Arguments, result and errors: those of `logical_and`.
    Source: `numpy.logical_xor`.
    """
    return blob_of(LogicalXor(), *with_numbers(a, b), name=name)


def logical_not(x: Blob, name: str | None = None) -> Blob:
    """Elementwise "not": true where ``x`` is false.

    Args:
        x: Any shape, bool.
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is not bool.
    Source: `numpy.logical_not`.
    """
    return blob_of(LogicalNot(), x, name=name)


def where(condition: Blob, a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Elements of ``a`` where a condition holds, of ``b`` elsewhere.

    Args:
        condition: Any shape, bool.
        a: A shape that broadcasts with ``condition``, any dtype; a number has the dtype of ``b``.
        b: Likewise, the dtype of ``a``; or a number.
    Returns:
        Blob of the common shape, and the dtype of ``a``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: da = g where the condition holds, else 0; db the other way round; summed over what was broadcast.
    Source: `numpy.where`.
    """
    return blob_of(Where(), condition, *with_numbers(a, b), name=name)


def _terms(kind: str, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    named = {f"terms[{i}]": spec for i, spec in enumerate(inputs)}
    same_numbers(kind, ordered=False, **named)
    return (TensorSpec(broadcast_shape(kind, **named), inputs[0].dtype),)


@dataclass(frozen=True)
class Sum(Operation):
    """``y = terms[0] + terms[1] + ...``, added in this order; see `add`. The sum along axes is `ReduceSum`."""

    arguments = ("*terms",)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return _terms("Sum", inputs)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [sum_to(grads[0], x.shape) if want else None for x, want in zip(op.inputs, wanted, strict=True)]


@dataclass(frozen=True)
class WeightedSum(Operation):
    """``y = weights[0] * terms[0] + weights[1] * terms[1] + ...``, added in this order; see `weighted_sum`."""

    arguments = ("*terms",)

    weights: tuple[float, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if len(self.weights) != len(inputs):
            raise GraphError(f"WeightedSum: give a weight for each of {len(inputs)} terms, got {len(self.weights)}")
        same_dtype("WeightedSum", **{f"terms[{i}]": spec for i, spec in enumerate(inputs)})
        return _terms("WeightedSum", inputs)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [
            scale(sum_to(grads[0], x.shape), weight) if want else None
            for x, weight, want in zip(op.inputs, self.weights, wanted, strict=True)
        ]


@dataclass(frozen=True)
class Scale(Operation):
    """``y = factor * x``; see `scale`."""

    factor: float

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_dtype("Scale", x=inputs[0])
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(self, grads[0])]


class Binary(Operation):
    """A number for each pair of numbers, which must be real if they are ``ordered``."""

    arguments = ("a", "b")
    ordered: ClassVar[bool] = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        a, b = inputs
        same_numbers(self.kind, self.ordered, a=a, b=b)
        return (TensorSpec(broadcast_shape(self.kind, a=a, b=b), a.dtype),)


@dataclass(frozen=True)
class Subtract(Binary):
    """``y = a - b``; see `subtract`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,), (a, b) = grads, op.inputs
        return [sum_to(g, a.shape) if wanted[0] else None, scale(sum_to(g, b.shape), -1.0) if wanted[1] else None]


@dataclass(frozen=True)
class Multiply(Binary):
    """``y = a * b``; see `multiply`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,), (a, b) = grads, op.inputs
        return [
            sum_to(multiply(g, b), a.shape) if wanted[0] else None,
            sum_to(multiply(g, a), b.shape) if wanted[1] else None,
        ]


@dataclass(frozen=True)
class Divide(Binary):
    """``y = a / b``; see `divide`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        a, b = inputs
        same_dtype(self.kind, a=a, b=b)
        return (TensorSpec(broadcast_shape(self.kind, a=a, b=b), a.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,), (a, b) = grads, op.inputs
        shares = divide(g, b)
        return [
            sum_to(shares, a.shape) if wanted[0] else None,
            scale(sum_to(multiply(shares, op.outputs[0]), b.shape), -1.0) if wanted[1] else None,
        ]


class _Extreme(Binary):
    """One of two numbers."""

    ordered = True

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,), (a, b) = grads, op.inputs
        low, high = (a, b) if isinstance(self, Maximum) else (b, a)
        shared = where(equal(a, b), scale(g, 0.5), g)
        zero = number_like(0.0, g)
        return [
            sum_to(where(less(low, high), zero, shared), a.shape) if wanted[0] else None,
            sum_to(where(less(high, low), zero, shared), b.shape) if wanted[1] else None,
        ]


@dataclass(frozen=True)
class Maximum(_Extreme):
    """``y = max(a, b)``; see `maximum`."""


@dataclass(frozen=True)
class Minimum(_Extreme):
    """``y = min(a, b)``; see `minimum`."""


def add(*terms: Blob | float, name: str | None = None) -> Blob:
    """The sum of blobs, added in the given order.

    Args:
        terms: One or more blobs of shapes that broadcast and one numeric dtype; numbers have that dtype.
    Returns:
        Blob of the common shape and their dtype.
    Raises:
        ShapeError, DTypeError: if the terms do not fit.
    Gradient: g for each term, summed over what was broadcast.
    Source: Purine2 ``Sum``.
    """
    return blob_of(Sum(), *with_numbers(*terms), name=name)


def weighted_sum(terms: Sequence[Blob], weights: Sequence[float], name: str | None = None) -> Blob:
    """The sum of blobs times constants, added in the given order.

    Args:
        terms: One or more blobs of shapes that broadcast and one floating dtype.
        weights: A constant for each.
    Returns:
        Blob of the common shape and their dtype.
    Raises:
        GraphError: if there is not one weight for each term.
        ShapeError, DTypeError: if the terms do not fit.
    Gradient: weight * g for each term, summed over what was broadcast.
    Source: Purine2 ``WeightedSum``.
    """
    return blob_of(WeightedSum(tuple([float(weight) for weight in weights])), *terms, name=name)


def average(*terms: Blob, name: str | None = None) -> Blob:
    """The average of blobs; the mean of one along axes is `actorflow.ops.mean`.

    Arguments, result and errors: those of `weighted_sum`, but there are no weights.
    Gradient: g / number of terms for each, summed over what was broadcast.
    Source: Purine2 ``Average``.
    """
    return weighted_sum(terms, [1.0 / len(terms)] * len(terms), name=name or "average")


def scale(x: Blob, factor: float, name: str | None = None) -> Blob:
    """A blob times a constant.

    Args:
        x: Any shape, floating.
        factor: The constant.
    Returns:
        Blob of the type of ``x``.
    Gradient: dx = factor * g.
    Source: Purine2 ``Scale``.
    """
    return blob_of(Scale(factor), x, name=name)


def subtract(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The elementwise difference: ``y = a - b``.

    Args:
        a: Any shape, numeric; a number has the dtype of ``b``.
        b: A shape that broadcasts with ``a``, its dtype; or a number.
    Returns:
        Blob of the common shape and dtype.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Gradient: da = g; db = -g; summed over what was broadcast.
    Source: `numpy.subtract`.
    """
    return blob_of(Subtract(), *with_numbers(a, b), name=name)


def multiply(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The elementwise product: ``y = a * b``.

    Arguments, result and errors: those of `subtract`.
    Gradient: da = g * b; db = g * a; summed over what was broadcast.
    Source: Purine2 ``Mul``.
    """
    return blob_of(Multiply(), *with_numbers(a, b), name=name)


def divide(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The elementwise quotient: ``y = a / b``; by 0 it is infinite or NaN.

    Arguments, result and errors: those of `subtract`, but ``a`` is floating.
    Gradient: da = g / b; db = -g * y / b; summed over what was broadcast.
    Source: `numpy.divide`.
    """
    return blob_of(Divide(), *with_numbers(a, b), name=name)


def maximum(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The larger one of two elements; NaN if one is.

    Arguments, result and errors: those of `subtract`, but ``a`` is not complex.
    Gradient: g for the larger operand, g / 2 for both where they are equal; summed over what was broadcast.
    Source: `numpy.maximum`; its gradient is PyTorch's.
    """
    return blob_of(Maximum(), *with_numbers(a, b), name=name)


def minimum(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The smaller one of two elements; NaN if one is.

    Arguments, result and errors: those of `maximum`.
    Gradient: g for the smaller operand, g / 2 for both where they are equal; summed over what was broadcast.
    Source: `numpy.minimum`; its gradient is PyTorch's.
    """
    return blob_of(Minimum(), *with_numbers(a, b), name=name)


def plus(*terms: Blob) -> Blob:
    """The sum of one or more blobs of one type."""
    y: Blob = terms[0] if len(terms) == 1 else apply(Sum(), *terms)
    return y


def times(a: Blob, b: Blob) -> Blob:
    """The product of two blobs."""
    return blob_of(Multiply(), a, b)


def scaled(x: Blob, factor: float) -> Blob:
    """A blob times a constant."""
    y: Blob = x if factor == 1 else apply(Scale(factor), x)
    return y


@dataclass(frozen=True)
class Negative(Operation):
    """``y = -x``; see `negative`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers("Negative", x=inputs[0])
        if inputs[0].dtype.kind == "u":
            raise DTypeError(f"Negative: x must be signed, got {inputs[0]}")
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [apply(self, grads[0])]


class _Ordered(Operation):
    """``y`` of the type of ``x``, which is real."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers(self.kind, ordered=True, x=inputs[0])
        return inputs


@dataclass(frozen=True)
class Absolute(_Ordered):
    """``y = |x|``; see `absolute`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [multiply(grads[0], sign(op.inputs[0]))]


@dataclass(frozen=True)
class Clip(_Ordered):
    """``y = min(max(x, low), high)``; see `clip`."""

    low: float | None = None
    high: float | None = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise GraphError(f"Clip: low must not be more than high, got {self.low} and {self.high}")
        for name, bound in (("low", self.low), ("high", self.high)):
            if bound is not None and inputs[0].dtype.kind in "iu" and not isinstance(bound, int):
                raise DTypeError(f"Clip: {name} must be an integer for x {inputs[0]}, got {bound}")
        return _Ordered.infer(self, *inputs)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        g, x = grads[0], op.inputs[0]
        zero = number_like(0.0, g)
        if self.low is not None:
            g = where(greater_equal(x, self.low), g, zero)
        if self.high is not None:
            g = where(less_equal(x, self.high), g, zero)
        return [g]


class _Piecewise(Operation):
    """``y`` of the type of ``x``, constant in pieces, so the gradient is 0."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_dtype(self.kind, x=inputs[0])
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [None]


@dataclass(frozen=True)
class Sign(_Piecewise):
    """``y = -1, 0 or 1``; see `sign`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers("Sign", ordered=True, x=inputs[0])
        return inputs


@dataclass(frozen=True)
class Floor(_Piecewise):
    """The largest integer that is not more; see `floor`."""


@dataclass(frozen=True)
class Ceil(_Piecewise):
    """The smallest integer that is not less; see `ceil`."""


@dataclass(frozen=True)
class Round(_Piecewise):
    """The nearest integer; see `round`."""


def negative(x: Blob, name: str | None = None) -> Blob:
    """The negative: ``y = -x``.

    Args:
        x: Any shape, numeric and signed.
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is of another kind.
    Gradient: -g.
    Source: `numpy.negative`.
    """
    return blob_of(Negative(), x, name=name)


def absolute(x: Blob, name: str | None = None) -> Blob:
    """The absolute value: ``y = |x|``.

    Args:
        x: Any shape, integer or floating.
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is of another kind.
    Gradient: g * sign(x).
    Source: `numpy.absolute`.
    """
    return blob_of(Absolute(), x, name=name)


def sign(x: Blob, name: str | None = None) -> Blob:
    """The sign: -1, 0 or 1, NaN where ``x`` is.

    Arguments, result and errors: those of `absolute`.
    Gradient: 0.
    Source: `numpy.sign`.
    """
    return blob_of(Sign(), x, name=name)


def clip(x: Blob, low: float | None = None, high: float | None = None, name: str | None = None) -> Blob:
    """Values within bounds: ``y = min(max(x, low), high)``.

    Args:
        x: Any shape, integer or floating.
        low: Least value; None for no bound.
        high: Largest value; None for no bound.
    Returns:
        Blob of the type of ``x``.
    Raises:
        GraphError: if ``low`` is more than ``high``.
        DTypeError: if ``x`` is of integers and a bound is none.
    Gradient: g where low <= x <= high, else 0.
    Source: `numpy.clip`.
    """
    return blob_of(Clip(low, high), x, name=name)


def floor(x: Blob, name: str | None = None) -> Blob:
    """The largest integer that is not more than ``x``.

    Arguments, result and errors: those of `exp`.
    Gradient: 0.
    Source: `numpy.floor`.
    """
    return blob_of(Floor(), x, name=name)


def ceil(x: Blob, name: str | None = None) -> Blob:
    """The smallest integer that is not less than ``x``.

    Arguments, result and errors: those of `exp`.
    Gradient: 0.
    Source: `numpy.ceil`.
    """
    return blob_of(Ceil(), x, name=name)


def round(x: Blob, name: str | None = None) -> Blob:
    """The nearest integer; of two that are equally near, the even one.

    Arguments, result and errors: those of `exp`.
    Gradient: 0.
    Source: `numpy.round`.
    """
    return blob_of(Round(), x, name=name)


class _Smooth(Operation):
    """``y`` of the type of ``x``, which is floating."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_dtype(self.kind, x=inputs[0])
        return inputs

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [self.slope(grads[0], op.inputs[0], op.outputs[0])]

    def slope(self, g: Blob, x: Blob, y: Blob) -> Blob:
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
        same_numbers("Square", x=inputs[0])
        return inputs

    def slope(self, g: Blob, x: Blob, y: Blob) -> Blob:
        return scale(multiply(g, x), 2.0)


@dataclass(frozen=True)
class Power(Binary):
    """``y = a ** b``; see `power`."""

    ordered = True

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,), (a, b) = grads, op.inputs
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
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is of another kind.
    Gradient: g * y.
    Source: `numpy.exp`.
    """
    return blob_of(Exp(), x, name=name)


def log(x: Blob, name: str | None = None) -> Blob:
    """The natural logarithm; minus infinity of 0, NaN of negative numbers.

    Arguments, result and errors: those of `exp`.
    Gradient: g / x.
    Source: `numpy.log`.
    """
    return blob_of(Log(), x, name=name)


def sqrt(x: Blob, name: str | None = None) -> Blob:
    """The square root; NaN of negative numbers.

    Arguments, result and errors: those of `exp`.
    Gradient: g / (2 * y).
    Source: `numpy.sqrt`.
    """
    return blob_of(Sqrt(), x, name=name)


def square(x: Blob, name: str | None = None) -> Blob:
    """The square: ``y = x * x``.

    Arguments, result and errors: those of `exp`, but ``x`` is numeric.
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
    Returns:
        Blob of the common shape and dtype.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Gradient: da = g * b * a ** (b - 1), 0 where b is 0; db = g * y * log(a), 0 where a is 0 and b is not negative;
        summed over what was broadcast.
    Source: `numpy.power`; its gradient is PyTorch's.
    """
    return blob_of(Power(), *with_numbers(a, b), name=name)
