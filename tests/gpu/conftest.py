"""Tests in this folder compute on a CUDA device, and are marked so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from actorflow.devices.cuda import CudaDevice, CudaOptions
from actorflow.ops import Operation, find_kernel, load_library
from actorflow.place import Place
from actorflow.spec import TensorSpec

#: Copies after so many clock cycles.
SLOW_COPY = r"""
extern "C" __global__ void slow_copy(const float* source, float* target, int size, long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) target[i] = source[i];
}
"""
CYCLES = 20_000_000


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for the tests below this folder alone."""
    item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def cupy() -> ModuleType:
    """CuPy; test modules must not import it themselves, since they are collected without it, too.

    With ``ACTORFLOW_WITHOUT_POOL=1`` each array is a piece of memory of its own, so that compute-sanitizer sees what is
    read or written beside it.
    """
    cupy = __import__("cupy")
    if os.environ.get("ACTORFLOW_WITHOUT_POOL"):
        cupy.cuda.set_allocator(None)
    return cupy


@pytest.fixture
def device(cupy: ModuleType) -> Iterator[CudaDevice]:
    device = CudaDevice(Place.parse("cuda:0"), CudaOptions(timing=True))
    yield device
    device.close()
    device.join()


@pytest.fixture
def slow_copy(cupy: Any) -> Callable[[Any, Any], None]:
    """``slow_copy(source, target)`` of float32 arrays, on the current stream; takes some 10 ms."""
    kernel = cupy.RawKernel(SLOW_COPY, "slow_copy")
    kernel.compile()

    def launch(source: Any, target: Any) -> None:
        kernel((16,), (256,), (source, target, np.int32(target.size), np.int64(CYCLES)))

    return launch


def _unwritten(cupy: ModuleType, spec: TensorSpec) -> Any:
    """An array whose elements are nan, or odd."""
    memory = cupy.full(spec.size_bytes + 16, 0xFF, np.uint8)
    return memory[: spec.size_bytes].view(spec.dtype).reshape(spec.shape)


@pytest.fixture(scope="session")
def compute_by(cupy: ModuleType) -> Callable[[str], Callable[..., list[np.ndarray]]]:
    """``compute_by(library)(operation, *arrays, frame=0)``: outputs of the library's kernel."""

    def compute(library: str) -> Callable[..., list[np.ndarray]]:
        load_library("cuda", library)

        def run(operation: Operation, *arrays: np.ndarray, frame: int = 0) -> list[np.ndarray]:
            specs = operation.infer(*(TensorSpec(a.shape, a.dtype) for a in arrays))
            assert specs is not None
            kernel = find_kernel(operation, "cuda", (arrays[0] if arrays else specs[0]).dtype, libraries=(library,))
            with cupy.cuda.Stream(non_blocking=True) as stream:
                inputs = [cupy.asarray(a) for a in arrays]
                if kernel.returns:
                    outputs = kernel.function(operation, inputs, None)
                else:
                    outputs = [_unwritten(cupy, spec) for spec in specs]
                    kernel.function(operation, inputs, outputs, *([frame] if kernel.random else []))
                stream.synchronize()
            return [cupy.asnumpy(output) for output in outputs]

        return run

    return compute
