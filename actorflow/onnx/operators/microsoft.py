"""Operators of com.microsoft, which ONNX Runtime's optimizer and quantizer write."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.elementwise import mapped
from actorflow.onnx.operators.quantized import dynamic, whole_product, widened
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Lower, Node, lowers, row
from actorflow.onnx.values import Array, Value
from actorflow.ops.fills import numbers
from actorflow.ops.indexing import line
from actorflow.ops.operation import savable
from actorflow.spec import maximum

_MS = "com.microsoft:"


def _gelu(form: Callable[..., Any]) -> Lower:
    """The lowering of an activation of the first input, to which a bias may be added before."""

    def lower(node: Node) -> Value:
        x = mapped(node, ops.add, node.x, node.value(1)) if node.has(1) else node.x
        return mapped(node, lambda x: form(x, node.attribute("alpha")), x)

    return lower


row(f"{_MS}Gelu", _gelu(lambda x, _: ops.gelu(x)))
row(f"{_MS}BiasGelu", _gelu(lambda x, _: ops.gelu(x)))
row(f"{_MS}FastGelu", _gelu(lambda x, _: ops.gelu(x, tanh=True)))
row(f"{_MS}QuickGelu", _gelu(lambda x, alpha: x * ops.sigmoid(x * (1.702 if alpha is None else alpha))))


@lowers(f"{_MS}FusedMatMul", limits="transBatchA and transBatchB")
def _fused_matmul(node: Node) -> Value:
    if node.attribute("transBatchA", 0) or node.attribute("transBatchB", 0):
        raise Refused("transBatchA and transBatchB are not supported")
    turned = [bool(node.attribute(name, 0)) for name in ("transA", "transB")]
    y = ops.matmul(node.x.blob(), node.value(1).blob(), transpose_a=turned[0], transpose_b=turned[1])
    alpha = node.attribute("alpha", 1.0)
    return node.usual(y if alpha == 1 else ops.scale(y, alpha))


def _skipping(node: Node, bias: int) -> tuple[Any, Any]:
    """The sum of what is normalized, and the wanted outputs behind it."""
    total = mapped(node, ops.add, node.x, node.value(1))
    total = mapped(node, ops.add, total, node.value(bias)) if node.has(bias) else total
    if node.wants(1) or node.wants(2):
        raise Refused("mean and deviation are not given")
    return total.blob(), [None, None, total] if node.wants(3) else []


@lowers(f"{_MS}SkipLayerNormalization", limits="mean and deviation as outputs")
def _skip_layer_norm(node: Node) -> list[Value | None]:
    total, more = _skipping(node, 4)
    shift = node.value(3).blob() if node.has(3) else None
    y = ops.layer_norm(total, node.value(2).blob(), shift, axes=1, epsilon=node.attribute("epsilon", 1e-12))
    return [node.usual(y), *more]


@lowers(f"{_MS}SkipSimplifiedLayerNormalization", limits="mean and deviation as outputs")
def _skip_rms_norm(node: Node) -> list[Value | None]:
    total, more = _skipping(node, 3)
    return [node.usual(_rms(total, node.value(2).blob(), node.attribute("epsilon", 1e-12))), *more]


def _rms(x: Any, scale: Any, epsilon: float) -> Any:
    return x / ops.sqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + epsilon) * scale


@lowers(f"{_MS}MatMulIntegerToFloat")
def _matmul_to_float(node: Node) -> Value:
    zeros = [node.value(i) if node.has(i) else None for i in (4, 5)]
    return _as_floats(node, whole_product(node, node.value(0), node.value(1), *zeros), node.value(2), 3, 6)


@lowers(f"{_MS}DynamicQuantizeMatMul")
def _dynamic_matmul(node: Node) -> Value:
    (x, scale, zero), weight = dynamic(node), node.value(1)
    return _as_floats(node, whole_product(node, x, weight, zero, node.value(3) if node.has(3) else None), scale, 2, 4)


def _as_floats(node: Node, y: Value, scale: Value, other: int, bias: int) -> Value:
    """Products times a scale and that at another input, with a bias where there is one."""
    y = mapped(node, ops.multiply, widened(node, y, np.float32), mapped(node, ops.multiply, scale, node.value(other)))
    return mapped(node, ops.add, y, node.value(bias)) if node.has(bias) else y


@lowers(f"{_MS}MatMulNBits", limits="other than 4 and 8 bits, g_idx")
def _matmul_bits(node: Node) -> Value:
    rows, columns = node.attribute("K"), node.attribute("N")
    bits, block = node.attribute("bits", 4), node.attribute("block_size")
    if bits not in (4, 8) or node.has(4):
        raise Refused(f"{bits} bits or g_idx are not supported")
    packed = node.array(1, "the weight").reshape(columns, -1)
    spend(columns, packed.shape[1] * 8 // bits, size=4)
    blocks = -(-rows // block)
    whole = _unpacked(packed, bits).reshape(columns, blocks, block)
    scale = node.array(2, "scales").reshape(columns, blocks, 1)
    zero: Any = float(1 << (bits - 1))
    if node.has(3):
        zero = node.array(3, "zero_points").reshape(columns, -1)
        zero = (_unpacked(zero, bits)[:, :blocks] if zero.dtype == np.uint8 else zero)[:, :, np.newaxis]
    weight = ((whole - zero) * scale).astype(scale.dtype).reshape(columns, -1)[:, :rows]
    y = ops.inner(node.x.blob(), constant(node.graph, np.ascontiguousarray(weight), name="weight"))
    return mapped(node, ops.add, node.usual(y), node.value(5)) if node.has(5) else node.usual(y)


def _unpacked(packed: Array, bits: int) -> Array:
    """Integers of a number of bits, the lower ones of a byte first."""
    if bits == 8:
        return packed.astype(np.float32)
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1).astype(np.float32)


@lowers(f"{_MS}RotaryEmbedding", limits="is_packed_batching")
def _rotary(node: Node) -> Value:
    if node.attribute("is_packed_batching", 0):
        raise Refused("is_packed_batching is not supported")
    x, place, angles = node.x.blob(), node.value(1).blob(), [node.value(i).blob() for i in (2, 3)]
    half = angles[0].shape[1]
    steps = x.shape[-2] if node.x.rank == 4 else x.shape[1]
    if place.shape == (1,):  # of the first step
        place = place + line(x, 0, (steps,))
    cos, sin = (ops.take(each, place) for each in angles)
    heads = node.attribute("num_heads", 0) or x.shape[-1] // (2 * half)
    if node.x.rank == 4:  # (batch, heads, steps, features), else heads are beside each other
        cos, sin = (ops.expand_dims(each, -3) for each in (cos, sin))
        y = x
    else:
        cos, sin = (ops.expand_dims(each, -2) for each in (cos, sin))
        y = ops.reshape(x, (*x.shape[:2], heads, x.shape[-1] // heads))
    y = _turned(y, cos, sin, node.attribute("interleaved", 0))
    return node.usual(ops.reshape(y, x.shape))


def _turned(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """The first features of a head turned by angles, pair by pair; those behind stay as they are."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        y = ops.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        y = ops.reshape(y, (*y.shape[:-2], 2 * half))
    else:
        a, b = turned[..., :half], turned[..., half:]
        y = ops.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return ops.concat([y, rest], axis=-1) if rest.shape[-1] else y


_GROUPED = "softcap, smooth_softmax, head_sink, attention_bias, quantized keys; a number of keys that depends on data"


@lowers(f"{_MS}GroupQueryAttention", limits=_GROUPED)
def _grouped_attention(node: Node) -> list[Value | None]:
    """New keys and values stand behind the ``seqlens_k + 1 - steps`` that each row has kept; none are kept at first."""
    others = ("softcap", "smooth_softmax", "kv_cache_bit_width", "qk_output")
    if any(node.attribute(name, 0) for name in others) or any(node.has(i) for i in range(10, len(node.inputs))):
        raise Refused(f"{_GROUPED} are not supported")
    heads, served, q = node.attribute("num_heads"), node.attribute("kv_num_heads"), node.x.blob()
    (batch, steps), width = q.shape[:2], q.shape[-1] // (heads if node.has(1) else heads + 2 * served)
    edges = np.cumsum([0, heads, served, served]) * width
    parts = [q[..., int(a) : int(b)] for a, b in pairwise(edges)]
    parts = [q, node.value(1).blob(), node.value(2).blob()] if node.has(1) else parts
    (total,) = node.numbers(6, "the number of keys")
    is_later, count = q.literal(numbers(_later, total, steps, shape=())), q.literal(numbers(_same, steps, shape=()))
    before = (ops.reshape(ops.cast(node.value(5).blob(), "int64"), (batch, 1)) + 1 - count) * is_later
    place = before + line(before, 1, (1, steps))
    q, k, v = (ops.reshape(x, (batch, steps, n, width)) for x, n in zip(parts, (heads, served, served), strict=True))
    if node.attribute("do_rotary", 0):
        at = node.value(9).blob() if node.has(9) else place
        cos, sin = (ops.expand_dims(ops.take(node.value(i).blob(), at), -2) for i in (7, 8))
        q, k = (_turned(x, cos, sin, node.attribute("rotary_interleaved", 0)) for x in (q, k))
    kept = [node.value(i).blob() if node.has(i) else None for i in (3, 4)]
    held = 0 if kept[0] is None else kept[0].shape[2]
    room = maximum(held, total)
    keys = line(before, 1, (1, room))
    new = keys - before
    source = ops.where(new < 0, keys, ops.minimum(new, count) + q.literal(numbers(_same, held, shape=())))
    present = []
    for old, x in zip(kept, (k, v), strict=True):
        nothing = ops.fill(node.graph, 0.0, (batch, served, 1, width), x.dtype)
        joined = ops.concat([*([] if old is None else [old]), ops.transpose(x, (0, 2, 1, 3)), nothing], axis=2)
        length = held + steps + 1
        first = q.literal(numbers(_firsts, batch * served, length, shape=(batch * served,)))
        rows = ops.reshape(first, (batch, served, 1)) + ops.expand_dims(source, 1)
        present.append(ops.take(ops.reshape(joined, (batch * served * length, width)), rows))
    seen = ops.expand_dims(keys, 1) <= ops.expand_dims(place, -1)
    if (window := node.attribute("local_window_size", -1)) > 0:
        seen = ops.logical_and(seen, ops.expand_dims(keys, 1) > ops.expand_dims(place, -1) - window)
    scale, mask = node.attribute("scale") or None, ops.expand_dims(seen, 1)
    y = ops.attention(ops.transpose(q, (0, 2, 1, 3)), present[0], present[1], mask, scale=scale)
    y = ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (batch, steps, heads * width))
    return [node.usual(each) for each in (y, *present)]


@savable
def _same(length: int) -> Array:
    return np.asarray(length)


@savable
def _later(total: int, steps: int) -> Array:
    return np.asarray(int(total > steps))


@savable
def _firsts(count: int, length: int) -> Array:
    return np.arange(count) * length


@lowers(f"{_MS}Attention", limits="past and present, masks of other than two axes")
def _attention(node: Node) -> Value:
    heads = node.attribute("num_heads")
    if any(node.has(i) for i in (4, 5, 6)) or node.attribute("qkv_hidden_sizes") or node.wants(1):
        raise Refused("past, present, attention_bias and qkv_hidden_sizes are not supported")
    x = ops.matmul(node.x.blob(), node.value(1).blob())
    x = x + node.value(2).blob() if node.has(2) else x
    q, k, v = ops.split(x, 3, axis=-1)
    mask = None
    if node.has(3):
        if node.value(3).rank != 2:
            raise Refused("masks of other than two axes are not supported")
        seen = node.value(3).blob()
        mask = ops.cast(ops.reshape(seen, (seen.shape[0], 1, 1, seen.shape[1])), "bool")
    causal, scale = bool(node.attribute("unidirectional", 0)), node.attribute("scale") or None
    return node.usual(ops.attention(q, k, v, mask, causal=causal, scale=scale, heads=heads))
