"""Normalization by statistics of the batch, channel by channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.basic import filled
from actorflow.ops.functional import apply, whole
from actorflow.ops.normalized import check_epsilon, check_statistics, second, shape_is
from actorflow.ops.operation import Operation, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


def _check_channels(kind: str, x: TensorSpec, **inputs: TensorSpec) -> tuple[int, ...]:
    same_dtype(kind, x=x, **inputs)
    if not x.shape:
        raise ShapeError(f"{kind}: x must have shape (..., channels), got {x}")
    shape_is(kind, x.shape[-1:], "x's last axis", **inputs)
    return x.shape[-1:]


@dataclass(frozen=True)
class BatchNorm(Operation):
    """Normalizes each channel by its batch, and moves the running statistics; see `batch_norm`.

    Connect it as ``[x, scale, shift, running_mean, running_variance] >> op >> [y, mean, variance, running_mean,
    running_variance]``, where mean and variance are those of the batch, the latter divided by the number of elements.
    The running variance takes that divided by one less, as in PyTorch. Statistics of half-precision inputs are float32.

    Attributes:
        epsilon: Is added to the variance.
        momentum: Share of the batch in the new running statistics.
    """

    arguments = ("x", "scale", "shift", "running_mean", "running_variance")
    constants: ClassVar[tuple[str, ...]] = ("running_mean", "running_variance")

    epsilon: float = 1e-5
    momentum: float = 0.1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Types of ``x``, of two statistics, and of two running statistics.

        Raises:
            ShapeError, DTypeError: if the inputs do not fit, or a channel has less than 2 elements.
            GraphError: if epsilon or momentum is out of range.
        """
        x, scale, shift, mean, variance = inputs
        check_epsilon("BatchNorm", self.epsilon)
        if not 0 <= self.momentum <= 1:
            raise GraphError(f"BatchNorm: momentum must be from 0 to 1, got {self.momentum}")
        shape = _check_channels("BatchNorm", x, scale=scale, shift=shift)
        if math.prod(x.shape[:-1]) < 2:
            raise ShapeError(f"BatchNorm: x must have at least 2 elements per channel to be normalized by, got {x}")
        check_statistics("BatchNorm", shape, x.dtype, running_mean=mean, running_variance=variance)
        return (x, mean, variance, mean, variance)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`BatchNormDown`; the statistics of the batch have no gradient of their own."""
        g, *others = grads
        if g is None or any(grad is not None for grad in others):
            raise GraphError(f"op {op.name!r}: only y of BatchNorm has a gradient, not the statistics")
        x, scale = op.inputs[:2]
        return [*apply(BatchNormDown(self.epsilon), g, x, scale, *op.outputs[1:3]), None, None]


@dataclass(frozen=True)
class BatchNormDown(Operation):
    """``dx``, ``dscale`` and ``dshift`` of `BatchNorm`, from the batch's mean and variance.

    With ``n = (x - mean) * r``, ``r = 1 / sqrt(variance + epsilon)`` and means over a channel:
    ``dx = r * scale * (g - mean(g) - n * mean(g * n))``, ``dscale = sum(g * n)``, ``dshift = sum(g)``.

    Its own gradient takes ``mean`` and ``variance`` as what they are, functions of ``x``.

    Attributes:
        epsilon: As in `BatchNorm`.
    """

    arguments = ("g", "x", "scale", "mean", "variance")
    constants: ClassVar[tuple[str, ...]] = ("mean", "variance")

    epsilon: float = 1e-5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Types of ``x``, scale and shift."""
        g, x, scale, mean, variance = inputs
        shape = _check_channels(self.kind, x, scale=scale)
        same_dtype(self.kind, x=x, g=g)
        shape_is(self.kind, x.shape, "x", g=g)
        check_statistics(self.kind, shape, x.dtype, mean=mean, variance=variance)
        return (x, scale, scale)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Built from sums and products."""
        return second(op, grads, tuple(range(len(op.inputs[1].shape) - 1)), self.epsilon, moved=True)


@dataclass(frozen=True)
class BatchNormInference(Operation):
    """Normalizes each channel by given statistics; see `batch_norm`.

    Attributes:
        epsilon: Is added to the variance.
    """

    arguments = ("x", "scale", "shift", "mean", "variance")
    constants: ClassVar[tuple[str, ...]] = ("mean", "variance")

    epsilon: float = 1e-5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``.

        Raises:
            ShapeError, DTypeError: if the inputs do not fit; `GraphError` if epsilon is negative.
        """
        x, scale, shift, mean, variance = inputs
        check_epsilon("BatchNormInference", self.epsilon)
        shape = _check_channels("BatchNormInference", x, scale=scale, shift=shift)
        check_statistics("BatchNormInference", shape, x.dtype, mean=mean, variance=variance)
        return (x,)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`BatchNormInferenceDown`."""
        assert grads[0] is not None
        x, scale, _, mean, variance = op.inputs
        return [*apply(BatchNormInferenceDown(self.epsilon), grads[0], x, scale, mean, variance), None, None]


@dataclass(frozen=True)
class BatchNormInferenceDown(BatchNormDown):
    """``dx = g * scale * r``, ``dscale = sum(g * n)`` and ``dshift = sum(g)`` of `BatchNormInference`."""

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Built from sums and products."""
        return second(op, grads, tuple(range(len(op.inputs[1].shape) - 1)), self.epsilon, moved=False)


@whole
def batch_norm(
    x: Blob,
    running_mean: Blob,
    running_variance: Blob,
    scale: Blob | None = None,
    shift: Blob | None = None,
    *,
    training: bool = False,
    moves: bool = True,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> Blob:
    """Each channel less its mean, over its deviation, times ``scale``, plus ``shift``.

    In training, mean and variance are those of the batch, over all axes but the last. The op then also writes the
    running statistics: ``running = (1 - momentum) * running + momentum * batch``, with the unbiased variance, in each
    frame that computes ``y``. In inference the running statistics take their place.

    Args:
        x: Shape (..., channels), floating; in training with at least 2 elements per channel.
        running_mean: Shape (channels,), dtype of ``x``, float32 for half precision; in training a variable, which gets
            its new value.
        running_variance: Likewise.
        scale: Shape (channels,), dtype of ``x``; None for 1.
        shift: Likewise; None for 0.
        training: Whether to normalize by the batch.
        moves: Whether the running statistics get new values in training. A variable has one writer: where several
            batches are normalized in one graph, let one of them move the statistics.
        momentum: Share of the batch in the new running statistics.
        epsilon: Is added to the variance.
        name: Name of the op.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
        GraphError: if epsilon or momentum is out of range, or a running statistic is no variable in training.
    Gradient: by x through the batch's statistics, too; by scale and shift; none by running statistics.
    Source: Ioffe and Szegedy, Batch normalization, 2015; `torch.nn.functional.batch_norm`.
    """
    from actorflow.graph.nodes import Variable

    scale = filled(1.0, x.shape[-1:], x) if scale is None else scale
    shift = filled(0.0, x.shape[-1:], x) if shift is None else shift
    y: Blob
    if not training:
        y = apply(BatchNormInference(epsilon), x, scale, shift, running_mean, running_variance, name=name)
        return y
    for what, blob in (("running_mean", running_mean), ("running_variance", running_variance)):
        if moves and not isinstance(blob, Variable):
            raise GraphError(f"BatchNorm: {what} must be a variable in training, got {blob!r}")
    operation = BatchNorm(epsilon, momentum)
    inputs = (x, scale, shift, running_mean, running_variance)
    if not moves:
        y, *_ = apply(operation, *inputs, name=name)
        return y
    return _moving(operation, inputs, name)


def _moving(operation: BatchNorm, inputs: Sequence[Blob], name: str | None) -> Blob:
    """The op that writes the running statistics, too."""
    x, *_, running_mean, running_variance = inputs
    specs = operation.infer(*(blob.spec for blob in inputs))
    scope = x.graph.root.current_scope
    with x.graph.root.at(x.place):
        op = scope.op(scope.unique_name(name or "batchnorm").rpartition("/")[2], operation)
        own = op.name.rpartition("/")[2]
        y, mean, variance = (
            scope.blob(f"{own}.{what}", *spec) for what, spec in zip(("out", "mean", "variance"), specs, strict=False)
        )
    inputs >> op >> (y, mean, variance, running_mean, running_variance)
    return y
