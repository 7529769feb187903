"""Products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow import ops
from actorflow.onnx import linear
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.elementwise import mapped
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Node, lowers
from actorflow.onnx.values import Order, Value, usual
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


def _linear(node: Node, x: Value, weight: Any, bias: Any) -> Value:
    """A product with a constant matrix, (in, out), over the last axis."""

    def make(weight: Any, bias: Any) -> tuple[Order, Blob]:
        y = ops.inner(x.blob(), constant(node.graph, weight.T, name="weight"))
        return usual(x.rank), y if bias is None else ops.bias(y, constant(node.graph, bias, name="shift"))

    if x.shape[-1] != weight.shape[0]:
        raise Refused(f"a matrix of shape {weight.shape} does not fit to {x.spec}")
    spec = TensorSpec((*x.shape[:-1], weight.shape[1]), x.dtype)
    return linear.linear(node, spec, weight, bias, -1, make)


@lowers("Gemm")
def _gemm(node: Node) -> Value:
    a, b = node.value(0), node.value(1)
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    turned, turned_b = bool(node.attribute("transA", 0)), bool(node.attribute("transB", 0))
    c = node.value(2) if node.has(2) else None
    is_floating = a.dtype.kind in "fV"
    fits = c is None or (c.is_constant and c.rank <= 2 and c.spec.size in (1, b.shape[0 if turned_b else 1]))
    if c is not None and fits and c.rank == 2 and c.shape[0] != 1:
        fits = False
    if b.is_constant and b.dtype == a.dtype and is_floating and not turned and fits and a.rank == 2:
        assert b.known is not None
        weight = b.known.T if turned_b else b.known
        if alpha != 1:
            spend(*weight.shape, size=weight.itemsize)
            weight = (weight * alpha).astype(a.dtype)
        bias = None
        if c is not None:
            assert c.known is not None
            bias = np.broadcast_to(c.known.reshape(-1) * np.asarray(beta, a.dtype), weight.shape[1:])
        return _linear(node, a, weight, bias)
    y = ops.matmul(a.blob(), b.blob(), transpose_a=turned, transpose_b=turned_b)
    y = y if alpha == 1 else _scaled(y, alpha)
    found = node.usual(y)
    if c is None:
        return found
    return mapped(node, lambda y, c: y + (c if beta == 1 else _scaled(c, beta)), found, c)


def _scaled(x: Any, factor: float) -> Any:
    if x.dtype.kind in "fV":
        return ops.scale(x, factor)
    if factor == int(factor):
        return x * int(factor)
    raise Refused(f"integers cannot be multiplied by {factor}")


@lowers("MatMul")
def _matmul(node: Node) -> Value:
    a, b = node.value(0), node.value(1)
    if b.is_constant and b.rank == 2 and a.rank >= 2 and a.dtype.kind in "fV" and a.dtype == b.dtype:
        return _linear(node, a, b.known, None)
    return node.usual(product(a, b))


def product(a: Value, b: Value) -> Blob:
    """The product of two values, whose last two axes may be exchanged in memory."""
    found: Any = []
    for each in (a, b):
        order = (*range(each.rank - 2), each.rank - 1, each.rank - 2)
        is_turned = each.rank >= 2 and usual(each.rank) not in each.orders and order in each.orders
        found.append((each.blob(order if is_turned else None), is_turned))
    (left, turned), (right, turned_right) = found
    made: Blob = ops.matmul(left, right, transpose_a=turned, transpose_b=turned_right)
    return made


@lowers("Einsum")
def _einsum(node: Node) -> Value:
    values = [node.value(i).blob() for i in range(len(node.inputs))]
    return node.usual(ops.einsum(node.attribute("equation").replace(" ", ""), *values))


@lowers("Det")
def _det(node: Node) -> Value:
    return node.usual(ops.linalg.det(node.x.blob()))
