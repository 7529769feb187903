"""All CUDA C compiles for the architectures in use, by NVIDIA's compiler; no GPU is needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import actorflow.ops
from actorflow.spec import TensorSpec
from tests.ops.cuda import nvrtc
from tests.ops.cuda.emulator import kernels_of
from tests.ops.cuda.test_fused import CHAINS
from tests.ops.test_fused import with_reductions

pytestmark = pytest.mark.nvrtc

ARCHITECTURES = ("lowest", "sm_90")
FLOATS = ("float16", "float32", "float64")
FOLDER = Path(actorflow.ops.__file__).parent / "cuda" / "kernels"
#: Files that have kernels; the others are parts of these.
SOURCES = sorted(path.stem for path in FOLDER.iterdir() if "__global__" in path.read_text())


@pytest.mark.together("arch", ARCHITECTURES, at_once=30)
@pytest.mark.together("name", SOURCES)
def test_a_source_compiles(emulated, name, arch) -> None:
    library, launch = nvrtc.load(), emulated.modules["launch"]
    kernels = kernels_of(launch.source(name))
    assert kernels
    for dtype in FLOATS:
        for index in ("int", "long long"):
            for label in ("long long", "unsigned char") if name in ("loss", "indexing") else ("int",):
                macros = {
                    "SCALAR": launch.C_TYPES[dtype],
                    "INDEX": index,
                    "LABEL": label,
                    "RESULT": launch.C_TYPES[dtype],
                }
                options = (*launch.OPTIONS, *(f"-D{macro}={value}" for macro, value in macros.items()))
                code = nvrtc.compile_to_cubin(library, launch.source(name), arch, options)
                assert all(kernel.encode() in code for kernel in kernels)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("length", "index"), [(30, "int"), (300, "long long")], ids=["in one launch", "in two"])
def test_chains_with_reductions_compile(emulated, arch, length, index) -> None:
    library, launch, fused = nvrtc.load(), emulated.modules["launch"], emulated.modules["fused"]
    options = (*launch.OPTIONS, f"-DINDEX={index}", "-DSCALAR=float")
    for dtypes, chain in CHAINS.items():
        for dtype in dtypes:
            specs = (TensorSpec((length, 40), np.dtype(dtype)),) * 2
            prepared = fused._prepared_reduction(with_reductions(chain, specs), specs)
            assert bool(prepared.second) == (length == 300)
            for text in filter(None, (prepared.first, prepared.second)):
                code = nvrtc.compile_to_cubin(library, f"{launch.source('tile')}\n{text}", arch, options)
                assert fused._NAME.encode() in code


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_elementwise_kernels_compile_with_the_headers_of_cupy(emulated, arch) -> None:
    library, cupy = nvrtc.load(), importlib.util.find_spec("cupy")
    if cupy is None or cupy.origin is None:
        nvrtc.missing("CuPy")
    own = Path(cupy.origin).parent / "_core" / "include"
    libraries = [own / "cupy" / "_cccl" / name for name in ("cub", "thrust", "libcudacxx")]
    folders = (own, *libraries, nvrtc.header_folder("cuda_fp16.h"))
    options = [*emulated.modules["launch"].OPTIONS, *(f"-I{folder}" for folder in folders)]
    for dtype in (*FLOATS, "int32"):
        parts = ["#include <cupy/complex.cuh>", "#include <cupy/carray.cuh>", "#include <cupy/float16.cuh>"]
        parts.append("#define FOR_EACH_OF CUPY_FOR")
        for i, kernel in enumerate(emulated.emulator.elementwise):
            if kernel.has_bits != (dtype == "int32"):
                continue
            wide = "float64" if dtype == "float64" else "float32"
            code = kernel.code({"T": dtype, "R": "float32", "S": wide}).replace("void run(", f"void run{i}(")
            parts.append(f"namespace kernel{i} {{ {code} }}")
        nvrtc.compile_to_cubin(library, "\n".join(parts), arch, options)
