"""The library of the MPI that mpi4py uses, for what MPI's standard has no words for."""

from __future__ import annotations

import ctypes
from functools import cache

from mpi4py import MPI


@cache
def library() -> ctypes.CDLL:
    """It, by way of mpi4py's own module: its names are not among those of the process."""
    return ctypes.CDLL(MPI.__file__)


def finalize_without_fence() -> None:
    """After a rank has died: have Open MPI's ``MPI_Finalize`` not ask the launcher whether all ranks are there.

    The launcher may wait for the dead one then, and the job never ends. With its failure mitigation, the living wait
    for each other before, by a barrier of theirs; so nobody is missed. This is its parameter ``async_mpi_finalize``,
    which is read when MPI is initialized, and is to hold for the job that has lost a rank alone.
    """
    try:
        skipped = ctypes.c_bool.in_dll(library(), "ompi_async_mpi_finalize")
    except ValueError:  # another MPI, or another version
        return
    skipped.value = True
