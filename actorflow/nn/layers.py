"""Layers: composites of a few ops, with their variables."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from actorflow import ops
from actorflow.composite import Composite
from actorflow.errors import GraphError, ShapeError
from actorflow.nn import init
from actorflow.node import Blob, Initializer
from actorflow.ops.windows import as_pads, as_steps, check_image, per_axis

__all__ = [
    "Activation",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Flatten",
    "GlobalAverage",
    "GlobalMax",
    "InnerProduct",
    "NINBlock",
    "Pool",
    "SoftmaxLoss",
]

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


def _activation(owner: str, kind: str) -> Callable[..., Blob]:
    found = _ACTIVATIONS.get(kind)
    if found is None:
        raise GraphError(f"{owner}: activation must be one of {', '.join(_ACTIVATIONS)}, got {kind!r}")
    return found


class _Weighted(Composite):
    """A layer with a weight, and perhaps a bias and an activation."""

    def __init__(
        self,
        outputs: int,
        activation: str | None,
        bias: bool,
        weight_init: Initializer | None,
        bias_init: Initializer | None,
        name: str | None,
    ) -> None:
        super().__init__(name)
        if outputs < 1:
            raise GraphError(f"{type(self).__name__}: needs at least 1 output, got {outputs}")
        self.outputs = outputs
        self.activation = activation
        self._activate = None if activation is None else _activation(type(self).__name__, activation)
        self.bias = bias
        self.weight_init = weight_init or init.he()
        self.bias_init = bias_init or init.constant(0.0)

    def _finish(self, y: Blob) -> Blob:
        if self.bias:
            y = ops.bias(y, self.variable(y, "bias", (self.outputs,), self.bias_init), name="add")
        return y if self._activate is None else self._activate(y)


class _Convolution(_Weighted):
    """What a convolution and its transpose share."""

    def __init__(
        self,
        channels: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        pad: int | Sequence[int | Sequence[int]] = 0,
        *,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        activation: str | None = None,
        bias: bool = True,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(channels, activation, bias, weight_init, bias_init, name)
        kind = type(self).__name__
        if groups < 1 or channels % groups:
            raise GraphError(f"{kind}: channels, {channels}, must be a multiple of groups, got {groups}")
        self.kernel = as_steps(kernel)
        self.how = (as_steps(stride), as_pads(pad), as_steps(dilation), groups)
        self.groups = groups

    def _kernel_for(self, x: Blob) -> tuple[int, ...]:
        kind = type(self).__name__
        return per_axis(kind, "kernel", self.kernel, len(check_image(kind, "x", x.spec)), 1)


class Conv(_Convolution):
    """Convolution, bias, and perhaps an activation, over as many spatial axes as the images have.

    Bottom: (batch, [[depth,] height,] width, channels). Top: (batch, *out_size, ``channels``).
    Variables: ``weight`` (*kernel, in / groups, out) and ``bias`` (out,).

    Args:
        channels: Output channels.
        kernel: Size of the kernel: a number for all spatial axes, or one for each.
        stride: Step of the kernel, likewise.
        pad: Zeros around the images: a number, or for each spatial axis a number or (before, after).
        dilation: Step between the elements that a kernel sees.
        groups: How many parts the channels are divided into, each convolved on its own.
        activation: "relu", "sigmoid", "tanh", "softmax", "leaky_relu", "elu", "gelu", "silu", "softplus" or
            "log_softmax"; None for none.
        bias: Whether there is a bias.
        weight_init: Initializer of the weight; the default is `init.he`.
        bias_init: Initializer of the bias; the default is 0.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``channels`` is no positive multiple of ``groups`` or the activation unknown.
    Source: Purine2 layer ``Conv``.
    """

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = _arity(self, bottom, "x")
        kernel, channels = self._kernel_for(x), x.shape[-1]
        if channels % self.groups:
            raise ShapeError(f"Conv: x's channels must be a multiple of groups, {self.groups}, got {x.spec}")
        weight = self.variable(x, "weight", (*kernel, channels // self.groups, self.outputs), self.weight_init)
        return self._finish(ops.conv(x, weight, *self.how, name="conv"))


class ConvTranspose(_Convolution):
    """Transposed convolution, bias, and perhaps an activation; see `ops.conv_transpose`.

    Bottom: (batch, [[depth,] height,] width, channels). Top: (batch, *out_size, ``channels``).
    Variables: ``weight`` (*kernel, out / groups, in) and ``bias`` (out,).

    Args:
        channels: Output channels.
        kernel: Size of the kernel: a number for all spatial axes, or one for each.
        stride: Step in the output from one element of the images to the next.
        pad: What is cut off the output.
        output_pad: How much larger the output is at its far ends, less than the stride.
        dilation: As in `Conv`.
        groups: As in `Conv`.
        activation: As in `Conv`.
        bias: Whether there is a bias.
        weight_init: As in `Conv`.
        bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``channels`` is no positive multiple of ``groups`` or the activation unknown.
    """

    def __init__(
        self,
        channels: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        pad: int | Sequence[int | Sequence[int]] = 0,
        output_pad: int | Sequence[int] = 0,
        *,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        activation: str | None = None,
        bias: bool = True,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            channels,
            kernel,
            stride,
            pad,
            dilation=dilation,
            groups=groups,
            activation=activation,
            bias=bias,
            weight_init=weight_init,
            bias_init=bias_init,
            name=name,
        )
        self.output_pad = as_steps(output_pad)

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = _arity(self, bottom, "x")
        shape = (*self._kernel_for(x), self.outputs // self.groups, x.shape[-1])
        weight = self.variable(x, "weight", shape, self.weight_init)
        return self._finish(ops.conv_transpose(x, weight, *self.how, self.output_pad, name="conv"))


class InnerProduct(_Weighted):
    """Inner product, bias, and perhaps an activation; all axes but the first are flattened.

    Bottom: (batch, ...). Top: (batch, ``features``). Variables: ``weight`` (out, in) and ``bias`` (out,).

    Args:
        features: Output features.
        activation: As in `Conv`.
        bias: Whether there is a bias.
        weight_init: As in `Conv`.
        bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``features`` is not positive or the activation unknown.
    Source: Purine2 layer ``InnerProd``.
    """

    def __init__(
        self,
        features: int,
        *,
        activation: str | None = None,
        bias: bool = True,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(features, activation, bias, weight_init, bias_init, name)

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = _arity(self, bottom, "x")
        if len(x.shape) != 2:
            x = ops.flatten(x)
        weight = self.variable(x, "weight", (self.outputs, x.shape[1]), self.weight_init)
        return self._finish(ops.inner(x, weight))


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
        self._activate = _activation("Activation", kind)

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = _arity(self, bottom, "x")
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
        (x,) = _arity(self, bottom, "x")
        if self.kind == "max":
            return ops.max_pool(x, self.kernel, self.stride, self.pad, self.ceil, name="max")
        return ops.average_pool(x, self.kernel, self.stride, self.pad, self.ceil, self.count_pad, name="average")


class GlobalAverage(Composite):
    """The average of each channel over the whole image: (batch, ..., channels) to (batch, channels).

    Source: Purine2 layer ``GlobalAverage``.
    """

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = _arity(self, bottom, "x")
        return ops.global_average(x, name="average")


class GlobalMax(Composite):
    """The maximum of each channel over the whole image: (batch, ..., channels) to (batch, channels)."""

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = _arity(self, bottom, "x")
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
        (x,) = _arity(self, bottom, "x")
        if not training or self.rate == 0:
            return x
        scope = x.graph.root.current_scope.name
        return ops.dropout(x, self.rate, self.seed << 32 | zlib.crc32(scope.encode()), name="drop")


class Flatten(Composite):
    """All axes but the first joined into one: (batch, ...) to (batch, features)."""

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = _arity(self, bottom, "x")
        return ops.flatten(x, name="reshape")


class SoftmaxLoss(Composite):
    """The mean of ``-log(softmax(x)[label])``. Bottom: scores (batch, classes), labels (batch,). Top: 0-d.

    Source: Purine2 layer ``SoftmaxLoss``.
    """

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """Two bottom blobs, one top blob."""
        x, labels = _arity(self, bottom, "x", "labels")
        return ops.softmax_loss(x, labels, name="loss")


class NINBlock(Composite):
    """A convolution and 1x1 convolutions after it, each followed by a relu ("mlpconv").

    Args:
        kernel: Size of the first kernel: a number for all spatial axes, or one for each.
        channels: Output channels of each convolution, one or more.
        stride: Step of the first kernel.
        pad: Zeros around the images.
        weight_init: As in `Conv`.
        bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if there are no channels.
    Source: Purine2 layer ``NIN``; Lin, Chen and Yan, Network in network, 2013.
    """

    def __init__(
        self,
        kernel: int | Sequence[int],
        channels: Sequence[int],
        stride: int | Sequence[int] = 1,
        pad: int | Sequence[int | Sequence[int]] = 0,
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if not channels:
            raise GraphError("NINBlock: channels must name at least one convolution's output channels")
        self.layers = [
            Conv(
                width,
                kernel if i == 0 else 1,
                stride if i == 0 else 1,
                pad if i == 0 else 0,
                activation="relu",
                weight_init=weight_init,
                bias_init=bias_init,
                name=f"conv{i}",
            )
            for i, width in enumerate(channels)
        ]

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One bottom blob, one top blob."""
        (x,) = _arity(self, bottom, "x")
        for layer in self.layers:
            x = layer(x, training=training)
        return x


def _arity(layer: Composite, bottom: Sequence[Blob], *names: str) -> Sequence[Blob]:
    """The bottom, if it has as many blobs as names.

    Raises:
        GraphError: naming what is expected.
    """
    if len(bottom) != len(names):
        raise GraphError(
            f"{type(layer).__name__} takes {len(names)} bottom blobs ({', '.join(names)}), got {len(bottom)}"
        )
    return bottom
