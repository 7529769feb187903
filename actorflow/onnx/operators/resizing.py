"""Images of another size."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from actorflow import ops
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.elementwise import as_type, mapped
from actorflow.onnx.refusal import Refused
from actorflow.onnx.resizing import matrix, plan
from actorflow.onnx.table import Node, lowers, within
from actorflow.onnx.values import Value
from actorflow.ops.nn.resize import Coordinates, Resize
from actorflow.spec import Length

_MODES: dict[str, Any] = {"linear": "linear", "bilinear": "linear", "cubic": "cubic", "nearest": "nearest"}


@lowers("Resize", "Upsample", limits="of open lengths: antialias, exclude_outside, cropping")
def _resize(node: Node) -> Value:
    x = node.x
    if node.operator == "Upsample" and node.opset < 9:
        return _usual(node, x, None, list(node.attribute("scales")))
    at_scales, at_sizes = (2, 3) if node.operator == "Resize" and node.opset >= 11 else (1, -1)
    sizes = scales = None
    if at_sizes > 0 and node.has(at_sizes) and node.value(at_sizes).spec.size:
        sizes = node.numbers(at_sizes, "sizes")
    else:
        scales = node.array(at_scales, "scales").reshape(-1).astype(np.float64).tolist()
    if node.attribute("mode", "nearest") not in _MODES:
        raise Refused(f"mode {node.attribute('mode')!r} is not known")
    settings = node.attributes
    unusual = (
        settings.get("coordinate_transformation_mode", "half_pixel") not in get_args(Coordinates)
        or settings.get("antialias", 0)
        or settings.get("exclude_outside", 0)
        or settings.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    )
    if not unusual:
        return _usual(node, x, sizes, scales)
    if any(isinstance(n, Length) for n in (*x.shape, *(sizes or ()))):
        raise Refused("this mode is computed where all lengths are known")
    roi = None
    if node.has(1) and settings.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        roi = node.array(1, "roi")
    return _by_matrices(node, x, roi, scales, sizes)


def _usual(node: Node, x: Value, sizes: list[Any] | None, scales: list[Any] | None) -> Value:
    """By the operation for images."""
    coordinates: Any
    rounding: Any
    coordinates, rounding = "asymmetric", "floor"
    if node.operator == "Resize" and node.opset >= 11:
        coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
        rounding = node.attribute("nearest_mode", "round_prefer_floor")
    mode, cubic = _MODES[node.attribute("mode", "nearest")], node.attribute("cubic_coeff_a", -0.75)
    dtype = x.dtype
    if mode != "nearest" and dtype.kind in "iu":  # cut off to integers afterwards, as ONNX Runtime does
        x = mapped(node, lambda x: ops.cast(x, "float32" if dtype.itemsize < 4 else "float64"), x)
    given = node.attribute("axes")
    axes = list(range(x.rank)) if given is None else [within(axis, x.rank) for axis in given]
    order, (blob,) = node.aligned(x)
    for i, axis in enumerate(axes):
        n = x.shape[axis]
        size, scale = (sizes[i], None) if sizes is not None else _scaled(n, scales[i] if scales else 1.0)
        if (isinstance(n, Length) == isinstance(size, Length) and size == n) and scale in (None, 1):
            continue
        step = Resize(order.index(axis), size, mode, coordinates, rounding, cubic, scale)
        blob = node.graph.apply(step, blob)
    if blob.dtype != dtype:
        info = np.iinfo(dtype)
        blob = as_type(ops.clip(blob, float(info.min), float(info.max)), dtype)
    return node.ordered(order, blob)


def _scaled(length: Any, scale: float) -> tuple[Any, float]:
    """The new length of an axis, and the scale that positions follow from."""
    if not isinstance(length, Length):
        return int(np.floor(length * scale)), scale
    over, under = float(scale).as_integer_ratio()
    if under > 1 << 20:
        raise Refused(f"an open axis can be scaled by halves, quarters and so on, not by {scale}")
    return length * over // under, scale


def _by_matrices(node: Node, x: Value, roi: Any, scales: Any, sizes: Any) -> Value:
    """By products with the weights along each axis."""
    settings, order = node.attributes, x.orders[0] if x.orders else tuple(range(x.rank))
    blob, beyond = x.blob(order), np.zeros((1,) * x.rank, bool)
    wanted = plan(settings, x.shape, roi, scales, sizes)
    spend(*[how.size for how in wanted], size=2)
    for how in wanted:
        length = x.shape[how.axis]
        weights, outside = matrix(settings, how, length)
        beyond = beyond | outside.reshape([-1 if i == how.axis else 1 for i in range(x.rank)])
        if how.size == length and np.array_equal(weights, np.eye(length)):
            continue
        axis = order.index(how.axis)
        if settings.get("mode", "nearest") == "nearest":
            blob = ops.take(blob, constant(node.graph, weights.argmax(axis=1)), axis)
        else:
            along = constant(node.graph, weights.astype(x.dtype))
            blob = ops.moveaxis(ops.tensordot(along, blob, axes=((1,), (axis,))), 0, axis)
    if beyond.any() and settings.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        mask = constant(node.graph, np.broadcast_to(beyond, beyond.shape).transpose(order))
        blob = ops.where(mask, settings.get("extrapolation_value", 0.0), blob)
    return node.ordered(order, blob)
