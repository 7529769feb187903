"""Tests in this folder compute on a CUDA device, and are marked so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from actorflow.devices.cuda import CudaDevice, CudaOptions
from actorflow.place import Place

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
