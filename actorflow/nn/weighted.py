"""Layers with a weight: convolutions and inner products."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow import ops
from actorflow.errors import GraphError, ShapeError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob, Initializer
from actorflow.nn import init
from actorflow.nn.layers import activation_of, bottoms
from actorflow.ops.windows import as_pads, as_steps, check_image, per_axis


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
        self._activate = None if activation is None else activation_of(type(self).__name__, activation)
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
        (x,) = bottoms(self, bottom, "x")
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
        output_pad: How much larger the output is at its far ends, less than the stride or the dilation.
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
        (x,) = bottoms(self, bottom, "x")
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
        (x,) = bottoms(self, bottom, "x")
        if len(x.shape) != 2:
            x = ops.flatten(x)
        weight = self.variable(x, "weight", (self.outputs, x.shape[1]), self.weight_init)
        return self._finish(ops.inner(x, weight))
