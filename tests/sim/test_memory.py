"""Buffers of a device with streams: used again, never while somebody reads them, within the budget."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.devices.sim import SimDevice, SimOptions, launch_kernel
from actorflow.devices.stream import StreamLane
from actorflow.ops import registry
from tests.sim.conftest import Standstill
from tests.support.loads import GRAPHS, Subject
from tests.support.recipes import PLACES, Recipe, recipes


def device_of(graph: af.Graph, place: str = "sim:0") -> SimDevice:
    device = graph.engine.resources.device(af.Place.parse(place))
    assert isinstance(device, SimDevice)
    return device


def web(graph: af.Graph, place: str, hops: bool = True) -> list[af.Blob]:
    """Lanes, views, copies to the CPU and back, and a variable."""
    with graph.at(place):
        x = graph.blob("x", (4, 4))
        w = graph.variable("w", (4, 4), init=1.0)
    tops = []
    for lane in ("left", "right"):
        with graph.at(place, lane):
            y = ops.relu(ops.inner(x, w))
            y = ops.reshape(ops.reshape(y, (16,)), (4, 4))
            y = ops.softmax(ops.inner(y, x))
        with graph.at("cpu" if hops else place):
            y = ops.tanh(y)
        with graph.at(place, lane):
            tops.append(ops.reshape(ops.inner(ops.reshape(y, (1, 16)), ops.reshape(w, (1, 16))), ()))
    with graph.at(place):
        loss = ops.add(*tops)
    af.nn.SGD(0.1, momentum=0.5).minimize(loss)
    return [loss]


def batch(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((4, 4)).astype("f")}


async def test_nothing_is_allocated_once_all_have_their_buffers(still: Standstill) -> None:
    """When nothing has ended before all of a frame is launched, which takes the most; old weights come back later."""
    graph = still.make()
    (loss,) = web(graph, "sim:0", hops=False)
    kept: list[Any] = []
    async with graph:
        for number in range(3):
            await still.run([batch(number)], [graph])
        pools = [device.memory for device in graph.engine.resources.devices.values()]
        before, on_device = [pool.allocations for pool in pools], device_of(graph).memory.allocations
        for number in range(8):
            await still.run([batch(number)], [graph])
        assert [pool.allocations for pool in pools] == before
        for number in range(5):  # what the application keeps is made anew
            kept += await still.run([batch(number)], [loss, graph])
        assert device_of(graph).memory.allocations <= on_device + 5


async def test_frames_that_overlap_allocate_no_more_than_they_have_values() -> None:
    """How soon work ends decides which buffers are free; however that is, there is an end to it."""
    graph = af.Graph("g")
    web(graph, "sim:0")
    slots = graph.compile([graph]).slots
    async with graph:
        async for _ in graph.stream(map(batch, range(60)), fetch=[graph], in_flight=3):
            pass
        assert device_of(graph).memory.allocations <= 3 * len(slots)


async def test_chained_lanes_reuse_in_the_order_of_the_streams(still: Standstill) -> None:
    """While nothing has ended, a lane takes its own buffers again."""
    graph = still.make()
    with graph.at("sim:0", "left"):
        y = graph.blob("x", (4, 4))
        for _ in range(20):
            y = ops.transpose(y)
    async with graph:
        (result,) = await still.run([batch(0)])
        # To turn from and to; one of them was the copy of x, whose end the lane has waited for.
        assert device_of(graph).memory.allocations == 2
        np.testing.assert_array_equal(af.to_numpy(result[y]), batch(0)["x"])


@pytest.mark.parametrize("place", ["cpu", "sim:0"])
@pytest.mark.parametrize("shape", [(4, 4), (16,)])
async def test_nothing_writes_in_place_of_what_a_view_shows(place: str, shape: tuple[int, ...]) -> None:
    graph = af.Graph("g")
    with graph.at(place):
        h = ops.scale(graph.blob("x", (4, 4)), 2.0)
        z = ops.relu(ops.reshape(ops.reshape(h, shape), (4, 4)))
        late = ops.scale(h, 0.5)
    async with graph:
        for number in range(4):
            x = batch(number)["x"]
            result = await graph.run({"x": x}, fetch=[h, z, late])
            for blob, value in ((h, 2 * x), (z, np.maximum(2 * x, 0)), (late, x)):
                np.testing.assert_array_equal(af.to_numpy(result[blob]), value)


class TestFedArrays:
    def graph(self) -> tuple[af.Graph, af.Blob]:
        graph = af.Graph("g")
        with graph.at("sim:0"):
            return graph, ops.relu(ops.scale(graph.blob("x", (4, 4)), -1.0))

    async def test_are_used_without_a_copy(self) -> None:
        graph, y = self.graph()
        value = batch(0)["x"]
        async with graph:
            await graph.run(batch(1))
            device = device_of(graph)
            stream = device.lane("inbound").stream
            copies, fed = stream.clock.launched, device.upload(value)
            for _ in range(3):
                result = await graph.run({"x": fed})
                np.testing.assert_array_equal(af.to_numpy(result[y]), np.maximum(-value, 0))
            assert stream.clock.launched == copies
            np.testing.assert_array_equal(fed.get(), value)

    @pytest.mark.parametrize("keeps", ["array", "view"])
    async def test_are_never_written(self, keeps: str) -> None:
        """Whether the application keeps the array that it fed, or only that whose memory it shows."""
        graph, y = self.graph()
        value = batch(0)["x"]
        async with graph:
            await graph.run(batch(1))
            fed = device_of(graph).upload(value)
            for _ in range(3):
                result = await graph.run({"x": fed.reshape(4, 4) if keeps == "view" else fed})
                np.testing.assert_array_equal(af.to_numpy(result[y]), np.maximum(-value, 0))
            np.testing.assert_array_equal(fed.get(), value)

    async def test_of_another_device_are_refused(self) -> None:
        graph, _ = self.graph()
        async with graph:
            await graph.run(batch(1))
            other = device_of(graph, "sim:1").upload(batch(0)["x"])
            with pytest.raises(af.PlaceError, match=r"feed for blob 'x': .*sim:1"):
                await graph.run({"x": other})

    async def test_what_the_host_reads_too_is_copied(self) -> None:
        graph, y = self.graph()
        with graph.at("cpu"):
            z = ops.scale(graph["x"], 2.0)
        value = batch(0)["x"]
        async with graph:
            await graph.run(batch(1))
            result = await graph.run({"x": device_of(graph).upload(value)}, fetch=[y, z])
        np.testing.assert_array_equal(result[z], 2 * value)
        np.testing.assert_array_equal(af.to_numpy(result[y]), np.maximum(-value, 0))


@dataclass(frozen=True)
class Both(ops.Operation):
    """Two outputs: ``x + 1`` and ``2 x``."""

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs * 2


async def test_a_frame_waits_for_its_updates(still: Standstill, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows an update on another lane is seen to end before the update is."""
    ops.load_library("sim", "sim")
    monkeypatch.setattr(registry, "_kernels", dict(registry._kernels))

    @registry.kernel(Both, device="sim", library="sim")
    def both(_: Both, inputs: list[Any], outputs: list[Any]) -> None:
        def compute(xs: list[Any], ys: list[Any]) -> None:
            np.add(xs[0], 1, out=ys[0])
            np.multiply(xs[0], 2, out=ys[1])

        launch_kernel(compute, inputs, outputs, "both")

    poll = StreamLane.poll

    def poll_late(lane: StreamLane) -> bool:
        follower = lane.device._lanes.get("right")
        if lane.name == "left" and isinstance(follower, StreamLane) and follower.completed < follower.submitted:
            return False
        return poll(lane)

    monkeypatch.setattr(StreamLane, "poll", poll_late)
    graph = still.make()
    with graph.at("sim:0"):
        w = graph.variable("w", (4, 4))
        y = graph.blob("y", (4, 4))
        x = graph.blob("x", (4, 4))
    with graph.at("sim:0", "right"):
        z = ops.add(ops.transpose(x), y)
    [w] >> graph.op("both", Both(), "sim:0", "left") >> [w, y]
    async with graph:
        results = await still.run([batch(i) for i in range(3)], [z, graph])
        for i, result in enumerate(results):
            np.testing.assert_array_equal(af.to_numpy(result[z]), batch(i)["x"].T + 2 * i)
        assert (w.value == 3).all()


@GRAPHS
@given(recipe=recipes(PLACES), slack=st.sampled_from((0, 0, 64)))
async def test_no_device_ever_holds_more_than_its_budget(recipe: Recipe, slack: int) -> None:
    subject = Subject(replace(recipe, slack=slack), fetches=False)
    graph = subject.graph
    async with asyncio.timeout(60), graph:
        await asyncio.gather(*(graph.run(subject.feed(), fetch=subject.fetch) for _ in range(2 * recipe.in_flight)))
        for place, device in graph.engine.resources.devices.items():
            assert device.memory.peak_bytes <= subject.budgets.get(str(place), 0), str(place)
        assert graph.engine.resources.budget is not None
        assert graph.engine.resources.budget.shared_bytes == 0
    subject.frames.clear()


async def test_a_graph_that_never_fits_says_what_it_needs() -> None:
    graph = af.Graph("g", devices={"sim:0": SimOptions(memory_budget=100)})
    with graph.at("sim:0"):
        ops.transpose(graph.blob("x", (4, 4)))
    with pytest.raises(af.OutOfMemoryError, match=r"needs 128 bytes on sim:0, its budget is 100 bytes"):
        graph.compile()


async def test_a_variable_without_room_on_its_device_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """It is looked for before a frame begins, so that others go on."""
    graph = af.Graph("small", devices={"sim:0": SimOptions(memory_bytes=1 << 16)})
    x = graph.blob("x", [2])
    y = x + 1
    with graph.at("sim:0"):
        large = graph.variable("large", [1 << 16]) * 2
    async with graph:
        for _ in range(2):
            with pytest.raises(af.OutOfMemoryError, match=r"sim:0 has no room for float32\[65536\]"):
                await graph.run({x: [1, 2]}, fetch=[y, large])
        assert (await graph.run({x: [1, 2]}, fetch=y))[y].tolist() == [2, 3]
    assert not caplog.records


def test_a_weight_that_is_computed_in_the_same_memory_again_is_another_one() -> None:
    """Kernels of the CPU keep a form of weights that come again; on a device an array says nothing of its contents."""
    with af.Graph("g") as graph:
        with graph.at("sim:0"):
            x, w = (graph.blob(name, (4, 4), "float16") for name in ("x", "w"))
            y = ops.inner(x, w * 2.0)
        for k in range(1, 6):
            result = graph.run_sync({x: np.ones((4, 4), "f2"), w: np.full((4, 4), k, "f2")})
            assert af.to_numpy(result[y]).tolist() == [[8.0 * k] * 4] * 4
