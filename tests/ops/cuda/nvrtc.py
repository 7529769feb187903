"""NVRTC, NVIDIA's compiler of CUDA C, through ctypes: it needs neither a GPU nor a driver."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest


def _roots() -> Iterator[Path]:
    """Folders where CUDA may be: NVIDIA's wheels, and toolkits."""
    wheels = importlib.util.find_spec("nvidia")
    for folder in wheels.submodule_search_locations or () if wheels is not None else ():
        yield from sorted(Path(folder).iterdir())
    if "CUDA_PATH" in os.environ:
        yield Path(os.environ["CUDA_PATH"])
    yield Path("/usr/local/cuda")


def _find(pattern: str) -> list[Path]:
    return [path for root in _roots() for path in sorted(root.glob(pattern))]


def missing(what: str) -> NoReturn:
    """Skip the test; fail it instead where NVRTC is required, as `make test-nvrtc` does."""
    if os.environ.get("ACTORFLOW_REQUIRE_NVRTC"):
        pytest.fail(f"ACTORFLOW_REQUIRE_NVRTC is set, but {what} is not installed")
    pytest.skip(f"{what} is not installed: make test-nvrtc")


def load() -> ctypes.CDLL:
    """The library; the test is skipped where it is not installed."""
    found = [path for path in _find("lib*/libnvrtc.so.*") if ".alt." not in path.name]
    name = str(found[0]) if found else ctypes.util.find_library("nvrtc")
    if name is None:
        missing("NVRTC")
    return ctypes.CDLL(name)


def lowest_architecture(library: ctypes.CDLL) -> str:
    """The oldest one that the library compiles for."""
    count = ctypes.c_int()
    assert library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    supported = (ctypes.c_int * count.value)()
    assert library.nvrtcGetSupportedArchs(supported) == 0
    return f"sm_{min(supported)}"


def header_folder(header: str) -> Path:
    """Folder of a header of CUDA; the test is skipped where it is not installed."""
    found = _find(f"include/{header}")
    if not found:
        missing(f"CUDA's {header}")
    return found[0].parent


def compile_to_cubin(library: ctypes.CDLL, source: str, arch: str, options: Iterable[str] = ()) -> bytes:
    """Machine code; fails the test with the compiler's messages.

    Args:
        library: NVRTC.
        source: CUDA C.
        arch: ``"sm_80"``, say, or ``"lowest"``.
        options: Of the compiler, beside those that CuPy gives it in any case.
    """
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    arch = lowest_architecture(library) if arch == "lowest" else arch
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    try:
        given = [f"--gpu-architecture={arch}", *options, "-ftz=true"]
        failed = library.nvrtcCompileProgram(
            program, len(given), (ctypes.c_char_p * len(given))(*(o.encode() for o in given))
        )
        assert library.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
        log = ctypes.create_string_buffer(size.value)
        assert library.nvrtcGetProgramLog(program, log) == 0
        assert not failed, log.value.decode()
        assert library.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
        code = ctypes.create_string_buffer(size.value)
        assert library.nvrtcGetCUBIN(program, code) == 0
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
