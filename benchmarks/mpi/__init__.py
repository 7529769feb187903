"""What do messages between ranks cost over the transport, beside bare mpi4py?"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Budget, Harness, Relation, Table
from benchmarks.jobs import mpiexec, run_job

__all__ = ["measure"]

TRANSPORT, RAW = "transport", "mpi4py"

_MOST_US = Budget("at most 60 us of processor time", TRANSPORT, Relation.AT_MOST, 60.0)
#: Of each figure: its title, its unit, and the budget.
_FIGURES = {
    "hot": (
        "1 KB, half round trip, one after the other",
        "us",
        Budget("at most 5x mpi4py", TRANSPORT, Relation.TIMES, 5.0, RAW),
    ),
    "cold": (
        "1 KB, half round trip, after 20 ms without messages",
        "us",
        Budget("at most 10x mpi4py", TRANSPORT, Relation.TIMES, 10.0, RAW),
    ),
    "beside": (
        "1 KB, half round trip, after 20 ms without messages, beside two processes that compute",
        "us",
        Budget("at most 500 us", TRANSPORT, Relation.AT_MOST, 500.0),
    ),
    "large": (
        "64 MB, from the send to the answer",
        "ms",
        Budget("at least 0.9x of mpi4py's bandwidth", TRANSPORT, Relation.TIMES, 1 / 0.9, RAW),
    ),
    "crowd": ("1 KB, half round trip, two pairs of ranks at once", "us", None),
    "busy 1": ("16 bytes, processor time of a message, one after the other", "us", _MOST_US),
    "busy 16": ("16 bytes, processor time of a message, 16 under way", "us", _MOST_US),
    "busy 10000": ("16 bytes, processor time of a message, 10,000 under way", "us", _MOST_US),
}
_BUSY = tuple(name for name in _FIGURES if name.startswith("busy"))


async def measure(harness: Harness) -> list[Table]:
    """Latency, bandwidth, and the processor time of messages and of waiting, with two ranks; latency with four."""
    command = mpiexec()
    if harness.peer("mpi4py") is None or command is None:
        harness.leave_out("mpi: there is no mpiexec; pip install 'actorflow[mpi]'")
        return []
    tables = []
    for ranks, figures in ((2, ("hot", "cold", "beside", "large", *_BUSY, "idle")), (4, ("crowd",))):
        found = await run_job(command, ranks, "benchmarks.mpi.ranks", harness.rounds, int(harness.quick), *figures)
        tables += [await _table(harness, name, found[name]) for name in figures]
    return tables


async def _table(harness: Harness, name: str, samples: dict[str, list[float]]) -> Table:
    if name == "idle":
        budget: Budget | None = Budget("idle CPU ~ 0", TRANSPORT, Relation.AT_MOST, 1.0)
        title, unit, reference = "waiting for a message", "% of a core", None
    else:
        title, unit, budget = _FIGURES[name]
        reference = RAW
    budgets = [] if budget is None else [budget]
    shown = Harness(rounds=harness.rounds)
    cases: Any = {who: iter(its).__next__ for who, its in samples.items()}
    return await shown.compare(title, unit, cases, reference=reference, budgets=budgets, warm_up=0)
