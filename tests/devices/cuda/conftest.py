"""CUDA devices without a GPU: the real devices on a CuPy that is made up."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from actorflow.devices.cuda import CudaDevice, CudaOptions
from actorflow.place import Place


def _load_fake() -> Any:
    spec = importlib.util.spec_from_file_location("actorflow_fake_cupy", Path(__file__).with_name("fake_cupy.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_FAKE = _load_fake()


@pytest.fixture
def fake() -> Any:
    """The module of the fake: its classes and status codes."""
    return _FAKE


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with two devices, in the place of CuPy."""
    machine = _FAKE.FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", machine)
    return machine


@pytest.fixture
def device(cupy: Any) -> CudaDevice:
    """Device 1, so that it is not the current one by chance."""
    return CudaDevice(Place.parse("cuda:1"), CudaOptions(timing=False))
