"""Requests to cuDNN for convolutions, with a stand-in for it that computes on the host."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from actorflow import ops
from actorflow.errors import MissingExtraError
from actorflow.ops import registry
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from tests.support.kernels import compute_cpu
from tests.support.waiting import in_threads

STREAM = 1234


class UnsupportedError(Exception):
    pass


class Tensor:
    def __init__(self, dim: list[int], stride: list[int]) -> None:
        self.dim, self.stride, self.is_output = dim, stride, False

    def set_output(self, is_output: bool) -> Tensor:
        self.is_output = is_output
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        self.stride = stride
        return self

    def set_data_type(self, data_type: Any) -> Tensor:
        return self

    def view(self, array: np.ndarray) -> np.ndarray:
        """The array's memory with these sizes and strides."""
        assert array.size == np.prod(self.dim)
        strides = [stride * array.itemsize for stride in self.stride]
        return np.lib.stride_tricks.as_strided(array, self.dim, strides)


class Graph:
    """One convolution, NCHW, computed from the definition."""

    built: list[Graph]
    arrays: dict[int, np.ndarray]

    def __init__(self, **options: Any) -> None:
        assert options["handle"] == "handle"
        self.built.append(self)
        self.steps: list[str] = []

    def tensor(self, *, name: str, dim: list[int], stride: list[int], data_type: Any) -> Tensor:
        return Tensor(dim, stride)

    def conv_fprop(self, image: Tensor, weight: Tensor, **how: Any) -> Tensor:
        return self._node(image, weight, None, how)

    def conv_dgrad(self, loss: Tensor, filter: Tensor, **how: Any) -> Tensor:  # noqa: A002
        return self._node(None, filter, loss, how)

    def conv_wgrad(self, image: Tensor, loss: Tensor, **how: Any) -> Tensor:
        return self._node(image, None, loss, how)

    def _node(self, image: Tensor | None, filters: Tensor | None, loss: Tensor | None, how: Any) -> Tensor:
        self.how, self.output = how, Tensor([], [])
        self.roles = [self.output if tensor is None else tensor for tensor in (image, filters, loss)]
        return self.output

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.steps.append(name)

    def check_support(self) -> None:
        if self.how["stride"] == [3, 3]:
            raise UnsupportedError("strides of 3")

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, addresses: dict[Tensor, int], workspace: int, handle: str) -> None:
        assert handle == "handle"
        assert workspace
        assert self.steps[-1] == "build_plans"
        image, filters, loss = (role.view(self.arrays[addresses[role]]) for role in self.roles)
        pad, steps, dilation = (self.how[name] for name in ("padding", "stride", "dilation"))
        assert len(pad) == len(steps) == len(dilation) == image.ndim - 2
        padded = np.pad(
            np.zeros_like(image) if self.output is self.roles[0] else image,
            [(0, 0), (0, 0), *zip(pad, pad, strict=True)],
        )
        self.output.view(self.arrays[addresses[self.output]])[...] = 0
        channels, groups = filters.shape[1], image.shape[1] // filters.shape[1]
        for n, k, *window in np.ndindex(*loss.shape):
            axes = zip(window, steps, dilation, filters.shape[2:], strict=True)
            seen = tuple(slice(i * s, i * s + d * (size - 1) + 1, d) for i, s, d, size in axes)
            group = k // (filters.shape[0] // groups)
            where = (n, slice(group * channels, (group + 1) * channels), *seen)
            if self.output is self.roles[0]:
                padded[where] += loss[(n, k, *window)] * filters[k]
            elif self.output is self.roles[1]:
                filters[k] += loss[(n, k, *window)] * padded[where]
            else:
                loss[(n, k, *window)] = (padded[where] * filters[k]).sum()
        if self.output is self.roles[0]:
            inside = [slice(p, p + size) for p, size in zip(pad, image.shape[2:], strict=True)]
            image[...] = padded[(slice(None), slice(None), *inside)]


@pytest.fixture
def cudnn(emulated) -> Iterator[SimpleNamespace]:
    """``kernels`` of the library by operation, its ``module``, and the graphs it has ``built``."""
    stand_in = ModuleType("cudnn")
    built: list[Graph] = []
    arrays: dict[int, np.ndarray] = {}
    graph = type("pygraph", (Graph,), {"built": built, "arrays": arrays})
    streams: list[int] = []
    notes = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION", "TENSOR_CORE", "DOWN_CONVERT_INPUTS")
    vars(stand_in).update(
        pygraph=graph,
        backend_version=lambda: 92_000,
        create_handle=lambda: "handle",
        set_stream=lambda *, handle, stream: streams.append(stream),
        data_type=SimpleNamespace(HALF="half", FLOAT="float"),
        heur_mode=SimpleNamespace(A="a", FALLBACK="fallback"),
        numerical_note=SimpleNamespace(**{note: note for note in notes}),
        cudnnGraphNotSupportedError=UnsupportedError,
    )

    def address(array: np.ndarray) -> int:
        assert array.flags.c_contiguous
        arrays[array.ctypes.data] = array
        return array.ctypes.data

    own = {f"actorflow.ops.cuda.{name}": module for name, module in emulated.modules.items()}
    registered: dict[Any, Any] = {}
    with (
        mock.patch.dict(sys.modules, {"cupy": emulated.emulator.cupy, "cudnn": stand_in, **own}),
        mock.patch.object(registry, "_kernels", registered),
    ):
        package = sys.modules["actorflow.ops.cuda"] = emulated.package
        sys.modules.pop("actorflow.ops.cuda.cudnn", None)
        module = importlib.import_module("actorflow.ops.cuda.cudnn")
        del package.cudnn
    with mock.patch.object(module, "_address", address):
        kernels = {key.operation: kernel for key, kernel in registered.items()}
        yield SimpleNamespace(kernels=kernels, module=module, built=built, streams=streams)


def run(cudnn: SimpleNamespace, operation: ops.Operation, shape: tuple[int, ...], *arrays: np.ndarray) -> np.ndarray:
    output = np.full(shape, np.nan, arrays[0].dtype)
    cudnn.kernels[operation.kind].function(operation, list(arrays), [output])
    return output


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad", "dilation", "groups"),
    [
        ((6, 7), (3, 2), 1, 0, 1, 1),
        ((6, 7), (3, 2), (2, 1), (1, 2), 1, 1),
        ((6, 7), (3, 2), 3, (1, 2), 1, 1),
        ((6, 7), (2, 2), 1, 1, (1, 2), 2),
        ((6, 7), (3, 3), 1, 1, 1, 4),
        ((9,), (3,), 2, 1, 1, 1),
        ((3, 4, 3), (2, 2, 3), 1, (1, 0, 1), 1, 2),
    ],
)
def test_all_three_products_are_those_of_the_cpu(cudnn, size, kernel, stride, pad, dilation, groups, caplog) -> None:
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((2, *size, 4)), random.standard_normal((*kernel, 4 // groups, 8))
    how = (stride, pad, dilation, groups)
    (y,) = compute_cpu(ops.Conv(*how), x, weight)
    g = random.standard_normal(y.shape)
    x, weight, g, y = (array.astype(np.float32) for array in (x, weight, g, y))
    down, of_weight = ConvDown(*how, size=size), ConvWeight(*how, kernel=kernel)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            np.testing.assert_allclose(run(cudnn, ops.Conv(*how), y.shape, x, weight), y, rtol=1e-4, atol=1e-4)
            for operation, given, shape in ((down, weight, x.shape), (of_weight, x, weight.shape)):
                (expected,) = compute_cpu(operation, g, given)
                np.testing.assert_allclose(run(cudnn, operation, shape, g, given), expected, rtol=1e-4, atol=1e-4)
    assert len(cudnn.built) == 3
    assert cudnn.streams == ([] if stride == 3 else [STREAM] * 6)
    assert len(caplog.records) == (3 if stride == 3 else 0)


def test_threads_launch_on_their_own_streams(cudnn, monkeypatch) -> None:
    """They share cuDNN's handle, whose stream each of them sets."""
    module, chosen = cudnn.module, [0]
    launched: list[bool] = []

    def set_stream(*, handle: str, stream: int) -> None:
        chosen[0] = stream
        time.sleep(0)  # the moment for another thread

    monkeypatch.setattr(module._cudnn, "set_stream", set_stream)
    monkeypatch.setattr(
        module._cudnn.pygraph, "execute", lambda *_, **__: launched.append(chosen[0] == threading.get_ident())
    )
    monkeypatch.setattr(
        module.cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=threading.get_ident()), raising=False
    )
    x, weight = np.ones((1, 3, 3, 1), np.float32), np.ones((1, 1, 1, 1), np.float32)

    def work() -> None:
        for _ in range(100):
            run(cudnn, ops.Conv(1, 0, 1, 1), x.shape, x, weight)

    in_threads(*[work] * 4)
    assert launched == [True] * 400


def test_a_border_that_is_wider_on_one_side_is_left_to_cupy(cudnn) -> None:
    for kernel in cudnn.kernels.values():
        assert kernel.supports(ops.Conv(pad=((1, 1), 2)))
        assert not kernel.supports(ops.Conv(pad=((1, 0), 2)))


def test_an_empty_batch_is_left_to_cupy(cudnn) -> None:
    x, weight, g = (np.ones(shape, np.float32) for shape in [(0, 4, 4, 3), (3, 3, 3, 2), (0, 2, 2, 2)])
    assert run(cudnn, ops.Conv(), g.shape, x, weight).size == 0
    np.testing.assert_array_equal(run(cudnn, ConvWeight(kernel=(3, 3)), weight.shape, g, x), np.zeros_like(weight))
    assert not cudnn.built


def test_float32_is_not_rounded_unless_that_is_asked_for(cudnn, monkeypatch) -> None:
    assert "TENSOR_CORE" in cudnn.module._unwanted("float32")
    assert "TENSOR_CORE" not in cudnn.module._unwanted("float16")
    monkeypatch.setenv("CUPY_TF32", "1")
    assert "TENSOR_CORE" not in cudnn.module._unwanted("float32")


def test_where_cudnn_does_not_start_cupy_convolves(cudnn, caplog, monkeypatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")

    monkeypatch.setattr(cudnn.module._cudnn, "create_handle", fail)
    cudnn.module._handle.cache_clear()
    x, weight = (np.random.default_rng(0).standard_normal(shape).astype("f") for shape in [(2, 5, 5, 3), (3, 3, 3, 4)])
    (y,) = compute_cpu(ops.Conv(), x, weight)
    np.testing.assert_allclose(run(cudnn, ops.Conv(), y.shape, x, weight), y, rtol=1e-4, atol=1e-4)
    assert "CuPy does it: CUDNN_STATUS_NOT_INITIALIZED" in caplog.text


def unloadable() -> Any:
    """The frontend where there is no cuDNN: it is imported, and raises when it is used."""

    def raise_error() -> None:
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    frontend = ModuleType("cudnn")
    vars(frontend).update(backend_version=raise_error)
    return frontend


@pytest.mark.parametrize(
    ("frontend", "message"),
    [
        (None, r"kernel library 'cudnn' needs 'cudnn': pip install"),
        (unloadable(), r"kernel library 'cudnn' needs cuDNN: nvidia-cudnn-cu12 or .*: Unable to find symbol cudnnGet"),
    ],
    ids=["no frontend", "no cuDNN"],
)
def test_what_is_missing_is_said_before_a_kernel_is_registered(emulated, frontend, message) -> None:
    own = {f"actorflow.ops.cuda.{name}": module for name, module in emulated.modules.items()}
    missing = {"cupy": emulated.emulator.cupy, "cudnn": frontend, "actorflow.ops.cuda": emulated.package, **own}
    registered: dict[Any, Any] = {}
    with mock.patch.dict(sys.modules, missing), mock.patch.object(registry, "_kernels", registered):
        sys.modules.pop("actorflow.ops.cuda.cudnn", None)
        with pytest.raises(MissingExtraError, match=message):
            importlib.import_module("actorflow.ops.cuda.cudnn")
    assert not registered
