"""Weights of PyTorch's modules, for the layers that compute the same here: matched, turned to our order, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from actorflow.checkpoint.checkpoint import assign, check_at_rest
from actorflow.checkpoint.weights import weights_of
from actorflow.errors import CheckpointError, DTypeError, GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.interchange import to_numpy
from actorflow.ops.elementwise import Dummy
from actorflow.ops.indexing import Flip, Pad, Slice
from actorflow.ops.linalg import Bias, Inner
from actorflow.ops.nn.conv import Conv, ConvDown
from actorflow.ops.nn.dropout import Dropout
from actorflow.ops.nn.lrn import LRN
from actorflow.ops.nn.norm import BatchNorm, BatchNormInference, LayerNorm
from actorflow.ops.nn.pool import AveragePool, MaxPool
from actorflow.ops.nn.resize import Resize
from actorflow.ops.nn.softmax import LogSoftmax, Softmax
from actorflow.ops.shaping import Concat, Reduction, Reshape, Split, Transpose
from actorflow.plan.validate import in_order, needed_ops

Array = npt.NDArray[Any]
#: Gives a tensor of torch another name, or None to leave it out.
Renaming = Mapping[str, str | None] | Callable[[str], str | None]

#: Names of torch's parameters by ours, in the scope of a layer; others have the same one.
_NAMES: Mapping[str, str] = MappingProxyType({"scale": "weight", "shift": "bias", "running_variance": "running_var"})
_COUNTER = "num_batches_tracked"  # what torch counts and nothing here needs
#: Where torch's exporter has made weights of its own.
_RENAMED = """
  names with :: are of weights that torch has changed when it wrote the file of ONNX, and joined batch norms into: \
torch.onnx.export(..., training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False) keeps them as they are"""
#: Scopes of the layers of a recurrent network, which are one module there.
_RECURRENT = re.compile(r"(?:(?P<of>.*)/)?layer(?P<number>\d+)(?P<reverse>_reverse)?")
#: Operations whose results are images: the channels are the last axis here, and the first one after the batch there.
_IMAGES = (Conv, ConvDown, MaxPool, AveragePool)
#: Operations that leave each element at its place, besides the elementwise ones.
_IN_PLACE = (BatchNorm, BatchNormInference, Bias, Dropout, Dummy, LayerNorm, LogSoftmax, LRN, Softmax)
_OF_IMAGES = (Concat, Flip, Pad, Reduction, Resize, Slice, Split)  # operations that make images of images


class _Need(NamedTuple):
    """A tensor that a variable is made of."""

    path: str  # of the module, by our names
    parameter: str  # its name there
    shape: tuple[int, ...]  # in torch's order

    @property
    def name(self) -> str:
        return _joined(self.path, self.parameter)


class _Recipe(NamedTuple):
    """Rule for the value of a variable."""

    needs: tuple[_Need, ...]
    make: Callable[..., Array]  # takes arrays of the needs' shapes
    axes: tuple[int, ...] | None = None  # of torch's order that ours are, for messages


class _Tensor(NamedTuple):
    """A tensor of the state dict."""

    name: str  # there
    path: str  # of its module, renamed
    parameter: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def new(self) -> str:
        """Its name, renamed."""
        return _joined(self.path, self.parameter)

    @property
    def is_renamed(self) -> bool:
        return self.new != self.name


def _joined(path: str, parameter: str) -> str:
    return f"{path}.{parameter}" if path else parameter


_Bound = dict[str, _Tensor]  # tensors by the names of what needs them
#: Identity of layers of one kind: their parameters, with the number of their axes.
_Kind = frozenset[tuple[str, int]]


def load_torch(
    scope: Graph | Composite,
    state_dict: Mapping[str, Any],
    map: Renaming | None = None,  # noqa: A002
) -> dict[str, tuple[str, ...]]:
    """Put the weights of a PyTorch module into a graph, a sub-graph or a layer that computes the same.

    Weights are turned to the order that they have here, by what reads them: kernels of convolutions, the columns of an
    inner product, or the features of a normalization, that follows on flattened images (torch flattens channels,
    height, width; here it is height, width, channels), gates' biases, which are two there, and so on. What is computed
    from images that no convolution or pooling has seen is taken as it is. Other dtypes of the same kind are converted.

    Modules are matched with layers by their names, where the names of one side are all among those of the other; else
    by their order: the n-th module with such parameters is the n-th such layer. ``num_batches_tracked`` is left out.

    Args:
        scope: A graph, a part of one, or a composite that has been built; its weights are those of `save_weights`.
        state_dict: Tensors by name, as ``module.state_dict()`` gives them; any arrays will do, and torch is not needed.
        map: Names here by names there, for tensors or whole modules, ``{"features.0": "conv0", "head": None}``, or a
            function that gives the name of a tensor; None leaves it out. Names here are those of variables within the
            scope, or of layers and torch's parameters, ``"norm.weight"``.
    Returns:
        For each variable's name within the scope the names of the tensors that its value was made of.
    Raises:
        CheckpointError: if something is missing, not expected, or of another shape: with all of that. Nothing has been
            changed then.
        GraphError: if the scope has no weights, or frames are in flight.
        TypeError: if it is given something else than tensors by name.

    Example:
        >>> graph = af.Graph("net")
        >>> net = af.nn.InnerProduct(2, name="head")
        >>> y = net(graph.blob("x", ["batch", 3]))
        >>> state = {"fc.weight": np.ones((2, 3)), "fc.bias": np.zeros(2)}  # module.state_dict(), say
        >>> af.nn.load_torch(net, state)
        {'weight': ('fc.weight',), 'bias': ('fc.bias',)}
        >>> af.nn.load_torch(graph, state, map={"fc": "head"})
        {'head/weight': ('fc.weight',), 'head/bias': ('fc.bias',)}
    """
    if not isinstance(cast(object, state_dict), Mapping):
        hint = ": give its state_dict()" if hasattr(state_dict, "state_dict") else ""
        raise TypeError(f"expected tensors by name, got {type(state_dict).__name__}{hint}")
    variables = weights_of(scope)
    root = next(iter(variables)).graph.root
    check_at_rest(root, "loaded")
    own = {variable: name for variable, name in variables.items() if variable.replica_of not in variables}
    recipes = _recipes(own)
    problems: list[str] = []
    tensors = _tensors(state_dict, map, problems)
    bound, unexpected = _bind(own, recipes, tensors, given=isinstance(map, Mapping))
    values: dict[Variable, Array] = {}
    for variable, recipe in recipes.items():
        found = [bound.get(need.name) for need in recipe.needs]
        wrong = [
            _problem(own[variable], variable, recipe, need, tensor)
            for need, tensor in zip(recipe.needs, found, strict=True)
        ]
        problems += filter(None, wrong)
        if not any(wrong):
            given = [t.array.reshape(need.shape) for need, t in zip(recipe.needs, found, strict=True) if t is not None]
            values[variable] = np.array(recipe.make(*given), variable.dtype, order="C")
    for tensor in unexpected:
        new = f", as {tensor.new!r}" if tensor.is_renamed else ""
        problems.append(f"not expected: {tensor.name!r} {tensor.shape}{new}")
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        hint = _RENAMED if any("::" in name for name in own.values()) else ""
        if any(problem.startswith("shape:") for problem in problems):
            hint += _rounding(root, own)
        what = f"the state dict does not fit {scope.name!r}, and nothing has been changed:{lines}{hint}"
        raise CheckpointError(what, page="torch-weights")
    rank = root.world.rank
    copies = {each: values[each.replica_of].copy() for each in variables if each.replica_of in variables}
    assign(root, {each: value for each, value in {**values, **copies}.items() if each.place.rank == rank})
    return {
        own[variable]: tuple(bound[need.name].name for need in recipe.needs) for variable, recipe in recipes.items()
    }


def _problem(name: str, variable: Variable, recipe: _Recipe, need: _Need, tensor: _Tensor | None) -> str | None:
    if tensor is None:
        return f"missing: {need.name!r} {need.shape}, for {name!r} {variable.shape}"
    shape = tensor.shape
    if _without_ones(shape) != _without_ones(need.shape):
        ours = f", here {_at(shape, recipe.axes)}" if recipe.axes and len(recipe.axes) == len(shape) else ""
        return f"shape: {name!r} {variable.shape} needs {need.shape} of torch, {tensor.name!r} has {shape}{ours}"
    if not np.can_cast(tensor.array.dtype, variable.dtype, "same_kind"):
        return f"dtype: {name!r} is {variable.dtype}, {tensor.name!r} is {tensor.array.dtype}"
    return None


def _rounding(root: Graph, variables: Iterable[Variable]) -> str:
    """Name the poolings before these variables that make larger images than torch's do unless told to round up."""
    readers = [variable.consumers[0] for variable in variables if variable.consumers]
    poolings = [
        op.name
        for op in in_order(root, needed_ops(readers))
        if isinstance(op.operation, MaxPool | AveragePool)
        and replace(op.operation, ceil=False).infer(op.inputs[0].spec)[0] != op.outputs[0].spec
    ]
    names = ", ".join(map(repr, poolings))
    return (
        f"\n  these poolings round up, those of torch down unless told: {names}; ceil=False is torch's way"
        if names
        else ""
    )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without the kernel of a convolution of 1x1, which is an inner product."""
    return shape[:2] if all(length == 1 for length in shape[2:]) else shape


# -- what there is -----------------------------------------------------------------------------------------------------


def _tensors(state_dict: Mapping[str, Any], rename: Renaming | None, problems: list[str]) -> list[_Tensor]:
    found: list[_Tensor] = []
    taken: dict[str, str] = {}
    if isinstance(rename, Mapping):
        there = {
            ".".join(parts[:n]) for name in state_dict for parts in [name.split(".")] for n in range(len(parts) + 1)
        }
        problems += [f"map: the state dict has no {name!r}" for name in rename if name not in there]
    for name, value in state_dict.items():
        new = _renamed(name, rename)
        if new is None or name.rpartition(".")[2] == _COUNTER:
            continue
        new = new.replace("/", ".")
        if new in taken:
            problems.append(f"twice: {taken[new]!r} and {name!r} are both {new!r}")
            continue
        taken[new] = name
        try:
            array = to_numpy(value)
        except (DTypeError, GraphError) as error:
            problems.append(f"not expected: {name!r}: {error}")
            continue
        path, _, parameter = new.rpartition(".")
        found.append(_Tensor(name, path, parameter, array))
    attention = {tensor.path for tensor in found if tensor.parameter in ("in_proj_weight", "q_proj_weight")}
    for i, tensor in enumerate(found):
        parent, _, last = tensor.path.rpartition(".")
        if last == "out_proj" and parent in attention:
            found[i] = tensor._replace(path=parent, parameter=f"out_proj.{tensor.parameter}")
    return found


def _renamed(name: str, rename: Renaming | None) -> str | None:
    if callable(rename):
        return rename(name)
    rest = name
    while rename and rest:
        if rest in rename:
            new = rename[rest]
            return None if new is None else (new + name[len(rest) :]).lstrip(".")
        rest = rest.rpartition(".")[0]
    return name


# -- what is wanted ----------------------------------------------------------------------------------------------------


def _recipes(variables: Mapping[Variable, str]) -> dict[Variable, _Recipe]:
    places = _Places(variables)
    layers: dict[str, dict[str, Variable]] = {}
    for variable, name in variables.items():
        path, _, last = name.replace(".", "/").rpartition("/")  # of a file of ONNX, names are torch's
        if last in layers.get(path, ()):  # a.b beside a/b
            path, last = "", name
        layers.setdefault(path, {})[last] = variable
    found: dict[Variable, _Recipe] = {}
    for path, own in layers.items():
        if {"weight_x", "weight_h"} <= own.keys():
            found |= _recurrent(path, own)
        elif {"weight_q", "weight_out"} <= own.keys():
            found |= _attention(path.replace("/", "."), own)
        else:
            taken: set[str] = set()
            for name, variable in own.items():
                parameter = _NAMES.get(name, name)
                parameter = name if parameter in taken else parameter
                taken.add(parameter)
                found[variable] = _plain(path.replace("/", "."), parameter, variable, places)
    return found


def _plain(path: str, parameter: str, variable: Variable, known: _Places) -> _Recipe:
    shape = variable.shape
    op = next(iter(variable.consumers), None)
    if op is None:
        return _Recipe((_Need(path, parameter, shape),), lambda array: array)
    position = op.inputs.index(variable)
    if isinstance(op.operation, Conv | ConvDown) and position == 1:
        order = (len(shape) - 1, len(shape) - 2, *range(len(shape) - 2))
        axes = (*range(2, len(shape)), 1, 0)
        return _Recipe((_Need(path, parameter, _at(shape, order)),), lambda array: array.transpose(axes), axes)
    x = op.inputs[position == 0 and len(op.inputs) > 1]
    places = known[x]
    if places is not None and isinstance(op.operation, Inner) and position == 1 and places.ndim == 1:
        return _Recipe((_Need(path, parameter, shape),), lambda array: array[:, places])
    if places is not None and shape == places.shape:
        there = (shape[-1], *shape[:-1]) if known.is_image(x) else shape
        return _Recipe((_Need(path, parameter, there),), lambda array: array.reshape(-1)[places])
    return _Recipe((_Need(path, parameter, shape),), lambda array: array)


def _at(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in axes)


def _recurrent(path: str, own: Mapping[str, Variable]) -> dict[Variable, _Recipe]:
    """A cell, or a layer of a recurrent network; one bias is the sum of torch's two, where two would do the same."""
    match = _RECURRENT.fullmatch(path)
    module, suffix = path, ""
    if match is not None:
        module, suffix = match["of"] or "", f"_l{match['number']}{match['reverse'] or ''}"
    parts = {"weight_x": ("weight_ih",), "weight_h": ("weight_hh",), "bias": ("bias_ih", "bias_hh")}
    if "bias_h" in own:
        parts |= {"bias": ("bias_ih",), "bias_h": ("bias_hh",)}
    return {
        variable: _Recipe(
            tuple(_Need(module.replace("/", "."), part + suffix, variable.shape) for part in parts.get(name, (name,))),
            _sum,
        )
        for name, variable in own.items()
    }


def _sum(first: Array, *others: Array) -> Array:
    return sum(others, first)


def _attention(path: str, own: Mapping[str, Variable]) -> dict[Variable, _Recipe]:
    """Attention of several heads: torch joins the products of query, key and value, where they are of one shape."""
    features = own["weight_q"].shape[0]
    joined = len({own[f"weight_{name}"].shape for name in "qkv"}) == 1
    found: dict[Variable, _Recipe] = {}
    for i, name in enumerate("qkv"):
        weight, bias = own[f"weight_{name}"], own.get(f"bias_{name}")
        part = slice(i * features, (i + 1) * features)
        if joined:
            need = _Need(path, "in_proj_weight", (3 * features, *weight.shape[1:]))
            found[weight] = _Recipe((need,), lambda array, part=part: array[part])
        else:
            found[weight] = _Recipe((_Need(path, f"{name}_proj_weight", weight.shape),), lambda array: array)
        if bias is not None:
            need = _Need(path, "in_proj_bias", (3 * features,))
            found[bias] = _Recipe((need,), lambda array, part=part: array[part])
    for name in ("weight", "bias"):
        if f"{name}_out" in own:
            variable = own[f"{name}_out"]
            found[variable] = _Recipe((_Need(path, f"out_proj.{name}", variable.shape),), lambda array: array)
    return found


class _Places:
    """Where each element of a sample is among torch's, both flattened: of images, and of what is made of them by moving
    all elements of a sample (flattened, transposed, joined). Of other blobs nothing is known to differ.

    Args:
        variables: Weights, before whose readers this is asked.
    """

    def __init__(self, variables: Iterable[Variable]) -> None:
        readers = [variable.consumers[0] for variable in variables if variable.consumers]
        self._found: dict[Blob, Array | None] = {}  # None: an image
        for op in in_order(readers[0].graph.root, needed_ops(readers)) if readers else ():
            self._add(op)

    def __getitem__(self, x: Blob) -> Array | None:
        """The places, of the shape of a sample; None where nothing is known to differ."""
        if x not in self._found or not all(isinstance(length, int) for length in x.shape[1:]):
            return None
        places = self._found[x]
        return _image(x.shape[1:]) if places is None else places

    def is_image(self, x: Blob) -> bool:
        """True if its axes are the batch, the spatial ones and the channels."""
        return x in self._found and self._found[x] is None

    def _add(self, op: Op) -> None:
        operation, y = op.operation, op.outputs[0] if op.outputs else None
        known = [x for x in op.inputs if x in self._found]
        if isinstance(operation, _IMAGES) or (known and self.is_image(known[0]) and _keeps_image(op)):
            self._found |= dict.fromkeys(op.outputs)
        elif not known or y is None:
            return
        elif operation.elementwise or isinstance(operation, _IN_PLACE):
            same = next((x for x in known if x.shape == y.shape), None)
            if same is not None:
                self._found[y] = self._found[same]
        elif isinstance(operation, Reshape | Transpose) and (places := self[known[0]]) is not None:
            if isinstance(operation, Reshape):
                if y.shape and y.shape[0] == known[0].shape[0]:
                    self._found[y] = places.reshape(y.shape[1:])
            else:
                first, *axes = (axis % len(y.shape) for axis in operation.axes)
                if not first:
                    self._found[y] = places.transpose([axis - 1 for axis in axes])
            made = self._found.get(y)
            if made is not None and made.ndim > 1 and np.array_equal(made, _image(made.shape)):
                self._found[y] = None  # as after a group norm


def _image(shape: tuple[int, ...]) -> Array:
    *size, channels = shape
    return np.moveaxis(np.arange(math.prod(shape)).reshape(channels, *size), 0, -1)


def _keeps_image(op: Op) -> bool:
    operation, rank = op.operation, len(op.inputs[0].shape)
    if isinstance(operation, Reduction) and not operation.keepdims:
        axes = range(rank) if operation.axis is None else operation.axis
        return not {0, rank - 1} & {axis % rank for axis in axes} and len(op.outputs[0].shape) > 2
    return isinstance(operation, _OF_IMAGES) and len(op.outputs[0].shape) == rank


# -- which is which ----------------------------------------------------------------------------------------------------


def _bind(
    names: Mapping[Variable, str], recipes: Mapping[Variable, _Recipe], tensors: Sequence[_Tensor], given: bool
) -> tuple[_Bound, list[_Tensor]]:
    """Find a tensor for each need; those that nothing needs are left over.

    Args:
        given: Whether renamed tensors are for what has that name, and for nothing else.
    """
    needs = {need.name: need for recipe in recipes.values() for need in recipe.needs}
    known = {names[each].replace("/", "."): recipe.needs[0].name for each, recipe in recipes.items()}
    known |= {name: name for name in needs}
    bound = {known[tensor.new]: tensor for tensor in tensors if tensor.is_renamed and tensor.new in known}
    placed = {tensor.name for tensor in bound.values()}
    free = {t.new: t for t in tensors if t.name not in placed and not (given and t.is_renamed)}
    wanted = {name: need for name, need in needs.items() if name not in bound}
    layers, modules = _by_path(wanted.values()), _by_path(free.values())
    sides: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = ((wanted, free), (layers, modules))
    # The names of one side are all among those of the other.
    if any(some.keys() <= others.keys() or others.keys() <= some.keys() for some, others in sides):
        bound |= {name: free[name] for name in wanted if name in free}
        return bound, _left(tensors, bound)
    pairs: dict[str, str] = {}
    for with_ones in (True, False):
        here = {path: _kind_of(own, with_ones) for path, own in layers.items() if path not in pairs}
        there = {path: _kind_of(own, with_ones) for path, own in modules.items() if path not in pairs.values()}
        pairs |= _in_order(here, there)
    for path, module in pairs.items():
        bound |= {_joined(path, each): modules[module][each] for each in layers[path] if each in modules[module]}
    return bound, _left(tensors, bound)


_Named = TypeVar("_Named", _Need, _Tensor)


def _by_path(parameters: Iterable[_Named]) -> dict[str, dict[str, _Named]]:
    """Parameters by the path of what they are of, and their names there."""
    found: dict[str, dict[str, _Named]] = {}
    for each in parameters:
        found.setdefault(each.path, {})[each.parameter] = each
    return found


def _left(tensors: Sequence[_Tensor], bound: _Bound) -> list[_Tensor]:
    used = {tensor.name for tensor in bound.values()}
    return [tensor for tensor in tensors if tensor.name not in used]


def _kind_of(own: Mapping[str, _Need | _Tensor], with_ones: bool) -> _Kind:
    return frozenset((n, len(each.shape if with_ones else _without_ones(each.shape))) for n, each in own.items())


def _in_order(layers: Mapping[str, _Kind], modules: Mapping[str, _Kind]) -> dict[str, str]:
    """For each layer the module of its kind at the same position, of the kinds that both have as many of."""
    found: dict[str, str] = {}
    for kind in dict.fromkeys(layers.values()):
        here, there = ([path for path, each in side.items() if each == kind] for side in (layers, modules))
        if len(here) == len(there):
            found |= zip(here, there, strict=True)
    return found
