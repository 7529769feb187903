"""Collectives."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import TransportError
from actorflow.testing.conformance.report import Deviation, Topic, expect, same
from actorflow.testing.transport.peers import Peers

GROUPS = Topic("groups")

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_COMBINE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _part(rank: int, size: int, dtype: Any, seed: int = 0) -> npt.NDArray[Any]:
    """What a rank brings: small whole numbers, whose sums are exact in every dtype."""
    return np.random.default_rng([rank, seed]).integers(0, 9, size).astype(dtype)


def _dtypes() -> list[np.dtype[Any]]:
    names = [np.dtype(name) for name in (*_INTEGERS, *_FLOATS)]
    try:
        import ml_dtypes
    except ImportError:
        return names
    return [*names, np.dtype(ml_dtypes.bfloat16)]


@GROUPS.requires("dtypes", "sums, maxima and minima of all dtypes")
async def _dtypes_of_all(peers: Peers) -> None:
    ranks = range(peers.transport.size)
    for dtype in _dtypes():
        for operation, combine in _COMBINE.items():
            parts = [_part(rank, 100, dtype) for rank in ranks]
            expected = parts[0]
            for part in parts[1:]:
                expected = combine(expected, part)
            target = np.zeros(100, dtype)
            await peers.reduce(ranks, operation, parts[peers.transport.rank], target)
            same(target, expected, f"the {operation} of {dtype}")


@GROUPS.requires("shapes", "no axes, no elements, several axes, and more than a message carries")
async def _shapes(peers: Peers) -> None:
    ranks = range(peers.transport.size)
    for shape in ((), (0,), (3, 0, 2), (2, 3, 5), (peers.chunk_bytes * 5 // 16,)):
        source = np.full(shape, peers.transport.rank + 1.0)
        target = np.zeros(shape)
        await peers.reduce(ranks, "sum", source, target)
        same(target, np.full(shape, sum(rank + 1.0 for rank in ranks)), f"the sum of shape {list(shape)}")


@GROUPS.requires("in_place", "the target may be the source")
async def _in_place(peers: Peers) -> None:
    ranks = range(peers.transport.size)
    for dtype in _dtypes():
        array = _part(peers.transport.rank, 1_000, dtype)
        await peers.reduce(ranks, "max", array, array)
        same(array, np.maximum.reduce([_part(rank, 1_000, dtype) for rank in ranks]), f"the maximum of {dtype}")


@GROUPS.requires("overlap", "calls overlap, and may end in any order")
async def _overlap(peers: Peers) -> None:
    ranks = range(peers.transport.size)
    sizes = [1, 200_000, 10, 50_000, 3] * 3
    targets = [np.zeros(size, np.float32) for size in sizes]
    calls = [
        peers.reduce(ranks, "sum", _part(peers.transport.rank, size, np.float32, i), targets[i])
        for i, size in enumerate(sizes)
    ]
    await asyncio.gather(*calls)
    for i, size in enumerate(sizes):
        expected = np.add.reduce([_part(rank, size, np.float32, i) for rank in ranks])
        same(targets[i], expected, f"sum {i} of {len(sizes)} at once")


@GROUPS.requires("same_bits", "the result is the same to the last bit on all ranks, for NaN and zeros with signs, too")
async def _same_bits(peers: Peers) -> None:
    ranks, others = range(peers.transport.size), peers.others
    special = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40])
    for dtype in ("float16", "float32", "float64"):
        for size in (7, 1_001, 70_000):
            rng = np.random.default_rng([peers.transport.rank, size])
            values = rng.standard_normal(size)
            values[: size // 2] = rng.choice(special, size // 2)
            for operation in _COMBINE:
                target = np.zeros(size, dtype)
                with np.errstate(invalid="ignore"):
                    await peers.reduce(ranks, operation, values.astype(dtype), target)
                tag, theirs = peers.tag(), {rank: np.zeros(size, dtype) for rank in others}
                received = [peers.receive(rank, tag, array) for rank, array in theirs.items()]
                await asyncio.gather(*received, *(peers.send(rank, tag, target) for rank in others))
                nan = np.isnan(target)
                for rank, array in theirs.items():
                    expected = f"{operation} of {dtype} as on rank {rank}"
                    expect(np.array_equal(np.isnan(array), nan), expected, "NaN at other places")
                    equal = target[~nan].tobytes() == array[~nan].tobytes()
                    expect(equal, expected, "other bits")


@GROUPS.requires("subgroups", "groups of some ranks compute by themselves, and beside each other")
async def _subgroups(peers: Peers) -> None:
    own = peers.transport.rank
    count = peers.transport.size
    groups: list[tuple[int, ...]] = [(a, b) for a in range(count) for b in range(a + 1, count)]
    groups += [(own,), tuple(range(count)), tuple(range(own % 2, count, 2))]
    mine = [ranks for ranks in groups if own in ranks]
    for ranks in mine:
        expect(peers.transport.group(ranks).ranks == ranks, f"ranks {ranks}", str(peers.transport.group(ranks).ranks))
    targets = [np.zeros(500) for _ in mine]
    calls = [
        peers.reduce(ranks, "sum", _part(own, 500, np.float64), target)
        for ranks, target in zip(mine, targets, strict=True)
    ]
    await asyncio.gather(*calls)
    for ranks, target in zip(mine, targets, strict=True):
        same(target, np.add.reduce([_part(rank, 500, np.float64) for rank in ranks]), f"the sum over ranks {ranks}")


@GROUPS.requires("refused", "what cannot be reduced, and groups without this rank, are refused at once")
async def _refused(peers: Peers) -> None:
    transport, array = peers.transport, np.zeros(4)
    everybody = transport.group(range(transport.size))
    wrong = [
        ("product", array, array),
        ("sum", array, np.zeros(5)),
        ("sum", array, np.zeros(4, np.float32)),
        ("sum", array[::2], array[::2]),
        ("sum", np.zeros(4, object), np.zeros(4, object)),
        ("sum", np.zeros(4, ">f8"), np.zeros(4, ">f8")),
    ]
    for operation, source, target in wrong:
        try:
            everybody.all_reduce(operation, source, target, lambda _: None)
        except TransportError:
            continue
        raise Deviation(f"TransportError for {operation} of {source.dtype}{list(source.shape)}", "it is accepted")
    for ranks in ((), (transport.size,), (transport.rank, transport.rank), (transport.rank, -1)):
        try:
            transport.group(ranks)
        except TransportError:
            continue
        raise Deviation(f"TransportError for a group of {ranks}", "it is made")
