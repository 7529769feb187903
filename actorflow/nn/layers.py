"""Layers: parts of a network with one top blob."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy.typing as npt

from actorflow import ops
from actorflow.errors import GraphError, ShapeError, flag, real, whole
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Blob, Initializer, Variable
from actorflow.nn import init
from actorflow.ops.nn.windows import check_image, per_axis, plain

#: Each of (x, name=...).
_ACTIVATIONS: Mapping[str, Callable[..., Blob]] = MappingProxyType(
    {
        name: getattr(ops, name)
        for name in (
            *("relu", "sigmoid", "tanh", "softmax", "leaky_relu", "elu", "gelu", "silu", "softplus", "log_softmax"),
            *("hard_sigmoid", "hard_swish"),
        )
    }
)


def activation_of(owner: str, kind: str) -> Callable[..., Blob]:
    """The function of an activation's name; raises GraphError if there is none of that name."""
    found = _ACTIVATIONS.get(kind)
    if found is None:
        raise GraphError(f"{owner}: activation must be one of {', '.join(_ACTIVATIONS)}, got {kind!r}")
    return found


def bottoms(layer: Composite, bottom: Sequence[Blob], *names: str) -> Sequence[Blob]:
    """The bottom, if it has as many blobs as names; raises GraphError naming those expected."""
    if len(bottom) != len(names):
        blobs = f"{len(names)} bottom blob{'s' * (len(names) > 1)} ({', '.join(names)})"
        raise GraphError(f"{type(layer).__name__} takes {blobs}, got {len(bottom)}")
    return bottom


class Layer(Composite):
    """A composite of one top blob, and of one bottom blob unless it overrides `build`: define `forward`.

    Example:
        >>> class Scale(af.nn.Layer):
        ...     def forward(self, x, training):
        ...         return x * self.variable(x, "scale", x.spec.shape[1:], init=1)
        >>> graph = af.Graph("g")
        >>> scale = Scale()
        >>> scale(graph.blob("x", ["batch", 3]))
        <Blob 'scale/multiply/out' float32[batch, 3] on cpu>
        >>> [variable.name for variable in scale.variables]
        ['scale/scale']
    """

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One top blob."""
        (x,) = bottoms(self, bottom, "x")
        return self.forward(x, training)

    def forward(self, x: Blob, training: bool) -> Blob:
        """Make the ops on ``x`` and return the top; called inside the layer's own scope."""
        raise GraphError(f"{type(self).__name__} does not say what it is made of: define forward()")


class Activation(Layer):
    """An activation function.

    Args:
        kind: As the activations of `Conv`; softmax and log-softmax are over the last axis.
        name: Scope of its nodes.
    Raises:
        GraphError: if the kind is unknown.
    Source: Purine2 layer ``Activation``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [3])
        >>> y = af.nn.Activation("leaky_relu")(x)
        >>> graph.run_sync({x: [-1, 0, 2]})[y]
        array([-0.01,  0.  ,  2.  ], dtype=float32)
    """

    def __init__(self, kind: str = "relu", name: str | None = None) -> None:
        super().__init__(name)
        self.kind = kind
        self._activate = activation_of("Activation", kind)

    def forward(self, x: Blob, training: bool) -> Blob:
        return self._activate(x)


class Pool(Layer):
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

    Example:
        >>> graph = af.Graph("g")
        >>> images = graph.blob("images", ["batch", 28, 28, 8])
        >>> af.nn.Pool("max", 2)(images)
        <Blob 'pool/max/out' float32[batch, 14, 14, 8] on cpu>
        >>> af.nn.Pool("average", 3, stride=2, pad=1)(images)
        <Blob 'pool_1/average/out' float32[batch, 15, 15, 8] on cpu>
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

    def forward(self, x: Blob, training: bool) -> Blob:
        if self.kind == "max":
            return ops.max_pool(x, self.kernel, self.stride, self.pad, self.ceil, name="max")
        return ops.average_pool(x, self.kernel, self.stride, self.pad, self.ceil, self.count_pad, name="average")


class GlobalAverage(Layer):
    """The average of each channel over the whole image: (batch, ..., channels) to (batch, channels).

    Source: Purine2 layer ``GlobalAverage``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", "height", "width", 1])
        >>> y = af.nn.GlobalAverage()(x)
        >>> graph.run_sync({x: [[[[1], [2]], [[3], [6]]]]})[y]
        array([[3.]], dtype=float32)
    """

    def forward(self, x: Blob, training: bool) -> Blob:
        return ops.global_average(x, name="average")


class GlobalMax(Layer):
    """The maximum of each channel over the whole image: (batch, ..., channels) to (batch, channels).

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", "height", "width", 1])
        >>> y = af.nn.GlobalMax()(x)
        >>> graph.run_sync({x: [[[[1], [2]], [[3], [6]]]]})[y]
        array([[6.]], dtype=float32)
    """

    def forward(self, x: Blob, training: bool) -> Blob:
        return ops.global_max(x, name="max")


class Dropout(Layer):
    """Dropout in training; nothing in inference, where the top is the bottom itself.

    Args:
        rate: The probability that an element is dropped, at least 0 and less than 1.
        seed: Chooses the random stream, together with the layer's name in the graph.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``rate`` is out of range or ``seed`` is not from 0 to 2**64 - 1.
    Source: Purine2 layer ``Dropout``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [1000])
        >>> layer = af.nn.Dropout(0.5)
        >>> dropped, kept = layer(x), layer(x, training=False)
        >>> values = graph.run_sync({x: [1] * 1000}, fetch=dropped)[dropped]
        >>> np.unique(values)  # the rest is scaled up, by 1 / (1 - rate)
        array([0., 2.], dtype=float32)
        >>> kept is x
        True
    """

    def __init__(self, rate: float = 0.5, seed: int = 0, name: str | None = None) -> None:
        super().__init__(name)
        self.rate = real("Dropout: rate", rate, 0, below=1)
        self.seed = whole("Dropout: seed", seed, 0, (1 << 64) - 1)

    def forward(self, x: Blob, training: bool) -> Blob:
        if not training or self.rate == 0:
            return x
        scope = x.graph.root.current_scope.name
        return ops.dropout(x, self.rate, self.seed << 32 | zlib.crc32(scope.encode()), name="drop")


class Flatten(Layer):
    """All axes but the first joined into one: (batch, ...) to (batch, features).

    Example:
        >>> graph = af.Graph("g")
        >>> af.nn.Flatten()(graph.blob("images", ["batch", 4, 4, 3]))
        <Blob 'flatten/reshape/out' float32[batch, 48] on cpu>
    """

    def forward(self, x: Blob, training: bool) -> Blob:
        return ops.flatten(x, name="reshape")


class Softmax(Layer):
    """``exp(x)`` over its sum along an axis.

    Args:
        axis: Along which the top adds up to 1.
        name: Scope of its nodes.
    Source: Purine2 layer ``Softmax``.

    Example:
        >>> graph = af.Graph("g")
        >>> scores = graph.blob("scores", ["batch", 2])
        >>> probabilities = af.nn.Softmax()(scores)
        >>> graph.run_sync({scores: [[0, 0], [0, np.log(3)]]})[probabilities].round(4)
        array([[0.5 , 0.5 ],
               [0.25, 0.75]], dtype=float32)
    """

    def __init__(self, axis: int = -1, name: str | None = None) -> None:
        super().__init__(name)
        self.axis = whole("Softmax: axis", axis)

    def forward(self, x: Blob, training: bool) -> Blob:
        return ops.softmax(x, self.axis, name="softmax")


class SoftmaxLoss(Layer):
    """The mean of ``-log(softmax(x)[label])``. Bottom: scores (batch, classes), labels (batch,). Top: 0-d.

    Source: Purine2 layer ``SoftmaxLoss``.

    Example:
        >>> graph = af.Graph("g")
        >>> scores = graph.blob("scores", ["batch", 4])
        >>> labels = graph.blob("labels", ["batch"], "int64")
        >>> loss = af.nn.SoftmaxLoss()(scores, labels)
        >>> result = graph.run_sync({scores: [[0, 0, 0, 0]], labels: [3]})
        >>> round(result[loss].item(), 4)  # log(4)
        1.3863
    """

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """Two bottom blobs, one top blob."""
        x, labels = bottoms(self, bottom, "x", "labels")
        return ops.softmax_loss(x, labels, name="loss")


class _Weighted(Layer):
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
        self.outputs = whole(f"{type(self).__name__}: outputs", outputs, 1)
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
    """Base of a convolution and its transpose."""

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
        groups = whole(f"{kind}: groups", groups, 1)
        if self.outputs % groups:
            raise GraphError(f"{kind}: channels, {channels}, must be a multiple of groups, got {groups}")
        self.kernel = plain(kernel)
        self.how = (plain(stride), plain(pad), plain(dilation), groups)
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
        activation: "relu", "sigmoid", "tanh", "softmax", "leaky_relu", "elu", "gelu", "silu", "softplus",
            "log_softmax", "hard_sigmoid" or "hard_swish"; None for none.
        bias: Whether there is a bias.
        weight_init: Initializer of the weight; the default is `init.he`.
        bias_init: Initializer of the bias; the default is 0.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``channels`` is not a positive multiple of ``groups`` or the activation unknown.
    Source: Purine2 layer ``Conv``.

    Example:
        >>> graph = af.Graph("g")
        >>> images = graph.blob("images", ["batch", 28, 28, 3])
        >>> conv = af.nn.Conv(16, 3, stride=2, pad=1, activation="relu", name="conv")
        >>> conv(images)
        <Blob 'conv/relu/out' float32[batch, 14, 14, 16] on cpu>
        >>> [(variable.name, variable.spec.shape) for variable in conv.variables]
        [('conv/weight', (3, 3, 3, 16)), ('conv/bias', (16,))]
    """

    def forward(self, x: Blob, training: bool) -> Blob:
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
        pad: Elements cut off the output at each side.
        output_pad: How much larger the output is at its far ends, less than the stride or the dilation.
        dilation, groups, activation: As in `Conv`.
        bias: Whether there is a bias.
        weight_init, bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``channels`` is not a positive multiple of ``groups`` or the activation unknown.

    Example:
        >>> graph = af.Graph("g")
        >>> features = graph.blob("features", ["batch", 7, 7, 16])
        >>> af.nn.ConvTranspose(8, 4, stride=2, pad=1)(features)
        <Blob 'convtranspose/add/out' float32[batch, 14, 14, 8] on cpu>
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
        self.output_pad = plain(output_pad)

    def forward(self, x: Blob, training: bool) -> Blob:
        shape = (*self._kernel_for(x), self.outputs // self.groups, x.shape[-1])
        weight = self.variable(x, "weight", shape, self.weight_init)
        return self._finish(ops.conv_transpose(x, weight, *self.how, self.output_pad, name="conv"))


class _Product(_Weighted):
    """Base of layers of one inner product."""

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

    def _product(self, x: Blob) -> Blob:
        weight = self.variable(x, "weight", (self.outputs, x.shape[-1]), self.weight_init)
        return self._finish(ops.inner(x, weight))


class InnerProduct(_Product):
    """Inner product, bias, and perhaps an activation, of rows of features or of whole images, which are flattened.

    Bottom: (batch, in) or (batch, height, width, channels). Top: (batch, ``features``). Variables: ``weight`` (out, in)
    and ``bias`` (out,). `Linear` is the layer for sequences, ``Flatten() >> InnerProduct(features)`` for anything else.

    Args:
        features: Output features.
        activation: As in `Conv`.
        bias: Whether there is a bias.
        weight_init, bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``features`` is not positive or the activation unknown; `ShapeError` if the bottom has neither 2
            nor 4 axes.
    Source: Purine2 layer ``InnerProd``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 3])
        >>> layer = af.nn.InnerProduct(2, activation="relu", name="hidden")
        >>> y = layer(x)
        >>> weight, bias = layer.variables
        >>> weight.value = [[1, 1, 1], [-1, -1, -1]]
        >>> graph.run_sync({x: [[1, 2, 3]]})[y]
        array([[6., 0.]], dtype=float32)
    """

    def forward(self, x: Blob, training: bool) -> Blob:
        if len(x.shape) == 4:
            x = ops.flatten(x)
        elif len(x.shape) != 2:
            raise ShapeError(
                f"InnerProduct: x must have shape (batch, features) or (batch, height, width, channels), got {x.spec}: "
                f"af.nn.Linear({self.outputs}) works on the last axis alone, af.nn.Flatten() joins all but the first"
            )
        return self._product(x)


class Linear(_Product):
    """Inner product over the last axis, bias, and perhaps an activation.

    Bottom: (..., in), such as (batch, time, in). Top: (..., ``features``). Variables: ``weight`` (out, in) and ``bias``
    (out,).

    Args:
        features: Output features.
        activation: As in `Conv`.
        bias: Whether there is a bias.
        weight_init, bias_init: As in `Conv`.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``features`` is not positive or the activation unknown; `ShapeError` if the bottom has no axes.
    Source: `torch.nn.Linear`.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", "time", 3])
        >>> af.nn.Linear(2, name="each")(x)
        <Blob 'each/add/out' float32[batch, time, 2] on cpu>
    """

    def forward(self, x: Blob, training: bool) -> Blob:
        if not x.shape:
            raise ShapeError(f"Linear: x must have shape (..., features), got {x.spec}")
        if len(x.shape) == 1:
            return ops.reshape(self._product(ops.reshape(x, (1, -1))), (self.outputs,))
        return self._product(x)


class Embedding(Layer):
    """The vector of each index.

    Bottom: indices, any shape, integers. Top: (indices' shape, ``features``). Variable: ``weight`` (count, features).

    Args:
        count: How many vectors.
        features: Their length.
        dtype: Of the vectors, floating.
        weight_init: Initializer of the vectors; the default is Gaussian of 1, as PyTorch's.
        name: Scope of its nodes.
    Raises:
        GraphError: if a number is not positive.
    Source: `torch.nn.Embedding`.

    Example:
        >>> graph = af.Graph("g")
        >>> tokens = graph.blob("tokens", ["batch", "time"], "int64")
        >>> layer = af.nn.Embedding(1000, 16)
        >>> layer(tokens)
        <Blob 'embedding/embedding/out' float32[batch, time, 16] on cpu>
    """

    def __init__(
        self,
        count: int,
        features: int,
        *,
        dtype: npt.DTypeLike = "float32",
        weight_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.count, self.features = whole("Embedding: count", count, 1), whole("Embedding: features", features, 1)
        self.dtype = dtype
        self.weight_init = weight_init or init.gaussian(1.0)

    def forward(self, x: Blob, training: bool) -> Blob:
        weight = self.variable(x, "weight", (self.count, self.features), self.weight_init, self.dtype)
        return ops.embedding(x, weight)


class _Normalization(Layer):
    """A layer that normalizes, and perhaps has variables ``scale`` and ``shift``."""

    def __init__(self, epsilon: float, affine: bool, name: str | None) -> None:
        super().__init__(name)
        kind = type(self).__name__
        self.epsilon, self.affine = real(f"{kind}: epsilon", epsilon, 0), flag(f"{kind}: affine", affine)

    def _scale_and_shift(self, x: Blob, axes: int = 1) -> tuple[Blob | None, Blob | None]:
        if not self.affine:
            return None, None
        shape = x.shape[-axes:]
        return (
            self.variable(x, "scale", shape, init.constant(1.0)),
            self.variable(x, "shift", shape, init.constant(0.0)),
        )


class BatchNorm(_Normalization):
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

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 1])
        >>> norm = af.nn.BatchNorm(name="norm")
        >>> y, served = norm(x), norm(x, training=False)
        >>> graph.run_sync({x: [[1], [3]]}, fetch=y)[y].round(2)
        array([[-1.],
               [ 1.]], dtype=float32)
        >>> norm.statistics  # moved by that frame
        (<Variable 'norm/running_mean' float32[1] on cpu>, <Variable 'norm/running_variance' float32[1] on cpu>)
        >>> norm.statistics[0].value
        array([0.2], dtype=float32)
    """

    def __init__(
        self, momentum: float = 0.1, epsilon: float = 1e-5, *, affine: bool = True, name: str | None = None
    ) -> None:
        super().__init__(epsilon, affine, name)
        self.momentum = real("BatchNorm: momentum", momentum, 0, 1)
        self.statistics: tuple[Variable, ...] = ()
        self._moves = False

    def forward(self, x: Blob, training: bool) -> Blob:
        if not x.shape:
            raise ShapeError(f"BatchNorm: x must have shape (..., channels), got {x.spec}")
        shape = x.shape[-1:]
        scale, shift = self._scale_and_shift(x)
        if not self.statistics:
            scope, dtype = x.graph.root.current_scope, "float64" if x.dtype == "float64" else "float32"
            for name, value in (("running_mean", 0.0), ("running_variance", 1.0)):
                made = scope.variable(name, shape, dtype, init.constant(value), x.place)
                self._variables |= {name: made}
                self.statistics += (made,)
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


class LayerNorm(_Normalization):
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

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 2])
        >>> y = af.nn.LayerNorm()(x)
        >>> graph.run_sync({x: [[1, 3], [10, 40]]})[y].round(2)
        array([[-1.,  1.],
               [-1.,  1.]], dtype=float32)
    """

    def __init__(self, axes: int = 1, epsilon: float = 1e-5, *, affine: bool = True, name: str | None = None) -> None:
        super().__init__(epsilon, affine, name)
        self.axes = whole("LayerNorm: axes", axes, 1)

    def forward(self, x: Blob, training: bool) -> Blob:
        affine = self._scale_and_shift(x, self.axes)
        return ops.layer_norm(x, *affine, axes=self.axes, epsilon=self.epsilon, name="normalize")


class GroupNorm(_Normalization):
    """Normalizes groups of channels of each sample; see `ops.group_norm`.

    Bottom and top: (batch, ..., channels). Variables: ``scale`` and ``shift`` (channels,).

    Args:
        groups: Number of groups; None for one for each channel, which is `InstanceNorm`.
        epsilon, affine, name: As in `LayerNorm`.
    Raises:
        GraphError: if ``epsilon`` is negative.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 8, 8, 32])
        >>> norm = af.nn.GroupNorm(8, name="norm")
        >>> norm(x)
        <Blob 'norm/normalize/out' float32[batch, 8, 8, 32] on cpu>
    """

    def __init__(
        self, groups: int | None, epsilon: float = 1e-5, *, affine: bool = True, name: str | None = None
    ) -> None:
        super().__init__(epsilon, affine, name)
        self.groups = None if groups is None else whole("GroupNorm: groups", groups, 1)

    def forward(self, x: Blob, training: bool) -> Blob:
        groups = x.shape[-1] if self.groups is None else self.groups
        return ops.group_norm(x, groups, *self._scale_and_shift(x), epsilon=self.epsilon, name="normalize")


class InstanceNorm(GroupNorm):
    """`GroupNorm` with a group for each channel; without ``scale`` and ``shift`` unless ``affine``, as in PyTorch.

    Bottom and top: (batch, ..., channels).

    Args:
        epsilon, affine, name: As in `LayerNorm`.
    Raises:
        GraphError: if ``epsilon`` is negative.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 2, 1])
        >>> y = af.nn.InstanceNorm()(x)
        >>> graph.run_sync({x: [[[1], [3]]]})[y].round(2)
        array([[[-1.],
                [ 1.]]], dtype=float32)
    """

    def __init__(self, epsilon: float = 1e-5, *, affine: bool = False, name: str | None = None) -> None:
        super().__init__(None, epsilon, affine=affine, name=name)


class RMSNorm(_Normalization):
    """Divides each sample by the root of its mean square over the last axis; see `ops.rms_norm`.

    Bottom and top: (..., features). Variable: ``scale`` (features,).

    Args:
        epsilon: Is added to the mean square.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``epsilon`` is negative.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 2])
        >>> y = af.nn.RMSNorm()(x)
        >>> graph.run_sync({x: [[1, 7]]})[y].round(3)
        array([[0.2, 1.4]], dtype=float32)
    """

    def __init__(self, epsilon: float = 1e-5, *, name: str | None = None) -> None:
        super().__init__(epsilon, True, name)

    def forward(self, x: Blob, training: bool) -> Blob:
        scale = self.variable(x, "scale", x.shape[-1:], init.constant(1.0))
        return ops.rms_norm(x, scale, epsilon=self.epsilon, name="normalize")


class MultiHeadAttention(Layer):
    """Attention of several heads, between products with weights; see `ops.attention`.

    Bottom: x (batch, queries, features), and perhaps the values attended to, (batch, keys, ...), which are x itself
    otherwise, and a mask. Top: (batch, queries, features). Variables: ``weight_q`` and ``weight_out`` (features,
    features), ``weight_k`` and ``weight_v`` (kv_heads * features / heads, ...), and a bias for each, ``bias_q`` to
    ``bias_out``.

    Args:
        heads: Number of heads, which divides the features.
        kv_heads: Number of heads of keys and values, each for as many of the queries; the default is ``heads``.
        causal: Whether a query sees no later key.
        bias: Whether there are biases.
        weight_init: Initializer of the weights; the default is `init.xavier`.
        name: Scope of its nodes.
    Source: `torch.nn.MultiheadAttention`, with batches first.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", "time", 32])
        >>> attention = af.nn.MultiHeadAttention(4, causal=True)
        >>> attention(x)
        <Blob 'multiheadattention/bias_3/out' float32[batch, time, 32] on cpu>
        >>> memory = graph.blob("memory", ["batch", "keys", 32])
        >>> af.nn.MultiHeadAttention(4)(x, memory)
        <Blob 'multiheadattention_1/bias_3/out' float32[batch, time, 32] on cpu>
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int | None = None,
        *,
        causal: bool = False,
        bias: bool = True,
        weight_init: Initializer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.heads = whole("MultiHeadAttention: heads", heads, 1)
        self.kv_heads = whole("MultiHeadAttention: kv_heads", heads if kv_heads is None else kv_heads, 1)
        self.causal, self.bias = flag("MultiHeadAttention: causal", causal), flag("MultiHeadAttention: bias", bias)
        self.weight_init = weight_init or init.xavier()

    def build(self, *bottom: Blob, training: bool) -> Blob:
        """One to three bottom blobs, one top blob."""
        if len(bottom) > 3 or len(bottom[0].shape) != 3 or self.heads < 1 or bottom[0].shape[-1] % self.heads:
            given = ", ".join(str(blob.spec) for blob in bottom)
            raise ShapeError(
                "MultiHeadAttention takes x (batch, queries, features), context and mask, with a multiple of "
                f"{self.heads} features, got {given}"
            )
        x, context = bottom[0], bottom[min(1, len(bottom) - 1)]
        mask = bottom[2] if len(bottom) > 2 else None
        features = x.shape[-1]
        narrow = self.kv_heads * (features // self.heads)
        q = self._product(x, "q", features)
        k, v = (self._product(context, name, narrow) for name in "kv")
        y = ops.attention(q, k, v, mask, causal=self.causal, heads=self.heads, name="attend")
        return self._product(y, "out", features)

    def _product(self, x: Blob, name: str, rows: int) -> Blob:
        y = ops.inner(x, self.variable(x, f"weight_{name}", (rows, x.shape[-1]), self.weight_init))
        return ops.bias(y, self.variable(x, f"bias_{name}", (rows,), init.constant(0.0))) if self.bias else y


class LRN(Layer):
    """Local response normalization across channels; see `ops.lrn`.

    Args:
        alpha: Factor on the mean square of the channels around.
        beta: The power that is divided by.
        size: How many channels.
        k: Is added to the mean square.
        name: Scope of its nodes.
    Source: Purine2 layer ``LRN``.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 1, 1, 3])
        >>> y = af.nn.LRN(alpha=1.0, beta=1.0, size=3)(x)
        >>> graph.run_sync({x: [[[[3, 0, 3]]]]})[y].round(3)
        array([[[[0.75, 0.  , 0.75]]]], dtype=float32)
    """

    def __init__(
        self, alpha: float = 1e-4, beta: float = 0.75, size: int = 5, k: float = 1.0, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.alpha, self.beta, self.k = real("LRN: alpha", alpha), real("LRN: beta", beta), real("LRN: k", k)
        self.size = whole("LRN: size", size, 1)

    def forward(self, x: Blob, training: bool) -> Blob:
        return ops.lrn(x, self.alpha, self.beta, self.size, self.k, name="lrn")
