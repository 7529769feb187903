"""Products of matrices, and the bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from actorflow.errors import ShapeError
from actorflow.ops.operation import Application, Grads, Operation, apply, blob_of, rank_is, same_dtype
from actorflow.ops.shaping import spread
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


def _has_features(kind: str, name: str, spec: TensorSpec, features: str) -> None:
    if len(spec.shape) < 2:
        raise ShapeError(f"{kind}: {name} must have shape (batch, ..., {features}), got {spec}")


@dataclass(frozen=True)
class Inner(Operation):
    """``y = x @ weight.T``; see `inner`."""

    arguments = ("x", "weight")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, weight = inputs
        same_dtype("Inner", x=x, weight=weight)
        _has_features("Inner", "x", x, "in_features")
        rank_is("Inner", "weight", weight, ("out_features", "in_features"))
        if x.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"Inner: weight must have x's {x.shape[-1]} features on its last axis, got {weight}; x is {x}"
            )
        return (TensorSpec((*x.shape[:-1], weight.shape[0]), x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,), (x, weight) = grads, op.inputs
        return [apply(InnerDown(), g, weight) if wanted[0] else None, apply(InnerWeight(), g, x) if wanted[1] else None]


@dataclass(frozen=True)
class InnerDown(Operation):
    """``dx = g @ weight``: the data gradient of `Inner`.

    Source: Purine2 ``InnerDown``.
    """

    arguments = ("g", "weight")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, weight = inputs
        same_dtype("InnerDown", g=g, weight=weight)
        _has_features("InnerDown", "g", g, "out_features")
        rank_is("InnerDown", "weight", weight, ("out_features", "in_features"))
        if g.shape[-1] != weight.shape[0]:
            raise ShapeError(f"InnerDown: weight must have g's {g.shape[-1]} features on its first axis, got {weight}")
        return (TensorSpec((*g.shape[:-1], weight.shape[1]), g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (c,), (g, weight) = grads, op.inputs
        return [apply(Inner(), c, weight) if wanted[0] else None, apply(InnerWeight(), g, c) if wanted[1] else None]


@dataclass(frozen=True)
class InnerWeight(Operation):
    """``dweight = g.T @ x``: the weight gradient of `Inner`.

    Source: Purine2 ``InnerWeight``.
    """

    arguments = ("g", "x")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, x = inputs
        same_dtype("InnerWeight", g=g, x=x)
        _has_features("InnerWeight", "g", g, "out_features")
        _has_features("InnerWeight", "x", x, "in_features")
        if g.shape[:-1] != x.shape[:-1]:
            raise ShapeError(f"InnerWeight: x must have g's batch {g.shape[:-1]}, got {x}")
        return (TensorSpec((g.shape[-1], x.shape[-1]), g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (c,), (g, x) = grads, op.inputs
        return [apply(Inner(), x, c) if wanted[0] else None, apply(InnerDown(), g, c) if wanted[1] else None]


@dataclass(frozen=True)
class Bias(Operation):
    """``y = x + bias``, over the last axis; see `bias`."""

    arguments = ("x", "bias")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, bias = inputs
        same_dtype("Bias", x=x, bias=bias)
        if not x.shape:
            raise ShapeError(f"Bias: x must have shape (..., features), got {x}")
        if bias.shape != x.shape[-1:]:
            raise ShapeError(f"Bias: bias must have the shape of x's last axis {x.shape[-1:]}, got {bias}; x is {x}")
        return (x,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,) = grads
        return [g if wanted[0] else None, apply(BiasDown(), g) if wanted[1] else None]


@dataclass(frozen=True)
class BiasDown(Operation):
    """``dbias = g`` summed over all axes but the last: the gradient of `Bias`.

    Source: Purine2 ``BiasDown``.
    """

    arguments = ("g",)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (g,) = inputs
        same_dtype("BiasDown", g=g)
        if not g.shape:
            raise ShapeError(f"BiasDown: g must have shape (..., features), got {g}")
        return (TensorSpec(g.shape[-1:], g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return [spread(grads[0], op.inputs[0])]


def inner(x: Blob, weight: Blob, name: str | None = None) -> Blob:
    """Matrix product over the last axis: ``y = x @ weight.T``.

    Args:
        x: Input blob, shape (batch, ..., in_features), floating.
        weight: Shape (out_features, in_features), dtype of ``x``.
    Returns:
        Blob of shape (batch, ..., out_features), dtype of ``x``.
    Raises:
        ShapeError: if the last axes differ.
        DTypeError: if the dtypes differ or are not floating.
    Gradient: dx = g @ weight; dweight = g.T @ x.
    Source: Purine2 ``Inner``.
    """
    return blob_of(Inner(), x, weight, name=name)


def bias(x: Blob, bias: Blob, name: str | None = None) -> Blob:
    """A vector added along the last axis: ``y = x + bias``.

    Args:
        x: Input blob, shape (..., features), floating.
        bias: Shape (features,), dtype of ``x``.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``bias`` does not have the shape of the last axis.
        DTypeError: if the dtypes differ or are not floating.
    Gradient: dx = g; dbias = g summed over all axes but the last.
    Source: Purine2 ``Bias``.
    """
    return blob_of(Bias(), x, bias, name=name)


@dataclass(frozen=True)
class Matmul(Operation):
    """``y = a @ b`` over the last two axes; see `matmul`.

    Attributes:
        batch: Axes of the result before the matrices: products are summed over axes that it lacks or has length 1 on,
            and repeated on those that they lack or have length 1 on. None for those of the products. Gradients of
            operands that were broadcast need it.
    """

    arguments = ("a", "b")

    transpose_a: bool = False
    transpose_b: bool = False
    batch: tuple[int, ...] | None = None

    def product_batch(self, a: TensorSpec, b: TensorSpec) -> tuple[int, ...]:
        """The axes before the matrices that the products have."""
        try:
            return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            raise ShapeError(f"Matmul: b must broadcast with a's batch {a.shape[:-2]}, got {b}; a is {a}") from None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        a, b = inputs
        same_dtype("Matmul", a=a, b=b)
        for name, spec in (("a", a), ("b", b)):
            if len(spec.shape) < 2:
                raise ShapeError(f"Matmul: {name} must have shape (..., rows, columns), got {spec}")
        rows, inner = a.shape[-2:][:: -1 if self.transpose_a else 1]
        other, columns = b.shape[-2:][:: -1 if self.transpose_b else 1]
        if inner != other:
            axis = "last" if self.transpose_b else "second last"
            raise ShapeError(f"Matmul: b must have length {inner} on its {axis} axis, got {b}; a is {a}")
        batch = self.product_batch(a, b)
        if self.batch is not None:
            try:
                np.broadcast_shapes(batch, self.batch)
            except ValueError:
                raise ShapeError(f"Matmul: products of batch {batch} cannot be summed to {self.batch}") from None
            batch = self.batch
        return (TensorSpec((*batch, rows, columns), a.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        (g,), (a, b) = grads, op.inputs
        da = db = None
        if wanted[0]:
            batch = a.shape[:-2]
            if self.transpose_a:  # a.T = g @ b'.T, so a = b' @ g.T
                da = apply(Matmul(self.transpose_b, True, batch), b, g)
            else:
                da = apply(Matmul(False, not self.transpose_b, batch), g, b)
        if wanted[1]:
            batch = b.shape[:-2]
            if self.transpose_b:
                db = apply(Matmul(True, self.transpose_a, batch), g, a)
            else:
                db = apply(Matmul(not self.transpose_a, False, batch), a, g)
        return [da, db]


def matmul(a: Blob, b: Blob, *, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None) -> Blob:
    """Products of matrices, or of stacks of them: ``y = a @ b`` over the last two axes.

    Args:
        a: Shape (..., rows, inner), or (..., inner, rows) with ``transpose_a``; floating.
        b: Shape (..., inner, columns), or (..., columns, inner) with ``transpose_b``; dtype of ``a``. The axes before
            the last two broadcast with those of ``a``.
        transpose_a: Use the transposed matrices of ``a``.
        transpose_b: Use the transposed matrices of ``b``.
    Returns:
        Blob of shape (..., rows, columns), dtype of ``a``.
    Raises:
        ShapeError: if the shapes do not fit. Reshape vectors to matrices.
        DTypeError: if the dtypes differ or are not floating.
    Gradient: da = g @ b.T; db = a.T @ g; summed over axes that were broadcast.
    Source: `torch.matmul`.
    """
    return blob_of(Matmul(transpose_a, transpose_b), a, b, name=name)
