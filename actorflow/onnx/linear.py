"""Folding of scales and shifts, batch normalization among them, into the weights of what comes before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from actorflow.onnx.constants import affords, count_while_held
from actorflow.onnx.values import Array, Order, Value, in_order

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob
    from actorflow.onnx.table import Node
    from actorflow.spec import TensorSpec

#: Makes the ops, of a weight and a bias.
Make = Callable[[Array, Array | None], tuple[Order, "Blob"]]


class Linear(NamedTuple):
    """A convolution or a product with a constant weight that is yet to be made.

    Attributes:
        weight: Its weight, output channels last.
        bias: One number for each channel; None for zeros.
        axis: The axis of its channels in the result.
        make: Makes it.
        deferred: Has what is made bear the name of its node, whenever that is.
    """

    weight: Array
    bias: Array | None
    axis: int
    make: Make
    deferred: Callable[[Callable[[], tuple[Order, Blob]]], Callable[[], tuple[Order, Blob]]]


def linear(node: Node, spec: TensorSpec, weight: Array, bias: Array | None, axis: int, make: Make) -> Value:
    """The value of a convolution or a product, which is made when it is first needed.

    Args:
        node: The node.
        spec: Type of the value.
        weight, bias, axis, make: As of `Linear`.
    """
    value = Value(node.graph, spec)
    value.make = node.deferred(lambda: make(weight, bias))
    value.linear = Linear(weight, bias, axis, make, node.deferred)
    return value


def seen_as(node: Node, value: Value, spec: TensorSpec, axis: int, form: Callable[[Value], Value]) -> Value:
    """A value of that kind with other axes of length 1, which is read only so; ``form`` makes it of the value."""
    found: Linear = value.linear

    def make(weight: Array, bias: Array | None) -> tuple[Order, Blob]:
        order, blob = found.make(weight, bias)
        return next(iter(form(in_order(value.graph, order, blob)).blobs.items()))

    seen = Value(node.graph, spec)
    seen.linear = found._replace(axis=axis, make=make)
    seen.make = found.deferred(lambda: make(found.weight, found.bias))
    return seen


def rescaled(node: Node, value: Value, scale: Array | None, shift: Array | None) -> Value | None:
    """A value times a scale plus a shift, numbers for each channel, folded into its weight.

    None if it has no constant weight, or is read elsewhere.
    """
    found: Linear | None = value.linear
    position = next(i for i, each in enumerate(node.inputs) if each is value)
    if found is None or value.make is None or not node.alone[position]:
        return None
    if not all(np.isfinite(each).all() for each in (scale, shift) if each is not None):
        return None
    weight, bias = found.weight, found.bias
    wide = np.zeros(weight.shape[-1]) if bias is None else bias.astype(np.float64)
    if scale is not None:
        if not affords(*weight.shape, size=weight.itemsize):
            return None
        made_of = np.empty_like(weight)
        weight, wide = np.multiply(weight, scale, made_of, dtype=np.float64, casting="unsafe"), wide * scale
        count_while_held(weight)
    if shift is not None:
        wide = wide + shift
    kind = value.dtype
    keeps = bias is None and shift is None
    folded = weight, None if keeps else wide.astype(kind)
    if not all(np.isfinite(each).all() for each in folded if each is not None):
        return None  # too large for the dtype
    made = Value(value.graph, value.spec)
    made.linear = found._replace(weight=folded[0], bias=folded[1])
    made.make = found.deferred(lambda: found.make(*folded))
    return made


def affine(node: Node, a: Value, b: Value) -> Value | None:
    """Add, Sub, Mul or Div by constants for each channel, folded into the op before it; None where that cannot be."""
    value, other = (a, b) if b.is_constant else (b, a)
    if not other.is_constant or value.is_constant or value.linear is None:
        return None
    constant = _per_channel(value, other)
    if constant is None:
        return None
    if node.operator == "Add":
        return rescaled(node, value, None, constant)
    if node.operator == "Mul":
        return rescaled(node, value, constant, None)
    if node.operator == "Sub":
        if value is a:
            return rescaled(node, value, None, -constant)
        return rescaled(node, value, np.array(-1.0), constant)
    return rescaled(node, value, 1 / constant, None) if value is a and constant.all() else None


def _per_channel(value: Value, other: Value) -> Array | None:
    """A constant as one number for each channel, or for all; None if it differs along other axes."""
    assert other.known is not None
    if other.known.size == 1 and other.rank <= value.rank:
        return other.known.reshape(()).astype(np.float64)
    axis = value.linear.axis % value.rank
    shape = [1] * (value.rank - other.rank) + list(other.known.shape)
    if other.rank > value.rank or any(n != 1 for i, n in enumerate(shape) if i != axis):
        return None
    return other.known.reshape(-1).astype(np.float64)
