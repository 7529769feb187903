"""Fences: that the loop is told of every end, once, in order, and never too early; and of every error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from actorflow.devices import Fence
from actorflow.errors import DeviceError
from actorflow.testing.conformance.bench import LARGE, SMALL, Bench, Ends, nothing, pattern, turns
from actorflow.testing.conformance.lanes import keep_busy
from actorflow.testing.conformance.report import NotApplicable, Topic, expect, same

FENCES = Topic("fences")
#: What is checked once the order of lanes is known to be right.
PROMPT = Topic("fences")
ERRORS = Topic("errors")


class _Planted(Exception):  # noqa: N818  raised on purpose
    pass


class _PlantedBase(BaseException):
    pass


@FENCES.requires(
    "not_early", "neither waiters nor passed() are called, nor is the fence done, before the work has ended"
)
async def _not_early(bench: Bench) -> None:
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


async def _turn(bench: Bench, until: Callable[[], bool]) -> None:
    """Let the loop turn until something is so, or for as long as patience lasts."""
    with suppress(TimeoutError):
        async with asyncio.timeout(bench.patience_s):
            while not until():  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)


async def _not_early_in_threads(bench: Bench) -> None:
    if bench.kind.is_stream:
        return
    async with bench.device() as device:
        lane, ends, gate = device.lane("main"), Ends(bench), bench.gate()
        waiters: list[int] = []
        fence = lane.submit(gate, None, ends, True)
        fence.add_waiter(lambda: waiters.append(1))
        await bench.in_thread(gate.began.wait, "work begins, and waiting for that")
        await turns()
        early = [
            name
            for name, is_early in (("done", fence.done), ("passed()", ends.told), ("a waiter", waiters))
            if is_early
        ]
        expect(not early, "nothing is told while the work still runs", f"{' and '.join(early)} came before the end")
        gate.open()
        await ends.until(fence)


@FENCES.requires("state", "a fence has its lane and argument, and once told begun, done, no error and its time")
async def _state(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _once(bench: Bench) -> None:
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
async def _waiters(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _waiters_first(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _not_lost(bench: Bench) -> None:
    async with bench.device() as device:
        ends = Ends(bench)
        for _ in range(5):
            fences = [device.lane(name).submit(nothing, None, ends, False) for name in ("main", "main-1", "main")]
            await ends.until(*fences)


@PROMPT.requires("urgent", "the loop is told of urgent work, or work with a waiter, though work behind it is not done")
async def _urgent(bench: Bench) -> None:
    bench.threads_only()
    async with bench.device() as device:
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
async def _work(bench: Bench) -> None:
    async with bench.device() as device:
        lane, ends = device.lane("main"), Ends(bench)
        for planted in (_Planted("planted"), _PlantedBase("planted")):

            def fail(_: Any, error: BaseException = planted) -> None:
                raise error

            done: list[int] = []
            fine = lane.submit(nothing, None, ends, False)
            failed = lane.submit(fail, None, ends, False)
            behind = lane.submit(done.append, 1, ends, False)
            await ends.until(fine, failed, behind)
            expect(failed.error is planted, f"the fence's error is {planted!r}", repr(failed.error))
            expect(failed.done, "the fence of failed work is done", "it is not")
            expect(done == [1] and behind.error is None, "work behind it is done", f"{done}, error {behind.error!r}")
            expect(fine.error is None, "work in front of it has no error", repr(fine.error))


@ERRORS.requires("told", "the loop is told of an error without delay, though it is not urgent")
async def _told(bench: Bench) -> None:
    bench.threads_only()
    async with bench.device() as device:
        lane, ends, first, gate = device.lane("main"), Ends(bench), bench.gate(), bench.gate()

        def fail(_: Any) -> None:
            raise _Planted

        lane.submit(first, None, ends, False)
        failed = lane.submit(fail, None, ends, False)
        behind = lane.submit(gate, None, ends, False)
        first.open()
        await ends.until(failed)
        expect(not behind.done, "work behind the failed one still runs", "it has ended")
        gate.open()
        await ends.until(behind)


@ERRORS.requires("waiters", "waiters of failed work are called")
async def _waiters_of_failed(bench: Bench) -> None:
    async with bench.device() as device:
        called = asyncio.Event()

        def fail(_: Any) -> None:
            raise _Planted

        fence = device.lane("main").submit(fail, None, nothing, False)
        fence.add_waiter(called.set)
        await bench.until(called, "a waiter on the fence of work that raised is called")
        expect(isinstance(fence.error, _Planted), "the fence's error is what was raised", repr(fence.error))


@ERRORS.requires("on_device", "work that fails on the device has a DeviceError as its fence's error, and does end")
async def _on_device(bench: Bench) -> None:
    if bench.fail is None:
        raise NotApplicable("no work is known that fails on the device (fail=)")
    fail = bench.fail
    async with bench.device() as device:
        lane, ends = device.lane("main"), Ends(bench)

        def work(_: Any) -> None:
            fail(device)

        fence = lane.submit(work, None, ends, True)
        await ends.until(fence)
        expect(isinstance(fence.error, DeviceError), "a DeviceError", repr(fence.error))
    async with bench.device() as device:
        same(device.download(device.upload(pattern(SMALL))), pattern(SMALL), "contents on the device opened anew")
