"""Reductions, and what counts along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.onnx.operators.elementwise import as_type
from actorflow.onnx.table import Lower, Node, lowers, row, within
from actorflow.onnx.values import Order, Value
from actorflow.spec import Length

#: The opset from which axes are an input.
_AXES_GIVEN = {"ReduceSum": 13}


def _axes(node: Node, rank: int) -> tuple[int, ...] | None:
    """The axes that are reduced; None for all of them, empty for none."""
    if node.opset >= _AXES_GIVEN.get(node.operator, 18):
        given = node.numbers(1, "axes") if node.has(1) else []
        if not given and node.attribute("noop_with_empty_axes", 0):
            return ()
    else:
        given = node.attribute("axes") or []
    return tuple([within(axis, rank) for axis in given]) or None


def without(order: Order, axes: Sequence[int]) -> Order:
    """An order of axes without some of them."""
    left = sorted(axis for axis in order if axis not in axes)
    return tuple([left.index(axis) for axis in order if axis not in axes])


def reduced(node: Node, form: Callable[..., Any], x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The value of a reduction, in the order of axes at hand."""
    order, (blob,) = node.aligned(x)
    y = form(blob, axis=tuple(sorted(order.index(axis) for axis in axes)), keepdims=keep)
    return node.ordered(order if keep else without(order, axes), y)


def _reduction(form: Callable[..., Any], empty: Callable[[Any], Any] = lambda x: x) -> Lower:
    """The lowering of a reduction, and of what it is where no axes are reduced."""

    def lower(node: Node) -> Value:
        x, keep = node.x, bool(node.attribute("keepdims", 1))
        axes = _axes(node, x.rank)
        axes = tuple(range(x.rank)) if axes is None else axes
        if any(isinstance(x.shape[axis], Length) or x.shape[axis] != 1 for axis in axes):
            return reduced(node, form, x, axes, keep)
        return reduced(
            node, lambda blob, axis, keepdims: empty(blob if keepdims else ops.squeeze(blob, axis)), x, axes, keep
        )

    return lower


def _sum(x: Any, axis: Any, keepdims: bool) -> Any:
    return as_type(ops.sum(x, axis, keepdims), x.dtype)


def _mean(x: Any, axis: Any, keepdims: bool) -> Any:
    if x.dtype.kind in "fV":
        return ops.mean(x, axis, keepdims)
    count = 1
    for i in axis:
        count *= x.shape[i]
    return as_type(ops.trunc_divide(ops.sum(x, axis, keepdims), count), x.dtype)


def _root(x: Any) -> Any:
    if x.dtype.kind in "fV":
        return ops.sqrt(x)
    return as_type(ops.sqrt(ops.cast(x, "float64")), x.dtype)


def _logarithm(x: Any) -> Any:
    return ops.log(x) if x.dtype.kind in "fV" else as_type(ops.log(ops.cast(x, "float64")), x.dtype)


def _log_sum_exp(x: Any, axis: Any, keepdims: bool) -> Any:
    if x.dtype.kind not in "fV":
        return as_type(_log_sum_exp(ops.cast(x, "float64"), axis, keepdims), x.dtype)
    if not all(x.shape[i] for i in axis):
        return ops.log(ops.sum(ops.exp(x), axis, keepdims))
    top = ops.max(x, axis, True)
    finite = ops.where(ops.isfinite(top), top, 0.0)
    sums = ops.log(ops.sum(ops.exp(x - finite), axis, True)) + finite
    return sums if keepdims else ops.squeeze(sums, axis)


def _extreme(form: Callable[..., Any], is_max: bool) -> Callable[..., Any]:
    """A maximum or minimum, which of nothing is the least or the greatest number."""

    def folded(x: Any, axis: Any, keepdims: bool) -> Any:
        if x.dtype.kind == "b":
            return (ops.any if is_max else ops.all)(x, axis, keepdims)
        if all(x.shape[i] for i in axis):
            return form(x, axis, keepdims)
        if x.dtype.kind == "f":
            least: Any = -np.inf if is_max else np.inf
        else:
            limits = np.iinfo(x.dtype)
            least = int(limits.min if is_max else limits.max)
        shape = [1 if i in axis else n for i, n in enumerate(x.shape) if keepdims or i not in axis]
        return ops.fill(x.graph, least, shape, x.dtype)

    return folded


row("ReduceSum", _reduction(_sum))
row("ReduceMean", _reduction(_mean))
row("ReduceProd", _reduction(lambda x, axis, keepdims: as_type(ops.prod(x, axis, keepdims), x.dtype)))
row("ReduceMax", _reduction(_extreme(ops.max, True)))
row("ReduceMin", _reduction(_extreme(ops.min, False)))
row("ReduceL1", _reduction(lambda x, axis, keepdims: _sum(ops.absolute(x), axis, keepdims), ops.absolute))
row("ReduceL2", _reduction(lambda x, axis, keepdims: _root(_sum(ops.square(x), axis, keepdims)), ops.absolute))
row("ReduceSumSquare", _reduction(lambda x, axis, keepdims: _sum(ops.square(x), axis, keepdims), ops.square))
row("ReduceLogSum", _reduction(lambda x, axis, keepdims: _logarithm(_sum(x, axis, keepdims)), _logarithm))
row("ReduceLogSumExp", _reduction(_log_sum_exp))


@lowers("ArgMax", "ArgMin")
def _arg(node: Node) -> Value:
    form = ops.argmax if node.operator == "ArgMax" else ops.argmin
    last = bool(node.attribute("select_last_index", 0))
    axis = node.axis(node.x.rank)

    def found(x: Any, axis: Any, keepdims: bool) -> Any:
        (along,) = axis
        if not last:
            return form(x, axis=along, keepdims=keepdims)
        places = form(ops.flip(x, along), axis=along, keepdims=keepdims)
        return ops.negative(places) + (x.shape[along] - 1)

    return reduced(node, found, node.x, (axis,), bool(node.attribute("keepdims", 1)))


@lowers("CumSum", "CumProd")
def _cumulative(node: Node) -> Value:
    form = ops.cumsum if node.operator == "CumSum" else ops.cumprod
    x = node.x
    (axis,) = node.numbers(1, "axis")
    order, (blob,) = node.aligned(x)
    along = order.index(within(axis, x.rank))
    exclusive, reverse = bool(node.attribute("exclusive", 0)), bool(node.attribute("reverse", 0))
    return node.ordered(order, as_type(form(blob, along, exclusive=exclusive, reverse=reverse), x.dtype))


@lowers("TopK")
def _top_k(node: Node) -> list[Value | None]:
    x = node.x
    k = node.numbers(1, "k")[0] if node.opset >= 10 else node.attribute("k")
    axis = node.axis(x.rank, -1)
    order, (blob,) = node.aligned(x)
    along, largest = order.index(axis), bool(node.attribute("largest", 1))
    values, places = ops.top_k(blob, k, along, largest=largest, sorted=True)
    return [node.ordered(order, values), node.ordered(order, places)]
