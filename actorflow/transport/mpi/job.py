"""End of a job when one of its ranks ends: all of it ends, with one traceback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from types import TracebackType

from mpi4py import MPI

from actorflow.errors import PeerFailedError

#: Seconds that ranks wait for each other before one that has failed or was interrupted ends the job.
_GRACE_S = 2.0
_LOOK_S = 0.01
#: Output of a rank goes by way of its launcher, which drops what it has not read yet when the job is aborted.
_FORWARD_S = 0.3
_INTERRUPTED = 130

_status = 0  # with which mpi4py aborts the job when the interpreter ends

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def end_job_on_exceptions(close: Callable[[], None]) -> None:
    """From now on, an exception that nothing catches ends all ranks; otherwise they would wait for this one forever.

    The rank on which it arose shows it. One that heard of it from another (`PeerFailedError`) leaves it to that rank,
    and says so if nothing happens.

    Args:
        close: Frees what this rank holds of MPI.
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
