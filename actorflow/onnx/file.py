"""Files of ONNX: reading, checking, and what their axes are."""

from __future__ import annotations

import math
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, checker, helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from actorflow.errors import GraphError
from actorflow.onnx.contents import Contents, contents_in, contents_of
from actorflow.onnx.functions import inlined
from actorflow.spec import MOST_AXES, Length, TensorSpec

#: Axes as users give them: by their names, or by inputs and positions.
Axes = Mapping[str, int | str | Mapping[int, int | str]]
_AXES = "{'height': 224, 'N': 'batch', 'images': {0: 'batch'}}"
#: What code raises that reads a file which is not as ONNX says: a name may be bytes, or a number missing.
BROKEN = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, StopIteration, TypeError, ValueError,
)  # fmt: skip

#: Most open axes of all inputs.
_MOST_OPEN = 256
#: How often the bytes of other files may be read as weights, on average: a few weights are shared.
_SHARED = 8
#: Kinds of attributes that are graphs, and that are tensors.
_PARTS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_ARRAYS = (AttributeProto.TENSOR, AttributeProto.TENSORS)
#: Most elements of a weight that the checker looks at.
_MOST_CHECKED = 1024


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Have errors about a file begin with its name, and be `GraphError`."""
    try:
        yield
    except GraphError as error:
        raise type(error)(f"{file}: {error}") from error.__cause__
    except BROKEN as error:
        raise GraphError(f"{file}: not a valid model: {type(error).__name__}: {error}") from error


class File:
    """A model, read and checked.

    Args:
        source: A path, or the bytes of a file.
        axes: For names of open axes in the file, a length or another name; for names of inputs, such by position, which
            may also be names for axes that the file fixes.
        takes_objects: Whether inputs may be text, or may not say how many axes they have: such are Python objects. If
            not, sequences and optional values are.
        is_whole: Whether the model has all of its weights itself.

    Attributes:
        path: Where it was read; None for bytes.
        name: For messages: the path, if there is one.
        model: The model.
        weights: Arrays of initializers that it has without their bytes, by name.
        inputs: Types of the inputs that are fed, by name.
        unusable: Inputs that cannot be fed, by name, and what they are.
        objects: Dtypes of inputs that are text, or do not say how many axes they have, by name.
        outputs: Names of the outputs.
        declared: Types of tensors, by name, where all lengths are known.
        opened: Lengths in the file of axes that it fixes and ``axes`` names, by their names: see
            `actorflow.onnx.opening`.
        fixed: What ``declared`` was before these were opened.

    Raises:
        OSError: if it cannot be read; GraphError if it is not a valid model.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        axes: Axes | None = None,
        *,
        takes_objects: bool = False,
        is_whole: bool = False,
    ) -> None:
        self._takes_objects = takes_objects
        self.objects: dict[str, np.dtype[Any]] = {}
        self.path = None if isinstance(source, bytes) else os.fspath(source)
        self.name = self.path or "<bytes>"
        checked = checked_axes(axes)
        with naming(self.name):
            self._load(source, checked, is_whole)

    def _load(self, source: str | os.PathLike[str] | bytes, axes: Axes, is_whole: bool) -> None:
        (model, self.weights), is_external = _checked(source, is_whole)
        graph = model.graph
        given = {tensor.name for tensor in graph.initializer}
        self._axes = {name: each for name, each in axes.items() if not isinstance(each, Mapping)}
        self._by_input = {name: dict(each) for name, each in axes.items() if isinstance(each, Mapping)}
        self.opened: dict[str, int] = {}
        self.fixed: dict[str, TensorSpec] = {}
        self._used: set[str] = set()
        self._spelt: dict[str | tuple[str, int], str] = {}  # names here of axes of the file
        fed = [each for each in graph.input if each.name not in given]
        self.unusable: dict[str, str] = {}
        self.inputs: dict[str, TensorSpec] = {}
        for each in fed:
            why, dtype = _why_unusable(each)
            if why is not None and dtype is not None:
                self.objects[each.name] = dtype
            if each.name in self.objects if self._takes_objects else _is_sequence(each):
                self.inputs[each.name] = TensorSpec((), np.dtype(object))
            elif why is not None:
                self.unusable[each.name] = why
            else:
                self.inputs[each.name] = self._spec(each)
        self.outputs = [each.name for each in graph.output]
        self.opsets = {each.domain: each.version for each in model.opset_import}
        if self.opened:
            self.fixed = self.declared_in(model)
            self._open(graph)
        self.declared = self.declared_in(model)
        for name, left in self._by_input.items():
            if name not in self.inputs:
                raise GraphError(
                    f"axes: the file has no input {name!r}, only {', '.join(map(repr, self.inputs)) or 'none'}"
                )
            if left:
                raise GraphError(f"axes: input {name!r} {self.inputs[name]} has no axis {', '.join(map(str, left))}")
        unknown = [name for name in self._axes if name not in self._used]
        if unknown:
            open_axes = ", ".join(map(repr, sorted(self._used))) or "none"
            how = f"axes={{{next(iter(self.inputs), 'input')!r}: {{0: 'batch'}}}}"
            raise GraphError(
                f"no open axis of an input has the name {', '.join(map(repr, unknown))}; open are {open_axes} "
                f"(one that is fixed in the file is opened by its position, {how})"
            )
        if is_external and not isinstance(source, bytes):
            _load_external(model, Path(source).parent)
        self.model = model

    def __repr__(self) -> str:
        return f"<File {self.name!r}>"

    def declared_in(self, model: ModelProto) -> dict[str, TensorSpec]:
        """Types of tensors that the file declares, where all lengths are known: what follows of them is lowered so.

        ONNX's rules are left alone here: applied to a whole file, they take memory without bounds.
        """
        open_axes = {name for spec in self.inputs.values() for name in spec.axes}
        found = {}
        for info in (*model.graph.value_info, *model.graph.output):
            tensor = info.type.tensor_type
            if info.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
                continue
            lengths = [self._declared_length(each) for each in tensor.shape.dim[: MOST_AXES + 1]]
            if len(lengths) <= MOST_AXES and all(isinstance(n, int) or n in open_axes for n in lengths):
                try:
                    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
                    found[info.name] = TensorSpec.of(lengths, dtype)
                except (KeyError, GraphError):
                    continue
        return found

    def _declared_length(self, dim: Any) -> int | str | None:
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        return self._named(dim.dim_param) if dim.dim_param in self._spelt else None

    def _spec(self, info: ValueInfoProto) -> TensorSpec:
        tensor = info.type.tensor_type
        if len(tensor.shape.dim) > MOST_AXES:
            raise GraphError(f"input {info.name!r} has {len(tensor.shape.dim)} axes, at most {MOST_AXES} are allowed")
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        return TensorSpec.of([self._length(info.name, i, each) for i, each in enumerate(tensor.shape.dim)], dtype)

    def _length(self, name: str, position: int, dim: Any) -> int | str:
        given = self._by_input.get(name, {}).pop(position, None)
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value) if given is None else self._opened(name, position, dim.dim_value, given)
        if given is not None:
            return axis_name(given) if isinstance(given, str) else given
        said = dim.dim_param
        return (
            self._named(said) if any(c.isalnum() for c in said) else self._named(f"{name}_{position}", (name, position))
        )

    def _opened(self, name: str, position: int, length: int, given: int | str) -> int | str:
        """The name that an axis gets which the file fixes."""
        if not isinstance(given, str):
            if given == length:
                return length
            raise GraphError(
                f"axes: axis {position} of input {name!r} has length {length} in the file, and {given} is another one: "
                "give it a name, and it may have any length"
            )
        legal = axis_name(given)
        if self.opened.setdefault(legal, length) != length:
            raise GraphError(f"axes: {given!r} would be of {length} and of {self.opened[legal]} elements in the file")
        self._spelt[legal] = legal
        return legal

    def _open(self, graph: GraphProto) -> None:
        """Have the proto say what `inputs` does, and nothing of what follows from it."""
        for each in graph.input:
            spec = self.inputs.get(each.name)
            lengths: tuple[Any, ...] = () if spec is None else spec.shape
            for dim, length in zip(each.type.tensor_type.shape.dim, lengths, strict=False):
                if isinstance(length, Length) and str(length) in self.opened:
                    dim.dim_param = str(length)
        del graph.value_info[:]
        for each in graph.output:
            for dim in each.type.tensor_type.shape.dim:
                dim.Clear()

    def _named(self, own: str, key: str | tuple[str, int] | None = None) -> int | str:
        """The length or the name that an axis of the file has here; different axes have different names.

        Args:
            own: Its name in the file, or one that is made for it.
            key: Its key, if it has no name of its own.
        """
        key = own if key is None else key
        if key not in self._spelt:
            if len(self._spelt) == _MOST_OPEN:
                raise GraphError(f"its inputs have more than {_MOST_OPEN} open axes")
            legal = axis_name(own)
            while legal in self._spelt.values():
                legal += "_"
            self._spelt[key] = legal
        legal = self._spelt[key]
        for each in (own, legal):
            if each in self._axes:
                self._used.add(each)
                given = self._axes[each]
                return axis_name(given) if isinstance(given, str) else int(given)
        return legal


def _checked(source: str | os.PathLike[str] | bytes, is_whole: bool) -> tuple[Contents, bool]:
    """Contents of a file, its functions inlined, and whether it has weights in other files, which are left out."""
    try:
        if not is_whole:
            model, weights = contents_in(source) if isinstance(source, bytes) else contents_of(os.fspath(source))
        elif isinstance(source, bytes):
            model, weights = ModelProto(), {}
            model.ParseFromString(source)
        else:
            model, weights = onnx.load(os.fspath(source), load_external_data=False), {}
    except DecodeError as error:
        raise GraphError(f"this is no ONNX file, or only a part of one: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise GraphError("this is no ONNX file, or an empty one")
    is_sorted, is_external = _sort(model.graph), any(map(uses_external_data, _tensors(model)))
    if isinstance(source, bytes) and is_external:
        raise GraphError("its weights are in other files: give the path, not the bytes")
    ends = (*model.graph.input, *model.graph.output)
    try:
        is_plain = is_sorted and all(each.type.tensor_type.HasField("shape") for each in ends)
        checker.check_model(os.fspath(source) if is_external and is_plain else _light(model, weights, is_external))
        return Contents(inlined(model), weights), is_external
    except (checker.ValidationError, RuntimeError, ValueError) as error:
        raise GraphError(f"not a valid model: {error}") from error


def _sort(graph: GraphProto) -> bool:
    """Have each node stand behind those that it reads, as not all exporters do; return whether that was so."""
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    reads = {i: {makers[name] for name in names_read(node) if name in makers} for i, node in enumerate(graph.node)}
    if all(before < i for i, read in reads.items() for before in read):
        return True
    try:
        order = [*TopologicalSorter(reads).static_order()]
    except CycleError:  # the checker says so
        return True
    nodes = [graph.node[i] for i in order]
    del graph.node[:]
    graph.node.extend(nodes)
    return False


def names_read(proto: NodeProto) -> Iterator[str]:
    """Names of tensors that a node reads, those that graphs inside it read among them, once for each reader."""
    yield from filter(None, proto.input)
    for attribute in proto.attribute:
        if attribute.type in _PARTS:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.type == AttributeProto.GRAPH else [])):
                for node in inner.node:
                    yield from names_read(node)
                yield from [output.name for output in inner.output]


def _light(model: ModelProto, weights: Container[str], is_external: bool) -> ModelProto:
    """A copy for the checker, which wants a shape of each input and output, and looks no further than that.

    Large weights and those in other files, which it would copy and look for, are left out: they are checked as they
    are read.
    """
    graph, light = model.graph, ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.functions.extend(model.functions)
    made = light.graph
    made.name, made.doc_string = graph.name, graph.doc_string
    made.node.extend(graph.node)
    made.input.extend(graph.input)
    made.output.extend(graph.output)
    made.value_info.extend(graph.value_info)
    made.sparse_initializer.extend(graph.sparse_initializer)
    for tensor in graph.initializer:
        if tensor.name in weights or (tensor.HasField("raw_data") and math.prod(tensor.dims) > _MOST_CHECKED):
            made.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0])
        else:
            made.initializer.append(tensor)
    for each in (*made.input, *made.output):
        if each.type.HasField("tensor_type"):
            each.type.tensor_type.shape.SetInParent()
    for tensor in filter(uses_external_data, _tensors(light) if is_external else ()):
        name, kind = tensor.name, tensor.data_type
        tensor.Clear()
        tensor.name, tensor.data_type = name, kind
        tensor.dims.append(0)
    return light


def _load_external(model: ModelProto, folder: Path) -> None:
    sizes: dict[str, int] = {}
    asked = 0
    try:
        for tensor in filter(uses_external_data, _tensors(model)):
            part: Any = ExternalDataInfo(tensor)
            size = sizes[part.location] = (folder / part.location).stat().st_size
            asked += part.length or size - (part.offset or 0)
        if asked > _SHARED * sum(sizes.values()):
            raise GraphError(f"its weights are {asked} bytes of other files, which have {sum(sizes.values())}")
        load_external_data_for_model(model, str(folder))
    except GraphError:
        raise
    except (OSError, ValueError, RuntimeError, checker.ValidationError) as error:
        raise GraphError(f"the weights in other files cannot be read: {error}") from error


def _why_unusable(info: ValueInfoProto) -> tuple[str | None, np.dtype[Any] | None]:
    """What an input is that is no tensor of numbers with axes, None if it is one; and its dtype if it is a tensor."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return f"is of type {(kind or 'unknown').removesuffix('_type')}, and only tensors can be loaded", None
    tensor = info.type.tensor_type
    if tensor.elem_type == TensorProto.STRING:
        return "is text, which cannot be loaded", np.dtype(object)
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    except KeyError:
        return f"has dtype number {tensor.elem_type}, which is not known", None
    return None if tensor.HasField("shape") else "does not say how many axes it has", dtype


def _is_sequence(info: ValueInfoProto) -> bool:
    """Return whether an input is a sequence of tensors of numbers, or such a value or tensor that may be left out."""
    kind: Any = info.type
    while (name := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, name).elem_type
    is_tensor = name == "tensor_type" and kind.tensor_type.elem_type != TensorProto.STRING
    return is_tensor and kind is not info.type


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a file: those of its graphs and functions, and of their nodes' attributes."""
    yield from model.graph.initializer
    nodes = [*model.graph.node, *[node for function in model.functions for node in function.node]]
    while nodes:
        for attribute in nodes.pop().attribute:
            if attribute.type in _ARRAYS:
                yield from (attribute.t, *attribute.tensors)
            elif attribute.type in _PARTS:
                for graph in (attribute.g, *attribute.graphs):
                    yield from graph.initializer
                    nodes += graph.node


def checked_axes(axes: object) -> Axes:
    """What ``axes`` says.

    Raises:
        TypeError: if it says something else than axes.
    """
    if axes is None:
        return {}
    if not isinstance(axes, Mapping):
        raise TypeError(f"axes must be a mapping, {_AXES}, got {type(axes).__name__}")
    for name, each in axes.items():
        given = [*each.values()] if isinstance(each, Mapping) else [each]
        keys = [*each] if isinstance(each, Mapping) else []
        numbers = [*keys, *[one for one in given if not isinstance(one, str)]]
        if not isinstance(name, str) or not all(isinstance(n, int) and n >= 0 for n in numbers) or "" in given:
            raise TypeError(f"axes must be like {_AXES}, got {{{name!r}: {each!r}}}")
    return axes


def axis_name(name: str) -> str:
    """A name of the file as that of an axis."""
    legal = "".join([c if c.isalnum() or c == "_" else "_" for c in name])
    return legal if legal.isidentifier() else f"_{legal}"


def listed(refused: Sequence[tuple[str, str, str]]) -> str:
    """Refusals, a line for each node."""
    return "\n".join(f"  {operator} {name!r}: {why}" for operator, name, why in refused)
