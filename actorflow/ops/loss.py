"""What compares predictions with labels: softmax loss, accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.functional import apply
from actorflow.ops.operation import Operation, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.node import Blob, Op

__all__ = ["Accuracy", "SoftmaxLoss", "SoftmaxLossDown", "accuracy", "softmax_loss"]


def _check(kind: str, x: TensorSpec, labels: TensorSpec) -> None:
    same_dtype(kind, x=x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError(f"{kind}: x must have shape (..., classes) with at least 1 class, got {x}")
    if labels.dtype.kind not in "iu":
        raise DTypeError(f"{kind}: labels must be integers, got {labels}")
    if labels.shape != x.shape[:-1]:
        raise ShapeError(f"{kind}: labels must have x's shape without classes {x.shape[:-1]}, got {labels}")


@dataclass(frozen=True)
class SoftmaxLoss(Operation):
    """The mean of ``-log(softmax(x)[label])``; see `softmax_loss`."""

    arguments = ("x", "labels")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """0-d, dtype of ``x``.

        Raises:
            ShapeError, DTypeError: if ``x`` and ``labels`` do not fit.
        """
        x, labels = inputs
        _check("SoftmaxLoss", x, labels)
        return (TensorSpec((), x.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`SoftmaxLossDown` for ``x``; labels have no gradient."""
        assert grads[0] is not None
        return [apply(SoftmaxLossDown(), grads[0], *op.inputs), None]


@dataclass(frozen=True)
class SoftmaxLossDown(Operation):
    """``dx = g * (softmax(x) - one_hot(labels)) / batch``: the gradient of `SoftmaxLoss`.

    Source: Purine2 ``SoftmaxLossDown``.
    """

    arguments = ("g", "x", "labels")
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        g, x, labels = inputs
        _check("SoftmaxLossDown", x, labels)
        same_dtype("SoftmaxLossDown", g=g, x=x)
        if g.shape:
            raise ShapeError(f"SoftmaxLossDown: g must have shape (), got {g}")
        return (x,)


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


def softmax_loss(x: Blob, labels: Blob, name: str | None = None) -> Blob:
    """The mean over the batch of ``-log(softmax(x)[label])``, computed without overflow.

    Args:
        x: Scores before softmax, shape (..., classes), floating.
        labels: Shape (...), integers from 0 to classes - 1; any other label fails the frame.
        name: Name of the op.
    Returns:
        0-d blob, dtype of ``x``; not a number for an empty batch.
    Raises:
        ShapeError, DTypeError: if ``x`` and ``labels`` do not fit.
    Gradient: dx = g * (softmax(x) - one_hot(labels)) / batch; none for labels.
    Source: Purine2 ``SoftmaxLoss``.
    """
    y: Blob = apply(SoftmaxLoss(), x, labels, name=name)
    return y


def accuracy(x: Blob, labels: Blob, top: int = 1, name: str | None = None) -> Blob:
    """The share of samples whose label is among the ``top`` largest predictions.

    Of equal predictions the one of the lower class counts as the larger; one that is not a number counts as the
    largest of all, so a diverged network never looks right.

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
    y: Blob = apply(Accuracy(top), x, labels, name=name)
    return y
