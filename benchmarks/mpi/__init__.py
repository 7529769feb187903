"""What do messages between ranks cost over the transport, beside bare mpi4py?"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import Budget, Harness, Relation, Table

__all__ = ["measure"]

TRANSPORT, RAW = "transport", "mpi4py"
_LIMIT_S = 300.0

#: Of each figure: its title, its unit, and the budget as a factor of mpi4py's.
_FIGURES = {
    "hot": ("1 KB, half round trip, one after the other", "us", ("at most 10x mpi4py", 10.0)),
    "cold": ("1 KB, half round trip, after 20 ms without messages", "us", None),
    "large": ("64 MB, from the send to the answer", "ms", ("at least 0.9x of mpi4py's bandwidth", 1 / 0.9)),
    "crowd": ("1 KB, half round trip, two pairs of ranks at once", "us", None),
}


async def measure(harness: Harness) -> list[Table]:
    """Latency, bandwidth, and the processor time of waiting, with two ranks; latency with four."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")
    if harness.peer("mpi4py") is None or command is None:
        harness.leave_out("mpi: there is no mpiexec; pip install 'actorflow[mpi]'")
        return []
    tables = []
    for ranks, figures in ((2, ("hot", "cold", "large", "idle")), (4, ("crowd",))):
        found = await _job(command, ranks, harness, figures)
        tables += [await _table(harness, name, found[name]) for name in figures]
    return tables


async def _table(harness: Harness, name: str, samples: dict[str, list[float]]) -> Table:
    if name == "idle":
        budget = Budget("idle CPU ~ 0", TRANSPORT, Relation.AT_MOST, 1.0)
        title, unit, reference, budgets = "waiting for a message", "% of a core", None, [budget]
    else:
        title, unit, limit = _FIGURES[name]
        reference = RAW
        budgets = [Budget(limit[0], TRANSPORT, Relation.TIMES, limit[1], RAW)] if limit else []
    shown = Harness(rounds=harness.rounds)
    cases: Any = {who: iter(its).__next__ for who, its in samples.items()}
    return await shown.compare(title, unit, cases, reference=reference, budgets=budgets, warm_up=0)


async def _job(command: str, ranks: int, harness: Harness, figures: tuple[str, ...]) -> Any:
    """What rank 0 of a job has measured."""
    arguments = [str(harness.rounds), str(int(harness.quick)), *figures]
    job = await asyncio.create_subprocess_exec(
        command,
        "-n",
        str(ranks),
        sys.executable,
        "-m",
        "benchmarks.mpi.ranks",
        *arguments,
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
        raise RuntimeError(f"the job has failed with status {job.returncode}")
    return json.loads(output)
