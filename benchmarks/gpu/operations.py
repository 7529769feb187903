"""Each operation by itself: the same result as on the CPU, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.gpu.bench import ACTORFLOW, TORCH, Bench
from benchmarks.gpu.cases import OperationCase, operation_cases
from benchmarks.harness import Table, per

__all__ = ["measure"]

_US = 1e-6
_CPU = af.Place()


async def measure(bench: Bench) -> list[Table]:
    """A table per operation. An op runs many times in a frame, so that starting one hardly counts."""
    calls = bench.harness.pick(20, 2)
    return [await _measure(bench, case, calls) for case in operation_cases(quick=bench.harness.quick)]


async def _measure(bench: Bench, case: OperationCase, calls: int) -> Table:
    expected = await _results(_CPU, case)
    for i, (actual, reference) in enumerate(zip(await _results(bench.place, case), expected, strict=True)):
        which = f", output {i}" if len(expected) > 1 else ""
        bench.check(f"{case.title}{which}", actual, reference, case.tolerance)
    graph, nodes = _graph(bench.place, case, calls)
    cases = {ACTORFLOW: per(calls, _US, lambda: graph.run(fetch=nodes))}
    if case.bare is not None:
        cases[bench.bare] = bench.case(calls, _US, _bare(bench, case, calls))
    if case.torch is not None and bench.torch is not None:
        cases[TORCH] = bench.case(calls, _US, _torch(bench, case, calls))
    try:
        reference = TORCH if TORCH in cases else bench.bare if bench.bare in cases else ACTORFLOW
        return await bench.harness.compare(f"operation: {case.title}", "us per call", cases, reference=reference)
    finally:
        await graph.aclose()


def _graph(place: af.Place, case: OperationCase, calls: int) -> tuple[af.Graph, list[af.Op]]:
    graph = af.Graph(case.operation.kind)
    with graph.at(place):
        inputs = [graph.variable(f"x{i}", a.shape, a.dtype, a) for i, a in enumerate(case.arrays)]
        nodes = [graph.op(f"op{i}", case.operation) for i in range(calls)]
        for node in nodes:
            node(*inputs)
    return graph, nodes


async def _results(place: af.Place, case: OperationCase) -> list[Any]:
    graph, (node,) = _graph(place, case, 1)
    try:
        result = await graph.run(fetch=node.outputs)
        return [np.array(af.to_numpy(result[blob])) for blob in node.outputs]
    finally:
        await graph.aclose()


def _bare(bench: Bench, case: OperationCase, calls: int) -> Callable[[], None]:
    arrays, function = [bench.xp.asarray(a) for a in case.arrays], case.bare
    assert function is not None

    def work() -> None:
        for _ in range(calls):
            function(bench.xp, *arrays)

    return work


def _torch(bench: Bench, case: OperationCase, calls: int) -> Callable[[], None]:
    assert case.torch is not None
    call = case.torch(bench.torch, *[bench.torch.from_numpy(a).to(bench.torch_device) for a in case.arrays])

    def work() -> None:
        for _ in range(calls):
            call()

    return work
