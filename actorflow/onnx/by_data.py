"""Operators whose parameters depend on data: computed with NumPy, where the file says what shape comes out.

Blobs have their shapes before a run. A tensor that says axes, a shape or a size is nearly always constant, or follows
from lengths, and the operator becomes ordinary operations. Where it is not, but the file declares the shape of the
result, that is what the blob has, and each run checks that the data says the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from actorflow.errors import ShapeError
from actorflow.onnx.resizing import resized
from actorflow.onnx.values import Array
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

#: Attributes and the opset.
Settings = Mapping[str, Any]
_Function = Callable[..., Any]
FUNCTIONS: dict[str, _Function] = {}
#: Operators whose result has the type of the first input, whatever their parameters are.
SAME = {"CumSum", "CumProd"}


@dataclass(frozen=True)
class ByData(Operation):
    """An operator with parameters that depend on data.

    Attributes:
        operator: Its name.
        settings: Its attributes, and the opset.
        given: Which of its inputs are given.
        specs: Types of its outputs, as the file declares them.
    """

    arguments = ("*inputs",)
    differentiable = False

    operator: str
    settings: tuple[tuple[str, Any], ...]
    given: tuple[bool, ...]
    specs: tuple[TensorSpec, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return self.specs

    def compute(self, *inputs: Any) -> Any:
        arrays = iter(inputs)
        found = FUNCTIONS[self.operator](
            dict(self.settings), *[next(arrays) if is_given else None for is_given in self.given]
        )
        outputs = [np.asarray(each) for each in (found if isinstance(found, list) else [found])][: len(self.specs)]
        for output, spec in zip(outputs, self.specs, strict=True):
            if output.shape != spec.shape:
                raise ShapeError(f"{self.operator}: the file declares {spec}, the data gives shape {output.shape}")
        typed = tuple([output.astype(spec.dtype, copy=False) for output, spec in zip(outputs, self.specs, strict=True)])
        return typed if len(typed) > 1 else typed[0]


def settings_of(attributes: Settings, opset: int) -> tuple[tuple[str, Any], ...]:
    """Attributes as they are kept in an operation."""
    plain = {name: tuple(each) if isinstance(each, list) else each for name, each in attributes.items()}
    plain = {name: each for name, each in plain.items() if not isinstance(each, np.ndarray)}
    return (*sorted(plain.items()), ("opset", opset))


def _function(*operators: str) -> Callable[[_Function], _Function]:
    def entered(function: _Function) -> _Function:
        for operator in operators:
            FUNCTIONS[operator] = function
        return function

    return entered


def _integers(given: Array | None) -> list[int] | None:
    return None if given is None else [int(n) for n in given.reshape(-1)]


@_function("Reshape")
def _reshape(settings: Settings, x: Array, shape: Array) -> Array:
    keeps = not settings.get("allowzero", 0)
    return x.reshape([x.shape[i] if keeps and n == 0 else n for i, n in enumerate(_integers(shape) or ())])


@_function("Expand")
def _expand(settings: Settings, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_integers(shape) or ())))


@_function("Tile")
def _tile(settings: Settings, x: Array, repeats: Array) -> Array:
    return np.tile(x, _integers(repeats) or [])


@_function("Squeeze")
def _squeeze(settings: Settings, x: Array, axes: Array) -> Array:
    return np.squeeze(x, tuple(_integers(axes) or ()))


@_function("Unsqueeze")
def _unsqueeze(settings: Settings, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(_integers(axes) or ()))


@_function("ConstantOfShape")
def _constant_of_shape(settings: Settings, shape: Array) -> Array:
    return np.full(_integers(shape) or (), settings.get("number", 0.0))


@_function("Range")
def _range(settings: Settings, start: Array, limit: Array, delta: Array) -> Array:
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    return np.asarray(start.reshape(()) + np.arange(count, dtype=start.dtype) * delta.reshape(()))


@_function("Slice")
def _slice(settings: Settings, x: Array, starts: Array, ends: Array, axes: Any = None, steps: Any = None) -> Array:
    key = [slice(None)] * x.ndim
    where = range(len(starts)) if axes is None else _integers(axes) or ()
    by = [1] * len(starts) if steps is None else _integers(steps) or ()
    for start, end, axis, step in zip(_integers(starts) or (), _integers(ends) or (), where, by, strict=True):
        if step < 0 and end < -x.shape[axis]:
            key[axis] = slice(start, None, step)
        else:
            key[axis] = slice(start, end, step)
    return x[tuple(key)]


@_function("Split")
def _split(settings: Settings, x: Array, lengths: Array) -> list[Array]:
    return list(np.split(x, np.cumsum(_integers(lengths) or [0])[:-1], axis=settings.get("axis", 0)))


@_function("Pad")
def _pad(settings: Settings, x: Array, pads: Array, value: Any = None, axes: Any = None) -> Array:
    widths, given = [(0, 0)] * x.ndim, _integers(pads) or []
    where = list(range(x.ndim)) if axes is None else _integers(axes) or []
    for i, axis in enumerate(where):
        widths[axis] = (given[i], given[i + len(where)])
    x = x[tuple([slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, x.shape, strict=True)])]
    added = [(max(a, 0), max(b, 0)) for a, b in widths]
    mode: Any = settings.get("mode", "constant")
    if mode == "constant":
        return np.pad(x, added, constant_values=0 if value is None else value.reshape(()))
    return np.pad(x, added, mode)


def _reduction(function: _Function) -> _Function:
    def reduced(settings: Settings, x: Array, axes: Any = None) -> Array:
        given = _integers(axes)
        if not given and settings.get("noop_with_empty_axes", 0):
            return np.asarray(function(x, ()))
        found = function(x, tuple(given) if given else tuple(range(x.ndim)))
        if settings.get("keepdims", 1):
            return np.asarray(found)
        return np.asarray(np.squeeze(found, tuple(given) if given else tuple(range(x.ndim))))

    return reduced


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    wide = x if x.dtype.kind == "f" else x.astype(np.float64)
    top = np.max(wide, axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.sum(np.exp(wide - top), axis=axes, keepdims=True)) + top)


def _log_sum(x: Array, axes: tuple[int, ...]) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(np.sum(x, axis=axes, keepdims=True)))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.mean(x, axis=axes, keepdims=True))


def _least(x: Array, is_max: bool) -> Any:
    if x.dtype.kind == "f":
        return -np.inf if is_max else np.inf
    if x.dtype.kind == "b":
        return not is_max
    return np.iinfo(x.dtype).min if is_max else np.iinfo(x.dtype).max


FUNCTIONS |= {
    name: _reduction(function)
    for name, function in {
        "ReduceSum": lambda x, axes: np.sum(x, axis=axes, keepdims=True),
        "ReduceMean": _mean,
        "ReduceProd": lambda x, axes: np.prod(x, axis=axes, keepdims=True),
        "ReduceMax": lambda x, axes: np.max(x, axis=axes, keepdims=True, initial=_least(x, True)),
        "ReduceMin": lambda x, axes: np.min(x, axis=axes, keepdims=True, initial=_least(x, False)),
        "ReduceL1": lambda x, axes: np.sum(np.abs(x), axis=axes, keepdims=True),
        "ReduceL2": lambda x, axes: np.sqrt(np.sum(np.square(x), axis=axes, keepdims=True)),
        "ReduceSumSquare": lambda x, axes: np.sum(np.square(x), axis=axes, keepdims=True),
        "ReduceLogSum": _log_sum,
        "ReduceLogSumExp": _log_sum_exp,
    }.items()
}


@_function("CumSum", "CumProd")
def _cumulative(settings: Settings, x: Array, axis: Array) -> Array:
    """Is entered for both; which one it is, is a setting."""
    along, is_sum = int(axis.reshape(())), settings["operator"] == "CumSum"
    x = np.flip(x, along) if settings.get("reverse", 0) else x
    found = (np.cumsum if is_sum else np.cumprod)(x, along, dtype=x.dtype)
    if settings.get("exclusive", 0):
        found = np.roll(found, 1, along)
        found[tuple([0 if i == along % x.ndim else slice(None) for i in range(x.ndim)])] = 0 if is_sum else 1
    return np.flip(found, along) if settings.get("reverse", 0) else found


@_function("TopK")
def _top_k(settings: Settings, x: Array, k: Array) -> list[Array]:
    axis = settings.get("axis", -1)
    order = np.argsort(_descending(x) if settings.get("largest", 1) else x, axis, kind="stable")
    places = np.take(order, np.arange(int(k.reshape(()))), axis)
    return [np.take_along_axis(x, places, axis), places]


def _descending(x: Array) -> Array:
    """Keys that sort in the reverse order, of equal elements the first one first."""
    return np.asarray(~x if x.dtype.kind in "iu" else -x)


@_function("OneHot")
def _one_hot(settings: Settings, indices: Array, depth: Array, values: Array) -> Array:
    count = int(depth.reshape(()))
    places = indices.astype(np.int64)
    places = np.where(places < 0, places + count, places)
    hot = np.where(places[..., np.newaxis] == np.arange(count), values[1], values[0])
    return np.moveaxis(hot, -1, settings.get("axis", -1))


@_function("NonZero")
def _nonzero(settings: Settings, x: Array) -> Array:
    return np.stack(np.nonzero(x)) if x.ndim else np.zeros((0, int(x.item() != 0)), np.int64)


@_function("Compress")
def _compress(settings: Settings, x: Array, condition: Array) -> Array:
    return np.asarray(np.compress(condition, x, settings.get("axis")))


@_function("Unique")
def _unique(settings: Settings, x: Array) -> list[Array]:
    axis = settings.get("axis")
    found, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not settings.get("sorted", 1):
        order = np.argsort(first, kind="stable")
        found = np.take(found, order, 0 if axis is None else axis)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        first, inverse, counts = first[order], back[inverse], counts[order]
    return [found, first, inverse, counts]


@_function("NonMaxSuppression")
def _non_max_suppression(
    settings: Settings, boxes: Array, scores: Array, most: Any = None, overlap: Any = None, least: Any = None
) -> Array:
    """The boxes that are kept, (image, class, box), best first: those that overlap a better one too much are not."""
    count = 0 if most is None else int(most.reshape(()))
    threshold = 0.0 if overlap is None else float(overlap.reshape(()))
    lowest = -np.inf if least is None else float(least.reshape(()))
    wide = boxes.astype(np.float64)
    if settings.get("center_point_box", 0):
        near, far = wide[..., :2] - wide[..., 2:] / 2, wide[..., :2] + wide[..., 2:] / 2
    else:
        near, far = np.minimum(wide[..., :2], wide[..., 2:]), np.maximum(wide[..., :2], wide[..., 2:])
    areas = np.prod(far - near, axis=-1)
    found: list[tuple[int, int, int]] = []
    for image, of_classes in enumerate(scores):
        for kind, of_boxes in enumerate(of_classes):
            left = np.argsort(-of_boxes, kind="stable")
            left = left[of_boxes[left] > lowest] if least is not None else left
            kept = 0
            while left.size and kept < count:
                best, left = left[0], left[1:]
                found.append((image, kind, int(best)))
                kept += 1
                sides = np.minimum(far[image, left], far[image, best]) - np.maximum(
                    near[image, left], near[image, best]
                )
                common = np.prod(np.maximum(sides, 0), axis=-1)
                union = areas[image, left] + areas[image, best] - common
                with np.errstate(divide="ignore", invalid="ignore"):
                    left = left[~(common / union > threshold)]
    return np.array(found, np.int64).reshape(-1, 3)


@_function("Resize", "Upsample")
def _resize(settings: Settings, x: Array, *given: Any) -> Array:
    return resized(settings, x, *given)
