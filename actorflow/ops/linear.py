"""The inner product and the bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.errors import ShapeError
from actorflow.ops.functional import apply
from actorflow.ops.operation import Operation, rank_is, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.node import Blob, Op

__all__ = ["Bias", "BiasDown", "Inner", "InnerDown", "InnerWeight", "bias", "inner"]


@dataclass(frozen=True)
class Inner(Operation):
    """``y = x @ weight.T``; see `inner`."""

    arguments = ("x", "weight")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch, out_features).

        Raises:
            ShapeError, DTypeError: if ``x`` and ``weight`` do not fit.
        """
        x, weight = inputs
        same_dtype("Inner", x=x, weight=weight)
        rank_is("Inner", "x", x, ("batch", "in_features"))
        rank_is("Inner", "weight", weight, ("out_features", "in_features"))
        if x.shape[1] != weight.shape[1]:
            raise ShapeError(
                f"Inner: weight must have x's {x.shape[1]} features on its last axis, got {weight}; x is {x}"
            )
        return (TensorSpec((x.shape[0], weight.shape[0]), x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Products with the output's gradient."""
        (g,), (x, weight) = grads, op.inputs
        assert g is not None
        return [apply(InnerDown(), g, weight) if wanted[0] else None, apply(InnerWeight(), g, x) if wanted[1] else None]


@dataclass(frozen=True)
class InnerDown(Operation):
    """``dx = g @ weight``: the data gradient of `Inner`.

    Source: Purine2 ``InnerDown``.
    """

    arguments = ("g", "weight")
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch, in_features)."""
        g, weight = inputs
        same_dtype("InnerDown", g=g, weight=weight)
        rank_is("InnerDown", "g", g, ("batch", "out_features"))
        rank_is("InnerDown", "weight", weight, ("out_features", "in_features"))
        if g.shape[1] != weight.shape[0]:
            raise ShapeError(f"InnerDown: weight must have g's {g.shape[1]} features on its first axis, got {weight}")
        return (TensorSpec((g.shape[0], weight.shape[1]), g.dtype),)


@dataclass(frozen=True)
class InnerWeight(Operation):
    """``dweight = g.T @ x``: the weight gradient of `Inner`.

    Source: Purine2 ``InnerWeight``.
    """

    arguments = ("g", "x")
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(out_features, in_features)."""
        g, x = inputs
        same_dtype("InnerWeight", g=g, x=x)
        rank_is("InnerWeight", "g", g, ("batch", "out_features"))
        rank_is("InnerWeight", "x", x, ("batch", "in_features"))
        if g.shape[0] != x.shape[0]:
            raise ShapeError(f"InnerWeight: x must have g's batch {g.shape[0]}, got {x}")
        return (TensorSpec((g.shape[1], x.shape[1]), g.dtype),)


@dataclass(frozen=True)
class Bias(Operation):
    """``y = x + bias``, over the last axis; see `bias`."""

    arguments = ("x", "bias")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            ShapeError, DTypeError: if ``x`` and ``bias`` do not fit.
        """
        x, bias = inputs
        same_dtype("Bias", x=x, bias=bias)
        if not x.shape:
            raise ShapeError(f"Bias: x must have shape (..., features), got {x}")
        if bias.shape != x.shape[-1:]:
            raise ShapeError(f"Bias: bias must have the shape of x's last axis {x.shape[-1:]}, got {bias}; x is {x}")
        return (x,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient itself, and its sum."""
        (g,) = grads
        assert g is not None
        return [g if wanted[0] else None, apply(BiasDown(), g) if wanted[1] else None]


@dataclass(frozen=True)
class BiasDown(Operation):
    """``dbias = g`` summed over all axes but the last: the gradient of `Bias`.

    Source: Purine2 ``BiasDown``.
    """

    arguments = ("g",)
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(features,)."""
        (g,) = inputs
        same_dtype("BiasDown", g=g)
        if not g.shape:
            raise ShapeError(f"BiasDown: g must have shape (..., features), got {g}")
        return (TensorSpec(g.shape[-1:], g.dtype),)


def inner(x: Blob, weight: Blob, name: str | None = None) -> Blob:
    """Matrix product over the last axis: ``y = x @ weight.T``.

    Args:
        x: Input blob, shape (batch, in_features), floating.
        weight: Shape (out_features, in_features), dtype of ``x``.
        name: Name of the op.
    Returns:
        Blob of shape (batch, out_features), dtype of ``x``.
    Raises:
        ShapeError: if the last axes differ.
        DTypeError: if the dtypes differ or are not floating.
    Gradient: dx = g @ weight; dweight = g.T @ x.
    Source: Purine2 ``Inner``.
    """
    y: Blob = apply(Inner(), x, weight, name=name)
    return y


def bias(x: Blob, bias: Blob, name: str | None = None) -> Blob:
    """A vector added along the last axis: ``y = x + bias``.

    Args:
        x: Input blob, shape (..., features), floating.
        bias: Shape (features,), dtype of ``x``.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``bias`` does not have the shape of the last axis.
        DTypeError: if the dtypes differ or are not floating.
    Gradient: dx = g; dbias = g summed over all axes but the last.
    Source: Purine2 ``Bias``.
    """
    y: Blob = apply(Bias(), x, bias, name=name)
    return y
