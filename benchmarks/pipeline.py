"""What does a data pipeline cost per item, and how fast does it decode images and fetch, beside other loaders?"""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import actorflow as af
from benchmarks import loaders
from benchmarks.harness import Budget, Case, Harness, Relation, Table, per

__all__ = ["measure"]

_US, _MS = 1e-6, 1e-3
_STAGES = 3
_FETCH_S, _AT_ONCE = 0.01, 100

ACTORFLOW, ACTORFLOW_ASYNC = "actorflow", "actorflow, async def"
PLAIN, IDEAL = "plain awaits", "ideal"


async def measure(harness: Harness) -> list[Table]:
    """Three trivial stages, one and eight calls at once; decoding of JPEGs; fetches that wait."""
    tables = [await _overhead(harness, 1, 10.0), await _overhead(harness, 8, 20.0)]
    images = _images(harness)
    if images is not None:
        tables.append(await _decoding(harness, images))
    tables.append(await _fetching(harness))
    return tables


# -- three trivial stages ---------------------------------------------------------------------------------------


def add_one(x: int) -> int:
    return x + 1


async def add_one_async(x: int) -> int:
    return x + 1


loaders.SYNCHRONOUS[add_one_async] = add_one


async def _overhead(harness: Harness, concurrency: int, limit_us: float) -> Table:
    count = harness.pick(20_000, 100)
    few = harness.pick(2_000, 50)
    whole = range(count)
    cases: dict[str, Case] = {
        ACTORFLOW: per(count, _US, partial(_ours, whole, add_one, concurrency)),
        ACTORFLOW_ASYNC: per(count, _US, partial(_ours, whole, add_one_async, concurrency)),
        PLAIN: per(count, _US, partial(_plain, whole)),
        "asyncio.Queue chain": per(count, _US, partial(loaders.queues, whole, [add_one_async] * _STAGES, concurrency)),
    }
    for name, peer in loaders.peers(harness).items():
        cases[name] = per(few, _US, partial(peer, range(few), [add_one_async] * _STAGES, concurrency))
    return await harness.compare(
        f"{_STAGES} trivial stages, {concurrency} at once, in order",
        "us per item",
        cases,
        reference=ACTORFLOW,
        budgets=[
            Budget(f"at most {limit_us:g} us per item", ACTORFLOW, Relation.AT_MOST, limit_us),
            Budget(f"at most {limit_us:g} us per item, async", ACTORFLOW_ASYNC, Relation.AT_MOST, limit_us),
        ],
    )


async def _ours(items: Sequence[Any], fn: Callable[[Any], Any], concurrency: int, stages: int = _STAGES) -> None:
    loader = af.pipeline.source(items)
    for _ in range(stages):
        loader = loader.map(fn, concurrency=concurrency)
    async for _ in loader:
        pass
    await loader.aclose()


async def _plain(items: Sequence[int]) -> None:
    for item in items:
        for _ in range(_STAGES):
            item = await add_one_async(item)


# -- decoding ---------------------------------------------------------------------------------------------------


def decode(data: bytes) -> Any:
    """Pixels of a JPEG."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)))


def _images(harness: Harness) -> list[bytes] | None:
    """JPEGs: those of a folder or tar file if one was named, else made ones."""
    if harness.peer("PIL.Image") is None:
        return None
    count = harness.pick(10_000, 64)
    if harness.data is not None:
        found = _read_images(harness.data, count)
        if found:
            return found
        harness.leave_out(f"images of {harness.data}: there are no .jpg files")
    from PIL import Image

    rng = np.random.default_rng(0)
    images = []
    for _ in range(min(count, 500)):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        with io.BytesIO() as file:
            small.resize((32, 32)).save(file, "JPEG")
            images.append(file.getvalue())
    return [images[i % len(images)] for i in range(count)]


def _read_images(path: Path, count: int) -> list[bytes]:
    if path.is_file():
        with tarfile.open(path) as archive:
            files = (archive.extractfile(member) for member in archive if member.name.endswith((".jpg", ".jpeg")))
            return [file.read() for file, _ in zip(files, range(count), strict=False) if file is not None]
    return [file.read_bytes() for file, _ in zip(sorted(path.rglob("*.jp*g")), range(count), strict=False)]


async def _decoding(harness: Harness, images: list[bytes]) -> Table:
    thousands = len(images) / 1000
    scale = 1 / thousands
    cores = 2
    processes = af.pipeline.source(images).map(decode, executor="process", concurrency=cores)
    threads = af.pipeline.source(images).map(decode, concurrency=cores)
    worker_peers = loaders.decoders(harness, images, decode, cores)
    cases: dict[str, Case] = {
        f"{ACTORFLOW}, {cores} processes": _per_thousand(scale, partial(_consume, processes)),
        f"{ACTORFLOW}, threads or loop": _per_thousand(scale, partial(_consume, threads)),
        "plain loop": _per_thousand(scale, lambda: [decode(image) for image in images] and None),
        **{name: _per_thousand(scale, peer) for name, peer in worker_peers.items()},
    }
    best = f"{ACTORFLOW}, {cores} processes"
    budgets = [
        Budget(f"at least as fast as {name}", best, Relation.TIMES, 1.0, name) for name in [*worker_peers, "plain loop"]
    ]
    try:
        return await harness.compare(
            f"decoding of {len(images)} JPEGs", "ms per 1,000", cases, reference=best, budgets=budgets
        )
    finally:
        await processes.aclose()
        await threads.aclose()


def _per_thousand(scale: float, work: Callable[[], Any]) -> Case:
    return per(1, _MS / scale, work)


async def _consume(loader: Any) -> None:
    async for _ in loader:
        pass


# -- fetches that wait ------------------------------------------------------------------------------------------


async def fetch(x: int) -> int:
    await asyncio.sleep(_FETCH_S)
    return x


def fetch_blocking(x: int) -> int:
    time.sleep(_FETCH_S)
    return x


loaders.SYNCHRONOUS[fetch] = fetch_blocking


async def _fetching(harness: Harness) -> Table:
    count = harness.pick(10_000, 200)

    async def semaphore() -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(x: int) -> int:
            async with limit:
                return await fetch(x)

        await asyncio.gather(*[one(x) for x in range(count)])

    async def ideal() -> float:
        return count / _AT_ONCE * _FETCH_S / _MS

    peers: dict[str, Callable[[], Awaitable[None]]] = {
        ACTORFLOW: partial(_ours, range(count), fetch, _AT_ONCE, 1),
        "tasks and a semaphore": semaphore,
        "asyncio.Queue chain": partial(loaders.queues, range(count), [fetch], _AT_ONCE),
    }
    for name, peer in loaders.peers(harness).items():
        peers[name] = partial(peer, range(count), [fetch], _AT_ONCE)
    cases: dict[str, Case] = {IDEAL: ideal, **{name: per(1, _MS, work) for name, work in peers.items()}}
    return await harness.compare(
        f"{count} fetches of {_FETCH_S * 1e3:g} ms, {_AT_ONCE} at once",
        "ms",
        cases,
        reference=IDEAL,
        budgets=[Budget("at most 1.1 of the ideal", ACTORFLOW, Relation.TIMES, 1.1, IDEAL)],
    )
