"""Layers that normalize."""

from __future__ import annotations

from actorflow import ops
from actorflow.errors import GraphError, ShapeError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob, Variable
from actorflow.nn import init
from actorflow.nn.layers import bottoms


class BatchNorm(Composite):
    """Normalizes each channel: by the batch in training, by running statistics in inference.

    Bottom and top: (..., channels). Variables: ``scale`` and ``shift`` (channels,), which are trained, and the
    `statistics` ``running_mean`` and ``running_variance``, which each frame that computes the top of the first build
    in training moves. Later builds in training, on other blobs, normalize by their batch and leave the running
    statistics alone.

    Args:
        momentum: Share of the batch in the new running statistics.
        epsilon: Is added to the variance.
        affine: Whether there are scale and shift.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``momentum`` or ``epsilon`` is out of range.
    Source: Ioffe and Szegedy, Batch normalization, 2015.
    """

    def __init__(
        self, momentum: float = 0.1, epsilon: float = 1e-5, *, affine: bool = True, name: str | None = None
    ) -> None:
        super().__init__(name)
        if not 0 <= momentum <= 1:
            raise GraphError(f"BatchNorm: momentum must be from 0 to 1, got {momentum}")
        if not epsilon >= 0:
            raise GraphError(f"BatchNorm: epsilon must not be negative, got {epsilon}")
        self.momentum, self.epsilon, self.affine = momentum, epsilon, affine
        self.statistics: tuple[Variable, ...] = ()
        self._moves = False

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        if not x.shape:
            raise ShapeError(f"BatchNorm: x must have shape (..., channels), got {x.spec}")
        shape = x.shape[-1:]
        scale = self.variable(x, "scale", shape, init.constant(1.0)) if self.affine else None
        shift = self.variable(x, "shift", shape, init.constant(0.0)) if self.affine else None
        if not self.statistics:
            self.statistics = self._make_statistics(x)
        mean, variance = self.statistics
        if mean.shape != shape:
            raise ShapeError(f"variable {mean.name!r} was built with shape {mean.shape}, this build needs {shape}")
        moves = training and not self._moves
        self._moves = self._moves or training
        return ops.batch_norm(
            x,
            mean,
            variance,
            scale,
            shift,
            training=training,
            moves=moves,
            momentum=self.momentum,
            epsilon=self.epsilon,
            name="normalize",
        )

    def _make_statistics(self, x: Blob) -> tuple[Variable, Variable]:
        scope, dtype = x.graph.root.current_scope, "float64" if x.dtype == "float64" else "float32"
        mean, variance = (
            scope.variable(name, x.shape[-1:], dtype, init.constant(value), x.place)
            for name, value in (("running_mean", 0.0), ("running_variance", 1.0))
        )
        self._variables |= {"running_mean": mean, "running_variance": variance}
        return mean, variance


class LayerNorm(Composite):
    """Normalizes each sample over its last axes.

    Bottom and top: any shape. Variables: ``scale`` and ``shift``, of the shape of these axes.

    Args:
        axes: How many axes, from the last one.
        epsilon: Is added to the variance.
        affine: Whether there are scale and shift.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``axes`` is less than 1 or ``epsilon`` is negative.
    Source: Ba, Kiros and Hinton, Layer normalization, 2016.
    """

    def __init__(self, axes: int = 1, epsilon: float = 1e-5, *, affine: bool = True, name: str | None = None) -> None:
        super().__init__(name)
        if axes < 1:
            raise GraphError(f"LayerNorm: axes must be at least 1, got {axes}")
        if not epsilon >= 0:
            raise GraphError(f"LayerNorm: epsilon must not be negative, got {epsilon}")
        self.axes, self.epsilon, self.affine = axes, epsilon, affine

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        shape = x.shape[-self.axes :]
        scale = self.variable(x, "scale", shape, init.constant(1.0)) if self.affine else None
        shift = self.variable(x, "shift", shape, init.constant(0.0)) if self.affine else None
        return ops.layer_norm(x, scale, shift, axes=self.axes, epsilon=self.epsilon, name="normalize")


class LRN(Composite):
    """Local response normalization across channels; see `ops.lrn`.

    Args:
        alpha: Factor on the mean square of the channels around.
        beta: The power that is divided by.
        size: How many channels.
        k: Is added to the mean square.
        name: Scope of its nodes.
    Source: Purine2 layer ``LRN``.
    """

    def __init__(
        self, alpha: float = 1e-4, beta: float = 0.75, size: int = 5, k: float = 1.0, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.alpha, self.beta, self.size, self.k = alpha, beta, size, k

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        return ops.lrn(x, self.alpha, self.beta, self.size, self.k, name="lrn")
