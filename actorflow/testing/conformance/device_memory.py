"""Requirements on a device's arrays, copies and pool."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import numpy as np

from actorflow.devices import BufferPool, Device, Fence
from actorflow.devices.stream import StreamDevice, StreamPool
from actorflow.errors import OutOfMemoryError
from actorflow.interchange import to_numpy
from actorflow.spec import TensorSpec
from actorflow.testing.conformance.device_bench import LARGE, SMALL, DeviceBench, nothing, pattern, take
from actorflow.testing.conformance.device_lanes import copy_in, copy_out, keep_busy
from actorflow.testing.conformance.report import NotApplicable, Topic, expect, same

ARRAYS = Topic("arrays")

#: Scalars, empty arrays, several axes, and dtypes that every device has.
SPECS = (
    *[
        TensorSpec.of(shape, dtype)
        for dtype in ("float32", "float64", "int64", "int32", "uint8", "bool")
        for shape in ((), (0,), (7,), (2, 3, 5))
    ],
    LARGE,
)

#: No machine has so much.
_TOO_LARGE = TensorSpec.of((1 << 60,), "uint8")


@ARRAYS.requires("device", "the class says what the device is, and the device has its place, options and memory")
async def _device(bench: DeviceBench, device: Device) -> None:
    kind = type(device)
    expect(device.place == bench.place, f"place {str(bench.place)!r}", repr(device.place))
    expect(isinstance(device.options, kind.options_type), f"options of type {kind.options_type}", repr(device.options))
    expect(isinstance(device.memory, BufferPool), "memory that is a BufferPool", repr(device.memory))
    expect(
        isinstance(device, StreamDevice) == kind.is_stream == isinstance(device.memory, StreamPool),
        "is_stream is True for a StreamDevice, whose memory is a StreamPool, and False otherwise",
        f"is_stream={kind.is_stream}, bases {[base.__name__ for base in kind.__mro__]}, memory {device.memory!r}",
    )


@ARRAYS.requires("allocate", "allocate() gives an array with the shape, dtype and nbytes asked for, with base None")
async def _allocate(device: Device) -> None:
    for spec in SPECS:
        array = device.allocate(spec)
        got = (tuple(array.shape), np.dtype(array.dtype), int(array.nbytes))
        expect(got == (spec.shape, spec.dtype, spec.size_bytes), f"{spec}, {spec.size_bytes} bytes", str(got))
        expect(array.base is None, f"base is None for {spec}, which owns its memory", repr(array.base))
        expect(weakref.ref(array)() is array, "arrays can be referred to weakly", "they cannot")


@ARRAYS.requires("is_array", "is_array() knows the device's own arrays from everything else")
async def _is_array(device: Device) -> None:
    array = device.allocate(SMALL)
    expect(device.is_array(array) is True, "True for an array of the device", repr(device.is_array(array)))
    foreign = [None, 1.0, [1.0], "x", *([] if device.is_host else [pattern(SMALL)])]
    for value in foreign:
        expect(device.is_array(value) is False, f"False for {value!r}", repr(device.is_array(value)))


@ARRAYS.requires("upload", "upload() and download() copy every element, and return when the copy is complete")
async def _upload(device: Device) -> None:
    for spec in SPECS:
        source = pattern(spec)
        array = device.upload(source)
        expect(device.is_array(array), f"upload() gives an array of the device for {spec}", repr(type(array)))
        source[...] = pattern(spec, 1)
        same(device.download(array), pattern(spec), "the contents as they were at upload()")
    strided = pattern(TensorSpec.of((6, 8)))[::2, ::-1]
    same(device.download(device.upload(strided)), np.ascontiguousarray(strided), "a strided array's contents")


@ARRAYS.requires("download", "download() gives a host array of its own")
async def _download(device: Device) -> None:
    array = device.upload(pattern(SMALL))
    first = device.download(array)
    expect(type(first) is np.ndarray, "a NumPy array", repr(type(first)))
    first[...] = 0
    same(device.download(array), pattern(SMALL), "the contents, whatever was done with an earlier copy")


@ARRAYS.requires("to_numpy", "af.to_numpy() copies an array to the host: by get(), __array__ or DLPack")
async def _to_numpy(device: Device) -> None:
    for spec in SPECS:
        same(to_numpy(device.upload(pattern(spec))), pattern(spec), f"the contents of {spec}")


@ARRAYS.requires("no_room", "allocate() raises OutOfMemoryError where there is no room, and the device goes on")
async def _no_room(device: Device) -> None:
    expected = f"OutOfMemoryError for {_TOO_LARGE.size_bytes:,} bytes"
    try:
        device.allocate(_TOO_LARGE)
    except OutOfMemoryError:
        pass
    except (MemoryError, RuntimeError, ValueError, OSError) as error:
        expect(False, expected, f"{type(error).__name__}: {error}")
    else:
        expect(False, expected, "an array")
    same(device.download(device.upload(pattern(SMALL))), pattern(SMALL), "contents of an array afterwards")


COPIES = Topic("copies")


@COPIES.requires("in", "copy_in() copies every element of a host array, strided ones too")
async def _in(bench: DeviceBench, device: Device) -> None:
    lane = device.lane("inbound")
    for spec in SPECS:
        source, array = pattern(spec, 1), device.upload(pattern(spec))
        await bench.passes(copy_in(device, lane, source, array), f"copy_in() of {spec}")
        same(device.download(array), source, f"an array with the contents of {spec}")
    strided = pattern(TensorSpec.of((6, 8)))[::2, ::-1]
    array = device.allocate(TensorSpec.of(strided.shape))
    await bench.passes(copy_in(device, lane, strided, array), "copy_in() of a strided array")
    same(device.download(array), np.ascontiguousarray(strided), "an array with a strided array's contents")


@COPIES.requires("out", "copy_out() copies every element to a host array, and nothing beside it")
async def _out(bench: DeviceBench, device: Device) -> None:
    lane = device.lane("outbound")
    for spec in SPECS:
        array, frame = device.upload(pattern(spec, 1)), pattern(TensorSpec((3, *spec.shape), spec.dtype))
        expected = frame.copy()
        expected[1] = pattern(spec, 1)
        await bench.passes(copy_out(device, lane, array, frame[1, ...]), f"copy_out() of {spec}")
        same(frame, expected, f"the contents of {spec} in the middle of a host array, and the rest as it was")
        same(device.download(array), pattern(spec, 1), "the source as it was")


@COPIES.requires("apart", "arrays of the device do not share memory")
async def _copies_apart(bench: DeviceBench, device: Device) -> None:
    lane = device.lane("inbound")
    sources = [pattern(spec, i) for i, spec in enumerate(SPECS)]
    arrays = [device.allocate(spec) for spec in SPECS]
    for fence in [copy_in(device, lane, source, array) for source, array in zip(sources, arrays, strict=True)]:
        await bench.passes(fence, "a copy to one of many arrays")
    for source, array in zip(sources, arrays, strict=True):
        same(device.download(array), source, "an array as it was written, after others were")


@COPIES.requires("both_ways", "copies in both directions at once, on their lanes, do not disturb each other")
async def _both_ways(bench: DeviceBench, device: Device) -> None:
    inbound, outbound = device.lane("inbound"), device.lane("outbound")
    sources = [pattern(LARGE, i) for i in range(6)]
    held = [device.upload(source) for source in sources]
    fresh = [device.allocate(LARGE) for _ in sources]
    targets = [np.zeros_like(source) for source in sources]
    fences = []
    for i, source in enumerate(sources):
        fences.append(copy_in(device, inbound, source, fresh[i]))
        fences.append(copy_out(device, outbound, held[i], targets[i]))
    for fence in fences:
        await bench.passes(fence, "a copy")
    for i, source in enumerate(sources):
        same(targets[i], source, "what was copied out")
        same(device.download(fresh[i]), source, "what was copied in")


@COPIES.requires("adopt", "adopt() takes an array of the device without a copy, and None is its answer to other values")
async def _adopt(bench: DeviceBench, device: Device) -> None:
    array = device.upload(pattern(SMALL))
    adopted = device.adopt(array)
    expect(adopted is not None and device.is_array(adopted), "an array of the device", repr(adopted))
    lane = device.lane("inbound")
    source = pattern(SMALL, 2)
    await bench.passes(lane.submit(lambda _: device.copy_in(source, array), None, nothing, True), "copy_in()")
    same(device.download(adopted), source, "the same memory: what is written to the array afterwards")
    if not device.is_host:
        for value in (None, [1.0], object()):
            got = device.adopt(value)
            expect(got is None, f"None for {type(value).__name__}", repr(got))


@COPIES.requires("staging", "a device with is_staged has host memory that its copies start from")
async def _staging(bench: DeviceBench) -> None:
    if not bench.kind.is_staged:
        raise NotApplicable("is_staged is False")
    async with bench.device() as device:
        lane = device.lane("inbound")
        for spec in SPECS:
            bucket = device.staging.bucket(spec)
            buffer = bucket.take()
            kind = f"{type(buffer).__name__} {buffer.dtype}{list(buffer.shape)}"
            expect(isinstance(buffer, np.ndarray) and kind == f"ndarray {spec}", f"a NumPy array {spec}", kind)
            buffer[...] = pattern(spec)
            array = device.allocate(spec)
            await bench.passes(copy_in(device, lane, buffer, array), "copy_in() from staging")
            bucket.give_back(buffer)
            same(device.download(array), pattern(spec), f"the contents of a staging buffer of {spec}")


@COPIES.requires("peer", "copy_peer() copies every element of an array of another device of the kind")
async def _peer(bench: DeviceBench) -> None:
    if bench.kind.copy_peer is Device.copy_peer:
        raise NotApplicable("copy_peer() is not overridden")
    async with bench.device() as device, bench.device(bench.peer()) as other:
        await _copy_peers(bench, device, other)


async def _copy_peers(bench: DeviceBench, device: Device, other: Device) -> None:
    for spec in SPECS:
        source, array = other.upload(pattern(spec, 3)), device.upload(pattern(spec))
        await bench.passes(_copy_peer(device, source, array), f"copy_peer() of {spec}")
        same(device.download(array), pattern(spec, 3), f"an array with the other device's contents of {spec}")
        same(other.download(source), pattern(spec, 3), "the source as it was")
    # Behind work of the other device, as the engine orders it.
    written, source, array = pattern(LARGE, 5), other.allocate(LARGE), device.allocate(LARGE)
    keep_busy(bench, other, other.lane("main"))
    before = copy_in(other, other.lane("main"), written, source)
    await bench.passes(before, "copy_in() to the other device")
    await bench.passes(_copy_peer(device, source, array), "copy_peer()")
    same(device.download(array), written, "what the other device's work had written")


def _copy_peer(device: Device, source: Any, array: Any) -> Any:
    return device.lane("inbound").submit(lambda _: device.copy_peer(source, array), None, nothing, False)


MEMORY = Topic("memory")

#: Four units, of one and of two.
_UNIT = TensorSpec.of((1 << 10,), "float32")
_PAIR = TensorSpec.of((2, 1 << 10), "float32")
_BUDGET = 4 * _UNIT.size_bytes


@MEMORY.requires("counts", "the pool counts a buffer from its allocation until nobody refers to it")
async def _counts(bench: DeviceBench, device: Device) -> None:
    memory = device.memory
    before = memory.held_bytes
    taken = [await _take(bench, device, spec) for spec in (_UNIT, _PAIR)]
    size_bytes = _UNIT.size_bytes + _PAIR.size_bytes
    held = memory.held_bytes - before
    expect(held == size_bytes, f"{size_bytes:,} bytes more held", f"{held:,}")
    expect(memory.used_bytes == size_bytes, f"{size_bytes:,} bytes used", f"{memory.used_bytes:,}")
    expect(memory.peak_bytes >= size_bytes, f"a peak of at least {size_bytes:,} bytes", f"{memory.peak_bytes:,}")
    expect(memory.allocations == len(taken), f"{len(taken)} allocations", f"{memory.allocations}")
    del taken
    gc.collect()
    held = memory.held_bytes - before
    expect(held == 0, "nothing more held when the arrays are gone", f"{held:,} bytes")


@MEMORY.requires("apart", "buffers that were taken and not given back do not share memory")
async def _buffers_apart(bench: DeviceBench, device: Device) -> None:
    await _fill(bench, device, [_UNIT] * 3)
    lane, sources, arrays = device.lane("main"), [pattern(_UNIT, i) for i in range(6)], []
    for source in sources:
        _, array = await _take(bench, device, _UNIT)
        arrays.append(array)
        copy_in(device, lane, source, array)
    await bench.passes(lane.submit(nothing, None, nothing, True))
    for source, array in zip(sources, arrays, strict=True):
        same(device.download(array), source, "a buffer as it was written, after others were taken and written")


@MEMORY.requires("again", "a buffer that was given back is used again")
async def _again(bench: DeviceBench, device: Device) -> None:
    for _ in range(5):
        bucket, buffer = await _take(bench, device, _UNIT)
        bucket.give_back(buffer)
        del buffer
    count = device.memory.allocations
    expect(count == 1, "1 allocation for a buffer that is taken and given back 5 times", f"{count}")
    used = device.memory.used_bytes
    expect(used == 0, "no bytes used when all buffers are back", f"{used:,}")


@MEMORY.requires("views", "what is given back as a view, or as another type, is not handed out")
async def _views(bench: DeviceBench, device: Device) -> None:
    bucket, array = await _take(bench, device, _UNIT)
    if hasattr(array, "reshape"):
        view = array.reshape(_UNIT.shape)
        if view is not array:
            bucket.give_back(view)
            _, taken = await _take(bench, device, _UNIT)
            copied = copy_in(device, device.lane("main"), pattern(_UNIT, 1), taken)
            kept = device.upload(pattern(_UNIT))
            await bench.passes(copied)
            expect(taken is not view, "a buffer of its own", "the view of one that is still in use")
            same(device.download(kept), pattern(_UNIT), "an array that is in use as it was")
    expect(device.is_array(array), "an array of the device", repr(array))


@MEMORY.requires("in_use", "a buffer that launched work still uses is not overwritten by another lane's work")
async def _in_use(bench: DeviceBench, device: Device) -> None:
    first, second = device.lane("main"), device.lane("main-1")
    for i in range(3):
        one, two = pattern(LARGE, 2 * i + 1), pattern(LARGE, 2 * i + 2)
        targets = [np.zeros_like(one), np.zeros_like(two)]
        keep_busy(bench, device, first)
        fences = _use(bench, device, first, one, targets[0])
        if not bench.kind.is_stream:  # there, a buffer is given back when the work has ended
            await _all_pass(bench, fences)
        fences += _use(bench, device, second, two, targets[1])
        await _all_pass(bench, fences)
        same(targets[0], one, "what the first lane wrote to its buffer")
        same(targets[1], two, "what the second lane wrote to its buffer")


def _use(bench: DeviceBench, device: Device, lane: Any, source: Any, target: Any) -> list[Fence]:
    """Write a buffer of the pool, read it and give it back: all at once, on one lane."""

    def work(_: Any) -> None:
        bucket, buffer = take(bench, device, LARGE, lane)
        device.copy_in(source, buffer)
        device.copy_out(buffer, target)
        bucket.give_back(buffer)

    return [lane.submit(work, None, nothing, True)]


async def _all_pass(bench: DeviceBench, fences: list[Fence]) -> None:
    for fence in fences:
        await bench.passes(fence, "work on buffers of the pool")


@MEMORY.requires("trim", "trim() gives the free buffers up")
async def _trim(bench: DeviceBench, device: Device) -> None:
    await _fill(bench, device, [_UNIT, _UNIT, _PAIR])
    device.memory.trim()
    gc.collect()
    held = device.memory.held_bytes
    expect(held == 0, "nothing held", f"{held:,} bytes")


@MEMORY.requires("budget", "free buffers are given up rather than pass the budget, and what fits is given out")
async def _budget(bench: DeviceBench) -> None:
    async with bench.device(memory_budget=_BUDGET) as device:
        limit = device.memory.budget_bytes
        expect(limit == _BUDGET, f"the budget of the options, {_BUDGET:,} bytes", repr(limit))
        for specs in ([_UNIT] * 4, [_PAIR] * 2, [_UNIT, _PAIR], [_UNIT] * 4):
            await _fill(bench, device, specs)
            held = device.memory.held_bytes
            expect(held <= _BUDGET, f"at most {_BUDGET:,} bytes held", f"{held:,}")
        peak = device.memory.peak_bytes
        expect(peak <= _BUDGET, f"at most {_BUDGET:,} bytes held at any time", f"{peak:,}")


@MEMORY.requires("retire", "retire() lets go of a buffer once no work uses it any more")
async def _retire(bench: DeviceBench, device: Device) -> None:
    array = device.upload(pattern(SMALL))
    device.memory.adopt(array)
    lane = device.lane("main")
    keep_busy(bench, device, lane, 1)
    target = np.zeros(SMALL.shape, SMALL.dtype)
    fence = copy_out(device, lane, array, target)
    device.memory.retire(array)
    del array
    await bench.passes(fence)
    same(target, pattern(SMALL), "the contents of a retired buffer that work still read")
    device.memory.trim()
    gc.collect()
    held = device.memory.held_bytes
    expect(held == 0, "nothing held when that work has ended", f"{held:,} bytes")


async def _take(bench: DeviceBench, device: Device, spec: TensorSpec) -> tuple[Any, Any]:
    """A bucket and a buffer of it, taken as work of a lane, as the engine does."""
    lane, taken = device.lane("main"), []
    fence = lane.submit(lambda _: taken.append(take(bench, device, spec, lane)), None, nothing, True)
    await bench.passes(fence, f"taking a buffer of {spec}")
    result: tuple[Any, Any] = taken.pop()
    return result


async def _fill(bench: DeviceBench, device: Device, specs: list[TensorSpec]) -> None:
    """Take buffers, and give all of them back."""
    taken = [await _take(bench, device, spec) for spec in specs]
    while taken:
        bucket, buffer = taken.pop()
        bucket.give_back(buffer)
        del buffer
    await asyncio.sleep(0)
