"""Arrays that somebody keeps are never written over, and in the steady state no buffer is allocated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.ops import Operation, kernel

_FRAMES = 40


class Keeping(Operation):
    """Its input; the kernel keeps what it has written."""

    arguments = ("x",)

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs


written: list[Any] = []


@kernel(Keeping)
def _keeping(_operation: Keeping, inputs: Any, outputs: Any) -> None:
    np.copyto(outputs[0], inputs[0])
    written.append(outputs[0])


@pytest.mark.parametrize("where", ["loop", "lane"])
async def test_what_a_function_keeps_stays_what_it_is(where: str) -> None:
    kept: list[Any] = []

    def keep(value: Any) -> Any:
        kept.append(value)
        return value * 1

    graph = af.Graph("kept")
    x = graph.blob("x", (4,))
    h = af.ops.exp(x)
    af.ops.exp(graph.function("keep", keep, h.spec)(h))
    async with graph:
        for number in range(_FRAMES):
            if where == "lane":
                for program in graph.engine._programs.values():
                    for op in program.ops:
                        op.inline_ns = -1
            await graph.run({x: np.full(4, number, np.float32) * 0.1})
    expected = np.exp(np.arange(_FRAMES, dtype=np.float32) * np.float32(0.1))
    np.testing.assert_allclose([value[0] for value in kept], expected, rtol=1e-6)
    assert len({value.ctypes.data for value in kept}) == _FRAMES


@pytest.mark.parametrize("where", ["loop", "lane"])
async def test_no_buffer_is_allocated_in_the_steady_state(where: str) -> None:
    graph = af.Graph("steady")
    x = y = graph.blob("x", (1, 64))
    for i, width in enumerate((64, 64, 10)):
        weight = graph.variable(f"w{i}", (width, 64), init=af.nn.init.gaussian(std=0.1, seed=i))
        y = af.ops.inner(y, weight)
        y = af.ops.softmax(y) if width == 10 else af.ops.relu(y)
    data = np.ones((1, 64), np.float32)
    async with graph:
        for _ in range(10):
            await graph.run({x: data})
        (program,) = graph.engine._programs.values()
        if where == "lane":
            for op in program.ops:
                op.inline_ns = -1
            await graph.run({x: data})
        pool = program.ops[0].buckets[0].pool
        before = pool.allocations
        for _ in range(50):
            await graph.run({x: data})
        assert pool.allocations == before


@pytest.mark.parametrize("where", ["loop", "lane"])
async def test_what_a_kernel_keeps_is_not_written_over_in_place(where: str) -> None:
    graph = af.Graph("in place")
    x = graph.blob("x", (4,))
    y = af.ops.exp(graph.op("keep", Keeping())(x))
    written.clear()
    async with graph:
        for number in range(_FRAMES):
            for program in graph.engine._programs.values() if where == "lane" else ():
                for op in program.ops:
                    op.inline_ns = -1
            result = await graph.run({x: np.full(4, number, np.float32) * 0.1})
            np.testing.assert_allclose(result[y], np.exp(np.full(4, number) * 0.1), rtol=1e-6)
        (program,) = graph.engine._programs.values()
        assert [op.reuses for op in program.ops] == [False, True]
    np.testing.assert_allclose([value[0] for value in written], np.arange(_FRAMES) * 0.1, rtol=1e-6)
    written.clear()
