"""MPI jobs that tests start: bounded in time, with nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = ["ROOT", "Done", "ended", "is_openmpi", "need_mpi", "run_job", "start_job"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Only a failing job takes so long.
LIMIT_S = 200.0


class Done(NamedTuple):
    """End of a job."""

    status: int
    out: str
    err: str


@cache
def mpiexec() -> str | None:
    """The one beside this Python, whose MPI mpi4py uses, or that of the system."""
    own = Path(sys.executable).with_name("mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec")


@cache
def is_openmpi() -> bool:
    command = mpiexec()
    assert command is not None
    version = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=240, check=False).stdout
    return "Open MPI" in version or "OpenRTE" in version


def need_mpi() -> None:
    """Skip where there is no MPI."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'actorflow[mpi]'")
    if mpiexec() is None:
        pytest.skip("there is no mpiexec: pip install 'actorflow[mpi]'")


@contextmanager
def start_job(
    ranks: int, script: str, *arguments: object, module: bool = True, **environment: object
) -> Iterator[subprocess.Popen[str]]:
    """Start a script of the folder ``ranks``, and end it at the latest at the end of the block.

    Args:
        module: Whether with ``-m mpi4py``.
        environment: Variables that it has besides.
    """
    need_mpi()
    command = [str(mpiexec()), "-n", str(ranks)]
    if is_openmpi():
        command += ["--with-ft", "ulfm", "--oversubscribe", "--allow-run-as-root"]
    command += [sys.executable, "-W", "error", *(["-m", "mpi4py"] if module else [])]
    command += [str(HERE / "ranks" / script), *map(str, arguments)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in environment.items()}}
    job = subprocess.Popen(
        command,
        env=variables,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()


def ended(job: subprocess.Popen[str]) -> Done:
    """Wait for the end of a job."""
    try:
        out, err = job.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        pytest.fail(f"the job has not ended within {LIMIT_S:g} s\n--- stdout\n{out}\n--- stderr\n{err}")
    return Done(job.returncode, out, err)


def run_job(ranks: int, script: str, *arguments: object, **options: Any) -> Done:
    """Run a script of the folder ``ranks`` to its end; see `start_job`."""
    with start_job(ranks, script, *arguments, **options) as job:
        return ended(job)
