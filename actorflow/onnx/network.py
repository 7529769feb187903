"""Networks from files of ONNX: a composite, and the model that a file is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto

from actorflow import ops
from actorflow.devices.memory import give_back_to_system
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.graph.composite import Composite
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Site, Variable
from actorflow.graph.options import limits_of
from actorflow.onnx import constants
from actorflow.onnx.file import Axes, File, listed, names_read, naming
from actorflow.onnx.file_values import FileValues
from actorflow.onnx.lowering import Lowering, Values, is_trained, legal
from actorflow.onnx.opening import open_axes
from actorflow.onnx.parts import forward_part, not_tensors
from actorflow.onnx.runtime import Settings, load_onnxruntime
from actorflow.onnx.values import Value, usual
from actorflow.runtime.model import Model, Named
from actorflow.spec import may_equal

#: Names of the backends.
Backend = Literal["actorflow", "onnxruntime"]
Source = str | os.PathLike[str] | bytes | ModelProto


class Network(Composite[Any]):
    """The network of an ONNX file, to connect with ``>>``.

    Its ops are ordinary ones, under the names of the file's nodes; its bottom are the file's inputs, in their order and
    with their axes, its top the outputs.

    Args:
        source: Path of the file, its contents as bytes, or an ``onnx.ModelProto``.
        trainable: Whether its weights are variables, under their names in the file, and not constants.
        axes: For names of open axes in the file, a length or another name, ``{"height": 224, "N": "batch"}``. For names
            of inputs, such by position: ``{"images": {0: "batch"}}`` opens an axis that the file fixes, if all that
            follows can have another length.
        backend: Name of the backend: ``"actorflow"`` (ordinary ops) or ``"onnxruntime"`` (one op, by ONNX Runtime).
        providers, session_options, threads: For ONNX Runtime, see `load`.
        name: Scope of its ops and variables.

    Attributes:
        inputs: Types of the inputs, by name.
        outputs: Names of the outputs.
        values: Blobs by the names of the file's tensors, of the latest build: see `FileValues`.

    Raises:
        TypeError: if the source, or an argument, is of another type.
        OSError: if the file cannot be read.
        GraphError: if it is not a valid model; when it is built, if nodes cannot be lowered:
            the message lists all of them.

    Example:
        >>> trained = af.Graph("trained")
        >>> y = af.nn.InnerProduct(3, activation="relu", name="fc")(trained.blob("x", ["batch", 4]))
        >>> af.onnx.save(trained, "body.onnx")
        >>> graph = af.Graph("larger")
        >>> body = af.onnx.Network("body.onnx", trainable=True, name="body")
        >>> scores = af.nn.InnerProduct(2)(body(graph.blob("x", ["batch", 4])))
        >>> list(body.inputs), body.outputs, list(body.weights)
        (['x'], ['fc/relu/out'], ['fc/weight', 'fc/bias'])
    """

    def __init__(
        self,
        source: Source,
        *,
        trainable: bool = False,
        axes: Axes | None = None,
        backend: Backend = "actorflow",
        providers: Sequence[Any] | None = None,
        session_options: Any = None,
        threads: int | None = None,
        name: str | None = None,
    ) -> None:
        if backend not in ("actorflow", "onnxruntime"):
            raise GraphError(f"backend must be 'actorflow' or 'onnxruntime', got {backend!r}")
        if not isinstance(cast(object, trainable), bool):
            raise TypeError(f"trainable must be True or False, got {trainable!r}")
        self._settings = Settings(providers, session_options, threads)
        if backend == "onnxruntime":
            load_onnxruntime()
            self._settings.check()
        elif self._settings != Settings():
            raise GraphError("providers, session_options and threads are for backend='onnxruntime'")
        super().__init__(name or _name_of(source))
        by_other = backend == "onnxruntime"
        self._file = File(_read(source), axes, takes_objects=by_other and not trainable, is_whole=by_other or trainable)
        if self._file.opened:
            with naming(self._file.name), np.errstate(all="ignore"):
                open_axes(self._file)
        self._trainable = trainable
        self._backend = backend
        self.inputs = self._file.inputs
        self.outputs = self._file.outputs
        self.values: Mapping[str, Blob] = {}

    def build(self, *bottom: Blob, training: bool) -> Blob | Sequence[Blob]:
        """Make the ops of the file's nodes on ``bottom``."""
        graph = bottom[0].graph.root
        return self.lower(graph, bottom)

    def lower(self, graph: Graph, bottom: Sequence[Blob], *, once: bool = False) -> Sequence[Blob]:
        """Make the ops of the file's nodes in the current scope of a graph: a file without inputs has no bottom.

        If it is done but ``once``, weights that are put in another order are not kept as they were.
        """
        with (
            naming(self._file.name),
            constants.counted(),
            np.errstate(all="ignore"),
            graph.root._made(site=Site.caller(1)),
        ):  # numbers of a file may be NaN, and stay so
            return self._lowered(graph, bottom, once)

    def _lowered(self, graph: Graph, bottom: Sequence[Blob], once: bool) -> Sequence[Blob]:
        file = self._file
        if len(bottom) != len(self.inputs):
            raise GraphError(f"it has {len(self.inputs)} inputs ({', '.join(self.inputs)}), got {len(bottom)}")
        variable = self._variable if self._trainable else None
        lowering = Lowering(graph, file.opsets, file.declared, file.unusable, variable)
        values: Values = {}
        for (name, spec), blob in zip(self.inputs.items(), bottom, strict=True):
            if blob.dtype != spec.dtype or not may_equal(blob.shape, spec.shape):
                kind = DTypeError if blob.dtype != spec.dtype else ShapeError
                raise kind(f"input {name!r} is {spec}, blob {blob.name!r} is {blob.spec}")
            values[name] = Value(graph, blob.spec, blobs={usual(len(blob.shape)): blob})
        left = file.model.graph
        if self._backend == "onnxruntime":
            left, given = forward_part(
                file, graph, dict(zip(self.inputs, bottom, strict=True)), self._trainable, self._settings
            )
            values.update(given)
        if self._trainable:
            _untie(left)
        values.update(lowering.initializers(left, file.weights))
        if once:
            file.weights.clear()
        lowering.walk(left.node, values, self.outputs)
        read = {name for proto in left.node for name in names_read(proto)} if file.unusable else set()
        lowering.refused += [("Input", name, why) for name, why in file.unusable.items() if name not in read]
        if lowering.refused:
            hints = f"{self._hint(lowering.refused)}{self._elsewhere()}"
            raise GraphError(f"these nodes cannot be loaded:\n{listed(lowering.refused)}{hints}")
        outputs = [self._output(graph, name, values, set(bottom)) for name in self.outputs]
        self.values = FileValues(graph.current_scope, file.model.graph, self._backend, values)
        # A blob of which only the lengths are read is an input all the same: its feed gives them.
        unread = [blob for blob in bottom if blob.spec.axes and not blob.consumers]
        return [ops.dummy(blob, *unread) for blob in outputs] if unread else outputs

    def _hint(self, refused: Sequence[tuple[str, str, str]]) -> str:
        """Hint for shapes that do not fit because lengths are open."""
        axes = sorted({axis for spec in self.inputs.values() for axis in spec.axes})
        if not axes or not any("ShapeError" in why or "known" in why for _, _, why in refused):
            return ""
        return f"\n  open axes of its inputs are {', '.join(axes)}: fix one that is not by axes={{{axes[0]!r}: 48}}"

    def _elsewhere(self) -> str:
        """Hint at a backend for a model that cannot be loaded, if it takes and gives tensors alone."""
        if self._backend == "onnxruntime" or self._trainable:
            return ""
        if not_tensors(self._file):
            return ""
        return "\n  backend='onnxruntime' may compute it (--backend onnxruntime of the command line)"

    def _output(self, graph: Graph, name: str, values: Values, fed: set[Blob]) -> Blob:
        value = values.get(name)
        if value is None:
            raise GraphError(f"output {name!r} is given by no node")
        with graph.at(name=legal(name)):
            blob = value.blob()
            copied: Blob = ops.copy(blob) if blob in fed else blob
        return copied

    @property
    def weights(self) -> Mapping[str, Variable]:
        """Its variables by the names of the file's initializers; none unless it is trainable.

        Example:
            >>> graph = af.Graph("net")
            >>> _ = af.nn.InnerProduct(2, name="fc")(graph.blob("x", ["batch", 3]))
            >>> af.onnx.save(graph, "net.onnx")
            >>> net = af.onnx.Network("net.onnx", trainable=True)
            >>> _ = net(af.Graph("other").blob("x", ["batch", 3]))
            >>> {name: str(variable.spec) for name, variable in net.weights.items()}
            {'fc/weight': 'float32[2, 3]', 'fc/bias': 'float32[2]'}
        """
        hint = "" if self._trainable else ": load the file with trainable=True, and its floating weights are variables"
        return Named(dict(self._variables), f"{self._file.name} has no variable", hint)

    def _variable(self, name: str, scope: Graph, own: str, array: Any) -> Blob:
        """The variable of an initializer: made at the first build, in the scope that its name says."""
        known = self._variables.get(name)
        if known is None:
            free = scope.unique_name(own).rpartition("/")[2]
            known = self._variables[name] = scope.variable(free, array.shape, array.dtype, array)
        return known


def load(
    source: Source,
    *,
    trainable: bool = False,
    axes: Mapping[str, int | str] | None = None,
    backend: Backend = "actorflow",
    providers: Sequence[Any] | None = None,
    session_options: Any = None,
    threads: int | None = None,
    memory_budget: int | None = None,
    max_plans: int | None = None,
) -> Model:
    """The model that an ONNX file is: its graph, and its inputs and outputs under their names in the file.

    Each value in between has a name in the file, too: ``await model.run(inputs, fetch=["conv1_out"])``, and
    ``model.values["conv1_out"]`` is its blob. With ``trainable=True``, ``model.variables["fc.weight"]`` is the variable
    of a weight.

    Args:
        source: Path of the file, its contents as bytes, or an ``onnx.ModelProto``.
        trainable: Whether its weights are variables, under their names in the file, and not constants.
        axes: For names of open axes in the file, a length or another name, ``{"height": 224, "N": "batch"}``. For names
            of inputs, such by position: ``{"images": {0: "batch"}}`` opens an axis that the file fixes, if all that
            follows can have another length.
        backend: Name of the backend: ``"actorflow"`` (ordinary ops) or ``"onnxruntime"`` (one op, by ONNX Runtime).
        providers: Execution providers of ONNX Runtime, by preference; by default the processor.
        session_options: An ``onnxruntime.SessionOptions``, used as it is, but for ``threads``.
        threads: Number of threads that ONNX Runtime computes with; by default those that ``session_options`` says, or
            as many as the lane may have.
        memory_budget: Of the graph, see `Graph`.
        max_plans: Likewise.
    Raises:
        TypeError: if the source, or an argument, is of another type.
        OSError: if the file cannot be read.
        GraphError: if it is not a valid model; if nodes cannot be lowered, or need the length
            of an axis that is to be opened: the message lists all of them; if a number is not positive.
        MissingExtraError: if ONNX Runtime is to compute it, and is not installed.

    Example:
        >>> graph = af.Graph("doubled")
        >>> y = graph.blob("x", ["batch", 2]) * 2
        >>> af.onnx.save(af.Model(graph, {"values": graph["x"]}, {"doubled": y}), "doubled.onnx")
        >>> model = af.onnx.load("doubled.onnx")
        >>> model.run_sync({"values": [[1, 2]]})
        {'doubled': array([[2., 4.]], dtype=float32)}
    """
    limits = limits_of(memory_budget, max_plans)
    network = Network(
        source,
        trainable=trainable,
        axes=axes,
        backend=backend,
        providers=providers,
        session_options=session_options,
        threads=threads,
    )
    graph = Graph(network.name)
    graph.options = graph.options._replace(**limits)
    inputs = {name: graph.blob(graph.unique_name(legal(name)), *spec) for name, spec in network.inputs.items()}
    outputs = dict(zip(network.outputs, network.lower(graph, [*inputs.values()], once=True), strict=True))
    model = Model(graph, inputs, outputs, values=network.values, variables=network.weights)
    del network  # and the file's own form with it
    give_back_to_system()
    return model


def _untie(graph: GraphProto) -> None:
    """Make weights of copies of weights: PyTorch writes only one of several that are equal, though they are not tied.

    So a new batch norm's shift is its mean, too, and would be trained as such.
    """
    weights = {tensor.name: tensor for tensor in graph.initializer if is_trained(tensor)}
    outputs = {each.name for each in graph.output}
    for node in [*graph.node]:
        tied = weights.get(node.input[0]) if node.op_type == "Identity" and node.input else None
        if tied is not None and node.output[0] not in outputs and constants.affords(*tied.dims):
            copied = graph.initializer.add()
            copied.CopyFrom(tied)
            copied.name = node.output[0]
            weights[copied.name] = copied
            graph.node.remove(node)


def _read(source: Source) -> str | os.PathLike[str] | bytes:
    if isinstance(source, ModelProto):
        try:
            contents: bytes = source.SerializeToString()
            return contents
        except (EncodeError, ValueError) as error:  # of more than 2 GB
            raise GraphError(f"a model so large is loaded from its file: {error}") from error
    if isinstance(source, bytearray | memoryview):
        return bytes(source)
    return source


def _name_of(source: Source) -> str:
    if isinstance(source, str | os.PathLike):
        return legal(Path(source).stem)
    if isinstance(source, ModelProto):
        return legal(source.graph.name or "onnx")
    if isinstance(cast(object, source), bytes | bytearray | memoryview):
        return "onnx"
    raise TypeError(
        f"expected the path of an ONNX file, its contents as bytes, or an onnx.ModelProto, got {type(source).__name__}"
    )
