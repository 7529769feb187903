"""The functions of CuPy that the package calls exist and behave as the fake does; needs no GPU."""

import inspect
import re
import weakref
from pathlib import Path
from sys import getrefcount
from typing import Any

import numpy as np
import pytest

import actorflow
from actorflow.devices.cuda import CudaDevice
from actorflow.devices.memory import UNSHARED
from actorflow.place import Place

cupy = pytest.importorskip("cupy")

SOURCES = sorted((Path(actorflow.__file__).parent / "devices" / "cuda").glob("*.py"))
OF_RUNTIME = re.compile(r"\bruntime\.([A-Za-z]\w+)")
OF_CUPY = re.compile(r"\bcupy\.((?:cuda\.)?(?:memory\.)?[A-Za-z_]\w+(?:\.null|\.ptds)?)")


def names() -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    of_runtime = {f"cuda.runtime.{name}" for name in OF_RUNTIME.findall(text)}
    return of_runtime | set(OF_CUPY.findall(text)) - {"cuda", "cuda.runtime", "cuda.memory"}


@pytest.mark.parametrize("name", sorted(names()))
def test_is_there(name: str) -> None:
    value: Any = cupy
    for part in name.split("."):
        value = getattr(value, part)


def test_there_are_names() -> None:
    assert names() > {"empty", "from_dlpack", "cuda.Stream", "cuda.runtime.eventQuery", "cuda.memory.OutOfMemoryError"}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (cupy.cuda.Stream.__init__, {"non_blocking", "priority"}),
        (cupy.cuda.Event.__init__, {"block", "disable_timing"}),
        (cupy.cuda.Stream.record, {"event"}),
        (cupy.cuda.Stream.wait_event, {"event"}),
        (cupy.cuda.Stream.begin_capture, set()),
        (cupy.cuda.Stream.end_capture, set()),
        (cupy.cuda.using_allocator, {"allocator"}),
    ],
)
def test_arguments(function: Any, arguments: set[str]) -> None:
    assert set(inspect.signature(function).parameters) >= arguments


def array(values: np.ndarray[Any, Any]) -> Any:
    """An array of CuPy on memory that it does not own, which needs no GPU."""
    memory = cupy.cuda.UnownedMemory(values.ctypes.data, values.nbytes, values, 0)
    return cupy.ndarray(values.shape, values.dtype, cupy.cuda.MemoryPointer(memory, 0), values.strides)


def test_arrays_are_what_the_pool_wants() -> None:
    buffer = array(np.zeros((4, 8), "f4"))
    assert (buffer.shape, buffer.dtype, buffer.nbytes, buffer.base) == ((4, 8), np.dtype("f4"), 128, None)
    assert (buffer.data.device_id, buffer.flags.c_contiguous) == (0, True)
    assert weakref.ref(buffer)() is buffer
    assert getrefcount(buffer) == UNSHARED
    view = buffer[1:]
    assert view.base is buffer
    assert getrefcount(buffer) > UNSHARED
    assert view.reshape(-1).base is buffer


def test_arrays_of_a_device() -> None:
    device = CudaDevice(Place.parse("cuda:0"))
    assert device.is_array(array(np.zeros(3)))
    assert not CudaDevice(Place.parse("cuda:1")).is_array(array(np.zeros(3)))


def test_errors_have_a_status() -> None:
    runtime = cupy.cuda.runtime
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorIllegalAddress") as caught:
        runtime.check_status(700)
    assert caught.value.status == 700
