"""MPI jobs that a question starts, bounded in time."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

__all__ = ["mpiexec", "run_job"]

_LIMIT_S = 600.0


def mpiexec() -> str | None:
    """The one beside this Python, whose MPI mpi4py uses, or that of the system; None if there is none."""
    own = Path(sys.executable).with_name("mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec")


async def run_job(command: str, ranks: int, module: str, *arguments: object) -> Any:
    """Run a module on ``ranks`` ranks, and return the JSON that rank 0 has printed.

    Raises:
        RuntimeError: if the job fails. TimeoutError: if it takes too long.
    """
    job = await asyncio.create_subprocess_exec(
        command,
        *("-n", str(ranks), sys.executable, "-m", "mpi4py", "-m", module),
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            output, _ = await job.communicate()
    except TimeoutError:
        job.kill()
        await job.wait()
        raise
    if job.returncode:
        raise RuntimeError(f"{module} on {ranks} ranks has failed with status {job.returncode}")
    return json.loads(output)
