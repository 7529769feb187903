"""Normalization by statistics of each sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.basic import filled
from actorflow.ops.functional import apply
from actorflow.ops.normalized import check_epsilon, check_statistics, second, shape_is, wide_dtype
from actorflow.ops.operation import Operation, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class LayerNorm(Operation):
    """Normalizes each sample over its last axes; see `layer_norm`.

    The second and third outputs are the samples' means and variances, of the shape of the other axes; those of
    half-precision inputs are float32.

    Attributes:
        axes: How many axes are normalized over.
        epsilon: Is added to the variance.
    """

    arguments = ("x", "scale", "shift")

    axes: int = 1
    epsilon: float = 1e-5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Types of ``x``, of the means and of the variances.

        Raises:
            ShapeError, DTypeError: if the inputs do not fit, or a sample has no element; `GraphError` if epsilon is
                negative.
        """
        x, scale, shift = inputs
        check_epsilon("LayerNorm", self.epsilon)
        same_dtype("LayerNorm", x=x, scale=scale, shift=shift)
        if not 1 <= self.axes <= len(x.shape):
            raise ShapeError(f"LayerNorm: axes must be from 1 to x's {len(x.shape)}, got {self.axes}; x is {x}")
        shape = x.shape[-self.axes :]
        if not math.prod(shape):
            raise ShapeError(f"LayerNorm: x must have at least 1 element to be normalized over, got {x}")
        shape_is("LayerNorm", shape, "x's last axes", scale=scale, shift=shift)
        statistic = TensorSpec(x.shape[: -self.axes], wide_dtype(x.dtype))
        return (x, statistic, statistic)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`LayerNormDown`; the statistics have no gradient of their own."""
        g, *others = grads
        if g is None or any(grad is not None for grad in others):
            raise GraphError(f"op {op.name!r}: only y of LayerNorm has a gradient, not the statistics")
        x, scale, _ = op.inputs
        made: Sequence[Blob] = apply(LayerNormDown(self.axes, self.epsilon), g, x, scale, *op.outputs[1:])
        return made


@dataclass(frozen=True)
class LayerNormDown(Operation):
    """``dx``, ``dscale`` and ``dshift`` of `LayerNorm`, from the samples' means and variances.

    With ``n = (x - mean) * r``, ``r = 1 / sqrt(variance + epsilon)``, ``s = g * scale`` and means over a sample:
    ``dx = r * (s - mean(s) - n * mean(s * n))``; over the samples ``dscale = sum(g * n)`` and ``dshift = sum(g)``.

    Attributes:
        axes: As in `LayerNorm`.
        epsilon: As in `LayerNorm`.
    """

    arguments = ("g", "x", "scale", "mean", "variance")
    constants: ClassVar[tuple[str, ...]] = ("mean", "variance")

    axes: int = 1
    epsilon: float = 1e-5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Types of ``x``, scale and shift."""
        g, x, scale, mean, variance = inputs
        same_dtype("LayerNormDown", x=x, g=g, scale=scale)
        shape_is("LayerNormDown", x.shape, "x", g=g)
        shape_is("LayerNormDown", x.shape[-self.axes :], "x's last axes", scale=scale)
        check_statistics("LayerNormDown", x.shape[: -self.axes], x.dtype, mean=mean, variance=variance)
        return (x, scale, scale)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Built from sums and products."""
        rank = len(op.inputs[1].shape)
        return second(op, grads, tuple(range(rank - self.axes, rank)), self.epsilon, moved=True)


def layer_norm(
    x: Blob,
    scale: Blob | None = None,
    shift: Blob | None = None,
    *,
    axes: int = 1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> Blob:
    """Each sample less its mean, over its deviation, times ``scale``, plus ``shift``.

    Args:
        x: Any shape, floating.
        scale: Shape of the last ``axes`` axes of ``x``, dtype of ``x``; None for 1.
        shift: Likewise; None for 0.
        axes: How many axes, from the last one, are normalized over.
        epsilon: Is added to the variance, which is divided by the number of elements.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
        GraphError: if epsilon is negative.
    Gradient: by x, scale and shift.
    Source: Ba, Kiros and Hinton, Layer normalization, 2016; `torch.nn.functional.layer_norm`.
    """
    shape = x.shape[-axes:] if axes > 0 else ()
    scale = filled(1.0, shape, x) if scale is None else scale
    shift = filled(0.0, shape, x) if shift is None else shift
    y: Blob
    y, _, _ = apply(LayerNorm(axes, epsilon), x, scale, shift, name=name)
    return y
