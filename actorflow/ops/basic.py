"""Elementwise arithmetic, and operations that move, order or reshape values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.functional import apply
from actorflow.ops.operation import Operation, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph import Graph
    from actorflow.node import Blob, Op

__all__ = [
    "Copy",
    "Fill",
    "Mul",
    "Reshape",
    "Scale",
    "Sum",
    "add",
    "copy",
    "fill",
    "flatten",
    "mul",
    "reshape",
    "scale",
]


@dataclass(frozen=True)
class Copy(Operation):
    """``y = x``, any dtype.

    Gradient: dx = g.
    Source: Purine2 ``MemCopy``.
    """

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        return inputs

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient passes through."""
        return grads


@dataclass(frozen=True)
class Sum(Operation):
    """``y = terms[0] + terms[1] + ...``, added in this order; all of one shape and one numeric dtype.

    Gradient: g for each term.
    Source: Purine2 ``Sum``; also inserted for blobs with several producers.
    """

    arguments = ("*terms",)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of the terms.

        Raises:
            ShapeError, DTypeError: if they differ, or are not numbers.
        """
        first = inputs[0]
        if first.dtype.kind not in "iufcV":  # ml_dtypes' bfloat16 has kind V
            raise DTypeError(f"Sum: terms[0] must be numeric, got {first}")
        for i, spec in enumerate(inputs):
            if spec.dtype != first.dtype:
                raise DTypeError(f"Sum: terms[{i}] must have terms[0]'s dtype {first.dtype}, got {spec}")
            if spec.shape != first.shape:
                raise ShapeError(f"Sum: terms[{i}] must have terms[0]'s shape {first.shape}, got {spec}")
        return (first,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient goes to every term."""
        return [grads[0] if want else None for want in wanted]


@dataclass(frozen=True)
class Mul(Operation):
    """``y = a * b``, elementwise, equal shapes.

    Gradient: da = g * b; db = g * a.
    Source: Purine2 ``Mul``.
    """

    arguments = ("a", "b")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``a``.

        Raises:
            ShapeError, DTypeError: if ``a`` and ``b`` differ.
        """
        a, b = inputs
        same_dtype("Mul", a=a, b=b)
        if a.shape != b.shape:
            raise ShapeError(f"Mul: b must have a's shape {a.shape}, got {b}")
        return (a,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Products with the other factor."""
        (g,), (a, b) = grads, op.inputs
        assert g is not None
        return [apply(Mul(), g, b) if wanted[0] else None, apply(Mul(), g, a) if wanted[1] else None]


@dataclass(frozen=True)
class Scale(Operation):
    """``y = factor * x``.

    Gradient: dx = factor * g.
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


@dataclass(frozen=True)
class Fill(Operation):
    """A blob of one constant, from no inputs.

    Source: Purine2 ``Constant``.

    Attributes:
        value: The constant.
        spec: Shape and dtype of the result.
    """

    arguments = ()

    value: float
    spec: TensorSpec

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The declared type."""
        return (self.spec,)


@dataclass(frozen=True)
class Reshape(Operation):
    """The elements of ``x``, in their order, in another shape; any dtype; no copy on the CPU.

    Gradient: g in the shape of ``x``.

    Attributes:
        shape: The new shape; one axis may be -1 and takes what the others leave.
    """

    shape: tuple[int, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """``shape``, with -1 replaced.

        Raises:
            ShapeError: if the number of elements does not fit.
        """
        (x,) = inputs
        known = math.prod(axis for axis in self.shape if axis != -1)
        free = self.shape.count(-1)
        missing = x.size // known if free and known else 0
        shape = tuple(missing if axis == -1 else axis for axis in self.shape)
        if free > 1 or any(axis < 0 for axis in shape) or math.prod(shape) != x.size or (free and not known):
            raise ShapeError(f"Reshape: x of {x.size} elements cannot have shape {self.shape}, got {x}")
        return (TensorSpec(shape, x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient in the old shape."""
        assert grads[0] is not None
        return [apply(Reshape(op.inputs[0].shape), grads[0])]


def copy(x: Blob, name: str | None = None) -> Blob:
    """A copy of a blob.

    Args:
        x: Any shape and dtype.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Gradient: dx = g.
    Source: Purine2 ``MemCopy``.
    """
    y: Blob = apply(Copy(), x, name=name)
    return y


def add(*terms: Blob, name: str | None = None) -> Blob:
    """The sum of blobs, added in the given order.

    Args:
        terms: One or more blobs of one shape and one numeric dtype.
        name: Name of the op.
    Returns:
        Blob of their shape and dtype.
    Raises:
        ShapeError, DTypeError: if the terms differ.
    Gradient: g for each term.
    Source: Purine2 ``Sum``.
    """
    y: Blob = apply(Sum(), *terms, name=name)
    return y


def mul(a: Blob, b: Blob, name: str | None = None) -> Blob:
    """The elementwise product.

    Args:
        a: Any shape, floating.
        b: Shape and dtype of ``a``.
        name: Name of the op.
    Returns:
        Blob of the type of ``a``.
    Raises:
        ShapeError, DTypeError: if the factors differ.
    Gradient: da = g * b; db = g * a.
    Source: Purine2 ``Mul``.
    """
    y: Blob = apply(Mul(), a, b, name=name)
    return y


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
    y: Blob = apply(Scale(factor), x, name=name)
    return y


def fill(
    graph: Graph, value: float, shape: Iterable[int] | int, dtype: npt.DTypeLike = "float32", name: str | None = None
) -> Blob:
    """A blob filled with one constant.

    Args:
        graph: The graph that it is made in, as nothing else says it.
        value: The constant.
        shape: Length of each axis.
        dtype: Type of the elements.
        name: Name of the op.
    Returns:
        Blob of that shape and dtype.
    Source: Purine2 ``Constant``.
    """
    y: Blob = graph.root.apply(Fill(value, TensorSpec.of(shape, dtype)), name=name)
    return y


def reshape(x: Blob, shape: Iterable[int] | int, name: str | None = None) -> Blob:
    """The elements of ``x``, in C order, in another shape.

    Args:
        x: Any shape and dtype.
        shape: New shape; one axis may be -1.
        name: Name of the op.
    Returns:
        Blob of the new shape and the dtype of ``x``; on the CPU it shares the memory of ``x``.
    Raises:
        ShapeError: if the number of elements does not fit.
    Gradient: g in the shape of ``x``.
    """
    axes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    y: Blob = apply(Reshape(tuple(int(axis) for axis in axes)), x, name=name)
    return y


def flatten(x: Blob, name: str | None = None) -> Blob:
    """All axes but the first joined into one.

    Args:
        x: Shape (batch, ...), any dtype.
        name: Name of the op.
    Returns:
        Blob of shape (batch, elements per sample).
    Raises:
        ShapeError: if ``x`` has no axes.
    Gradient: g in the shape of ``x``.
    """
    if not x.shape:
        raise ShapeError(f"flatten: x must have shape (batch, ...), got {x.spec}")
    return reshape(x, (x.shape[0], math.prod(x.shape[1:])), name=name)
