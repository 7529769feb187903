"""CUDA devices on a GPU: order, events, overlap, errors, memory, what other libraries share."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices.base import Fence
from actorflow.devices.cuda import CudaDevice, CudaSegment, SegmentState, describe_cuda
from actorflow.devices.stream import StreamLane
from actorflow.errors import DeviceError
from actorflow.place import Place
from actorflow.spec import TensorSpec
from tests.flow.test_devices import PLACED, built

SPEC = TensorSpec.of(1 << 16)

#: Runs until ``flag`` is set, at most for so many clock cycles; leaves in ``seen`` whether it was.
AWAIT_FLAG = r"""
extern "C" __global__ void await_flag(volatile int* flag, int* seen, long long cycles) {
    long long begin = clock64();
    while (*flag == 0 && clock64() - begin < cycles) {}
    *seen = *flag;
}
"""
LONG, SHORT = 20_000_000_000, 20_000_000


def stream_lane(device: CudaDevice, name: str) -> Any:
    lane = device.lane(name)
    assert isinstance(lane, StreamLane)
    return lane


def ignore(fence: Fence) -> None: ...


async def passed(fence: Fence) -> None:
    seen = asyncio.Event()
    fence.add_waiter(seen.set)
    await seen.wait()


def test_doctor(cupy: ModuleType) -> None:
    assert describe_cuda()[0].status == "ok"


class TestStreams:
    def test_an_event_passes_when_its_work_has_ended(self, device: CudaDevice, slow_copy: Any) -> None:
        stream = stream_lane(device, "main").stream
        source, target = device.upload(np.ones(64, "f4")), device.upload(np.zeros(64, "f4"))
        with stream.current():
            slow_copy(source, target)
        mark = stream.record()
        assert not mark.query()
        mark.synchronize()
        assert mark.query()
        assert mark.elapsed_ns(None) > 0
        assert device.download(target).all()

    def test_not_ready_is_no_error_for_the_next_launch(self, cupy: Any, device: CudaDevice, slow_copy: Any) -> None:
        stream = stream_lane(device, "main").stream
        buffers = device.upload(np.ones(64, "f4")), device.upload(np.zeros(64, "f4"))
        with stream.current():
            slow_copy(*buffers)
        mark = stream.record()
        assert not mark.query()
        assert int(cupy.arange(1000).sum()) == 499_500  # by CUB, which looks at the last error
        mark.synchronize()

    async def test_a_copy_overlaps_a_kernel(self, cupy: Any, device: CudaDevice) -> None:
        """The kernel ends early only if the copy gets through while it runs."""
        device.bind(asyncio.get_running_loop())
        kernel = cupy.RawKernel(AWAIT_FLAG, "await_flag")
        flag, seen = device.upload(np.zeros(1, "i4")), device.upload(np.zeros(1, "i4"))
        one = device.staging.bucket(TensorSpec.of(1, "i4")).take()
        one[:] = 1
        compute, copy = stream_lane(device, "main"), stream_lane(device, "inbound")
        computed = compute.submit(lambda _: kernel((1,), (1,), (flag, seen, np.int64(LONG))), None, ignore, True)
        copied = copy.submit(lambda _: device.copy_in(one, flag), None, ignore, True)
        await passed(copied)
        await passed(computed)
        assert device.download(seen)[0] == 1


ILLEGAL = """
import asyncio
import cupy
from actorflow.devices.cuda import CudaDevice
from actorflow.place import Place

kernel = cupy.RawKernel('extern "C" __global__ void bad(int* p) { p[1LL << 44] = 1; }', "bad")

async def main():
    device = CudaDevice(Place.parse("cuda:0"))
    device.bind(asyncio.get_running_loop())
    lane = device.lane("main")
    target = cupy.zeros(1, "i4")
    seen = asyncio.Event()
    fence = lane.submit(lambda _: kernel((1,), (1,), (target,)), None, lambda _: None, urgent=True)
    fence.add_waiter(seen.set)
    await seen.wait()
    print(type(fence.error).__name__, fence.error)
    device.close()
    device.join()

asyncio.run(main())
"""


class TestErrors:
    def test_an_illegal_address_is_raised(self) -> None:
        """In a process of its own: CUDA does not recover from it."""
        done = subprocess.run([sys.executable, "-c", ILLEGAL], capture_output=True, text=True, timeout=240, check=False)
        assert "DeviceError device 'cuda:0' failed: cudaErrorIllegalAddress" in done.stdout, done.stderr


class TestMemory:
    async def test_staged_copies_there_and_back(self, device: CudaDevice) -> None:
        device.bind(asyncio.get_running_loop())
        inbound, outbound = stream_lane(device, "inbound"), stream_lane(device, "outbound")
        bucket, results = device.staging.bucket(SPEC), []
        for step in range(20):
            host, back, array = bucket.take(), bucket.take(), device.allocate(SPEC)
            host[:] = step
            begun = inbound.submit(lambda _, h=host, a=array: device.copy_in(h, a), None, ignore, False)
            bucket.give_back(host)
            assert outbound.wait(begun)
            ended = outbound.submit(lambda _, a=array, b=back: device.copy_out(a, b), None, ignore, True)
            results.append((step, back, array, ended))
        for step, back, _, ended in results:
            if not ended.done:
                await passed(ended)
            assert (back == step).all()

    async def test_a_buffer_is_not_overwritten_while_another_lane_reads_it(
        self, cupy: Any, device: CudaDevice, slow_copy: Any
    ) -> None:
        device.bind(asyncio.get_running_loop())
        writer, reader = stream_lane(device, "main"), stream_lane(device, "outbound")
        bucket, kept = device.memory.bucket(SPEC, writer, [reader]), []
        for step in range(12):
            copy = device.allocate(SPEC)
            taken: list[Any] = []

            def write(_: object, value: int = step, taken: list[Any] = taken) -> None:
                taken.append(bucket.take())
                taken[0].fill(value)

            def read(_: object, taken: list[Any] = taken, copy: Any = copy) -> None:
                slow_copy(taken[0], copy)
                bucket.give_back(taken.pop())

            assert reader.wait(writer.submit(write, None, ignore, False))
            ended = reader.submit(read, None, ignore, True)
            kept.append((step, copy, ended))
        for _, _, ended in kept:
            if not ended.done:
                await passed(ended)
        for step, copy, _ in kept:
            assert (device.download(copy) == step).all()

    def test_join_leaves_nothing_in_the_pool(self, cupy: Any) -> None:
        pool = cupy.get_default_memory_pool()
        before = pool.total_bytes()
        for _ in range(3):
            device = CudaDevice(Place.parse("cuda:0"))
            with stream_lane(device, "main").stream.current():
                cupy.empty(64 << 20, "u1")
            device.close()
            device.join()
        assert pool.total_bytes() - before < 64 << 20


class TestInterchange:
    @pytest.mark.parametrize("interface", ["dlpack", "cuda_array_interface"])
    def test_torch(self, cupy: Any, device: CudaDevice, interface: str) -> None:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("torch has no CUDA")
        lane = stream_lane(device, "main")
        tensor = torch.zeros(SPEC.shape, device="cuda:0")
        own = torch.cuda.Stream()
        own.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(own):
            torch.cuda._sleep(SHORT)
            tensor.add_(3)
            fed = tensor if interface == "dlpack" else OnlyInterface(tensor, own.cuda_stream)
            array = device.adopt(fed)
        assert array.data.ptr == tensor.data_ptr()
        with lane.stream.current():
            copy = array.copy()
        lane.stream.synchronize()
        assert (device.download(copy) == 3).all()
        assert device.adopt(torch.zeros(3)) is None


class OnlyInterface:
    def __init__(self, tensor: Any, stream: int) -> None:
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, "stream": stream}


class TestCapture:
    def test_kernels_are_replayed(self, cupy: Any, device: CudaDevice) -> None:
        stream = stream_lane(device, "main").stream
        x, total = device.upload(np.zeros(1000)), device.upload(np.zeros(1000))
        double = cupy.ElementwiseKernel("float64 a, float64 b", "float64 c", "c = (a + b) * 2", "double_sum")

        def add(_: object) -> None:
            scratch = x + 1  # its own memory
            double(scratch, total, total)

        segment, expected = CudaSegment("sum", device.place, [add]), 0.0
        for step in range(6):
            with stream.current():
                x.fill(step)
                segment()
                cupy.full(1000, -1.0)  # takes what is free in the stream's arena
            expected = (step + 1 + expected) * 2
        stream.synchronize()
        assert segment.state is SegmentState.CAPTURED
        assert segment.replays == 5
        assert (device.download(total) == expected).all()

    def test_a_product_is_right_whether_captured_or_not(self, cupy: Any, device: CudaDevice) -> None:
        stream = stream_lane(device, "main").stream
        a, b = (device.upload(np.random.default_rng(seed).random((64, 64))) for seed in range(2))
        c = device.upload(np.zeros((64, 64)))
        segment = CudaSegment("product", device.place, [lambda _: cupy.matmul(a, b, out=c)])
        for _ in range(4):
            with stream.current():
                c.fill(0)
                segment()
        stream.synchronize()
        assert segment.state in (SegmentState.CAPTURED, SegmentState.REFUSED)
        np.testing.assert_allclose(device.download(c), device.download(a) @ device.download(b), rtol=1e-12)


def test_the_public_way(cupy: Any) -> None:
    with pytest.raises(DeviceError, match=r"this process has (only )?'cuda:0'"):
        CudaDevice.check(Place.parse("cuda:99"))
    graph = af.Graph("chain")
    with graph.at("cuda:0"):
        x = graph.blob("x", shape=(4, 4))
        y = af.ops.relu(af.ops.scale(x, 2.0))
    values = np.linspace(-1, 1, 16, dtype="f4").reshape(4, 4)
    result = graph.run_sync({x: values})[y]
    np.testing.assert_allclose(cupy.asnumpy(cupy.asarray(result)), np.maximum(values * 2, 0))


@pytest.mark.parametrize("capture", [False, True])
async def test_branches_and_loops(cupy: Any, capture: bool) -> None:
    for make in dict.fromkeys(make for make, *_ in PLACED):
        results = []
        for place in ("cpu", "cuda:0"):
            graph, x, _, y = built(make, place, place, capture=capture)
            async with graph:
                for _ in range(4):
                    result = (await graph.run({x: [1, 2, 3]}, fetch=[y]))[y]
                results.append(af.to_numpy(result))
                assert place == "cpu" or isinstance(result, cupy.ndarray)
        np.testing.assert_allclose(results[0], results[1], rtol=1e-5)
