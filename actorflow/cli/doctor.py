"""``actorflow doctor``: what this machine offers, and what to install for the rest."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

import actorflow

__all__ = ["Check", "doctor", "examine"]

Status = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """What was found out about one thing.

    Attributes:
        name: The thing.
        status: ``ok``; ``missing``: can be added; ``broken``: there, but does not work.
        detail: Version, number, or what is wrong.
        needed: Whether actorflow cannot do without it.
        advice: What to do about it; empty if nothing is.
    """

    name: str
    status: Status
    detail: str
    needed: bool = False
    advice: str = ""


def doctor(*, as_json: bool) -> int:
    """Examine this machine and print what was found.

    Args:
        as_json: Print one JSON object instead of a table.
    Returns:
        0, or 1 if something is broken or missing that actorflow cannot do without.
    """
    checks = examine()
    if as_json:
        print(json.dumps({"actorflow": actorflow.__version__, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _show(checks)
    return int(any(check.needed and check.status != "ok" for check in checks))


def examine() -> list[Check]:
    """Everything that `doctor` shows, in order."""
    return [
        Check("python", "ok", f"{platform.python_implementation()} {platform.python_version()}", needed=True),
        Check("platform", "ok", f"{platform.system()} {platform.release()} {platform.machine()}"),
        Check("cores", "ok", _cores()),
        _library("numpy", needed=True),
        _blas(),
        _library("threadpoolctl", needed=True),
        _library("aiohttp", needed=True),
        _library("rich", needed=True),
        _library("uvloop", needed=sys.platform != "win32"),
        _library("scikit-learn", module="sklearn", extra="demo", purpose="the digits of the demo"),
        Check("device cpu", "ok", f"{_cores()}"),
        *_cuda_devices(),
        _mpi(),
    ]


def _show(checks: list[Check]) -> None:
    """Plain text: the doctor must speak even where rich is the patient."""
    name_width = max(len(check.name) for check in checks)
    status_width = max(len(check.status) for check in checks)
    print(f"actorflow {actorflow.__version__}\n")
    for check in checks:
        print(f"{check.name:{name_width}}  {check.status:{status_width}}  {check.detail}")
    advice = [check for check in checks if check.advice]
    if advice:
        print("\nTo add or repair:")
    for check in advice:
        print(f"  {check.name}: {check.advice}")


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} of {os.cpu_count()} usable"


def _library(
    name: str, *, module: str | None = None, needed: bool = False, extra: str = "", purpose: str = ""
) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        wanted = f"actorflow[{extra}]" if extra else "actorflow"
        reason = f", for {purpose}" if purpose else ""
        return Check(name, "missing", "not installed", needed, f"pip install '{wanted}'{reason}")
    try:
        importlib.import_module(module or name)
    except Exception as error:  # noqa: BLE001  a broken library may raise anything when imported
        return Check(name, "broken", f"{version}: {_summary(error)}", needed, f"pip install --force-reinstall {name}")
    return Check(name, "ok", version, needed)


def _blas() -> Check:
    try:
        import numpy  # noqa: F401, ICN001  loads its BLAS
        from threadpoolctl import threadpool_info
    except ImportError as error:
        return Check("blas", "broken", _summary(error), advice="install numpy and threadpoolctl")
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        return Check(
            "blas", "missing", "numpy uses none that threadpoolctl knows", advice="its threads cannot be limited"
        )
    return Check("blas", "ok", ", ".join(_blas_text(pool) for pool in pools))


def _blas_text(pool: dict[str, Any]) -> str:
    kernels = f" ({pool['architecture']})" if pool.get("architecture") else ""
    return f"{pool['internal_api']} {pool.get('version')}{kernels}, {pool['num_threads']} threads"


def _cuda_devices() -> list[Check]:
    driver = _cuda_driver()
    extra = "cuda13" if driver is None or driver >= 13 else "cuda12"
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        if driver is None:
            return [Check("device cuda", "missing", "no CUDA driver, no cupy")]
        detail = "a CUDA driver is there, cupy is not" if isinstance(error, ModuleNotFoundError) else _summary(error)
        return [Check("device cuda", "missing", detail, advice=f"pip install 'actorflow[{extra}]'")]
    try:
        return [_cuda_device(cupy, index) for index in range(cupy.cuda.runtime.getDeviceCount())]
    except Exception as error:  # noqa: BLE001  every call of cupy may raise its own errors when there is no GPU
        return [Check("device cuda", "missing", f"cupy {cupy.__version__}: {_summary(error)}")]


def _cuda_device(cupy: Any, index: int) -> Check:
    name = f"device cuda:{index}"
    try:
        with cupy.cuda.Device(index):
            total = int(cupy.arange(8).sum())  # compiles and runs a kernel: proof that the device works
        properties = cupy.cuda.runtime.getDeviceProperties(index)
    except Exception as error:  # noqa: BLE001  as above; one broken device must not hide the others
        return Check(name, "broken", f"cupy {cupy.__version__}: {_summary(error)}")
    if total != 28:
        return Check(name, "broken", f"computed {total} where 28 is right")
    memory = properties["totalGlobalMem"] / 2**30
    return Check(name, "ok", f"{properties['name'].decode()}, {memory:.1f} GiB, cupy {cupy.__version__}")


def _cuda_driver() -> int | None:
    """Major CUDA version of the driver; None without one."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        version = ctypes.c_int()
        failed = driver.cuDriverGetVersion(ctypes.byref(version))
    except (AttributeError, OSError):
        return None
    return None if failed else version.value // 1000


def _mpi() -> Check:
    try:
        version = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        return Check("mpi", "missing", "mpi4py is not installed", advice="pip install 'actorflow[mpi]'")
    try:
        importlib.import_module("mpi4py").rc.initialize = False  # starting MPI is not needed to ask for its name
        library = importlib.import_module("mpi4py.MPI").Get_library_version()
    except Exception as error:  # noqa: BLE001  without an MPI library mpi4py raises RuntimeError, not ImportError
        return Check("mpi", "broken", f"mpi4py {version}: {_summary(error)}", advice="pip install 'actorflow[mpi]'")
    return Check("mpi", "ok", f"mpi4py {version}, {' '.join(library.split())[:60]}")


def _summary(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"
