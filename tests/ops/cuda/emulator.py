"""CuPy, as far as actorflow.ops.cuda uses it, on the host: NumPy arrays, and CUDA C compiled by g++.

The very sources and the very launches are run, with each kernel's grid, block and arguments. What a GPU would let pass
is an error here: an argument of another type than the parameter, a barrier that not all threads reach, outputs that are
not contiguous.

With `Emulator.counting` nothing is computed, so that what a large network would launch is found in no time.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

SHIM, RUNTIME = (Path(__file__).with_name(f"shim.{kind}") for kind in ("hpp", "cpp"))

COMPILE = ["g++", "-std=c++17", "-fPIC", "-w"]
# Else a template's shared memory would be the same in all libraries, though its types differ between them.
COMPILE.append("-fno-gnu-unique")
COMPILE.append("-U_FORTIFY_SOURCE")  # it would forbid jumps between stacks

C_TYPES = {
    "bool": "bool",
    "float16": "float16",
    "float32": "float",
    "float64": "double",
    "complex64": "std::complex<float>",
    "complex128": "std::complex<double>",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
}
_SCALARS = {
    "int": ctypes.c_int,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
#: CuPy's names of the numbers that a kernel may say instead of a letter; float16 and bool are there already.
_NAMED = "\n".join(
    f"typedef {c} {name};" for name, c in C_TYPES.items() if name not in ("bool", "float16") and ":" not in c
)
#: Functions that wait for the stream.
_UNCAPTURABLE = ("argsort", "cumprod", "cumsum", "nonzero", "sort")
_KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')


def kernels_of(code: str) -> dict[str, list[tuple[str, str]]]:
    """(type, name) of the parameters of each kernel in a source."""
    found = {}
    for name, parameters in _KERNEL.findall(code):
        words = [parameter.replace("*", "* ").split() for parameter in parameters.split(",")]
        found[name] = [(" ".join(parts[:-1]), parts[-1]) for parts in words]
    return found


def check_options(options: tuple[str, ...]) -> None:
    """No kernel may contract a product and a sum, which the host's compiler does not do either."""
    assert "--fmad=false" in options


class CompilationError(AssertionError):
    """Messages of the compiler."""


class Emulator:
    """Compiles and runs.

    Attributes:
        launches: Names of the kernels of CUDA C, in the order of their launches.
        elementwise: All elementwise kernels.
        touched: Sizes of the arrays that launches were given, of any kernel.
        calls: Names of all that the device was given to do: kernels, CuPy's functions, fills, copies.
        is_dry: Whether it is only noted.
        uncapturable: Names of the functions of CuPy that were called and that cannot be captured, as cuBLAS's.
        cupy: What stands in the place of the module.
    """

    def __init__(self, folder: Path) -> None:
        """Keep in a folder what is compiled, for other processes and sessions, too."""
        self.folder = folder
        self._apart: Path | None = None
        self.launches: list[str] = []
        self.elementwise: list[_ElementwiseKernel] = []
        self.touched: list[int] = []
        self.calls: list[str] = []
        self.is_dry = False
        self.uncapturable: list[str] = []
        self.load = cache(self._load)
        self._functions: dict[Any, dict[_ElementwiseKernel, Any]] = {}
        self.cupy = self._module()

    def _load(self, code: str) -> ctypes.CDLL:
        if self._apart is None:
            self._apart = self._begun()
            # For all that is loaded after it.
            ctypes.CDLL(str(self._kept(RUNTIME.read_text(), "-O2", "-shared")), ctypes.RTLD_GLOBAL)
        complex_too = "#include <complex>\n" if "std::complex" in code else ""
        return ctypes.CDLL(str(self._kept(f'#include "{SHIM.name}"\n{complex_too}{code}', "-O0", "-shared")))

    def _begun(self) -> Path:
        """Folder of what this compiler makes of this header, which is compiled beforehand."""
        if shutil.which("g++") is None:
            pytest.skip("g++ is not installed: CUDA C cannot be compiled for the host")
        version = subprocess.run(["g++", "-v"], capture_output=True, text=True, check=True).stderr
        key = hashlib.sha256("\0".join([version, *COMPILE, SHIM.read_text()]).encode())
        folder = self.folder / key.hexdigest()[:20]
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
                made = Path(temporary, "made")
                made.mkdir()
                shutil.copy(SHIM, made)
                self._compile("-O0", "-x", "c++-header", made / SHIM.name, "-o", f"{made / SHIM.name}.gch")
                with suppress(OSError):  # another process was quicker
                    made.rename(folder)
        return folder

    def _kept(self, code: str, *options: str) -> Path:
        """Library of a source, compiled unless that has been done."""
        assert self._apart is not None
        path = self._apart / hashlib.sha256("\0".join([*options, code]).encode()).hexdigest()[:20]
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=self._apart) as folder:
                source, made = Path(folder, "source.cpp"), Path(folder, "made")
                source.write_text(code)
                self._compile(f"-I{self._apart}", *options, source, "-o", made)
                made.rename(path)
        return path

    def _compile(self, *arguments: Any) -> None:
        done = subprocess.run([*COMPILE, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilationError(done.stderr)

    def load_elementwise(self, wanted: _ElementwiseKernel, types: dict[str, str]) -> Any:
        """The function of an elementwise kernel for one choice of types.

        The compiler takes as long to start as for a dozen of them, so all that have the same types are compiled
        together, where all of them can have these.
        """
        key = tuple(sorted(types.items()))
        known = self._functions.setdefault(key, {})
        if wanted not in known:
            alike = [
                kernel
                for kernel in self.elementwise
                if (kernel.letters, kernel.has_bits) == (types.keys(), wanted.has_bits) and kernel not in known
            ]
            try:
                known.update(self._load_together(alike, types))
            except CompilationError:  # one is not for these types: floats have no bits, say
                known.update(self._load_together([wanted], types))
        return known[wanted]

    def _load_together(self, kernels: list[_ElementwiseKernel], types: dict[str, str]) -> dict[_ElementwiseKernel, Any]:
        sources = [kernel.code(types).replace("void run(", f"void run{i}(") for i, kernel in enumerate(kernels)]
        library = self.load("\n".join(f"namespace kernel{i} {{ {code} }}" for i, code in enumerate(sources)))
        return {kernel: getattr(library, f"run{i}") for i, kernel in enumerate(kernels)}

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """Gives `calls`, empty; within, arrays have no values, and whatever is called is only noted."""
        self.calls.clear()
        self.is_dry = True
        try:
            yield self.calls
        finally:
            self.is_dry = False

    def note(self, name: str, size: int = 1) -> bool:
        """Note a call, which on empty arrays launches nothing; whether it is to be done."""
        if size:
            self.calls.append(name)
        return not self.is_dry

    def _noted(self, function: Callable[..., Any], captures: bool = True) -> Callable[..., Any]:
        """A function of arrays, which writes its first one or ``out``, or returns one of that shape, or a product."""
        name = function.__name__.removeprefix("_")

        def call(x: np.ndarray, *args: Any, **named: Any) -> Any:
            if not captures:
                self.uncapturable.append(name)
            out = named.get("out")
            if self.note(name, (x if out is None else out).size):
                return function(x, *args, **named)
            shape = (len(x), *args[0].shape[1:]) if function is _dot else x.shape
            return self.cupy.empty(shape, x.dtype) if out is None else out

        return call

    def _contiguous(self, array: np.ndarray) -> np.ndarray:
        if array.flags.c_contiguous:
            return array
        copy = self.cupy.empty(array.shape, array.dtype)
        self.cupy.copyto(copy, array)
        return copy

    def _module(self) -> ModuleType:
        cupy = ModuleType("cupy")
        emulator = self

        class RawKernel(_RawKernel):
            owner = emulator

        class ElementwiseKernel(_ElementwiseKernel):
            owner = emulator

        class Memory(np.ndarray):
            def fill(self, value: Any) -> None:
                if emulator.note("fill", self.size):
                    super().fill(value)

        def empty(shape: Any, dtype: Any) -> np.ndarray:
            array = np.empty(shape, dtype)
            if not emulator.is_dry:
                array.reshape(-1).view(np.uint8)[...] = 0xFF
            return array.view(Memory)

        contents = {
            "RawKernel": RawKernel,
            "ElementwiseKernel": ElementwiseKernel,
            "ndarray": np.ndarray,
            "empty": empty,
            **{function.__name__[1:]: self._noted(function, captures=False) for function in (_dot, _matmul)},
            **{name: self._noted(getattr(np, name)) for name in ("add", "copyto", "subtract")},
            **{
                name: self._noted(getattr(np, name), False)
                for name in ("argsort", "cumprod", "cumsum", "nonzero", "sort")
            },
            "broadcast_to": np.broadcast_to,
            "cuda": SimpleNamespace(
                runtime=SimpleNamespace(getDevice=lambda: 0), get_current_stream=lambda: SimpleNamespace(ptr=1234)
            ),
            "ascontiguousarray": self._contiguous,
        }
        vars(cupy).update(contents)
        return cupy


def _garbage(shape: Any, dtype: Any) -> np.ndarray:
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[...] = 0xFF
    return array


def _dot(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    wide = np.float32 if a.dtype == np.float16 else a.dtype
    product = np.dot(a.astype(wide), b.astype(wide)).astype(a.dtype)
    if out is None:
        return product
    assert out.flags.c_contiguous
    assert (out.shape, out.dtype, b.dtype) == (product.shape, a.dtype, a.dtype)
    out[...] = product
    return out


def _matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    wide = np.float32 if a.dtype == np.float16 else a.dtype
    assert out.flags.c_contiguous
    assert (out.dtype, b.dtype) == (a.dtype, a.dtype)
    out[...] = np.matmul(a.astype(wide), b.astype(wide))
    return out


class _RawKernel:
    owner: Emulator

    def __init__(self, code: str, name: str, options: tuple[str, ...]) -> None:
        check_options(options)
        macros = dict(option[2:].split("=", 1) for option in options if option.startswith("-D"))
        self.types = {**macros, "WIDE": "double" if macros["SCALAR"] == "double" else "float"}
        self.types["Word"] = "unsigned long long"
        self.name, self.parameters = name, kernels_of(code)[name]
        cooperates = str("__syncthreads" in code).lower()
        launchers = "\n".join(
            f'extern "C" int launch_{kernel}(unsigned grid, unsigned block, '
            f"{', '.join(f'{kind} {what}' for kind, what in parameters)}) {{ return emulator::run(grid, block, "
            f"{cooperates}, [=] {{ {kernel}({', '.join(what for _, what in parameters)}); }}); }}"
            for kernel, parameters in kernels_of(code).items()
        )
        defines = "\n".join(f"#define {macro} {value}" for macro, value in macros.items())
        self.code = f"{defines}\n{code}\n{launchers}"

    def __call__(self, grid: tuple[int], block: tuple[int], args: tuple[Any, ...]) -> None:
        assert 0 < grid[0] < 2**31
        assert 0 < block[0] <= 1024
        assert len(args) == len(self.parameters), (self.name, len(args), self.parameters)
        values = [self._value(arg, *parameter) for arg, parameter in zip(args, self.parameters, strict=True)]
        if not self.owner.note(self.name):
            return
        launcher = getattr(self.owner.load(self.code), f"launch_{self.name}")
        self.owner.launches.append(self.name)
        self.owner.touched += [arg.size for arg in args if isinstance(arg, np.ndarray)]
        assert launcher(ctypes.c_uint(grid[0]), ctypes.c_uint(block[0]), *values) == 0, "a barrier was missed"

    def _value(self, arg: Any, kind: str, name: str) -> Any:
        words = kind.replace("const ", "").split("*")
        base = words[0].strip()
        base = self.types.get(base, base)
        if len(words) == 1:
            assert isinstance(arg, np.generic), (self.name, name, arg)
            assert C_TYPES[arg.dtype.name] == base, (self.name, name, arg.dtype, base)
            return _SCALARS[base](arg.item())
        assert isinstance(arg, np.ndarray), (self.name, name)
        assert arg.flags.c_contiguous, (self.name, name)
        given = {"float16": "Half", "bool": "unsigned char"}.get(arg.dtype.name, C_TYPES[arg.dtype.name])
        assert given == base, (self.name, name, arg.dtype, base)
        assert arg.flags.writeable or "const" in kind, (self.name, name)
        return ctypes.c_void_p(arg.ctypes.data)


class _ElementwiseKernel:
    owner: Emulator

    def __init__(
        self, inputs: str, outputs: str, body: str, name: str, preamble: str = "", options: tuple[str, ...] = ()
    ) -> None:
        check_options(options)
        self.inputs, self.outputs = ([p.split() for p in text.split(",")] for text in (inputs, outputs))
        self.body, self.preamble, self.name = body, preamble, name
        self.letters = {kind for kind, _ in [*self.inputs, *self.outputs] if len(kind) == 1}
        self.has_bits = re.search(r"~x|a ([&|^]|<<|>>) b", body) is not None
        self.owner.elementwise.append(self)

    def code(self, types: dict[str, str]) -> str:
        """Source for one choice of types; ``run`` handles contiguous arrays."""
        typedefs = "\n".join(f"typedef {C_TYPES[dtype]} {letter};" for letter, dtype in types.items())
        parameters = [*(f"const {t} *_{n}" for t, n in self.inputs), *(f"{t} *_{n}" for t, n in self.outputs)]
        loads = [f"const {t} &{n} = _{n}[i];" for t, n in self.inputs]
        loads += [f"{t} &{n} = _{n}[i];" for t, n in self.outputs]
        return (
            f"{typedefs}\n{_NAMED}\n{self.preamble}\n"
            f'extern "C" __global__ void run(ptrdiff_t size, {", ".join(parameters)}) {{\n'
            f"  FOR_EACH_OF(i, size) {{\n{' '.join(loads)}\n{self.body};\n}} }}"
        )

    def __call__(self, *args: Any) -> None:
        assert len(args) == len(self.inputs) + len(self.outputs), self.name
        self.owner.touched += [arg.size for arg in args if isinstance(arg, np.ndarray)]
        types: dict[str, str] = {}
        for (kind, _), arg in zip([*self.inputs, *self.outputs], args, strict=True):
            dtype = np.asarray(arg).dtype.name
            assert types.setdefault(kind, dtype) == dtype, (self.name, kind, dtype, types)
        types = {kind: dtype for kind, dtype in types.items() if len(kind) == 1}
        given, outputs = args[: len(self.inputs)], args[len(self.inputs) :]
        shape = np.broadcast_shapes(*(np.shape(arg) for arg in given))
        assert all(out.shape == shape for out in outputs), self.name
        if not self.owner.note(self.name, outputs[0].size):
            return
        flat = [np.array(np.broadcast_to(arg, shape), order="C") for arg in given]
        own = {id(arg): copy for arg, copy in zip(given, flat, strict=True)}  # CuPy's parameters are references
        results = [own[id(out)] if id(out) in own else _garbage(shape, out.dtype) for out in outputs]
        run = self.owner.load_elementwise(self, types)
        run(ctypes.c_ssize_t(results[0].size), *(ctypes.c_void_p(a.ctypes.data) for a in (*flat, *results)))
        for out, result in zip(outputs, results, strict=True):
            out[...] = result
