"""Registration of the library's kernels: a primitive is made when a step first runs, and what it cannot do is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

import actorflow.ops.cpu  # noqa: F401  registers NumPy's kernels
from actorflow.devices import device_kind
from actorflow.ops import registry
from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.kept import kept
from actorflow.ops.onednn.library import DST, SCRATCHPAD, SRC, Handle, UnsupportedError, libdnnl
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

LIBRARY = "onednn"
#: Flags of NumPy's arrays: C order, aligned.
_PLAIN = 0x101
#: Bytes of a line of the cache, at which vectors are best to begin.
_LINE = 64

#: Computes a step: called with its inputs, its outputs, and what takes rows (`registry.Kernel.finishes`).
Call = Callable[..., None]
#: Makes that for inputs of some types; raises `UnsupportedError`.
Make = Callable[[Any, Sequence[TensorSpec]], Call]


def kernel(
    operation: type[Operation],
    dtypes: Sequence[str] = ("float32",),
    *,
    keeps: bool = False,
    supports: Callable[[Any], bool] | None = None,
) -> Callable[[Make], Make]:
    """Register what makes a step's call as a kernel; where that is unsupported, the next library's kernel computes.

    The library compiles a primitive as it is made, which takes up to some ms. It is made in the first call, which is on
    a lane's thread, as nobody knows yet how long it takes, and not on the loop, where programs are built.
    """

    def register(make: Make) -> Make:
        def bind(_: Any, specs: Sequence[TensorSpec]) -> Callable[..., None]:
            call: Call | None = None

            def compute(operation: Any, inputs: list[Array], outputs: list[Array], *finish: Any) -> None:
                nonlocal call
                if call is None:
                    call = kept(operation).made((LIBRARY, *specs), lambda: _made(make, operation, specs))
                call(operation, inputs, outputs, *finish)

            return compute

        @registry.kernel(
            operation,
            library=LIBRARY,
            dtypes=dtypes,
            finishes=_numpys(operation).finishes,
            keeps=keeps,
            supports=supports,
            bind=bind,
        )
        @wraps(make)
        def compute(operation: Any, inputs: list[Array], outputs: list[Array], *finish: Any) -> None:
            specs = [TensorSpec(x.shape, x.dtype) for x in inputs]
            bind(operation, specs)(operation, inputs, outputs, *finish)

        return make

    return register


def _made(make: Make, operation: Any, specs: Sequence[TensorSpec]) -> Call:
    outputs = operation.infer(*specs)
    if all(spec.size for spec in (*specs, *outputs)):
        try:
            return make(operation, specs)
        except UnsupportedError:
            pass
    return others(operation, specs[0].dtype).function


def others(operation: Operation, dtype: np.dtype[Any]) -> registry.Kernel:
    """The kernel of the libraries after this one."""
    names = [name for name in device_kind("cpu").libraries if name != LIBRARY] or ["numpy"]
    return registry.find_kernel(operation, "cpu", dtype, libraries=registry.load_libraries("cpu", names))


def _numpys(operation: type[Operation]) -> registry.Kernel:
    return next(each for each in registry.kernels_of("cpu", "numpy") if each.key.operation == operation.__name__)


def plain(array: Array) -> Array:
    """The array, or a copy of it whose elements lie in C order."""
    return array if array.flags.num & _PLAIN == _PLAIN else np.require(array, requirements=["C", "A"])


def written(array: Array) -> Array:
    """The array if its elements lie in C order, or one like it to write into instead."""
    return array if array.flags.num & _PLAIN == _PLAIN else np.empty(array.shape, array.dtype)


def memory(size_bytes: int) -> Array:
    """Memory that begins where a line of the cache does."""
    found = np.empty(size_bytes + _LINE, np.uint8)
    start = -found.ctypes.data % _LINE
    return found[start : start + size_bytes]


class Compute:
    """A primitive and its scratchpad, on the thread that calls it.

    Args:
        descriptor: The primitive's descriptor.
        arguments: Numbers of the arguments, in the order in which calls give their arrays.
    """

    def __init__(self, descriptor: Handle, arguments: Sequence[int]) -> None:
        found = libdnnl()
        self.descriptor = descriptor
        self._scratch_bytes = found.size_bytes(found.memory_of(descriptor, SCRATCHPAD))
        self._primitive = found.primitive(descriptor, [*arguments, SCRATCHPAD] if self._scratch_bytes else arguments)

    def __call__(self, *arrays: Array) -> None:
        if self._scratch_bytes:
            self._primitive(*arrays, scratch("onednn", (self._scratch_bytes,), np.uint8))
        else:
            self._primitive(*arrays)


class Reorder:
    """Puts an array into another order of memory.

    Args:
        source, target: Descriptors of both, see `Library.memory`.
    """

    def __init__(self, source: int | Handle, target: int | Handle) -> None:
        found = libdnnl()
        self.size_bytes = found.size_bytes(target)
        self._compute = Compute(found.reorder(source, target), [SRC, DST])

    def __call__(self, source: Array, target: Array | None = None) -> Array:
        made = memory(self.size_bytes) if target is None else target
        self._compute(source, made)
        return made
