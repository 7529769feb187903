"""Scratch memory per thread, blocks that fit in a core's cache, exact masking, and precision, for all kernels."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from actorflow.core import IS_COMPILED, check_source

Array = npt.NDArray[Any]

#: Elements per block of what passes over its block more than once: 500 KB per operand, of which a large cache holds
#: some. With smaller ones, of which a core's own cache would hold more, threads wait for each other after each call.
BLOCK = 131_072

#: Flags of NumPy's arrays that compiled code reads: C order, aligned.
_PLAIN = 0x101
#: Integers of an element's size.
BITS = {2: np.int16, 4: np.int32, 8: np.int64}


class _Buffers(dict[str, npt.NDArray[np.uint8]]):
    """The scratch memory of one thread, by name."""

    __slots__ = ("__weakref__",)


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.buffers = _Buffers()
        _threads.append(weakref.ref(self.buffers, _threads.remove))


_threads: list[weakref.ref[_Buffers]] = []
_scratch = _Scratch()


def forget_scratch() -> None:
    """Give up the scratch memory of all threads; memory in use lives until then. Any thread may call it."""
    for each in [*_threads]:
        buffers = each()
        if buffers is not None:
            buffers.clear()


def scratch(name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """An array of undefined content in memory that the thread keeps; the next call with this name reuses it."""
    kind = np.dtype(dtype)
    size_bytes = math.prod(shape) * kind.itemsize
    return scratch_bytes(name, size_bytes)[:size_bytes].view(kind).reshape(shape)


def scratch_bytes(name: str, size_bytes: int) -> npt.NDArray[np.uint8]:
    """Such memory, of that size at least."""
    buffers = _scratch.buffers
    buffer = buffers.get(name)
    if buffer is None or buffer.size < size_bytes:
        buffer = buffers[name] = np.empty(size_bytes, np.uint8)
    return buffer


def flat_blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Arrays of one shape, block by block: flat pieces of `BLOCK` elements, if all of them lie flat in memory.

    Arrays that do not are given along their first axis, in pieces of about that size.
    """
    size = arrays[0].size
    if size <= BLOCK:
        yield arrays
    elif all(array.flags.c_contiguous for array in arrays):
        flat = [array.reshape(-1) for array in arrays]
        for start in range(0, size, BLOCK):
            yield tuple(array[start : start + BLOCK] for array in flat)
    else:
        rows = len(arrays[0])
        step = max(1, BLOCK * rows // size)
        for start in range(0, rows, step):
            yield tuple(array[start : start + step] for array in arrays)


def row_blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Matrices of as many rows, some rows of each at a time: as many as fit in the cache."""
    rows, width = arrays[0].shape
    step = max(1, BLOCK // max(1, width))
    if 0 < rows <= step:
        yield arrays
        return
    for start in range(0, rows, step):
        yield tuple(array[start : start + step] for array in arrays)


def keep_where(mask: npt.NDArray[np.bool_], values: Array, out: Array) -> None:
    """``out = values where mask else 0``, by their bits.

    A product with the mask would turn an infinite value that is not kept into a nan, and ``np.copyto(where=)`` takes
    ten times as long.
    """
    bits = BITS[values.dtype.itemsize]
    ones = scratch("bits", mask.shape, bits)
    np.negative(mask.view(np.int8), out=ones)
    np.bitwise_and(values.view(bits), ones, out=out.view(bits))


def matrix(array: Array) -> Array:
    """A 2-d array as BLAS takes it: rows or columns contiguous, copied if it is neither.

    NumPy multiplies other strides without BLAS, many times slower.
    """
    itemsize = array.itemsize
    rows, columns = array.strides
    if (columns == itemsize and rows >= itemsize * array.shape[1]) or (
        rows == itemsize and columns >= itemsize * array.shape[0]
    ):
        return array
    return np.ascontiguousarray(array)


_F = TypeVar("_F", bound=Callable[..., None])


def is_half(array: Array) -> bool:
    """Return whether an array is of float16 or bfloat16."""
    return array.itemsize == 2 and array.dtype.kind in "fV"


@cache
def compiled(name: str) -> Any:
    """A compiled module of `actorflow.ops.cpu`; None where nothing is compiled."""
    if not IS_COMPILED:
        return None
    module = import_module(f"actorflow.ops.cpu.{name}")
    check_source(module)
    return module


def is_plain(array: Array) -> bool:
    """Return whether elements lie in C order, at addresses where the processor reads such."""
    return array.flags.num & _PLAIN == _PLAIN


def plain(array: Array) -> Array:
    """The array, or a copy of it that `is_plain`."""
    return array if is_plain(array) else np.require(array, requirements=["C", "A"])


def loops_for(*arrays: Array, kinds: str = "f") -> Any:
    """The compiled module of loops; None without one, or if arrays are not plain or are of other dtypes."""
    return compiled("loops") if all(each.dtype.char in kinds and is_plain(each) for each in arrays) else None


@cache
def narrow() -> Any:
    """The compiled module for narrow numbers; None where there is none, or none that is fast on this processor."""
    module = compiled("narrow")
    return module if module is not None and module.IS_FAST else None


def _is_float16(array: Array) -> bool:
    """Return whether the module for narrow numbers converts an array: NumPy does so one by one."""
    return array.dtype == np.float16 and is_plain(array) and array.size > 0 and narrow() is not None


def widened(x: Array) -> Array:
    """An array of half precision in float32."""
    if not _is_float16(x):
        return x.astype(np.float32)
    y = np.empty(x.shape, np.float32)
    narrow().to_float32(x.reshape(-1).view(np.uint16), y.reshape(-1))
    return y


def put_rounded(wide: Array, out: Array) -> None:
    """Round an array of float32 into one of half precision."""
    if _is_float16(out) and is_plain(wide):
        narrow().to_float16(wide.reshape(-1), out.reshape(-1).view(np.uint16))
        return
    with np.errstate(over="ignore"):  # beyond float16's range is infinity
        out[...] = wide


def in_float32(function: _F) -> _F:
    """A kernel that is given float32 copies of float16 and bfloat16 arrays, and whose results are rounded once.

    NumPy computes these dtypes element by element, rounds after every step, and sums in them.
    """

    @wraps(function)
    def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        if not any(is_half(array) for array in (*inputs, *outputs)):
            function(operation, inputs, outputs)
            return
        wide = [np.empty(y.shape, np.float32) if is_half(y) else y for y in outputs]
        function(operation, [widened(x) if is_half(x) else x for x in inputs], wide)
        for result, output in zip(wide, outputs, strict=True):
            if result is not output:
                put_rounded(result, output)

    return compute  # type: ignore[return-value]
