"""cuDNN's convolutions: library ``"cudnn"``; importing this module registers them, and needs nvidia-cudnn-frontend.

float16 and float32. Images lie as cuDNN's engines want them, with the channels last; weights do not (they want the
output channels first), so each call copies one weight, which is small beside the images. What cuDNN cannot do is done
by the kernels of `actorflow.ops.cuda.conv`, said once in the log; so is all where there is the frontend, but no cuDNN.

As in those, results repeat bit by bit, float16 is added up in float32, and float32 is not rounded to TF32 unless
``CUPY_TF32=1`` asks for it. The first call for each choice of shapes has cuDNN plan it, which takes its time, on the
host.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.errors import MissingExtraError, require
from actorflow.ops.cuda import conv
from actorflow.ops.cuda.launch import Array, contiguous
from actorflow.ops.nn.conv import Conv, ConvDown, ConvWeight
from actorflow.ops.nn.windows import is_even
from actorflow.ops.registry import kernel
from actorflow.threads import held_at_fork

_cudnn: Any = require("cudnn", extra="cudnn", purpose="kernel library 'cudnn'")
_log = logging.getLogger(__name__)
try:
    _cudnn.backend_version()
except Exception as error:  # the frontend is imported without cuDNN itself, too, and raises when it is used
    needed = "nvidia-cudnn-cu12 or nvidia-cudnn-cu13, as CuPy's CUDA, or a system's cuDNN"
    raise MissingExtraError(f"kernel library 'cudnn' needs cuDNN: {needed}: {error}", name="cudnn") from error


_kernel = partial(
    kernel,
    device="cuda",
    library="cudnn",
    dtypes=("float16", "float32"),
    supports=lambda operation: is_even(operation.pad),
    captures=False,
)

#: Most bytes that a plan may use beside its arrays.
_WORKSPACE_BYTES = 256 << 20

#: cuDNN's name of a convolution by what it gives, and which of the three it takes and gives.
_NODES = {"g": "fprop", "x": "dgrad", "weight": "wgrad"}
_ROLES = {
    "fprop": ("image", "filter", "loss"),
    "dgrad": ("loss", "filter", "image"),
    "wgrad": ("loss", "image", "filter"),
}

Shape = tuple[int, ...]


class _Convolution(NamedTuple):
    """Key of a plan: shapes with the channels last, of (images, filters, results) in cuDNN's words."""

    node: str  # fprop, dgrad or wgrad
    device: int
    dtype: str
    image: Shape
    filter: Shape  # (out, *kernel, in / groups), which says the number of groups
    loss: Shape  # also that of the result of fprop
    stride: Shape
    pad: Shape  # as wide before as after the images
    dilation: Shape


class _Plan(NamedTuple):
    """A convolution that cuDNN has planned: its graph, the tensors in the order of the arrays, and its workspace."""

    graph: Any
    tensors: tuple[Any, ...]
    workspace_bytes: int

    def run(self, arrays: Sequence[Array]) -> None:
        """Launch it on the current stream; the last array is written."""
        workspace = cupy.empty(max(1, self.workspace_bytes), np.uint8)
        # Addresses: as arrays they would be passed through DLPack, which waits for the default stream.
        addresses = {tensor: _address(array) for tensor, array in zip(self.tensors, arrays, strict=True)}
        with _using_handles:  # else another thread's stream would be set between the two
            handle = _handle(cupy.cuda.runtime.getDevice(), "runs")
            _cudnn.set_stream(handle=handle, stream=cupy.cuda.get_current_stream().ptr)
            self.graph.execute(addresses, _address(workspace), handle=handle)


def _address(array: Array) -> int:
    address: int = array.data.ptr
    return address


#: Held by the thread that uses a handle: loops of several threads, and lazy arrays, share them. Plans are made with
#: handles of their own, as that takes long: a loop that runs a plan does not wait for it.
_using_handles, _planning = held_at_fork(threading.RLock()), held_at_fork(threading.RLock())


@cache
def _handle(device: int, purpose: str) -> Any:
    """The handle for a device, which is the current one, that runs or plans; kept as long as the process."""
    return _cudnn.create_handle()


@lru_cache(maxsize=1024)
def _planned(convolution: _Convolution) -> _Plan | None:
    """The plan; None where cuDNN has none or does not start, which is logged."""
    if 0 in (*convolution.image, *convolution.filter, *convolution.loss):
        return None
    try:
        with _planning:
            return _plan(convolution)
    except (_cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        _log.warning("cuDNN cannot do %s, CuPy does it: %s", convolution, error)
        return None


def _plan(convolution: _Convolution) -> _Plan:
    data_type = _cudnn.data_type.HALF if convolution.dtype == "float16" else _cudnn.data_type.FLOAT
    graph = _cudnn.pygraph(
        io_data_type=data_type,
        intermediate_data_type=_cudnn.data_type.FLOAT,
        compute_data_type=_cudnn.data_type.FLOAT,
        handle=_handle(convolution.device, "plans"),
    )

    def tensor(name: str) -> Any:
        dim, stride = _geometry(getattr(convolution, name))
        return graph.tensor(name=name, dim=dim, stride=stride, data_type=data_type)

    how = {"padding": list(convolution.pad), "stride": list(convolution.stride), "dilation": list(convolution.dilation)}
    first, second, result = _ROLES[convolution.node]
    inputs = tensor(first), tensor(second)
    names = ("image", "weight") if convolution.node == "fprop" else (first, second)
    output = getattr(graph, f"conv_{convolution.node}")(**dict(zip(names, inputs, strict=True)), **how)
    dim, stride = _geometry(getattr(convolution, result))
    output.set_output(True).set_dim(dim).set_stride(stride).set_data_type(data_type)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([_cudnn.heur_mode.A, _cudnn.heur_mode.FALLBACK])
    graph.deselect_numeric_notes(_unwanted(convolution.dtype))
    graph.deselect_workspace_greater_than(_WORKSPACE_BYTES)
    graph.check_support()
    graph.build_plans()
    return _Plan(graph, (*inputs, output), graph.get_workspace_size())


def _geometry(shape: Shape) -> tuple[list[int], list[int]]:
    """Sizes and strides as cuDNN counts them, (batch, channels, *size), of a contiguous array."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return [shape[0], shape[-1], *shape[1:-1]], [strides[0], 1, *strides[1:-1]]


def _unwanted(dtype: str) -> list[Any]:
    notes = _cudnn.numerical_note
    unwanted = [notes.NONDETERMINISTIC, notes.REDUCED_PRECISION_REDUCTION]
    if dtype == "float32" and os.environ.get("CUPY_TF32", "0") != "1":
        unwanted += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
    return unwanted


def _find(operation: Any, image: Shape, weight: Shape, loss: Shape, dtype: np.dtype[Any]) -> _Plan | None:
    """The plan for a weight of (*kernel, in / groups, out)."""
    w = operation.windows(image[1:-1], weight[:-2])
    shapes: tuple[Shape, ...] = (image, (weight[-1], *weight[:-1]), loss)
    how: tuple[Shape, ...] = (w.stride, tuple(before for before, _ in w.pad), w.dilation)
    if len(w.size) == 1:  # cuDNN has no rows: planes of height 1
        shapes = tuple((shape[0], 1, *shape[1:]) for shape in shapes)
        how = tuple((none, *values) for none, values in zip((1, 0, 1), how, strict=True))
    return _planned(_Convolution(_NODES[operation.gives], cupy.cuda.runtime.getDevice(), dtype.name, *shapes, *how))


@_kernel(Conv)
@_kernel(ConvDown)
@_kernel(ConvWeight)
def _compute(operation: Conv | ConvDown | ConvWeight, inputs: list[Array], outputs: list[Array]) -> None:
    g, x, weight = operation.factors(inputs, outputs)
    plan = _find(operation, x.shape, weight.shape, g.shape, g.dtype)
    if plan is None:
        cupys: Any = {"g": conv.conv, "x": conv.conv_down, "weight": conv.conv_weight}[operation.gives]
        cupys(operation, inputs, outputs)
    elif operation.gives == "weight":
        turned = cupy.empty((weight.shape[-1], *weight.shape[:-1]), weight.dtype)
        plan.run((contiguous(g), contiguous(x), turned))
        cupy.copyto(weight, turned.transpose(*range(1, weight.ndim), 0))
    else:
        plan.run((contiguous(inputs[0]), contiguous(weight.transpose(-1, *range(weight.ndim - 1))), outputs[0]))
