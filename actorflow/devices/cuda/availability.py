"""CUDA devices of this machine that CuPy can use, and the packages to install where there are none."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from typing import Any, Literal, NamedTuple

from actorflow.errors import DeviceUnavailableError
from actorflow.place import Place

#: Major versions of CUDA that there is an extra for.
_OLDEST, _NEWEST = 12, 13
_DRIVER_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

_NO_DEVICE = 100  # an error of the CUDA runtime

_process: int | None = None  # the one that has used CUDA


class CudaFinding(NamedTuple):
    """Finding about CUDA on this machine.

    Attributes:
        name: ``device cuda``, or ``device cuda:0`` and so on where there are some.
        status: ``ok``; ``missing``: can be added; ``broken``: there, but does not work.
        detail: Name, memory and versions, or the problem.
        advice: A remedy; empty if none is needed.
    """

    name: str
    status: Literal["ok", "missing", "broken"]
    detail: str
    advice: str = ""


def driver_version() -> tuple[int, int] | None:
    """The CUDA version that the NVIDIA driver supports, (major, minor); None without a driver. Needs no CuPy."""
    try:
        driver = ctypes.CDLL(_DRIVER_LIBRARY)
        version = ctypes.c_int()
        failed = driver.cuDriverGetVersion(ctypes.byref(version))
    except (AttributeError, OSError):
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)


def load_cupy(place: Place) -> Any:
    """CuPy, for a place that needs it; touches no GPU; raises DeviceUnavailableError naming what to install."""
    try:
        return importlib.import_module("cupy")
    except ModuleNotFoundError as error:
        driver = driver_version()
        advice = f"pip install 'actorflow[{_extra(driver)}]'"
        if driver is None:
            what = f"nor an NVIDIA driver ({_DRIVER_LIBRARY}); with an NVIDIA GPU and its driver: {advice}"
            raise DeviceUnavailableError(f"place {str(place)!r}: there is neither CuPy {what}") from error
        raise DeviceUnavailableError(f"place {str(place)!r} needs CuPy: {advice}") from error
    except Exception as error:  # a broken installation may raise anything
        raise DeviceUnavailableError(f"place {str(place)!r}: CuPy does not load: {summary(error)}") from error


def check_cuda(place: Place) -> None:
    """Check that CuPy can use the device of a place; raises DeviceUnavailableError saying what to install."""
    global _process  # noqa: PLW0603  CUDA is used by one process
    if _process not in (None, os.getpid()):
        raise DeviceUnavailableError(
            f"place {str(place)!r}: CUDA was in use when this process was forked, and cannot be used in the child of a "
            "fork: start processes by 'spawn' or 'forkserver'"
        )
    cupy = load_cupy(place)
    problem = _problem(cupy)
    if problem is not None:
        what, advice = problem
        raise DeviceUnavailableError(f"place {str(place)!r}: {what}; {advice}")
    _process = os.getpid()
    count = cupy.cuda.runtime.getDeviceCount()
    if place.device >= count:
        there = "only 'cuda:0'" if count == 1 else f"'cuda:0' to 'cuda:{count - 1}'"
        raise DeviceUnavailableError(
            f"place {str(place)!r}: this process has {there} (CUDA_VISIBLE_DEVICES may hide others)"
        )


def describe_cuda() -> list[CudaFinding]:
    """Look for CUDA devices, as `actorflow doctor` does: one finding per device, or one that says why there is none.

    Each device computes something, as a proof that it works; that takes a second or so when it has to be compiled.
    """
    name = "device cuda"
    try:
        cupy = importlib.import_module("cupy")
    except ModuleNotFoundError:
        driver = driver_version()
        if driver is None:
            return [CudaFinding(name, "missing", "no NVIDIA driver, no CuPy")]
        detail = f"a driver for CUDA {_dotted(driver)} is there, CuPy is not"
        return [CudaFinding(name, "missing", detail, f"pip install 'actorflow[{_extra(driver)}]'")]
    except Exception as error:  # noqa: BLE001  a broken installation may raise anything
        advice = f"pip install --force-reinstall 'actorflow[{_extra(driver_version())}]'"
        return [CudaFinding(name, "broken", f"CuPy does not load: {summary(error)}", advice)]
    problem = _problem(cupy)
    if problem is not None:
        what, advice = problem
        return [CudaFinding(name, "missing", f"CuPy {cupy.__version__}: {what}", advice)]
    return [_examine(cupy, index) for index in range(cupy.cuda.runtime.getDeviceCount())]


def _examine(cupy: Any, index: int) -> CudaFinding:
    name = f"device cuda:{index}"
    try:
        with cupy.cuda.Device(index):
            total = int(cupy.arange(8).sum())  # compiles and runs kernels
        properties = cupy.cuda.runtime.getDeviceProperties(index)
    except Exception as error:  # noqa: BLE001  CuPy and CUDA raise many kinds; one broken device must not hide others
        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        advice = f"if a library of CUDA was not found: pip install 'cupy-cuda{major}x[ctk]'"
        return CudaFinding(name, "broken", f"CuPy {cupy.__version__}: {summary(error)}", advice)
    if total != 28:
        return CudaFinding(name, "broken", f"computed {total} where 28 is right")
    memory = properties["totalGlobalMem"] / 2**30
    return CudaFinding(name, "ok", f"{properties['name'].decode()}, {memory:.1f} GiB, CuPy {cupy.__version__}")


def _problem(cupy: Any) -> tuple[str, str] | None:
    runtime = cupy.cuda.runtime
    wanted = runtime.runtimeGetVersion() // 1000
    driver = driver_version()
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if error.status == _NO_DEVICE:
            count = 0
        elif driver is None:
            return f"there is no NVIDIA driver ({_DRIVER_LIBRARY})", "install the driver of your GPU"
        elif driver[0] < wanted:
            what = f"the driver supports CUDA {_dotted(driver)}, the CuPy that is installed needs {wanted}.0 or later"
            other = f", or pip uninstall cupy-cuda{wanted}x && pip install 'actorflow[cuda{driver[0]}]'"
            return what, f"update the driver{other if driver[0] >= _OLDEST else ''}"
        else:
            return f"CUDA does not start: {summary(error)}", "look at the driver with nvidia-smi"
    if count == 0:
        return "there is a driver, but no CUDA device", "check that CUDA_VISIBLE_DEVICES does not hide it"
    return None


def _extra(driver: tuple[int, int] | None) -> str:
    """The extra with the CuPy for a driver; for the newest CUDA where that is not known."""
    major = _NEWEST if driver is None else min(max(driver[0], _OLDEST), _NEWEST)
    return f"cuda{major}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def summary(error: BaseException) -> str:
    """Its type, and the first line of its text."""
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"
