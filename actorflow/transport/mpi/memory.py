"""Memory that the ranks of one host share, and that nothing is left of, however the job ends."""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from mpi4py import MPI

__all__ = ["remove_names", "shared_memory"]

_MAPPED = Path("/proc/self/maps")
#: How MPICH calls the files of its shared memory.
_FILES = "/dev/shm/mpich_shm_"  # noqa: S108  no file of ours


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
    """Remove the names of the files that MPICH shares memory by, which it leaves behind when a job is killed.

    All ranks of the host have mapped them by now, and call this together.
    """
    if node.rank == 0 and _MAPPED.exists():
        mapped = {words[-1] for line in _MAPPED.read_text().splitlines() if len(words := line.split(maxsplit=5)) == 6}
        for path in mapped:
            if path.startswith(_FILES):
                with suppress(OSError):
                    Path(path).unlink()
