"""Streams and events of a simulated device: order, time on the model's clock, and how failures come to the host."""

import asyncio
import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices.sim import SimDevice, SimOptions, current_stream
from actorflow.devices.stream import StreamLane


class TestOrder:
    def test_nothing_runs_before_its_time(self, sim: Any) -> None:
        stream, done = sim.device().make_stream("main"), []
        sim.launch(stream, "a", function=lambda *_: done.append("a"), cost_ns=10**12)
        event = stream.record()
        assert not event.query()
        assert done == []
        sim.advance(10**12 - 1)
        assert not event.query()
        sim.advance(1)
        event.synchronize()
        assert event.query()
        assert done == ["a"]

    def test_a_stream_that_waits_comes_behind(self, sim: Any) -> None:
        device, done = sim.device(), []
        a, b = device.make_stream("a"), device.make_stream("b")
        sim.launch(a, "slow", function=lambda *_: done.append("slow"), cost_ns=10**12)
        b.wait(a.record())
        sim.launch(b, "behind", function=lambda *_: done.append("behind"))
        free = device.make_stream("c")
        sim.launch(free, "free", function=lambda *_: done.append("free"))
        sim.finish(free)
        assert done == ["free"]
        sim.advance(10**12)
        b.record().synchronize()
        assert done == ["free", "slow", "behind"]

    def test_a_mark_comes_behind_what_was_waited_for(self, sim: Any) -> None:
        device = sim.device()
        a, b = device.make_stream("a"), device.make_stream("b")
        sim.launch(a, "slow", cost_ns=10**12)
        b.wait(a.record())
        event = b.record()  # nothing was launched on b
        assert not event.query()
        sim.advance(10**12)
        event.synchronize()
        assert a.record().query()

    def test_a_mark_with_nothing_in_front_has_passed(self, sim: Any) -> None:
        event = sim.device().make_stream("main").record()
        assert event.query()
        assert event.elapsed_ns(None) == 0

    def test_streams_of_two_devices_wait_for_each_other(self, sim: Any) -> None:
        done: list[int] = []
        a, b = sim.device().make_stream("a"), sim.device("sim:1").make_stream("b")
        for i in range(20):
            sim.launch(a, "a", function=lambda _, __, i=i: done.append(2 * i))
            b.wait(a.record())
            sim.launch(b, "b", function=lambda _, __, i=i: done.append(2 * i + 1))
            a.wait(b.record())
        a.record().synchronize()
        assert done == list(range(40))

    @given(st.data())
    def test_all_that_is_waited_for_has_run(self, data: st.DataObject) -> None:
        """Random streams, waits and costs on the real clock: every launch finds what it comes behind done."""
        device = SimDevice(af.Place.parse("sim:0"))
        try:
            streams = [device.make_stream(str(i)) for i in range(3)]
            events: list[tuple[Any, frozenset[int]]] = []
            behind = [frozenset[int]() for _ in streams]
            done: set[int] = set()
            missing: list[frozenset[int]] = []
            for number in range(data.draw(st.integers(1, 20))):
                at = data.draw(st.integers(0, 2))
                if events and data.draw(st.booleans()):
                    event, covered = data.draw(st.sampled_from(events))
                    streams[at].wait(event)
                    behind[at] |= covered

                def work(_: Any, __: Any, number: int = number, needed: frozenset[int] = behind[at]) -> None:
                    missing.append(needed - done)
                    done.add(number)

                cost_ns = data.draw(st.integers(0, 20_000))
                streams[at].launch(work, [], [], cost_ns=cost_ns, name="work")
                behind[at] |= {number}
                events.append((streams[at].record(), behind[at]))
        finally:
            device.close()
            device.join()
        assert not any(missing)
        assert all(event.query() for event, _ in events)


class TestModel:
    def test_what_takes_how_long(self, sim: Any) -> None:
        device = sim.device(latency_s=2.0, bandwidth=16, kernel_s=3.0, memory_bandwidth=8)
        x = sim.array(device, *range(16))  # 64 bytes
        host = np.zeros(16, "f")
        stream = device.make_stream("main")
        times = []
        for copy, source, target in ((device.copy_in, host, x), (device.copy_out, x, host)):
            sim.copy(stream, "copy", copy, source, target)
            times.append(stream.record().finish_ns)
        import actorflow.ops.sim  # noqa: F401  registers the kernels

        kernel = af.ops.find_kernel(af.ops.Relu(), "sim", np.dtype("f"), libraries=("sim",))
        with stream.current():
            kernel.function(af.ops.Relu(), [x], [x])
        times.append(stream.record().finish_ns)
        assert times == [6 * 10**9, 12 * 10**9, 31 * 10**9]

    def test_streams_overlap(self, sim: Any) -> None:
        device = sim.device(kernel_s=1.0)
        inbound, main, outbound = (device.make_stream(name) for name in ("inbound", "main", "outbound"))
        finished = []
        for _ in range(10):
            sim.launch(inbound, "in", cost_ns=1000)
            main.wait(inbound.record())
            sim.launch(main, "compute", cost_ns=1000)
            outbound.wait(main.record())
            sim.launch(outbound, "out", cost_ns=1000)
            finished.append(outbound.record().finish_ns)
        assert finished == [3000 + 1000 * i for i in range(10)]

    def test_work_begins_when_it_is_launched_at_the_earliest(self, sim: Any) -> None:
        stream = sim.device().make_stream("main")
        first = sim.launch(stream, "a", cost_ns=10)
        sim.advance(1000)
        second = sim.launch(stream, "b", cost_ns=10)
        third = sim.launch(stream, "c", cost_ns=10)
        spans = [(work.start_ns, work.finish_ns) for work in (first, second, third)]
        assert spans == [(0, 10), (1000, 1010), (1010, 1020)]

    def test_a_slow_thread_does_not_make_the_model_late(self, sim: Any) -> None:
        device = sim.device(kernel_s=1.0)
        stream, gate = device.make_stream("main"), threading.Event()
        sim.launch(stream, "a", function=lambda *_: gate.wait(), cost_ns=10)
        works = [sim.launch(stream, "b", cost_ns=10) for _ in range(3)]
        sim.advance(5)
        gate.set()
        assert [work.finish_ns for work in works] == [20, 30, 40]

    def test_marks_tell_how_long_the_stream_has_worked(self, sim: Any) -> None:
        device = sim.device(kernel_s=1.0)
        stream = device.make_stream("main")
        sim.launch(stream, "a", cost_ns=100)
        first = stream.record()
        sim.advance(5000)  # idle time does not count
        sim.launch(stream, "b", cost_ns=30)
        sim.launch(stream, "c", cost_ns=12)
        second = stream.record()
        sim.advance(5000)
        second.synchronize()
        assert first.elapsed_ns(None) == 100
        assert second.elapsed_ns(first) == 42

    def test_without_costs_real_time_is_told(self, sim: Any) -> None:
        stream = sim.device().make_stream("main")
        sim.launch(stream, "a", function=lambda *_: time.perf_counter_ns())
        event = stream.record()
        event.synchronize()
        assert event.elapsed_ns(None) > 0

    def test_wrong_options_are_refused(self) -> None:
        with pytest.raises(af.DeviceError, match="kernel_s must not be negative, got -1"):
            SimOptions(kernel_s=-1)
        with pytest.raises(af.DeviceError, match="bandwidth must be positive, got 0"):
            SimOptions(bandwidth=0)


class TestClose:
    def test_what_was_launched_is_done_at_once(self, sim: Any) -> None:
        device, done = sim.device(), []
        stream = device.make_stream("main")
        sim.launch(stream, "a", function=lambda *_: done.append("a"), cost_ns=10**15)
        event = stream.record()
        device.close()
        device.join()
        assert done == ["a"]
        assert event.query()

    def test_then_nothing_is_launched(self, sim: Any) -> None:
        device = sim.device()
        stream, other = device.make_stream("main"), device.make_stream("other")
        stream.close()
        stream.close()
        with pytest.raises(af.DeviceError, match=r"(?m)^lane 'main' of sim:0 is closed$"):
            sim.launch(stream, "a")
        sim.launch(other, "b")
        device.close()
        device.close()
        with pytest.raises(af.DeviceError, match="lane 'other' of sim:0 is closed"):
            sim.launch(other, "b")
        device.join()
        assert other.record().query()

    def test_a_device_that_is_dropped_ends_its_thread(self) -> None:
        device = SimDevice(af.Place.parse("sim:0"))
        stream = device.make_stream("main")
        stream.launch(lambda *_: None, [], [], cost_ns=0, name="work")
        timeline, reference = device.timeline, weakref.ref(device)
        del device
        gc.collect()
        assert reference() is None
        timeline.join()

    def test_no_thread_before_the_first_work(self, sim: Any) -> None:
        before = threading.active_count()
        device = sim.device()
        device.make_stream("main").record()
        sim.array(device, 1, 2)
        assert threading.active_count() == before


def fail(inputs: Any, outputs: Any) -> None:
    raise ZeroDivisionError("division by zero")


class TestFailure:
    def test_the_next_event_raises(self, sim: Any) -> None:
        stream = sim.device().make_stream("main")
        sim.launch(stream, "before")
        before = stream.record()
        sim.launch(stream, "bad", function=fail)
        event = stream.record()
        sim.launch(stream, "after")
        after = stream.record()
        after.synchronize()
        assert before.query()
        for _ in range(2):
            with pytest.raises(
                af.DeviceError, match="op 'bad' on lane 'main' of sim:0 failed with ZeroDivisionError: division by zero"
            ) as caught:
                event.query()
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert after.query()

    def test_a_device_error_is_raised_itself(self, sim: Any) -> None:
        stream, error = sim.device().make_stream("main"), af.DeviceError("no more power")

        def stop(inputs: Any, outputs: Any) -> None:
            raise error

        sim.launch(stream, "bad", function=stop)
        with pytest.raises(af.DeviceError) as caught:
            stream.record().synchronize()
        assert caught.value is error

    def test_what_needs_the_result_is_skipped_and_no_more(self, sim: Any) -> None:
        device, done = sim.device(), []
        stream = device.make_stream("main")
        x, y, z = (sim.empty(device, 4) for _ in range(3))

        def note(name: str) -> Any:
            return lambda inputs, outputs: done.append(name)

        works = [
            ("bad", [], [x], fail),
            ("needs x", [x], [y], note("needs x")),
            ("needs y", [y], [], note("needs y")),
            ("other", [], [z], note("other")),
            ("writes x again", [], [x], note("writes x again")),
            ("needs new x", [x], [], note("needs new x")),
        ]
        events = []
        for label, reads, writes, function in works:
            sim.launch(stream, label, reads, writes, function)
            events.append(stream.record())
        sim.finish(stream)
        assert done == ["other", "writes x again", "needs new x"]
        with pytest.raises(af.DeviceError, match=r"op 'bad' .* failed with Zero"):
            events[0].query()
        for event, label in zip(events[1:3], ("needs x", "needs y"), strict=True):
            message = (
                f"op '{label}' on lane 'main' of sim:0 was skipped: "
                "it needs the result of op 'bad' on lane 'main' of sim:0, which failed"
            )
            with pytest.raises(af.DeviceError, match=message) as caught:
                event.query()
            assert isinstance(caught.value.__cause__.__cause__, ZeroDivisionError)
        assert all(event.query() for event in events[3:])

    def test_a_view_needs_what_its_base_needs(self, sim: Any) -> None:
        device, done = sim.device(), []
        stream, x = device.make_stream("main"), sim.empty(device, 4)
        sim.launch(stream, "bad", [], [x], fail)
        sim.launch(stream, "view", [x.reshape(2, 2)], [], lambda *_: done.append("view"))
        sim.finish(stream)
        assert done == []

    def test_a_copy_out_of_what_is_not_there_fails(self, sim: Any) -> None:
        device = sim.device()
        stream, x, host = device.make_stream("main"), sim.empty(device, 4), np.zeros(4, "f")
        sim.launch(stream, "bad", [], [x], fail)
        sim.finish(stream)
        stream.record()
        sim.copy(stream, "out", device.copy_out, x, host)
        with pytest.raises(af.DeviceError, match=r"op 'out' .* was skipped"):
            stream.record().synchronize()
        assert not host.any()


class TestLanes:
    """Lanes of the device, as the engine uses them."""

    async def lane(self, device: SimDevice, name: str = "main") -> StreamLane:
        device.bind(asyncio.get_running_loop())
        lane = device.lane(name)
        assert isinstance(lane, StreamLane)
        return lane

    def submit(self, lane: Any, label: str, reads: Any, writes: Any, function: Any, cost_ns: int = 0) -> Any:
        """Submit work; its fence, and a future for its passing."""
        passed = asyncio.get_running_loop().create_future()

        def work(argument: Any) -> None:
            current_stream().launch(function, reads, writes, cost_ns=cost_ns, name="work")

        lane.stream.label = label
        return lane.submit(work, label, passed.set_result, False), passed

    async def test_a_lane_that_waits_long_is_told_by_a_thread(self, sim: Any) -> None:
        device = sim.device()
        lane = await self.lane(device)
        _, passed = self.submit(lane, "slow", [], [], lambda *_: None, cost_ns=10**12)
        while not any("events" in thread.name for thread in threading.enumerate()):
            await asyncio.sleep(0)
        assert not passed.done()
        sim.advance(10**12)
        await passed

    async def test_a_failure_names_the_right_work(self, sim: Any) -> None:
        device = sim.device()
        lane = await self.lane(device)
        device.watch_closely(False)
        fences = [
            self.submit(lane, label, [], [], fail if label == "bad" else lambda *_: None) for label in ("a", "bad", "b")
        ]
        await asyncio.gather(*[passed for _, passed in fences])
        assert [fence.error is None for fence, _ in fences] == [True, False, True]

    @pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
    async def test_the_cause_is_told_before_what_it_skipped(self, sim: Any, order: tuple[str, str]) -> None:
        """Whichever lane the loop looks at first."""
        device, told = sim.device(), []
        lanes = {name: await self.lane(device, name) for name in ("first", "second")}
        for lane in lanes.values():
            lane.bind(self.Loop())  # the test looks itself
        x = sim.empty(device, 4)

        def work(reads: Any, writes: Any, function: Any) -> Any:
            return lambda _: current_stream().launch(function, reads, writes, cost_ns=0, name="work")

        def passed(fence: Any) -> None:
            told.append((fence.argument, str(fence.error)))

        bad = lanes["first"].submit(work([], [x], fail), "bad", passed, False)
        assert lanes["second"].wait(bad)
        lanes["second"].submit(work([x], [], fail), "needs it", passed, False)
        sim.finish(lanes["second"].stream)
        for _ in range(2):
            for name in order:
                lanes[name].poll()
        assert [name for name, _ in told] == ["bad", "needs it"]
        assert "failed with ZeroDivisionError" in told[0][1]
        assert "was skipped" in told[1][1]

    class Loop:
        """A loop that is never run."""

        def call_soon(self, callback: Any) -> None:
            pass

        def is_closed(self) -> bool:
            return False


class TestDropsReferences:
    def test_arrays_are_free_while_work_on_them_is_pending(self, sim: Any) -> None:
        """Or the pool could never take back a buffer whose last work has only been launched."""
        device = sim.device()
        stream, x = device.make_stream("main"), sim.empty(device, 4)
        reference = weakref.ref(x)
        sim.launch(stream, "a", [x], [x], cost_ns=10**12)
        del x
        gc.collect()
        assert reference() is None

    def test_an_idle_device_keeps_nothing(self, sim: Any) -> None:
        stream = sim.device().make_stream("main")
        sim.launch(stream, "a")
        sim.finish(stream)
        reference = weakref.ref(stream)
        del stream
        while reference() is not None:  # the thread may be about to let go
            gc.collect()

    def test_host_memory_is_free_once_the_host_has_seen_the_end(self, sim: Any) -> None:
        device = sim.device()
        stream, x, host = device.make_stream("main"), sim.empty(device, 4), np.zeros(4, "f")
        reference = weakref.ref(host)
        sim.copy(stream, "in", device.copy_in, host, x)
        del host
        event = sim.finish(stream)
        gc.collect()
        assert reference() is not None  # the host may not change it yet
        assert event.query()
        gc.collect()
        assert reference() is None
