"""What compares scores of classes with labels: softmax loss, negative log-likelihood, accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, same_dtype
from actorflow.ops.softmax import LogSoftmaxDown, log_softmax
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op

_REDUCTIONS = ("mean", "sum", "none")


def check_reduction(kind: str, reduction: str) -> None:
    """Check what becomes of the samples' losses.

    Raises:
        GraphError: if it is none of mean, sum and none.
    """
    if reduction not in _REDUCTIONS:
        raise GraphError(f"{kind}: reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")


def _check(kind: str, x: TensorSpec, labels: TensorSpec) -> None:
    same_dtype(kind, x=x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError(f"{kind}: x must have shape (..., classes) with at least 1 class, got {x}")
    _check_labels(kind, labels)
    if labels.shape != x.shape[:-1]:
        raise ShapeError(f"{kind}: labels must have x's shape without classes {x.shape[:-1]}, got {labels}")


def _check_labels(kind: str, labels: TensorSpec) -> None:
    if labels.dtype.kind not in "iu":
        raise DTypeError(f"{kind}: labels must be integers, got {labels}")


@dataclass(frozen=True)
class LabelLoss(Operation):
    """What the losses of labels share: weights of the classes are an input more, where there are any.

    Attributes:
        reduction: "mean", "sum" or "none".
        scale: Factor on the loss.
        ignore: Label of samples that do not count.
    """

    arguments: ClassVar[tuple[str, ...]] = ("x", "labels")
    constants: ClassVar[tuple[str, ...]] = ("weights",)

    reduction: str = "mean"
    scale: float = 1.0
    ignore: int | None = None

    @property
    def settings(self) -> tuple[str, float, int | None]:
        """The fields of this class, for an operation that shares them."""
        return self.reduction, self.scale, self.ignore

    def is_constant(self, position: int) -> bool:
        """The weights are."""
        return position >= len(self.arguments)

    def check_arity(self, count: int) -> None:
        """One input more may be given: the weights."""
        if count != len(self.arguments) + 1:
            Operation.check_arity(self, count)

    def _check_options(self, classes: int, dtype: np.dtype[Any], weights: Sequence[TensorSpec]) -> None:
        check_reduction(self.kind, self.reduction)
        for given in weights:
            if given.dtype != dtype:
                raise DTypeError(f"{self.kind}: weights must have dtype {dtype}, got {given}")
            if given.shape != (classes,):
                raise ShapeError(f"{self.kind}: weights must have a value for each of {classes} classes, got {given}")

    def _check_g(self, g: TensorSpec, labels: TensorSpec) -> None:
        expected = labels.shape if self.reduction == "none" else ()
        if g.shape != expected:
            raise ShapeError(f"{self.kind}: g must have shape {expected}, got {g}")


class _Forward(LabelLoss):
    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """0-d, or the shape of ``labels`` for no reduction; dtype of ``x``.

        Raises:
            ShapeError, DTypeError: if ``x``, ``labels`` and weights do not fit; `GraphError` if the reduction does not.
        """
        x, labels, *weights = inputs
        _check(self.kind, x, labels)
        self._check_options(x.shape[-1], x.dtype, weights)
        return (TensorSpec(labels.shape if self.reduction == "none" else (), x.dtype),)


@dataclass(frozen=True)
class SoftmaxLoss(_Forward):
    """``-log(softmax(x)[label])``; see `softmax_loss`."""

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`SoftmaxLossDown` for ``x``; labels and weights have no gradient."""
        assert grads[0] is not None
        return [apply(SoftmaxLossDown(*self.settings), grads[0], *op.inputs), *[None] * (len(wanted) - 1)]


@dataclass(frozen=True)
class SoftmaxLossDown(LabelLoss):
    """``dx = g * (softmax(x) - one_hot(labels)) * weight / total weight``: the gradient of `SoftmaxLoss`.

    Source: Purine2 ``SoftmaxLossDown``.
    """

    arguments = ("g", "x", "labels")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        g, x, labels, *weights = inputs
        _check("SoftmaxLossDown", x, labels)
        same_dtype("SoftmaxLossDown", g=g, x=x)
        self._check_options(x.shape[-1], x.dtype, weights)
        self._check_g(g, labels)
        return (x,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """As the gradient of log-softmax and negative log-likelihood, of which this is the product."""
        (c,), (g, x, labels, *weights) = grads, op.inputs
        assert c is not None
        y, down = log_softmax(x), LogSoftmaxDown()
        n = apply(NllLossDown(*self.settings, classes=x.shape[-1]), g, labels, *weights)
        dn, dy = down.products(c, n, y, wanted)
        return [
            None if dn is None else apply(NllLoss(*self.settings), dn, labels, *weights),
            None if dy is None else apply(down, dy, y),
            *[None] * (len(wanted) - 2),
        ]


@dataclass(frozen=True)
class NllLoss(_Forward):
    """``-x[label]``; see `nll_loss`."""

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`NllLossDown` for ``x``; labels and weights have no gradient."""
        assert grads[0] is not None
        down = NllLossDown(*self.settings, classes=op.inputs[0].shape[-1])
        return [apply(down, grads[0], *op.inputs[1:]), *[None] * (len(wanted) - 1)]


@dataclass(frozen=True)
class NllLossDown(LabelLoss):
    """``dx = -g * weight / total weight`` at each label, else 0: the gradient of `NllLoss`, whatever ``x`` is.

    Attributes:
        classes: Length of the last axis of ``x``.
    """

    arguments = ("g", "labels")

    classes: int = 1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(..., classes), dtype of ``g``."""
        g, labels, *weights = inputs
        same_dtype("NllLossDown", g=g)
        _check_labels("NllLossDown", labels)
        self._check_options(self.classes, g.dtype, weights)
        self._check_g(g, labels)
        return (TensorSpec((*labels.shape, self.classes), g.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`NllLoss`: each is the other's transpose."""
        assert grads[0] is not None
        return [apply(NllLoss(*self.settings), grads[0], *op.inputs[1:]), *[None] * (len(wanted) - 1)]


@dataclass(frozen=True)
class Accuracy(Operation):
    """The share of samples whose label is among the largest predictions; see `accuracy`.

    Attributes:
        top: How many of the largest predictions count.
    """

    arguments = ("x", "labels")
    differentiable = False

    top: int = 1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """0-d float32.

        Raises:
            ShapeError, DTypeError: if ``x`` and ``labels`` do not fit; `GraphError` if ``top`` does not.
        """
        x, labels = inputs
        _check("Accuracy", x, labels)
        if not 1 <= self.top <= x.shape[-1]:
            raise GraphError(f"Accuracy: top must be from 1 to x's {x.shape[-1]} classes, got {self.top}")
        return (TensorSpec((), np.dtype(np.float32)),)


def softmax_loss(
    x: Blob,
    labels: Blob,
    weights: Blob | None = None,
    *,
    reduction: str = "mean",
    scale: float = 1.0,
    ignore: int | None = None,
    name: str | None = None,
) -> Blob:
    """``-log(softmax(x)[label])`` of each sample, computed without overflow; by default their mean.

    Args:
        x: Scores before softmax, shape (..., classes), floating. The classes are the last axis, not the second one.
        labels: Shape (...), integers from 0 to classes - 1; any other label fails the frame.
        weights: A weight per class, shape (classes,), dtype of ``x``. The mean is then divided by the sum of the
            samples' weights, as in PyTorch.
        reduction: "mean", "sum", or "none" for the loss of each sample.
        scale: Factor on the loss (lambda in Purine2).
        ignore: Samples with this label, which may be any integer, do not count.
        name: Name of the op.
    Returns:
        0-d blob, dtype of ``x``, or one of the shape of ``labels`` for no reduction. The mean of no sample is not a
        number.
    Raises:
        ShapeError, DTypeError: if ``x``, ``labels`` and ``weights`` do not fit.
        GraphError: if there is no such reduction.
    Gradient: dx = g * (softmax(x) - one_hot(labels)) * weight / total weight; none for labels and weights.
    Source: Purine2 ``SoftmaxLoss``; `torch.nn.functional.cross_entropy`.
    """
    given = () if weights is None else (weights,)
    return blob_of(SoftmaxLoss(reduction, scale, ignore), x, labels, *given, name=name)


def nll_loss(
    x: Blob,
    labels: Blob,
    weights: Blob | None = None,
    *,
    reduction: str = "mean",
    scale: float = 1.0,
    ignore: int | None = None,
    name: str | None = None,
) -> Blob:
    """The negative log-likelihood ``-x[label]`` of each sample; by default their mean.

    Args:
        x: Logarithms of probabilities, shape (..., classes), floating.
        labels: As in `softmax_loss`.
        weights: As in `softmax_loss`.
        reduction: As in `softmax_loss`.
        scale: As in `softmax_loss`.
        ignore: As in `softmax_loss`.
        name: Name of the op.
    Returns:
        As `softmax_loss`.
    Raises:
        ShapeError, DTypeError: if ``x``, ``labels`` and ``weights`` do not fit.
        GraphError: if there is no such reduction.
    Gradient: dx = -g * weight / total weight at each label, else 0.
    Source: `torch.nn.functional.nll_loss`.
    """
    given = () if weights is None else (weights,)
    return blob_of(NllLoss(reduction, scale, ignore), x, labels, *given, name=name)


def accuracy(x: Blob, labels: Blob, top: int = 1, name: str | None = None) -> Blob:
    """The share of samples whose label is among the ``top`` largest predictions.

    Of equal predictions the one of the lower class counts as the larger; one that is not a number counts as the
    largest of all, so a diverged network never looks right. (`torch.topk` leaves the order of equal ones open.)

    Args:
        x: Predictions, shape (..., classes), floating; scores or probabilities.
        labels: Shape (...), integers from 0 to classes - 1; any other label fails the frame.
        top: How many predictions count.
        name: Name of the op.
    Returns:
        0-d float32 blob; not a number for an empty batch.
    Raises:
        ShapeError, DTypeError: if ``x`` and ``labels`` do not fit.
        GraphError: if ``top`` is not from 1 to the number of classes.
    Gradient: none.
    Source: Purine2 ``Accuracy``.
    """
    return blob_of(Accuracy(top), x, labels, name=name)
