"""Losses that compare elements with targets: squared, absolute and Huber errors, hinge, binary cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.activation import ReluDown, SigmoidDown, sigmoid
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.loss import check_reduction
from actorflow.ops.operation import Operation, same_dtype
from actorflow.ops.terms import constant_like, plus, scaled, spread, times, total
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class _Reduced(Operation):
    """What a loss and its gradient share.

    Attributes:
        reduction: "mean", "sum" or "none".
        scale: Factor on the loss.
    """

    reduction: str = "mean"
    scale: float = 1.0

    def factor(self, size: int) -> float:
        """What each of ``size`` elements counts."""
        return self.scale / max(size, 1) if self.reduction == "mean" else self.scale

    def result_shape(self, x: TensorSpec) -> tuple[int, ...]:
        """Shape of the loss."""
        return x.shape if self.reduction == "none" else ()


class PairLoss(_Reduced):
    """A loss of each element of ``x`` and its target, and what becomes of them."""

    arguments: ClassVar[tuple[str, ...]] = ("x", "target")

    @property
    def down(self) -> PairLossDown:
        """The operation of the gradient by ``x``."""
        raise NotImplementedError

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """0-d, or the shape of ``x`` for no reduction.

        Raises:
            ShapeError, DTypeError: if ``x`` and ``target`` differ; `GraphError` if there is no such reduction.
        """
        x, target = inputs
        same_dtype(self.kind, x=x, target=target)
        check_reduction(self.kind, self.reduction)
        if target.shape != x.shape:
            raise ShapeError(f"{self.kind}: target must have x's shape {x.shape}, got {target}")
        return (TensorSpec(self.result_shape(x), x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`down` by ``x``, and `by_target`."""
        (g,), (x, target) = grads, op.inputs
        assert g is not None
        dx = apply(self.down, g, x, target) if wanted[0] else None
        return [dx, self.by_target(g, x, target, dx) if wanted[1] else None]

    def by_target(self, g: Blob, x: Blob, target: Blob, dx: Blob | None) -> Blob:
        """The gradient by the target, perhaps from the one by ``x``; here for losses of the difference."""
        return scaled(apply(self.down, g, x, target) if dx is None else dx, -1.0)


class PairLossDown(_Reduced):
    """``dx = g * slope(x, target)``, divided by the number of elements for a mean."""

    arguments: ClassVar[tuple[str, ...]] = ("g", "x", "target")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        g, x, target = inputs
        same_dtype(self.kind, x=x, g=g, target=target)
        check_reduction(self.kind, self.reduction)
        if target.shape != x.shape:
            raise ShapeError(f"{self.kind}: target must have x's shape {x.shape}, got {target}")
        if g.shape != self.result_shape(x):
            raise ShapeError(f"{self.kind}: g must have shape {self.result_shape(x)}, got {g}")
        return (x,)

    def each(self, size: int) -> Self:
        """The same for a gradient that is spread over ``size`` elements already."""
        return replace(self, reduction="none", scale=self.factor(size))

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """By ``g`` the products with the slopes; by ``x`` and the target what the second derivatives say."""
        (c,), (g, x, target) = grads, op.inputs
        assert c is not None
        dg = apply(self.each(x.spec.size), c, x, target) if wanted[0] else None
        p = scaled(times(c, spread(g, x)), self.factor(x.spec.size))
        return [
            dg if dg is None or self.reduction == "none" else total(dg),
            self.curve(p, x, target) if wanted[1] else None,
            self.cross(p, x, target) if wanted[2] else None,
        ]

    def curve(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``p`` times the second derivative by ``x``; None where that is 0."""
        return None

    def cross(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``p`` times the derivative by ``x`` and the target; here for losses of the difference."""
        curve = self.curve(p, x, target)
        return None if curve is None else scaled(curve, -1.0)


@dataclass(frozen=True)
class MseLoss(PairLoss):
    """``(x - target) ** 2``; see `mse_loss`."""

    @property
    def down(self) -> PairLossDown:
        """`MseLossDown`."""
        return MseLossDown(self.reduction, self.scale)


@dataclass(frozen=True)
class MseLossDown(PairLossDown):
    """``dx = 2 * g * (x - target)``: the gradient of `MseLoss`."""

    def curve(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``2 * p``."""
        return scaled(p, 2.0)


@dataclass(frozen=True)
class L1Loss(PairLoss):
    """``|x - target|``; see `l1_loss`."""

    @property
    def down(self) -> PairLossDown:
        """`L1LossDown`."""
        return L1LossDown(self.reduction, self.scale)


@dataclass(frozen=True)
class L1LossDown(PairLossDown):
    """``dx = g * sign(x - target)``: the gradient of `L1Loss`."""


@dataclass(frozen=True)
class HuberLoss(PairLoss):
    """``d ** 2 / 2`` of a distance d up to ``delta``, else ``delta * (d - delta / 2)``; see `huber_loss`.

    Attributes:
        delta: From where on the loss grows linearly; positive.
    """

    delta: float = 1.0

    @property
    def down(self) -> PairLossDown:
        """`HuberLossDown`."""
        return HuberLossDown(self.reduction, self.scale, self.delta)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """As of every loss of pairs."""
        if not self.delta > 0:
            raise GraphError(f"HuberLoss: delta must be positive, got {self.delta}")
        return super().infer(*inputs)


@dataclass(frozen=True)
class HuberLossDown(PairLossDown):
    """``dx = g * min(max(x - target, -delta), delta)``: the gradient of `HuberLoss`.

    Attributes:
        delta: As in `HuberLoss`.
    """

    delta: float = 1.0

    def curve(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``p`` where ``x`` is nearer to the target than ``delta``, else 0."""
        distance = apply(L1Loss("none"), x, target)
        return blob_of(ReluDown(), p, plus(constant_like(self.delta, x), scaled(distance, -1.0)))


@dataclass(frozen=True)
class HingeLoss(PairLoss):
    """``max(1 - x * target, 0)``; see `hinge_loss`."""

    @property
    def down(self) -> PairLossDown:
        """`HingeLossDown`."""
        return HingeLossDown(self.reduction, self.scale)

    def by_target(self, g: Blob, x: Blob, target: Blob, dx: Blob | None) -> Blob:
        """The loss is symmetric."""
        return blob_of(self.down, g, target, x)


@dataclass(frozen=True)
class HingeLossDown(PairLossDown):
    """``dx = -g * target`` where ``x * target < 1``, else 0: the gradient of `HingeLoss`."""

    def cross(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``-p`` where there is a loss."""
        return scaled(apply(ReluDown(), p, apply(HingeLoss("none"), x, target)), -1.0)


@dataclass(frozen=True)
class LogisticLoss(PairLoss):
    """Binary cross-entropy of ``sigmoid(x)``; see `binary_cross_entropy_with_logits`."""

    @property
    def down(self) -> PairLossDown:
        """`LogisticLossDown`."""
        return LogisticLossDown(self.reduction, self.scale)

    def by_target(self, g: Blob, x: Blob, target: Blob, dx: Blob | None) -> Blob:
        """``-g * x``."""
        return scaled(times(spread(g, x), x), -self.factor(x.spec.size))


@dataclass(frozen=True)
class LogisticLossDown(PairLossDown):
    """``dx = g * (sigmoid(x) - target)``: the gradient of `LogisticLoss`."""

    def curve(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``p`` times the slope of the sigmoid."""
        return blob_of(SigmoidDown(), p, sigmoid(x))

    def cross(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``-p``."""
        return scaled(p, -1.0)


@dataclass(frozen=True)
class BinaryCrossEntropy(PairLoss):
    """``-target * log(x) - (1 - target) * log(1 - x)``; see `binary_cross_entropy`."""

    @property
    def down(self) -> PairLossDown:
        """`BinaryCrossEntropyDown`."""
        return BinaryCrossEntropyDown(self.reduction, self.scale)

    def by_target(self, g: Blob, x: Blob, target: Blob, dx: Blob | None) -> Blob:
        """``g * (log(1 - x) - log(x))``, whose terms are losses for the targets 0 and 1."""
        each = BinaryCrossEntropy("none")
        of_0, of_1 = (apply(each, x, constant_like(value, x)) for value in (0.0, 1.0))
        slope = plus(of_1, scaled(of_0, -1.0))
        return scaled(times(spread(g, x), slope), self.factor(x.spec.size))


@dataclass(frozen=True)
class BinaryCrossEntropyDown(PairLossDown):
    """``dx = g * (x - target) / (x * (1 - x))``: the gradient of `BinaryCrossEntropy`."""

    def curve(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``p * (target / x ** 2 + (1 - target) / (1 - x) ** 2)``; the slopes for 0 and 1 are 1 / (1 - x), -1 / x."""
        each, zeros, ones = BinaryCrossEntropyDown("none"), constant_like(0.0, x), constant_like(1.0, x)
        of_0 = apply(each, apply(each, p, x, zeros), x, zeros)
        of_1 = apply(each, apply(each, p, x, ones), x, ones)
        return plus(times(target, of_1), of_0, scaled(times(target, of_0), -1.0))

    def cross(self, p: Blob, x: Blob, target: Blob) -> Blob | None:
        """``-p / (x * (1 - x))``."""
        each = BinaryCrossEntropyDown("none")
        inner = apply(each, p, x, constant_like(1.0, x))
        return blob_of(each, inner, x, constant_like(0.0, x))


def mse_loss(x: Blob, target: Blob, *, reduction: str = "mean", scale: float = 1.0, name: str | None = None) -> Blob:
    """The squared error ``(x - target) ** 2``; by default the mean of the elements.

    Args:
        x: Any shape, floating.
        target: Shape and dtype of ``x``.
        reduction: "mean", "sum", or "none" for the loss of each element.
        scale: Factor on the loss.
        name: Name of the op.
    Returns:
        0-d blob, or one of the type of ``x`` for no reduction. The mean of no element is not a number.
    Raises:
        ShapeError, DTypeError: if ``x`` and ``target`` differ.
        GraphError: if there is no such reduction.
    Gradient: dx = 2 * g * (x - target) / size; dtarget = -dx.
    Source: `torch.nn.functional.mse_loss`.
    """
    return blob_of(MseLoss(reduction, scale), x, target, name=name)


def l1_loss(x: Blob, target: Blob, *, reduction: str = "mean", scale: float = 1.0, name: str | None = None) -> Blob:
    """The absolute error ``|x - target|``; by default the mean of the elements.

    Arguments, result and errors are those of `mse_loss`.

    Gradient: dx = g * sign(x - target) / size, 0 where they are equal; dtarget = -dx.
    Source: `torch.nn.functional.l1_loss`.
    """
    return blob_of(L1Loss(reduction, scale), x, target, name=name)


def huber_loss(
    x: Blob,
    target: Blob,
    delta: float = 1.0,
    *,
    reduction: str = "mean",
    scale: float = 1.0,
    name: str | None = None,
) -> Blob:
    """Half the squared error up to ``delta``, then linear: ``delta * (|x - target| - delta / 2)``.

    With ``scale=1 / delta`` it is the smooth L1 loss. Arguments, result and errors are those of `mse_loss`; besides:

    Args:
        x: As in `mse_loss`.
        target: As in `mse_loss`.
        delta: From which distance on the loss is linear; positive.
        reduction: As in `mse_loss`.
        scale: As in `mse_loss`.
        name: Name of the op.
    Raises:
        GraphError: if ``delta`` is not positive.
    Gradient: dx = g * min(max(x - target, -delta), delta) / size; dtarget = -dx.
    Source: `torch.nn.functional.huber_loss`.
    """
    return blob_of(HuberLoss(reduction, scale, delta), x, target, name=name)


def hinge_loss(x: Blob, target: Blob, *, reduction: str = "mean", scale: float = 1.0, name: str | None = None) -> Blob:
    """What a score lacks to be on the right side by 1: ``max(1 - x * target, 0)``; by default the mean.

    Arguments, result and errors are those of `mse_loss`, but ``target`` says the side: -1 or 1.

    Gradient: dx = -g * target / size where x * target < 1, else 0; dtarget likewise with x.
    Source: Rosasco et al., Are loss functions all the same?, 2004.
    """
    return blob_of(HingeLoss(reduction, scale), x, target, name=name)


def binary_cross_entropy_with_logits(
    x: Blob, target: Blob, *, reduction: str = "mean", scale: float = 1.0, name: str | None = None
) -> Blob:
    """The binary cross-entropy of ``sigmoid(x)`` and a probability, computed without overflow.

    ``max(x, 0) - x * target + log(1 + exp(-|x|))``; by default the mean. Arguments, result and errors are those of
    `mse_loss`; ``x`` are scores before the sigmoid, ``target`` is from 0 to 1.

    Gradient: dx = g * (sigmoid(x) - target) / size; dtarget = -g * x / size.
    Source: `torch.nn.functional.binary_cross_entropy_with_logits`.
    """
    return blob_of(LogisticLoss(reduction, scale), x, target, name=name)


def binary_cross_entropy(
    x: Blob, target: Blob, *, reduction: str = "mean", scale: float = 1.0, name: str | None = None
) -> Blob:
    """The cross-entropy of two probabilities, ``-target * log(x) - (1 - target) * log(1 - x)``; by default the mean.

    Logarithms below -100 count as -100, as in PyTorch. Prefer `binary_cross_entropy_with_logits` to this after a
    sigmoid. Arguments, result and errors are those of `mse_loss`; ``x`` and ``target`` are from 0 to 1, and an ``x``
    beyond gives what is not a number.

    Gradient: dx = g * (x - target) / (x * (1 - x)) / size; dtarget = g * (log(1 - x) - log(x)) / size.
    Source: `torch.nn.functional.binary_cross_entropy`.
    """
    return blob_of(BinaryCrossEntropy(reduction, scale), x, target, name=name)
