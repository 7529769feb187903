"""Local response normalization across channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.composition import composed_gradient
from actorflow.ops.elementwise import power
from actorflow.ops.operation import Application, Cost, Grads, Operation, X, apply, blob_of, same_dtype
from actorflow.spec import TensorSpec


def _check(operation: Any, inputs: Sequence[TensorSpec]) -> TensorSpec:
    """The type of the inputs, which all of them have."""
    kind, named = operation.kind, dict(zip(operation.arguments, inputs, strict=True))
    same_dtype(kind, **named)
    x: TensorSpec = named["x"]
    if not x.shape:
        raise ShapeError(f"{kind}: x must have shape (..., channels), got {x}")
    if operation.size < 1:
        raise GraphError(f"{kind}: size must be at least 1, got {operation.size}")
    for name, spec in named.items():
        if spec.shape != x.shape:
            raise ShapeError(f"{kind}: {name} must have x's shape {x.shape}, got {spec}")
    return x


@dataclass(frozen=True)
class ChannelWindowSum(Operation):
    """Sums over a window of channels: ``y[i] = x[i - before] + ... + x[i + after]``, as far as there are such.

    ``before`` is ``size // 2`` and ``after`` the rest of ``size``, as in PyTorch; they are exchanged for a
    transposed one, which is the other's gradient.

    Attributes:
        size: Channels of the window.
        transposed: Whether the longer side of an even window is after.
    """

    size: int = 5
    transposed: bool = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (_check(self, inputs),)

    def reach(self, channels: int) -> tuple[int, int]:
        """Numbers of channels before and after, of so many that there are."""
        most = max(0, channels - 1)
        before, after = min(self.size // 2, most), min((self.size - 1) // 2, most)
        return (after, before) if self.transposed else (before, after)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(ChannelWindowSum(self.size, not self.transposed), grads[0])]


@dataclass(frozen=True)
class LRN(Operation):
    """``y = x / scale ** beta``, and ``scale = k + alpha / size * sum(x ** 2)`` over a window of channels; see `lrn`.

    Source: Purine2 ``LRNScale`` and ``LRN``.

    Attributes:
        alpha, beta, size, k: As for `lrn`.
        saves: Whether ``scale`` is an output, for the gradient; where nothing reads it, a plan goes without.
    """

    saved = 1

    alpha: float = 1e-4
    beta: float = 0.75
    size: int = 5
    k: float = 1.0
    saves: bool = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (_check(self, inputs),) * (1 + self.saves)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return Cost(others=outputs[0].size * (self.size + 5))

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (g, of_scale), (x,) = (*grads, None)[:2], op.inputs
        terms = []
        if g is not None:
            outputs = op.outputs if self.saves else apply(replace(self, saves=True), x)
            terms.append(apply(LRNDown(self.alpha, self.beta, self.size), g, x, *outputs))
        if of_scale is not None:
            seen = apply(ChannelWindowSum(self.size, transposed=True), of_scale)
            terms.append(x * seen * (2 * self.alpha / self.size))
        return [reduce(add, terms)]


@dataclass(frozen=True)
class LRNDown(Operation):
    """The gradient of `LRN`, from its input and outputs.

    ``dx = g / scale ** beta - 2 * alpha * beta / size * x * s``, where ``s`` is the sum of ``g * y / scale`` over the
    windows that see a channel.

    Source: Purine2 ``LRNDown``.
    """

    arguments: ClassVar[tuple[str, ...]] = ("g", "x", "y", "scale")

    alpha: float = 1e-4
    beta: float = 0.75
    size: int = 5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (_check(self, inputs),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        def down(g: Any, x: Any, y: Any, scale: Any) -> Any:
            seen = blob_of(ChannelWindowSum(self.size, transposed=True), g * y / scale)
            return g * power(scale, -self.beta) - x * seen * (2 * self.alpha * self.beta / self.size)

        return composed_gradient(down, op, grads, wanted)


def lrn(x: X, alpha: float = 1e-4, beta: float = 0.75, size: int = 5, k: float = 1.0, name: str | None = None) -> X:
    """Local response normalization: each value over a power of the mean square of the channels around it.

    ``y = x / (k + alpha / size * sum(x ** 2)) ** beta``, where the sum is over a window of ``size`` channels. Channels
    beyond the first and last one count as 0.

    Args:
        x: Shape (..., channels), floating.
        alpha: Factor on the mean square.
        beta: The power.
        size: Channels of the window; of an even one the longer side is before.
        k: Is added to the mean square.
    Returns:
        Blob of the type of ``x``. (The op's second output is the base of the power.)
    Raises:
        GraphError: if the window has no channel.
        ShapeError, DTypeError: if ``x`` has no channels or is not floating.
    Gradient: g / scale ** beta, less 2 * alpha * beta / size * x times the windows' sums of g * y / scale.
    Source: Purine2 ``LRN``; Krizhevsky, Sutskever and Hinton, ImageNet classification, 2012.
    Example:
        >>> x = xp.asarray([3.0, 4.0])  # two channels
        >>> print(af.ops.lrn(x, alpha=2.0, beta=0.5, size=2, k=0.0))
        [1.  0.8]
    """
    return blob_of(LRN(alpha, beta, size, k), x, name=name)
