"""Operators that pick elements by index, or put them in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow import ops
from actorflow.onnx import by_data
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.elementwise import before_reshaping
from actorflow.onnx.refusal import DependsOnData, Refused
from actorflow.onnx.table import Node, lowers, within
from actorflow.onnx.values import Value
from actorflow.ops.elementwise import Sum
from actorflow.ops.fills import Constant
from actorflow.spec import Length, maximum


@lowers("Gather")
def _gather(node: Node) -> Value:
    x, indices = node.value(0), node.value(1)
    axis = node.axis(x.rank)
    if indices.is_constant and indices.rank == 0:  # one part, without that axis
        assert indices.known is not None
        order, (blob,) = node.aligned(x)
        key: list[Any] = [slice(None)] * x.rank
        key[order.index(axis)] = int(indices.known)
        rest = [a for a in order if a != axis]
        return node.ordered(tuple([a - (a > axis) for a in rest]), ops.slice(blob, tuple(key)))
    if indices.rank == 1:
        order, (blob,) = node.aligned(x)
        return node.ordered(order, ops.take(blob, indices.blob(), order.index(axis)))
    return node.usual(ops.take(x.blob(), indices.blob(), axis))


@lowers("GatherElements")
def _gather_elements(node: Node) -> Value:
    x = node.x
    return node.usual(_along(x.blob(), node.value(1).blob(), node.axis(x.rank)))


def _along(x: Any, indices: Any, axis: int) -> Any:
    """Elements at indices along an axis; the other axes of ``x`` may be longer than those of the indices."""
    key = tuple(slice(None) if i == axis else slice(0, n) for i, n in enumerate(indices.shape))
    if any(i != axis and n != m for i, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True))):
        x = ops.slice(x, key)
    return ops.take_along_axis(x, indices, axis)


@lowers("GatherND")
def _gather_nd(node: Node) -> Value:
    return node.usual(ops.gather_nd(node.x.blob(), node.value(1).blob(), node.attribute("batch_dims", 0)))


_MODES = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@lowers("ScatterElements", "Scatter")
def _scatter(node: Node) -> Value:
    x = node.x
    mode: Any = _MODES[node.attribute("reduction", "none")]
    axis = node.axis(x.rank)
    return node.usual(ops.scatter(x.blob(), node.value(1).blob(), node.value(2).blob(), axis, mode))


@lowers("ScatterND")
def _scatter_nd(node: Node) -> Value:
    mode: Any = _MODES[node.attribute("reduction", "none")]
    return node.usual(ops.scatter_nd(node.x.blob(), node.value(1).blob(), node.value(2).blob(), mode))


@lowers("OneHot")
def _one_hot(node: Node) -> Value:
    indices, values = node.value(0), node.value(2)
    depth = node.numbers(1, "depth")[0]
    rank = indices.rank + 1
    axis = node.axis(rank, -1)
    blob = indices.blob()
    whole = blob if blob.dtype.kind in "iu" else ops.cast(blob, "int64")
    whole = whole if whole.dtype == np.int64 else ops.cast(whole, "int64")
    # Negative ones count from the end; what is out of range is nowhere.
    found = ops.where(ops.less(whole, whole.constant_like(0)), whole + depth, whole)
    inside = ops.logical_and(found >= 0, found < depth)
    hot = ops.cast(ops.one_hot(ops.where(inside, found, 0), depth, "float32"), "bool")
    hot = ops.moveaxis(ops.logical_and(hot, ops.expand_dims(inside, -1)), -1, axis)
    pair = values.blob()
    return node.usual(ops.where(hot, ops.slice(pair, 1), ops.slice(pair, 0)))


@lowers("Slice")
def _slice(node: Node) -> Value:
    x = node.x
    if node.opset < 10:
        starts, ends = node.attribute("starts"), node.attribute("ends")
        axes, steps = node.attribute("axes") or range(len(starts)), [1] * len(starts)
    else:
        if node.value(1).numbers is None and (found := _some_places(node)) is not None:
            return found
        starts, ends = node.numbers(1, "starts"), node.numbers(2, "ends")
        axes = node.numbers(3, "axes") if node.has(3) else range(len(starts))
        steps = node.numbers(4, "steps") if node.has(4) else [1] * len(starts)
    order, (blob,) = node.aligned(x)
    key = [slice(None)] * x.rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        where = within(axis, x.rank)
        key[order.index(where)] = _part(start, end, step, x.shape[where])
    return node.ordered(order, ops.slice(blob, tuple(key)))


def _some_places(node: Node) -> Value | None:
    """A part of one axis that data say the place of, and whose end is a number of places further; None if it is not."""
    x, start = node.x, node.value(1)
    base, first = _moved(start.blob())
    other, last = _moved(node.value(2).blob())
    known = all(value is None or value.numbers is not None for value in node.inputs[3:])
    if base is not other or last <= first or start.spec.size != 1 or not known:
        return None
    if node.has(4) and node.numbers(4, "steps") != [1]:
        return None
    axis = within(node.numbers(3, "axes")[0] if node.has(3) else 0, x.rank)
    count, at = last - first, _long(start.blob())
    # From before the end of the axis to behind its beginning there is nothing: an index that it does not have.
    places = ops.where(ops.logical_and(at < 0, at >= -count), 2**31 - 1, at) + constant(node.graph, np.arange(count))
    order, (blob,) = node.aligned(x)
    return node.ordered(order, ops.take(blob, places, order.index(axis)))


def _moved(blob: Any) -> tuple[Any, int]:
    """The integer that one is made of by adding constants, and their sum."""
    moved = 0
    while (blob := before_reshaping(blob)).producers:
        (made_by,) = blob.producers
        terms = [_number(each) for each in made_by.inputs]
        if type(made_by.operation) is not Sum or terms.count(None) != 1:
            break
        moved += sum(term for term in terms if term is not None)
        blob = made_by.inputs[terms.index(None)]
    return blob, moved


def _number(blob: Any) -> int | None:
    """The integer that a blob always holds; None if it may differ."""
    made_by = (before_reshaping(blob).producers or [None])[0]
    if made_by is None or type(made_by.operation) is not Constant or blob.spec.size != 1:
        return None
    return int(made_by.operation.value.item())


def _part(start: Any, end: Any, step: Any, length: Any) -> slice:
    """A slice as Python's: bounds beyond the axis are its ends."""
    if step == 0:
        raise Refused("a step is 0")
    if isinstance(length, Length) or isinstance(start, Length) or isinstance(end, Length):
        begin, stop = start, end
        if not isinstance(end, Length) and (abs(end) if step < 0 else end) >= by_data.FAR:
            stop = None
        if step < 0 and not isinstance(start, Length) and start < -1:  # before the beginning is the first place
            begin = maximum(length + start, 0)
        return slice(begin, stop, step)
    return by_data.part(start, end, step, length)


@lowers("ReverseSequence")
def _reverse_sequence(node: Node) -> Value:
    x, lengths = node.x, node.value(1)
    time, batch = within(node.attribute("time_axis", 0), x.rank), within(node.attribute("batch_axis", 1), x.rank)
    steps = x.shape[time]
    spend(steps)
    shape = [1] * x.rank
    shape[time] = steps
    places = constant(node.graph, np.arange(steps, dtype=np.int64).reshape(shape))
    of_batch = [1] * x.rank
    of_batch[batch] = x.shape[batch]
    ends = ops.reshape(_long(lengths.blob()), of_batch)
    found = ops.where(ops.less(places, ends), ends - 1 - places, places)
    return node.usual(ops.take_along_axis(x.blob(), ops.broadcast_to(found, x.shape), time))


def _long(x: Any) -> Any:
    return x if x.dtype == np.int64 else ops.cast(x, "int64")


@lowers("NonZero", "Compress", "Unique", "NonMaxSuppression")
def _selecting(node: Node) -> Value:
    raise DependsOnData("how many elements it gives depends on data, and the file does not declare it")
