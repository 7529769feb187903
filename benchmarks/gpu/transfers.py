"""Copies between host and device beside computing: do they overlap, and are there more of them than needed?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import actorflow as af
from benchmarks.gpu.bench import ACTORFLOW, Bench
from benchmarks.gpu.network import Network
from benchmarks.harness import Budget, Case, Relation, Row, Table
from benchmarks.overlapping import Frames, compare

__all__ = ["measure"]

_MS = 1e-3
#: Computing takes so much longer than what a frame's bytes take on the way in at this rate, of a slow bus.
_BYTES_PER_S = 10e9


async def measure(bench: Bench) -> list[Table]:
    """Three lanes at once; then the bytes that cross the bus in that and in a training."""
    harness = bench.harness
    values = np.random.default_rng(0).standard_normal(harness.pick(1 << 24, 1 << 10), dtype=np.float32)
    count, links = harness.pick(40, 4), 2 if harness.quick else await _links(bench, values)
    frames = Frames(bench.place, {}, values, [af.ops.Scale((0.5, 2.0)[i % 2]) for i in range(links)], count)
    peers = {} if bench.xp is np else {"bare CuPy, three streams": _three_streams(bench, values, links, count)}
    title = f"{count} frames of {values.nbytes:,} bytes in, {links} kernels, as many bytes out"
    return [await compare(harness, title, frames, peers), await _overlap_bytes(frames), await _training_bytes(bench)]


async def _links(bench: Bench, values: Any) -> int:
    """Number of kernels that take as long as the copy of their values over a slow bus."""
    x = bench.xp.asarray(values)
    out = bench.xp.empty_like(x)

    def kernels() -> None:
        for _ in range(100):
            bench.xp.multiply(x, np.float32(0.5), out=out)

    case = bench.case(100, 1.0, kernels)
    seconds = min([float(await case()) for _ in range(3)])
    return max(2, int(values.nbytes / _BYTES_PER_S / seconds))


def _three_streams(bench: Bench, values: Any, links: int, count: int) -> Case:
    """Pinned memory, three streams, an event per hand-over, three buffers in turn."""
    import cupyx

    cupy = bench.xp
    inbound, main, outbound = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
    source = cupyx.empty_like_pinned(values)
    source[...] = values
    slots = [
        (cupy.empty_like(cupy.asarray(values)), cupy.empty(values.shape, values.dtype), cupyx.empty_like_pinned(values))
        for _ in range(3)
    ]
    computed = [cupy.cuda.Event(disable_timing=True) for _ in slots]
    left = [cupy.cuda.Event(disable_timing=True) for _ in slots]

    def work() -> None:
        for frame in range(count):
            x, y, target = slots[frame % 3]
            if frame >= len(slots):
                inbound.wait_event(computed[frame % 3])
                main.wait_event(left[frame % 3])
            x.set(source, stream=inbound)
            main.wait_event(inbound.record())
            with main:
                for i in range(links):
                    cupy.multiply(x if i == 0 else y, np.float32((0.5, 2.0)[i % 2]), out=y)
                computed[frame % 3].record(main)
            outbound.wait_event(computed[frame % 3])
            y.get(stream=outbound, out=target, blocking=False)
            left[frame % 3].record(outbound)

    return bench.case(count, _MS, work)


async def _overlap_bytes(frames: Frames) -> Table:
    graph, x, host = frames.graph()
    try:
        await frames.run(graph, x, host, 1)
        counted = _count_bytes(graph, frames.place)
        await frames.run(graph, x, host, 1)
    finally:
        await graph.aclose()
    return _bytes_table("bytes copied per frame", 2 * frames.values.nbytes, counted() / frames.count)


async def _training_bytes(bench: Bench) -> Table:
    steps = 3
    network = Network.build(bench, af.Graph("training"), batch=bench.harness.pick(128, 4))
    try:
        # The first steps bring what stays on the device, such as the rate of the updates.
        await network.train(network.noise(1))
        counted = _count_bytes(network.graph, bench.place)
        feeds = network.noise(steps)
        await network.train(feeds)
        floor = sum(array.nbytes for feed in feeds for array in feed.values())
    finally:
        await network.graph.aclose()
    return _bytes_table("bytes copied per training step", floor / steps, counted() / steps)


def _bytes_table(title: str, floor: float, copied: float) -> Table:
    rows = {name: Row(name, [size]) for name, size in (("floor", float(floor)), (ACTORFLOW, float(copied)))}
    budget = Budget("bytes within 10% of the floor", ACTORFLOW, Relation.TIMES, 1.1, "floor")
    return Table(title, "bytes", rows, "floor", [budget])


def _count_bytes(graph: af.Graph, place: af.Place) -> Callable[[], int]:
    """Have a graph's device count what it copies from and to the host from now on."""
    device: Any = graph.engine.resources.device(place)
    total = 0

    def counting(copy: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def counted(source: Any, target: Any) -> None:
            nonlocal total
            total += source.nbytes
            copy(source, target)

        return counted

    device.copy_in, device.copy_out = counting(device.copy_in), counting(device.copy_out)
    return lambda: total
