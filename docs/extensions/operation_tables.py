"""The table of operations: made of the registry of kernels, of what each operation accepts, and of ONNX files of each.

What is said of an operation is found out with the case of it that tests have: no list is kept up by hand, but for the
names that other libraries have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock

import actorflow as af
from actorflow import ops
from actorflow.ops import Operation, registry

#: Kinds of devices and libraries, with the heads of their columns.
LIBRARIES = {
    ("cpu", "numpy"): "NumPy",
    ("cuda", "cupy"): "CUDA",
}
DTYPES = {
    "bool": ["bool"],
    "int": ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    "float": ["float16", "float32", "float64"],
    "complex": ["complex64", "complex128"],
}
EVERY = [name for names in DTYPES.values() for name in names]
#: What other libraries call a function that has another name here; else it is NumPy's name.
ELSEWHERE = {
    "absolute": "`np.abs`, `torch.abs`",
    "attention": "`F.scaled_dot_product_attention`",
    "average_pool": "`F.avg_pool2d`",
    "batch_norm": "`F.batch_norm`",
    "bias": "`x + bias`",
    "binary_cross_entropy": "`F.binary_cross_entropy`",
    "binary_cross_entropy_with_logits": "`F.binary_cross_entropy_with_logits`",
    "broadcast_to": "`np.broadcast_to`, `torch.expand`",
    "cast": "`x.astype`, `x.to`",
    "clip_by_global_norm": "`torch.nn.utils.clip_grad_norm_`",
    "concat": "`np.concat`, `torch.cat`",
    "conv": "`F.conv1d`, `F.conv2d`, `F.conv3d`",
    "conv_transpose": "`F.conv_transpose2d`",
    "dropout": "`F.dropout`",
    "elu": "`F.elu`",
    "embedding": "`F.embedding`",
    "erf": "`torch.erf`",
    "gelu": "`F.gelu`",
    "global_average": "`F.adaptive_avg_pool2d(x, 1)`",
    "global_max": "`F.adaptive_max_pool2d(x, 1)`",
    "group_norm": "`F.group_norm`",
    "hard_sigmoid": "`F.hardsigmoid`",
    "hard_swish": "`F.hardswish`",
    "huber_loss": "`F.huber_loss`",
    "inner": "`x @ weight.T`, `F.linear`",
    "instance_norm": "`F.instance_norm`",
    "l1_loss": "`F.l1_loss`",
    "layer_norm": "`F.layer_norm`",
    "leaky_relu": "`F.leaky_relu`",
    "log_softmax": "`F.log_softmax`",
    "lrn": "`F.local_response_norm`",
    "max_pool": "`F.max_pool2d`",
    "mse_loss": "`F.mse_loss`",
    "nll_loss": "`F.nll_loss`",
    "normal_cdf": "`torch.special.ndtr`",
    "one_hot": "`F.one_hot`",
    "relu": "`F.relu`",
    "resize": "`F.interpolate`",
    "rms_norm": "`F.rms_norm`",
    "scatter": "`np.put_along_axis`, `torch.scatter`",
    "sigmoid": "`torch.sigmoid`",
    "silu": "`F.silu`",
    "slice": "`x[...]`",
    "softmax": "`F.softmax`",
    "softmax_loss": "`F.cross_entropy`",
    "softplus": "`F.softplus`",
    "take_along_axis": "`np.take_along_axis`, `torch.gather`",
    "top_k": "`torch.topk`",
}
#: Functions of ``af.ops`` that make no op.
NOT_OPERATIONS = {"binary", "unary", "find_kernel", "kernel", "load_library", "register_library", "registered_kernels"}


def load_libraries() -> None:
    """Register the kernels of all libraries, also of those whose packages are not installed: nothing is computed."""
    for (kind, library), package in zip(LIBRARIES, ("", "cupy"), strict=True):
        try:
            registry.load_library(kind, library)
        except ImportError:
            with mock([package]):
                import_module(registry._modules[kind, library])


def public() -> Iterator[tuple[str, Any]]:
    """Names and values of the public functions that make ops."""
    for name in ops.__all__:
        value = getattr(ops, name)
        if callable(value) and not isinstance(value, type) and name not in NOT_OPERATIONS:
            yield name, value
    for room in (ops.linalg, ops.fft):
        prefix = room.__name__.rpartition(".")[2]
        for name in room.__all__:
            if getattr(ops, name, None) is not getattr(room, name):
                yield f"{prefix}.{name}", getattr(room, name)


class Row:
    """What can be said of the operation that a function makes."""

    def __init__(self, case: tuple[Operation, list[Any]]) -> None:
        self.operation, self.inputs = case
        self.kind = type(self.operation)

    @property
    def accepted(self) -> list[str]:
        """Dtypes that the inputs may have which are floating in the case, or all of them where none is."""
        varied = [np.asarray(x).dtype.kind in "fc" for x in self.inputs]
        varied = varied if any(varied) else [True] * len(varied)
        found = []
        for name in EVERY if self.inputs else []:
            dtypes = [name if change else np.asarray(x).dtype for x, change in zip(self.inputs, varied, strict=True)]
            specs = [af.TensorSpec.of(np.shape(x), dtype) for x, dtype in zip(self.inputs, dtypes, strict=True)]
            try:
                self.operation.infer(*specs)
            except (af.ActorflowError, TypeError, ValueError):
                continue
            found.append(name)
        return found

    def dtypes(self, device: str, library: str) -> list[str]:
        """Those of the accepted dtypes that a library has a kernel for."""
        keys = {key.dtype for key in registry.registered_kernels() if key[:3] == (self.kind.__name__, device, library)}
        maker = registry._makers.get((device, library))
        every = self.accepted or EVERY

        def made(name: str) -> bool:
            key = registry.KernelKey(self.kind.__name__, device, library, name, registry.ANY)
            try:
                return maker is not None and maker(self.kind, key) is not None
            except Exception:  # noqa: BLE001  it may need a device to make one
                return False

        return [name for name in every if registry.ANY in keys or name in keys or made(name)]

    @property
    def onnx(self) -> str:
        """Operators of a file that has this operation alone."""
        import onnx

        graph = af.Graph("one")
        try:
            blobs = [graph.blob(f"x{i}", np.shape(x), np.asarray(x).dtype) for i, x in enumerate(self.inputs)]
            made = graph.apply(self.operation, *blobs)
            results = made if isinstance(made, tuple) else (made,)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "one.onnx"
                outputs = {f"y{i}": y for i, y in enumerate(results)}
                af.onnx.save(af.Model(graph, {blob.name: blob for blob in blobs}, outputs), path)
                kinds = [node.op_type for node in onnx.load(path).graph.node]
        except (af.ActorflowError, TypeError, ValueError):
            return ""
        helping = {"Constant", "Transpose", "Shape", "Cast", "Unsqueeze", "Squeeze"}
        found = dict.fromkeys([kind for kind in kinds if kind not in helping] or kinds[:1])
        return "" if [*found] == ["Identity"] else ", ".join(found)


def rows() -> Iterator[tuple[str, Row | None]]:
    """Functions and their operations; None for what is made of several."""
    from tests.operations import EACH

    by_name = {}
    for operation, inputs in EACH.values():
        kind = type(operation)
        for name in (kind.__name__.lower(), kind.function_name):
            by_name.setdefault(name, Row((operation, inputs)))
    for name, _ in public():
        short = name.rpartition(".")[2]
        yield name, by_name.get(short) or by_name.get(short.replace("_", ""))


def in_short(found: list[str]) -> str:
    """Dtypes by kinds, where all of a kind are among them."""
    words = []
    if set(EVERY) <= set(found):
        return "all"
    for word, names in DTYPES.items():
        words += [word] if set(names) <= set(found) else [name for name in names if name in found]
    return ", ".join(words)


def elsewhere(name: str) -> str:
    """The name that NumPy or PyTorch have."""
    short = name.rpartition(".")[2]
    if short in ELSEWHERE:
        return ELSEWHERE[short]
    return f"`np.{name}`" if hasattr(np, name) or name.partition(".")[0] in ("linalg", "fft") else ""


def table() -> Iterator[str]:
    """Lines of Markdown."""
    load_libraries()
    yield "| function | " + " | ".join(LIBRARIES.values()) + " | gradient | as ONNX | elsewhere |"
    yield "|" + "---|" * (len(LIBRARIES) + 4)
    for name, row in rows():
        if row is None:
            kernels, gradient, onnx = ["made of others", *[""] * (len(LIBRARIES) - 1)], "of its parts", ""
        else:
            kernels = [in_short(row.dtypes(*key)) for key in LIBRARIES]
            gradient, onnx = "yes" if row.kind.differentiable else "no", row.onnx
        cells = [f"{{py:obj}}`{name} <actorflow.ops.{name}>`", *kernels, gradient, onnx, elsewhere(name)]
        yield "| " + " | ".join(cells) + " |"


class OperationTable(Directive):
    """The table in a page."""

    def run(self) -> list[nodes.Node]:
        holder = nodes.Element()
        self.state.nested_parse(StringList([*table()], "operations"), self.content_offset, holder)
        return holder.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of it."""
    app.add_directive("operations", OperationTable)
    return {"parallel_read_safe": True}
