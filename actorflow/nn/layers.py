"""Layers without variables: composites of an op."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from actorflow import ops
from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob

_ACTIVATIONS: Mapping[str, Callable[..., Blob]] = MappingProxyType(
    {
        "relu": ops.relu,
        "sigmoid": ops.sigmoid,
        "tanh": ops.tanh,
        "softmax": ops.softmax,
        "leaky_relu": ops.leaky_relu,
        "elu": ops.elu,
        "gelu": ops.gelu,
        "silu": ops.silu,
        "softplus": ops.softplus,
        "log_softmax": ops.log_softmax,
    }
)  # each of (x, name=...)


def activation_of(owner: str, kind: str) -> Callable[..., Blob]:
    """The function of an activation's name.

    Raises:
        GraphError: if there is none of that name.
    """
    found = _ACTIVATIONS.get(kind)
    if found is None:
        raise GraphError(f"{owner}: activation must be one of {', '.join(_ACTIVATIONS)}, got {kind!r}")
    return found


def bottoms(layer: Composite, bottom: Sequence[Blob], *names: str) -> Sequence[Blob]:
    """The bottom, if it has as many blobs as names.

    Raises:
        GraphError: naming what is expected.
    """
    if len(bottom) != len(names):
        raise GraphError(
            f"{type(layer).__name__} takes {len(names)} bottom blobs ({', '.join(names)}), got {len(bottom)}"
        )
    return bottom


class Activation(Composite):
    """An activation function.

    Args:
        kind: As the activations of `Conv`; softmax and log-softmax are over the last axis.
        name: Scope of its nodes.
    Raises:
        GraphError: if the kind is unknown.
    Source: Purine2 layer ``Activation``.
    """

    def __init__(self, kind: str = "relu", name: str | None = None) -> None:
        super().__init__(name)
        self.kind = kind
        self._activate = activation_of("Activation", kind)

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        return self._activate(x)


class Pool(Composite):
    """Pooling over windows of the images, over as many spatial axes as they have.

    Args:
        kind: "max" or "average".
        kernel: Size of the window: a number for all spatial axes, or one for each.
        stride: Step of the window; the default is the kernel.
        pad: Border around the images: a number, or for each spatial axis a number or (before, after).
        ceil: Whether the last window may reach over the border; see `ops.max_pool`.
        count_pad: Whether averages count the border, as zeros.
        name: Scope of its nodes.
    Raises:
        GraphError: if the kind is unknown.
    Source: Purine2 layer ``Pool``.
    """

    def __init__(
        self,
        kind: str,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        pad: int | Sequence[int | Sequence[int]] = 0,
        *,
        ceil: bool = True,
        count_pad: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if kind not in ("max", "average"):
            raise GraphError(f"Pool: kind must be 'max' or 'average', got {kind!r}")
        self.kind = kind
        self.kernel, self.stride, self.pad, self.ceil, self.count_pad = kernel, stride, pad, ceil, count_pad

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        if self.kind == "max":
            return ops.max_pool(x, self.kernel, self.stride, self.pad, self.ceil, name="max")
        return ops.average_pool(x, self.kernel, self.stride, self.pad, self.ceil, self.count_pad, name="average")


class GlobalAverage(Composite):
    """The average of each channel over the whole image: (batch, ..., channels) to (batch, channels).

    Source: Purine2 layer ``GlobalAverage``.
    """

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        return ops.global_average(x, name="average")


class GlobalMax(Composite):
    """The maximum of each channel over the whole image: (batch, ..., channels) to (batch, channels)."""

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        return ops.global_max(x, name="max")


class Dropout(Composite):
    """Dropout in training; nothing in inference, where the top is the bottom itself.

    Args:
        rate: The probability that an element is dropped, at least 0 and less than 1.
        seed: Chooses the random stream, together with the layer's name in the graph.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``rate`` is out of range or ``seed`` is not from 0 to 2**64 - 1.
    Source: Purine2 layer ``Dropout``.
    """

    def __init__(self, rate: float = 0.5, seed: int = 0, name: str | None = None) -> None:
        super().__init__(name)
        if not 0 <= rate < 1:
            raise GraphError(f"Dropout: rate must be at least 0 and less than 1, got {rate}")
        if not 0 <= seed < 1 << 64:
            raise GraphError(f"Dropout: seed must be from 0 to 2**64 - 1, got {seed}")
        self.rate, self.seed = rate, seed

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        if not training or self.rate == 0:
            return x
        scope = x.graph.root.current_scope.name
        return ops.dropout(x, self.rate, self.seed << 32 | zlib.crc32(scope.encode()), name="drop")


class Flatten(Composite):
    """All axes but the first joined into one: (batch, ...) to (batch, features)."""

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        return ops.flatten(x, name="reshape")


class Softmax(Composite):
    """``exp(x)`` over its sum along an axis.

    Args:
        axis: Along which the top adds up to 1.
        name: Scope of its nodes.
    Source: Purine2 layer ``Softmax``.
    """

    def __init__(self, axis: int = -1, name: str | None = None) -> None:
        super().__init__(name)
        self.axis = axis

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = bottoms(self, bottom, "x")
        return ops.softmax(x, self.axis, name="softmax")


class SoftmaxLoss(Composite):
    """The mean of ``-log(softmax(x)[label])``. Bottom: scores (batch, classes), labels (batch,). Top: 0-d.

    Source: Purine2 layer ``SoftmaxLoss``.
    """

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """Two bottom blobs, one top blob."""
        x, labels = bottoms(self, bottom, "x", "labels")
        return ops.softmax_loss(x, labels, name="loss")
