"""Images of another size."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow import ops
from actorflow.onnx.table import Node, Refused, lowers, within
from actorflow.onnx.values import Value
from actorflow.ops.nn.resize import Resize
from actorflow.spec import Length

_COORDINATES = {
    "half_pixel": "half_pixel",
    "pytorch_half_pixel": "pytorch_half_pixel",
    "align_corners": "align_corners",
    "asymmetric": "asymmetric",
}


@lowers("Resize", "Upsample", limits="tf_crop_and_resize, half_pixel_symmetric, antialias, exclude_outside, mode cubic with a scale of data")
def _resize(node: Node) -> Value:
    x, mode = node.x, node.attribute("mode", "nearest")
    coordinates, rounding = "asymmetric", "floor"
    if node.operator == "Resize" and node.opset >= 11:
        coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
        rounding = node.attribute("nearest_mode", "round_prefer_floor")
        at_scales, at_sizes = 2, 3
    else:
        at_scales, at_sizes = 1, -1
    if coordinates not in _COORDINATES:
        raise Refused(f"coordinate_transformation_mode {coordinates!r} is not supported")
    if node.attribute("antialias", 0):
        raise Refused("antialias is not supported")
    if node.attribute("exclude_outside", 0):
        raise Refused("exclude_outside is not supported")
    axes = node.attribute("axes")
    axes = list(range(x.rank)) if axes is None else [within(axis, x.rank) for axis in axes]
    scales: list[Any] | None = None
    sizes: list[Any] | None = None
    if at_sizes > 0 and node.has(at_sizes) and node.value(at_sizes).spec.size:
        sizes = node.numbers(at_sizes, "sizes")
        policy = node.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            ratios = [n / x.shape[axis] for n, axis in zip(sizes, axes, strict=True)]
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            scales = [ratio] * len(axes)
            sizes = [int(np.floor(x.shape[axis] * ratio + 0.5)) for axis in axes]
    elif node.operator == "Upsample" and node.opset < 9:
        scales = list(node.attribute("scales"))
    else:
        scales = node.array(at_scales, "scales").reshape(-1).astype(np.float64).tolist()
    order, (blob,) = node.aligned(x)
    kind: Any = {"linear": "linear", "bilinear": "linear", "cubic": "cubic", "nearest": "nearest"}.get(mode)
    if kind is None:
        raise Refused(f"mode {mode!r} is not supported")
    steps = []
    for i, axis in enumerate(axes):
        n = x.shape[axis]
        size, scale = _new(n, None if sizes is None else sizes[i], None if scales is None else scales[i])
        if size == n and (scale is None or scale == 1):
            continue
        steps.append(
            Resize(
                order.index(axis), size, kind, _COORDINATES[coordinates], rounding, node.attribute("cubic_coeff_a", -0.75),
                scale,
            )
        )  # fmt: skip
    for step in steps:
        blob = node.graph.apply(step, blob)
    return node.ordered(order, blob)


def _new(length: Any, size: Any, scale: float | None) -> tuple[Any, float | None]:
    """The new length of an axis, and the scale that positions follow from."""
    if size is not None:
        return size, scale
    assert scale is not None
    if not isinstance(length, Length):
        return int(np.floor(length * scale)), scale
    over, under = float(scale).as_integer_ratio()
    if under > 1 << 20:
        raise Refused(f"an open axis can be scaled by halves, quarters and so on, not by {scale}")
    return length * over // under, scale
