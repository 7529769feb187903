"""Loops come and go, and devices are closed: no work is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from actorflow.devices import Device, Fence, open_device
from actorflow.testing.conformance.bench import LARGE, SMALL, Bench, Ends, nothing, pattern, turns
from actorflow.testing.conformance.lanes import copy_in, copy_out, keep_busy
from actorflow.testing.conformance.report import Topic, expect, same

LOOPS = Topic("loops")
RELEASE = Topic("release")
CLOSE = Topic("close")


async def _on_other_loop(bench: Bench, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on a loop of its own, in a thread, and close that loop."""

    def run() -> None:
        with asyncio.Runner() as runner:
            runner.run(main())

    await bench.in_thread(run, "use by another event loop")


@LOOPS.requires("bind", "after bind() to another loop, with nothing pending, that loop is told")
async def _bind(bench: Bench) -> None:
    async with bench.device() as device:
        array, source = device.allocate(SMALL), pattern(SMALL, 3)

        async def use() -> None:
            device.bind(asyncio.get_running_loop())
            ends = Ends(bench)
            copied = device.lane("main").submit(lambda _: device.copy_in(source, array), None, ends, True)
            await ends.until(copied, device.lane("new").submit(nothing, None, ends, False))

        first = Ends(bench)
        await first.until(device.lane("main").submit(nothing, None, first, True))
        await _on_other_loop(bench, use)
        device.bind(asyncio.get_running_loop())
        same(device.download(array), source, "what was written under another loop")
        again = Ends(bench)
        await again.until(*[device.lane(name).submit(nothing, None, again, True) for name in ("main", "new")])


@LOOPS.requires("closed", "work whose loop was closed meanwhile is told to the loop that the device is bound to next")
async def _closed(bench: Bench) -> None:
    async with bench.device() as device:
        ends, gate = Ends(bench), bench.gate()
        source, array = pattern(LARGE, 3), device.allocate(LARGE)
        left: list[Fence] = []

        async def leave() -> None:
            device.bind(asyncio.get_running_loop())
            lane = device.lane("main")
            if not bench.kind.is_stream:
                lane.submit(gate, None, nothing, False)
            keep_busy(bench, device, lane)
            left.append(lane.submit(lambda _: device.copy_in(source, array), None, ends, True))

        await _on_other_loop(bench, leave)
        gate.open()
        device.bind(asyncio.get_running_loop())
        if not ends.told:  # by the loop that is closed, in its last turns
            await ends.until(left[0])
        expect(left[0].done, "work of a closed loop is done in the end", "it is not")
        same(device.download(array), source, "what that work wrote")


@RELEASE.requires("work", "when work has been told, the lane keeps neither it nor its argument nor its end alive")
async def _release_work(bench: Bench) -> None:
    class Thing:
        def work(self, _: Any) -> None:
            """Nothing."""

        def wait(self) -> None:
            """Nothing."""

    async with bench.device() as device:
        lane, ends = device.lane("main"), Ends(bench)

        async def use() -> list[weakref.ref[Any]]:
            argument, held = Thing(), Thing()
            fence = lane.submit(held.work, argument, ends, True)
            fence.add_waiter(held.wait)
            await ends.until(fence)
            await turns()
            ends.told.clear()
            return [weakref.ref(argument), weakref.ref(held)]

        things = await use()
        gc.collect()
        # A thread lets go of the last work when it looks for the next.
        await ends.until(lane.submit(nothing, None, ends, True))
        gc.collect()
        kept = [name for name, thing in zip(("argument", "what it refers to"), things, strict=True) if thing()]
        expect(not kept, "nothing of the work is kept alive", f"kept alive: {kept}")


@RELEASE.requires("array", "the memory of an array that nobody refers to is free, once work that uses it has ended")
async def _release_array(bench: Bench) -> None:
    async with bench.device() as device:
        lane = device.lane("main")
        for i in range(4):
            array, source, target = device.allocate(LARGE), pattern(LARGE, i), np.zeros(LARGE.shape, LARGE.dtype)
            reference = weakref.ref(array)
            written = copy_in(device, lane, source, array)
            read = copy_out(device, lane, array, target)
            await bench.passes(written, "copy_in()")
            await bench.passes(read, "copy_out()")
            same(target, source, "the contents")
            del array, written, read
            await bench.passes(lane.submit(nothing, None, nothing, True))
            gc.collect()
            expect(reference() is None, "an array that nobody refers to is gone", "the device keeps it alive")


@CLOSE.requires("finishes", "work that was submitted before close() is done, and the loop is told")
async def _finishes(bench: Bench) -> None:
    ends = Ends(bench)
    source, target = pattern(LARGE, 4), np.zeros(LARGE.shape, LARGE.dtype)
    device = _open(bench)
    lane, array = device.lane("main"), device.allocate(LARGE)
    keep_busy(bench, device, lane)
    fences = [
        lane.submit(lambda _: device.copy_in(source, array), 0, ends, False),
        lane.submit(lambda _: device.copy_out(array, target), 1, ends, False),
        *[lane.submit(nothing, i, ends, i == 29) for i in range(2, 30)],
    ]
    device.close()
    device.close()
    await bench.in_thread(device.join, "join() after close()")
    await ends.until(*fences)
    await turns()
    told = [fence.argument for fence in ends.told]
    expect(told == list(range(30)), "the loop is told of 30 pieces of work, in order", f"told of {told}")
    failed = [fence.error for fence in fences if fence.error is not None]
    expect(not failed, "no error", repr(failed[:1]))
    same(target, source, "what was copied after close()")


@CLOSE.requires("unused", "a device that was opened and never used can be closed")
async def _unused(bench: Bench) -> None:
    device = _open(bench)
    device.close()
    await bench.in_thread(device.join, "join() after close()")
    device = _open(bench)
    device.lane("main")
    device.close()
    await bench.in_thread(device.join, "join() after close()")


@CLOSE.requires("threads", "after close() and join() no thread of the device is left")
async def _threads(bench: Bench) -> None:
    await bench.in_thread(lambda: None, "nothing")
    before = set(threading.enumerate())
    device = _open(bench)
    for name in ("inbound", "main", "outbound"):
        keep_busy(bench, device, device.lane(name), 1)
        await bench.passes(device.lane(name).submit(nothing, None, nothing, True))
    device.close()
    await bench.in_thread(device.join, "join() after close()")
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    expect(not left, "no thread more than before", f"left: {left}")


@CLOSE.requires("apart", "closing one device leaves another on the same place alone")
async def _apart(bench: Bench) -> None:
    async with bench.device() as device:
        array = device.upload(pattern(SMALL))
        lane = device.lane("main")
        await bench.passes(lane.submit(nothing, None, nothing, True))
        async with bench.device() as other:
            await bench.passes(other.lane("main").submit(nothing, None, nothing, True))
        await bench.passes(lane.submit(nothing, None, nothing, True), "work on the device that is still open")
        same(device.download(array), pattern(SMALL), "the contents of its array")


@CLOSE.requires("forgotten", "a closed device that nobody refers to is gone")
async def _forgotten(bench: Bench) -> None:
    device = _open(bench)
    await bench.passes(device.lane("main").submit(nothing, None, nothing, True))
    device.close()
    await bench.in_thread(device.join, "join() after close()")
    await turns()
    reference = weakref.ref(device)
    del device
    gc.collect()
    expect(reference() is None, "no reference to it is left", "something keeps it alive")


def _open(bench: Bench) -> Device:
    device = open_device(bench.place, bench.options)
    device.bind(asyncio.get_running_loop())
    return device
