"""A device's class, its arrays, and copies that the host waits for."""

from __future__ import annotations

import weakref

import numpy as np

from actorflow.devices import Pool
from actorflow.devices.stream import StreamDevice
from actorflow.devices.stream_memory import StreamPool
from actorflow.errors import OutOfMemoryError
from actorflow.interchange import to_numpy
from actorflow.spec import TensorSpec
from actorflow.testing.conformance.bench import LARGE, SMALL, Bench, pattern
from actorflow.testing.conformance.report import Topic, expect, same

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
async def _device(bench: Bench) -> None:
    async with bench.device() as device:
        kind = type(device)
        expect(device.place == bench.place, f"place {str(bench.place)!r}", repr(device.place))
        expect(
            isinstance(device.options, kind.options_type), f"options of type {kind.options_type}", repr(device.options)
        )
        expect(isinstance(device.memory, Pool), "memory that is a Pool", repr(device.memory))
        expect(
            isinstance(device, StreamDevice) == kind.is_stream == isinstance(device.memory, StreamPool),
            "is_stream is True for a StreamDevice, whose memory is a StreamPool, and False otherwise",
            f"is_stream={kind.is_stream}, bases {[base.__name__ for base in kind.__mro__]}, memory {device.memory!r}",
        )


@ARRAYS.requires("allocate", "allocate() gives an array with the shape, dtype and nbytes asked for, with base None")
async def _allocate(bench: Bench) -> None:
    async with bench.device() as device:
        for spec in SPECS:
            array = device.allocate(spec)
            got = (tuple(array.shape), np.dtype(array.dtype), int(array.nbytes))
            expect(got == (spec.shape, spec.dtype, spec.size_bytes), f"{spec}, {spec.size_bytes} bytes", str(got))
            expect(array.base is None, f"base is None for {spec}, which owns its memory", repr(array.base))
            expect(weakref.ref(array)() is array, "arrays can be referred to weakly", "they cannot")


@ARRAYS.requires("is_array", "is_array() knows the device's own arrays from everything else")
async def _is_array(bench: Bench) -> None:
    async with bench.device() as device:
        array = device.allocate(SMALL)
        expect(device.is_array(array) is True, "True for an array of the device", repr(device.is_array(array)))
        foreign = [None, 1.0, [1.0], "x", *([] if device.is_host else [pattern(SMALL)])]
        for value in foreign:
            expect(device.is_array(value) is False, f"False for {value!r}", repr(device.is_array(value)))


@ARRAYS.requires("upload", "upload() and download() copy every element, and return when the copy is complete")
async def _upload(bench: Bench) -> None:
    async with bench.device() as device:
        for spec in SPECS:
            source = pattern(spec)
            array = device.upload(source)
            expect(device.is_array(array), f"upload() gives an array of the device for {spec}", repr(type(array)))
            source[...] = pattern(spec, 1)
            same(device.download(array), pattern(spec), "the contents as they were at upload()")
        strided = pattern(TensorSpec.of((6, 8)))[::2, ::-1]
        same(device.download(device.upload(strided)), np.ascontiguousarray(strided), "a strided array's contents")


@ARRAYS.requires("download", "download() gives a host array of its own")
async def _download(bench: Bench) -> None:
    async with bench.device() as device:
        array = device.upload(pattern(SMALL))
        first = device.download(array)
        expect(type(first) is np.ndarray, "a NumPy array", repr(type(first)))
        first[...] = 0
        same(device.download(array), pattern(SMALL), "the contents, whatever was done with an earlier copy")


@ARRAYS.requires("to_numpy", "af.to_numpy() copies an array to the host: by get(), __array__ or DLPack")
async def _to_numpy(bench: Bench) -> None:
    async with bench.device() as device:
        for spec in SPECS:
            same(to_numpy(device.upload(pattern(spec))), pattern(spec), f"the contents of {spec}")


@ARRAYS.requires("no_room", "allocate() raises OutOfMemoryError where there is no room, and the device goes on")
async def _no_room(bench: Bench) -> None:
    async with bench.device() as device:
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
