"""The CUDA kernels without CUDA."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import actorflow.ops
from actorflow.ops import Operation, registry
from actorflow.ops.rows import Elementwise
from actorflow.spec import TensorSpec
from tests.operations import ROWS
from tests.ops.cuda.emulator import Emulator

GUARD = 64


@pytest.fixture(scope="session")
def emulated(pytestconfig: pytest.Config) -> SimpleNamespace:
    """The CUDA kernels over an emulated CuPy; the real one, its kernels and the registry are not touched.

    ``kernels`` by key, ``modules`` by name, their ``package``, and the ``emulator``.
    """
    folder = pytestconfig.rootpath / ".pytest_cache" / "cuda"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    emulator = Emulator(folder)
    hidden = {name: module for name, module in sys.modules.items() if name.startswith("actorflow.ops.cuda")}
    registered = {key: value for key, value in registry._kernels.items() if key.device != "cuda"}
    with (
        mock.patch.dict(sys.modules, {"cupy": emulator.cupy}),
        mock.patch.object(registry, "_kernels", registered),
        mock.patch.dict(registry._makers),
        mock.patch.object(actorflow.ops, "cuda", None, create=True),
    ):
        for name in hidden:
            del sys.modules[name]
        package = importlib.import_module("actorflow.ops.cuda")
        modules = {
            name.rpartition(".")[2]: m for name, m in sys.modules.items() if name.startswith("actorflow.ops.cuda.")
        }
        kernels = {key: value for key, value in registered.items() if key.device == "cuda"}
        for kind in [row.kind for row in ROWS.values() if row.kind and issubclass(row.kind, Elementwise)]:
            for dtype in modules["launch"].ANYTHING:
                key = registry.KernelKey(kind.__name__, "cuda", "cupy", dtype, "any")
                made = None if key in kernels else modules["elementwise"].make(kind, key)
                if made is not None:
                    kernels[key] = made
    return SimpleNamespace(kernels=kernels, modules=modules, package=package, emulator=emulator)


@pytest.fixture(scope="session")
def compute_cuda(emulated: SimpleNamespace) -> Callable[..., list[np.ndarray]]:
    """``compute_cuda(operation, *arrays, frame=0)``: outputs of the CUDA kernel, which writes nothing beside them.

    A kernel that calls what cannot be captured must be registered so: in a segment it would have all of it refused.
    Only a mask as an index, which is rare, is looked at by kernels that else can be.
    """

    def run(operation: Operation, *inputs: Any, frame: int = 0) -> list[np.ndarray]:
        arrays = [np.asarray(x).view() for x in inputs]
        for array in arrays:
            array.flags.writeable = False
        specs = operation.infer(*(TensorSpec(a.shape, a.dtype) for a in arrays))
        dtype = (arrays[0] if arrays else specs[0]).dtype
        kernel = emulated.kernels[registry.KernelKey(operation.kind, "cuda", "cupy", str(dtype), "any")]
        emulated.emulator.uncapturable.clear()
        if kernel.returns:
            return kernel.function(operation, arrays, None)
        guarded = [np.full(spec.size_bytes + 2 * GUARD, 0xFF, np.uint8) for spec in specs]
        outputs = [
            memory[GUARD : GUARD + spec.size_bytes].view(spec.dtype).reshape(spec.shape)
            for memory, spec in zip(guarded, specs, strict=True)
        ]
        kernel.function(operation, arrays, outputs, *([frame] if kernel.random else []))
        called = {*emulated.emulator.uncapturable} - {"nonzero" for array in arrays[1:] if array.dtype == np.bool_}
        assert not (kernel.captures and called), f"{kernel.key} cannot be captured"
        for memory in guarded:
            beside = np.concatenate([memory[:GUARD], memory[-GUARD:]])
            assert (beside == 0xFF).all(), "written beside an output"
        return outputs

    return run


@pytest.fixture
def launches(emulated: SimpleNamespace) -> list[str]:
    """Names of the CUDA C kernels that the test launches."""
    emulated.emulator.launches.clear()
    return emulated.emulator.launches


@pytest.fixture
def wide_indices(emulated: SimpleNamespace) -> Iterator[None]:
    """Every array counts as too large for 32-bit indices."""
    with mock.patch.object(emulated.modules["launch"], "_MOST_NARROW", -1):
        yield
