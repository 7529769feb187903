"""CUDA devices without a GPU: the real devices on a CuPy that is made up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from actorflow.devices.cuda import CudaDevice, CudaOptions
from actorflow.place import Place
from tests.devices.cuda import fake_cupy


@pytest.fixture
def fake() -> Any:
    """The module of the fake: its classes and status codes."""
    return fake_cupy


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with two devices, in the place of CuPy."""
    machine = fake_cupy.FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", machine)
    return machine


@pytest.fixture
def device(cupy: Any) -> Iterator[CudaDevice]:
    """Device 1, so that it is not the current one by chance."""
    device = CudaDevice(Place.parse("cuda:1"), CudaOptions(timing=False))
    yield device
    device.close()
    device.join()
