"""Operators that read images at places which depend on data, and those that put windows together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.convolution import image, per_axis
from actorflow.onnx.operators.elementwise import as_type
from actorflow.onnx.refusal import Refused
from actorflow.onnx.regions import RoiAlign
from actorflow.onnx.table import Node, lowers
from actorflow.onnx.values import Value, channels_last
from actorflow.spec import Length

_CUBIC = -0.75


def sampled(images: Any, places: Sequence[Any], mode: str, border: str, ends: Sequence[tuple[float, float]]) -> Any:
    """Images at places between their elements.

    Args:
        images: Shape (batch, *size, channels).
        places: For each spatial axis, where in it: (batch, points).
        mode: "nearest", "linear" or "cubic".
        border: Values outside the image: "zeros", "border" or "reflection".
        ends: For each spatial axis, where reflection turns round.
    Returns:
        Shape (batch, points, channels).
    """
    batch, *size, channels = images.shape
    flat = ops.reshape(images, (batch, math.prod(size), channels))
    taps = []
    for place, n, end in zip(places, size, ends, strict=True):
        place = ops.round(place) if mode == "nearest" else place
        if mode != "cubic":  # there the neighbours are brought inside, and not the place
            if border == "border":
                place = ops.clip(place, 0.0, float(n - 1))
            elif border == "reflection":
                place = _reflected(place, *end)
        taps.append([_tap(index, weight, n, border, end) for index, weight in _near(place, mode)])
    total = None
    for chosen in itertools.product(*taps):
        index: Any = 0
        for (along, _), n in zip(chosen, size, strict=True):
            index = index * n + ops.cast(along, "int64")
        weight = reduce(ops.multiply, [each for _, each in chosen])
        values = ops.gather_nd(flat, ops.expand_dims(index, -1), batch_dims=1)
        part = values * ops.expand_dims(weight, -1)
        total = part if total is None else total + part
    return total


def _near(place: Any, mode: str) -> list[tuple[Any, Any]]:
    """The elements that count along an axis, by their places, and their weights."""
    if mode == "nearest":
        return [(place, place.constant_like(1.0, place.shape))]
    first = ops.floor(place)
    t = place - first
    if mode == "linear":
        return [(first, 1.0 - t), (first + 1.0, t)]
    k = _CUBIC

    def inner(d: Any) -> Any:
        return ((k + 2) * d - (k + 3)) * d * d + 1.0

    def outer(d: Any) -> Any:
        return ((k * d - 5 * k) * d + 8 * k) * d - 4 * k

    weights = [outer(t + 1.0), inner(t), inner(1.0 - t), outer(2.0 - t)]
    return [(first + float(i - 1), weight) for i, weight in enumerate(weights)]


def _tap(index: Any, weight: Any, n: int, border: str, end: tuple[float, float]) -> tuple[Any, Any]:
    """An element inside of the axis, and its weight, which is 0 of zeros outside."""
    if border == "zeros":
        inside = ops.logical_and(index >= 0.0, index <= float(n - 1))
        weight = ops.where(inside, weight, 0.0)
    elif border == "reflection":
        index = ops.trunc(_reflected(index, *end))
    return ops.clip(index, 0.0, float(n - 1)), weight


def _reflected(place: Any, low: float, high: float) -> Any:
    """Places mirrored at both ends until they are inside."""
    span = high - low
    if span <= 0:
        return place * 0.0 + low
    away = ops.remainder(place - low, 2 * span)
    return ops.minimum(away, 2 * span - away) + low


@lowers("GridSample", limits="images of an open size")
def _grid_sample(node: Node) -> Value:
    x, order = image(node)
    grid = node.value(1).blob()
    size = _known(x)
    aligned = bool(node.attribute("align_corners", 0))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(node.attribute("mode", "linear"), node.attribute("mode"))
    batch, *out, axes = grid.shape
    points = math.prod(out)
    flat = ops.reshape(grid, (batch, points, axes))
    flat = ops.where(ops.isfinite(flat), flat, -1.0)  # as in ONNX Runtime, and in PyTorch's words
    places = []
    for i, n in enumerate(size):
        own = ops.slice(flat, (slice(None), slice(None), axes - 1 - i))
        places.append((own + 1.0) * ((n - 1) / 2) if aligned else (own + 1.0) * (n / 2) - 0.5)
    ends = [(0.0, n - 1.0) if aligned else (-0.5, n - 0.5) for n in size]
    found = sampled(x.blob(order), places, mode or "linear", node.attribute("padding_mode", "zeros"), ends)
    return node.ordered(channels_last(x.rank), ops.reshape(found, (batch, *out, x.shape[1])))


def _known(x: Value) -> tuple[int, ...]:
    size = x.shape[2:]
    if any(isinstance(n, Length) for n in size):
        raise Refused(f"the size of the images must be known, got {x.spec}")
    return size


@lowers("DeformConv", limits="images of an open size; other than two spatial axes")
def _deform_conv(node: Node) -> Value:
    x, order = image(node)
    weight, offset = node.value(1), node.value(2)
    if x.rank != 4:
        raise Refused(f"images have two spatial axes, got {x.spec}")
    groups, parts = node.attribute("group", 1), node.attribute("offset_group", 1)
    kernel, out = weight.shape[2:], offset.shape[2:]
    stride, dilation = per_axis(node, "strides", 2), per_axis(node, "dilations", 2)
    pads = node.attribute("pads") or [0] * 4
    batch, channels, *_ = x.shape
    _known(x)
    taps, points = math.prod(kernel), math.prod(out)
    # Where each element of a kernel looks without an offset: (taps, points) for each axis.
    spend(2 * parts, taps, points)
    at_kernel, at_out = np.indices(kernel).reshape(2, -1, 1), np.indices(out).reshape(2, 1, -1)
    base = [at_kernel[i] * dilation[i] + at_out[i] * stride[i] - pads[i] for i in range(2)]
    moved = ops.reshape(offset.blob(), (batch, parts, taps, 2, points))
    masks = None if not node.has(4) else ops.reshape(node.value(4).blob(), (batch, parts, taps, points))
    images, found = x.blob(order), []
    for part in range(parts):
        places = []
        for i in range(2):
            own = ops.slice(moved, (slice(None), part, slice(None), i)) + constant(node.graph, base[i].astype(x.dtype))
            places.append(ops.reshape(own, (batch, taps * points)))
        width = channels // parts
        some = ops.slice(images, (..., slice(part * width, (part + 1) * width)))
        values = ops.reshape(sampled(some, places, "linear", "zeros", [(0, 0)] * 2), (batch, taps, points, width))
        if masks is not None:
            values = values * ops.expand_dims(ops.slice(masks, (slice(None), part)), -1)
        found.append(values)
    columns = ops.concat(found, axis=-1) if parts > 1 else found[0]  # (batch, taps, points, channels)
    weights = weight.blob((2, 3, 1, 0))  # (*kernel, channels / groups, out)
    each_in, each_out = channels // groups, weight.shape[0] // groups
    results = []
    for group in range(groups):
        own = ops.slice(columns, (..., slice(group * each_in, (group + 1) * each_in)))
        rows = ops.reshape(ops.transpose(own, (0, 2, 1, 3)), (batch, points, taps * each_in))
        part_of = ops.slice(weights, (..., slice(group * each_out, (group + 1) * each_out)))
        results.append(ops.matmul(rows, ops.reshape(part_of, (taps * each_in, each_out))))
    y = ops.concat(results, axis=-1) if groups > 1 else results[0]
    y = ops.bias(y, node.value(3).blob()) if node.has(3) else y
    return node.ordered(order, ops.reshape(y, (batch, *out, weight.shape[0])))


@lowers("RoiAlign")
def _roi_align(node: Node) -> Value:
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    operation = RoiAlign(
        (node.attribute("output_height", 1), node.attribute("output_width", 1)),
        node.attribute("mode", "avg"),
        node.attribute("sampling_ratio", 0),
        node.attribute("spatial_scale", 1.0),
        node.attribute("coordinate_transformation_mode", default) == "half_pixel",
    )
    return node.usual(node.graph.apply(operation, *[node.value(i).blob() for i in range(3)]))


@lowers("Col2Im")
def _col2im(node: Node) -> Value:
    x = node.x
    size, kernel = node.numbers(1, "image_shape"), node.numbers(2, "block_shape")
    rank, taps = len(size), math.prod(kernel)
    batch, rows, _ = x.shape
    channels = rows // taps
    stride, dilation = per_axis(node, "strides", rank), per_axis(node, "dilations", rank)
    pads = node.attribute("pads") or [0] * (2 * rank)
    out = [
        (n + pads[i] + pads[i + rank] - dilation[i] * (k - 1) - 1) // stride[i] + 1
        for i, (n, k) in enumerate(zip(size, kernel, strict=True))
    ]
    # Each column goes to its place in the image with its border, of which there is one for each channel.
    whole = [n + pads[i] + pads[i + rank] for i, n in enumerate(size)]
    spend(rank, taps, *out)
    at_kernel, at_out = np.indices(kernel).reshape(rank, -1, 1), np.indices(out).reshape(rank, 1, -1)
    seen = [k * dilation[i] + o * stride[i] for i, (k, o) in enumerate(zip(at_kernel, at_out, strict=True))]
    places = np.ravel_multi_index(tuple(seen), whole)
    flat = ops.reshape(x.blob(), (batch * channels, taps * math.prod(out)))
    sums = ops.take_down(flat, constant(node.graph, places.reshape(-1)), math.prod(whole), axis=1)
    images = ops.reshape(sums, (batch, channels, *whole))
    inside = tuple([slice(pads[i], pads[i] + n) for i, n in enumerate(size)])
    return node.usual(ops.slice(images, (slice(None), slice(None), *inside)))


@lowers("MaxUnpool")
def _max_unpool(node: Node) -> Value:
    x, indices = node.x, node.value(1)
    rank = x.rank - 2
    kernel, stride = node.attribute("kernel_shape"), per_axis(node, "strides", rank)
    pads = node.attribute("pads") or [0] * (2 * rank)
    batch, channels, *size = x.shape
    own = [(n - 1) * stride[i] - pads[i] - pads[i + rank] + kernel[i] for i, n in enumerate(size)]
    count = batch * channels * math.prod(own)
    zeros = ops.fill(node.graph, 0, (count,), x.dtype)
    flat = (batch * channels * math.prod(size),)
    found = ops.scatter(
        zeros, as_type(ops.reshape(indices.blob(), flat), np.dtype(np.int64)), ops.reshape(x.blob(), flat)
    )
    y = ops.reshape(found, (batch, channels, *own))
    if node.has(2):
        wanted = node.numbers(2, "output_shape")
        y = ops.pad(y, [(0, n - m) for n, m in zip(wanted, y.shape, strict=True)])
    return node.usual(y)
