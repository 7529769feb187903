"""Convolutions, pooling and normalization of images: channels-last here, whatever the file's order is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow import ops
from actorflow.onnx import linear
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.elementwise import mapped, reshaped_to
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Node, lowers
from actorflow.onnx.values import Order, Value, channels_last
from actorflow.ops.fills import numbers
from actorflow.ops.nn.conv import Conv
from actorflow.ops.operation import inferred, savable
from actorflow.spec import Length, TensorSpec, maximum

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob

#: Most spatial axes of a convolution.
MOST = 3


def image(node: Node, position: int = 0) -> tuple[Value, Order]:
    """An input that is (batch, channels, *size), and the order of its axes in which it is an image here."""
    x = node.value(position)
    if not 3 <= x.rank <= MOST + 2:
        raise Refused(f"images have 1 to {MOST} spatial axes, got {x.spec}")
    return x, channels_last(x.rank)


def pads_of(node: Node, size: Sequence[Any], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
            ) -> tuple[tuple[Any, Any], ...]:  # fmt: skip
    """The border, (before, after) for each spatial axis."""
    rank, how = len(size), node.attribute("auto_pad", "NOTSET")
    if how in ("NOTSET", ""):
        pads = node.attribute("pads") or [0] * (2 * rank)
        if len(pads) != 2 * rank:
            raise Refused(f"pads must be {2 * rank} numbers, got {pads}")
        return tuple(zip(pads[:rank], pads[rank:], strict=True))
    if how == "VALID":
        return ((0, 0),) * rank
    found = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        seen = d * (k - 1) + 1
        total = seen - 1 if s == 1 else maximum((-(-n // s) - 1) * s + seen - n, 0)
        less = total // 2
        found.append((less, total - less) if how == "SAME_UPPER" else (total - less, less))
    return tuple(found)


def per_axis(node: Node, name: str, rank: int) -> tuple[int, ...]:
    """An attribute of one number for each spatial axis, by default ones."""
    given = node.attribute(name) or [1] * rank
    if len(given) != rank:
        raise Refused(f"{name} must be {rank} numbers, got {given}")
    return tuple(given)


def check_kernel(node: Node, kernel: Sequence[int]) -> None:
    """Check that ``kernel_shape`` is the size of the weight."""
    given = node.attribute("kernel_shape")
    if given is not None and tuple(given) != tuple(kernel):
        raise Refused(f"kernel_shape is {tuple(given)}, the weight's {tuple(kernel)}")


@lowers("Conv", limits="more than 3 spatial axes")
def _conv(node: Node) -> Value:
    x, order = image(node)
    weight, rank, groups = node.value(1), x.rank - 2, node.attribute("group", 1)
    kernel = weight.shape[2:]
    check_kernel(node, kernel)
    stride, dilation = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    operation = Conv(stride, pads_of(node, x.shape[2:], kernel, stride, dilation), dilation, groups)
    weight_order = (*range(2, x.rank), 1, 0)

    def made(weight: Blob) -> Blob:
        found: Blob = node.graph.apply(operation, x.blob(order), weight)
        return found

    if not weight.is_constant or (node.has(2) and not node.value(2).is_constant):
        y = made(weight.blob(weight_order))
        return node.ordered(order, ops.bias(y, node.value(2).blob()) if node.has(2) else y)
    assert weight.known is not None

    def make(weight: Any, bias: Any) -> tuple[Order, Blob]:
        y = made(constant(node.graph, weight, name="weight"))
        return order, y if bias is None else ops.bias(y, constant(node.graph, bias, name="shift"))

    image_spec = TensorSpec(tuple([x.shape[axis] for axis in order]), x.dtype)
    prepared = weight.known.transpose(weight_order)
    (spec,) = inferred(operation, [image_spec, TensorSpec(prepared.shape, weight.dtype)]) or ()
    whole = TensorSpec((spec.shape[0], spec.shape[-1], *spec.shape[1:-1]), spec.dtype)
    bias = node.array(2, "bias") if node.has(2) else None
    return linear.linear(node, whole, prepared, bias, 1, make)


@lowers("ConvTranspose", limits="more than 3 spatial axes")
def _conv_transpose(node: Node) -> Value:
    x, order = image(node)
    weight, rank, groups = node.value(1), x.rank - 2, node.attribute("group", 1)
    kernel = weight.shape[2:]
    check_kernel(node, kernel)
    stride, dilation = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    extra = node.attribute("output_padding") or [0] * rank
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(x.shape[2:], stride, dilation, kernel, extra, strict=True)
    ]
    wanted, how = node.attribute("output_shape"), node.attribute("auto_pad", "NOTSET")
    if how in ("SAME_UPPER", "SAME_LOWER") and wanted is None:
        wanted = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
    if wanted is not None:
        # Elements to cut off, or to add where negative.
        cuts = [n - m for n, m in zip(full, wanted[-rank:], strict=True)]
        if any(not isinstance(cut, Length) and cut < 0 for cut in cuts):
            extra = [e - min(cut, 0) for e, cut in zip(extra, cuts, strict=True)]
            cuts = [max(cut, 0) for cut in cuts]
        pads = tuple([(c // 2, c - c // 2) if how == "SAME_UPPER" else (c - c // 2, c // 2) for c in cuts])
    elif how == "VALID":
        pads = ((0, 0),) * rank
    else:
        pads = pads_of(node, x.shape[2:], kernel, stride, dilation)
    blob = ops.conv_transpose(
        x.blob(order), weight.blob((*range(2, x.rank), 1, 0)), stride, pads, dilation, groups, extra
    )
    return node.ordered(order, ops.bias(blob, node.value(2).blob()) if node.has(2) else blob)


# -- pooling -----------------------------------------------------------------------------------------------------------


def _pooling(node: Node) -> tuple[Value, Order, dict[str, Any]]:
    x, order = image(node)
    rank = x.rank - 2
    kernel = tuple(node.attribute("kernel_shape"))
    stride, dilation = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    pads = pads_of(node, x.shape[2:], kernel, stride, dilation)
    ceil = bool(node.attribute("ceil_mode", 0)) and node.attribute("auto_pad", "NOTSET") in ("NOTSET", "")
    return x, order, {"kernel": kernel, "stride": stride, "pad": pads, "ceil": ceil, "dilation": dilation}


@lowers("MaxPool", limits="more than 3 spatial axes; a border as wide as the kernel")
def _max_pool(node: Node) -> list[Value | None]:
    x, order, how = _pooling(node)
    if not node.wants(1):
        return [node.ordered(order, ops.max_pool(x.blob(order), **how))]
    y, places = ops.max_pool(x.blob(order), **how, return_indices=True)
    if node.attribute("storage_order", 0):  # the first spatial axis is the innermost one
        left, found = places, None
        for i, n in reversed([*enumerate(x.shape[2:])]):
            own = ops.remainder(left, n) * math.prod(x.shape[2 : 2 + i])
            found, left = own if found is None else found + own, ops.floor_divide(left, n)
        assert found is not None
        places = found
    # Ours count in their own channel of their own image, ONNX's in all of the batch.
    batch, channels, *size = x.shape
    shape = (batch, *[1] * len(size), channels)
    if not any(isinstance(n, Length) for n in x.shape):
        spend(batch, channels)
    before = places.literal(numbers(_elements_before, *shape, math.prod(size), shape=shape))
    return [node.ordered(order, y), node.ordered(order, places + before)]


@savable
def _elements_before(*lengths: int) -> Any:
    """Number of elements of the images and channels before each, of this shape and so many elements each."""
    *shape, size = lengths
    return np.arange(math.prod(shape), dtype=np.int64).reshape(shape) * size


@lowers("AveragePool", limits="more than 3 spatial axes; a border as wide as the kernel")
def _average_pool(node: Node) -> Value:
    x, order, how = _pooling(node)
    counts = bool(node.attribute("count_include_pad", 0))
    return node.ordered(order, ops.average_pool(x.blob(order), **how, count_pad=counts))


@lowers("GlobalAveragePool", "GlobalMaxPool")
def _global(node: Node) -> Value:
    x = node.x
    form = ops.mean if node.operator == "GlobalAveragePool" else ops.max
    order, (blob,) = node.aligned(x)
    axes = tuple([i for i, axis in enumerate(order) if axis >= 2])
    return node.ordered(order, form(blob, axis=axes, keepdims=True))


@lowers("LpPool", limits="more than 3 spatial axes")
def _lp_pool(node: Node) -> Value:
    x, order, how = _pooling(node)
    p = node.attribute("p", 2)
    # A window that reaches over the far end has the sum of what is there: the average counts all of the kernel only
    # where the border is counted.
    count = math.prod(how["kernel"])
    if how["ceil"]:
        raise Refused("ceil_mode of LpPool is not supported")
    powers = ops.power(ops.absolute(x.blob(order)), float(p))
    sums = ops.average_pool(powers, **how, count_pad=True) * float(count)
    return node.ordered(order, ops.power(sums, 1 / p))


@lowers("GlobalLpPool")
def _global_lp_pool(node: Node) -> Value:
    order, (blob,) = node.aligned(node.x)
    p = node.attribute("p", 2)
    axes = tuple([i for i, axis in enumerate(order) if axis >= 2])
    sums = ops.sum(ops.power(ops.absolute(blob), float(p)), axis=axes, keepdims=True)
    return node.ordered(order, ops.power(sums, 1 / p))


# -- normalization -----------------------------------------------------------------------------------------------------


def per_channel(node: Node, value: Value, rank: int, axis: int = 1) -> Value:
    """One number for each channel, to stand beside a value of so many axes."""
    return reshaped_to(node, value, [value.spec.size if i == axis else 1 for i in range(rank)])


@lowers("BatchNormalization")
def _batch_norm(node: Node) -> Sequence[Value | None]:
    x, epsilon = node.x, node.attribute("epsilon")
    if x.rank < 2:
        raise Refused(f"it normalizes (batch, channels, ...), got {x.spec}")
    if node.opset < 7 and not node.attribute("is_test", 0):
        raise Refused("is_test=0 is for training: export the model for inference")
    if node.attribute("training_mode", 0):
        return _batch_norm_of_batch(node, x, epsilon)
    if any(node.wants(i) for i in range(1, len(node.outputs))):
        raise Refused("only its first output is computed in inference")
    if node.opset < 9 and not node.attribute("spatial", 1):
        raise Refused("spatial=0 is not supported")
    parts = [node.value(i) for i in range(1, 5)]
    if not all(part.is_constant for part in parts):
        order = (0, *range(2, x.rank), 1)
        scale, shift, mean, variance = (part.blob() for part in parts)
        y = ops.batch_norm(x.blob(order), mean, variance, scale, shift, epsilon=epsilon)
        return [node.ordered(order, y)]
    gain, offset, center, spread = (np.asarray(part.known, np.float64) for part in parts)
    factor = gain / np.sqrt(spread + epsilon)
    rest = offset - center * factor
    if x.linear is not None and x.linear.axis % x.rank == 1:
        folded = linear.rescaled(node, x, factor, rest)
        if folded is not None:
            return [folded]
    factors, shifts = (per_channel(node, node.constant(each.astype(x.dtype)), x.rank) for each in (factor, rest))
    return [mapped(node, lambda x, a, b: x * a + b, x, factors, shifts)]


def _batch_norm_of_batch(node: Node, x: Value, epsilon: float) -> list[Value | None]:
    momentum = node.attribute("momentum")
    scale, shift = (per_channel(node, node.value(i), x.rank) for i in (1, 2))
    order, (blob, a, b) = node.aligned(x, scale, shift)
    axes = tuple([i for i, axis in enumerate(order) if axis != 1])
    center = ops.mean(blob, axis=axes, keepdims=True)
    off = blob - center
    variance = ops.mean(ops.square(off), axis=axes, keepdims=True)
    y = off / ops.sqrt(variance + epsilon) * a + b
    outputs: list[Value | None] = [node.ordered(order, y)]
    for i, found in ((3, center), (4, variance)):
        own = node.value(i)
        batch = ops.reshape(found, own.shape)
        batch = batch if batch.dtype == own.dtype else ops.cast(batch, own.dtype)
        outputs.append(node.usual(own.blob() * momentum + batch * (1 - momentum)))
    return outputs


@lowers("InstanceNormalization")
def _instance_norm(node: Node) -> Value:
    x, order = node.x, channels_last(node.x.rank)
    y = ops.instance_norm(x.blob(order), node.value(1).blob(), node.value(2).blob(), epsilon=node.attribute("epsilon"))
    return node.ordered(order, y)


@lowers("LRN")
def _lrn(node: Node) -> Value:
    x, order = node.x, channels_last(node.x.rank)
    size, bias = node.attribute("size"), node.attribute("bias")
    y = ops.lrn(x.blob(order), node.attribute("alpha"), node.attribute("beta"), size, bias)
    return node.ordered(order, y)


@lowers("LayerNormalization")
def _layer_norm(node: Node) -> Sequence[Value | None]:
    x, epsilon = node.x, node.attribute("epsilon")
    axis = node.axis(x.rank, -1)
    count = x.rank - axis
    shape = x.shape[axis:]
    if node.wants(1) or node.wants(2) or node.value(1).shape != shape or (
        node.has(2) and node.value(2).shape != shape
    ):  # fmt: skip
        return _layer_norm_parts(node, x, axis, epsilon)
    shift = node.value(2).blob() if node.has(2) else None
    return [node.usual(ops.layer_norm(x.blob(), node.value(1).blob(), shift, axes=count, epsilon=epsilon))]


def _layer_norm_parts(node: Node, x: Value, axis: int, epsilon: float) -> list[Value | None]:
    axes, blob, kind = tuple(range(axis, x.rank)), x.blob(), x.dtype
    wide = blob if kind in (np.float64, np.float32) else ops.cast(blob, "float32")
    center = ops.mean(wide, axis=axes, keepdims=True)
    off = wide - center
    inverse = ops.reciprocal(ops.sqrt(ops.mean(ops.square(off), axis=axes, keepdims=True) + epsilon))
    normal = off * inverse
    normal = normal if normal.dtype == kind else ops.cast(normal, kind)
    y = mapped(node, ops.multiply, node.usual(normal), node.value(1))
    y = mapped(node, ops.add, y, node.value(2)) if node.has(2) else y
    return [y, node.usual(center), node.usual(inverse)]


@lowers("LpNormalization")
def _lp_norm(node: Node) -> Value:
    x = node.x
    order, (blob,) = node.aligned(x)
    axis = order.index(node.axis(x.rank, -1))
    if node.attribute("p", 2) == 1:
        norm = ops.sum(ops.absolute(blob), axis=axis, keepdims=True)
    else:
        norm = ops.sqrt(ops.sum(ops.square(blob), axis=axis, keepdims=True))
    return node.ordered(order, ops.where(ops.equal(norm, number(0.0, norm)), 0.0, blob / norm))


def number(value: float, like: Any) -> Any:
    """A number of the dtype of a blob."""
    return like.constant_like(value)
