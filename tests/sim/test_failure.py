"""Failures, late or at once, on a simulated accelerator: named, kept apart from other frames, cleaned up."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.devices.sim import RaceError, SimDevice, launch_kernel
from actorflow.ops import registry
from tests.plan.test_random_fusion import Switch, brittle
from tests.sim.conftest import Standstill

SHAPE = (4, 4)


@dataclass(frozen=True)
class Fragile(ops.Operation):
    """``x``, if nothing goes wrong."""

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs


class PlantedError(Exception):
    pass


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Numbers of calls of `Fragile` that are to fail: when they are launched, when they run, or with another error."""
    left = {"launch": 0, "run": 0}
    ops.load_library("sim", "sim")
    monkeypatch.setattr(registry, "_kernels", dict(registry._kernels))

    def strike(when: str) -> None:
        if left[when]:
            left[when] -= 1
            raise PlantedError(when)

    @registry.kernel(Fragile, device="sim", library="sim")
    def fragile(_: Fragile, inputs: list[Any], outputs: list[Any]) -> None:
        def compute(xs: list[Any], ys: list[Any]) -> None:
            strike("run")
            np.copyto(ys[0], xs[0])

        strike("launch")
        launch_kernel(compute, inputs, outputs, "fragile")

    return left


def crossing(graph: af.Graph, **options: Any) -> af.Blob:
    """A fragile op between two lanes that are busy besides."""
    with graph.at("sim:0"):
        x = graph.blob("x", SHAPE)
        w = graph.variable("w", SHAPE)
    with graph.at("sim:0", "left"):
        left = ops.transpose(ops.transpose(x))
        [ops.add(w, left)] >> graph.op("update", ops.Copy()) >> [w]
    middle = graph.op("fragile", Fragile(), "sim:0", "left", **options)(left)
    with graph.at("sim:0", "right"):
        return ops.add(ops.transpose(ops.transpose(middle)), ops.transpose(ops.transpose(left)))


def batch(number: int) -> dict[str, np.ndarray]:
    return {"x": np.full(SHAPE, number + 1.0, "f")}


@pytest.mark.parametrize("when", ["launch", "run"])
async def test_the_error_names_the_op_and_the_graph_goes_on(trouble: dict[str, int], when: str) -> None:
    graph = af.Graph("g")
    y = crossing(graph)
    async with graph:
        for _ in range(3):
            trouble[when] = 1
            with pytest.raises(af.OpError, match=r"^op 'fragile' \(Fragile\(\)\) failed") as caught:
                await graph.run(batch(0), fetch=[y])
            error: BaseException | None = caught.value
            while error is not None and not isinstance(error, PlantedError):
                error = error.__cause__
            assert error is not None
            result = await graph.run(batch(1), fetch=[y])
            np.testing.assert_array_equal(af.to_numpy(result[y]), np.full(SHAPE, 4.0))
    counts = graph.engine.frames
    assert (counts.failed, counts.finished, counts.in_flight) == (3, 3, 0)


@pytest.mark.parametrize("when", ["launch", "run"])
async def test_other_frames_are_not_disturbed(still: Standstill, trouble: dict[str, int], when: str) -> None:
    """One of four frames fails while the others' work is under way on the same lanes."""
    graph = still.make()
    y = crossing(graph)
    trouble[when] = 1
    async with graph:
        tasks = [asyncio.create_task(graph.run(batch(n), fetch=[y])) for n in range(4)]
        await still.settle()
        while not all(task.done() for task in tasks):
            still.advance(1e3)
            await asyncio.sleep(0)
        failed = [task for task in tasks if task.exception() is not None]
        assert [task.exception().op.name for task in failed] == ["fragile"]  # type: ignore[union-attr]
        for number, task in enumerate(tasks):
            if task not in failed:
                np.testing.assert_array_equal(af.to_numpy(task.result()[y]), np.full(SHAPE, 2.0 * (number + 1)))


@pytest.mark.parametrize("when", ["launch", "run"])
async def test_a_buffer_of_a_call_that_failed_is_not_used_too_early(
    still: Standstill, trouble: dict[str, int], when: str
) -> None:
    """The call had taken a buffer that its lane still used; another lane gets memory at the same moment."""
    graph = still.make()
    with graph.at("sim:0"):
        x = graph.blob("x", SHAPE)
    with graph.at("sim:0", "left"):
        y = ops.transpose(ops.transpose(ops.transpose(x)))
        y = graph.op("fragile", Fragile())(y)
    with graph.at("sim:0", "right"):
        z = ops.transpose(ops.transpose(x))
    async with graph:
        for _ in range(3):
            trouble[when] = 1
            tasks = [asyncio.create_task(graph.run(batch(n), fetch=[y, z])) for n in range(4)]
            await still.settle()
            while not all(task.done() for task in tasks):
                still.advance(1e3)
                await asyncio.sleep(0)
            errors = [task.exception() for task in tasks if task.exception() is not None]
            assert [error.op.name for error in errors] == ["fragile"]  # type: ignore[union-attr]
            assert not any(isinstance(error.__cause__, RaceError) for error in errors)


@pytest.mark.parametrize("capture", [False, True])
async def test_a_chain_that_needs_what_another_chain_has_not_made(
    still: Standstill, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, capture: bool
) -> None:
    """The step that has failed is the other's, whose steps have names and numbers of their own."""
    still.graph = graph = af.Graph("chains", capture=capture, devices={"sim:0": still.options()})
    with graph.at("sim:0"):
        y = graph.blob("x", SHAPE)
        for name in ("a", "b"):
            y = ops.scale(y, 2.0, name=name)
        y = ops.transpose(brittle(y), name="between")
        with graph.at("sim:0", "other"):
            y = ops.relu(ops.scale(y, 3.0, name="c"), name="d")
    assert [step.operation.kind for step in graph.compile().ops].count("Fused") == 2
    async with graph:
        monkeypatch.setattr(Switch, "on", True)
        with pytest.raises(af.OpError, match=r"^op 'brittle'"):
            await still.run([batch(0)], [y])
        monkeypatch.setattr(Switch, "on", False)
        (result,) = await still.run([batch(0)], [y])
        np.testing.assert_array_equal(af.to_numpy(result[y]), np.full(SHAPE, 6.0))
    calls = graph.engine.trace.since(0)
    names = {node.id: node.name for node in graph.nodes}
    failed = {names[calls.node[row]]: error for row, error in calls.errors.items()}
    assert [name for name, error in failed.items() if "was skipped" not in error] == ["brittle"]
    assert {"brittle", "d"} == failed.keys() - {"between"}  # which may be launched as one with the first chain
    assert not caplog.records


async def test_an_op_that_takes_too_long(still: Standstill, trouble: dict[str, int]) -> None:
    graph = still.make()
    y = crossing(graph, timeout=1e-3)
    async with graph:
        with pytest.raises(af.OpTimeoutError, match="op 'fragile'"):
            await graph.run(batch(0), fetch=[y])  # no time passes on the device
        assert graph.engine.frames.in_flight == 1  # the device still works
        still.advance(1e3)
        while graph.engine.frames.in_flight:
            still.advance(1e3)
            await asyncio.sleep(0)


@pytest.mark.parametrize("stop", ["timeout", "cancel"])
async def test_a_run_that_ends_before_its_device(still: Standstill, trouble: dict[str, int], stop: str) -> None:
    """It returns at once, its buffers stay away from the next run until the device is done with them."""
    graph = still.make()
    y = crossing(graph)
    async with graph:
        for number in range(3):
            if stop == "timeout":
                with pytest.raises(af.RunTimeoutError):
                    await graph.run(batch(0), fetch=[y, graph], timeout=1e-3)
            else:
                task = asyncio.create_task(graph.run(batch(0), fetch=[y, graph]))
                await still.settle()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            (result,) = await still.run([batch(number)], [y, graph])
            np.testing.assert_array_equal(af.to_numpy(result[y]), np.full(SHAPE, 2.0 * (number + 1)))
        assert (graph["w"].value == 1 + 2 + 3).all()  # what was stopped has updated nothing
        assert graph.engine.frames.in_flight == 0


async def test_frames_that_are_cancelled_give_up_weights_that_others_read(
    still: Standstill, trouble: dict[str, int]
) -> None:
    """A frame holds an old weight, another one reads it on the device; the last one to refer to it is cancelled."""
    graph = still.make()
    with graph.at("sim:0"):
        x = graph.blob("x", SHAPE)
        w = graph.variable("w", SHAPE, init=1.0)
    with graph.at("sim:0", "left"):
        [ops.scale(w, 2.0)] >> graph.op("update", ops.Copy()) >> [w]
        again = ops.transpose(ops.transpose(ops.transpose(ops.transpose(x))))
    with graph.at("sim:0", "right"):
        busy = x
        for _ in range(6):
            busy = ops.transpose(busy)
        late = ops.add(busy, w)
    async with graph:
        holder = asyncio.create_task(graph.run(batch(0), fetch=[late, w]))  # keeps w until its end
        await still.settle()
        reader = asyncio.create_task(graph.run(batch(1), fetch=[late, graph]))
        await still.settle()
        still.advance(2.5)
        await still.settle()  # the update is committed; both frames' lanes still read the old weight
        holder.cancel()
        await asyncio.wait([holder])
        still.advance(7.5)
        await still.settle()  # the frame that was cancelled is over, the other one has not read yet
        assert graph.engine.frames.in_flight == 1
        more = [asyncio.create_task(graph.run(batch(n), fetch=[again, graph])) for n in range(12)]
        await still.settle()
        while not all(task.done() for task in (reader, *more)):
            still.advance(1e3)
            await asyncio.sleep(0)
        for task in (reader, *more):
            task.result()
        np.testing.assert_array_equal(af.to_numpy(reader.result()[late]), np.full(SHAPE, 3.0))


async def test_closing_waits_for_the_device(trouble: dict[str, int]) -> None:
    graph = af.Graph("g")
    y = crossing(graph)
    for _ in range(2):
        async with graph:
            tasks = [asyncio.create_task(graph.run(batch(n), fetch=[y])) for n in range(5)]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert graph.engine.frames.in_flight == 0


def test_a_graph_that_failed_and_is_dropped_leaves_nothing(trouble: dict[str, int]) -> None:
    """The device keeps the error, which must not keep the graph, whose end ends the device."""

    def fail_once() -> weakref.ref[af.Graph]:
        graph = af.Graph("failing")
        with graph.at("sim:0"):
            x = graph.blob("x", SHAPE)
            graph.apply(Fragile(), x)
        trouble["run"] = 1
        with pytest.raises(af.OpError):
            graph.run_sync({x: np.ones(SHAPE, "f")})
        return weakref.ref(graph)

    graph = fail_once()
    gc.collect()
    assert graph() is None


@pytest.mark.together(
    ("fn", "said"),
    [
        (lambda a, *_: a, None),
        (lambda *_: np.zeros(3, "float32"), r"DTypeError: result 0: expected an array on sim:0, got numpy.ndarray"),
        (lambda _, b, __: b, r"ShapeError: result 0: expected shape \(3,\), got \(2,\)"),
        (lambda _, __, c: c, r"DTypeError: result 0: expected dtype float32, got float64"),
    ],
)
async def test_a_function_gets_and_gives_arrays_of_a_device_that_runs_some(
    monkeypatch: pytest.MonkeyPatch, fn: Any, said: str | None
) -> None:
    monkeypatch.setattr(SimDevice, "runs_functions", True)
    async with af.Graph("g") as graph:
        with graph.at("sim:0"):
            a, b, c = graph.blob("a", [3]), graph.blob("b", [2]), graph.blob("c", [3], "float64")
            y = af.ops.exp(graph.function("fn", fn, a.spec)(a, b, c))
        feeds = {a: [0, 1, 2], b: [0, 1], c: [0, 1, 2]}
        if said is None:
            np.testing.assert_allclose(af.to_numpy((await graph.run(feeds))[y]), np.exp([0, 1, 2]), rtol=1e-6)
        else:
            with pytest.raises(af.OpError, match=said):
                await graph.run(feeds)
