"""Devices: lanes on a real loop, copies, what the application feeds."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from actorflow.devices.base import Fence
from actorflow.devices.cuda import CudaDevice, CudaOptions
from actorflow.devices.stream import StreamLane
from actorflow.errors import DeviceError, DTypeError
from actorflow.place import Place
from actorflow.spec import TensorSpec


def stream_lane(device: CudaDevice, name: str) -> Any:
    lane = device.lane(name)
    assert isinstance(lane, StreamLane)
    return lane


async def passed(fence: Fence) -> None:
    seen = asyncio.Event()
    fence.add_waiter(seen.set)
    await seen.wait()


def ignore(fence: Fence) -> None: ...


def on_device(fake: Any, values: Any, index: int = 1) -> Any:
    return fake.FakeArray(np.asarray(values), index)


class TestLanes:
    async def test_work_goes_to_the_lanes_stream_and_its_end_is_told(self, cupy: Any, device: CudaDevice) -> None:
        device.bind(asyncio.get_running_loop())
        lane, done = stream_lane(device, "main"), []
        told: list[Fence] = []

        def work(argument: str) -> None:
            assert cupy.device == 1
            cupy.cuda.get_current_stream().launch(lambda: done.append(argument))

        fences = [lane.submit(work, text, told.append, urgent=False) for text in "abc"]
        assert lane.stream.raw is not cupy.cuda.Stream.null
        assert (done, [fence.done for fence in fences]) == ([], [False] * 3)
        for _ in range(5):
            await asyncio.sleep(0)
        assert told == []
        cupy.run()
        await passed(fences[-1])
        assert (done, told) == (list("abc"), fences)

    async def test_a_lane_waits_on_the_device_for_another(self, cupy: Any, device: CudaDevice) -> None:
        device.bind(asyncio.get_running_loop())
        first, second = stream_lane(device, "inbound"), stream_lane(device, "main")
        order: list[int] = []
        begun = first.submit(lambda _: first.stream.raw.launch(lambda: order.append(1)), None, ignore, False)
        assert second.wait(begun)
        ended = second.submit(lambda _: second.stream.raw.launch(lambda: order.append(2)), None, ignore, True)
        cupy.run(second.stream.raw)
        assert order == []
        cupy.run()
        await passed(ended)
        assert order == [1, 2]

    async def test_what_a_thread_launches_comes_behind_the_lane_and_has_ended_when_it_is_told(
        self, cupy: Any, device: CudaDevice
    ) -> None:
        device.bind(asyncio.get_running_loop())
        lane, order = stream_lane(device, "main"), []
        lane.submit(lambda _: lane.stream.raw.launch(lambda: order.append("lane")), None, ignore, False)

        def work(name: str) -> None:
            assert threading.current_thread() is not threading.main_thread()
            current = cupy.cuda.get_current_stream()
            assert current != lane.stream.raw
            current.launch(lambda: order.append(name))
            cupy.run(current)
            assert order in ([], ["lane", name])  # the stream waits on the device; the loop may have looked meanwhile

        fence = device.launch_aside(lane, work, "aside", ignore)
        await passed(fence)
        assert (fence.error, order) == (None, ["lane", "aside"])
        (freed,) = cupy.pool.freed  # once: what only that stream could use
        assert freed != lane.stream.raw
        device.close()
        with pytest.raises(DeviceError, match="closed"):
            device.launch_aside(lane, work, "late", ignore)

    async def test_what_fails_on_the_device_fails_in_the_thread(self, cupy: Any, device: CudaDevice) -> None:
        device.bind(asyncio.get_running_loop())
        lane = stream_lane(device, "main")

        def work(status: int) -> None:
            cupy.failure = status

        fence = device.launch_aside(lane, work, 700, ignore)
        await passed(fence)
        assert isinstance(fence.error, DeviceError)
        assert "restart the process" in str(fence.error)

    async def test_a_device_that_fails_fails_all_that_was_launched(self, cupy: Any, device: CudaDevice) -> None:
        device.bind(asyncio.get_running_loop())
        lane = stream_lane(device, "main")
        fences = [lane.submit(lambda _: None, None, ignore, False)]
        cupy.failure = 700
        fences.append(lane.submit(lambda _: None, None, ignore, True))
        await passed(fences[-1])
        assert [type(fence.error) for fence in fences] == [DeviceError] * 2

    async def test_a_launch_that_raises(self, cupy: Any, device: CudaDevice) -> None:
        device.bind(asyncio.get_running_loop())
        lane = stream_lane(device, "main")

        def work(argument: object) -> None:
            raise ValueError("no such kernel")

        fence = lane.submit(work, None, ignore, urgent=False)
        assert cupy.device == 0
        cupy.run()
        await passed(fence)
        assert str(fence.error) == "no such kernel"

    def test_copies_go_first(self, device: CudaDevice) -> None:
        priorities = {name: stream_lane(device, name).stream.raw.priority for name in ("main", "inbound", "outbound")}
        assert priorities["inbound"] == priorities["outbound"] < priorities["main"] == 0

    def test_what_is_timed(self, cupy: Any) -> None:
        device = CudaDevice(Place.parse("cuda:0"))
        assert stream_lane(device, "main").stream.timed
        device = CudaDevice(Place.parse("cuda:0"), CudaOptions(timing=False))
        lane = stream_lane(device, "main")
        assert not lane.stream.timed
        device.watch_closely(True)
        assert (lane.stream.timed, lane.detailed, stream_lane(device, "later").stream.timed) == (True, True, True)
        device.watch_closely(False)
        assert (lane.stream.timed, lane.detailed) == (False, False)

    def test_join_gives_up_what_only_its_streams_could_use(self, cupy: Any, device: CudaDevice) -> None:
        device.upload(np.ones(3))
        assert device._service is not None
        streams = [stream_lane(device, name).stream.raw for name in ("main", "inbound")]
        streams[0].launch(lambda: None)
        device.close()
        device.join()
        assert not streams[0].tasks
        assert cupy.pool.freed == [*streams, device._service.raw]

    def test_join_of_a_failed_device(self, cupy: Any, device: CudaDevice) -> None:
        stream_lane(device, "main")
        cupy.failure = 700
        device.close()
        device.join()

    def test_no_stream_to_be_had(self, cupy: Any, device: CudaDevice, fake: Any, monkeypatch: Any) -> None:
        def refuse(**options: object) -> None:
            raise fake.FakeCUDARuntimeError(46)

        monkeypatch.setattr(cupy.cuda, "Stream", refuse)
        with pytest.raises(DeviceError, match="'cuda:1' gives no stream: cudaError46"):
            device.lane("main")


class TestCopies:
    @pytest.mark.together(
        "values",
        [np.arange(6.0).reshape(2, 3), np.array(5), np.zeros((0, 4)), np.arange(12).reshape(3, 4).T, np.array([True])],
    )
    def test_there_and_back(self, device: CudaDevice, values: np.ndarray[Any, Any]) -> None:
        array = device.upload(values)
        assert device.is_array(array)
        assert not device.is_array(values)
        result = device.download(array)
        assert (result.dtype, result.shape) == (values.dtype, values.shape)
        assert np.array_equal(result, values)

    def test_copies_are_only_enqueued(self, cupy: Any, device: CudaDevice) -> None:
        lane = stream_lane(device, "inbound")
        source, target = np.arange(4.0), device.allocate(TensorSpec.of(4, "f8"))
        with lane.stream.current():
            device.copy_in(source, target)
        assert not np.array_equal(target.values, source)
        cupy.run()
        assert np.array_equal(target.values, source)
        back = np.zeros(4)
        with lane.stream.current():
            device.copy_out(target, back)
        assert not back.any()
        cupy.run()
        assert np.array_equal(back, source)

    def test_a_source_that_is_not_contiguous_is_copied_before_it_can_change(
        self, cupy: Any, device: CudaDevice
    ) -> None:
        source = np.arange(12.0).reshape(3, 4).T
        target = device.allocate(TensorSpec.of((4, 3), "f8"))
        with stream_lane(device, "inbound").stream.current():
            device.copy_in(source, target)
        assert np.array_equal(target.values, source)

    def test_a_device_array_that_is_not_contiguous(self, fake: Any, device: CudaDevice) -> None:
        values = np.arange(12.0).reshape(3, 4).T
        assert np.array_equal(device.download(on_device(fake, values)), values)

    def test_types_that_differ(self, cupy: Any, device: CudaDevice) -> None:
        target = device.allocate(TensorSpec.of(4))
        for source in (np.zeros(4), np.zeros(3, "f4")):
            with pytest.raises(DeviceError, match=r"one type, got float\d\d\[.\] and float32\[4\]"):
                device.copy_in(source, target)
        with pytest.raises(DeviceError, match="C-contiguous target"):
            device.copy_out(target, np.zeros(8, "f4")[::2])

    def test_a_failed_device(self, cupy: Any, device: CudaDevice, fake: Any) -> None:
        array = on_device(fake, np.zeros(3, "f4"))
        cupy.failure = 700
        with pytest.raises(DeviceError, match=r"float32\[3\] to the device failed: cudaError700"):
            device.copy_in(np.zeros(3, "f4"), array)
        with pytest.raises(DeviceError, match=r"float32\[3\] from the device failed"):
            device.copy_out(array, np.zeros(3, "f4"))
        with pytest.raises(DeviceError, match="'cuda:0' to 'cuda:1' failed"):
            device.copy_peer(on_device(fake, np.zeros(3, "f4"), 0), array)

    def test_between_devices(self, cupy: Any, device: CudaDevice, fake: Any) -> None:
        source, target = on_device(fake, np.arange(3.0), 0), on_device(fake, np.zeros(3), 1)
        with stream_lane(device, "inbound").stream.current():
            for _ in range(2):
                device.copy_peer(source, target)
        cupy.run()
        assert np.array_equal(target.values, source.values)
        assert (cupy.reached, cupy.peers) == ([(1, 0)], [(0, 1)] * 2)
        other = CudaDevice(Place.parse("cuda:1"))
        other.copy_peer(source, target)  # somebody has enabled it before
        with pytest.raises(DeviceError, match="C-contiguous"):
            device.copy_peer(on_device(fake, np.zeros((3, 2)).T, 0), on_device(fake, np.zeros((2, 3))))

    def test_devices_that_cannot_reach_each_other(
        self, cupy: Any, device: CudaDevice, fake: Any, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(cupy, "deviceCanAccessPeer", lambda device, peer: 0)
        source, target = on_device(fake, np.arange(3.0), 0), on_device(fake, np.zeros(3), 1)
        device.copy_peer(source, target)
        cupy.run()
        assert np.array_equal(target.values, source.values)
        assert cupy.reached == []

    def test_dtypes_that_cuda_has_not(self, device: CudaDevice) -> None:
        with pytest.raises(DTypeError, match="object"):
            device.upload(np.array([None, "a"]))


class Exporter:
    """A library's array, by DLPack."""

    def __init__(self, array: Any, kind: int = 2) -> None:
        self.array, self.kind = array, kind
        self.stream: Any = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.array.data.device_id

    def __dlpack__(self, *, stream: Any) -> Any:
        self.stream = stream
        return self.array


class TestAdopt:
    def test_an_array_of_this_device(self, device: CudaDevice, fake: Any) -> None:
        array = on_device(fake, np.arange(3.0))
        assert device.adopt(array) is array

    def test_all_lanes_wait_for_what_the_application_still_computes(
        self, cupy: Any, device: CudaDevice, fake: Any
    ) -> None:
        order: list[str] = []
        lanes = [stream_lane(device, name) for name in ("main", "inbound")]
        cupy.legacy[1].launch(lambda: order.append("application"))
        assert device.adopt(on_device(fake, np.arange(3.0))) is not None
        lanes.append(stream_lane(device, "later"))
        for lane in lanes:
            lane.stream.raw.launch(lambda: order.append("lane"))
        cupy.run(*[lane.stream.raw for lane in lanes])
        assert order == []
        cupy.run()
        assert order == ["application", *["lane"] * 3]
        assert not stream_lane(device, "last").stream.raw.tasks

    def test_blocking_streams_of_the_application_count(self, cupy: Any, device: CudaDevice, fake: Any) -> None:
        """As for what the application itself launches on its default stream."""
        lane, order = stream_lane(device, "main"), []
        with cupy.cuda.Device(1), cupy.cuda.Stream() as own:
            own.launch(lambda: order.append("application"))
        device.adopt(on_device(fake, np.arange(3.0)))
        lane.stream.raw.launch(lambda: order.append("lane"))
        cupy.run(lane.stream.raw, cupy.legacy[1])
        assert order == []
        cupy.run()
        assert order == ["application", "lane"]

    def test_an_idle_stream_of_the_application_is_not_waited_for(
        self, cupy: Any, device: CudaDevice, fake: Any
    ) -> None:
        lane = stream_lane(device, "main")
        with cupy.cuda.Device(1), cupy.cuda.Stream(non_blocking=True) as own:
            device.adopt(on_device(fake, np.arange(3.0)))
        assert not own.tasks
        assert not lane.stream.raw.tasks

    def test_the_applications_current_stream_counts(self, cupy: Any, device: CudaDevice, fake: Any) -> None:
        lane = stream_lane(device, "main")
        with cupy.cuda.Device(1):
            own = cupy.cuda.Stream(non_blocking=True, priority=0)
            own.launch(lambda: None)
            with own:
                device.adopt(on_device(fake, np.arange(3.0)))
        assert [what for what, *_ in own.tasks] == ["work", "record"]
        assert [what for what, *_ in lane.stream.raw.tasks] == ["wait"]

    @pytest.mark.together("value", [np.arange(3.0), [1.0], 2.0, None, "text"])
    def test_what_is_not_on_a_device(self, device: CudaDevice, value: object) -> None:
        assert device.adopt(value) is None

    def test_an_array_of_another_device(self, device: CudaDevice, fake: Any) -> None:
        array = on_device(fake, np.arange(3.0), 0)
        assert device.adopt(array) is None
        exporter = Exporter(array)
        assert device.adopt(exporter) is None
        assert exporter.stream is None  # not asked: that would make streams of the other device wait

    def test_an_array_that_is_not_contiguous(self, cupy: Any, device: CudaDevice, fake: Any) -> None:
        lane = stream_lane(device, "main")
        values = np.arange(6.0).reshape(2, 3).T
        adopted = device.adopt(on_device(fake, values))
        seen: list[Any] = []
        lane.stream.raw.launch(lambda: seen.append(adopted.values.copy()))
        cupy.run(lane.stream.raw)
        assert seen == []  # the copy is on the application's stream, and comes first
        cupy.run()
        assert adopted.flags.c_contiguous
        assert np.array_equal(seen[0], values)

    @pytest.mark.parametrize("kind", [2, 13])
    def test_dlpack(self, cupy: Any, device: CudaDevice, fake: Any, kind: int) -> None:
        exporter = Exporter(on_device(fake, np.arange(3.0)), kind)
        assert device.adopt(exporter) is exporter.array
        assert exporter.stream is cupy.cuda.Stream.null

    def test_dlpack_of_the_host_and_of_managed_memory_elsewhere(self, device: CudaDevice, fake: Any) -> None:
        assert device.adopt(Exporter(on_device(fake, np.arange(3.0)), kind=1)) is None
        assert device.adopt(Exporter(on_device(fake, np.arange(3.0), 0), kind=13)) is None

    def test_dlpack_that_is_refused(self, device: CudaDevice, fake: Any, monkeypatch: Any) -> None:
        exporter = Exporter(on_device(fake, np.arange(3.0)))

        def refuse(self: object, *, stream: Any) -> None:
            raise BufferError("it needs a gradient")

        monkeypatch.setattr(Exporter, "__dlpack__", refuse)
        with pytest.raises(DeviceError, match=r"'cuda:1' cannot share a .*Exporter: it needs a gradient"):
            device.adopt(exporter)


class Described:
    """A library's array, by the CUDA array interface."""

    def __init__(self, values: np.ndarray[Any, Any], **more: object) -> None:
        self.values = values
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (values.ctypes.data, False),
            "version": 3,
            **more,
        }


class TestArrayInterface:
    @pytest.mark.together("shape", [(), (3,), (2, 3), (2, 3, 4), (1, 1)])
    def test_shared(self, device: CudaDevice, shape: tuple[int, ...]) -> None:
        values = np.arange(float(np.prod(shape))).reshape(shape)
        array = device.adopt(Described(values))
        assert array is not None
        assert (array.shape, array.dtype) == (shape, values.dtype)
        values += 1
        assert np.array_equal(array.values, values)

    def test_strides(self, cupy: Any, device: CudaDevice) -> None:
        values = np.arange(12.0).reshape(3, 4)[:, ::2]
        array = device.adopt(Described(values, strides=values.strides))
        cupy.run()
        assert array is not None
        assert array.flags.c_contiguous
        assert np.array_equal(array.values, values)

    def test_nothing_in_it(self, device: CudaDevice) -> None:
        array = device.adopt(Described(np.zeros((0, 3)), data=(0, False)))
        assert array is not None
        assert array.shape == (0, 3)

    def test_its_stream_is_waited_for_on_the_device(self, cupy: Any, device: CudaDevice) -> None:
        lane, order = stream_lane(device, "main"), []
        with cupy.cuda.Device(1):
            library = cupy.cuda.Stream(non_blocking=True, priority=0)
        library.launch(lambda: order.append("library"))
        device.adopt(Described(np.zeros(3), stream=library.ptr))
        lane.stream.raw.launch(lambda: order.append("lane"))
        cupy.run(cupy.legacy[1], lane.stream.raw)
        assert order == []
        cupy.run()
        assert order == ["library", "lane"]

    def test_on_another_device(self, cupy: Any) -> None:
        assert CudaDevice(Place.parse("cuda:0")).adopt(Described(np.zeros(3))) is None

    @pytest.mark.parametrize(
        ("more", "said"), [({"mask": 1}, "it is masked"), ({"data": (16, True)}, "it is read-only")]
    )
    def test_refused(self, device: CudaDevice, more: dict[str, Any], said: str) -> None:
        with pytest.raises(DeviceError, match=f"'cuda:1' cannot share a .*Described: {said}"):
            device.adopt(Described(np.zeros(3), **more))

    def test_dtypes_that_cuda_has_not(self, device: CudaDevice) -> None:
        with pytest.raises(DTypeError, match=">f4"):
            device.adopt(Described(np.zeros(3, ">f4")))
