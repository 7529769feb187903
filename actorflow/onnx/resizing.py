"""ONNX's Resize: the weights of elements along an axis, in all its modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from actorflow.onnx import constants
from actorflow.onnx.values import Array


class Along(NamedTuple):
    """How one axis is resized.

    Attributes:
        axis: The axis, in the order of the file.
        size: Its new length.
        scale: The new length over the old one, by which positions are computed.
        part: The part of the axis that is resized, as shares of it.
    """

    axis: int
    size: int
    scale: float
    part: tuple[float, float] = (0.0, 1.0)


def plan(settings: Mapping[str, Any], shape: tuple[int, ...], roi: Any, scales: Any, sizes: Any) -> list[Along]:
    """Work along each axis."""
    rank = len(shape)
    given = settings.get("axes")
    axes = list(range(rank)) if given is None else [axis % rank for axis in given]
    parts = [(0.0, 1.0)] * len(axes)
    if settings.get("coordinate_transformation_mode") == "tf_crop_and_resize" and roi is not None and len(roi):
        ends = [float(n) for n in roi]
        parts = list(zip(ends[: len(axes)], ends[len(axes) :], strict=True))
    if sizes is None or not len(sizes):
        factors = [float(n) for n in scales]
        lengths = [int(np.floor(shape[axis] * (b - a) * f)) if (a, b) != (0.0, 1.0) else int(np.floor(shape[axis] * f))
                   for axis, f, (a, b) in zip(axes, factors, parts, strict=True)]  # fmt: skip
    else:
        lengths = [int(n) for n in sizes]
        factors = [n / shape[axis] for n, axis in zip(lengths, axes, strict=True)]
        policy = settings.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            lengths = [int(np.floor(shape[axis] * factor + 0.5)) for axis in axes]
    return [Along(*each) for each in zip(axes, lengths, factors, parts, strict=True)]


def positions(settings: Mapping[str, Any], how: Along, length: int) -> Array:
    """Where the elements of the result lie in the axis."""
    mode = settings.get("coordinate_transformation_mode", "half_pixel")
    i, n, scale = np.arange(how.size, dtype=np.float64), how.size, how.scale
    if mode == "half_pixel":
        return (i + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if n > 1 else np.zeros(n)
    if mode == "align_corners":
        # The corners are those of the result as it is: ONNX's text has length * scale, which no runtime does.
        return i * (length - 1) / (n - 1) if n > 1 else np.zeros(n)
    if mode == "asymmetric":
        return i / scale
    if mode == "half_pixel_symmetric":
        exact = length * scale
        offset = length / 2 * (1 - n / exact)
        return offset + (i + 0.5) / scale - 0.5
    if mode == "tf_crop_and_resize":
        start, end = how.part
        if n > 1:
            return start * (length - 1) + i * (end - start) * (length - 1) / (n - 1)
        return np.full(n, 0.5 * (start + end) * (length - 1))
    raise ValueError(f"coordinate_transformation_mode {mode!r} is not known")


def _nearest(rule: str, place: Array) -> Array:
    if rule == "floor":
        return np.floor(place)
    if rule == "ceil":
        return np.ceil(place)
    return np.ceil(place - 0.5) if rule == "round_prefer_floor" else np.floor(place + 0.5)


def _kernel(mode: str, distance: Array, k: float) -> Array:
    d = np.abs(distance)
    if mode == "linear":
        return np.asarray(np.maximum(1 - d, 0))
    near: Array = ((k + 2) * d - (k + 3)) * d * d + 1
    far = ((k * d - 5 * k) * d + 8 * k) * d - 4 * k
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def matrix(settings: Mapping[str, Any], how: Along, length: int) -> tuple[Array, Array]:
    """The weights of the axis' elements in those of the result, and which of these lie outside of the axis."""
    mode = settings.get("mode", "nearest")
    constants.spend(how.size, length)
    place = positions(settings, how, length)
    outside = (place < 0) | (place > length - 1)
    weights = np.zeros((how.size, length))
    rows = np.arange(how.size)[:, np.newaxis]
    if mode == "nearest":
        seen = _nearest(settings.get("nearest_mode", "round_prefer_floor"), place)
        weights[rows[:, 0], np.clip(seen, 0, length - 1).astype(int)] = 1
        return weights, outside
    kind, reach = ("cubic", 2) if mode == "cubic" else ("linear", 1)
    # Where the result is smaller, the kernel is as much wider: each element of the axis counts.
    stretch = min(how.scale, 1.0) if settings.get("antialias", 0) else 1.0
    reach = int(np.ceil(reach / stretch))
    constants.spend(how.size, 2 * reach, size=40)
    first = np.floor(place) - reach + 1
    seen = first[:, np.newaxis] + np.arange(2 * reach)
    share = _kernel(kind, (seen - place[:, np.newaxis]) * stretch, settings.get("cubic_coeff_a", -0.75))
    if settings.get("exclude_outside", 0):
        share = np.where((seen < 0) | (seen > length - 1), 0, share)
    if settings.get("exclude_outside", 0) or stretch != 1:
        share = share / share.sum(axis=1, keepdims=True)
    np.add.at(weights, (rows, np.clip(seen, 0, length - 1).astype(int)), share)
    return weights, outside


def resized(settings: Mapping[str, Any], x: Array, *given: Any) -> Array:
    """The array that Resize gives, of NumPy arrays."""
    is_resize = settings["operator"] == "Resize" and settings["opset"] >= 11
    if is_resize:
        roi, scales, sizes = [*given, None, None, None][:3]
    else:
        roi, scales, sizes = None, given[0], None
        settings = {**settings, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    found = x.astype(np.float64) if x.dtype.kind == "f" else x
    beyond = np.zeros((1,) * x.ndim, bool)
    for how in plan(settings, x.shape, roi, scales, sizes):
        length = x.shape[how.axis]
        weights, outside = matrix(settings, how, length)
        if how.size == length and np.array_equal(weights, np.eye(length)):
            continue
        if settings.get("mode", "nearest") == "nearest":
            found = np.take(found, weights.argmax(axis=1), how.axis)
        else:
            found = np.moveaxis(np.tensordot(weights, found, (1, how.axis)), 0, how.axis)
        beyond = beyond | outside.reshape([-1 if i == how.axis else 1 for i in range(x.ndim)])
    if settings.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        found = np.where(beyond, settings.get("extrapolation_value", 0.0), found)
    return found.astype(x.dtype)
