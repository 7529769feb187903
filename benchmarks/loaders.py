"""The peers of `benchmarks.pipeline`: the same stages in other libraries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from benchmarks.harness import Harness

__all__ = ["SYNCHRONOUS", "decoders", "peers", "queues"]

AsyncFunction = Callable[[Any], Awaitable[Any]]
Peer = Callable[[Sequence[Any], Sequence[AsyncFunction], int], Awaitable[None]]

#: What those call that know no async functions.
SYNCHRONOUS: dict[AsyncFunction, Callable[[Any], Any]] = {}
_END = object()


def peers(harness: Harness) -> dict[str, Peer]:
    """Those that are installed and have async stages."""
    found: dict[str, Peer] = {}
    if harness.peer("aiostream") is not None:
        found["aiostream"] = _aiostream
    if harness.peer("spdl.pipeline") is not None:
        found["SPDL"] = _spdl
    if harness.peer("torchdata.nodes") is not None:
        found["torchdata.nodes, threads"] = _torchdata
    return found


def decoders(
    harness: Harness, images: Sequence[bytes], decode: Callable[[bytes], Any], workers: int
) -> dict[str, Callable[[], Any]]:
    """Those that are installed, decoding images with ``workers`` workers each."""
    found: dict[str, Callable[[], Any]] = {}
    if harness.peer("spdl.pipeline") is not None:
        found[f"SPDL, {workers} threads"] = lambda: _spdl_threads(images, decode, workers)
    if harness.peer("torchdata.nodes") is not None:
        for method in ("thread", "process"):
            name = f"torchdata.nodes, {workers} {method}{'es' if method == 'process' else 's'}"
            found[name] = lambda method=method: _torchdata_decode(images, decode, workers, method)
    if harness.peer("torch.utils.data") is not None:
        found[f"torch DataLoader, {workers} processes"] = _data_loader(images, decode, workers)
    return found


async def queues(items: Sequence[Any], stages: Sequence[AsyncFunction], concurrency: int) -> None:
    """Tasks with queues between them; with several at once, futures in a queue keep the order."""
    if concurrency > 1:
        await _queues_at_once(items, stages, concurrency)
        return
    chain: list[asyncio.Queue[Any]] = [asyncio.Queue(2) for _ in range(len(stages) + 1)]

    async def give() -> None:
        for item in items:
            await chain[0].put(item)
        await chain[0].put(_END)

    async def stage(fn: AsyncFunction, source: asyncio.Queue[Any], target: asyncio.Queue[Any]) -> None:
        while (item := await source.get()) is not _END:
            await target.put(await fn(item))
        await target.put(_END)

    tasks = [asyncio.create_task(give())]
    tasks += [asyncio.create_task(stage(fn, chain[i], chain[i + 1])) for i, fn in enumerate(stages)]
    while await chain[-1].get() is not _END:
        pass
    await asyncio.gather(*tasks)


async def _queues_at_once(items: Sequence[Any], stages: Sequence[AsyncFunction], concurrency: int) -> None:
    chain: list[asyncio.Queue[Any]] = [asyncio.Queue(concurrency) for _ in range(len(stages) + 1)]

    async def give() -> None:
        loop = asyncio.get_running_loop()
        for item in items:
            future = loop.create_future()
            future.set_result(item)
            await chain[0].put(future)
        await chain[0].put(_END)

    async def stage(fn: AsyncFunction, source: asyncio.Queue[Any], target: asyncio.Queue[Any]) -> None:
        async def call(future: Any) -> Any:
            return await fn(await future)

        while (future := await source.get()) is not _END:
            await target.put(asyncio.ensure_future(call(future)))
        await target.put(_END)

    tasks = [asyncio.create_task(give())]
    tasks += [asyncio.create_task(stage(fn, chain[i], chain[i + 1])) for i, fn in enumerate(stages)]
    while (future := await chain[-1].get()) is not _END:
        await future
    await asyncio.gather(*tasks)


async def _aiostream(items: Sequence[Any], stages: Sequence[AsyncFunction], concurrency: int) -> None:
    from aiostream import pipe, stream

    chain = stream.iterate(items)
    for fn in stages:
        chain |= pipe.map(fn, ordered=True, task_limit=concurrency)
    async with chain.stream() as streamer:
        async for _ in streamer:
            pass


async def _spdl(items: Sequence[Any], stages: Sequence[AsyncFunction], concurrency: int) -> None:
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(items)
    for fn in stages:
        builder = builder.pipe(fn, concurrency=concurrency, output_order="input")
    # It has a loop in a thread of its own, and blocks the thread that takes items.
    await asyncio.to_thread(_drain_spdl, builder.add_sink(8).build(num_threads=1))


def _drain_spdl(pipeline: Any) -> None:
    with pipeline.auto_stop():
        for _ in pipeline:
            pass


def _spdl_threads(images: Sequence[bytes], decode: Callable[[bytes], Any], workers: int) -> None:
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(images).pipe(decode, concurrency=workers, output_order="input")
    _drain_spdl(builder.add_sink(8).build(num_threads=workers))


async def _torchdata(items: Sequence[Any], stages: Sequence[AsyncFunction], concurrency: int) -> None:
    from torchdata.nodes import IterableWrapper, ParallelMapper

    node: Any = IterableWrapper(items)
    for fn in stages:
        node = ParallelMapper(node, SYNCHRONOUS[fn], num_workers=concurrency, in_order=True, method="thread")
    await asyncio.to_thread(_drain_node, node)


def _drain_node(node: Any) -> None:
    node.reset()
    while True:
        try:
            node.next()
        except StopIteration:
            return


def _torchdata_decode(images: Sequence[bytes], decode: Callable[[bytes], Any], workers: int, method: str) -> None:
    from torchdata.nodes import IterableWrapper, ParallelMapper

    _drain_node(ParallelMapper(IterableWrapper(images), decode, num_workers=workers, in_order=True, method=method))


def _data_loader(images: Sequence[bytes], decode: Callable[[bytes], Any], workers: int) -> Callable[[], None]:
    from torch.utils.data import DataLoader

    # Batches of images make the way between processes cheap; as workers it keeps those of the first round.
    loader = DataLoader(
        _Images(images, decode), 32, num_workers=workers, persistent_workers=True, collate_fn=_as_they_are
    )

    def drain() -> None:
        for _ in loader:
            pass

    return drain


class _Images:
    """A map-style data set."""

    def __init__(self, images: Sequence[bytes], decode: Callable[[bytes], Any]) -> None:
        self._images = images
        self._decode = decode

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        return self._decode(self._images[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))


def _as_they_are(items: list[Any]) -> list[Any]:
    return items
