"""`tools/cuda-extra`, asked of drivers that are made here."""

import ctypes
import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PATH = Path(__file__).parents[1] / "tools" / "cuda-extra"


@pytest.fixture
def tool() -> ModuleType:
    loader = SourceFileLoader("cuda_extra", str(PATH))
    spec = importlib.util.spec_from_loader("cuda_extra", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    dont_write, __import__("sys").dont_write_bytecode = __import__("sys").dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        __import__("sys").dont_write_bytecode = dont_write
    return module


class Driver:
    """Stand-in for the `ctypes.CDLL` of a driver of this version."""

    def __init__(self, version: int, status: int = 0) -> None:
        self.version, self.status = version, status

    def cuDriverGetVersion(self, pointer: Any) -> int:  # noqa: N802  the driver's name
        pointer._obj.value = self.version
        return self.status


@pytest.mark.parametrize(
    ("version", "extra"), [(12000, "cuda12"), (12080, "cuda12"), (13000, "cuda13"), (14020, "cuda13")]
)
def test_extra_of_a_driver(
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: int,
    extra: str,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(version))
    assert tool.main() == 0
    assert capsys.readouterr().out == f"{extra}\n"


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (None, "no NVIDIA driver: looked for libcuda.so.1"),
        (Driver(11080), "its driver knows CUDA 11.8; CuPy needs 12 or newer"),
        (Driver(0, status=999), "cuDriverGetVersion of libcuda.so.1 gave error 999"),
    ],
)
def test_driver_that_is_of_no_use(
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    driver: Driver | None,
    message: str,
) -> None:
    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert tool.main() == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
