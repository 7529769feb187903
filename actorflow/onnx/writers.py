"""Operations in ONNX's terms: one row, or one function, for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import helper

from actorflow.graph.nodes import Blob, Op
from actorflow.onnx.saving import Exporter, UnsupportedError, channels_first
from actorflow.onnx.values import Order, usual
from actorflow.ops.fills import Fill
from actorflow.ops.indexing import INDEX
from actorflow.spec import Length, TensorSpec, axes_in

#: Writes an op, of an operation.
Writer = Callable[[Exporter, Op, Any], None]
#: Gives the result of an elementwise operation, of the tensors of its inputs, which broadcast.
Formula = Callable[[Exporter, Any, Sequence[str]], str]

_WRITERS: dict[str, Writer] = {}
#: The writer of each kind of operation.
WRITERS: Mapping[str, Writer] = MappingProxyType(_WRITERS)


def _writes(*kinds: str) -> Callable[[Writer], Writer]:
    def registered(writer: Writer) -> Writer:
        _WRITERS.update(dict.fromkeys(kinds, writer))
        return writer

    return registered


# -- elementwise -------------------------------------------------------------------------------------------------------


def _common_order(out: Exporter, op: Op) -> Order:
    """The order of axes that costs the fewest transpositions: one that an input was computed in, if it is not usual."""
    rank = len(op.outputs[0].shape)
    computed = [x for x in op.inputs if out.known(x) is None]
    orders = [out.order(x) for x in computed if len(x.shape) == rank]
    return next((order for order in orders if order != usual(rank)), usual(rank))


def _elementwise(kind: str, formula: Formula) -> None:
    def write(out: Exporter, op: Op, _: Any) -> None:
        y = op.outputs[0]
        order = _common_order(out, op)
        inputs = [out.read_beside(x, len(y.shape), order) for x in op.inputs]
        out.write(y, formula(out, op, inputs), order)

    _WRITERS[kind] = write


def _number(out: Exporter, op: Op, value: Any) -> str:
    return out.number(value, op.inputs[-1].dtype)


def _times(out: Exporter, op: Op, x: str, factor: Any) -> str:
    return out.node("Mul", [x, _number(out, op, factor)])


def _sum(out: Exporter, op: Op, terms: Sequence[str]) -> str:
    total, *others = terms
    for other in others:
        total = out.node("Add", [total, other])
    return total if others else out.node("Identity", terms)


def _floating(kind: str) -> Formula:
    """Rounding, which leaves whole numbers as they are."""
    return lambda out, op, x: out.node("Identity" if op.inputs[0].dtype.kind in "iub" else kind, x)


def _only(kinds: str, formula: Formula) -> Formula:
    """For dtypes of these kinds alone."""

    def checked(out: Exporter, op: Op, x: Sequence[str]) -> str:
        if (dtype := op.inputs[0].dtype).kind not in kinds:
            raise UnsupportedError(f"ONNX's is not for {dtype}")
        return formula(out, op, x)

    return checked


def _floor_quotient(out: Exporter, op: Op, x: Sequence[str]) -> str:
    if op.inputs[0].dtype.kind == "f":
        return out.node("Floor", [out.node("Div", x)])
    rest = out.node("Mod", x)  # has the sign of the divisor
    return out.node("Div", [out.node("Sub", [x[0], rest]), x[1]])


def _trunc(out: Exporter, op: Op, x: Sequence[str]) -> str:
    return out.node("Mul", [out.node("Sign", x), out.node("Floor", [out.node("Abs", x)])])


def _is_finite(out: Exporter, op: Op, x: Sequence[str]) -> str:
    return out.node("Not", [out.node("Or", [out.node("IsInf", x), out.node("IsNaN", x)])])


def _softplus(out: Exporter, op: Op, x: Sequence[str]) -> str:
    beta = op.operation.beta  # type: ignore[attr-defined]
    if op.operation.threshold < 15:  # type: ignore[attr-defined]
        raise UnsupportedError("ONNX's is nowhere a straight line, and this one is from a low threshold on")
    if beta == 1:
        return out.node("Softplus", x)
    return _times(out, op, out.node("Softplus", [_times(out, op, x[0], beta)]), 1 / beta)


def _gelu(approximate: str) -> Formula:
    def formula(out: Exporter, op: Op, x: Sequence[str]) -> str:
        if out.opset < 20:
            raise UnsupportedError(f"it needs opset 20, got {out.opset}")
        return out.node("Gelu", x, approximate=approximate)

    return formula


def _node(kind: str, **attributes: Any) -> Formula:
    return lambda out, op, x: out.node(kind, x, **attributes)


def _bitwise(kind: str) -> Formula:
    return lambda out, op, x: out.node(kind if op.inputs[0].dtype == bool else f"Bitwise{kind}", x)


def _weighted(out: Exporter, op: Op, terms: Sequence[str]) -> str:
    return _sum(out, op, [_times(out, op, x, w) for x, w in zip(terms, op.operation.weights, strict=True)])  # type: ignore[attr-defined]


def _cast(out: Exporter, op: Op, x: Sequence[str]) -> str:
    return _as(out, x[0], op.outputs[0].dtype)


def _as(out: Exporter, tensor: str, dtype: Any) -> str:
    return out.node("Cast", [tensor], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


#: Elementwise operations that ONNX has under the same name.
_SAME = (
    "Sign", "Reciprocal", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh",
    "Asinh", "Acosh", "Atanh", "Erf", "Equal", "Less", "Greater", "Where", "Relu", "Sigmoid",
)  # fmt: skip
#: The rows of other elementwise operations: ONNX's name, or what they are made of.
_FORMULAS: Mapping[str, str | Formula] = {
    **{name: name for name in _SAME},
    "Copy": "Identity", "Positive": "Identity", "Negative": "Neg", "Absolute": "Abs", "Deviation": "Sqrt",
    "LogicalNot": "Not", "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "Power": "Pow", "Maximum": "Max",
    "AtLeast": "Max", "Minimum": "Min", "AtMost": "Min", "LessEqual": "LessOrEqual", "GreaterEqual": "GreaterOrEqual",
    "LogicalAnd": "And", "LogicalOr": "Or", "LogicalXor": "Xor",
    "Square": lambda out, op, x: out.node("Mul", [x[0], x[0]]),
    "Expm1": lambda out, op, x: out.node("Sub", [out.node("Exp", x), _number(out, op, 1)]),
    "Log1p": lambda out, op, x: out.node("Log", [out.node("Add", [x[0], _number(out, op, 1)])]),
    "Log2": lambda out, op, x: _times(out, op, out.node("Log", x), 1 / math.log(2)),
    "Log10": lambda out, op, x: _times(out, op, out.node("Log", x), 1 / math.log(10)),
    "Floor": _floating("Floor"), "Ceil": _floating("Ceil"), "Round": _floating("Round"), "Trunc": _only("f", _trunc),
    "IsFinite": _only("f", _is_finite), "IsInf": _only("f", _node("IsInf")), "IsNan": _only("fV", _node("IsNaN")),
    "FloorDivide": _floor_quotient, "TruncDivide": _only("iu", _node("Div")), "Remainder": _only("iu", _node("Mod")),
    "Fmod": _node("Mod", fmod=1), "NotEqual": lambda out, op, x: out.node("Not", [out.node("Equal", x)]),
    "BitwiseInvert": _bitwise("Not"), "BitwiseAnd": _bitwise("And"), "BitwiseOr": _bitwise("Or"),
    "BitwiseXor": _bitwise("Xor"), "Sum": _sum, "WeightedSum": _weighted,
    "Scale": lambda out, op, x: _times(out, op, x[0], op.operation.factor), "Cast": _cast,
    "Silu": lambda out, op, x: out.node("Mul", [x[0], out.node("Sigmoid", x)]),
    "Gelu": _gelu("none"), "GeluTanh": _gelu("tanh"), "Softplus": _softplus,
    "LeakyRelu": lambda out, op, x: out.node("LeakyRelu", x, alpha=op.operation.slope),
    "Elu": lambda out, op, x: out.node("Elu", x, alpha=op.operation.alpha),
}  # fmt: skip
for _kind, _formula in _FORMULAS.items():
    _elementwise(_kind, _node(_formula) if isinstance(_formula, str) else _formula)


@_writes("Bias")
def _bias(out: Exporter, op: Op, _: Any) -> None:
    """Into the convolution or the product before it, where that has no other reader."""
    (x, bias), y = op.inputs, op.outputs[0]
    node = out.open_end(x, ("Conv", "ConvTranspose", "Gemm")) if out.known(bias) is not None else None
    if node is not None:
        node.input.append(out.read(bias))
        out.write(y, node.output[0], out.order(x))
        return
    order = out.order(x)
    out.write(y, out.node("Add", [out.read(x, order), out.read_beside(bias, len(x.shape), order)]), order)


@_writes("Dummy")
def _dummy(out: Exporter, op: Op, _: Any) -> None:
    order = out.order(op.inputs[0])
    out.write(op.outputs[0], out.node("Identity", [out.read(op.inputs[0], order)]), order)


@_writes("Softmax", "LogSoftmax")
def _softmax(out: Exporter, op: Op, how: Any) -> None:
    x = op.inputs[0]
    order = out.order(x)
    axis = order.index(how.axis % len(x.shape))
    out.write(op.outputs[0], out.node(how.kind, [out.read(x, order)], axis=axis), order)


# -- constants ---------------------------------------------------------------------------------------------------------


@_writes("Constant")
def _constant(out: Exporter, op: Op, how: Any) -> None:
    out.know(op.outputs[0], how.value)


@_writes("Fill")
def _fill(out: Exporter, op: Op, how: Any) -> None:
    value, y = how.value, op.outputs[0]
    if axes_in(y.shape):
        filled = out.node("Expand", [out.number(value, y.dtype), out.ints(y.shape)])
        out.write(y, filled)
    elif isinstance(value, int | float | np.generic):
        out.know(y, np.full(y.shape, value, y.dtype))
    else:
        raise UnsupportedError(f"{value} follows from open axes")


def _counted(out: Exporter, first: Any, last: Any, step: int = 1) -> str:
    ends = [out.node("Squeeze", [out.ints([each]), out.ints([0])]) for each in (first, last, step)]
    return out.node("Range", ends)


def _triangle(out: Exporter, kind: str, shape: Sequence[Any], _: Any, k: int) -> str:
    ones = out.node("Expand", [out.ints([1]), out.ints(shape[-2:])])
    return out.node("Trilu", [ones, out.array(np.array(k, np.int64))], upper=int(kind == "triu"))


#: Functions that numbers follow from open axes by, and what makes them, in the order of their elements.
_NUMBERS: Mapping[str, Callable[..., str]] = {
    "ops.indexing._along": lambda out, axis, rank, length: _counted(out, 0, length),
    "ops.indexing._counted": lambda out, *shape: _counted(out, 0, math.prod(shape)),
    "ops.indexing._kept": _triangle,
    "ops.nn.attention._counted": lambda out, length, rank: _counted(out, 0, length),
    "onnx.operators.shaping._counted": lambda out, first, last, step, _: _counted(out, first, last, step),
    "onnx.values._array": lambda out, elements, *_: out.ints(elements),
}


@_writes("Numbers")
def _numbers(out: Exporter, op: Op, how: Any) -> None:
    y = op.outputs[0]
    function: Any = how.function
    make = _NUMBERS.get(f"{function.__module__}.{function.__name__}".removeprefix("actorflow."))
    if make is None:
        raise UnsupportedError("its values follow from open axes by a function of Python: give these axes numbers")
    tensor = out.node("Reshape", [make(out, *how.given), out.ints(y.shape)], allowzero=1)
    out.write(y, _as(out, tensor, y.dtype))


@_writes("BatchNorm", "Dropout")
def _training(out: Exporter, op: Op, _: Any) -> None:
    raise UnsupportedError("it is of a training: save a network that is built with training=False")


# -- images ------------------------------------------------------------------------------------------------------------


def _flat_pads(pads: Sequence[tuple[Any, Any]]) -> list[int]:
    found = [before for before, _ in pads] + [after for _, after in pads]
    if axes_in(tuple(found)):
        raise UnsupportedError(f"padding {pads} follows from open axes")
    return found


def _weight_order(weight: Blob) -> Order:
    rank = len(weight.shape)
    return (rank - 1, rank - 2, *range(rank - 2))


@_writes("Conv")
def _conv(out: Exporter, op: Op, how: Any) -> None:
    x, weight = op.inputs
    order = channels_first(len(x.shape))
    windows = how.windows(x.shape[1:-1], weight.shape[:-2])
    tensor = out.node(
        "Conv",
        [out.read(x, order), out.read(weight, _weight_order(weight))],
        kernel_shape=windows.kernel,
        strides=windows.stride,
        pads=_flat_pads(windows.pad),
        dilations=windows.dilation,
        group=how.groups,
    )
    out.write(op.outputs[0], tensor, order)


@_writes("ConvDown")
def _conv_transpose(out: Exporter, op: Op, how: Any) -> None:
    (x, weight), y = op.inputs, op.outputs[0]
    order = channels_first(len(x.shape))
    windows = how.windows(y.shape[1:-1], weight.shape[:-2])
    per_axis = zip(
        y.shape[1:-1], x.shape[1:-1], windows.kernel, windows.stride, windows.pad, windows.dilation, strict=True
    )
    more = [n - ((m - 1) * s - sum(pad) + d * (k - 1) + 1) for n, m, k, s, pad, d in per_axis]
    if axes_in(tuple(more)):
        raise UnsupportedError(f"its size {y.shape[1:-1]} does not follow from that of its input by a number")
    tensor = out.node(
        "ConvTranspose",
        [out.read(x, order), out.read(weight, _weight_order(weight))],
        kernel_shape=windows.kernel,
        strides=windows.stride,
        pads=_flat_pads(windows.pad),
        dilations=windows.dilation,
        output_padding=more if any(more) else None,
        group=how.groups,
    )
    out.write(y, tensor, order)


@_writes("MaxPool", "AveragePool")
def _pool(out: Exporter, op: Op, how: Any) -> None:
    x = op.inputs[0]
    out.need_one(op)
    if x.dtype.kind != "f" and x.dtype not in (np.int8, np.uint8):
        raise UnsupportedError(f"ONNX's is not for {x.dtype}")
    order = channels_first(len(x.shape))
    windows = how.windows(x.shape[1:-1])
    settings: dict[str, Any] = {"kernel_shape": windows.kernel, "strides": windows.stride}
    if any(step != 1 for step in windows.dilation):
        if how.kind == "AveragePool" and out.opset < 19:
            raise UnsupportedError("a dilation needs opset 19")
        settings["dilations"] = windows.dilation
    tensor, pads = out.read(x, order), [*windows.pad]
    over = [False] * len(pads)
    for i, (n, k, s, d, count) in enumerate(
        zip(windows.size, windows.kernel, windows.stride, windows.dilation, windows.out, strict=True)
    ):
        # How far the last window reaches beyond the image: as much padding gives as many windows as there are.
        after = (count - 1) * s + d * (k - 1) + 1 - n - pads[i][0]
        if isinstance(after, Length):
            if how.ceil:
                settings["ceil_mode"] = 1
        else:
            over[i] = after > pads[i][1]
            pads[i] = pads[i][0], max(after, 0) if how.kind == "MaxPool" or over[i] else pads[i][1]
    if how.kind == "AveragePool" and how.count_pad and any(map(any, windows.pad)):
        if "ceil_mode" in settings:
            raise UnsupportedError("its border counts, and an open axis decides what is beyond it: give it a number")
        if any(over):  # elements beyond the border do not count, unlike ONNX's
            zeros = [0, 0, *[before for before, _ in windows.pad], 0, 0, *[after for _, after in windows.pad]]
            tensor = out.node("Pad", [tensor, out.ints(zeros)])
            pads = [(0, b - a) for (_, b), (_, a) in zip(pads, windows.pad, strict=True)]
        else:
            settings["count_include_pad"] = 1
    tensor = out.node(how.kind, [tensor], pads=_flat_pads(pads), **settings)
    out.write(op.outputs[0], tensor, order)


@_writes("GlobalAverage")
def _global_average(out: Exporter, op: Op, _: Any) -> None:
    x = op.inputs[0]
    order = out.order(x)
    axes = [i for i, axis in enumerate(order) if 0 < axis < len(order) - 1]
    turned = [axis for axis in order if axis in (0, len(order) - 1)] != [0, len(order) - 1]
    tensor = out.node("ReduceMean", [out.read(x, order), out.ints(axes)], keepdims=0)
    out.write(op.outputs[0], tensor, (1, 0) if turned else (0, 1))


@_writes("BatchNormInference")
def _batch_norm(out: Exporter, op: Op, how: Any) -> None:
    x, *others = op.inputs
    rank = len(x.shape)
    if rank < 2:
        raise UnsupportedError("ONNX's wants a batch")
    order = usual(2) if rank == 2 else channels_first(rank)
    inputs = [out.read(x, order), *map(out.read, others)]
    epsilon = how.epsilon
    out.write(op.outputs[0], out.node("BatchNormalization", inputs, epsilon=epsilon), order)


@_writes("LayerNorm")
def _layer_norm(out: Exporter, op: Op, how: Any) -> None:
    out.need_one(op)
    tensor = out.node("LayerNormalization", [*map(out.read, op.inputs)], axis=-how.axes, epsilon=how.epsilon)
    out.write(op.outputs[0], tensor)


@_writes("LRN")
def _lrn(out: Exporter, op: Op, how: Any) -> None:
    out.need_one(op)
    x = op.inputs[0]
    if how.size % 2 == 0:
        raise UnsupportedError("the longer side of an even window is before, and ONNX's is after")
    order = channels_first(len(x.shape))
    tensor = out.node("LRN", [out.read(x, order)], alpha=how.alpha, beta=how.beta, bias=how.k, size=how.size)
    out.write(op.outputs[0], tensor, order)


@_writes("Resize")
def _resize(out: Exporter, op: Op, how: Any) -> None:
    x, y = op.inputs[0], op.outputs[0]
    rank = len(x.shape)
    # Runtimes know images by their last axes.
    order = channels_first(rank) if 0 < how.axis < rank - 1 and rank > 3 else out.order(x)
    place = order.index(how.axis)
    given = {
        "mode": how.mode,
        "coordinate_transformation_mode": how.coordinates,
        "nearest_mode": how.rounding,
        "cubic_coeff_a": how.cubic,
    }
    tensor = out.read(x, order)
    if how.scale is not None:
        scales = out.array(np.array([how.scale if i == place else 1 for i in range(rank)], np.float32), "scales")
        tensor = out.node("Resize", [tensor, "", scales], **given)
    else:
        sizes = out.ints([y.shape[axis] for axis in order])
        tensor = out.node("Resize", [tensor, "", "", sizes], **given)
    out.write(y, tensor, order)


# -- products ----------------------------------------------------------------------------------------------------------


@_writes("Inner")
def _inner(out: Exporter, op: Op, _: Any) -> None:
    x, weight = op.inputs
    if len(x.shape) == 2:
        tensor = out.node("Gemm", [out.read(x), out.read(weight)], transB=1)
    else:
        tensor = out.node("MatMul", [out.read(x), out.read(weight, (1, 0))])
    out.write(op.outputs[0], tensor)


@_writes("Matmul")
def _matmul(out: Exporter, op: Op, how: Any) -> None:
    y = op.outputs[0]
    if y.dtype == bool or y.dtype.itemsize < 2:
        raise UnsupportedError(f"ONNX's is not for {y.dtype}")
    if how.batch is not None:
        raise UnsupportedError("sums of products have no form there")
    tensors = []
    for x, turned in zip(op.inputs, (how.transpose_a, how.transpose_b), strict=True):
        rank = len(x.shape)
        tensors.append(out.read(x, (*range(rank - 2), rank - 1, rank - 2) if turned else None))
    out.write(y, out.node("MatMul", tensors))


@_writes("Det")
def _det(out: Exporter, op: Op, _: Any) -> None:
    out.write(op.outputs[0], out.node("Det", [out.read(op.inputs[0])]))


# -- shapes ------------------------------------------------------------------------------------------------------------


@_writes("Reshape")
def _reshape(out: Exporter, op: Op, _: Any) -> None:
    x, y = op.inputs[0], op.outputs[0]
    rank, (first, *rest) = len(y.shape), y.shape or (None,)
    if rank > 2 and len(x.shape) == 2 and (first, rest[-1]) == x.shape and all(n == 1 for n in rest[:-1]):
        axes = out.ints(range(2, rank))  # factors of channels, beside images
        out.write(y, out.node("Unsqueeze", [out.read(x), axes]), channels_first(rank))
        return
    lengths: tuple[Any, ...] = y.shape
    if rank == len(x.shape) and 0 not in lengths:  # lengths that stay are named by their places
        stays = [isinstance(n, Length) and n == m for n, m in zip(lengths, x.shape, strict=True)]
        shape = [0 if stay else n for stay, n in zip(stays, lengths, strict=True)]
        if any(stays) and not axes_in(tuple(shape)):
            out.write(y, out.node("Reshape", [out.read(x), out.ints(shape)]))
            return
    open_axes = [i for i, length in enumerate(lengths) if isinstance(length, Length)]
    shape = [-1 if i in open_axes else length for i, length in enumerate(y.shape)]
    is_clear = len(open_axes) < 2 and 0 not in shape
    target = out.ints(shape if is_clear else y.shape)
    out.write(y, out.node("Reshape", [out.read_flat(x), target], allowzero=None if is_clear else 1))


@_writes("Transpose")
def _transpose(out: Exporter, op: Op, how: Any) -> None:
    """Nothing but another order of the same tensor."""
    x = op.inputs[0]
    axes = [axis % len(x.shape) for axis in how.axes]
    order = out.order(x)
    out.write(op.outputs[0], out.read(x, order), tuple(axes.index(axis) for axis in order))


@_writes("BroadcastTo")
def _broadcast(out: Exporter, op: Op, _: Any) -> None:
    y = op.outputs[0]
    out.write(y, out.node("Expand", [out.read(op.inputs[0]), out.ints(y.shape)]))


@_writes("Concat")
def _concat(out: Exporter, op: Op, how: Any) -> None:
    y = op.outputs[0]
    axis = how.axis % len(y.shape)
    if how.new:
        place = out.ints([axis])
        parts = [out.node("Unsqueeze", [out.read(part), place]) for part in op.inputs]
        out.write(y, out.node("Concat", parts, axis=axis))
        return
    order = _common_order(out, op)
    tensor = out.node("Concat", [out.read(part, order) for part in op.inputs], axis=order.index(axis))
    out.write(y, tensor, order)


@_writes("Split")
def _split(out: Exporter, op: Op, how: Any) -> None:
    x = op.inputs[0]
    order = out.order(x)
    axis = order.index(how.axis % len(x.shape))
    tensors = out.nodes("Split", [out.read(x, order), out.ints(how.lengths)], len(op.outputs), axis=axis)
    for y, tensor in zip(op.outputs, tensors, strict=True):
        out.write(y, tensor, order)


@_writes("Pad")
def _pad(out: Exporter, op: Op, how: Any) -> None:
    x = op.inputs[0]
    if how.mode == "wrap" and out.opset < 19:
        raise UnsupportedError("wrapping needs opset 19")
    order = out.order(x)
    widths = [how.widths[axis][side] for side in (0, 1) for axis in order]
    inputs = [out.read(x, order), out.ints(widths)]
    if how.mode == "constant" and how.value:
        inputs.append(out.number(how.value, x.dtype))
    out.write(op.outputs[0], out.node("Pad", inputs, mode=how.mode), order)


@_writes("Flip")
def _flip(out: Exporter, op: Op, how: Any) -> None:
    x = op.inputs[0]
    order, rank = out.order(x), len(x.shape)
    flipped = range(rank) if how.axis is None else [axis % rank for axis in how.axis]
    axes = [order.index(axis) for axis in flipped]
    ends = [out.ints([value] * len(axes)) for value in (-1, -(2**62), -1)]
    tensor = out.node("Slice", [out.read(x, order), *ends[:2], out.ints(axes), ends[2]]) if axes else out.read(x, order)
    out.write(op.outputs[0], tensor, order)


@_writes("Slice")
def _slice(out: Exporter, op: Op, how: Any) -> None:
    x = op.inputs[0]
    cuts, gone, new, at, place = [], [], [], 0, 0
    for part in how.key:
        if part is None:
            new.append(place)
            place += 1
        elif isinstance(part, tuple):
            start, stop, step = part
            step = 1 if step is None else step
            if (start, stop, step) != (None, None, 1):
                far = 2**62 if step > 0 else -(2**62)
                cuts.append(
                    (at, (0 if step > 0 else -1) if start is None else start, far if stop is None else stop, step)
                )
            at, place = at + 1, place + 1
        else:
            # As a slice of one element: the last one ends where the axis does.
            cuts.append((at, part, 2**62 if isinstance(part, int) and part == -1 else part + 1, 1))
            gone.append(at)
            at += 1
    order = out.order(x) if not gone and not new else usual(len(x.shape))
    tensor = out.read(x, order)
    if cuts:
        axes, starts, stops, steps = zip(*cuts, strict=True)
        places = [order.index(axis) for axis in axes]
        tensor = out.node("Slice", [tensor, out.ints(starts), out.ints(stops), out.ints(places), out.ints(steps)])
    if gone:
        tensor = out.node("Squeeze", [tensor, out.ints(gone)])
    if new:
        tensor = out.node("Unsqueeze", [tensor, out.ints(new)])
    out.write(op.outputs[0], tensor if cuts or new else out.node("Identity", [tensor]), order)


@_writes("Take")
def _take(out: Exporter, op: Op, how: Any) -> None:
    x, indices = op.inputs
    _gather(out, op, x, indices, how.axis)


@_writes("Gather")
def _gather_key(out: Exporter, op: Op, how: Any) -> None:
    x, *indices = op.inputs
    plain = all(part in (INDEX, (None, None, None)) for part in how.key)
    if len(indices) != 1 or indices[0].dtype == bool or not plain:
        raise UnsupportedError("ONNX picks by one array of integers, along one axis")
    _gather(out, op, x, indices[0], how.key.index(INDEX))


def _gather(out: Exporter, op: Op, x: Blob, indices: Blob, axis: int) -> None:
    tensor = out.node("Gather", [out.read(x), _indices(out, indices)], axis=axis % len(x.shape))
    out.write(op.outputs[0], tensor)


def _indices(out: Exporter, indices: Blob) -> str:
    """Indices as ONNX wants them, int32 or int64."""
    tensor = out.read(indices)
    wide = indices.dtype in (np.int32, np.int64)
    return tensor if wide else _as(out, tensor, np.int64)


@_writes("TakeAlongAxis")
def _take_along(out: Exporter, op: Op, how: Any) -> None:
    x, indices = op.inputs
    axis = how.axis % len(x.shape)
    if any(n != m for i, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)) if i != axis):
        raise UnsupportedError("the indices are broadcast")
    out.write(op.outputs[0], out.node("GatherElements", [out.read(x), _indices(out, indices)], axis=axis))


@_writes("OneHot")
def _one_hot(out: Exporter, op: Op, how: Any) -> None:
    values = out.array(np.array([0, 1], how.dtype), "values")
    out.write(op.outputs[0], out.node("OneHot", [out.read(op.inputs[0]), out.ints([how.depth]), values]))


# -- reductions --------------------------------------------------------------------------------------------------------


def _reduced(out: Exporter, op: Op, kind: str, dtype: Any = None) -> None:
    x, y = op.inputs[0], op.outputs[0]
    how: Any = op.operation
    order = out.order(x)
    axes = how.axes(len(x.shape))
    tensor = out.read(x, order)
    dtype = y.dtype if dtype is None else np.dtype(dtype)
    if x.dtype != dtype:
        tensor = _as(out, tensor, dtype)
    if axes:
        tensor = out.node(kind, [tensor, out.ints([order.index(axis) for axis in axes])], keepdims=int(how.keepdims))
    if y.dtype != dtype:
        tensor = _as(out, tensor, y.dtype)
    if not axes and x.dtype == dtype == y.dtype:
        tensor = out.node("Identity", [tensor])
    if not how.keepdims:
        left = [axis for axis in order if axis not in axes]
        order = tuple(sorted(left).index(axis) for axis in left)
    out.write(y, tensor, order)


@_writes("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
def _reduction(out: Exporter, op: Op, how: Any) -> None:
    _reduced(out, op, how.kind)


@_writes("ReduceAny", "ReduceAll")
def _any(out: Exporter, op: Op, how: Any) -> None:
    if op.inputs[0].dtype != bool:
        raise UnsupportedError(f"it is for bools here, got {op.inputs[0].dtype}")
    _reduced(out, op, "ReduceMax" if how.kind == "ReduceAny" else "ReduceMin", np.int32)


@_writes("VectorNorm")
def _norm(out: Exporter, op: Op, how: Any) -> None:
    kind = {1: "ReduceL1", 2: "ReduceL2"}.get(how.order)
    if kind is None:
        raise UnsupportedError(f"ONNX has the orders 1 and 2, got {how.order}")
    _reduced(out, op, kind)


@_writes("ArgMax", "ArgMin")
def _position(out: Exporter, op: Op, how: Any) -> None:
    x, y = op.inputs[0], op.outputs[0]
    axes = how.axes(len(x.shape))
    tensor = out.read(x)
    if len(axes) != 1:
        if how.keepdims:
            raise UnsupportedError("ONNX looks along one axis, and keeps no others")
        tensor, axes = out.node("Reshape", [tensor, out.ints([-1])]), (0,)
    out.write(y, out.node(how.kind, [tensor], axis=axes[0], keepdims=int(how.keepdims)))


@_writes("CumSum")
def _cumsum(out: Exporter, op: Op, how: Any) -> None:
    x, y = op.inputs[0], op.outputs[0]
    tensor = out.read(x)
    if x.dtype != y.dtype:
        tensor = _as(out, tensor, y.dtype)
    axis = out.array(np.array(how.axis % len(x.shape), np.int64), "axis")
    tensor = out.node("CumSum", [tensor, axis], exclusive=int(how.exclusive), reverse=int(how.reverse))
    out.write(y, tensor)


@_writes("Sort", "ArgSort")
def _sort(out: Exporter, op: Op, how: Any) -> None:
    x = op.inputs[0]
    axis = how.axis % len(x.shape)
    given = [out.read(x), out.ints([x.shape[axis]])]
    found = out.nodes("TopK", given, 2, axis=axis, largest=int(how.reverse), sorted=1)
    out.write(op.outputs[0], found[how.kind == "ArgSort"])


@_writes("Sample")
def _sample(out: Exporter, op: Op, how: Any) -> None:
    scores, random, *given = op.inputs
    node, last, zero = out.node, out.ints([-1]), out.number(0.0, np.float32)

    def beside(x: Any, dtype: Any) -> str:
        """A setting as a number, or with a value for each row of scores."""
        return node("Unsqueeze", [_as(out, out.read(x), dtype), last]) if isinstance(x, Blob) else out.number(x, dtype)

    def ends_of(shares: str, exclusive: int = 0) -> str:
        return node("CumSum", [_as(out, shares, np.float64), last], exclusive=exclusive)

    settings = how.settings(given)
    heat, most = (beside(x, np.float32) for x in settings[:2])
    x = _as(out, out.read(scores), np.float32)
    x = node("Sub", [x, node("ReduceMax", [x, last])])
    shares = node("Exp", [node("Div", [x, node("Max", [heat, out.number(np.finfo("f4").tiny, np.float32)])])])
    if how.is_of_some:
        ranked, _ = out.nodes("TopK", [shares, out.ints(scores.shape[-1:])], 2, axis=-1)
        places = node("CumSum", [node("Exp", [node("Mul", [ranked, zero])]), last])  # from 1 on: e^0, added up
        kept = node("Where", [node("LessOrEqual", [places, most]), ranked, zero])
        part = node("Mul", [node("ReduceSum", [_as(out, kept, np.float64), last]), beside(settings[2], np.float64)])
        kept = node("Where", [node("Less", [ends_of(kept, 1), part]), kept, zero])
        highest = node("ReduceMax", [ranked, last])
        least = node("ReduceMin", [node("Where", [node("Greater", [kept, zero]), kept, highest]), last])
        shares = node("Where", [node("Less", [shares, least]), zero, shares])
    ends = ends_of(shares)
    total = node("ReduceMax", [ends, last])
    drawn = node("Where", [node("Greater", [heat, zero]), beside(random, np.float32), zero])
    reached = node("LessOrEqual", [ends, node("Mul", [_as(out, drawn, np.float64), total])])
    passed = _as(out, node("And", [reached, node("Less", [ends, total])]), np.int64)
    out.write(op.outputs[0], node("ReduceSum", [passed, last], keepdims=0))


@_writes("DynamicQuantizeLinear")
def _dynamic_quantize(out: Exporter, op: Op, _: Any) -> None:
    for blob, tensor in zip(op.outputs, out.nodes("DynamicQuantizeLinear", [out.read(op.inputs[0])], 3), strict=True):
        out.write(blob, tensor)


# -- recurrent ---------------------------------------------------------------------------------------------------------


#: Of ONNX's gates, which ones of ours they are: input, output, forget, cell; update, reset, new.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


@_writes("LSTM", "GRU", "RNN", "Ragged")
def _sequence(out: Exporter, op: Op, how: Any) -> None:
    read, lengths, attributes = [*op.inputs], "", dict[str, Any]()
    if how.kind == "Ragged":
        lengths = _as(out, out.read(read.pop(1)), np.int32)
        attributes["direction"] = "reverse" if how.reverse else "forward"
        how = how.network
    count = how.states
    saved = range(1 + count, len(op.outputs))
    if saved:
        out.need_one(op, *saved)
    x, *states = read[: 1 + count]
    width, order = states[0].shape[1], _GATES[how.kind]
    rows = np.arange(len(order) * width).reshape(-1, width)[[*order]].reshape(-1)
    arrays = []
    for weight in read[1 + count :]:
        array = out.known(weight)
        if array is None:
            raise UnsupportedError("its weights are computed")
        arrays.append(array[rows])
    inputs, between, bias, *more = arrays
    both = np.concatenate([bias, *(more or [np.zeros_like(bias)])])
    given = [
        out.array(array[None], weight.name)
        for array, weight in zip((inputs, between, both), read[1 + count :], strict=False)
    ]
    axis, one = out.ints([0]), out.ints([1])
    first = ["" if _is_zero(out, state) else out.node("Unsqueeze", [out.read(state), axis]) for state in states]
    attributes["hidden_size"] = width
    if how.kind == "GRU":
        attributes["linear_before_reset"] = int(how.reset_after)
    if how.kind == "RNN":
        attributes["activations"] = [how.activation.capitalize()]
    tensors = out.nodes(how.kind, [out.read(x), *given, lengths, *first], 1 + count, **attributes)
    for y, tensor, place in zip(op.outputs, tensors, (one, axis, axis), strict=False):
        out.write(y, out.node("Squeeze", [tensor, place]))


def _is_zero(out: Exporter, state: Blob) -> bool:
    array = out.known(state)
    made = state.producers[0].operation if state.producers else None
    return (array is not None and not array.any()) or (isinstance(made, Fill) and made.value == 0)


@_writes("LSTMGates")
def _lstm_gates(out: Exporter, op: Op, _: Any) -> None:
    out.need_one(op, 2)
    gates, cell = op.inputs
    width = out.ints([cell.shape[1]] * 4)
    i, f, z, o = out.nodes("Split", [out.read(gates), width], 4, axis=1)
    i, f, o = (out.node("Sigmoid", [gate]) for gate in (i, f, o))
    kept, new = out.node("Mul", [f, out.read(cell)]), out.node("Mul", [i, out.node("Tanh", [z])])
    cell_tensor = out.node("Add", [kept, new])
    out.write(op.outputs[0], out.node("Mul", [o, out.node("Tanh", [cell_tensor])]))
    out.write(op.outputs[1], cell_tensor)


# -- branches and loops ------------------------------------------------------------------------------------------------


@_writes("Switch")
def _switch(out: Exporter, op: Op, how: Any) -> None:
    """Ifs, one in the last branch of the other; with an index that is none of a branch, the last one is computed."""
    index, bodies = op.inputs[0], how.bodies
    given = [[*op.inputs[1 : 1 + how.operands], *[op.inputs[i] for i in reads]] for reads in how.reads]

    def branch(which: int) -> Any:
        return out.body(bodies[which], given[which], (), bodies[which].outputs)

    if index.dtype.kind == "b":
        condition, which = out.read(index), (1 % len(bodies), 0)
        then, otherwise = branch(which[0]), branch(which[1])
    else:
        numbers = [
            out.node("Equal", [out.read(index), out.array(np.array(i, index.dtype))]) for i in range(len(bodies) - 1)
        ]
        if not numbers:
            numbers = [out.node("Equal", [out.read(index), out.read(index)])]
        then, otherwise = branch(0), branch(len(bodies) - 1)
        for i in range(len(bodies) - 2, 0, -1):
            otherwise = out.chosen(numbers[i], branch(i), otherwise)
        condition = numbers[0]
    tensors = out.nodes("If", [condition], len(op.outputs), then_branch=then, else_branch=otherwise)
    for blob, tensor in zip(op.outputs, tensors, strict=True):
        out.write(blob, tensor)


@_writes("Loop")
def _loop(out: Exporter, op: Op, how: Any) -> None:
    """A Scan, where entries of arrays are given; else a Loop."""
    carries, scanned, body = how.carries, how.scanned, how.bodies[0]
    taken = len(body.outputs) - carries - how.tests
    if how.saved:
        out.need_one(op, *range(carries + taken, len(op.outputs)))
    if how.tests and taken and not how.exact:
        raise UnsupportedError("it may end before its length, and what it gives has entries all the same")
    given, reads = op.inputs[: carries + scanned], [op.inputs[i] for i in how.reads[0]]
    inputs = [out.read(blob) for blob in given]
    if scanned:
        graph = out.body(body, reads, body.parameters, body.outputs)
        backward = [int(how.reverse)]
        tensors = out.nodes(
            "Scan",
            inputs,
            carries + taken,
            body=graph,
            num_scan_inputs=scanned,
            scan_input_directions=backward * scanned,
            scan_output_directions=backward * taken or None,
        )
    else:
        if how.reverse and taken:
            raise UnsupportedError("what it takes from the last to the first, without entries, ONNX does not have")
        number, true = TensorSpec((), np.dtype(np.int64)), TensorSpec((), np.dtype(np.bool_))
        most, begins = "" if how.length is None else out.ints([how.length]), ""
        if how.tests:
            condition = how.bodies[1]
            out.inline(condition, [*given, *[op.inputs[i] for i in how.reads[1]]])
            begins = out.read(condition.outputs[0])
            results = [body.outputs[-1], *body.outputs[:-1]]
            graph = out.body(body, reads, [number, true, *body.parameters], results)
        else:
            graph = out.body(body, reads, [number, true, *body.parameters], body.outputs, always=True)
        tensors = out.nodes("Loop", [most, begins, *inputs], carries + taken, body=graph)
    for blob, tensor in zip(op.outputs, tensors, strict=False):
        out.write(blob, tensor)
