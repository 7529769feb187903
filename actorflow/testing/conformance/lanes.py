"""Lanes: order, independence, waiting for each other on the device."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from actorflow.devices import Device, Fence, Lane
from actorflow.errors import DeviceError
from actorflow.place import Place
from actorflow.testing.conformance.bench import LARGE, SMALL, Bench, Ends, follow, nothing, pattern, turns
from actorflow.testing.conformance.report import Deviation, Topic, expect, same

#: What is checked before anything waits for work.
SUBMIT = Topic("lanes")
LANES = Topic("lanes")

#: How long a lane that must not go on may go on in spite of that, in seconds.
_GRACE_S = 0.02


def copy_in(device: Device, lane: Lane, source: Any, array: Any) -> Fence:
    """Enqueue a copy to the device."""
    return lane.submit(lambda _: device.copy_in(source, array), None, nothing, False)


def copy_out(device: Device, lane: Lane, array: Any, target: Any) -> Fence:
    """Enqueue a copy from the device."""
    return lane.submit(lambda _: device.copy_out(array, target), None, nothing, False)


def keep_busy(bench: Bench, device: Device, lane: Lane, count: int = 3) -> None:
    """Enqueue copies that matter to nobody, so that what comes behind them begins late."""
    array, source = device.allocate(LARGE), pattern(LARGE)
    bench.keep(array, source)
    for _ in range(count):
        copy_in(device, lane, source, array)


@SUBMIT.requires("at_once", "submit() does not wait for the work")
async def _at_once(bench: Bench) -> None:
    bench.threads_only()
    async with bench.device() as device:
        gate, lane, ends = bench.gate(), device.lane("main"), Ends(bench)
        fences = [lane.submit(gate, None, ends, True), lane.submit(nothing, None, ends, True)]
        expect(not any(fence.done for fence in fences), "submit() returns while the work waits", "it had ended by then")
        gate.open()
        await ends.until(*fences)


@LANES.requires("names", "lane(name) gives one lane per name; inbound and outbound, for copies, among them")
async def _names(bench: Bench) -> None:
    async with bench.device() as device:
        names = ("inbound", "outbound", "main", "main-1")
        lanes = [device.lane(name) for name in names]
        for name, lane in zip(names, lanes, strict=True):
            expect(lane.name == name, f"a lane named {name!r}", repr(lane.name))
            expect(device.lane(name) is lane, f"the same lane {name!r} again", "another one")
        expect(len({id(lane) for lane in lanes}) == len(names), "a lane of its own for every name", "a shared one")


@LANES.requires("order", "work on one lane is done in the order of submission, each piece once")
async def _order(bench: Bench) -> None:
    count = 50
    async with bench.device() as device:
        lane, array, ends = device.lane("main"), device.allocate(SMALL), Ends(bench)
        sources = [pattern(SMALL, i) for i in range(count)]
        targets = [np.zeros_like(source) for source in sources]
        called: list[int] = []

        def write(i: int) -> None:
            called.append(i)
            device.copy_in(sources[i], array)

        def read(i: int) -> None:
            called.append(i)
            device.copy_out(array, targets[i])

        fences = []
        for i in range(count):
            fences.append(lane.submit(write, i, ends, False))
            fences.append(lane.submit(read, i, ends, i % 7 == 0))
        await ends.until(*fences)
        expected = [i for i in range(count) for _ in range(2)]
        expect(
            called == expected, f"work called in the order {expected[:8]}...", f"{called[:8]}..., {len(called)} calls"
        )
        expect(ends.told == fences, "the loop is told in the order of submission", "in another order")
        for i in range(count):
            same(targets[i], sources[i], f"what was written in front of copy {i}")


@LANES.requires("independent", "work on one lane does not wait for work on another")
async def _independent(bench: Bench) -> None:
    bench.threads_only()
    async with bench.device() as device:
        gate = bench.gate()
        blocked = device.lane("main").submit(gate, None, nothing, True)
        for name in ("inbound", "outbound", "main-1"):
            await bench.passes(device.lane(name).submit(nothing, None, nothing, True), f"work on lane {name!r}")
        expect(not blocked.done, "work on lane 'main' still waits", "it has ended")
        gate.open()
        await bench.passes(blocked)


@LANES.requires(
    "wait_held", "wait() does not wait on the host; where it says True, the lane does, for as long as it takes"
)
async def _wait_held(bench: Bench) -> None:
    bench.threads_only()
    async with bench.device() as device:
        first, second = device.lane("inbound"), device.lane("main")
        for _ in range(3):
            gate, began = bench.gate(), asyncio.Event()
            tell = partial(asyncio.get_running_loop().call_soon_threadsafe, began.set)
            held = first.submit(gate, None, nothing, True)
            says = second.wait(held)
            expect(not held.done, "wait() returns at once", "it waited on the host for the work's end")
            expect(says is True or says is False, "wait() says True or False", repr(says))
            if says:
                behind = second.submit(partial(_call, tell), None, nothing, True)
                try:
                    async with asyncio.timeout(_GRACE_S):
                        await began.wait()
                except TimeoutError:
                    gate.open()
                else:
                    raise Deviation("work behind wait(fence) begins after the fence", "it began while that still ran")
                await bench.passes(behind, "work behind wait()")
            gate.open()
            await bench.passes(held)


@LANES.requires("wait", "where wait(fence) says True, later work of the lane runs behind the fence, on the device")
async def _wait(bench: Bench) -> None:
    async with bench.device() as device:
        first, second = device.lane("inbound"), device.lane("main")
        array = device.upload(pattern(LARGE))
        for i in range(3):  # written on one lane, then read on the other; then the other way round
            source, target = pattern(LARGE, i + 1), np.zeros(LARGE.shape, LARGE.dtype)
            keep_busy(bench, device, first)
            written = copy_in(device, first, source, array)
            await follow(bench, second, written)
            read = copy_out(device, second, array, target)
            await follow(bench, first, read)
            over = copy_in(device, first, pattern(LARGE, i), array)
            for fence in (written, read, over):
                await bench.passes(fence, "a copy behind wait()")
            same(target, source, "what was written behind the fence that the lane waited for")


@LANES.requires("wait_past", "wait() for work that has ended holds nothing up")
async def _wait_past(bench: Bench) -> None:
    async with bench.device() as device:
        past = device.lane("inbound").submit(nothing, None, nothing, True)
        await bench.passes(past)
        lane = device.lane("main")
        lane.wait(past)
        await bench.passes(lane.submit(nothing, None, nothing, True), "work behind wait() for a past fence")


@LANES.requires("wait_foreign", "wait() for another device's fence says False, or waits for it")
async def _wait_foreign(bench: Bench) -> None:
    host = Bench(Place(), None, bench.patience_s, None)
    async with bench.device() as device, host.device() as cpu:
        gate, lane = host.gate(), device.lane("main")
        foreign = cpu.lane("main").submit(gate, None, nothing, True)
        if lane.wait(foreign):
            behind = lane.submit(nothing, None, nothing, True)
            await turns()
            expect(not behind.done, "work behind wait(fence) does not end before the fence", "it has ended")
            gate.open()
            await bench.passes(behind, "work behind wait() for another device's fence")
        gate.open()
        await host.passes(foreign)


@LANES.requires("concurrent", "work on many lanes at once, ordered by wait() alone, gives what it gives one by one")
async def _concurrent(bench: Bench) -> None:
    rounds = 12
    async with bench.device() as device:
        lanes = [device.lane(name) for name in ("inbound", "main", "main-1", "outbound")]
        arrays = [device.upload(pattern(LARGE)) for _ in lanes]
        sources = [pattern(LARGE, i) for i in range(rounds)]
        targets = [np.zeros_like(source) for source in sources]
        last: list[Fence | None] = [None] * len(arrays)
        for i, lane in zip(range(rounds), itertools.cycle(lanes), strict=False):
            # Each array goes from lane to lane.
            at = (i * 3 + i // len(lanes)) % len(arrays)
            before = last[at]
            if before is not None:
                await follow(bench, lane, before)
            copy_in(device, lane, sources[i], arrays[at])
            reader = lanes[(i + 1) % len(lanes)]
            written = lane.submit(nothing, None, nothing, False)
            await follow(bench, reader, written)
            last[at] = copy_out(device, reader, arrays[at], targets[i])
        for fence in last:
            if fence is not None:
                await bench.passes(fence, "a copy between lanes")
        for lane in lanes:
            await bench.passes(lane.submit(nothing, None, nothing, True), f"work at the end of lane {lane.name!r}")
        for target, source in zip(targets, sources, strict=True):
            same(target, source, "what was written in the same round")


@LANES.requires("closed", "submit() on a closed lane raises DeviceError")
async def _closed(bench: Bench) -> None:
    async with bench.device() as device:
        lane = device.lane("main")
        await bench.passes(lane.submit(nothing, None, nothing, True))
        lane.close()
        lane.close()
        try:
            lane.submit(nothing, None, nothing, True)
        except DeviceError:
            return
        raise Deviation("DeviceError from submit() on a closed lane", "the work was taken")


def _call(function: Callable[[], object], _: Any) -> None:
    function()
