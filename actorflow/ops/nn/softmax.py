"""Softmax and log-softmax along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from actorflow.errors import ShapeError
from actorflow.ops import reductions
from actorflow.ops.composition import composed_gradient
from actorflow.ops.elementwise import exp
from actorflow.ops.operation import Application, Grads, Operation, X, apply, blob_of, same_dtype
from actorflow.spec import TensorSpec


@dataclass(frozen=True)
class _Softmax(Operation):
    """Base of the operations: all inputs have the type of the result, which has the axis."""

    per_element = 3

    axis: int = -1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_dtype(self.kind, **dict(zip(self.arguments, inputs, strict=True)))
        last, x = self.arguments[-1], inputs[-1]
        if inputs[0].shape != x.shape:
            raise ShapeError(f"{self.kind}: {self.arguments[0]} must have {last}'s shape {x.shape}, got {inputs[0]}")
        if not -len(x.shape) <= self.axis < len(x.shape):
            raise ShapeError(f"{self.kind}: {last} must have an axis {self.axis}, got {x}")
        if x.shape[self.axis] == 0:
            raise ShapeError(f"{self.kind}: {last} must have at least 1 element on axis {self.axis}, got {x}")
        return (x,)


class Softmax(_Softmax):
    """``y = exp(x) / sum(exp(x))`` along an axis; see `softmax`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(SoftmaxDown(self.axis), grads[0], op.outputs[0])]


class SoftmaxDown(_Softmax):
    """``dx = y * (g - sum(g * y))`` along an axis: the gradient of `Softmax`.

    Source: Purine2 ``SoftmaxDown``.
    """

    arguments = ("g", "y")

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        along = partial(reductions.sum, axis=self.axis, keepdims=True)
        return composed_gradient(lambda g, y: y * (g - along(g * y)), op, grads, wanted)


class LogSoftmax(_Softmax):
    """``y = x - log(sum(exp(x)))`` along an axis; see `log_softmax`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (g,), (y,) = grads, op.outputs
        return [g - exp(y) * reductions.sum(g, self.axis, keepdims=True)]


def softmax(x: X, axis: int = -1, name: str | None = None) -> X:
    """Probabilities along an axis: ``y = exp(x) / sum(exp(x))``, computed without overflow.

    Args:
        x: Any shape with at least one axis, floating.
        axis: The axis that sums to 1: the last one for classes or channels.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError: if ``x`` does not have the axis.
    Gradient: y * (g - sum(g * y)).
    Source: Purine2 ``Softmax``.
    Example:
        >>> print(af.ops.softmax(xp.asarray([[0.0, 0.0], [0.0, np.log(3.0)]])))
        [[0.5  0.5 ]
         [0.25 0.75]]
    """
    return blob_of(Softmax(axis), x, name=name)


def log_softmax(x: X, axis: int = -1, name: str | None = None) -> X:
    """Logarithms of probabilities along an axis: ``y = x - log(sum(exp(x)))``, computed without overflow.

    Arguments, result and errors: as of `softmax`.
    Gradient: g - exp(y) * sum(g).
    Source: `torch.nn.functional.log_softmax`.
    Example:
        >>> print(af.ops.log_softmax(xp.asarray([0.0, 1000.0])))
        [-1000.     0.]
    """
    return blob_of(LogSoftmax(axis), x, name=name)
