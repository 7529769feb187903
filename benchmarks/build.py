"""What do building, compiling and keeping a graph cost, up to a million ops?"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from time import process_time
from typing import Any

import numpy as np

from actorflow.loop import at_once
from actorflow.runtime.build import building
from benchmarks.dispatch import trivial
from benchmarks.harness import Budget, Harness, Relation, Table
from benchmarks.workloads import build_graph, layered

__all__ = ["measure"]

BUILD, COMPILE, PREPARE, BOTH = "build", "compile", "make the actors", "build + compile"
MEMORY = "graph, plan and actors"


async def measure(harness: Harness) -> list[Table]:
    """Time and memory per op of a layered graph of functions, each size in fresh processes."""
    tables = []
    for count in (300,) if harness.quick else (5_000, 1_000_000):
        rounds = 1 if count >= 1_000_000 else harness.rounds
        samples = [await _in_process(count) for _ in range(rounds)]
        tables += await _tables(count, rounds, samples)
    if harness.quick:
        harness.leave_out("5,000 and 1,000,000 ops: only without --quick")
    return tables


async def _tables(count: int, rounds: int, samples: list[dict[str, float]]) -> list[Table]:
    shown = Harness(rounds=rounds)
    time_budget = Budget("build + compile at most 20 us per op", BOTH, Relation.AT_MOST, 20.0)
    times = await shown.compare(
        f"{count:,} ops, layers of 100, fan-in 3, processor time",
        "us per op",
        {name: map(_value(name), samples).__next__ for name in (BUILD, COMPILE, BOTH, PREPARE)},
        budgets=[time_budget],
        warm_up=0,
    )
    if any(sample["bytes"] < 0 for sample in samples):
        return [times]
    memory_budget = Budget("at most 2 KB per op and blob", MEMORY, Relation.AT_MOST, 2.0)
    memory = await shown.compare(
        f"{count:,} ops, resident memory",
        "KB per op + blob",
        {MEMORY: (sample["bytes"] / 1024 for sample in samples).__next__},
        budgets=[memory_budget],
        warm_up=0,
    )
    return [times, memory]


def _value(name: str) -> Any:
    return lambda sample: sample[name]


async def _in_process(count: int) -> dict[str, float]:
    """The figures per op, from a process of their own, as memory is never given back whole."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.build", str(count), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the process that builds {count} ops ended with code {process.returncode}")
    figures: dict[str, float] = json.loads(output)
    return figures


async def _figures(count: int) -> dict[str, float]:
    tasks = layered(count)
    build_graph(layered(1), trivial)[0].compile()  # loads what is loaded once
    gc.collect()
    before = _resident_bytes()
    start = process_time()
    graph, source = build_graph(tasks, trivial)
    built = process_time()
    plan = graph.compile()
    compiled = process_time()
    # A run of one op opens the device and puts the engine on this loop, which actors need.
    await graph.run({source: np.ones(1, dtype=np.float32)}, fetch=["task0"])
    start_actors = process_time()
    program = at_once(building(plan, graph.engine.resources))
    prepared = process_time()
    del plan
    gc.collect()
    held = _resident_bytes() - before if before else -count
    assert program.graph is graph
    await graph.aclose()
    us = 1e6 / count
    figures = {BUILD: (built - start) * us, COMPILE: (compiled - built) * us, PREPARE: (prepared - start_actors) * us}
    return {**figures, BOTH: figures[BUILD] + figures[COMPILE], "bytes": held / count}


def _resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as fields:
            import resource

            return int(fields.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_figures(int(sys.argv[1])))))
