"""Requirements on a device's lanes and fences, and on what loops and closing leave behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from actorflow.devices import Device, Fence, Lane
from actorflow.errors import DeviceError
from actorflow.place import Place
from actorflow.testing.conformance.device_bench import (
    LARGE,
    SMALL,
    DeviceBench,
    Ends,
    Planted,
    follow,
    nothing,
    pattern,
    turns,
)
from actorflow.testing.conformance.report import Deviation, NotApplicable, Topic, expect, refusing, same

#: Requirements that are checked before anything waits for work.
SUBMIT = Topic("lanes")
LANES = Topic("lanes")

#: Seconds for which a lane that must not go on is watched.
_GRACE_S = 0.02


def copy_in(device: Device, lane: Lane, source: Any, array: Any) -> Fence:
    """Enqueue a copy to the device."""
    return lane.submit(lambda _: device.copy_in(source, array), None, nothing, False)


def copy_out(device: Device, lane: Lane, array: Any, target: Any) -> Fence:
    """Enqueue a copy from the device."""
    return lane.submit(lambda _: device.copy_out(array, target), None, nothing, False)


def keep_busy(bench: DeviceBench, device: Device, lane: Lane, count: int = 3) -> None:
    """Enqueue copies to no purpose, so that what comes behind them begins late."""
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
    """Run a coroutine on a loop of its own, in a thread, and close that loop."""

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
