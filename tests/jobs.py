"""Starts MPI jobs, which end with the test whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["NEEDS_MPI", "run_job"]

_MPIEXEC = Path(sys.executable).with_name("mpiexec")
NEEDS_MPI = pytest.mark.skipif(
    find_spec("mpi4py") is None or not _MPIEXEC.exists(), reason="needs the extra 'mpi': pip install 'actorflow[mpi]'"
)


def run_job(ranks: int, program: Path, *arguments: object) -> list[str]:
    """The lines that a program prints on so many ranks; it must end well and say nothing on stderr."""
    command = [_MPIEXEC, "-n", ranks, sys.executable, "-W", "error", "-m", "mpi4py", program, *arguments]
    with subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            out, err = job.communicate(timeout=60)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    assert (job.returncode, err) == (0, "")
    return out.splitlines()
