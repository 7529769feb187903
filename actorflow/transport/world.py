"""The ranks that this program runs on."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from actorflow.errors import TransportError, require
from actorflow.transport.base import Transport
from actorflow.transport.local import LocalWorld
from actorflow.transport.peers import liveness_of

#: Where those who start a job's processes tell each how many they are: Hydra and relatives, Open MPI, Slurm's srun.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")

_world: Transport | None = None
#: The rank that a simulation runs code as; see `actorflow.testing.simulate`.
simulated_rank: ContextVar[Transport | None] = ContextVar("simulated_rank", default=None)


def world(*, liveness_s: float | None = None) -> Transport:
    """The ranks that this program runs on, and which of them this process is: its ``rank`` and ``size``.

    They are the processes of an MPI job if ``mpiexec`` or ``srun`` has started more than one, or if the program has
    initialized MPI with mpi4py itself; else this process is the only one. In an MPI job, all ranks must call this, as
    the first call connects them; it may wait for the others. An exception that nothing catches then ends the job.

    Raises:
        MissingExtraError: if this is an MPI job, and mpi4py is not installed.
        TransportError: if the MPI of mpi4py is not the one whose ``mpiexec`` has started the job, so that each process
            is alone for it; or if MPI has been finalized.

    Example:
        >>> af.world().rank, af.world().size  # of a program that no mpiexec has started
        (0, 1)
    """
    global _world  # noqa: PLW0603  a process has one place in its job
    simulated = simulated_rank.get()
    if simulated is not None:
        return simulated
    if _world is None:
        _world = _connected(liveness_s)
        atexit.register(_world.close_with_others)
    elif liveness_s is not None:
        _world.liveness_s = liveness_of(liveness_s)
    return _world


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """Number of processes of the job, by its launcher; 1 if none has started this one."""
    return max(int(value) if (value := environment.get(name, "")).isdecimal() else 1 for name in _SIZES)


def _connected(liveness_s: float | None) -> Transport:
    size = launched_size()
    if size == 1 and "mpi4py.MPI" not in sys.modules:
        return LocalWorld(1, liveness_s=liveness_s).transports[0]
    mpi = _mpi(size)
    if mpi.Is_finalized():
        raise TransportError("MPI has been finalized already; ask for the world before")
    if mpi.COMM_WORLD.size == 1:
        if size > 1:
            raise TransportError(_strangers(size, mpi))
        return LocalWorld(1, liveness_s=liveness_s).transports[0]
    from actorflow.transport.mpi import MPITransport, end_job_on_exceptions

    transport = MPITransport(liveness_s=liveness_s)
    end_job_on_exceptions(transport.close)
    return transport


def _mpi(size: int) -> Any:
    try:
        mpi: Any = require("mpi4py.MPI", extra="mpi", purpose=f"a job of {size} processes")
    except RuntimeError as error:  # for instance no MPI library
        raise TransportError(f"mpi4py cannot start MPI: {error}") from error
    if not mpi.Is_initialized():
        mpi.Init_thread()
    return mpi


def _strangers(size: int, mpi: Any) -> str:
    library = " ".join(mpi.Get_library_version().split()[:3])
    own = Path(sys.executable).with_name("mpiexec")
    advice = str(own) if own.exists() else "the mpiexec of that MPI"
    return (
        f"{size} processes were started, but each is alone for the MPI that mpi4py uses ({library}): it is not the one "
        f"whose mpiexec, or srun, has started them. Start them with {advice}, or install an mpi4py for the other MPI"
    )
