"""Normalization by statistics: of the batch, channel by channel, or of each sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.composition import composed_gradient
from actorflow.ops.elementwise import add, as_dtype, multiply, reciprocal, sqrt, square
from actorflow.ops.operation import (
    Application,
    Grads,
    Operation,
    X,
    apply,
    blob_of,
    inferred,
    same_dtype,
    whole,
    wide_dtype,
)
from actorflow.ops.reductions import mean
from actorflow.ops.shaping import reshape, sum_to, transpose
from actorflow.spec import TensorSpec, may_divide


def check_epsilon(kind: str, epsilon: float) -> None:
    """Check the number that is added to a variance."""
    if not epsilon >= 0:
        raise GraphError(f"{kind}: epsilon must not be negative, got {epsilon}")


def shape_is(kind: str, shape: tuple[int, ...], of: str, **inputs: TensorSpec) -> None:
    """Check that inputs have a shape; the message says that it is the shape ``of`` something."""
    for name, spec in inputs.items():
        if spec.shape != shape:
            raise ShapeError(f"{kind}: {name} must have the shape of {of} {shape}, got {spec}")


def check_statistics(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any], **inputs: TensorSpec) -> None:
    """Check that statistics have a shape, and the `wide_dtype` of their array's dtype."""
    for name, spec in inputs.items():
        if spec != (shape, wide_dtype(dtype)):
            raise (ShapeError if spec.shape != shape else DTypeError)(
                f"{kind}: {name} must be {TensorSpec(shape, wide_dtype(dtype))}, got {spec}"
            )


class _Down(Operation):
    """``dx``, ``dscale`` and ``dshift`` of a normalization, from its means and variances.

    With ``n = (x - mean) * r``, ``r = 1 / sqrt(variance + epsilon)``, ``s = g * scale`` and means over what is
    normalized: ``dx = r * (s - mean(s) - n * mean(s * n))``, ``dscale = sum(g * n)``, ``dshift = sum(g)``.

    Its own gradient takes mean and variance as functions of ``x``, unless they are ``given``: then
    ``dx = r * s``.
    """

    arguments: ClassVar[tuple[str, ...]] = ("g", "x", "scale", "mean", "variance")
    constants: ClassVar[tuple[str, ...]] = ("mean", "variance")
    per_element = 12  # two for n, one for s, three for each mean of products, the sums, and what dx is made of
    given: ClassVar[bool] = False

    epsilon: float

    def parts(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], range]:
        """The shapes of the scale and of the statistics for the shape of ``x``, and the axes that are normalized."""
        return shape[-1:], shape[-1:], range(len(shape) - 1)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, x, scale, mean, variance = inputs
        same_dtype(self.kind, x=x, g=g, scale=scale)
        shape_is(self.kind, x.shape, "x", g=g)
        own, statistics, _ = self.parts(x.shape)
        shape_is(self.kind, own, "x's last axes", scale=scale)
        check_statistics(self.kind, statistics, x.dtype, mean=mean, variance=variance)
        return (x, scale, scale)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return composed_gradient(self._formula, op, grads, wanted)

    def _formula(self, g: Any, x: Any, scale: Any, of_mean: Any, of_variance: Any) -> list[Any]:
        *_, axes = self.parts(x.shape)
        wide, dtype, keep = of_mean.dtype, x.dtype, tuple(1 if i in axes else n for i, n in enumerate(x.shape))

        def average(v: Any) -> Any:
            return mean(v, tuple(axes), keepdims=True)

        g, x, factor = (as_dtype(v, wide) for v in (g, x, scale))
        centered = x - (reshape(of_mean, keep) if self.given else average(x))
        r = reciprocal(sqrt((reshape(of_variance, keep) if self.given else average(square(centered))) + self.epsilon))
        n, s = centered * r, g * factor
        dx = r * s if self.given else r * (s - average(s) - n * average(s * n))
        return [as_dtype(v, dtype) for v in (dx, sum_to(g * n, scale.shape), sum_to(g, scale.shape))]


def _grad_of_y(kind: str, op: Application, grads: Grads) -> Any:
    g: Any = grads[0]
    if g is None or any(grad is not None for grad in grads[1:]):
        raise GraphError(f"op {op.name!r}: only y of {kind} has a gradient, not the statistics")
    return g


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
    running_variance]``, where mean and variance are the batch's, the latter divided by the number of elements.
    The running variance takes that divided by one less, as in PyTorch. Statistics of half-precision inputs are float32.
    """

    arguments = ("x", "scale", "shift", "running_mean", "running_variance")
    constants: ClassVar[tuple[str, ...]] = ("running_mean", "running_variance")
    per_element = 7  # a mean, differences, their squares' mean, and three for the result

    epsilon: float = 1e-5
    momentum: float = 0.1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, scale, shift, mean, variance = inputs
        check_epsilon("BatchNorm", self.epsilon)
        if not 0 <= self.momentum <= 1:
            raise GraphError(f"BatchNorm: momentum must be from 0 to 1, got {self.momentum}")
        shape = _check_channels("BatchNorm", x, scale=scale, shift=shift)
        if math.prod(x.shape[:-1]) < 2:
            raise ShapeError(f"BatchNorm: x must have at least 2 elements per channel to be normalized by, got {x}")
        check_statistics("BatchNorm", shape, x.dtype, running_mean=mean, running_variance=variance)
        return (x, mean, variance, mean, variance)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        g = _grad_of_y(self.kind, op, grads)
        return [*apply(BatchNormDown(self.epsilon), g, *op.inputs[:2], *op.outputs[1:3]), None, None]


@dataclass(frozen=True)
class BatchNormDown(_Down):
    """The gradient of `BatchNorm`."""

    epsilon: float = 1e-5


@dataclass(frozen=True)
class BatchNormInference(Operation):
    """Normalizes each channel by given statistics; see `batch_norm`."""

    arguments = ("x", "scale", "shift", "mean", "variance")
    constants: ClassVar[tuple[str, ...]] = ("mean", "variance")
    per_element = 2

    epsilon: float = 1e-5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, scale, shift, mean, variance = inputs
        check_epsilon("BatchNormInference", self.epsilon)
        shape = _check_channels("BatchNormInference", x, scale=scale, shift=shift)
        check_statistics("BatchNormInference", shape, x.dtype, mean=mean, variance=variance)
        return (x,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        x, scale, _, mean, variance = op.inputs
        return [*apply(BatchNormInferenceDown(self.epsilon), grads[0], x, scale, mean, variance), None, None]


class BatchNormInferenceDown(BatchNormDown):
    """The gradient of `BatchNormInference`."""

    given = True


@whole
def batch_norm(
    x: X,
    running_mean: X,
    running_variance: X,
    scale: X | None = None,
    shift: X | None = None,
    *,
    training: bool = False,
    moves: bool = True,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> X:
    """Each channel less its mean, over its deviation, times ``scale``, plus ``shift``.

    In training, mean and variance are the batch's, over all axes but the last. The op then also writes the
    running statistics: ``running = (1 - momentum) * running + momentum * batch``, with the unbiased variance, in each
    frame that computes ``y``. In inference the running statistics take their place.

    Args:
        x: Shape (..., channels), floating; in training with at least 2 elements per channel.
        running_mean: Shape (channels,), dtype of ``x``, float32 for half precision; in training a variable, which gets
            its new value.
        running_variance: Likewise.
        scale: Shape (channels,), dtype of ``x``; None for 1.
        shift: Likewise; None for 0.
        training: Normalize by the batch.
        moves: Whether the running statistics get new values in training. A variable has one writer: where several
            batches are normalized in one graph, let one of them move the statistics.
        momentum: Share of the batch in the new running statistics.
        epsilon: Is added to the variance.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
        GraphError: if epsilon or momentum is out of range, or a running statistic is not a variable in training.
    Gradient: by x through the batch's statistics, too; by scale and shift; none by running statistics.
    Source: Ioffe and Szegedy, Batch normalization, 2015; `torch.nn.functional.batch_norm`.
    Example:
        >>> graph = af.Graph("normalize")
        >>> x = graph.blob("x", shape=(4, 1))
        >>> mean, variance = graph.variable("mean", 1), graph.variable("variance", 1, init=1)
        >>> y = af.ops.batch_norm(x, mean, variance, training=True)
        >>> print(graph.run_sync({x: [[1], [3], [1], [3]]})[y].ravel().round(3))
        [-1.  1. -1.  1.]
        >>> print(mean.value, variance.value.round(3))  # a tenth of the way to the batch's
        [0.2] [1.033]
    """
    scale = x.constant_like(1.0, x.shape[-1:]) if scale is None else scale
    shift = x.constant_like(0.0, x.shape[-1:]) if shift is None else shift
    if not training:
        return blob_of(BatchNormInference(epsilon), x, scale, shift, running_mean, running_variance, name=name)
    for what, blob in (("running_mean", running_mean), ("running_variance", running_variance)):
        if moves and not getattr(blob, "is_variable", False):
            raise GraphError(f"BatchNorm: {what} must be a variable in training, got {blob!r}")
    operation, inputs = BatchNorm(epsilon, momentum), (scale, shift, running_mean, running_variance)
    y: X = _moving(operation, x, inputs, name) if moves else blob_of(operation, x, *inputs, name=name)
    return y


def _moving(operation: BatchNorm, x: Any, more: Sequence[Any], name: str | None) -> Any:
    """The op that writes the running statistics, too."""
    specs = inferred(operation, [blob.spec for blob in (x, *more)]) or ()
    scope = x.graph.root.current_scope
    with x.graph.root.at(x.place):
        op = scope.op(scope.unique_name(name or "batchnorm").rpartition("/")[2], operation)
        own = op.name.rpartition("/")[2]
        y, mean, variance = (
            scope.blob(f"{own}.{what}", *spec) for what, spec in zip(("out", "mean", "variance"), specs, strict=False)
        )
    (x, *more) >> op >> (y, mean, variance, *more[2:])
    return y


@dataclass(frozen=True)
class LayerNorm(Operation):
    """Normalizes each sample over its last axes; see `layer_norm`.

    The second and third outputs are the samples' means and variances, of the shape of the other axes; those of
    half-precision inputs are float32.
    """

    arguments = ("x", "scale", "shift")
    per_element = 7

    axes: int = 1
    epsilon: float = 1e-5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
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

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        g = _grad_of_y(self.kind, op, grads)
        return [*apply(LayerNormDown(self.axes, self.epsilon), g, *op.inputs[:2], *op.outputs[1:])]


@dataclass(frozen=True)
class LayerNormDown(_Down):
    """The gradient of `LayerNorm`."""

    axes: int = 1
    epsilon: float = 1e-5

    def parts(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], range]:
        """The scale is of the axes that are normalized, statistics of the others."""
        return shape[-self.axes :], shape[: -self.axes], range(len(shape) - self.axes, len(shape))


def layer_norm(
    x: X,
    scale: X | None = None,
    shift: X | None = None,
    *,
    axes: int = 1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> X:
    """Each sample less its mean, over its deviation, times ``scale``, plus ``shift``.

    Args:
        x: Any shape, floating.
        scale: Shape of the last ``axes`` axes of ``x``, dtype of ``x``; None for 1.
        shift: Likewise; None for 0.
        axes: Number of axes, from the last one, to normalize over.
        epsilon: Is added to the variance, which is divided by the number of elements.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
        GraphError: if epsilon is negative.
    Gradient: by x, scale and shift.
    Source: Ba, Kiros and Hinton, Layer normalization, 2016; `torch.nn.functional.layer_norm`.
    Example:
        >>> x = xp.asarray([[1.0, 3.0], [10.0, 30.0]])
        >>> print(np.round(af.ops.layer_norm(x, xp.asarray([1.0, 2.0])), 3))
        [[-1.  2.]
         [-1.  2.]]
    """
    shape = x.shape[-axes:] if axes > 0 else ()
    scale = x.constant_like(1.0, shape) if scale is None else scale
    shift = x.constant_like(0.0, shape) if shift is None else shift
    return blob_of(LayerNorm(axes, epsilon), x, scale, shift, name=name)


def _affine(y: X, scale: X | None, shift: X | None, name: str | None) -> X:
    y = y if scale is None else multiply(y, scale, name=None if shift is not None else name)
    return y if shift is None else add(y, shift, name=name)


@whole
def group_norm(
    x: X,
    groups: int,
    scale: X | None = None,
    shift: X | None = None,
    *,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> X:
    """Each group of channels of each sample less its mean, over its deviation, times ``scale``, plus ``shift``.

    Other arguments, result, errors and gradient: as of `layer_norm`.

    Args:
        x: Shape (batch, ..., channels), floating.
        groups: Number of groups of neighbouring channels, which divides them.
        scale: Shape (channels,), dtype of ``x``; None for 1.
        shift: Likewise; None for 0.
    Source: Wu and He, Group normalization, 2018; `torch.nn.functional.group_norm`, with channels last.
    Example:
        >>> x = xp.asarray([[1.0, 3.0, 10.0, 30.0]])
        >>> print(np.round(af.ops.group_norm(x, groups=2), 3))
        [[-1.  1. -1.  1.]]
    """
    if len(x.shape) < 2 or groups < 1 or not may_divide(x.shape[-1], groups):
        raise ShapeError(f"group_norm: x must have shape (batch, ..., channels) and {groups} groups, got {x.spec}")
    batch, *size, channels = x.shape
    split_up = reshape(x, (batch, math.prod(size), groups, channels // groups))
    normal = layer_norm(transpose(split_up, (0, 2, 1, 3)), axes=2, epsilon=epsilon)
    return _affine(reshape(transpose(normal, (0, 2, 1, 3)), x.shape), scale, shift, name)


def instance_norm(
    x: X, scale: X | None = None, shift: X | None = None, *, epsilon: float = 1e-5, name: str | None = None
) -> X:
    """`group_norm` with a group for each channel.

    Arguments, result, errors and gradient: as of `group_norm`.
    Source: Ulyanov, Vedaldi and Lempitsky, Instance normalization, 2016; `torch.nn.functional.instance_norm`.
    Example:
        >>> x = xp.asarray([[[1.0, 10.0], [3.0, 30.0]]])  # (batch, positions, channels)
        >>> print(np.round(af.ops.instance_norm(x), 3))
        [[[-1. -1.]
          [ 1.  1.]]]
    """
    return group_norm(x, x.shape[-1], scale, shift, epsilon=epsilon, name=name)


@whole
def rms_norm(x: X, scale: X | None = None, *, axes: int = 1, epsilon: float = 1e-5, name: str | None = None) -> X:
    """Each sample over the root of its mean square, times ``scale``; half precision is computed in float32.

    Arguments, result, errors and gradient: as of `layer_norm`, but ``epsilon`` is added to the mean square.
    Source: Zhang and Sennrich, Root mean square layer normalization, 2019; `torch.nn.functional.rms_norm`.
    Example:
        >>> print(np.round(af.ops.rms_norm(xp.asarray([[3.0, 4.0], [0.0, 2.0]])), 3))
        [[0.849 1.131]
         [0.    1.414]]
    """
    wide: Any = as_dtype(x, wide_dtype(x.dtype))
    squares: Any = mean(square(wide), tuple(range(-axes, 0)), keepdims=True)
    normal: X = wide * reciprocal(sqrt(squares + epsilon))
    return _affine(as_dtype(normal, x.dtype), scale, None, name)
