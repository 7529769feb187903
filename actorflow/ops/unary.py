"""Elementwise operations on one blob: signs, rounding, clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.errors import DTypeError, GraphError
from actorflow.ops.arithmetic import multiply
from actorflow.ops.broadcast import number_like
from actorflow.ops.compare import greater_equal, less_equal, where
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, same_dtype, same_numbers
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class Negative(Operation):
    """``y = -x``; see `negative`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            DTypeError: if ``x`` has no negative numbers.
        """
        same_numbers("Negative", x=inputs[0])
        if inputs[0].dtype.kind == "u":
            raise DTypeError(f"Negative: x must be signed, got {inputs[0]}")
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The negative gradient."""
        assert grads[0] is not None
        return [apply(self, grads[0])]


class _Ordered(Operation):
    """``y`` of the type of ``x``, which is real."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        same_numbers(self.kind, ordered=True, x=inputs[0])
        return inputs


@dataclass(frozen=True)
class Absolute(_Ordered):
    """``y = |x|``; see `absolute`."""

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """With the sign of ``x``."""
        assert grads[0] is not None
        return [multiply(grads[0], sign(op.inputs[0]))]


@dataclass(frozen=True)
class Clip(_Ordered):
    """``y = min(max(x, low), high)``; see `clip`.

    Attributes:
        low: Least value; None for no bound.
        high: Largest value; None for no bound.
    """

    low: float | None = None
    high: float | None = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            GraphError: if the bounds are in the wrong order.
            DTypeError: if ``x`` is of integers and a bound is none.
        """
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise GraphError(f"Clip: low must not be more than high, got {self.low} and {self.high}")
        for name, bound in (("low", self.low), ("high", self.high)):
            if bound is not None and inputs[0].dtype.kind in "iu" and not isinstance(bound, int):
                raise DTypeError(f"Clip: {name} must be an integer for x {inputs[0]}, got {bound}")
        return _Ordered.infer(self, *inputs)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient where nothing was clipped."""
        g, x = grads[0], op.inputs[0]
        assert g is not None
        zero = number_like(0.0, g)
        if self.low is not None:
            g = where(greater_equal(x, self.low), g, zero)
        if self.high is not None:
            g = where(less_equal(x, self.high), g, zero)
        return [g]


class _Step(Operation):
    """``y`` of the type of ``x``, constant in pieces, so the gradient is 0."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        same_dtype(self.kind, x=inputs[0])
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """0."""
        return [None]


@dataclass(frozen=True)
class Sign(_Step):
    """``y = -1, 0 or 1``; see `sign`."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        same_numbers("Sign", ordered=True, x=inputs[0])
        return inputs


@dataclass(frozen=True)
class Floor(_Step):
    """The largest integer that is not more; see `floor`."""


@dataclass(frozen=True)
class Ceil(_Step):
    """The smallest integer that is not less; see `ceil`."""


@dataclass(frozen=True)
class Round(_Step):
    """The nearest integer; see `round`."""


def negative(x: Blob, name: str | None = None) -> Blob:
    """The negative: ``y = -x``.

    Args:
        x: Any shape, numeric and signed.
        name: Name of the op.
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
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is of another kind.
    Gradient: g * sign(x).
    Source: `numpy.absolute`.
    """
    return blob_of(Absolute(), x, name=name)


def sign(x: Blob, name: str | None = None) -> Blob:
    """The sign: -1, 0 or 1, not a number where ``x`` is not.

    Args:
        x: Any shape, integer or floating.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is of another kind.
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
        name: Name of the op.
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

    Args:
        x: Any shape, floating.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        DTypeError: if ``x`` is of another kind.
    Gradient: 0.
    Source: `numpy.floor`.
    """
    return blob_of(Floor(), x, name=name)


def ceil(x: Blob, name: str | None = None) -> Blob:
    """The smallest integer that is not less than ``x``.

    Arguments, result and errors: those of `floor`.
    Gradient: 0.
    Source: `numpy.ceil`.
    """
    return blob_of(Ceil(), x, name=name)


def round(x: Blob, name: str | None = None) -> Blob:
    """The nearest integer; of two that are equally near, the even one.

    Arguments, result and errors: those of `floor`.
    Gradient: 0.
    Source: `numpy.round`.
    """
    return blob_of(Round(), x, name=name)
