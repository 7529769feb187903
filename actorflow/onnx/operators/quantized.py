"""Quantized numbers: integers, or narrow floating-point numbers, with a scale and a zero point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from onnx import helper

from actorflow import ops
from actorflow.onnx.narrow import FLOATS, BitCast, Convert, DynamicQuantizeLinear, is_narrow, limits, named
from actorflow.onnx.operators.convolution import check_kernel, image, pads_of, per_axis
from actorflow.onnx.operators.elementwise import as_type, mapped, reshaped_to
from actorflow.onnx.operators.products import product
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Node, lowers, within
from actorflow.onnx.values import Order, Value
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


def widened(node: Node, value: Value, dtype: Any) -> Value:
    """A value in a dtype of NumPy's."""
    if value.dtype == dtype:
        return value
    if is_narrow(value.dtype):
        return mapped(node, lambda x: as_type(node.graph.apply(Convert("float32"), x), np.dtype(dtype)), value)
    return mapped(node, lambda x: ops.cast(x, dtype), value)


def spread(node: Node, value: Value, x: Value) -> Value:
    """A scale or a zero point, for one tensor, for each part along an axis or for blocks of it, beside its tensor."""
    if value.spec.size == 1:
        return reshaped_to(node, value, ())
    axis, block = within(node.attribute("axis", 1), x.rank), node.attribute("block_size", 0)
    if not block:
        return reshaped_to(node, value, [value.spec.size if i == axis else 1 for i in range(x.rank)])
    blob = ops.repeat(value.blob(), block, axis)
    if blob.shape[axis] != x.shape[axis]:
        key = tuple([slice(0, x.shape[axis]) if i == axis else slice(None) for i in range(x.rank)])
        blob = ops.slice(blob, key)
    return node.usual(blob)


def rounded(node: Node, x: Value, zero: Value | None, dtype: np.dtype[Any]) -> Value:
    """Numbers as quantized ones: rounded to even, moved by the zero point, cut off at the ends of the dtype."""
    if dtype.name in FLOATS:
        how = Convert(dtype.name, bool(node.attribute("saturate", 1)))
        return mapped(node, lambda x: node.graph.apply(how, x), x)
    info = limits(dtype)
    # Numbers with too many digits for a sum with a zero point are cut off; sums of 32 bits are exact in 64.
    wide = x.dtype if x.dtype == np.float32 and dtype.itemsize <= 2 else np.dtype(np.float64)

    def form(x: Any, *zeros: Any) -> Any:
        whole = as_type(ops.round(x), wide)
        whole = whole + zeros[0] if zeros else whole
        cut = ops.cast(ops.clip(whole, float(info.min), float(info.max)), "int32")
        return node.graph.apply(Convert(dtype.name), cut) if is_narrow(dtype) else as_type(cut, dtype)

    return mapped(node, form, x, *([] if zero is None else [widened(node, zero, wide)]))


@lowers("QuantizeLinear")
def _quantize(node: Node) -> Value:
    x, scale = node.value(0), node.value(1)
    zero = node.value(2) if node.has(2) else None
    kind = node.attribute("output_dtype", 0)
    dtype = zero.dtype if zero is not None else helper.tensor_dtype_to_np_dtype(kind) if kind else np.dtype(np.uint8)
    precision = node.attribute("precision", 0)
    wide = helper.tensor_dtype_to_np_dtype(precision) if precision else np.result_type(x.dtype, scale.dtype)
    wide = wide if wide.kind == "f" else np.dtype(np.float32)
    quotient = mapped(node, ops.divide, widened(node, x, wide), widened(node, spread(node, scale, x), wide))
    offset = 0 if zero is None else _offset(zero)
    if offset is None or dtype.kind not in "iu" or dtype.itemsize > 2 or is_narrow(dtype) or wide.itemsize < 4:
        return rounded(node, quotient, None if zero is None else spread(node, zero, x), dtype)
    info = np.iinfo(dtype)
    low, high = float(info.min - offset), float(info.max - offset)
    whole = mapped(node, lambda x: ops.clip(ops.round(x), low, high), quotient)

    def made() -> tuple[Order, Blob]:
        order = whole.orders[0]
        return order, as_type(ops.cast(whole.blob(order) + float(offset), "int32"), dtype)

    value = Value(node.graph, TensorSpec(x.shape, dtype))
    value.make = node.deferred(made)
    value.quantized = Quantized(whole, scale, offset)
    return value


def dynamic(node: Node) -> list[Value]:
    """The first input as integers, their scale and their zero point."""
    return [node.usual(blob) for blob in node.graph.apply(DynamicQuantizeLinear(), node.x.blob())]


lowers("DynamicQuantizeLinear")(dynamic)


class Quantized(NamedTuple):
    """What is known of quantized numbers: numbers of which no more is left than of them.

    Attributes:
        whole: Quantized numbers less their zero point, as floating-point numbers.
        scale: Their scale.
        offset: Their zero point.
    """

    whole: Value
    scale: Value
    offset: int


def _offset(zero: Value) -> int | None:
    return None if zero.known is None or zero.spec.size != 1 else int(zero.known.reshape(-1)[0])


def _is_undone(node: Node, found: Quantized) -> bool:
    """Whether a node takes back what made its input."""
    scale, zero = node.value(1), node.value(2) if node.has(2) else None
    if found.offset != (0 if zero is None else _offset(zero)):
        return False
    a, b = found.scale, scale
    return a is b or (a.known is not None and b.known is not None and np.array_equal(a.known, b.known))


@lowers("DequantizeLinear")
def _dequantize(node: Node) -> Value:
    x, scale = node.value(0), node.value(1)
    kind = node.attribute("output_dtype", 0)
    dtype = helper.tensor_dtype_to_np_dtype(kind) if kind else scale.dtype
    if x.quantized is not None and _is_undone(node, x.quantized):  # integers in between would say no more
        wide = widened(node, x.quantized.whole, np.float32)
    else:
        wide = widened(node, x, np.float32)
        if node.has(2) and x.dtype.name not in FLOATS:
            zero = widened(node, spread(node, node.value(2), x), np.float32)
            wide = mapped(node, ops.subtract, wide, zero)
    y = mapped(node, ops.multiply, wide, widened(node, spread(node, scale, x), np.float32))
    return widened(node, y, dtype)


def _less_zero(node: Node, value: Value, zero: Value | None, axis: int, dtype: Any = np.int32) -> Value:
    """Quantized integers less their zero point, if they have one, which may differ along an axis."""
    wide = widened(node, value, dtype)
    if zero is None:
        return wide
    zero = widened(node, zero, dtype)
    if zero.rank == 1:
        size = zero.spec.size
        zero = reshaped_to(node, zero, [size if i == axis % value.rank else 1 for i in range(value.rank)])
    return mapped(node, ops.subtract, wide, zero)


def whole_product(node: Node, a: Value, b: Value, zero_a: Value | None, zero_b: Value | None) -> Value:
    """The product of quantized integers less their zero points."""
    return node.usual(product(_less_zero(node, a, zero_a, -2), _less_zero(node, b, zero_b, -1)))


@lowers("MatMulInteger")
def _matmul_integer(node: Node) -> Value:
    zeros = [node.value(i) if node.has(i) else None for i in (2, 3)]
    return whole_product(node, node.value(0), node.value(1), *zeros)


@lowers("QLinearMatMul")
def _qlinear_matmul(node: Node) -> Value:
    found = whole_product(node, *map(node.value, (0, 3, 2, 5)))
    return _requantized(node, found, 1, 4, 6, 7, -1)


def _requantized(node: Node, found: Value, a: int, b: int, y: int, zero: int, axis: int) -> Value:
    """Sums of integers as quantized ones, by the scales at these inputs."""
    scales = [widened(node, node.value(i), np.float64) for i in (a, b, y)]
    first = reshaped_to(node, scales[0], ()) if scales[0].spec.size == 1 else scales[0]
    if first.rank == 1:  # one for each row
        first = reshaped_to(node, first, [first.spec.size if i == found.rank - 2 else 1 for i in range(found.rank)])
    second = scales[1]
    if second.spec.size == 1:
        second = reshaped_to(node, second, ())
    elif second.rank == 1:
        second = reshaped_to(
            node, second, [second.spec.size if i == axis % found.rank else 1 for i in range(found.rank)]
        )
    factor = mapped(node, lambda a, b, y: a * b / y, first, second, reshaped_to(node, scales[2], ()))
    wide = mapped(node, ops.multiply, widened(node, found, np.float64), factor)
    target = node.value(zero)
    return rounded(node, wide, reshaped_to(node, target, ()), target.dtype)


def _sums(node: Node, zero: Value | None, weight: Value, weight_zero: Value | None) -> Value:
    """A convolution of integers, by that of floating-point numbers in which these sums are exact."""
    dtype = _exact(node, weight, weight_zero)
    (x, order), weight = image(node), _less_zero(node, weight, weight_zero, 0, dtype)
    rank, kernel = x.rank - 2, weight.shape[2:]
    check_kernel(node, kernel)
    stride, dilation = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    pads = pads_of(node, x.shape[2:], kernel, stride, dilation)
    images = _less_zero(node, node.value(0), zero, 0, dtype).blob(order)
    weights = weight.blob((*range(2, x.rank), 1, 0))
    y = ops.conv(images, weights, stride, pads, dilation, node.attribute("group", 1))
    return node.ordered(order, ops.cast(y, "int32"))


def _exact(node: Node, value: Value, offset: Value | None) -> Any:
    """A dtype in which products of numbers of 8 bits with a weight can be added up in any order."""
    weight, zero = value.known, np.zeros(1, np.int8) if offset is None else offset.known
    if weight is None or zero is None or node.x.dtype.itemsize > 1 or weight.dtype.itemsize > 1:
        return np.float64
    rows = np.abs(weight.reshape(len(weight), -1).astype(np.int64) - zero.reshape(-1, 1))
    return np.float32 if 255 * rows.sum(axis=1).max(initial=0) <= 1 << 24 else np.float64


@lowers("ConvInteger", limits="more than 3 spatial axes")
def _conv_integer(node: Node) -> Value:
    zero, weight_zero = [node.value(i) if node.has(i) else None for i in (2, 3)]
    return _sums(node, zero, node.value(1), weight_zero)


@lowers("QLinearConv", limits="more than 3 spatial axes")
def _qlinear_conv(node: Node) -> Value:
    found = _sums(node, *map(node.value, (2, 3, 5)))
    if node.has(8):
        bias = node.value(8)
        found = mapped(node, ops.add, found, reshaped_to(node, bias, [bias.spec.size, *[1] * (found.rank - 2)]))
    return _requantized(node, found, 1, 4, 6, 7, 1)


@lowers("Cast", "CastLike", limits="text")
def _cast(node: Node) -> Value:
    x = node.x
    if node.operator == "Cast":
        kind = node.attribute("to")
        try:
            dtype = helper.tensor_dtype_to_np_dtype(kind)
        except KeyError:
            raise Refused(f"there is no dtype number {kind}") from None
    else:
        dtype = node.value(1).dtype
    for each in (dtype, x.dtype):
        if each.kind in "OSUT":
            raise Refused("text is not supported")
    if dtype == x.dtype:
        return x
    if not is_narrow(dtype) and not is_narrow(x.dtype):
        return mapped(node, lambda x: ops.cast(x, dtype), x)
    how = Convert(dtype.name, bool(node.attribute("saturate", 1)), node.attribute("round_mode", "up"))
    return mapped(node, lambda x: node.graph.apply(how, x), x)


@lowers("BitCast")
def _bitcast(node: Node) -> Value:
    dtype = helper.tensor_dtype_to_np_dtype(node.attribute("to"))
    return mapped(node, lambda x: node.graph.apply(BitCast(named(dtype.name).name), x), node.x)
