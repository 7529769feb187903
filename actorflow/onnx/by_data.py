"""Operators whose parameters depend on data: computed by ONNX's evaluator.

Blobs have their shapes before a run. A tensor that says axes, a shape or a size is nearly always constant, or follows
from lengths, and the operator becomes ordinary operations. Where it is not, but the file declares the shape of the
result, that is what the blob has, and each run checks that the data says the same. Where the file does not, the blob is
one of Python objects, which are arrays; what reads it is computed here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from actorflow import ops
from actorflow.errors import ShapeError
from actorflow.onnx.resizing import resized
from actorflow.onnx.values import Array, Value
from actorflow.ops.operation import Operation, savable
from actorflow.ops.registry import kernel
from actorflow.spec import TensorSpec

#: Attributes and the opset.
Settings = Mapping[str, Any]
_Function = Callable[..., Any]
#: Functions for operators that ONNX's evaluator is slow or wrong for.
FUNCTIONS: dict[str, _Function] = {}
#: The type of what only a run knows more of: a tensor, a sequence (a list of tensors), or None.
OBJECT = TensorSpec((), np.dtype(object))
#: A place from which on a part goes to the end of an axis.
FAR = 2**31 - 1
#: Operators whose outputs have the shape of the first input, whatever their parameters are.
SAME = {"CumSum", "CumProd", "Dropout"}
#: Operators that give one number, whatever they are given.
SCALAR = {"SequenceLength", "OptionalHasElement"}
#: Operators that are not computed here unless the file declares the shape of the result: others are faster by far.
SLOW = {
    "AveragePool", "Col2Im", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "GRU", "GridSample", "LRN", "LSTM",
    "LpPool", "MaxPool", "MaxUnpool", "QLinearConv", "RNN", "RoiAlign",
}  # fmt: skip


@savable
@dataclass(frozen=True)
class ByData(Operation):
    """An operator with parameters that depend on data.

    Attributes:
        operator: Its name.
        domain: Its domain.
        settings: Its attributes, and the opset.
        given: Which of its inputs are given.
        specs: Types of its outputs, as the file declares them; those of others are Python objects.
    """

    arguments = ("*inputs",)
    differentiable = False

    operator: str
    domain: str
    settings: tuple[tuple[str, Any], ...]
    given: tuple[bool, ...]
    specs: tuple[TensorSpec, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return self.specs


@kernel(ByData, returns=True)
def _compute(operation: ByData, inputs: Sequence[Any], _outputs: None) -> list[Any]:
    function, given = FUNCTIONS.get(operation.operator), operation.given
    if function is None:
        evaluator = _evaluator(operation.operator, operation.domain, operation.settings, given, len(operation.specs))
        found = evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))
    else:
        left = iter(inputs)  # of an operator that is given nothing, a number that it does not read
        settings = {**dict(operation.settings), "operator": operation.operator}
        found = [function(settings, *[next(left) if is_given else None for is_given in given])]
    arrays = [each for each in inputs if isinstance(each, np.ndarray)]
    outputs = []
    for value, spec in zip(found, operation.specs, strict=False):
        if spec.is_object:
            outputs.append(_kept(value, arrays))
            continue
        output = np.asarray(value)
        if output.shape != spec.shape:
            raise ShapeError(f"{operation.operator}: the file declares {spec}, the data gives shape {output.shape}")
        outputs.append(output.astype(spec.dtype, copy=False))
    return outputs


def as_object(value: Value) -> Any:
    """The blob of a value as a Python object, as where only a run knows its lengths."""
    made = ByData("Identity", "", (("opset", 16),), (True,), (OBJECT,))
    return value.blob() if value.spec.is_object else value.graph.apply(made, value.blob())


def number(value: Value, dtype: str) -> Any:
    """The blob of a value of one element, without axes."""
    if not value.spec.is_object:
        return ops.reshape(value.blob(), ())
    spec = TensorSpec((), np.dtype(dtype))
    return value.graph.apply(ByData("Squeeze", "", (("opset", 16),), (True,), (spec,)), value.blob())


def _kept(value: Any, arrays: Sequence[Array]) -> Any:
    """A tensor, a sequence, or None, as what may be kept: the buffers of these arrays have other arrays later.

    Sequences share their tensors, which are therefore read-only.
    """
    if value is None:
        return None
    if isinstance(value, list):
        found = [
            _kept(each.copy() if each.flags.writeable or not each.flags.owndata else each, arrays) for each in value
        ]
        for each in found:
            each.flags.writeable = False
        return found
    array = np.asarray(value)
    return array.copy() if any(np.may_share_memory(array, each) for each in arrays) else array


def by_data(
    operator: str, domain: str, attributes: Settings, opset: int, given: tuple[bool, ...], specs: Sequence[TensorSpec]
) -> ByData | None:
    """The operation of a node, of outputs of these types; None if nothing computes it."""
    if (operator in SLOW and any(spec.is_object for spec in specs)) or attributes.get("training_mode"):
        return None
    plain = {name: tuple(each) if isinstance(each, list) else each for name, each in attributes.items()}
    plain.pop("type", None)  # that of an optional value
    value = plain.get("value")
    if isinstance(value, np.ndarray):
        del plain["value"]
        plain.update(number=value.reshape(-1)[0].item(), kind=value.dtype.str)
    if any(each is None or isinstance(each, np.ndarray) for each in plain.values()):
        return None
    settings = (*sorted(plain.items()), ("opset", opset))
    if operator not in FUNCTIONS:
        try:
            _evaluator(operator, domain, settings, given, len(specs))
        except Exception:  # noqa: BLE001  whatever it raises, it does not compute the node
            return None
    return ByData(operator, domain, settings, given, tuple(specs))


def _function(*operators: str) -> Callable[[_Function], _Function]:
    def entered(function: _Function) -> _Function:
        for operator in operators:
            FUNCTIONS[operator] = function
        return function

    return entered


@lru_cache(256)
def _evaluator(
    operator: str, domain: str, settings: tuple[tuple[str, Any], ...], given: tuple[bool, ...], outputs: int
) -> Any:
    """ONNX's own evaluator of one node."""
    attributes = dict(settings)
    opset, number, kind = (attributes.pop(name, None) for name in ("opset", "number", "kind"))
    if number is not None:
        attributes["value"] = numpy_helper.from_array(np.array([number], kind))
    names = [f"x{i}" if is_given else "" for i, is_given in enumerate(given)]
    node = helper.make_node(operator, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    ends: Any = [
        [helper.make_value_info(name, onnx.TypeProto()) for name in each if name] for each in (names, node.output)
    ]
    graph = helper.make_graph([node], operator, *ends)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset)]))


def _sequence(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a sequence, a list of arrays, got {type(value).__name__}")
    return [*map(np.asarray, value)]


def _place(number: Array, length: int, behind: int = 0) -> int:
    """A place in a sequence, or so many behind it, counted from the front."""
    at = int(number.reshape(()))
    if not -length <= at < length + behind:
        raise IndexError(f"a sequence of {length} tensors has no place {at}")
    return at + length if at < 0 else at


@_function("SequenceInsert")
def _with_part(settings: Settings, sequence: Any, part: Array, at: Array | None = None) -> list[Array]:
    made = _sequence(sequence)
    made.insert(len(made) if at is None else _place(at, len(made), 1), part)
    return made


@_function("SequenceErase", "SequenceAt")
def _with_place(settings: Settings, sequence: Any, at: Array | None = None) -> Any:
    made = _sequence(sequence)
    part = made.pop(len(made) - 1 if at is None else _place(at, len(made)))
    return part.copy() if settings["operator"] == "SequenceAt" else made


@_function("SplitToSequence")
def _parts(settings: Settings, x: Array, split: Array | None = None) -> list[Array]:
    """Parts of these sizes, or of one size, of which the last one may be smaller."""
    axis = settings.get("axis", 0)
    length = x.shape[axis]
    sizes: Any = np.array(1) if split is None else split
    if (sizes.size and sizes.min() < 1 - sizes.ndim) or (sizes.ndim and sizes.sum() != length):
        raise ValueError(f"an axis of length {length} cannot be split into parts of size {sizes.tolist()}")
    ends = sizes.cumsum() if sizes.ndim else np.arange(sizes, length + sizes, sizes)
    found = np.split(x, ends, axis)[:-1]
    return found if split is not None or settings.get("keepdims", 1) else [each.squeeze(axis) for each in found]


@_function("Identity", "Optional", "OptionalGetElement")
def _same(settings: Settings, value: Any = None) -> Any:
    if value is None and settings["operator"] == "OptionalGetElement":
        raise ValueError("the optional value is left out")
    return _sequence(value) if isinstance(value, list | tuple) else value


FUNCTIONS |= {
    **dict.fromkeys(("SequenceEmpty", "SequenceConstruct"), lambda _, *parts: [*parts]),
    "SequenceLength": lambda _, sequence: len(_sequence(sequence)),
    "OptionalHasElement": lambda _, value=None: value is not None,
}


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


def part(start: int, end: int, step: int, length: int) -> slice:
    """A slice as Python's: places beyond an end of the axis are the one at that end."""
    if step > 0:
        return slice(*slice(start, end, step).indices(length))
    begin, stop = (place + length if place < 0 else place for place in (start, end))
    return slice(min(max(begin, 0), length - 1), None if stop < 0 or stop in (FAR, 2**63 - 1) else stop, step)


@_function("Slice")
def _slice(settings: Settings, x: Array, starts: Array, ends: Array, axes: Any = None, steps: Any = None) -> Array:
    key = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis, step = i if axes is None else int(axes[i]), 1 if steps is None else int(steps[i])
        key[axis] = part(start, end, step, x.shape[axis])
    return x[tuple(key)]


@_function("Pad")
def _pad(settings: Settings, x: Array, widths: Any = None, value: Any = None, axes: Any = None) -> Array:
    """Cut by the widths below zero, then pad by the others."""
    number = settings.get("value", 0) if value is None else value.reshape(())
    both = np.zeros((x.ndim, 2), np.int64)
    both[slice(None) if axes is None else axes] = np.reshape(settings.get("pads", widths), (2, -1)).T
    cut = [slice(max(-a, 0), max(n + min(b, 0), 0)) for (a, b), n in zip(both.tolist(), x.shape, strict=True)]
    mode: Any = settings.get("mode", "constant")
    more = {"constant_values": number} if mode == "constant" else {}
    return np.pad(x[tuple(cut)], np.maximum(both, 0), mode, **more)


@_function("Flatten")
def _flatten(settings: Settings, x: Array) -> Array:
    axis = settings.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@_function("OneHot")
def _one_hot(settings: Settings, indices: Array, depth: Array, values: Array) -> Array:
    """The second value where an index says, from the end if it is below zero, the first one elsewhere."""
    count, axis = int(depth.reshape(())), settings.get("axis", -1)
    at = np.expand_dims(indices.astype(np.int64), axis)
    places = np.arange(count).reshape([-1 if i == axis % at.ndim else 1 for i in range(at.ndim)])
    found: Array = np.where((at == places) | (at + count == places), values[1], values[0])
    return found


@_function("Softmax", "LogSoftmax", "Hardmax")
def _shared_out(settings: Settings, x: Array) -> Array:
    """Along an axis; before opset 13, along all axes from one on as one."""
    if not x.size:
        return x
    is_old = settings["opset"] < 13
    rows = _flatten(settings, x) if is_old else x
    how = (("axis", 1 if is_old else settings.get("axis", -1)), ("opset", 13))
    found: Array = _evaluator(settings["operator"], "", how, (True,), 1).run(None, {"x0": rows})[0]
    return found.reshape(x.shape)


@_function("BatchNormalization")
def _batch_norm(settings: Settings, x: Array, *given: Array) -> Array:
    """Of inference, in all opsets."""
    scale, shift, mean, variance = (each.reshape(-1, *[1] * (x.ndim - 2)) for each in given)
    y: Any = scale * (x - mean) / np.sqrt(variance + settings.get("epsilon", 1e-5)) + shift
    found: Array = y.astype(x.dtype, copy=False)
    return found


@_function("GatherElements")
def _gather_elements(settings: Settings, x: Array, indices: Array) -> Array:
    """Elements along an axis, of the first places along the others."""
    axis = settings.get("axis", 0) % x.ndim
    part = x[tuple([slice(None if i == axis else n) for i, n in enumerate(indices.shape)])]
    found: Array = np.take_along_axis(part, indices, axis)
    return found
