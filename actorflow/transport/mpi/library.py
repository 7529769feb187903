"""The MPI library itself, CUDA memory and memory that ranks of one host share; and the end of a job, with one rank."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from mpi4py import MPI

from actorflow.errors import PeerFailedError


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


_GPU_CUDA = 0  # argument of MPICH's `MPIX_GPU_query_support`


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


_GRACE_S = 2.0  # seconds that ranks wait for each other before one that has failed or was interrupted ends the job
_LOOK_S = 0.01
#: Output of a rank goes by way of its launcher, which drops bytes it has not read yet when the job is aborted.
_FORWARD_S = 0.3
_INTERRUPTED = 130

_status = 0  # with which mpi4py aborts the job when the interpreter ends

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def end_job_on_exceptions(close: Callable[[], None]) -> None:
    """From now on, an exception that nothing catches ends all ranks; otherwise they would wait for this one forever.

    The rank on which it arose shows it. One that heard of it from another (`PeerFailedError`) leaves it to that rank,
    and says so if nothing happens.
    """
    before: Hook = sys.excepthook
    _note_exit_status()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if MPI.Is_finalized():
            before(kind, error, trace)
            return
        status = 1
        if isinstance(error, KeyboardInterrupt):
            status = _INTERRUPTED
            if _all_ranks_end():
                _say("interrupted", only_first=True)
                close()
                MPI.Finalize()
                sys.exit(status)
        elif isinstance(error, PeerFailedError):
            time.sleep(_GRACE_S)  # it ends the job meanwhile
            _say(f"stopped, as rank {error.rank} has failed or left, and has not ended the job: {error}")
        else:
            before(kind, error, trace)
        _abort(status)

    sys.excepthook = hook


def exit_status() -> int:
    """The status that this process ends with, if that is known to be a failure: mpi4py aborts the job then."""
    return _status


def _note_exit_status() -> None:
    """Know of the exit status that ``-m mpi4py`` is going to abort the job with, as after ``sys.exit(1)``."""
    usual: Callable[[int], None] = MPI._set_abort_status

    def noting(status: int) -> None:
        global _status  # noqa: PLW0603  a process has one
        _status = status
        usual(status)

    MPI._set_abort_status = noting


def end_interrupted() -> None:
    """Ctrl-C while this rank waits for the others to end: they end now."""
    if not _all_ranks_end():
        _abort(_INTERRUPTED)


def end_without(silent: Collection[int]) -> None:
    """End the job, where MPI would wait for ever for ranks that do not answer."""
    comm, whom = MPI.COMM_WORLD, ", ".join(map(str, sorted(silent)))
    if comm.rank == min(set(range(comm.size)).difference(silent)):
        _say(f"stopped, as rank{'s' if len(silent) > 1 else ''} {whom} did not answer")
    _abort(1)


def _abort(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(_FORWARD_S)
    MPI.COMM_WORLD.Abort(status)


def _all_ranks_end() -> bool:
    """Wait until all ranks are here, so that none is killed while it still tidies up; for a while."""
    barrier = MPI.COMM_WORLD.Ibarrier()
    deadline_s = time.monotonic() + _GRACE_S
    while not barrier.Test():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _say(text: str, only_first: bool = False) -> None:
    rank = MPI.COMM_WORLD.rank
    if rank == 0 or not only_first:
        sys.stderr.write(f"actorflow: {'' if only_first else f'rank {rank}: '}{text}\n")
