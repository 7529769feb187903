"""What do messages between ranks cost over the transport, beside bare mpi4py?"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Budget, Harness, Relation, Table
from benchmarks.jobs import mpiexec, run_job

__all__ = ["measure"]

TRANSPORT, RAW = "transport", "mpi4py"

#: Of each figure: its title, its unit, and the budget as a factor of mpi4py's.
_FIGURES = {
    "hot": ("1 KB, half round trip, one after the other", "us", ("at most 10x mpi4py", 10.0)),
    "cold": ("1 KB, half round trip, after 20 ms without messages", "us", None),
    "large": ("64 MB, from the send to the answer", "ms", ("at least 0.9x of mpi4py's bandwidth", 1 / 0.9)),
    "crowd": ("1 KB, half round trip, two pairs of ranks at once", "us", None),
}


async def measure(harness: Harness) -> list[Table]:
    """Latency, bandwidth, and the processor time of waiting, with two ranks; latency with four."""
    command = mpiexec()
    if harness.peer("mpi4py") is None or command is None:
        harness.leave_out("mpi: there is no mpiexec; pip install 'actorflow[mpi]'")
        return []
    tables = []
    for ranks, figures in ((2, ("hot", "cold", "large", "idle")), (4, ("crowd",))):
        found = await run_job(command, ranks, "benchmarks.mpi.ranks", harness.rounds, int(harness.quick), *figures)
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
