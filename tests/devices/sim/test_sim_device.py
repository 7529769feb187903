"""A simulated device: which there are, its options, and its copies."""

import asyncio
from sys import getrefcount
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices import DeviceOptions, check_place, open_device
from actorflow.devices.memory import UNSHARED
from actorflow.devices.sim import SimDevice, SimOptions, current_stream, launch_kernel


class TestPlaces:
    def test_there_are_sixteen(self) -> None:
        for index in (0, 15):
            check_place(af.Place.parse(f"sim:{index}"))
        with pytest.raises(af.DeviceUnavailableError, match="'sim:16': simulated devices are sim:0 to sim:15"):
            check_place(af.Place.parse("sim:16"))

    def test_it_is_opened_by_name(self) -> None:
        device = open_device(af.Place.parse("sim:3"), SimOptions(memory_budget=100))
        assert isinstance(device, SimDevice)
        assert device.memory.budget_bytes == 100
        assert device.is_stream
        assert not device.is_host

    def test_plain_options_are_enough(self) -> None:
        device = open_device(af.Place.parse("sim:0"), DeviceOptions(memory_budget=100, libraries=("sim",)))
        assert device.options == SimOptions(memory_budget=100, libraries=("sim",))
        device.close()
        device.join()


class TestArrays:
    def test_what_is_its_array(self, sim: Any) -> None:
        device, other, same_place = sim.device(), sim.device("sim:1"), sim.device()
        x = sim.array(device, 1, 2)
        assert device.is_array(x)
        assert device.adopt(x) is x
        assert same_place.is_array(x)  # of another graph, say
        assert not other.is_array(x)
        for value in (x.get(), 3.0, None):
            assert device.adopt(value) is None


class TestCopies:
    def test_between_devices(self, sim: Any) -> None:
        first, second = sim.device(), sim.device("sim:1", latency_s=2.0)
        x, y = sim.array(first, 1, 2, 3), sim.empty(second, 3)
        stream = second.make_stream("inbound")
        sim.copy(stream, "peer", second.copy_peer, x, y)
        event = stream.record()
        assert event.finish_ns == 2 * 10**9
        sim.advance(2 * 10**9)
        event.synchronize()
        assert y.get().tolist() == [1, 2, 3]

    def test_nothing_happens_outside_a_stream(self, sim: Any) -> None:
        device = sim.device()
        x = sim.array(device, 1)
        with pytest.raises(af.DeviceError, match="no simulated stream is current"):
            device.copy_out(x, np.zeros(1, "f"))
        with pytest.raises(af.DeviceError, match="no simulated stream is current"):
            launch_kernel(lambda xs, ys: None, [x], [x], "kernel")

    def test_another_device_s_stream(self, sim: Any) -> None:
        device = sim.device()
        with sim.device("sim:1").make_stream("main").current():
            with pytest.raises(af.DeviceError, match="a stream of sim:1 is current, but sim:0 should do the work"):
                device.copy_in(np.zeros(1, "f"), sim.empty(device, 1))

    @pytest.mark.parametrize("host", [np.zeros(3, "f"), np.zeros(4)])
    def test_types_must_agree(self, sim: Any, host: np.ndarray) -> None:
        device = sim.device()
        with device.make_stream("main").current():
            with pytest.raises(
                af.DeviceError, match=r"copy_in on sim:0: source float.* and target float32\[4\] differ"
            ):
                device.copy_in(host, sim.empty(device, 4))

    def test_streams_are_current_one_in_another(self, sim: Any) -> None:
        device = sim.device()
        outer, inner = device.make_stream("outer"), device.make_stream("inner")
        with outer.current():
            with inner.current():
                assert current_stream() is inner
            assert current_stream() is outer


class TestPool:
    """The pool and the streams together, as the engine uses them."""

    async def test_a_buffer_goes_back_while_work_on_it_is_pending(self, sim: Any) -> None:
        device = sim.device()
        device.bind(asyncio.get_running_loop())
        lane, other = device.lane("main"), device.lane("other")
        spec = af.TensorSpec.of(4)
        bucket = device.memory.bucket(spec, lane)
        passed = asyncio.get_running_loop().create_future()

        def work(_: Any) -> None:
            buffer = bucket.take()
            current_stream().launch(lambda *_: None, [], [buffer], cost_ns=10**12, name="work")
            assert getrefcount(buffer) == UNSHARED
            low.append(buffer.block.low)
            bucket.give_back(buffer)

        low: list[int] = []
        for _ in range(3):
            fence = lane.submit(work, None, lambda _: None, False)
        assert low == [0, 0, 0]  # the same lane may have it at once
        lane.submit(lambda _: None, None, passed.set_result, False)
        taken = device.memory.take(spec, other)
        assert taken.block.low > 0  # another may not
        assert not fence.done
        sim.advance(10**13)
        await passed
        assert device.memory.take(spec, other).block.low == 0

    def test_there_is_host_memory_for_staging(self, sim: Any) -> None:
        device = sim.device()
        assert not device.is_staged
        assert isinstance(device.staging.bucket(af.TensorSpec.of(4)).take(), np.ndarray)
