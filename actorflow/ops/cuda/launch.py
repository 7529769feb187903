"""CUDA C sources and elementwise kernels, and how they are launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.ops.registry import kernel as _kernel
from actorflow.ops.rows import Elementwise

#: Options of the compiler, for all kernels. Products and sums are not contracted: each step is rounded as NumPy rounds
#: it, and a chain has the same values wherever it is cut. It costs little, as the kernels wait for memory, not for
#: arithmetic. CuPy adds ``-ftz=true``, which cannot be undone: float32 values below the normal ones are taken as 0.
OPTIONS = ("--std=c++17", "--fmad=false")

Array = Any
"""A ``cupy.ndarray``; CuPy has no type information."""

#: Dtypes of floating kernels; others (bfloat16) are left to the planner.
FLOATS = ("float16", "float32", "float64")
NUMBERS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *(*FLOATS, "complex64", "complex128"),
)
REALS = tuple(name for name in NUMBERS if "complex" not in name)
ANYTHING = ("bool", *NUMBERS)


class Formula(NamedTuple):
    """One element of an elementwise operation.

    Attributes:
        inputs: Parameters, as in ``cupy.ElementwiseKernel``; ``T`` is the dtype of those that are not booleans.
        result: ``T`` or ``bool``, the dtype of the result.
        text: CUDA C; it is converted to the result's type.
        numbers: Gives the last parameters for an operation and ``T``, where they are parameters of the operation.
    """

    inputs: str
    result: str
    text: str
    numbers: Callable[[Any, Any], tuple[Any, ...]] = lambda _operation, _type: ()


@cache
def formula_of(operation: Any) -> Formula | None:
    """The formula of an elementwise operation; None where its row has none."""
    if not issubclass(operation, Elementwise) or not operation.formula:
        return None
    names = operation.arguments
    inputs = [f"{'bool' if i < operation.conditions else 'T'} {name}" for i, name in enumerate(names)]
    parameters = [field.name for field in fields(operation)]
    return Formula(
        ", ".join([*inputs, *[f"float64 {name}" for name in parameters]]),
        "bool" if operation.result is not None and not callable(operation.result) else "T",
        operation.formula,
        lambda own, _: tuple([np.float64(getattr(own, name)) for name in parameters]),
    )


#: Registers a kernel of this library; see `actorflow.ops.registry.kernel`.
kernel = partial(_kernel, device="cuda", library="cupy")

#: Arrays of more elements are indexed with 64 bits. The distance to 2**31 is what all threads together may step over.
_MOST_NARROW = 2**31 - 2**25
_THREADS = 256
_MOST_BLOCKS = 2**16

_SOURCES = Path(__file__).parent / "kernels"
#: Sources that a source is compiled behind.
_BASES = {
    "columns": ("windows",),
    "depthwise": ("windows",),
    "fills": ("noise",),
    "fold": ("tile",),
    "loss": ("tile", "reduce", "softmax"),
    "norm": ("tile",),
    "pool": ("windows",),
    "reduce": ("tile",),
    "softmax": ("tile", "reduce"),
}
C_TYPES = {
    "float16": "Half",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
}


def as_integer(dtype: np.dtype[Any]) -> str:
    """CUDA C of the floating-point number ``x``, to compute with in ``W``, as an integer; see `actorflow.ops.cast`."""
    limits, kind = np.iinfo(dtype), C_TYPES[dtype.name]
    sign = "U" if dtype.kind == "u" else ""
    least = f"({kind})(-{limits.max}LL - 1)" if limits.min else f"({kind})0"
    most, beyond = f"({kind}){limits.max}{sign}LL", float(limits.max + 1)
    found = f"W(x) == W(x) ? ({kind})W(x) : ({kind})0"
    return f"double(W(x)) >= {beyond!r} ? {most} : double(W(x)) < {float(limits.min)!r} ? {least} : {found}"


@cache
def source(name: str) -> str:
    """The CUDA C of ``kernels/<name>.cuh`` with all it needs in front of it."""
    return "\n".join((_SOURCES / f"{part}.cuh").read_text() for part in ("scalar", *_BASES.get(name, ()), name))


def index_type(largest: int) -> type[np.int32 | np.int64]:
    """The type of INDEX for a largest index, or count of threads."""
    return np.int32 if largest <= _MOST_NARROW else np.int64


@cache
def _compiled(name: str, function: str, is_wide: bool, types: tuple[tuple[str, np.dtype[Any]], ...]) -> Any:
    """A kernel for one choice of types; CuPy compiles the source on its first use, once for all its functions."""
    return compiled(source(name), function, is_wide, {macro: C_TYPES[dtype.name] for macro, dtype in types})


def compiled(code: str, function: str, is_wide: bool, macros: Mapping[str, str]) -> Any:
    """A kernel of CUDA C, which CuPy compiles on its first use.

    Args:
        code: The source.
        function: Name of the ``extern "C"`` function in it.
        is_wide: Whether INDEX has 64 bits.
        macros: Values of other macros.
    """
    defined = {"INDEX": "long long" if is_wide else "int", **macros}
    return cupy.RawKernel(code, function, (*OPTIONS, *(f"-D{macro}={text}" for macro, text in defined.items())))


def launch(
    name: str, function: str, grid: int, block: int, args: tuple[Any, ...], dtype: np.dtype[Any], **types: np.dtype[Any]
) -> None:
    """Launch a function of a source on the current stream.

    Args:
        name: Name of the source.
        function: Name of the ``extern "C"`` function in it.
        grid: Number of blocks; none are launched for 0.
        block: Threads per block.
        args: Arrays, Python integers (which become INDEX), and NumPy scalars of exactly the parameter's type.
        dtype: Value of the macro SCALAR.
        types: Values of other macros.
    """
    if not grid:
        return
    integers = [arg for arg in args if isinstance(arg, int)]  # with those of open axes
    index = index_type(max([*integers, *[arg.size for arg in args if isinstance(arg, cupy.ndarray)]]))
    found = _compiled(name, function, index is np.int64, (("SCALAR", dtype), *types.items()))
    found((grid,), (block,), tuple([index(arg) if isinstance(arg, int) else arg for arg in args]))


def launch_flat(
    name: str, function: str, count: int, args: tuple[Any, ...], dtype: np.dtype[Any], **types: np.dtype[Any]
) -> None:
    """Launch a function that gives each of ``count`` items to a thread, and rounds of items if they are many."""
    launch(name, function, min(-(-count // _THREADS), _MOST_BLOCKS), _THREADS, args, dtype, **types)


def contiguous(array: Array) -> Array:
    """The array itself if it is C-contiguous, else a copy that is."""
    return cupy.ascontiguousarray(array)


_WIDER = """
template <typename T> struct Wider { typedef float type; };
template <> struct Wider<double> { typedef double type; };
"""


def elementwise(name: str, inputs: str, outputs: str, body: str) -> Any:
    """A kernel over arrays that broadcast, of any strides: one launch, compiled on first use for each choice of dtypes.

    Args:
        name: For profilers.
        inputs: Parameters, as in ``cupy.ElementwiseKernel``; ``T`` is the dtype of the result.
        outputs: Likewise; to be given in each call, so that nothing is allocated.
        body: CUDA C for one element; ``W`` is the type to compute in.
    """
    return elementwise_of_any(name, inputs, outputs, f"typedef Wider<T>::type W; {body}")


def elementwise_of_any(name: str, inputs: str, outputs: str, body: str) -> Any:
    """Like `elementwise`, but no parameter need be called ``T``, and ``body`` says which type it computes in."""
    return cupy.ElementwiseKernel(inputs, outputs, body, f"actorflow_{name}", preamble=_WIDER, options=OPTIONS)
