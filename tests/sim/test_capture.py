"""``capture=True`` on a simulated accelerator: the same results with fewer launches, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices.sim import SimArray, SimDevice, SimOptions, SimSegment, current_stream, launch_kernel
from actorflow.devices.stream import StreamLane
from actorflow.ops import kernel
from actorflow.ops.registry import _kernels, load_library
from actorflow.testing import inject
from actorflow.trace.counters import NodeState, SegmentProfile
from tests.sim.conftest import Standstill

SIM = af.Place.parse("sim:0")
FRAMES = 40


def device(graph: af.Graph) -> SimDevice:
    found = graph.engine.resources.device(SIM)
    assert isinstance(found, SimDevice)
    return found


def launched(graph: af.Graph) -> int:
    """Kernels launched so far."""
    return sum(
        lane.stream.clock.launched  # type: ignore[attr-defined]
        for name, lane in device(graph)._lanes.items()
        if name not in ("inbound", "outbound")
    )


def usage(graph: af.Graph) -> SegmentProfile:
    """Usage of the only segment."""
    (found,) = graph.engine.segments.values()
    return found


# -- a network that is trained ------------------------------------------------------------------------------------


def network(capture: bool, **options: Any) -> tuple[af.Graph, list[Any]]:
    """Three layers and a step of training; what is to be fetched."""
    graph = af.Graph("network", capture=capture, devices={"sim:0": SimOptions(**options)})
    with graph.at("sim:0"):
        x, labels = graph.blob("x", (8, 6)), graph.blob("labels", (8,), "int64")
        y = x
        for i in range(3):
            weight = graph.variable(f"weight{i}", (6, 6), init=af.nn.init.gaussian(std=0.4, seed=i))
            bias = graph.variable(f"bias{i}", (6,))
            y = af.ops.relu(af.ops.bias(af.ops.inner(y, weight), bias))
        loss = af.ops.softmax_loss(y, labels)
        train = af.nn.SGD(rate=0.1, momentum=0.9).minimize(loss)
    return graph, [loss, train]


def batches(count: int = FRAMES) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    return [{"x": random.standard_normal((8, 6)).astype("f"), "labels": np.arange(8) % 5} for _ in range(count)]


async def trained(
    capture: bool, in_flight: int, frames: int = FRAMES
) -> tuple[list[np.ndarray], int, SegmentProfile | None]:
    """Losses and weights, how many kernels were launched, and what was replayed."""
    graph, fetch = network(capture)
    async with graph:
        losses = [
            af.to_numpy(r[fetch[0]]) async for r in graph.stream(batches(frames), fetch=fetch, in_flight=in_flight)
        ]
        count = launched(graph)
        return [*losses, *[v.value for v in graph.variables]], count, usage(graph) if capture else None


@pytest.mark.parametrize("in_flight", [1, 2, 3, 4])
async def test_training_is_the_same_bit_for_bit(in_flight: int) -> None:
    expected, before, _ = await trained(False, in_flight)
    found, after, segment = await trained(True, in_flight)
    for value, other in zip(found, expected, strict=True):
        assert np.array_equal(value, other)
    assert segment is not None
    assert (segment.calls, segment.refusal) == (FRAMES, None)
    plain = segment.calls - segment.captures - segment.replays
    assert after == before - (FRAMES - plain) * (len(segment.ops) - 1)
    if in_flight == 1:  # else what recurs depends on which copies have ended when the next begin
        assert segment.replays > FRAMES // 2


@pytest.mark.slow
async def test_frames_in_flight_meet_the_same_addresses_again() -> None:
    """Buffers of feeds are taken in turn, and those of the fetched loss as before: few captures serve all frames."""
    expected, *_ = await trained(False, 4, 600)
    graph, fetch = network(True)
    losses, before = [], 0
    async with graph:
        async for result in graph.stream(batches(600), fetch=fetch, in_flight=4):
            losses.append(af.to_numpy(result[fetch[0]]))
            before = before or (usage(graph).replays if len(losses) == 300 else 0)
        assert all(map(np.array_equal, [*losses, *[v.value for v in graph.variables]], expected))
        segment = usage(graph)
    assert (segment.calls, segment.refusal) == (600, None)
    assert segment.captures <= 17
    assert segment.replays - before > 200


async def test_replays_take_less_modelled_time() -> None:
    busy_ns = []
    for capture in (False, True):
        graph, fetch = network(capture, kernel_s=1e-4)
        async with graph:
            for batch in batches(12):
                await graph.run(batch, fetch=fetch)
            lanes = [lane for name, lane in device(graph)._lanes.items() if name.startswith("main")]
            replays, tries = usage(graph).replays if capture else -1, 0
            while (usage(graph).replays if capture else 0) == replays or not tries:
                tries += 1
                assert tries < 100, "nothing is replayed"
                before = sum(lane.stream.busy_ns for lane in lanes)  # type: ignore[attr-defined]
                await graph.run(batches(1)[0], fetch=fetch)
            busy_ns.append(sum(lane.stream.busy_ns for lane in lanes) - before)  # type: ignore[attr-defined]
    assert busy_ns == [busy_ns[1] * len(usage(graph).ops), 100_000]


async def test_memory_is_steady() -> None:
    graph, fetch = network(True)
    async with graph:
        for batch in batches(12):
            await graph.run(batch, fetch=[fetch[1]])
        pool = device(graph).memory
        before, allocations = pool.used_bytes, pool.allocations
        for batch in batches(30):
            await graph.run(batch, fetch=[fetch[1]])
        assert (pool.used_bytes, pool.allocations) == (before, allocations)
        assert usage(graph).replays > 20


async def test_profile_and_states() -> None:
    graph, fetch = network(True, kernel_s=1e-5)
    monitor = graph.engine.resources.watch()
    async with graph:
        for batch in batches(8):
            await graph.run(batch, fetch=fetch)
        assert usage(graph).replays
        for name in usage(graph).ops:
            op = graph[name]
            assert graph.engine.profile[op.id].calls == 8
            assert graph.engine.profile[op.id].total_ns > 0
            assert monitor.states[op.id] == NodeState.DONE
    graph.engine.resources.unwatch()


# -- disturbances -------------------------------------------------------------------------------------------------


class Probe(af.ops.Operation):
    """Doubles; a test says what its kernel does besides."""

    def infer(self, *specs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return specs


class Planted:
    """Planted actions of the kernel of `Probe`: on the host when it is launched, and on the device."""

    def __init__(self) -> None:
        self.launch_error: Exception | None = None
        self.device_error: Exception | None = None
        self.reads_host = False

    def __call__(self, operation: Probe, inputs: list[SimArray], outputs: list[SimArray]) -> None:
        if self.launch_error is not None:
            raise self.launch_error
        if self.reads_host:
            stream, host = current_stream(), np.full(inputs[0].shape, 2.0, inputs[0].dtype)
            stream.launch(self._scale, [inputs[0], host], outputs, cost_ns=0, name="probe")
        else:
            launch_kernel(self._double, inputs, outputs, "probe")

    def _scale(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        np.multiply(inputs[0], inputs[1], out=outputs[0])

    def _double(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        if self.device_error is not None:
            raise self.device_error
        np.multiply(inputs[0], 2, out=outputs[0])


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    load_library("sim", "sim")  # or it would be loaded for this test alone
    monkeypatch.setattr("actorflow.ops.registry._kernels", {**_kernels})
    planted = Planted()
    kernel(Probe, device="sim", library="sim")(planted)
    return planted


def chain(**options: Any) -> tuple[af.Graph, af.Blob]:
    """x -> before -> probe -> after, and a variable that counts."""
    graph = af.Graph("chain", capture=True, devices={"sim:0": SimOptions(**options)})
    with graph.at("sim:0", lane="main"):
        x, count = graph.blob("x", (3,)), graph.variable("count", (3,))
        y = af.ops.scale(x, 3.0, name="before")
        z = graph.blob("z", (3,))
        [y] >> graph.op("probe", Probe()) >> [z]
        [count, z] >> graph.op("counted", af.ops.Sum()) >> [count]
        return graph, af.ops.scale(z, 0.5, name="after")


async def run(graph: af.Graph, y: af.Blob, number: int) -> np.ndarray:
    return af.to_numpy((await graph.run({"x": np.full(3, number, "f")}, fetch=[y, graph["counted"]]))[y])


async def warmed(graph: af.Graph, y: af.Blob) -> float:
    """Frames until the segment is replayed; what `count` must be."""
    total, number, before = 0.0, 0, usage(graph).replays if graph.engine.segments else 0
    while number < 8 or (usage(graph).replays == before and number < 200):  # what was lost before comes back late
        number += 1
        assert np.array_equal(await run(graph, y, number), np.full(3, 3.0 * number, "f"))
        total += 6 * number
    assert usage(graph).replays > before, "no arrays were where they were before"
    return total


@pytest.mark.parametrize("is_warm", [False, True])
async def test_a_failure_on_the_device_is_named(planted: Planted, is_warm: bool) -> None:
    graph, y = chain()
    async with graph:
        total = await warmed(graph, y) if is_warm else 0.0
        planted.device_error = ArithmeticError("odd")
        with pytest.raises(af.OpError, match=r"op 'probe' .*odd") as caught:
            await run(graph, y, 1)
        assert isinstance(caught.value.__cause__, af.DeviceError)
        assert caught.value.updated == ()
        planted.device_error = None
        total += await warmed(graph, y)
        assert np.array_equal(graph["count"].value, np.full(3, total, "f"))


async def test_the_op_that_has_failed_is_the_one_whose_call_is_traced(planted: Planted) -> None:
    """Of those that were launched as one."""
    graph, y = chain()
    async with graph:
        await warmed(graph, y)
        planted.device_error = ArithmeticError("odd")
        position = graph.engine.trace.total
        with pytest.raises(af.OpError, match="op 'probe'"):
            await run(graph, y, 1)
    calls = graph.engine.trace.since(position)
    names = {node.id: node.name for node in graph.nodes}
    failed = {names[calls.node[row]]: error for row, error in calls.errors.items()}
    assert failed.keys() == {"probe"}
    assert failed["probe"].startswith("DeviceError: ")
    assert {calls.frame[row] for row in calls.errors} == {graph.engine.next_number - 1}
    assert {names[node]: one.failed for node, one in graph.engine.profile.items() if one.failed} == {"probe": 1}


async def test_a_failure_at_the_launch_is_named(planted: Planted) -> None:
    graph, y = chain()
    async with graph:
        planted.launch_error = OSError("no such thing")
        for _ in range(4):
            with pytest.raises(af.OpError, match=r"op 'probe' .*OSError: no such thing"):
                await run(graph, y, 1)
        with pytest.raises(af.OpError, match="cannot be replayed"):
            try:
                await run(graph, y, 1)
            except af.OpError as error:
                try:
                    error.replay()
                except af.GraphError as refusal:
                    raise af.OpError(error.op, str(refusal)) from None
        planted.launch_error = None
        total = await warmed(graph, y)
        assert np.array_equal(graph["count"].value, np.full(3, total, "f"))


async def test_what_the_device_refuses_is_launched_piece_by_piece(
    planted: Planted, caplog: pytest.LogCaptureFixture
) -> None:
    planted.reads_host = True
    graph, y = chain()
    async with graph:
        with caplog.at_level(logging.INFO, logger="actorflow"):
            for number in range(8):
                assert np.array_equal(await run(graph, y, number), np.full(3, 3.0 * number, "f"))
        assert usage(graph).captures == usage(graph).replays == 0
        assert "uses memory of the host" in str(usage(graph).refusal)
        assert launched(graph) == 8 * 4
    assert [record.getMessage() for record in caplog.records if "piece by piece" in record.message] == [
        f"segment 'before to after' is launched piece by piece: {usage(graph).refusal}"
    ]


async def test_an_injected_fault_dissolves_the_segment(planted: Planted) -> None:
    graph, y = chain()
    async with graph:
        total = await warmed(graph, y)
        with inject(graph, "probe", error=OSError("planted"), times=1) as injection:
            with pytest.raises(af.OpError, match=r"op 'probe' .*planted"):
                await run(graph, y, 1)
            assert injection.struck == 1
            calls = usage(graph).calls
            await run(graph, y, 2)
            assert usage(graph).calls == calls
        total += 12 + await warmed(graph, y)
        assert np.array_equal(graph["count"].value, np.full(3, total, "f"))


async def test_cancellation_leaves_variables_whole(planted: Planted) -> None:
    graph, y = chain(kernel_s=2e-4)
    async with graph:
        await warmed(graph, y)
        for turns in range(12):
            before = graph["count"].value
            task = asyncio.ensure_future(run(graph, y, 5))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            while graph.engine.frames.in_flight:
                await asyncio.sleep(0)
            assert np.unique(graph["count"].value - before).tolist() in ([0.0], [30.0])
        await warmed(graph, y)


async def test_races_of_what_is_replayed_are_found(
    planted: Planted, still: Standstill, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = True

    def clock() -> int:
        if flows:
            still.now_ns = time.perf_counter_ns()
        return still.now_ns

    still.graph, y = graph, _ = chain(kernel_s=1e-6, latency_s=1e-6, clock=clock)
    async with graph:
        await warmed(graph, y)
        monkeypatch.setattr(StreamLane, "wait_until", lambda self, other, number: None)
        flows = False  # the copy has not ended when what reads it is launched, however slow that is
        racing = asyncio.create_task(run(graph, y, 1))
        await still.settle()
        flows = True
        still.advance(0)
        with pytest.raises(af.OpError, match=r"RaceError: op 'before to after' on lane 'main'.*'copy of x'"):
            await racing


async def test_arrays_that_the_application_keeps_are_not_overwritten(planted: Planted) -> None:
    graph, y = chain()
    kept = []
    async with graph:
        feeds = ({"x": np.full(3, number, "f")} for number in range(1, 31))
        async with aclosing(graph.stream(feeds, fetch=[y, "z"], in_flight=3)) as results:
            async for result in results:
                kept.append((result[y], result["z"]))
        for number, (last, inner) in enumerate(kept, 1):
            assert np.array_equal(last.get(), np.full(3, 3.0 * number, "f"))
            assert np.array_equal(inner.get(), np.full(3, 6.0 * number, "f"))


def shown_elsewhere(slow: SimOptions) -> tuple[af.Graph, list[af.Blob], list[af.Blob]]:
    """A segment reads a view, then the viewed array, and writes more arrays like it; a copy reads the view, too.

    Returns:
        The graph, the view and what ``slow`` makes of it, and what the segment writes.
    """
    graph = af.Graph("shown", capture=True, fuse=False, devices={"sim:1": slow})
    with graph.at("sim:0"):
        x = graph.blob("x", (4, 4))
        viewed = af.ops.scale(x, 2.0)
        view = af.ops.reshape(viewed, (2, 8))
    with graph.at("sim:1"):
        away = af.ops.scale(view, 1.0)
    later = graph.function("later", lambda value: value, x.spec)(viewed)  # so that the segment begins behind the view
    with graph.at("sim:0"):
        first = af.ops.scale(view, 3.0)
        total = af.ops.add(viewed, later)
        written = [first, *[af.ops.scale(total, float(i)) for i in range(6)]]
    return graph, [view, away], written


@pytest.mark.parametrize("is_fetched", [True, False])
async def test_views_that_others_hold_keep_what_they_show(still: Standstill, is_fetched: bool) -> None:
    """Whether the application fetches the view, or another device still copies it when the segment is launched."""
    graph, (view, away), written = shown_elsewhere(still.options())
    shown = view if is_fetched else away
    still.graph = graph
    async with graph, asyncio.timeout(60):
        for number in range(8):
            x = np.arange(16, dtype="f").reshape(4, 4) + number
            running = asyncio.create_task(graph.run({"x": x}, fetch=[*written, shown]))
            while sum(each.calls for names, each in graph.engine.segments.items() if len(names) > 2) <= number:
                await asyncio.sleep(0)
            while not running.done():
                still.advance(1e3)
                await asyncio.sleep(0)
            result = await running
            np.testing.assert_array_equal(af.to_numpy(result[shown]), 2 * x.reshape(2, 8))
            np.testing.assert_array_equal(af.to_numpy(result[written[0]]), 6 * x.reshape(2, 8))
            for i, blob in enumerate(written[1:]):
                np.testing.assert_array_equal(af.to_numpy(result[blob]), 4.0 * i * x)


async def test_variables_that_the_application_assigns(planted: Planted) -> None:
    graph, y = chain()
    async with graph:
        await warmed(graph, y)
        for value in (7.0, -1.0, 7.0):
            graph["count"].value = np.full(3, value, "f")
            await run(graph, y, 1)
            assert np.array_equal(graph["count"].value, np.full(3, value + 6, "f"))


# -- what is captured by itself -----------------------------------------------------------------------------------


def test_captured_work_knows_addresses_alone() -> None:
    device = SimDevice(SIM)
    stream = device.make_stream("main")
    x, y = device.upload(np.ones(3)), device.upload(np.zeros(3))
    segment = SimSegment("add", device, [lambda pair: launch_kernel(_add, pair, pair[:1], "add")])
    with stream.current():
        for _ in range(4):
            segment([x, y])
        stream.record().synchronize()
        assert (stream.clock.launched, segment.replays) == (4, 3)
        address, shape = x.at
        del x  # its memory is used again by an array that is there in its place
        other = device.upload(np.full(3, 5.0))
        assert other.at == (address, shape)
        segment(None)
        stream.record().synchronize()
        assert np.array_equal(other.get(), np.full(3, 5.0))
        del y
        with pytest.raises(af.DeviceError, match=r"expected float64\[3\], found nothing"):
            segment(None)
    with device.make_stream("side").current(), pytest.raises(af.DeviceError, match="segment 'add' belongs to"):
        segment(None)
    device.close()
    device.join()


def test_captured_work_tells_arrays_apart_by_their_addresses() -> None:
    """One without elements from one that was there first, and what an array is from a view of it."""
    device = SimDevice(SIM)
    stream = device.make_stream("main")
    x, y, z = device.upload(np.ones(3)), device.upload(np.zeros(3)), device.upload(np.zeros((3, 1)))
    empty, view = device.upload(np.ones(0)), y.reshape(3, 1)

    def launch(_: object) -> None:
        launch_kernel(lambda *_: None, [], [empty], "nothing")
        launch_kernel(_add, [y, x], [y], "add")
        launch_kernel(lambda inputs, outputs: np.copyto(*outputs, *inputs), [view], [z], "copy")

    segment = SimSegment("works", device, [launch], is_warm=True)
    with stream.current():
        segment()
        segment()
        stream.record().synchronize()
    assert segment.replays == 2
    assert np.array_equal(z.get(), np.full((3, 1), 2.0))
    assert len({array.block.low for array in (x, y, z, empty)}) == 4
    device.close()
    device.join()


def test_what_was_replayed_is_there_whatever_failed_before() -> None:
    """An array without elements, too, which is written by a call that fails, and by a replay that does not."""
    device = SimDevice(SIM)
    stream = device.make_stream("main")
    x, errors = device.upload(np.ones(0)), [ArithmeticError("odd")]

    def compute(*_: object) -> None:
        if errors:
            raise errors.pop()

    segment = SimSegment("fragile", device, [lambda _: launch_kernel(compute, [], [x], "fragile")])
    with stream.current():
        segment()
        with pytest.raises(af.DeviceError, match="odd"):
            stream.record().synchronize()
        segment()
        launch_kernel(compute, [x], [], "reader")
        stream.record().synchronize()
    assert segment.replays == 1
    device.close()
    device.join()


def _add(inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    outputs[0] += inputs[1]
