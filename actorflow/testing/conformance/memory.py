"""The pool: buffers are used again, never while they are in use, and never beyond the budget."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np

from actorflow.devices import Device, Fence
from actorflow.spec import TensorSpec
from actorflow.testing.conformance.bench import LARGE, SMALL, Bench, nothing, pattern, take
from actorflow.testing.conformance.lanes import copy_in, copy_out, keep_busy
from actorflow.testing.conformance.report import Topic, expect, same

MEMORY = Topic("memory")

#: Four units, of one and of two.
_UNIT = TensorSpec.of((1 << 10,), "float32")
_PAIR = TensorSpec.of((2, 1 << 10), "float32")
_BUDGET = 4 * _UNIT.size_bytes


@MEMORY.requires("counts", "the pool counts a buffer from its allocation until nobody refers to it")
async def _counts(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _apart(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _again(bench: Bench) -> None:
    async with bench.device() as device:
        for _ in range(5):
            bucket, buffer = await _take(bench, device, _UNIT)
            bucket.give_back(buffer)
            del buffer
        count = device.memory.allocations
        expect(count == 1, "1 allocation for a buffer that is taken and given back 5 times", f"{count}")
        used = device.memory.used_bytes
        expect(used == 0, "no bytes used when all buffers are back", f"{used:,}")


@MEMORY.requires("views", "what is given back as a view, or as another type, is not handed out")
async def _views(bench: Bench) -> None:
    async with bench.device() as device:
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
async def _in_use(bench: Bench) -> None:
    async with bench.device() as device:
        first, second = device.lane("main"), device.lane("main-1")
        for i in range(3):
            one, two = pattern(LARGE, 2 * i + 1), pattern(LARGE, 2 * i + 2)
            targets = [np.zeros_like(one), np.zeros_like(two)]
            keep_busy(bench, device, first)
            fences = _use(device, first, one, targets[0])
            if not bench.kind.is_stream:  # there, a buffer is given back when the work has ended
                await _all_pass(bench, fences)
            fences += _use(device, second, two, targets[1])
            await _all_pass(bench, fences)
            same(targets[0], one, "what the first lane wrote to its buffer")
            same(targets[1], two, "what the second lane wrote to its buffer")


def _use(device: Device, lane: Any, source: Any, target: Any) -> list[Fence]:
    """Write a buffer of the pool, read it and give it back: all at once, on one lane."""

    def work(_: Any) -> None:
        bucket, buffer = take(device, LARGE, lane)
        device.copy_in(source, buffer)
        device.copy_out(buffer, target)
        bucket.give_back(buffer)

    return [lane.submit(work, None, nothing, True)]


async def _all_pass(bench: Bench, fences: list[Fence]) -> None:
    for fence in fences:
        await bench.passes(fence, "work on buffers of the pool")


@MEMORY.requires("trim", "trim() gives the free buffers up")
async def _trim(bench: Bench) -> None:
    async with bench.device() as device:
        await _fill(bench, device, [_UNIT, _UNIT, _PAIR])
        device.memory.trim()
        gc.collect()
        held = device.memory.held_bytes
        expect(held == 0, "nothing held", f"{held:,} bytes")


@MEMORY.requires("budget", "free buffers are given up rather than pass the budget, and what fits is given out")
async def _budget(bench: Bench) -> None:
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
async def _retire(bench: Bench) -> None:
    async with bench.device() as device:
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


async def _take(bench: Bench, device: Device, spec: TensorSpec) -> tuple[Any, Any]:
    """A bucket and a buffer of it, taken as work of a lane, as the engine does."""
    lane, taken = device.lane("main"), []
    fence = lane.submit(lambda _: taken.append(take(device, spec, lane)), None, nothing, True)
    await bench.passes(fence, f"taking a buffer of {spec}")
    result: tuple[Any, Any] = taken.pop()
    return result


async def _fill(bench: Bench, device: Device, specs: list[TensorSpec]) -> None:
    """Take buffers, and give all of them back."""
    taken = [await _take(bench, device, spec) for spec in specs]
    while taken:
        bucket, buffer = taken.pop()
        bucket.give_back(buffer)
        del buffer
    await asyncio.sleep(0)
