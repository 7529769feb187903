"""Operators that give elements another shape or order, and those that make tensors of shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from onnx import helper

from actorflow import ops
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op
from actorflow.onnx import linear
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.elementwise import before_reshaping, check_numbers
from actorflow.onnx.refusal import DependsOnData, Refused
from actorflow.onnx.table import Node, lowers, within
from actorflow.onnx.values import Order, Value, common_order, usual
from actorflow.ops.fills import Constant, Fill, Numbers
from actorflow.ops.indexing import Slice
from actorflow.ops.linalg import Bias, Inner
from actorflow.ops.shaping import Reshape
from actorflow.spec import Length, TensorSpec, long, may_equal


@lowers("Constant", limits="text and sparse tensors")
def _constant(node: Node) -> Value:
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if name in node.attributes:
            return node.constant(np.asarray(node.attribute(name), np.float32 if "float" in name else np.int64))
    value = node.attribute("value")
    if value is None:
        raise Refused("only numbers can be constants: neither text nor sparse tensors")
    return node.constant(value)


@lowers("Shape", "Size")
def _shape(node: Node) -> Value:
    raise AssertionError("is always folded")


@lowers("Reshape")
def _reshape(node: Node) -> Value:
    x = node.x
    given = node.numbers(1, "shape") if node.opset >= 5 else list(node.attribute("shape"))
    kept = not node.attribute("allowzero", 0)
    shape = [x.shape[i] if kept and not isinstance(n, Length) and n == 0 else n for i, n in enumerate(given)]
    return reshaped(node, x, shape)


def reshaped(node: Node, x: Value, shape: Sequence[Any]) -> Value:
    """A value in another shape, of which one length may be -1."""
    known = math.prod(n for n in shape if isinstance(n, Length) or n != -1)
    free = any(not isinstance(n, Length) and n == -1 for n in shape)
    whole = math.prod(x.shape)
    lengths = tuple([whole // known if free and not isinstance(n, Length) and n == -1 and known else n for n in shape])
    if lengths == x.shape:
        return x
    if x.linear is not None and node.alone[0] and (old := _kept_axes(x.shape)) and x.linear.axis % x.rank in old:
        new = _kept_axes(lengths)
        if [x.shape[i] for i in old] == [lengths[i] for i in new]:
            axis = new[old.index(x.linear.axis % x.rank)]
            return linear.seen_as(node, x, TensorSpec(lengths, x.dtype), axis, partial(_in_shape, node, lengths))
    return _in_shape(node, lengths, x)


def _kept_axes(shape: Sequence[Any]) -> list[int]:
    return [axis for axis, length in enumerate(shape) if _counts(length)]


def _in_shape(node: Node, lengths: tuple[Any, ...], x: Value) -> Value:
    for order in x.orders[:1]:
        kept = _order_after(x.shape, lengths, order)
        if kept is not None and kept != usual(len(lengths)):
            return node.ordered(kept, ops.reshape(x.blob(order), tuple([lengths[i] for i in kept])))
    return node.usual(ops.reshape(before_reshaping(x.blob()), lengths))


def _order_after(old: Sequence[Any], new: Sequence[Any], order: Order) -> Order | None:
    """The order in which a value has another shape without being transposed; None if there is none.

    Axes that become one must be neighbours in memory; axes of length 1 come and go.
    """
    runs = _runs(old, new)
    if runs is None:
        return None
    places = {axis: place for place, axis in enumerate([axis for axis in order if _counts(old[axis])])}
    for before, _ in runs:
        if [places[axis] for axis in before] != list(range(places[before[0]], places[before[0]] + len(before))):
            return None
    in_memory = sorted(runs, key=lambda run: places[run[0][0]])
    return (*[i for i, n in enumerate(new) if not _counts(n)], *[axis for _, after in in_memory for axis in after])


def _runs(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[list[int], list[int]]] | None:
    """The shortest runs of axes that become runs of axes of as many elements; None where that is not known."""
    left, right = _kept_axes(old), _kept_axes(new)
    runs = []
    while left and right:
        before, after = [left.pop(0)], [right.pop(0)]
        a, b = old[before[0]], new[after[0]]
        while a != b:
            rest, run = (left, before) if long(a) < long(b) else (right, after)
            if not rest:
                return None
            run.append(rest.pop(0))
            a, b = math.prod(old[i] for i in before), math.prod(new[i] for i in after)
        runs.append((before, after))
    return None if left or right or 0 in old else runs


def _counts(length: Any) -> bool:
    """Whether an axis has a place in memory: one of length 1 has none."""
    return isinstance(length, Length) or length != 1


@lowers("Flatten")
def _flatten(node: Node) -> Value:
    x, axis = node.x, node.attribute("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return reshaped(node, x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def given_axes(node: Node, position: int, rank: int) -> tuple[int, ...] | None:
    """The axes that are an attribute, or since opset 13 an input; None where none are said."""
    if node.opset < 13:
        axes = node.attribute("axes")
    else:
        axes = node.numbers(position, "axes") if node.has(position) else None
    return None if axes is None else tuple([within(axis, rank) for axis in axes])


@lowers("Unsqueeze")
def _unsqueeze(node: Node) -> Value:
    x = node.x
    count = len(node.attribute("axes") or ()) if node.opset < 13 else node.value(1).spec.size
    rank = x.rank + int(count)
    axes = given_axes(node, 1, rank)
    if axes is None or len(set(axes)) != len(axes):
        raise Refused(f"axes must be given, each once, got {axes}")
    own = iter(x.shape)
    return reshaped(node, x, [1 if axis in axes else next(own) for axis in range(rank)])


@lowers("Squeeze")
def _squeeze(node: Node) -> Value:
    x = node.x
    axes = given_axes(node, 1, x.rank)
    if axes is None:
        axes = tuple([i for i, n in enumerate(x.shape) if not isinstance(n, Length) and n == 1])
        opened: tuple[Any, ...] = tuple([n for n in x.shape if isinstance(n, Length)])
        if opened:  # an axis stays where its length is not 1: that is checked when it is known
            shape = tuple([n for i, n in enumerate(x.shape) if i not in axes])
            return node.usual(node.graph.apply(Reshape(shape, opened), x.blob()))
    for axis in axes:
        if not may_equal(x.shape[axis], 1):  # what is not known is checked with the lengths
            raise Refused(f"axis {axis} of {x.spec} is not of length 1")
    return reshaped(node, x, [n for axis, n in enumerate(x.shape) if axis not in axes])


@lowers("Transpose")
def _transpose(node: Node) -> Value:
    x = node.x
    axes = tuple(node.attribute("perm") or range(x.rank)[::-1])
    if sorted(axes) != list(range(x.rank)):
        raise Refused(f"perm {axes} is not a permutation of {x.rank} axes")
    spec = TensorSpec(tuple([x.shape[axis] for axis in axes]), x.dtype)
    # Nothing moves: the value has its axes in another order now.
    blobs = {tuple([axes.index(axis) for axis in order]): x.blob(order) for order in x.orders or [usual(x.rank)]}
    return Value(node.graph, spec, blobs=blobs)


@lowers("Concat")
def _concat(node: Node) -> Value:
    values = [value for value in node.inputs if value is not None]
    rank = values[0].rank
    order = common_order(values, rank)
    axis = order.index(within(node.attribute("axis", 1), rank))
    parts = [value.blob(order) for value in values]
    whole = _at_once(node.graph, parts, axis)
    return node.ordered(order, ops.concat(parts, axis=axis) if whole is None else whole)


def _at_once(graph: Graph, parts: Sequence[Blob], axis: int) -> Blob | None:
    """The steps of a sequence that a layer was applied to one by one, computed at once; None if parts are not these."""
    chains = [_chain(part) for part in parts]
    if len(chains[0]) < 2 or len({len(chain) for chain in chains}) > 1:
        return None
    (slicing, *layer), steps = chains[0], len(chains)
    x, key = slicing.inputs[0], cast(Slice, slicing.operation).key
    at = next((i for i, part in enumerate(key) if part == (0, 1, 1)), len(x.shape))
    if steps == 1 or at >= len(x.shape) - 1 or x.shape[at] != steps:
        return None
    for step, (own, *others) in enumerate(chains):
        expected = Slice((*key[:at], (step, step + 1, 1), *key[at + 1 :]))
        if own.inputs[0] is not x or own.operation != expected or not all(map(_is_alike, others, layer)):
            return None
    y = x
    for op in layer:
        if not isinstance(op.operation, Reshape):
            y = graph.apply(op.operation, y, *op.inputs[1:])
    whole = [*y.shape[:at], *y.shape[at + 1 :]]
    whole.insert(axis, 1)
    return ops.moveaxis(y, at, axis) if tuple(whole) == parts[0].shape else None


def _chain(part: Blob) -> list[Op]:
    """The ops from a slice to a part: products, biases, and what only drops and adds axes; none if there are others."""
    found: list[Op] = []
    while part.producers:
        found.insert(0, op := part.producers[0])
        if isinstance(op.operation, Slice):
            return found
        if not isinstance(op.operation, Inner | Bias | Reshape):
            break
        part = op.inputs[0]
        before, after = ([n for n in blob.shape if _counts(n)] for blob in (part, op.outputs[0]))
        if isinstance(op.operation, Reshape) and before != after:
            break
    return []


def _is_alike(a: Op, b: Op) -> bool:
    """Whether two ops do the same, with the same constants beside their first input."""
    pairs = [(x, y) for x, y in zip(a.inputs[1:], b.inputs[1:], strict=True) if x is not y]
    makers = [[op.operation for blob in pair for op in blob.producers] for pair in pairs]
    are_equal = [len(each) == 2 and isinstance(each[0], Constant) and each[0] == each[1] for each in makers]
    return a.operation == b.operation and all(are_equal)


@lowers("Split")
def _split(node: Node) -> Sequence[Value | None]:
    x, axis = node.x, node.axis(node.x.rank)
    count = len(node.outputs)
    if node.opset < 13:
        lengths = node.attribute("split")
    else:
        lengths = node.numbers(1, "split") if node.has(1) else None
    if lengths is None:
        if node.attribute("num_outputs", count) not in (0, count):
            raise Refused(f"num_outputs is {node.attribute('num_outputs')}, of {count} outputs")
        each = -(-x.shape[axis] // count)
        lengths = [each] * (count - 1)
        lengths = [*lengths, x.shape[axis] - each * (count - 1)]
    order, (blob,) = node.aligned(x)
    return [node.ordered(order, part) for part in ops.split(blob, lengths, axis=order.index(axis))]


@lowers("Expand")
def _expand(node: Node) -> Value:
    x, shape = node.x, node.numbers(1, "shape")
    rank = max(x.rank, len(shape))
    wanted = [1] * (rank - len(shape)) + shape
    own = [1] * (rank - x.rank) + list(x.shape)
    found = [m if not isinstance(n, Length) and n == 1 else n for n, m in zip(wanted, own, strict=True)]
    if tuple(found) == x.shape:
        return x
    order = common_order([x], rank)
    blob = x.broadcastable(order)
    return node.ordered(order, ops.broadcast_to(blob, tuple([found[axis] for axis in order])))


@lowers("Tile")
def _tile(node: Node) -> Value:
    order, (blob,) = node.aligned(node.x)
    repeats = node.numbers(1, "repeats")
    if len(repeats) != node.x.rank:
        raise Refused(f"repeats must be {node.x.rank} numbers, got {repeats}")
    return node.ordered(order, ops.tile(blob, [repeats[axis] for axis in order]))


@lowers("ConstantOfShape")
def _constant_of_shape(node: Node) -> Value:
    value = node.attribute("value")
    value = np.zeros(1, np.float32) if value is None else value
    return node.usual(filled(node, value.reshape(-1)[0], node.numbers(0, "shape"), value.dtype))


def filled(node: Node, value: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """A blob that is a number everywhere."""
    check_numbers(np.dtype(dtype))
    return node.graph.apply(Fill(np.asarray(value).item(), TensorSpec(tuple(shape), np.dtype(dtype))))


@lowers("Range")
def _range(node: Node) -> Value:
    start, limit, delta = (node.value(i) for i in range(3))
    bounds: list[Any] = []
    for each in (start, limit, delta):
        if each.numbers is None:
            raise DependsOnData(
                "its bounds must be constant, or follow from the lengths of axes, and depend on data here"
            )
        bounds.append(np.asarray(each.numbers, object).reshape(-1)[0])
    first, last, step = bounds
    if step == 0:
        raise Refused("its step is 0")
    if not any(isinstance(each, Length) for each in bounds):
        spend(abs(math.ceil((last - first) / step)))
        return node.constant(_counted(first, last, step, start.dtype.str))
    if step not in (1, -1):
        raise Refused(f"of open lengths only those with step 1 can be loaded, not {step}")
    if any(not isinstance(each, Length) and each != int(each) for each in bounds):  # lengths are whole numbers
        raise Refused(f"of open lengths only those between whole numbers can be loaded, not from {first} to {last}")
    first, last, step = (each if isinstance(each, Length) else int(each) for each in bounds)
    spec = TensorSpec(((last - first) * step,), start.dtype)
    return node.usual(node.graph.apply(Numbers(_counted, (first, last, step, start.dtype.str), spec)))


def _counted(first: int, last: int, step: int, dtype: str) -> Any:
    count = max(math.ceil((last - first) / step), 0)
    return (first + np.arange(count) * step).astype(dtype)


@lowers("EyeLike")
def _eye(node: Node) -> Value:
    x = node.x
    kind = node.attribute("dtype")
    dtype = x.dtype if kind is None else helper.tensor_dtype_to_np_dtype(kind)
    check_numbers(dtype)
    rows, columns = x.shape
    if isinstance(rows, Length) or isinstance(columns, Length):
        raise Refused(f"its size must be known, got {x.spec}")
    spend(rows, columns)
    return node.constant(np.eye(rows, columns, node.attribute("k", 0), dtype))


@lowers("Trilu")
def _trilu(node: Node) -> Value:
    x, is_upper = node.x, bool(node.attribute("upper", 1))
    if not node.has(1) or node.value(1).numbers is not None:
        k = node.numbers(1, "k")[0] if node.has(1) else 0
        return node.usual((ops.triu if is_upper else ops.tril)(x.blob(), k))
    rows, columns = x.shape[-2:]
    spend(rows, columns)
    diagonals = np.arange(int(columns)) - np.arange(int(rows))[:, np.newaxis]
    compare = ops.greater_equal if is_upper else ops.less_equal
    kept = compare(constant(node.graph, diagonals), ops.reshape(node.value(1).blob(), ()))
    return node.usual(ops.where(kept, x.blob(), False if x.dtype.kind == "b" else 0))


@lowers("DepthToSpace")
def _depth_to_space(node: Node) -> Value:
    batch, channels, height, width = node.x.shape
    b = node.attribute("blocksize")
    order, last = (0, 2, 3, 1), channels // (b * b)
    if node.attribute("mode", "DCR") == "DCR":  # channels are (block row, block column, depth)
        blob = ops.reshape(node.x.blob(order), (batch, height, width, b, b, last))
        blob = ops.transpose(blob, (0, 1, 3, 2, 4, 5))
    else:
        blob = ops.reshape(node.x.blob(order), (batch, height, width, last, b, b))
        blob = ops.transpose(blob, (0, 1, 4, 2, 5, 3))
    return node.ordered(order, ops.reshape(blob, (batch, height * b, width * b, last)))


@lowers("SpaceToDepth")
def _space_to_depth(node: Node) -> Value:
    batch, channels, height, width = node.x.shape
    b = node.attribute("blocksize")
    order = (0, 2, 3, 1)
    blob = ops.reshape(node.x.blob(order), (batch, height // b, b, width // b, b, channels))
    dcr = node.attribute("mode", "DCR") == "DCR"
    blob = ops.transpose(blob, (0, 1, 3, 2, 4, 5) if dcr else (0, 1, 3, 5, 2, 4))
    return node.ordered(order, ops.reshape(blob, (batch, height // b, width // b, b * b * channels)))


@lowers("Pad")
def _pad(node: Node) -> Value:
    x, mode = node.x, node.attribute("mode", "constant")
    value: Any = 0.0
    filler: Value | None = None
    if node.opset < 11:
        pads, value = node.attribute("pads"), node.attribute("value", 0.0)
    else:
        pads = node.numbers(1, "pads")
        filler = node.value(2) if node.has(2) and mode == "constant" else None
        value = 0 if filler is None or filler.known is None else filler.known.reshape(()).item()
    axes = [within(axis, x.rank) for axis in node.numbers(3, "axes")] if node.has(3) else list(range(x.rank))
    if len(pads) != 2 * len(axes):
        raise Refused(f"pads must be {2 * len(axes)} numbers, got {pads}")
    widths: list[Any] = [(0, 0)] * x.rank
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + len(axes)])
    order, (blob,) = node.aligned(x)
    ordered = [widths[axis] for axis in order]
    if any(not isinstance(n, Length) and n < 0 for pair in widths for n in pair):
        cut = tuple([slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(ordered, blob.shape, strict=True)])
        blob = ops.slice(blob, cut)
        ordered = [(max(a, 0), max(b, 0)) for a, b in ordered]
    value = value if x.dtype.kind in "fV" else bool(value) if x.dtype.kind == "b" else int(value)
    if filler is not None and filler.known is None:  # a number that depends on data
        inside = ops.pad(ops.fill(node.graph, True, blob.shape, "bool"), ordered, "constant", False)
        whole = ops.pad(blob, ordered)
        return node.ordered(order, ops.where(inside, whole, ops.reshape(filler.blob(), ())))
    return node.ordered(order, ops.pad(blob, ordered, mode, value))
