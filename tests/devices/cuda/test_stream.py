"""Streams and events: what CUDA says is what the engine is told."""

import gc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorflow.devices.cuda.stream import CudaEvent, CudaStream, EventPool, is_idle
from actorflow.errors import DeviceError


@pytest.fixture
def events(cupy: Any) -> EventPool:
    return EventPool(cupy, 1)


@pytest.fixture
def stream(events: EventPool) -> CudaStream:
    return CudaStream(events)


def nothing() -> None: ...


class TestEvent:
    def test_not_ready_and_then_ready(self, cupy: Any, stream: CudaStream) -> None:
        stream.raw.launch(nothing)
        mark = stream.record()
        assert not mark.query()
        cupy.run()
        assert mark.query()

    def test_not_ready_is_not_kept_as_an_error(self, cupy: Any, stream: CudaStream) -> None:
        assert not stream.record().query()
        assert cupy.last_error == 0
        assert not is_idle(cupy, stream.raw.ptr)
        assert cupy.last_error == 0

    def test_polling_leaves_no_garbage(self, cupy: Any, stream: CudaStream) -> None:
        mark = stream.record()
        gc.collect()
        for _ in range(100):
            assert not mark.query()
        assert gc.collect() == 0

    def test_what_has_passed_stays_so(self, cupy: Any, stream: CudaStream) -> None:
        mark = stream.record()
        cupy.run()
        assert mark.query()
        cupy.failure = 700
        assert mark.query()

    def test_any_other_status_is_an_error_from_then_on(self, cupy: Any, stream: CudaStream) -> None:
        mark = stream.record()
        cupy.failure = 700
        for _ in range(2):
            with pytest.raises(DeviceError, match="'cuda:1' failed: cudaError700"):
                mark.query()
            cupy.failure = 0
        with pytest.raises(DeviceError, match="700"):
            mark.synchronize()

    @pytest.mark.parametrize(("status", "is_sticky"), [(700, True), (719, True), (2, False), (701, False)])
    def test_an_error_that_stays_says_that_the_process_must_be_restarted(
        self, cupy: Any, stream: CudaStream, status: int, is_sticky: bool
    ) -> None:
        mark = stream.record()
        cupy.failure = status
        with pytest.raises(DeviceError) as caught:
            mark.query()
        assert ("restart the process" in str(caught.value)) is is_sticky

    def test_synchronize(self, cupy: Any, stream: CudaStream) -> None:
        mark = stream.record()
        mark.synchronize()
        assert mark.query()

    def test_synchronize_raises(self, cupy: Any, stream: CudaStream) -> None:
        mark = stream.record()
        cupy.failure = 719
        with pytest.raises(DeviceError, match="719") as caught:
            mark.synchronize()
        assert isinstance(caught.value.__cause__, RuntimeError)
        cupy.failure = 0
        with pytest.raises(DeviceError, match="719"):
            mark.query()

    def test_events_block_threads_instead_of_spinning(self, stream: CudaStream) -> None:
        raw = stream.record().raw
        assert (raw.block, raw.timed, raw.device_id) == (True, False, 1)


class TestPool:
    def test_an_event_that_failed_is_not_used_again(self, cupy: Any, stream: CudaStream) -> None:
        mark = stream.record()
        cupy.failure = 700
        with pytest.raises(DeviceError):
            mark.query()
        cupy.failure = 0
        failed = mark.raw
        del mark
        assert stream.record().raw is not failed

    def test_timed_and_other_events_are_kept_apart(self, cupy: Any, stream: CudaStream) -> None:
        del cupy.events[:]
        for timed in (True, False) * 5:
            stream.timed = timed
            with stream.current():
                mark = stream.record()
            assert mark.raw.timed is timed
            cupy.run()
            del mark
        assert len(cupy.events) == 3

    def test_dropped_while_a_stream_waits_for_it(self, cupy: Any, events: EventPool, stream: CudaStream) -> None:
        """The wait is for the record that there was then; recording the event anew does not move it."""
        other = CudaStream(events)
        order: list[str] = []
        stream.raw.launch(lambda: order.append("first"))
        mark = stream.record()
        other.wait(mark)
        del mark
        other.raw.launch(lambda: order.append("second"))
        stream.raw.launch(lambda: order.append("third"))
        again = stream.record()
        assert len(cupy.events) == 1
        cupy.run(other.raw)
        assert order == []
        stream.raw.step()
        stream.raw.step()
        cupy.run(other.raw)
        assert order == ["first", "second"]
        assert not again.query()

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(actions=st.lists(st.sampled_from(["record", "drop", "run", "time"]), max_size=40))
    def test_no_two_living_marks_share_an_event(self, fake: Any, actions: list[str]) -> None:
        machine = fake.FakeCupy()
        stream = CudaStream(EventPool(machine, 0))
        marks: list[CudaEvent] = []
        for action in actions:
            if action == "record":
                with stream.current():
                    marks.append(stream.record())
            elif action == "drop" and marks:
                del marks[0]
            elif action == "run":
                machine.run()
                assert all(mark.query() for mark in marks)
            elif action == "time":
                stream.timed = not stream.timed
            assert len({mark.raw.ptr for mark in marks}) == len(marks)


class TestCurrent:
    def test_stream_and_device_are_current_and_restored(self, cupy: Any, stream: CudaStream) -> None:
        with stream.current():
            assert cupy.device == 1
            assert cupy.cuda.get_current_stream() is stream.raw
        assert cupy.device == 0
        assert cupy.cuda.get_current_stream(1) is cupy.cuda.Stream.null

    def test_restored_when_a_launch_raises(self, cupy: Any, stream: CudaStream) -> None:
        with pytest.raises(ValueError, match="launch"):
            with stream.current():
                raise ValueError("launch")
        assert (cupy.device, cupy.cuda.get_current_stream(1)) == (0, cupy.cuda.Stream.null)

    def test_nested(self, cupy: Any, events: EventPool, stream: CudaStream) -> None:
        other = CudaStream(EventPool(cupy, 0))
        with stream.current(), other.current(), stream.current():
            assert (cupy.device, cupy.cuda.get_current_stream()) == (1, stream.raw)
        assert (cupy.device, cupy.entered) == (0, [])

    def test_work_that_leaves_another_device_current(self, cupy: Any, stream: CudaStream) -> None:
        with stream.current():
            cupy.setDevice(0)
        assert cupy.device == 0
        assert [len(stack) for stack in cupy.stacks] == [1, 1]

    def test_a_device_that_cannot_be_entered(
        self, cupy: Any, stream: CudaStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream.raw, "device_id", 0)
        with pytest.raises(RuntimeError, match="current"):
            with stream.current():
                pytest.fail("entered")
        assert cupy.device == 0

    def test_streams_do_not_synchronize_with_the_default_stream(self, events: EventPool) -> None:
        stream = CudaStream(events, priority=-3)  # the fake asserts ``non_blocking``
        assert (stream.raw.priority, stream.raw.device_id) == (-3, 1)


class TestTiming:
    def test_the_time_from_the_begin_of_the_work(self, cupy: Any, stream: CudaStream) -> None:
        stream.timed = True
        before = stream.record()
        cupy.run()
        cupy.clock_ms = 100.0  # idle
        with stream.current():
            stream.raw.launch(lambda: setattr(cupy, "clock_ms", 102.5))
        with stream.current():  # the same piece, as far as marks go
            stream.raw.launch(lambda: setattr(cupy, "clock_ms", 103.5))
        mark = stream.record()
        cupy.run()
        assert mark.elapsed_ns(before) == mark.elapsed_ns(None) == 3_500_000
        assert before.elapsed_ns(None) == 0

    def test_not_timed(self, cupy: Any, stream: CudaStream) -> None:
        with stream.current():
            pass
        mark = stream.record()
        cupy.run()
        assert mark.elapsed_ns(None) == 0
        assert len(cupy.events) == 1


class TestFailedDevice:
    def test_marks_tell_it(self, cupy: Any, stream: CudaStream) -> None:
        """`record` must not raise: the loop learns of the failure when it asks, and so do all who wait."""
        cupy.failure = 700
        mark = stream.record()
        for ask in (mark.query, mark.synchronize):
            with pytest.raises(DeviceError, match="'cuda:1' failed: cudaError700"):
                ask()
        assert mark.elapsed_ns(None) == 0

    def test_entering_a_timed_stream_does_not_raise(self, cupy: Any, stream: CudaStream) -> None:
        stream.timed = True
        cupy.failure = 700
        with stream.current():
            pass
        with pytest.raises(DeviceError, match="700"):
            stream.record().query()

    def test_a_wait_that_fails_fails_what_comes_behind(self, cupy: Any, events: EventPool, stream: CudaStream) -> None:
        other = CudaStream(events)
        mark = stream.record()
        cupy.failure = 700
        other.wait(mark)
        cupy.failure = 0
        with pytest.raises(DeviceError, match="700"):
            other.record().query()

    def test_waiting_for_a_mark_that_failed(self, cupy: Any, events: EventPool, stream: CudaStream) -> None:
        other = CudaStream(events)
        cupy.failure = 700
        mark = stream.record()
        cupy.failure = 0
        other.wait(mark)
        with pytest.raises(DeviceError, match="700"):
            other.record().query()

    def test_synchronize(self, cupy: Any, stream: CudaStream) -> None:
        cupy.failure = 700
        with pytest.raises(DeviceError, match="700"):
            stream.synchronize()


def test_no_wait_for_what_has_passed(cupy: Any, events: EventPool, stream: CudaStream) -> None:
    other = CudaStream(events)
    mark = stream.record()
    cupy.run()
    assert mark.query()
    other.wait(mark)
    assert not other.raw.tasks


def test_close_is_idempotent_and_gives_back_nothing_twice(cupy: Any, stream: CudaStream) -> None:
    stream.timed = True
    with stream.current():
        pass
    stream.close()
    stream.close()
    gc.collect()
    assert stream.record().elapsed_ns(None) == 0
