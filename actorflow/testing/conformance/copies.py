"""Copies between the host and the device, and between two devices of a kind, and arrays that need none."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.devices import Device
from actorflow.spec import TensorSpec
from actorflow.testing.conformance.arrays import SPECS
from actorflow.testing.conformance.bench import LARGE, SMALL, Bench, nothing, pattern
from actorflow.testing.conformance.lanes import copy_in, copy_out, keep_busy
from actorflow.testing.conformance.report import NotApplicable, Topic, expect, same

COPIES = Topic("copies")


@COPIES.requires("in", "copy_in() copies every element of a host array, strided ones too")
async def _in(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _out(bench: Bench) -> None:
    async with bench.device() as device:
        lane = device.lane("outbound")
        for spec in SPECS:
            array, frame = device.upload(pattern(spec, 1)), pattern(TensorSpec((3, *spec.shape), spec.dtype))
            expected = frame.copy()
            expected[1] = pattern(spec, 1)
            await bench.passes(copy_out(device, lane, array, frame[1, ...]), f"copy_out() of {spec}")
            same(frame, expected, f"the contents of {spec} in the middle of a host array, and the rest as it was")
            same(device.download(array), pattern(spec, 1), "the source as it was")


@COPIES.requires("apart", "arrays of the device do not share memory")
async def _apart(bench: Bench) -> None:
    async with bench.device() as device:
        lane = device.lane("inbound")
        sources = [pattern(spec, i) for i, spec in enumerate(SPECS)]
        arrays = [device.allocate(spec) for spec in SPECS]
        for fence in [copy_in(device, lane, source, array) for source, array in zip(sources, arrays, strict=True)]:
            await bench.passes(fence, "a copy to one of many arrays")
        for source, array in zip(sources, arrays, strict=True):
            same(device.download(array), source, "an array as it was written, after others were")


@COPIES.requires("both_ways", "copies in both directions at once, on their lanes, do not disturb each other")
async def _both_ways(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _adopt(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _staging(bench: Bench) -> None:
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
async def _peer(bench: Bench) -> None:
    if bench.kind.copy_peer is Device.copy_peer:
        raise NotApplicable("copy_peer() is not overridden")
    async with bench.device() as device, bench.device(bench.peer()) as other:
        await _copy_peers(bench, device, other)


async def _copy_peers(bench: Bench, device: Device, other: Device) -> None:
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
