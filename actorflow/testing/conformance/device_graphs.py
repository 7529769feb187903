"""Requirements on a device at work in graphs; operations without kernels for it run on the CPU, with copies."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import OpError, OutOfMemoryError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.interchange import to_numpy
from actorflow.ops import Copy, Scale, Sum, add, scale
from actorflow.ops.transfer import Transfer
from actorflow.spec import TensorSpec
from actorflow.testing.conformance.device_bench import DeviceBench, Planted
from actorflow.testing.conformance.report import Deviation, NotApplicable, Topic, expect, same
from actorflow.testing.faults import inject

GRAPHS = Topic("graphs")

#: Small enough that sums of multiples of it are exact in float32.
_SPEC = TensorSpec.of((64, 64), "float32")
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
    """One run, fed with multiples of an array that `_x` gives."""
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
async def _budget(bench: DeviceBench) -> None:
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
