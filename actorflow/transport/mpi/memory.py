"""Memory that the ranks of one host share, and that nothing is left of, however the job ends."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from mpi4py import MPI

_MAPPED = Path("/proc/self/maps")
#: How MPICH and Open MPI call the files of their shared memory.
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
