"""Whether the MPI reads the memory of CUDA devices, and such memory in a form that it takes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from mpi4py import MPI

from actorflow.transport.mpi.library import library

#: Of MPICH's `MPIX_GPU_query_support`.
_GPU_CUDA = 0


@cache
def knows_cuda() -> bool:
    """Ask the MPI: Open MPI and MPICH each have a function of their own for that. No answer is a no."""
    try:
        return bool(library().MPIX_Query_cuda_support())
    except AttributeError:
        pass
    answer = ctypes.c_int(0)
    try:
        failed = library().MPIX_GPU_query_support(_GPU_CUDA, ctypes.byref(answer))
    except AttributeError:
        return False
    return not failed and bool(answer.value)


def bytes_on_device(array: Any) -> memoryview:
    """The bytes of a C-contiguous array of a CUDA device, as an address that Python itself must not look at."""
    address, _ = array.__cuda_array_interface__["data"]
    found: Any = MPI.buffer.fromaddress(address, array.nbytes)  # types know buffers since Python 3.12 only
    return memoryview(found)
