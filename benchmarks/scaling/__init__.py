"""How does data parallel training scale, and how much of its transfers is hidden behind computing?

GoogLeNet as a table of layers: each waits as long as it would compute on an accelerator of its own, so that a machine
with few cores can show it; its gradients are of the real size, and MPI reduces them between the ranks.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import Budget, Harness, Relation, Table
from benchmarks.jobs import mpiexec, run_job
from benchmarks.machine import cores

__all__ = ["measure"]


async def measure(harness: Harness) -> list[Table]:
    """Time of an iteration on 1 to 12 ranks, and the share of the reductions that costs nothing."""
    command = mpiexec()
    if harness.peer("mpi4py") is None or command is None:
        harness.leave_out("scaling: there is no mpiexec; pip install 'actorflow[mpi]'")
        return []
    ranks = (1, 2) if harness.quick else (1, 2, 4, 8, 12)
    steps, size = (2, 0.01) if harness.quick else (8, 1.0)
    rounds = min(harness.rounds, 3)
    found = {n: await run_job(command, n, "benchmarks.scaling.rank", rounds, steps, size) for n in ranks}
    shown = Harness(rounds=rounds)

    async def table(title: str, unit: str, samples: dict[str, list[float]], budgets: list[Budget]) -> Table:
        cases: Any = {name: iter(values).__next__ for name, values in samples.items()}
        return await shown.compare(title, unit, cases, budgets=budgets, warm_up=0)

    times = {f"{n} ranks": [1e3 * t for t in found[n]["all"]] for n in ranks}
    speedup = {f"{n} ranks": [n * w / t for t, w in zip(found[n]["all"], found[1]["all"], strict=True)] for n in ranks}
    seen = {
        f"{n} ranks": [
            100 * max(both - waits, 0.0) / transfers
            for both, waits, transfers in zip(*(found[n][kind] for kind in ("all", "waits", "transfers")), strict=True)
        ]
        for n in ranks[1:]
    }
    seen |= {f"{n} ranks, at best": _at_best(found[n]) for n in ranks[1:]}
    transfers, ideal, busy = (
        {f"{n} ranks": [1e3 * t for t in found[n][kind]] for n in ranks[1:]}
        for kind in ("transfers", "ideal", "transfers busy")
    )
    hidden = [
        Budget("at least 95 % of what can be is hidden", f"{n} ranks", Relation.MORE, 5.0, f"{n} ranks, at best")
        for n in (2, 4, 8)
        if n in ranks
    ]
    return [
        await table("an iteration of simulated GoogLeNet, 64 images a rank", "ms", times, []),
        await table("its reductions alone", "ms", transfers, []),
        await table("their copies and additions alone, on all ranks at once", "ms", ideal, []),
        await table("processor time of the reductions, of all ranks together", "ms", busy, []),
        await table(
            "share of the reductions that is not hidden behind computing",
            "%",
            seen,
            hidden,
        ),
        await table("speed-up over one rank; Purine2's paper has about 12 on 12", "x", speedup, []),
    ]


def _at_best(found: dict[str, list[float]]) -> list[float]:
    """Percent of the reductions that nothing can hide: copies and additions for which the computing leaves no core."""
    return [
        100 * max(ideal - max(waits - busy / cores(), 0.0), 0.0) / transfers
        for ideal, waits, busy, transfers in zip(
            *(found[kind] for kind in ("ideal", "waits", "waits busy", "transfers")), strict=True
        )
    ]
