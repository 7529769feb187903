"""``actorflow doctor``: features of this machine, and packages to install for the rest."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Literal

from actorflow import __version__
from actorflow.core import IS_COMPILED
from actorflow.devices import device_kind, known_kinds
from actorflow.devices.cuda.availability import describe_cuda, summary
from actorflow.errors import DeviceUnavailableError, MissingExtraError, visible
from actorflow.threads import cores

Status = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """Finding about one thing that actorflow can use."""

    name: str  # the thing
    status: Status  # ``ok``; ``missing``: can be added; ``broken``: there, but does not work
    detail: str  # version, number, or the problem
    needed: bool = False  # whether actorflow cannot do without it
    advice: str = ""  # remedy; empty if nothing is to be done


def doctor(*, as_json: bool) -> int:
    """Examine this machine and print the findings; returns 1 if something needed is broken or missing, else 0."""
    checks = examine()
    if as_json:
        print(json.dumps({"actorflow": __version__, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _show(checks)
    return int(any(check.needed and check.status != "ok" for check in checks))


def examine() -> list[Check]:
    """Everything that `doctor` shows, in order."""
    usable = f"{cores()} of {os.cpu_count()} usable"
    return [
        Check("python", "ok", f"{platform.python_implementation()} {platform.python_version()}", needed=True),
        Check("platform", "ok", f"{platform.system()} {platform.release()} {platform.machine()}"),
        Check("cores", "ok", usable),
        _core(),
        _library("numpy", needed=True),
        _blas(),
        _library("threadpoolctl", needed=True),
        _library("aiohttp", needed=True),
        _library("rich", needed=True),
        _library("uvloop", needed=sys.platform != "win32"),
        _onednn(),
        _library("torch", extra="torch", purpose="pipelines as datasets of its DataLoader"),
        _library("scikit-learn", module="sklearn", extra="demo", purpose="the digits of the demo"),
        _library("safetensors", extra="checkpoint", purpose="checkpoints"),
        _library("pillow", module="PIL", extra="images", purpose="data sets of image files"),
        _library("lmdb", extra="lmdb", purpose="data sets in LMDB databases"),
        _library("prometheus-client", module="prometheus_client", extra="metrics", purpose="/metrics of the live page"),
        _library("onnx", extra="onnx", purpose="models in the format ONNX"),
        _library("onnxruntime", extra="onnxruntime", purpose='models with backend="onnxruntime"'),
        _library("opentelemetry-api", module="opentelemetry.trace", extra="otel", purpose="spans of frames and calls"),
        Check("device cpu", "ok", usable),
        *_devices(),
        _mpi(),
    ]


def _core() -> Check:
    if IS_COMPILED:
        return Check("core", "ok", "compiled: an op costs less than a call in a loop of Python")
    if os.environ.get("ACTORFLOW_CORE") == "0":
        return Check("core", "ok", "plain Python, as ACTORFLOW_CORE=0 wants it: an op costs about ten times as much")
    advice = "install actorflow again where there is a C compiler (on Debian: apt-get install gcc python3-dev)"
    return Check(
        "core", "missing", "plain Python: an op costs about ten times as much as with a compiled one", advice=advice
    )


def _show(checks: list[Check]) -> None:
    """Plain text: the doctor must speak even where rich is the patient."""
    name_width = max(len(check.name) for check in checks)
    status_width = max(len(check.status) for check in checks)
    print(f"actorflow {__version__}\n")
    for check in checks:
        print(f"{check.name:{name_width}}  {check.status:{status_width}}  {visible(check.detail)}")
    advice = [check for check in checks if check.advice]
    if advice:
        print("\nTo add or repair:")
    for check in advice:
        print(f"  {check.name}: {check.advice}")
    print("\nMore: actorflow docs install, actorflow docs devices")


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
        return Check(name, "broken", f"{version}: {summary(error)}", needed, f"pip install --force-reinstall {name}")
    return Check(name, "ok", version, needed)


def _onednn() -> Check:
    try:
        found = importlib.import_module("actorflow.ops.onednn.library").libdnnl()
    except MissingExtraError as error:
        return Check("onednn", "missing", summary(error), advice="pip install 'actorflow[onednn]', for its kernels")
    except Exception as error:  # noqa: BLE001  a broken library may raise anything
        return Check("onednn", "broken", summary(error), advice="pip install --force-reinstall onednn-cpu-gomp")
    return Check("onednn", "ok", f"{found.version}, {found.path}")


def _blas() -> Check:
    try:
        import numpy  # noqa: F401, ICN001  loads its BLAS
        from threadpoolctl import threadpool_info
    except ImportError as error:
        return Check("blas", "broken", summary(error), advice="install numpy and threadpoolctl")
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        return Check(
            "blas", "missing", "numpy uses none that threadpoolctl knows", advice="its threads cannot be limited"
        )
    found = []
    for pool in pools:
        kernels = f" ({pool['architecture']})" if pool.get("architecture") else ""
        found.append(f"{pool['internal_api']} {pool.get('version')}{kernels}, {pool['num_threads']} threads")
    return Check("blas", "ok", ", ".join(found))


def _devices() -> Iterator[Check]:
    yield Check("device sim", "ok", "simulated accelerators, for tests")
    for found in describe_cuda():
        yield Check(found.name, found.status, found.detail, advice=found.advice)
    for kind in known_kinds():
        if kind in {"cpu", "sim", "cuda"}:
            continue
        try:
            device = device_kind(kind)
        except DeviceUnavailableError as error:
            yield Check(f"device {kind}", "broken", summary(error))
        else:
            yield Check(f"device {kind}", "ok", f"{device.__module__}.{device.__qualname__}")


def _mpi() -> Check:
    try:
        version = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        return Check("mpi", "missing", "mpi4py is not installed", advice="pip install 'actorflow[mpi]'")
    try:
        importlib.import_module("mpi4py").rc.initialize = False  # starting MPI is not needed to ask for its name
        library = importlib.import_module("mpi4py.MPI").Get_library_version()
    except Exception as error:  # noqa: BLE001  without an MPI library mpi4py raises RuntimeError, not ImportError
        return Check("mpi", "broken", f"mpi4py {version}: {summary(error)}", advice="pip install 'actorflow[mpi]'")
    return Check("mpi", "ok", f"mpi4py {version}, {' '.join(library.split())[:60]}")
