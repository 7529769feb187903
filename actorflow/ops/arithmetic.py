"""Elementwise arithmetic of two or more blobs, with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.errors import GraphError
from actorflow.ops.broadcast import broadcast_shape, number_like, sum_to, with_numbers
from actorflow.ops.compare import equal, less, where
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, same_dtype, same_numbers
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


def _terms(kind: str, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    named = {f"terms[{i}]": spec for i, spec in enumerate(inputs)}
    same_numbers(kind, ordered=False, **named)
    return (TensorSpec(broadcast_shape(kind, **named), inputs[0].dtype),)


@dataclass(frozen=True)
class Sum(Operation):
    """``y = terms[0] + terms[1] + ...``, added in this order; see `add`. The sum along axes is `ReduceSum`.

    Source: Purine2 ``Sum``; also inserted for blobs with several producers.
    """

    arguments = ("*terms",)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape that the terms have together, and their dtype.

        Raises:
            ShapeError, DTypeError: if they do not fit, or are not numbers.
        """
        return _terms("Sum", inputs)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient goes to every term."""
        assert grads[0] is not None
        return [sum_to(grads[0], x.shape) if want else None for x, want in zip(op.inputs, wanted, strict=True)]


@dataclass(frozen=True)
class WeightedSum(Operation):
    """``y = weights[0] * terms[0] + weights[1] * terms[1] + ...``, added in this order; see `weighted_sum`.

    Attributes:
        weights: A constant for each term.
    """

    arguments = ("*terms",)

    weights: tuple[float, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape that the terms have together, and their dtype.

        Raises:
            GraphError: if there is not one weight for each term.
            ShapeError, DTypeError: if the terms do not fit, or are not floating.
        """
        if len(self.weights) != len(inputs):
            raise GraphError(f"WeightedSum: give a weight for each of {len(inputs)} terms, got {len(self.weights)}")
        same_dtype("WeightedSum", **{f"terms[{i}]": spec for i, spec in enumerate(inputs)})
        return _terms("WeightedSum", inputs)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The weighted gradient."""
        assert grads[0] is not None
        return [
            scale(sum_to(grads[0], x.shape), weight) if want else None
            for x, weight, want in zip(op.inputs, self.weights, wanted, strict=True)
        ]


@dataclass(frozen=True)
class Scale(Operation):
    """``y = factor * x``; see `scale`.

    Source: Purine2 ``Scale``.

    Attributes:
        factor: A constant.
    """

    factor: float

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        same_dtype("Scale", x=inputs[0])
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The scaled gradient."""
        assert grads[0] is not None
        return [apply(self, grads[0])]


class Binary(Operation):
    """A number for each pair of numbers."""

    arguments = ("a", "b")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape that ``a`` and ``b`` have together, and their dtype.

        Raises:
            ShapeError, DTypeError: if they do not fit, or are not numbers.
        """
        a, b = inputs
        same_numbers(self.kind, a=a, b=b)
        return (TensorSpec(broadcast_shape(self.kind, a=a, b=b), a.dtype),)


@dataclass(frozen=True)
class Subtract(Binary):
    """``y = a - b``; see `subtract`."""

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient, and the negative one."""
        (g,), (a, b) = grads, op.inputs
        assert g is not None
        return [sum_to(g, a.shape) if wanted[0] else None, scale(sum_to(g, b.shape), -1.0) if wanted[1] else None]


@dataclass(frozen=True)
class Multiply(Binary):
    """``y = a * b``; see `multiply`.

    Source: Purine2 ``Mul``.
    """

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Products with the other factor."""
        (g,), (a, b) = grads, op.inputs
        assert g is not None
        return [
            sum_to(multiply(g, b), a.shape) if wanted[0] else None,
            sum_to(multiply(g, a), b.shape) if wanted[1] else None,
        ]


@dataclass(frozen=True)
class Divide(Binary):
    """``y = a / b``; see `divide`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape that ``a`` and ``b`` have together, and their dtype."""
        a, b = inputs
        same_dtype(self.kind, a=a, b=b)
        return (TensorSpec(broadcast_shape(self.kind, a=a, b=b), a.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """``g / b``, and ``-g / b * y``."""
        (g,), (a, b) = grads, op.inputs
        assert g is not None
        shares = divide(g, b)
        return [
            sum_to(shares, a.shape) if wanted[0] else None,
            scale(sum_to(multiply(shares, op.outputs[0]), b.shape), -1.0) if wanted[1] else None,
        ]


class _Extreme(Binary):
    """One of two numbers."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape that ``a`` and ``b`` have together, and their dtype."""
        a, b = inputs
        same_numbers(self.kind, ordered=True, a=a, b=b)
        return (TensorSpec(broadcast_shape(self.kind, a=a, b=b), a.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient goes to the operand that was taken, half of it to each where they are equal."""
        (g,), (a, b) = grads, op.inputs
        assert g is not None
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
        name: Name of the op.
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
        name: Name of the op.
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

    Args:
        terms: One or more blobs of shapes that broadcast and one floating dtype.
        name: Name of the op.
    Returns:
        Blob of the common shape and their dtype.
    Raises:
        ShapeError, DTypeError: if the terms do not fit.
    Gradient: g / number of terms for each, summed over what was broadcast.
    Source: Purine2 ``Average``.
    """
    return weighted_sum(terms, [1.0 / len(terms)] * len(terms), name=name or "average")


def scale(x: Blob, factor: float, name: str | None = None) -> Blob:
    """A blob times a constant.

    Args:
        x: Any shape, floating.
        factor: The constant.
        name: Name of the op.
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
        name: Name of the op.
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

    Args:
        a: Any shape, numeric; a number has the dtype of ``b``.
        b: A shape that broadcasts with ``a``, its dtype; or a number.
        name: Name of the op.
    Returns:
        Blob of the common shape and dtype.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Gradient: da = g * b; db = g * a; summed over what was broadcast.
    Source: Purine2 ``Mul``.
    """
    return blob_of(Multiply(), *with_numbers(a, b), name=name)


def divide(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The elementwise quotient: ``y = a / b``; by 0 it is infinite or not a number.

    Args:
        a: Any shape, floating; a number has the dtype of ``b``.
        b: A shape that broadcasts with ``a``, its dtype; or a number.
        name: Name of the op.
    Returns:
        Blob of the common shape and dtype.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Gradient: da = g / b; db = -g * y / b; summed over what was broadcast.
    Source: `numpy.divide`.
    """
    return blob_of(Divide(), *with_numbers(a, b), name=name)


def maximum(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The larger one of two elements; not a number if one is not.

    Args:
        a: Any shape, integer or floating; a number has the dtype of ``b``.
        b: A shape that broadcasts with ``a``, its dtype; or a number.
        name: Name of the op.
    Returns:
        Blob of the common shape and dtype.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Gradient: g for the larger operand, g / 2 for both where they are equal; summed over what was broadcast.
    Source: `numpy.maximum`; its gradient is PyTorch's.
    """
    return blob_of(Maximum(), *with_numbers(a, b), name=name)


def minimum(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """The smaller one of two elements; not a number if one is not.

    Arguments, result and errors: those of `maximum`.
    Gradient: g for the smaller operand, g / 2 for both where they are equal; summed over what was broadcast.
    Source: `numpy.minimum`; its gradient is PyTorch's.
    """
    return blob_of(Minimum(), *with_numbers(a, b), name=name)
