"""Memory of arrays that died goes back to CuPy when nobody works on it any more, and not before."""

import gc
import threading
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorflow.devices.cuda import CudaDevice, CudaOptions
from actorflow.place import Place
from actorflow.spec import TensorSpec

SPEC = TensorSpec.of((4, 8))


def nothing() -> None: ...


def memory_of(array: Any) -> Any:
    """A weak reference to what goes back to CuPy's pool when nobody refers to it."""
    return weakref.ref(array.data.mem)


@pytest.fixture
def lane(device: CudaDevice) -> Any:
    return device.lane("main")


def sweep(device: CudaDevice) -> None:
    device.allocate(TensorSpec.of(1))


class TestBuffers:
    @pytest.mark.parametrize("swept_in_a_lane", [False, True])
    @pytest.mark.parametrize("where", ["lane", "default", "blocking", "dropped in"])
    def test_kept_while_a_stream_works(
        self, cupy: Any, device: CudaDevice, lane: Any, where: str, swept_in_a_lane: bool
    ) -> None:
        """Lanes take buffers inside their own ``with`` blocks, where no stream of the application is current."""
        buffer = device.memory.new(SPEC)
        memory = memory_of(buffer)
        with cupy.cuda.Device(1):
            blocking, own = cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
            streams = {"lane": lane.stream.raw, "default": cupy.legacy[1], "blocking": blocking, "dropped in": own}
            stream = streams[where]
            stream.launch(nothing)
            with own if where == "dropped in" else nullcontext():
                del buffer
        assert memory() is not None
        with lane.stream.current() if swept_in_a_lane else nullcontext():
            sweep(device)
        sweep(device)
        assert memory() is not None
        cupy.run()
        sweep(device)
        assert memory() is None

    def test_later_work_is_not_waited_for(self, cupy: Any, device: CudaDevice, lane: Any) -> None:
        buffer = device.memory.new(SPEC)
        memory, stream = memory_of(buffer), lane.stream.raw
        stream.launch(nothing)
        del buffer
        sweep(device)
        stream.launch(nothing)
        cupy.run(cupy.legacy[1])
        stream.step()
        sweep(device)
        assert memory() is not None
        stream.step()  # the event
        sweep(device)
        assert memory() is None
        assert stream.tasks

    def test_the_default_stream_of_another_device_is_not_asked(self, cupy: Any, device: CudaDevice) -> None:
        buffer = device.memory.new(SPEC)
        memory = memory_of(buffer)
        cupy.legacy[0].launch(nothing)
        del buffer
        sweep(device)
        cupy.run(cupy.legacy[1])
        sweep(device)
        assert memory() is None

    def test_idle_streams_are_not_waited_for(self, cupy: Any, device: CudaDevice, lane: Any) -> None:
        buffer = device.memory.new(SPEC)
        memory = memory_of(buffer)
        with cupy.cuda.Device(1), cupy.cuda.Stream(non_blocking=True) as own:
            del buffer
        sweep(device)
        assert not lane.stream.raw.tasks
        assert not own.tasks
        cupy.run(cupy.legacy[1])  # a mark that nothing is in front of
        sweep(device)
        assert memory() is None

    def test_a_view_keeps_its_array(self, cupy: Any, device: CudaDevice, fake: Any) -> None:
        buffer = device.memory.new(SPEC)
        memory, view = memory_of(buffer), fake.FakeArray(buffer.values[1:], 1, base=buffer)
        del buffer
        sweep(device)
        cupy.run()
        sweep(device)
        assert memory() is not None
        del view
        sweep(device)
        cupy.run()
        sweep(device)
        assert memory() is None

    def test_an_array_that_dies_in_another_thread(self, cupy: Any, device: CudaDevice, lane: Any) -> None:
        held = [device.memory.new(SPEC)]
        memory = memory_of(held[0])
        lane.stream.raw.launch(nothing)
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        sweep(device)
        assert memory() is not None
        cupy.run()
        sweep(device)
        assert memory() is None

    def test_waited_for_when_there_is_no_room(self, cupy: Any, device: CudaDevice, lane: Any, monkeypatch: Any) -> None:
        buffer = device.memory.new(SPEC)
        memory = memory_of(buffer)
        lane.stream.raw.launch(nothing)
        del buffer
        cupy.room = 100
        monkeypatch.setattr(
            cupy.pool, "free_all_blocks", lambda stream=None: setattr(cupy, "room", None if memory() is None else 1)
        )
        assert device.allocate(SPEC).nbytes == SPEC.size_bytes

    def test_uploads(self, cupy: Any, device: CudaDevice) -> None:
        array = device.upload(np.zeros(3))
        memory = memory_of(array)
        cupy.legacy[1].launch(nothing)
        del array
        sweep(device)
        assert memory() is not None


class TestOthers:
    def test_what_the_application_fed(self, cupy: Any, device: CudaDevice, lane: Any, fake: Any) -> None:
        """CuPy would give its memory to whatever the application allocates next."""
        fed = fake.FakeArray(np.zeros(3), 1)
        memory = memory_of(fed)
        assert device.adopt(fed) is fed
        lane.stream.raw.launch(nothing)
        del fed
        sweep(device)
        assert memory() is not None
        cupy.run()
        sweep(device)
        assert memory() is None

    def test_what_is_fed_again_and_again_is_watched_once(self, device: CudaDevice, fake: Any) -> None:
        fed = fake.FakeArray(np.zeros(3), 1)
        for _ in range(100):
            device.adopt(fed)
        assert weakref.getweakrefcount(fed) == 1

    def test_what_a_function_gave(self, cupy: Any, device: CudaDevice, fake: Any) -> None:
        given_away = fake.FakeArray(np.zeros(3), 1)
        memory = memory_of(given_away)
        device.lend(given_away)
        cupy.legacy[1].launch(nothing)
        del given_away
        sweep(device)
        assert memory() is not None
        cupy.run()
        sweep(device)
        assert memory() is None


class TestEnd:
    def test_join_lets_go_of_all(self, cupy: Any, device: CudaDevice, lane: Any) -> None:
        dead, alive = device.memory.new(SPEC), device.memory.new(SPEC)
        memories = [memory_of(dead), memory_of(alive)]
        lane.stream.raw.launch(nothing)
        del dead
        device.close()
        device.join()
        assert memories[0]() is None
        del alive
        gc.collect()
        assert memories[1]() is None

    def test_a_failed_device(self, cupy: Any, device: CudaDevice, lane: Any) -> None:
        buffer = device.memory.new(SPEC)
        memory = memory_of(buffer)
        lane.stream.raw.launch(nothing)
        del buffer
        sweep(device)
        cupy.failure = 700
        device.close()
        device.join()
        assert memory() is None

    def test_a_device_that_fails_before_the_marks(self, cupy: Any, device: CudaDevice, lane: Any) -> None:
        buffer = device.memory.new(SPEC)
        memory = memory_of(buffer)
        del buffer
        cupy.failure = 700
        device.close()
        device.join()
        assert memory() is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(st.sampled_from(["take", "launch", "drop", "step", "sweep"]), max_size=60), data=st.data())
def test_memory_outlives_what_was_launched_on_it(cupy: Any, actions: list[str], data: st.DataObject) -> None:
    """Wherever it was used, dropped and looked after; what a non-blocking stream uses is dropped in its block."""
    device = CudaDevice(Place.parse("cuda:1"), CudaOptions(timing=False))
    lanes: list[Any] = [device.lane(name) for name in ("main", "inbound")]
    with cupy.cuda.Device(1):
        blocking, own = cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    streams = [cupy.legacy[1], blocking, own, *(lane.stream.raw for lane in lanes)]
    contexts: list[Any] = [nullcontext(), *(lane.stream.current() for lane in lanes)]
    arrays: list[Any] = []
    pending: list[Any] = []
    for action in actions:
        stream = data.draw(st.sampled_from(streams))
        cupy.device = data.draw(st.sampled_from([0, 1]))
        if action == "take":
            arrays.append(device.memory.new(SPEC))
        elif action == "launch" and arrays:
            use = [memory_of(arrays[data.draw(st.integers(0, len(arrays) - 1))]), stream]
            pending.append(use)
            stream.launch(lambda use=use: pending.remove(use))
        elif action == "drop" and arrays:
            number = data.draw(st.integers(0, len(arrays) - 1))
            if any(use == [memory_of(arrays[number]), own] for use in pending):
                with cupy.cuda.Device(1), own:
                    del arrays[number]
            else:
                with data.draw(st.sampled_from(contexts)):
                    del arrays[number]
        elif action == "step":
            stream.step()
        elif action == "sweep":
            with data.draw(st.sampled_from(contexts)):
                sweep(device)
        assert all(memory() is not None for memory, _ in pending)
    del arrays[:]
    cupy.run()
    sweep(device)
    cupy.run()
    sweep(device)
    assert device._late.held == 0
