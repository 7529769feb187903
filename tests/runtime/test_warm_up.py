"""What first runs would wait for can be had before them."""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops

#: Only a failing test waits this long.
PATIENCE_S = 60.0


def doubled() -> tuple[af.Graph, Any, Any]:
    graph = af.Graph("doubled")
    x = graph.blob("x", ("n", 3))
    return graph, x, ops.scale(x, 2.0)


async def test_a_first_run_finds_its_plan() -> None:
    graph, x, y = doubled()
    async with graph:
        assert await graph.warm_up([y], axes={"n": 2})
        (program,) = graph.engine._programs.values()
        result = await graph.run({x: np.ones((2, 3), "f")}, fetch=[y])
        assert np.array_equal(result[y], np.full((2, 3), 2.0))
        assert program in graph.engine._programs.values()
        assert len(graph.engine._programs) == 1


async def test_lengths_must_fit() -> None:
    graph, _, y = doubled()
    async with graph:
        with pytest.raises(af.GraphError, match="open axes of graph 'doubled' are 'n'"):
            await graph.warm_up([y])
        with pytest.raises(af.GraphError, match="open axes"):
            await graph.warm_up([y], axes={"m": 1})


def calls(x: Any) -> Any:
    raise AssertionError


def parts() -> tuple[af.Graph, dict[str, Any]]:
    graph = af.Graph("felt")
    x = graph.blob("x", (2, 3))
    weight = graph.variable("weight", (3, 3), init=np.ones((3, 3), "f"))
    loss = ops.sum(ops.inner(x, weight))
    return graph, {
        "function": graph.function("calls", calls, x.spec)(x),
        "update": nn.SGD(0.1).minimize(loss),
        "random": ops.dropout(x, 0.5, seed=1),
        "object": graph.function("length", len, af.TensorSpec.of((), "int64"))(graph.blob("any", (), object)),
    }


@pytest.mark.parametrize("part", ["function", "update", "random", "object"])
async def test_what_would_be_felt_is_only_planned(part: str) -> None:
    graph, found = parts()
    async with graph:
        assert not await graph.warm_up(found[part])
        assert not graph.engine.frames.started
        assert graph.engine._planned
        assert np.array_equal(graph["weight"].value, np.ones((3, 3)))


@dataclass(frozen=True)
class Gate(ops.Operation):
    """Its input, once it may go on."""

    may_go_on: threading.Event
    calls: list[None] = field(default_factory=list)

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs

    def compute(self, x: np.ndarray) -> np.ndarray:
        self.calls.append(None)
        assert self.may_go_on.wait(PATIENCE_S)
        return x


def gated() -> tuple[af.Graph, Any, Any, Gate]:
    graph, gate = af.Graph("gated"), Gate(threading.Event())
    x = graph.blob("x", ("n", 3))
    return graph, x, graph.apply(gate, x), gate


async def test_kernels_have_run_twice_when_it_returns() -> None:
    """What they keep of weights they keep from the second call on."""
    graph, _, y, gate = gated()
    gate.may_go_on.set()
    async with graph:
        assert await graph.warm_up([y], axes={"n": 2})
    assert len(gate.calls) == 2


async def test_a_kernel_that_takes_too_long() -> None:
    graph, x, y, gate = gated()
    async with graph:
        with pytest.raises(TimeoutError):
            await graph.warm_up([y], axes={"n": 2}, timeout=0.02)
        gate.may_go_on.set()
        assert (await graph.run({x: np.ones((2, 3), "f")}, fetch=[y]))[y].shape == (2, 3)


async def test_models() -> None:
    graph, x, y = doubled()
    model = af.Model(graph, {"x": x}, {"y": y, "same": y})
    async with graph:
        for rows in (1, 4):
            assert await model.warm_up(axes={"n": rows})
        async with model.batched(max_rows=4) as batcher:
            programs = {*graph.engine._programs.values()}
            await asyncio.gather(*[batcher.run({x: np.ones((1, 3), "f")}) for _ in range(4)])
            assert programs == {*graph.engine._programs.values()}
            assert batcher.statistics().frames == 1
