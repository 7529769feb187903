"""Segments: launched, captured, replayed; and launched for good where a capture is refused."""

import logging
from typing import Any

import numpy as np
import pytest

from actorflow.devices.cuda import CudaDevice, CudaSegment, SegmentState
from actorflow.errors import DeviceError
from actorflow.place import Place
from actorflow.spec import TensorSpec

PLACE = Place.parse("cuda:1")


class Chain:
    """``total = (total + x) * 2`` on fixed buffers, in two works; counts its launches."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        self.x, self.total = np.ones(3), np.zeros(3)
        self.launched = 0
        self.allocators: list[Any] = []
        self.error: BaseException | None = None

    def _stream(self) -> Any:
        self.launched += 1
        self.allocators.append(self.cupy.allocators[-1] if self.cupy.allocators else None)
        stream = self.cupy.cuda.get_current_stream()
        if self.error is not None and stream.capturing is not None:
            raise self.error
        return stream

    def add(self, argument: object) -> None:
        assert argument == "frame"
        self._stream().launch(lambda: np.add(self.total, self.x, out=self.total))

    def double(self, argument: object) -> None:
        self._stream().launch(lambda: np.multiply(self.total, 2, out=self.total))


@pytest.fixture
def chain(cupy: Any) -> Chain:
    return Chain(cupy)


@pytest.fixture
def segment(cupy: Any, chain: Chain) -> CudaSegment:
    return CudaSegment("chain", PLACE, [chain.add, chain.double])


def call(segment: CudaSegment, device: CudaDevice, cupy: Any, times: int = 1) -> None:
    lane: Any = device.lane("main")
    for _ in range(times):
        with lane.stream.current():
            segment("frame")
        cupy.run()


def test_replays(cupy: Any, device: CudaDevice, chain: Chain, segment: CudaSegment) -> None:
    expected, states = np.zeros(3), []
    for step in range(5):
        chain.x[:] = step  # what changes is copied into the buffer
        call(segment, device, cupy)
        expected = (expected + step) * 2
        assert np.array_equal(chain.total, expected)
        states.append(segment.state)
    assert states == [SegmentState.WARM, *[SegmentState.CAPTURED] * 4]
    assert (chain.launched, segment.replays) == (4, 4)  # once as it is, once for the capture
    assert repr(segment) == "<Segment 'chain': 2 works, captured>"


def test_what_it_allocates_is_its_own(cupy: Any, device: CudaDevice, chain: Chain, segment: CudaSegment) -> None:
    call(segment, device, cupy, times=2)
    (allocator,) = set(chain.allocators)
    assert allocator == segment._pool.malloc
    assert cupy.allocators == []


@pytest.mark.parametrize("error", [NotImplementedError("cuBLAS"), ValueError("reads back")])
def test_work_that_cannot_be_captured(
    cupy: Any,
    device: CudaDevice,
    chain: Chain,
    segment: CudaSegment,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chain.error = error
    with caplog.at_level(logging.INFO):
        call(segment, device, cupy, times=4)
    assert segment.state is SegmentState.REFUSED
    assert segment.refusal == f"{type(error).__name__}: {error}"
    assert len(caplog.records) == 1
    assert np.array_equal(chain.total, np.full(3, 30.0))
    assert segment.replays == 0
    assert cupy.allocators == []
    assert device.lane("main").stream.raw.capturing is None  # type: ignore[attr-defined]


def test_a_capture_that_cuda_finds_invalid(cupy: Any, device: CudaDevice, chain: Chain, segment: CudaSegment) -> None:
    cupy.invalid_capture = True
    call(segment, device, cupy, times=3)
    assert segment.refusal == "FakeCUDARuntimeError: cudaError901"
    assert np.array_equal(chain.total, np.full(3, 14.0))


def test_a_stream_that_cannot_capture(
    cupy: Any, device: CudaDevice, chain: Chain, segment: CudaSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object) -> None:
        raise RuntimeError("cannot capture on the default (legacy) stream")

    monkeypatch.setattr(type(device.lane("main").stream.raw), "begin_capture", refuse)
    call(segment, device, cupy, times=2)
    assert segment.refusal is not None
    assert np.array_equal(chain.total, np.full(3, 6.0))


def test_an_interrupted_capture_leaves_the_stream_usable(
    cupy: Any, device: CudaDevice, chain: Chain, segment: CudaSegment
) -> None:
    call(segment, device, cupy)
    chain.error = KeyboardInterrupt()
    cupy.invalid_capture = True
    with pytest.raises(KeyboardInterrupt):
        call(segment, device, cupy)
    assert device.lane("main").stream.raw.capturing is None  # type: ignore[attr-defined]
    chain.error, cupy.invalid_capture = None, False
    call(segment, device, cupy)
    assert segment.state is SegmentState.CAPTURED
    assert np.array_equal(chain.total, np.full(3, 6.0))


def test_the_first_call_raises_what_the_work_raises(cupy: Any, device: CudaDevice) -> None:
    def fail(argument: object) -> None:
        raise ValueError("shape")

    segment = CudaSegment("bad", PLACE, [fail])
    with pytest.raises(ValueError, match="shape"):
        call(segment, device, cupy)
    assert segment.state is SegmentState.FRESH
    assert (cupy.allocators, cupy.device) == ([], 0)


def test_another_stream(cupy: Any, device: CudaDevice, segment: CudaSegment) -> None:
    call(segment, device, cupy)
    other: Any = device.lane("other")
    with pytest.raises(DeviceError, match="segment 'chain' belongs to"), other.stream.current():
        segment()


def test_segments_of_the_engine_are_captured_at_once(cupy: Any, device: CudaDevice, chain: Chain) -> None:
    """They have been launched before, op by op."""
    segment: Any = device.make_segment("chain", [chain.add, chain.double])
    call(segment, device, cupy, times=2)
    assert (segment.state, segment.replays, chain.launched) == (SegmentState.CAPTURED, 2, 2)
    assert np.array_equal(chain.total, np.full(3, 6.0))


def test_whereabouts_tell_arrays_apart(device: CudaDevice) -> None:
    spec = TensorSpec.of((3, 2))
    with device.lane("main").stream.current():  # type: ignore[attr-defined]
        first, second = device.allocate(spec), device.allocate(spec)
    turned = type(first)(first.values.T, 1)
    assert device.whereabouts(first) == device.whereabouts(first) == (first.data.ptr, first.strides)
    assert len({device.whereabouts(array) for array in (first, second, turned)}) == 3
