"""How close do chains of small NumPy operations, and small networks at batch 1, come to a plain loop?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import actorflow as af
from benchmarks.harness import Budget, Harness, Relation, Table, per
from benchmarks.workloads import MatMul, chain_graph, matmul_factors, matmul_size

__all__ = ["measure"]

_US = 1e-6
_MATRIX = npt.NDArray[np.float32]

LOOP, LOOP_FRESH = "plain loop, reused buffers", "plain loop, new arrays"
KERNELS, FUNCTIONS = "actorflow, kernels", "actorflow, functions"
BARE, RUN = "bare kernels, ready lists", "await graph.run"


async def measure(harness: Harness) -> list[Table]:
    """Products of about 10 and 400 us against the same in a loop; networks of one row against their bare kernels."""
    tables = []
    for target_us, share, count in ((10, 0.97, harness.pick(1_000, 20)), (400, 0.99, harness.pick(100, 5))):
        size = matmul_size(target_us * _US)
        tables.append(await _compare(harness, size, share, count, target_us))
    for title, network, shape, limit in (
        ("LeNet, one image", af.nn.LeNet(10), (1, 28, 28, 1), 1.15),
        ("a perceptron of 6 ops, one row", _perceptron, (1, 64), 1.45),
    ):
        tables.append(await _compare_bare(harness, title, network, shape, limit))
    return tables


def _perceptron(x: af.Blob) -> af.Blob:
    """Three products, each with something behind it."""
    for i, width in enumerate((64, 64, 10)):
        weight = x.graph.variable(f"w{i}", (width, 64), init=af.nn.init.gaussian(std=0.1, seed=i))
        x = af.ops.inner(x, weight)
        x = af.ops.softmax(x) if width == 10 else af.ops.relu(x)
    return x


async def _compare(harness: Harness, size: int, share: float, count: int, target_us: int) -> Table:
    x, w = matmul_factors(size)
    kernels, kernel_feeds = await _warm(count, x, w, MatMul())
    functions, function_feeds = await _warm(count, x, w, np.matmul)
    budgets = [
        Budget(f"{name}: at least {share} of the speed of the loop", name, Relation.BELOW, share, loop)
        for name, loop in ((KERNELS, LOOP), (FUNCTIONS, LOOP_FRESH))
    ]
    try:
        return await harness.compare(
            f"{count} products of {size} x {size} (about {target_us} us)",
            "us per op",
            {
                LOOP: per(count, _US, _loop_reusing(count, x, w)),
                KERNELS: per(count, _US, lambda: kernels.run(kernel_feeds)),
                LOOP_FRESH: per(count, _US, _loop_fresh(count, x, w)),
                FUNCTIONS: per(count, _US, lambda: functions.run(function_feeds)),
            },
            reference=LOOP,
            budgets=budgets,
        )
    finally:
        await kernels.aclose()
        await functions.aclose()


async def _warm(count: int, x: _MATRIX, w: _MATRIX, operation: Any) -> tuple[af.Graph, dict[Any, Any]]:
    """A graph whose ops know their cost: the first calls of an op go to the lane; then short ones run on the loop."""
    graph, source = chain_graph(count, w, operation)
    feeds = {source: x}
    for _ in range(6):
        await graph.run(feeds)
    return graph, feeds


def _loop_reusing(count: int, x: _MATRIX, w: _MATRIX) -> Callable[[], None]:
    buffers = np.empty_like(x), np.empty_like(x)

    def loop() -> None:
        y = x
        for i in range(count):
            y = np.matmul(y, w, out=buffers[i % 2])

    return loop


def _loop_fresh(count: int, x: _MATRIX, w: _MATRIX) -> Callable[[], None]:
    def loop() -> None:
        y = x
        for _ in range(count):
            y = np.matmul(y, w)

    return loop


async def _compare_bare(
    harness: Harness, title: str, network: Callable[[af.Blob], af.Blob], shape: tuple[int, ...], limit: float
) -> Table:
    graph = af.Graph("batch one")
    x = graph.blob("x", shape)
    y = network(x)
    feeds = {x: np.random.default_rng(0).standard_normal(shape, np.float32)}
    count = harness.pick(300, 10)
    async with graph:
        for _ in range(20):
            result = await graph.run(feeds)
        bare, scores = _bare(graph, feeds[x])
        bare()
        np.testing.assert_array_equal(scores, result[y])

        async def runs() -> None:
            for _ in range(count):
                await graph.run(feeds)

        def calls() -> None:
            for _ in range(count):
                bare()

        budget = Budget(f"{RUN}: at most {limit} times the bare kernels", RUN, Relation.TIMES, limit, BARE)
        cases = {BARE: per(count, _US, calls), RUN: per(count, _US, runs)}
        return await harness.compare(title, "us per run", cases, reference=BARE, budgets=[budget])


def _bare(graph: af.Graph, fed: _MATRIX) -> tuple[Callable[[], None], _MATRIX]:
    """The kernels of a graph's newest program in their order, over buffers of their own, and the result's buffer."""
    program = [*graph.engine._programs.values()][-1]
    values: list[Any] = program.feed({graph.sources[0]: fed})
    for slot, variable in program._variables_read:
        values[slot] = variable.read()
    steps = []
    ops: Any = program.ops
    for op in ops:
        inputs, outputs = [values[blob.slot] for blob in op.inputs], None
        if not op.kernel.returns:
            outputs = [bucket.take() for bucket in op.buckets]
        made = op.kernel.function(op.operation, inputs, outputs) if outputs is None else outputs
        for blob, value in zip(op.outputs, made, strict=True):
            values[blob.slot] = value
        steps.append((op.kernel.function, op.operation, inputs, outputs))

    def call() -> None:
        for function, operation, inputs, outputs in steps:
            function(operation, inputs, outputs)

    return call, values[op.outputs[0].slot]
