"""Memory: whose arena, what if there is none, and page-locked memory that a copy still reads."""

from typing import Any

import numpy as np
import pytest

from actorflow.devices.cuda import CudaDevice, memory
from actorflow.errors import DeviceError, DTypeError, OutOfMemoryError
from actorflow.spec import TensorSpec

SPEC = TensorSpec.of((4, 8))


class TestAllocate:
    def test_a_buffer_comes_from_the_current_streams_arena(self, cupy: Any, device: CudaDevice) -> None:
        stream = device.make_stream("main")
        with stream.current():
            array = device.allocate(SPEC)
        assert device.is_array(array)
        assert (array.shape, array.dtype) == SPEC
        assert cupy.allocated_on == [stream.raw]
        assert not stream.raw.tasks

    def test_outside_of_a_lane(self, cupy: Any, device: CudaDevice) -> None:
        assert device.allocate(SPEC).data.device_id == 1
        assert cupy.allocated_on == [cupy.cuda.Stream.null]
        assert cupy.device == 0

    @pytest.mark.together("dtype", ["O", "U4", "S2", "M8[s]", "m8[s]", "longdouble", ">f4", "V3", [("a", "f4")]])
    def test_dtypes_that_cuda_has_not(self, device: CudaDevice, dtype: Any) -> None:
        with pytest.raises(DTypeError, match="'cuda:1' has no arrays of dtype"):
            device.allocate(TensorSpec.of(3, dtype))

    @pytest.mark.together("dtype", ["?", "i1", "u8", "f2", "f4", "f8", "c8", "c16", "intp", "longlong"])
    def test_dtypes_that_cuda_has(self, device: CudaDevice, dtype: str) -> None:
        assert device.allocate(TensorSpec.of(3, dtype)).dtype == np.dtype(dtype)

    def test_no_room(self, cupy: Any, device: CudaDevice) -> None:
        cupy.room = 100
        said = r"128 bytes for float32\[4, 8\]: 1,000 of 9,000 bytes are free.*holds 5,000, with a limit of 6,000"
        with pytest.raises(OutOfMemoryError, match=said) as caught:
            device.allocate(SPEC)
        assert isinstance(caught.value, MemoryError)
        assert type(caught.value.__cause__) is cupy.cuda.memory.OutOfMemoryError
        assert cupy.device == 0

    def test_what_is_cached_is_given_up_first(self, cupy: Any, device: CudaDevice, monkeypatch: Any) -> None:
        cupy.room = 100

        def free_all_blocks(stream: Any = None) -> None:
            cupy.room = 200

        monkeypatch.setattr(cupy.pool, "free_all_blocks", free_all_blocks)
        assert device.allocate(SPEC).nbytes == 128

    def test_a_failed_device(self, cupy: Any, device: CudaDevice, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(shape: object, dtype: object) -> None:
            raise fake.FakeCUDARuntimeError(700)

        monkeypatch.setattr(cupy, "empty", fail)
        with pytest.raises(DeviceError, match=r"failed to allocate float32\[4, 8\]: cudaError700"):
            device.allocate(SPEC)


class TestStaging:
    def test_a_buffer_is_used_again_when_no_copy_is_pending(self, device: CudaDevice) -> None:
        bucket = device.staging.bucket(SPEC)
        assert device.staging.bucket(SPEC) is bucket
        buffer = bucket.take()
        assert isinstance(buffer, np.ndarray)
        assert (buffer.shape, buffer.dtype) == SPEC
        where = buffer.ctypes.data
        bucket.give_back(buffer)
        del buffer
        assert device.staging.used_bytes == 0
        assert bucket.take().ctypes.data == where
        assert device.staging.allocations == 1

    @pytest.mark.parametrize("name", ["inbound", "outbound"])
    def test_a_buffer_that_a_copy_uses_is_not_given_out(self, device: CudaDevice, name: str) -> None:
        lane = device.lane(name)
        bucket = device.staging.bucket(SPEC)
        buffer = bucket.take()
        where = buffer.ctypes.data
        lane.submitted = 5  # as within the launch of the fifth copy
        bucket.give_back(buffer)
        del buffer
        lane.submitted = 9
        bucket.trim()
        assert bucket.free_bytes == SPEC.size_bytes
        other = bucket.take()
        assert other.ctypes.data != where
        lane.completed = 5
        assert bucket.take().ctypes.data == where

    def test_trim(self, device: CudaDevice) -> None:
        bucket = device.staging.bucket(SPEC)
        bucket.give_back(bucket.take())
        device.staging.trim()
        assert (bucket.free_bytes, device.staging.held_bytes) == (0, 0)

    def test_old_buffers_go_when_no_copy_is_pending(self, device: CudaDevice) -> None:
        lane = device.lane("inbound")
        bucket = device.staging.bucket(SPEC)
        buffer = bucket.take()
        lane.submitted = 5
        bucket.give_back(buffer)
        del buffer
        for completed, kept in ((0, 1), (0, 1), (5, 0)):
            lane.completed = completed
            device.staging.age()
            assert bucket.free_bytes == kept * SPEC.size_bytes
        assert device.staging.held_bytes == 0

    def test_views_and_other_shapes_are_not_taken_back(self, device: CudaDevice) -> None:
        bucket = device.staging.bucket(SPEC)
        buffer = bucket.take()
        bucket.give_back(buffer[:])
        bucket.give_back(np.zeros(3))
        assert bucket.free_bytes == 0

    def test_empty_buffers(self, device: CudaDevice) -> None:
        bucket = device.staging.bucket(TensorSpec.of((0, 3)))
        buffer = bucket.take()
        assert buffer.shape == (0, 3)
        bucket.give_back(buffer)
        assert bucket.take() is buffer

    def test_no_room(self, cupy: Any, device: CudaDevice) -> None:
        cupy.room = 100
        with pytest.raises(OutOfMemoryError, match="no room for 128 bytes of page-locked host memory"):
            device.staging.bucket(SPEC).take()

    def test_a_failed_device(self, cupy: Any, device: CudaDevice, fake: Any, monkeypatch: Any) -> None:
        def fail(size: int) -> None:
            raise fake.FakeCUDARuntimeError(700)

        monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", fail)
        with pytest.raises(DeviceError, match="host memory: cudaError700"):
            device.staging.bucket(SPEC).take()


def test_the_dtypes_are_those_of_the_kernels() -> None:
    assert {np.dtype(char).kind for char in memory._DTYPES} == set("biufc")
