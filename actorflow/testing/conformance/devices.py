"""Requirements on a device's lanes, fences, arrays, copies and pool, on its end when it is closed, and in graphs.

In graphs, operations without kernels for the device run on the CPU, with copies.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.devices import BufferPool, Device, Fence, Lane
from actorflow.devices.stream import StreamDevice, StreamPool
from actorflow.errors import DeviceError, OpError, OutOfMemoryError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.interchange import to_numpy
from actorflow.ops import Copy, Scale, Sum, add, scale
from actorflow.ops.transfer import Transfer
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.testing.conformance.device_bench import (
    LARGE,
    SMALL,
    DeviceBench,
    Ends,
    Planted,
    follow,
    nothing,
    pattern,
    take,
    turns,
)
from actorflow.testing.conformance.report import Deviation, NotApplicable, Topic, expect, refusing, same
from actorflow.testing.faults import inject

#: Requirements that are checked before anything waits for work.
SUBMIT = Topic("lanes")
LANES = Topic("lanes")

_GRACE_S = 0.02  # seconds for which a lane that must not go on is watched


def copy_in(device: Device, lane: Lane, source: Any, array: Any) -> Fence:
    """Enqueue a copy to the device."""
    return lane.submit(lambda _: device.copy_in(source, array), None, nothing, False)


def copy_out(device: Device, lane: Lane, array: Any, target: Any) -> Fence:
    """Enqueue a copy from the device."""
    return lane.submit(lambda _: device.copy_out(array, target), None, nothing, False)


def keep_busy(bench: DeviceBench, device: Device, lane: Lane, count: int = 3) -> None:
    """Enqueue copies to no purpose, so that work behind them begins late."""
    array, source = device.allocate(LARGE), pattern(LARGE)
    bench.keep(array, source)
    for _ in range(count):
        copy_in(device, lane, source, array)


@SUBMIT.requires("at_once", "submit() does not wait for the work")
async def _at_once(bench: DeviceBench, device: Device) -> None:
    bench.threads_only()
    gate, lane, ends = bench.gate(), device.lane("main"), Ends(bench)
    fences = [lane.submit(gate, None, ends, True), lane.submit(nothing, None, ends, True)]
    expect(not any(fence.done for fence in fences), "submit() returns while the work waits", "it had ended by then")
    gate.open()
    await ends.until(*fences)


@LANES.requires("names", "lane(name) gives one lane per name; inbound and outbound, for copies, among them")
async def _names(device: Device) -> None:
    names = ("inbound", "outbound", "main", "main-1")
    lanes = [device.lane(name) for name in names]
    for name, lane in zip(names, lanes, strict=True):
        expect(lane.name == name, f"a lane named {name!r}", repr(lane.name))
        expect(device.lane(name) is lane, f"the same lane {name!r} again", "another one")
    expect(len({id(lane) for lane in lanes}) == len(names), "a lane of its own for every name", "a shared one")


@LANES.requires("order", "work on one lane is done in the order of submission, each piece once")
async def _order(bench: DeviceBench, device: Device) -> None:
    count = 50
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
    expect(called == expected, f"work called in the order {expected[:8]}...", f"{called[:8]}..., {len(called)} calls")
    expect(ends.told == fences, "the loop is told in the order of submission", "in another order")
    for i in range(count):
        same(targets[i], sources[i], f"what was written in front of copy {i}")


@LANES.requires("independent", "work on one lane does not wait for work on another")
async def _independent(bench: DeviceBench, device: Device) -> None:
    bench.threads_only()
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
async def _wait_held(bench: DeviceBench, device: Device) -> None:
    bench.threads_only()
    first, second = device.lane("inbound"), device.lane("main")
    loop = asyncio.get_running_loop()
    for _ in range(3):
        gate, began = bench.gate(), asyncio.Event()
        tell = partial(loop.call_soon_threadsafe, began.set)
        held = first.submit(gate, None, nothing, True)
        says = second.wait(held)
        expect(not held.done, "wait() returns at once", "it waited on the host for the work's end")
        expect(says is True or says is False, "wait() says True or False", repr(says))
        if says:
            behind = second.submit(lambda tell: tell(), tell, nothing, True)
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
async def _wait(bench: DeviceBench, device: Device) -> None:
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
async def _wait_past(bench: DeviceBench, device: Device) -> None:
    past = device.lane("inbound").submit(nothing, None, nothing, True)
    await bench.passes(past)
    lane = device.lane("main")
    lane.wait(past)
    await bench.passes(lane.submit(nothing, None, nothing, True), "work behind wait() for a past fence")


@LANES.requires("wait_foreign", "wait() for another device's fence says False, or waits for it")
async def _wait_foreign(bench: DeviceBench) -> None:
    host = DeviceBench(Place(), None, bench.patience_s, None)
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
async def _concurrent(bench: DeviceBench, device: Device) -> None:
    rounds = 12
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
async def _closed(bench: DeviceBench, device: Device) -> None:
    lane = device.lane("main")
    await bench.passes(lane.submit(nothing, None, nothing, True))
    lane.close()
    lane.close()
    with refusing(DeviceError, "from submit() on a closed lane", "the work was taken"):
        lane.submit(nothing, None, nothing, True)


FENCES = Topic("fences")
#: Requirements that are checked once the order of lanes is known to be right.
PROMPT = Topic("fences")
ERRORS = Topic("errors")


class _PlantedBase(BaseException):
    pass


def fail(error: BaseException) -> None:
    """Work that raises its argument."""
    raise error


@FENCES.requires(
    "not_early", "neither waiters nor passed() are called, nor is the fence done, before the work has ended"
)
async def _not_early(bench: DeviceBench) -> None:
    async with bench.device() as device:
        lane, ends, early = device.lane("main"), Ends(bench), set()
        source, target = pattern(LARGE, 1), np.zeros(LARGE.shape, LARGE.dtype)
        array = device.upload(source)

        def is_copied() -> bool:
            return bool(target[0] == source[0] and target[-1] == source[-1])

        def look(who: str) -> None:
            if not is_copied():
                early.add(who)

        def passed(fence: Fence) -> None:
            look("passed()")
            ends(fence)

        keep_busy(bench, device, lane)
        fence = lane.submit(lambda _: device.copy_out(array, target), None, passed, True)
        fence.add_waiter(lambda: look("a waiter"))
        await _turn(bench, lambda: fence.done or bool(ends.told))
        look("done")
        await ends.until(fence)
        await _turn(bench, is_copied)
        if is_copied():  # or the copy is wrong, which is another matter
            expect(not early, "all is copied when the fence is done and told", f"too early: {sorted(early)}")
    await _not_early_in_threads(bench)


async def _turn(bench: DeviceBench, until: Callable[[], bool]) -> None:
    """Let the loop turn until something is so, or for as long as patience lasts."""
    with suppress(TimeoutError):
        async with asyncio.timeout(bench.patience_s):
            while not until():  # noqa: ASYNC110  nothing tells
                await asyncio.sleep(0)


async def _not_early_in_threads(bench: DeviceBench) -> None:
    if bench.kind.is_stream:
        return
    async with bench.device() as device:
        lane, ends, gate = device.lane("main"), Ends(bench), bench.gate()
        waiters: list[int] = []
        fence = lane.submit(gate, None, ends, True)
        fence.add_waiter(lambda: waiters.append(1))
        await bench.in_thread(gate.began.wait, "work begins, and waiting for that")
        await turns()
        told = {"done": fence.done, "passed()": ends.told, "a waiter": waiters}
        early = [name for name, is_early in told.items() if is_early]
        expect(not early, "nothing is told while the work still runs", f"{' and '.join(early)} came before the end")
        gate.open()
        await ends.until(fence)


@FENCES.requires("state", "a fence has its lane and argument, and once told begun, done, no error and its time")
async def _state(bench: DeviceBench, device: Device) -> None:
    lane, ends, argument = device.lane("main"), Ends(bench), object()
    fence = lane.submit(nothing, argument, ends, True)
    expect(fence.lane is lane, "fence.lane is the lane", repr(fence.lane))
    expect(fence.argument is argument, "fence.argument is the work's", repr(fence.argument))
    await ends.until(fence)
    state = (fence.begun, fence.done, fence.error)
    expect(state == (True, True, None), "begun, done, and no error", repr(state))
    elapsed_ns = fence.elapsed_ns
    expect(type(elapsed_ns) is int and elapsed_ns >= 0, "elapsed_ns, an int of at least 0", repr(elapsed_ns))


@FENCES.requires("once", "passed() is called once for each piece of work, on the loop's thread")
async def _once(bench: DeviceBench) -> None:
    ends = Ends(bench)
    async with bench.device() as device:
        lane = device.lane("main")
        fences = [lane.submit(nothing, i, ends, i % 5 == 0) for i in range(100)]
        await ends.until(*fences)
        more = [lane.submit(nothing, i, ends, False) for i in range(100, 200)]
        await ends.until(*more)
        await turns()
    await turns()
    told = [fence.argument for fence in ends.told]
    often = sorted({number for number in told if told.count(number) > 1})
    expect(not often, "passed() is called once per piece of work", f"called more often for work {often[:5]}...")
    expect(not ends.strangers, "passed() is called on the loop's thread", f"called on {sorted(ends.strangers)}")


@FENCES.requires("waiters", "each waiter is called once, on the loop, soon after the end, whenever it was added")
async def _waiters(bench: DeviceBench, device: Device) -> None:
    lane, ends, thread = device.lane("main"), Ends(bench), threading.get_ident()
    calls: list[tuple[str, bool]] = []
    all_called = asyncio.Event()

    def waiter(name: str, of: int) -> Any:
        def call() -> None:
            calls.append((name, threading.get_ident() == thread))
            if len(calls) == of:
                all_called.set()

        return call

    keep_busy(bench, device, lane, 1)
    fence = lane.submit(nothing, None, ends, False)
    last = lane.submit(nothing, None, ends, False)
    for name in ("first", "second"):
        fence.add_waiter(waiter(name, 3))
    last.add_waiter(waiter("of the last work", 3))
    expect(not calls, "add_waiter() calls nothing by itself", f"it called {calls}")
    await bench.until(all_called, "three waiters that were added while work was under way are called")
    await ends.until(fence, last)
    all_called.clear()
    fence.add_waiter(waiter("added after the end", 4))
    expect(len(calls) == 3, "add_waiter() calls nothing by itself", "it called the waiter at once")
    await bench.until(all_called, "a waiter that is added after the fence was told is called")
    await turns()
    names = [name for name, _ in calls]
    expect(sorted(names) == sorted(set(names)), "each waiter is called once", f"called: {names}")
    expect(all(on_loop for _, on_loop in calls), "waiters are called on the loop's thread", "on another thread")


@FENCES.requires("waiters_first", "a fence's waiters are called before passed()")
async def _waiters_first(bench: DeviceBench, device: Device) -> None:
    lane, ends = device.lane("main"), Ends(bench)
    calls: list[str] = []

    def passed(fence: Fence) -> None:
        calls.append("passed")
        ends(fence)

    keep_busy(bench, device, lane, 1)
    fence = lane.submit(nothing, None, passed, False)
    fence.add_waiter(lambda: calls.append("waiter"))
    await ends.until(fence)
    await turns()
    expect(calls == ["waiter", "passed"], "the waiter, then passed()", repr(calls))


@FENCES.requires("not_lost", "the loop is told in the end of work that is not urgent and that nobody waits for")
async def _not_lost(bench: DeviceBench, device: Device) -> None:
    ends = Ends(bench)
    for _ in range(5):
        fences = [device.lane(name).submit(nothing, None, ends, False) for name in ("main", "main-1", "main")]
        await ends.until(*fences)


@PROMPT.requires("urgent", "the loop is told of urgent work, or work with a waiter, though work behind it is not done")
async def _urgent(bench: DeviceBench, device: Device) -> None:
    bench.threads_only()
    lane, ends = device.lane("main"), Ends(bench)
    for is_urgent in (True, False):
        first, gate = bench.gate(), bench.gate()
        lane.submit(first, None, ends, False)
        fence = lane.submit(nothing, None, ends, is_urgent)
        behind = lane.submit(gate, None, ends, False)
        first.open()
        await bench.in_thread(gate.began.wait, "work begins, and waiting for that")
        if not is_urgent:
            expect(fence.done, "done is True once later work of the lane has begun", "False")
            await bench.passes(fence, "work that has ended, with work behind it that has not,")
        await ends.until(fence)
        expect(not behind.done, "work behind it still runs", "it has ended")
        gate.open()
        await ends.until(behind)


@ERRORS.requires("work", "what work raises is its fence's error, and what comes behind is done all the same")
async def _work(bench: DeviceBench, device: Device) -> None:
    lane, ends = device.lane("main"), Ends(bench)
    for planted in (Planted("planted"), _PlantedBase("planted")):
        done: list[int] = []
        fine = lane.submit(nothing, None, ends, False)
        failed = lane.submit(fail, planted, ends, False)
        behind = lane.submit(done.append, 1, ends, False)
        await ends.until(fine, failed, behind)
        expect(failed.error is planted, f"the fence's error is {planted!r}", repr(failed.error))
        expect(failed.done, "the fence of failed work is done", "it is not")
        expect(done == [1] and behind.error is None, "work behind it is done", f"{done}, error {behind.error!r}")
        expect(fine.error is None, "work in front of it has no error", repr(fine.error))


@ERRORS.requires("told", "the loop is told of an error without delay, though it is not urgent")
async def _told(bench: DeviceBench, device: Device) -> None:
    bench.threads_only()
    lane, ends, first, gate = device.lane("main"), Ends(bench), bench.gate(), bench.gate()
    lane.submit(first, None, ends, False)
    failed = lane.submit(fail, Planted(), ends, False)
    behind = lane.submit(gate, None, ends, False)
    first.open()
    await ends.until(failed)
    expect(not behind.done, "work behind the failed one still runs", "it has ended")
    gate.open()
    await ends.until(behind)


@ERRORS.requires("waiters", "waiters of failed work are called")
async def _waiters_of_failed(bench: DeviceBench, device: Device) -> None:
    called = asyncio.Event()
    fence = device.lane("main").submit(fail, Planted(), nothing, False)
    fence.add_waiter(called.set)
    await bench.until(called, "a waiter on the fence of work that raised is called")
    expect(isinstance(fence.error, Planted), "the fence's error is what was raised", repr(fence.error))


@ERRORS.requires("on_device", "work that fails on the device has a DeviceError as its fence's error, and does end")
async def _on_device(bench: DeviceBench) -> None:
    if bench.fail is None:
        raise NotApplicable("no work is known that fails on the device (fail=)")
    async with bench.device() as device:
        ends = Ends(bench)
        fence = device.lane("main").submit(bench.fail, device, ends, True)
        await ends.until(fence)
        expect(isinstance(fence.error, DeviceError), "a DeviceError", repr(fence.error))
    async with bench.device() as device:
        same(device.download(device.upload(pattern(SMALL))), pattern(SMALL), "contents on the device opened anew")


LOOPS = Topic("loops")
RELEASE = Topic("release")
CLOSE = Topic("close")


async def _on_other_loop(bench: DeviceBench, main: Callable[[], Coroutine[Any, Any, None]]) -> None:

    def run() -> None:
        with asyncio.Runner() as runner:
            runner.run(main())

    await bench.in_thread(run, "use by another event loop")


@LOOPS.requires("bind", "after bind() to another loop, with nothing pending, that loop is told")
async def _bind(bench: DeviceBench, device: Device) -> None:
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
async def _loop_closed(bench: DeviceBench, device: Device) -> None:
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
async def _release_work(bench: DeviceBench, device: Device) -> None:
    class Thing:
        def work(self, *_: Any) -> None:
            """Nothing."""

    lane, ends = device.lane("main"), Ends(bench)

    async def use() -> list[weakref.ref[Any]]:
        argument, held = Thing(), Thing()
        fence = lane.submit(held.work, argument, ends, True)
        fence.add_waiter(held.work)
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
async def _release_array(bench: DeviceBench, device: Device) -> None:
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
async def _finishes(bench: DeviceBench) -> None:
    ends = Ends(bench)
    source, target = pattern(LARGE, 4), np.zeros(LARGE.shape, LARGE.dtype)
    device = bench.open()
    lane, array = device.lane("main"), device.allocate(LARGE)
    keep_busy(bench, device, lane)
    fences = [
        lane.submit(lambda _: device.copy_in(source, array), 0, ends, False),
        lane.submit(lambda _: device.copy_out(array, target), 1, ends, False),
        *[lane.submit(nothing, i, ends, i == 29) for i in range(2, 30)],
    ]
    device.close()
    await bench.close(device)
    await ends.until(*fences)
    await turns()
    told = [fence.argument for fence in ends.told]
    expect(told == list(range(30)), "the loop is told of 30 pieces of work, in order", f"told of {told}")
    failed = [fence.error for fence in fences if fence.error is not None]
    expect(not failed, "no error", repr(failed[:1]))
    same(target, source, "what was copied after close()")


@CLOSE.requires("unused", "a device that was opened and never used can be closed")
async def _unused(bench: DeviceBench) -> None:
    device = bench.open()
    await bench.close(device)
    device = bench.open()
    device.lane("main")
    await bench.close(device)


@CLOSE.requires("threads", "after close() and join() no thread of the device is left")
async def _threads(bench: DeviceBench) -> None:
    await bench.in_thread(lambda: None, "nothing")
    before = set(threading.enumerate())
    device = bench.open()
    for name in ("inbound", "main", "outbound"):
        keep_busy(bench, device, device.lane(name), 1)
        await bench.passes(device.lane(name).submit(nothing, None, nothing, True))
    await bench.close(device)
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    expect(not left, "no thread more than before", f"left: {left}")


@CLOSE.requires("apart", "closing one device leaves another on the same place alone")
async def _devices_apart(bench: DeviceBench, device: Device) -> None:
    array = device.upload(pattern(SMALL))
    lane = device.lane("main")
    await bench.passes(lane.submit(nothing, None, nothing, True))
    async with bench.device() as other:
        await bench.passes(other.lane("main").submit(nothing, None, nothing, True))
    await bench.passes(lane.submit(nothing, None, nothing, True), "work on the device that is still open")
    same(device.download(array), pattern(SMALL), "the contents of its array")


@CLOSE.requires("forgotten", "a closed device that nobody refers to is gone")
async def _forgotten(bench: DeviceBench) -> None:
    device = bench.open()
    await bench.passes(device.lane("main").submit(nothing, None, nothing, True))
    await bench.close(device)
    await turns()
    reference = weakref.ref(device)
    del device
    gc.collect()
    expect(reference() is None, "no reference to it is left", "something keeps it alive")


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

_TOO_LARGE = TensorSpec.of((1 << 60,), "uint8")  # no machine has so much


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

_UNIT = TensorSpec.of((1 << 10,), "float32")  # four units, of one and of two
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
    lane, taken = device.lane("main"), []
    fence = lane.submit(lambda _: taken.append(take(bench, device, spec, lane)), None, nothing, True)
    await bench.passes(fence, f"taking a buffer of {spec}")
    result: tuple[Any, Any] = taken.pop()
    return result


async def _fill(bench: DeviceBench, device: Device, specs: list[TensorSpec]) -> None:
    taken = [await _take(bench, device, spec) for spec in specs]
    while taken:
        bucket, buffer = taken.pop()
        bucket.give_back(buffer)
        del buffer
    await asyncio.sleep(0)


GRAPHS = Topic("graphs")

_SPEC = TensorSpec.of((64, 64), "float32")  # small enough that sums of multiples of it are exact in float32
_COUNT = 6


@asynccontextmanager
async def _graph(bench: DeviceBench, **modes: Any) -> AsyncIterator[tuple[Graph, Blob]]:
    """An empty graph on the device, with a source ``x``; closed at the end."""
    options = {bench.place: bench.options} if bench.options is not None else {}
    graph = Graph("conformance", **{"devices": options, **modes})
    try:
        with graph.at(bench.place):
            yield graph, graph.blob("x", _SPEC.shape, _SPEC.dtype)
    except BaseException:
        with suppress(Deviation):
            await _within(bench, graph.aclose(), "aclose()")
        raise
    await _within(bench, graph.aclose(), "aclose()")


async def _within(bench: DeviceBench, what: Any, name: str) -> Any:
    try:
        async with asyncio.timeout(bench.patience_s):
            return await what
    except TimeoutError:
        raise Deviation(f"{name} ends", f"it still waits after {bench.patience_s:g} s") from None


async def _run(bench: DeviceBench, graph: Graph, number: int, **options: Any) -> Any:
    return await _within(bench, graph.run({"x": _x(number)}, **options), "graph.run()")


async def _runs(bench: DeviceBench, graph: Graph, numbers: range, **options: Any) -> list[Any]:
    runs = [_run(bench, graph, number, **options) for number in numbers]
    results: list[Any] = await asyncio.gather(*runs, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _x(number: int) -> npt.NDArray[Any]:
    return ((np.arange(_SPEC.size) % 97 + 1) * (number + 1)).astype(_SPEC.dtype).reshape(_SPEC.shape)


def _chain(x: Blob, length: int = 8) -> Blob:
    for i in range(length):
        x = scale(x, 2.0 if i % 2 else 0.5)
    return x


@GRAPHS.requires("chain", "a chain of operations gives what it gives on the CPU, and its result lives on the device")
async def _chains(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        y = _chain(x)
        for number in range(3):
            result = (await _run(bench, graph, number))[y]
            same(to_numpy(result), _x(number), "the chain's result")
            device = graph.engine.resources.device(bench.place)
            expect(device.is_array(result), f"a result that is an array of {bench.place}", repr(type(result)))


@GRAPHS.requires("lanes", "branches on several lanes that meet again give what they give on the CPU, frame by frame")
async def _fan_out(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        start = scale(x, 2.0)
        branches = []
        for i in range(5):
            with graph.at(lane=f"branch-{i}"):
                branches.append(scale(scale(start, float(i + 1)), 2.0))
        total = add(start, *branches)
        for results in [await _runs(bench, graph, range(4)) for _ in range(3)]:
            for number, result in enumerate(results):
                same(to_numpy(result[total]), _x(number) * 62, "the sum of the branches")


@GRAPHS.requires("frames", "frames that overlap do not disturb each other")
async def _frames(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        y = add(_chain(x), scale(x, 2.0))
        for _ in range(3):
            results = await _runs(bench, graph, range(_COUNT))
            for number, result in enumerate(results):
                same(to_numpy(result[y]), _x(number) * 3, f"the result of frame {number}")


@GRAPHS.requires("kept", "what was fetched is never overwritten, and can be fed again where it lives")
async def _kept(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        y = _chain(x)
        first = (await _run(bench, graph, 0))[y]
        fed = (await _within(bench, graph.run({x: first}), "graph.run()"))[y]
        await _runs(bench, graph, range(1, 2 * _COUNT))
        same(to_numpy(first), _x(0), "a fetched array after later frames")
        same(to_numpy(fed), _x(0), "the result of a frame that was fed a fetched array")


@GRAPHS.requires("variables", "frames update a variable in turn; its value can be read and assigned from the host")
async def _variables(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        total = graph.variable("total", _SPEC.shape)
        [total, scale(x, 1.0)] >> graph.op("update", Sum()) >> [total]
        read = scale(total, 1.0)
        train = graph["update"]
        for start in (0, 3):
            total.value = np.full(_SPEC.shape, start, _SPEC.dtype)
            results = await _runs(bench, graph, range(_COUNT), fetch=[train, read])
            expected = np.full(_SPEC.shape, start, _SPEC.dtype)
            for number, result in enumerate(results):
                same(to_numpy(result[read]), expected, f"the variable as frame {number} reads it")
                expected += _x(number)
            same(total.value, expected, "the variable's value after all frames")


@GRAPHS.requires(
    "copies", "an operation on the CPU in the middle gets what the device computed, and the device its result"
)
async def _copies(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        y = scale(x, 2.0)
        y = graph.op("on the host", Scale(4.0), force_cpu=True)(y)
        y = scale(y, 0.5)
        results = await _runs(bench, graph, range(_COUNT))
        for number, result in enumerate(results):
            same(to_numpy(result[y]), _x(number) * 4, f"the result of frame {number}")
        plan = graph.compile()
        if not bench.kind.is_host and any(op.place == bench.place for op in plan.ops if op.kernel is not None):
            moves = [str(op.operation) for op in plan.ops if isinstance(op.operation, Transfer)]
            expect(len(moves) == 3, "3 copies: to the device, from it, to it again", f"{moves}")


@GRAPHS.requires("peers", "two devices of the kind in one graph pass results on, directly or by way of the host")
async def _peers(bench: DeviceBench) -> None:
    other = bench.peer()
    async with _graph(bench) as (graph, x):
        there = graph.op("there", Scale(4.0), place=other)(scale(x, 2.0))
        with graph.at(bench.place):
            y = scale(there, 0.5)
        for number, result in enumerate(await _runs(bench, graph, range(_COUNT))):
            same(to_numpy(result[y]), _x(number) * 4, f"the result of frame {number}")


@GRAPHS.requires("failure", "an operation that fails fails its frame alone: the graph stays usable")
async def _failure(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        y = scale(graph.op("fragile", Scale(2.0))(scale(x, 2.0)), 0.25)
        await _run(bench, graph, 0)
        with inject(graph, "fragile", error=Planted("planted"), times=1):
            try:
                await _run(bench, graph, 1)
            except OpError as error:
                right = isinstance(error.__cause__, Planted) and error.op.name == "fragile"
                expect(right, "OpError of op 'fragile', caused by the planted error", f"{error}")
            else:
                raise Deviation("OpError of op 'fragile'", "the run ended well")
        for number, result in enumerate(await _runs(bench, graph, range(_COUNT))):
            same(to_numpy(result[y]), _x(number), "a result after the failure")


@GRAPHS.requires("cancel", "a frame that is cancelled in the middle ends at once, and the graph stays usable")
async def _cancel(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold(value: Any) -> Any:
            reached.set()
            await go_on.wait()
            return value

        middle = graph.function("hold", hold, _SPEC)(_chain(x))
        y = _chain(middle)
        run = asyncio.ensure_future(graph.run({x: _x(0)}))
        await bench.until(reached, "the graph gets to its middle")
        run.cancel()
        await _within(bench, asyncio.wait([run]), "a cancelled run")
        expect(run.cancelled(), "CancelledError from the cancelled run", repr(run))
        go_on.set()
        for number, result in enumerate(await _runs(bench, graph, range(_COUNT))):
            same(to_numpy(result[y]), _x(number), "a result after the cancellation")


@GRAPHS.requires("budget", "under a memory budget frames wait for memory, the budget holds, and results are the same")
async def _graph_budget(bench: DeviceBench) -> None:
    budget = 5 * _SPEC.size_bytes
    async with _graph(bench, devices={bench.place: bench.changed(memory_budget=budget)}) as (graph, x):
        y = graph.op("end", Scale(2.0))(_chain(x))
        for _ in range(3):
            results = await _runs(bench, graph, range(_COUNT), fetch=["end"])
            expect(all(len(result) == 0 for result in results), "nothing fetched", repr(results))
        memory = graph.engine.resources.device(bench.place).memory
        expect(memory.peak_bytes <= budget, f"at most {budget:,} bytes held", f"{memory.peak_bytes:,}")
        same(to_numpy((await _run(bench, graph, 3))[y]), _x(3) * 2, "a result under a budget")
    async with _graph(bench, devices={bench.place: bench.changed(memory_budget=_SPEC.size_bytes // 2)}) as (graph, x):
        scale(x, 2.0)
        try:
            graph.compile()
        except OutOfMemoryError:
            return
        if any(op.place == bench.place for op in graph.root.ops):
            raise Deviation("OutOfMemoryError from compile() for a budget that can never do", "a plan")


@GRAPHS.requires("pool", "a graph that has run a few times allocates nothing more")
async def _pool(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        graph.op("end", Copy())(_chain(x))
        for _ in range(5):
            await _run(bench, graph, 0, fetch=["end"])
        memory = graph.engine.resources.device(bench.place).memory
        before = memory.allocations
        for number in range(10):
            await _run(bench, graph, number, fetch=["end"])
        count = memory.allocations - before
        expect(count == 0, "no allocation in 10 more runs", f"{count}")


@GRAPHS.requires("close", "aclose() leaves no thread behind, and the graph can run again")
async def _close(bench: DeviceBench) -> None:
    gc.collect()
    async with _graph(bench) as (graph, x):
        before = set(threading.enumerate())
        y = _chain(x)
        for number in range(2):
            same(to_numpy((await _run(bench, graph, number))[y]), _x(number), "the result")
            await _within(bench, graph.aclose(), "aclose()")
            left = [thread.name for thread in threading.enumerate() if thread not in before]
            expect(not left, "no thread more than before", f"left: {left}")


@GRAPHS.requires("kernels", "the device computes: it has a kernel for at least one operation")
async def _kernels(bench: DeviceBench) -> None:
    async with _graph(bench) as (graph, x):
        scale(x, 2.0)
        on = [op.place for op in graph.compile().ops if op.kernel is not None]
        if bench.place not in on:
            raise NotApplicable(
                f"no kernel of Scale for kind {bench.place.kind!r}: the graphs above were computed on the CPU"
            )
