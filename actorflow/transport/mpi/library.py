"""The MPI library itself: CUDA memory, memory that ranks of one host share, and the end of a job that lost a rank."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from mpi4py import MPI


@cache
def library() -> ctypes.CDLL:
    """Load it by way of mpi4py's own module: its names are not among those of the process."""
    return ctypes.CDLL(MPI.__file__)


def finalize_without_fence() -> None:
    """After a rank has died: have Open MPI's ``MPI_Finalize`` not ask the launcher whether all ranks are there.

    The launcher may wait for the dead one then, and the job never ends. With its failure mitigation, the living wait
    for each other before, by a barrier of theirs; so none is missed. This is its parameter ``async_mpi_finalize``,
    which is read when MPI is initialized, and is to hold for the job that has lost a rank alone.
    """
    try:
        skipped = ctypes.c_bool.in_dll(library(), "ompi_async_mpi_finalize")
    except ValueError:  # another MPI, or another version
        return
    skipped.value = True


#: Argument of MPICH's `MPIX_GPU_query_support`.
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


_MAPPED = Path("/proc/self/maps")
#: Prefixes of the files that MPICH and Open MPI share memory by.
_FILES = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.")  # noqa: S108  no files of ours


def shared_memory(node: MPI.Comm, size_bytes: int) -> mmap.mmap:
    """Memory of the ranks of one host: a file that has no name any more when this returns."""
    path = ""
    if node.rank == 0:
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108  a private file, made by mkstemp
        descriptor, path = tempfile.mkstemp(prefix="actorflow-", dir=folder)
        os.ftruncate(descriptor, size_bytes)
    else:
        descriptor = -1
    path = node.bcast(path)
    try:
        if descriptor < 0:
            descriptor = os.open(path, os.O_RDWR)
        node.Barrier()
    finally:
        if node.rank == 0:
            Path(path).unlink()
    try:
        return mmap.mmap(descriptor, size_bytes)
    finally:
        os.close(descriptor)


def remove_names(node: MPI.Comm) -> None:
    """Remove the names of the files that the MPI shares memory by, which it leaves behind when a job is killed.

    All ranks of the host call this together. A name is removed that each of them has mapped.
    """
    mapped = set()
    if _MAPPED.exists():
        lines = _MAPPED.read_text().splitlines()
        mapped = {words[-1] for line in lines if len(words := line.split(maxsplit=5)) == 6}
    everywhere = set.intersection(*node.allgather({path for path in mapped if path.startswith(_FILES)}))
    if node.rank == 0:
        for path in everywhere:
            with suppress(OSError):
                Path(path).unlink()
