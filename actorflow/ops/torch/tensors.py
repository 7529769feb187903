"""Arrays as tensors of torch, and the number of threads that a call may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from actorflow.devices.blas import blas_threads
from actorflow.errors import require
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import even_cuts
from actorflow.ops.operation import Operation
from actorflow.ops.registry import kernel

#: Of a batch. With more, torch takes ways of few images with some convolutions, which last twice as long.
_MOST_PIECES = 2

torch = require("torch", extra="torch", purpose="kernel library 'torch'")

_Function = Callable[[Any, list[Array], list[Array]], None]

# Looking for the libraries costs some ms; torch has loaded its own one by now.
_openmp = ThreadpoolController().select(user_api="openmp").lib_controllers


def tensor(array: Array) -> Any:
    """The array's memory as a tensor; of a copy, where torch cannot have such strides."""
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        # Not a copy where only axes of length 1 have such strides: they mean nothing, and reshaping makes them anew.
        array = np.ascontiguousarray(array).reshape(-1).reshape(array.shape)
    # `from_numpy` warns of read-only arrays, and `from_dlpack` ends the process for a negative stride.
    return torch.from_numpy(array) if array.flags.writeable else torch.from_dlpack(array)


def images(array: Array) -> Any:
    """(batch, ..., channels) as a tensor (batch, channels, ...) on the same memory."""
    lent = tensor(array)
    # One channel lies the same first and last. Torch 2.13 then takes the strides for those of channels that lie last,
    # and some convolutions read beside the image, as with stride (1, 3), 3x3 kernels and one output channel.
    return lent.squeeze(-1).unsqueeze(1) if array.shape[-1] == 1 else lent.movedim(-1, 1)


def weights(array: Array) -> Any:
    """(*kernel, in, out) as a tensor (out, in, *kernel) on the same memory."""
    return tensor(array).movedim((-1, -2), (0, 1))


def turned(array: Array) -> Any:
    """Like `weights`, of a copy with the channels last, as images have them: torch takes twice the time to make one."""
    if not lies_last(array):
        return weights(array)
    flat = tensor(array).reshape(-1, array.shape[-1]).t().contiguous()
    return flat.reshape(array.shape[-1], *array.shape[:-1]).movedim(-1, 1)


def lies_last(array: Array) -> bool:
    """Return whether a weight with its channels last is told from one with its channels first, by its strides."""
    return array.ndim == 4 and array.shape[-2] > 1 and array.shape[-1] > 1


def within_share(function: Callable[..., None]) -> Callable[..., None]:
    """The function, its torch calls limited to this lane's share of the cores.

    ``torch.set_num_threads`` sets the calling thread's number, but also MKL's for the whole process and what threads
    that start later begin with, so that lanes would undo each other's, and the application's. OpenMP's own setting
    belongs to one thread: it is lowered for the call and put back, and no other thread sees it.
    """

    @wraps(function)
    def limited(*arguments: Any) -> None:
        share = blas_threads.share
        before = torch.get_num_threads()  # also lets torch begin with this thread, which would set the number later
        if before <= share:
            function(*arguments)
            return
        _set_threads(share)
        try:
            function(*arguments)
        finally:
            _set_threads(before)

    return limited


def image_cuts(batch: int, pieces: int) -> list[slice]:
    """Pieces of a batch for `spread`: several where a lane has one core for itself.

    With `within_share`, torch's own threads are as many, however many other lanes have nothing to do.
    """
    return even_cuts(batch, min(pieces, _MOST_PIECES) if blas_threads.share == 1 else 1)


def _set_threads(count: int) -> None:
    for library in _openmp:
        library.set_num_threads(count)


def torch_kernel(
    operation: type[Operation], supports: Callable[[Any], bool] | None = None
) -> Callable[[_Function], _Function]:
    """Register a function as torch's kernel; it is never called with an input that has no elements."""

    def register(function: _Function) -> _Function:
        limited = within_share(function)

        @kernel(operation, library="torch", dtypes=("float32", "float64"), supports=supports)
        @wraps(function)
        def checked(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
            if all(array.size for array in inputs):
                limited(operation, inputs, outputs)
                return
            for output in outputs:  # all of them are sums over nothing
                output.fill(0)

        return function

    return register
