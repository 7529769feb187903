"""Comparison, logic and choice, elementwise and with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from actorflow.errors import DTypeError
from actorflow.ops.broadcast import broadcast_shape, number_like, sum_to, with_numbers
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, same_numbers
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op

_BOOL = np.dtype(np.bool_)


def _check_bool(kind: str, **inputs: TensorSpec) -> None:
    for name, spec in inputs.items():
        if spec.dtype != _BOOL:
            raise DTypeError(f"{kind}: {name} must be bool, got {spec}")


class _Comparison(Operation):
    """A bool for each pair of elements; it is no smooth function, so it has no gradient."""

    arguments = ("a", "b")
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The shape that ``a`` and ``b`` have together, bool."""
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
        """The shape that the inputs have together, bool."""
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
        """The shape that all inputs have together, with the dtype of ``a``."""
        condition, a, b = inputs
        _check_bool("Where", condition=condition)
        if b.dtype != a.dtype:
            raise DTypeError(f"Where: b must have a's dtype {a.dtype}, got {b}")
        return (TensorSpec(broadcast_shape("Where", condition=condition, a=a, b=b), a.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient goes to where the element came from."""
        (g,), (condition, a, b) = grads, op.inputs
        assert g is not None
        zero = number_like(0.0, g)
        return [
            None,
            sum_to(apply(self, condition, g, zero), a.shape) if wanted[1] else None,
            sum_to(apply(self, condition, zero, g), b.shape) if wanted[2] else None,
        ]


def equal(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Whether elements are equal: ``y = a == b``.

    Args:
        a: Any shape, any numeric dtype or bool; a number has the dtype of ``b``.
        b: A shape that broadcasts with ``a``, its dtype; or a number.
        name: Name of the op.
    Returns:
        Blob of the common shape, bool.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Source: `numpy.equal`.
    """
    return blob_of(Equal(), *with_numbers(a, b), name=name)


def not_equal(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Whether elements differ: ``y = a != b``.

    Arguments, result and errors: those of `equal`.
    Source: `numpy.not_equal`.
    """
    return blob_of(NotEqual(), *with_numbers(a, b), name=name)


def less(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Whether elements are less: ``y = a < b``.

    Args:
        a: Any shape, any real dtype; a number has the dtype of ``b``.
        b: A shape that broadcasts with ``a``, its dtype; or a number.
        name: Name of the op.
    Returns:
        Blob of the common shape, bool.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Source: `numpy.less`.
    """
    return blob_of(Less(), *with_numbers(a, b), name=name)


def less_equal(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Whether elements are less or equal: ``y = a <= b``.

    Arguments, result and errors: those of `less`.
    Source: `numpy.less_equal`.
    """
    return blob_of(LessEqual(), *with_numbers(a, b), name=name)


def greater(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Whether elements are greater: ``y = a > b``.

    Arguments, result and errors: those of `less`.
    Source: `numpy.greater`.
    """
    return blob_of(Greater(), *with_numbers(a, b), name=name)


def greater_equal(a: Blob | float, b: Blob | float, name: str | None = None) -> Blob:
    """Whether elements are greater or equal: ``y = a >= b``.

    Arguments, result and errors: those of `less`.
    Source: `numpy.greater_equal`.
    """
    return blob_of(GreaterEqual(), *with_numbers(a, b), name=name)


def logical_and(a: Blob | bool, b: Blob | bool, name: str | None = None) -> Blob:
    """Whether both are true, elementwise.

    Args:
        a: Any shape, bool.
        b: A shape that broadcasts with ``a``, bool.
        name: Name of the op.
    Returns:
        Blob of the common shape, bool.
    Raises:
        ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
    Source: `numpy.logical_and`.
    """
    return blob_of(LogicalAnd(), *with_numbers(a, b), name=name)


def logical_or(a: Blob | bool, b: Blob | bool, name: str | None = None) -> Blob:
    """Whether one or both are true, elementwise.

    Arguments, result and errors: those of `logical_and`.
    Source: `numpy.logical_or`.
    """
    return blob_of(LogicalOr(), *with_numbers(a, b), name=name)


def logical_xor(a: Blob | bool, b: Blob | bool, name: str | None = None) -> Blob:
    """Whether exactly one is true, elementwise.

    Arguments, result and errors: those of `logical_and`.
    Source: `numpy.logical_xor`.
    """
    return blob_of(LogicalXor(), *with_numbers(a, b), name=name)


def logical_not(x: Blob, name: str | None = None) -> Blob:
    """Whether elements are false.

    Args:
        x: Any shape, bool.
        name: Name of the op.
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
        name: Name of the op.
    Returns:
        Blob of the common shape, and the dtype of ``a``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: da = g where the condition holds, else 0; db the other way round; summed over what was broadcast.
    Source: `numpy.where`.
    """
    return blob_of(Where(), condition, *with_numbers(a, b), name=name)
