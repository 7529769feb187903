"""Description of the machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module, metadata
from typing import Any

__all__ = ["cores", "describe_machine"]

_PACKAGES = (
    "actorflow",
    "numpy",
    "uvloop",
    "aiohttp",
    "dask",
    "distributed",
    "onnxruntime",
    "torch",
    "litserve",
    "bentoml",
)
_PACKAGES_OF_CUDA = ("cupy-cuda12x", "cupy-cuda13x", "nvidia-cudnn-frontend")


def describe_machine() -> dict[str, Any]:
    """Processor, cores, load, system, and the versions of all that takes part; None for what is not installed."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "versions": {name: _version(name) for name in _PACKAGES + _PACKAGES_OF_CUDA},
        "blas": _blas(),
        "gpus": _gpus(),
    }


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        if name == "actorflow":  # run from a source tree that is not installed
            import actorflow

            return actorflow.__version__
        return None


def _blas() -> list[dict[str, Any]]:
    from threadpoolctl import threadpool_info

    import_module("numpy")  # brings its BLAS into the process
    keys = ("internal_api", "version", "architecture", "num_threads")
    return [{key: info.get(key) for key in keys} for info in threadpool_info() if info["user_api"] == "blas"]


def _gpus() -> list[dict[str, Any]]:
    """The CUDA devices, their driver and runtime, in the order of their numbers; none without CuPy."""
    try:
        runtime = import_module("cupy").cuda.runtime
    except ImportError:
        return []
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError:  # no driver, or no device
        return []
    described = []
    for number in range(count):
        properties = runtime.getDeviceProperties(number)
        described.append(
            {
                "name": properties["name"].decode(),
                "memory_bytes": properties["totalGlobalMem"],
                "multiprocessors": properties["multiProcessorCount"],
                "driver": _driver(),
                "cuda": _dotted(runtime.driverGetVersion()),
                "runtime": _dotted(runtime.runtimeGetVersion()),
            }
        )
    return described


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _driver() -> str | None:
    """The version of the kernel's driver."""
    try:
        with open("/sys/module/nvidia/version", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None
