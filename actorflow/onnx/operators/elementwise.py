"""Operators on elements: arithmetic, logic, activations. They are computed in the order of axes at hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.onnx import linear
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Lower, Node, lowers, row, within
from actorflow.onnx.values import Value
from actorflow.ops.shaping import Reshape

#: A function of blobs that is computed element by element.
Form = Callable[..., Any]


def mapped(node: Node, form: Form, *values: Value) -> Value:
    """The value of a function of elements."""
    order, blobs = node.aligned(*values)
    x = before_reshaping(blobs[0]) if len(values) == 1 and node.alone[0] else blobs[0]
    if x is blobs[0]:
        return node.ordered(order, form(*blobs))
    return node.ordered(order, ops.reshape(form(x), blobs[0].shape))  # in one pass with what makes it, perhaps


def before_reshaping(blob: Any) -> Any:
    """The blob whose elements another one has in their order: its source where it is made by reshaping."""
    while blob.producers:
        made_by = blob.producers[0].operation
        if type(made_by) is not Reshape or made_by.not_one:
            break
        (blob,) = blob.producers[0].inputs
    return blob


def _of_elements(form: Form) -> Lower:
    """The lowering of an operator that is one function of all its inputs."""

    def lower(node: Node) -> Value:
        return mapped(node, form, *operands(node))

    return lower


def operands(node: Node) -> list[Value]:
    """The inputs; before opset 7, ``axis`` says which axis of the first is the second's first one."""
    values = [node.value(i) for i in range(len(node.inputs))]
    if node.opset >= 7 or len(values) != 2 or not node.attribute("broadcast", 0):
        return values
    a, b = values
    axis = node.attribute("axis")
    after = 0 if axis is None or b.spec.size == 1 else a.rank - within(axis, a.rank) - b.rank
    return [a, reshaped_to(node, b, (*b.shape, *[1] * after)) if after else b]


def reshaped_to(node: Node, value: Value, shape: Sequence[Any]) -> Value:
    """A value with other axes of length 1."""
    if value.is_constant:
        assert value.known is not None
        return node.constant(value.known.reshape(shape))
    return node.usual(ops.reshape(value.blob(), shape))


def number(node: Node, value: float, like: Value) -> Value:
    """The constant of a number, of the dtype of a value."""
    return node.constant(np.asarray(value, like.dtype))


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _arithmetic(form: Form) -> Lower:
    def lower(node: Node) -> Value:
        a, b = operands(node)
        folded = linear.affine(node, a, b)
        return mapped(node, form, a, b) if folded is None else folded

    return lower


def _divide(a: Any, b: Any) -> Any:
    return (ops.divide if a.dtype.kind in "fcV" else ops.trunc_divide)(a, b)


row("Add", _arithmetic(ops.add))
row("Sub", _arithmetic(ops.subtract))
row("Mul", _arithmetic(ops.multiply))
row("Div", _arithmetic(_divide))


@lowers("Mod")
def _mod(node: Node) -> Value:
    form = ops.fmod if node.attribute("fmod", 0) else ops.remainder
    return mapped(node, form, node.value(0), node.value(1))


@lowers("Pow")
def _pow(node: Node) -> Value:
    x, power = operands(node)
    if power.is_constant and power.spec.size == 1 and x.dtype.kind in "fV":
        assert power.known is not None
        found, rank = float(power.known.reshape(())), max(x.rank, power.rank)
        short = {1.0: ops.positive, 2.0: ops.square, 0.5: ops.sqrt}.get(found)
        if short is not None and rank == x.rank:
            return mapped(node, short, x)

    def form(a: Any, b: Any) -> Any:
        if a.dtype == b.dtype and a.dtype.kind in "fV":
            return ops.power(a, b)
        wide = np.result_type(a.dtype, b.dtype)
        wide = wide if wide.kind == "f" else np.dtype(np.float64)
        return ops.cast(ops.power(as_type(a, wide), as_type(b, wide)), a.dtype)

    return mapped(node, form, x, power)


def as_type(x: Any, dtype: Any) -> Any:
    """A blob in a dtype."""
    return x if x.dtype == dtype else ops.cast(x, dtype)


def _folded(form: Form) -> Lower:
    """The lowering of an operator of any number of inputs."""
    return lambda node: mapped(node, lambda *blobs: reduce(form, blobs), *[v for v in node.inputs if v is not None])


row("Sum", _folded(ops.add))
row("Max", _folded(ops.maximum))
row("Min", _folded(ops.minimum))


@lowers("Mean")
def _mean(node: Node) -> Value:
    values = [value for value in node.inputs if value is not None]
    return mapped(node, lambda *blobs: ops.scale(reduce(ops.add, blobs), 1 / len(values)), *values)


_FORMS: dict[str, Form] = {
    "Abs": ops.absolute, "Neg": ops.negative, "Sign": ops.sign, "Floor": ops.floor, "Ceil": ops.ceil,
    "Round": ops.round, "Sqrt": ops.sqrt, "Reciprocal": ops.reciprocal, "Exp": ops.exp, "Log": ops.log,
    "Erf": ops.erf, "Sin": ops.sin, "Cos": ops.cos, "Tan": ops.tan, "Asin": ops.asin, "Acos": ops.acos,
    "Atan": ops.atan, "Sinh": ops.sinh, "Cosh": ops.cosh, "Tanh": ops.tanh, "Asinh": ops.asinh, "Acosh": ops.acosh,
    "Atanh": ops.atanh, "IsNaN": ops.isnan, "Not": ops.logical_not, "BitwiseNot": ops.bitwise_invert,
    "Relu": ops.relu, "Sigmoid": ops.sigmoid, "HardSwish": ops.hard_swish,
    "And": ops.logical_and, "Or": ops.logical_or, "Xor": ops.logical_xor, "BitwiseAnd": ops.bitwise_and,
    "BitwiseOr": ops.bitwise_or, "BitwiseXor": ops.bitwise_xor, "Equal": ops.equal, "Greater": ops.greater,
    "Less": ops.less, "GreaterOrEqual": ops.greater_equal, "LessOrEqual": ops.less_equal,
    "Where": ops.where,
}  # fmt: skip
for _name, _form in _FORMS.items():
    row(_name, _of_elements(_form))


@lowers("Identity", "OptionalGetElement")
def _identity(node: Node) -> Value:
    return node.x


@lowers("OptionalHasElement")
def _has_element(node: Node) -> Value:
    return node.constant(np.array(node.has(0)))


@lowers("IsInf")
def _isinf(node: Node) -> Value:
    signs = [
        form
        for name, form in (("detect_positive", ops.greater), ("detect_negative", ops.less))
        if node.attribute(name, 1)
    ]

    def form(x: Any) -> Any:
        infinite = ops.isinf(x)
        if len(signs) == 2:
            return infinite
        sign = signs[0](x, 0.0) if signs else ops.isnan(infinite)
        return ops.logical_and(infinite, sign)

    return mapped(node, form, node.x)


@lowers("BitShift")
def _shift(node: Node) -> Value:
    to_left = node.attribute("direction") == "LEFT"
    return mapped(node, ops.bitwise_left_shift if to_left else ops.bitwise_right_shift, node.value(0), node.value(1))


def check_numbers(dtype: np.dtype[Any]) -> None:
    """Refuse dtypes that are not NumPy's, but for bfloat16."""
    if dtype.kind not in "biufc" and dtype.name != "bfloat16":
        raise Refused(f"dtype {'text' if dtype.kind in 'OSUT' else dtype} is not supported")


@lowers("Clip")
def _clip(node: Node) -> Value:
    bounds = [node.inputs[i] if node.has(i) else None for i in (1, 2)]
    if node.opset < 11:
        bounds = [
            None if node.attribute(name) is None else number(node, node.attribute(name), node.x)
            for name in ("min", "max")
        ]
    low, high = bounds
    x = node.x
    if low is not None and high is not None and all(v.is_constant and v.spec.size == 1 for v in (low, high)):
        a, b = (np.asarray(v.known).reshape(()).item() for v in (low, high))
        if a <= b:
            return mapped(node, lambda x: ops.clip(x, a, b), x)
    if low is not None:
        x = mapped(node, ops.maximum, x, low)
    return x if high is None else mapped(node, ops.minimum, x, high)


# -- activations -------------------------------------------------------------------------------------------------------


def _with(form: Form, *names: str) -> Lower:
    """The lowering of a function that takes these attributes."""

    def lower(node: Node) -> Value:
        return mapped(node, lambda x: form(x, *[node.attribute(name) for name in names]), node.x)

    return lower


row("LeakyRelu", _with(ops.leaky_relu, "alpha"))
row("Elu", _with(ops.elu, "alpha"))
row("HardSigmoid", _with(ops.hard_sigmoid, "alpha", "beta"))
row("Softplus", _with(lambda x: ops.softplus(x)))
row("Softsign", _with(lambda x: x / (ops.absolute(x) + 1.0)))
row("Mish", _with(lambda x: x * ops.tanh(ops.softplus(x))))
row("Swish", _with(lambda x, alpha: ops.silu(x) if alpha == 1 else x * ops.sigmoid(x * alpha), "alpha"))
row("Gelu", _with(lambda x, how: ops.gelu(x, tanh=how == "tanh"), "approximate"))
row("ThresholdedRelu", _with(lambda x, alpha: ops.where(x > alpha, x, 0.0), "alpha"))
row("Selu", _with(lambda x, alpha, gamma: ops.where(x > 0.0, x, ops.expm1(ops.minimum(x, 0.0)) * alpha) * gamma,
                  "alpha", "gamma"))  # fmt: skip
row("Celu", _with(lambda x, alpha: ops.relu(x) + ops.minimum(ops.expm1(x / alpha) * alpha, 0.0), "alpha"))


@lowers("PRelu")
def _prelu(node: Node) -> Value:
    x, slope = node.value(0), node.value(1)
    if node.opset < 7 and slope.spec.size > 1:  # one for each channel
        slope = reshaped_to(node, slope, [slope.spec.size if i == 1 else 1 for i in range(x.rank)])
    zero = number(node, 0, x)
    return mapped(node, lambda x, s, z: ops.where(ops.less(x, z), x * s, x), x, slope, zero)


@lowers("Shrink")
def _shrink(node: Node) -> Value:
    limit, bias = node.attribute("lambd"), node.attribute("bias")
    dtype = node.x.dtype

    def form(x: Any) -> Any:
        wide = x if dtype.kind == "f" else ops.cast(x, "float64")
        y = ops.where(wide < -limit, wide + bias, ops.where(wide > limit, wide - bias, 0.0))
        return as_type(y, dtype)

    return mapped(node, form, node.x)


@lowers("Dropout", limits="training with a ratio above 0")
def _dropout(node: Node) -> list[Value | None]:
    training = node.has(2) and bool(node.array(2, "training_mode").reshape(())) if node.opset >= 12 else False
    if training:
        ratio = float(node.array(1, "ratio").reshape(())) if node.has(1) else 0.5
        if ratio:
            raise Refused("training_mode is for training: export the model for inference")
    mask = None
    if node.wants(1):
        kind = np.dtype(np.bool_) if node.opset >= 10 else node.x.dtype
        x = node.x
        mask = node.usual(ops.fill(node.graph, True if kind.kind == "b" else 1, x.shape, kind))
    return [node.x, mask]


def _softmax_by_steps(x: Any, axis: int) -> Any:
    """Softmax rounded to half precision after each step, as the operator's own function says."""
    e = ops.exp(x - ops.max(x, axis, keepdims=True))
    return e / ops.sum(e, axis, keepdims=True)


@lowers("Softmax", "LogSoftmax")
def _softmax(node: Node) -> Value:
    x = node.x
    form: Form = ops.log_softmax if node.operator == "LogSoftmax" else ops.softmax
    if x.dtype.itemsize == 2 and node.operator == "Softmax":
        form = _softmax_by_steps
    axis = node.axis(x.rank, -1 if node.opset >= 13 else 1)
    if node.opset < 13 and axis != x.rank - 1:  # all axes from that one on are one
        blob = ops.reshape(x.blob(), (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return node.usual(ops.reshape(form(blob, axis=-1), x.shape))
    order, (blob,) = node.aligned(x)
    return node.ordered(order, form(blob, axis=order.index(axis)))


@lowers("Hardmax")
def _hardmax(node: Node) -> Value:
    x = node.x
    axis = node.axis(x.rank, -1 if node.opset >= 13 else 1)
    blob = x.blob()
    if node.opset < 13:
        blob = ops.reshape(blob, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        axis = 1
    found = ops.one_hot(ops.argmax(blob, axis), blob.shape[axis], x.dtype)
    found = ops.moveaxis(found, -1, axis)
    return node.usual(found if found.shape == x.shape else ops.reshape(found, x.shape))
