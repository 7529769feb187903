"""Caches: attention to what sessions have read, in blocks that they take, wait for, and give back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.ops.cpu import attention as kernels
from actorflow.ops.nn.attention import CachedAttention
from tests.support.waiting import settle


class Reader:
    """A graph that attends to what its sessions have read, and, for comparison, to a whole text at once."""

    def __init__(self, **options: Any) -> None:
        self.graph = graph = af.Graph("reader")
        self.x = x = graph.blob("x", ("row", "time", 8))
        self.cache = graph.cache("cache", **{"most": 24, "blocks": 64, "block": 4, **options})
        self.y = self.cache.attention(x, x * 2, x + 1, heads=2, name="y")
        self.whole = af.ops.attention(x, x * 2, x + 1, heads=2, causal=True)

    def batched(self, **options: Any) -> Any:
        return self.graph.batched(fetch=self.y, **options)

    async def read(self, session: Any, x: Any, **options: Any) -> Any:
        return (await session.run({self.x: x}, **options))[self.y]


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, length, 8), dtype=np.float32)


@pytest.mark.parametrize("is_compiled", [True, False])
async def test_what_was_read_in_steps_is_as_if_it_was_read_at_once(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(kernels, "compiled", lambda name: None)
    reader = Reader()

    async def read(batcher: Any, number: int) -> None:
        random, x, found, kept = np.random.default_rng(number), text(20, number), [], None
        cuts = sorted({*random.integers(1, 20, 6).tolist(), 20})
        for start, stop in zip([0, *cuts], cuts, strict=False):  # moved to another session on the way
            async with batcher.session(state=kept) as session:
                found.append(await reader.read(session, x[:, start:stop]))
                kept = session.state_dict()
                assert kept["cache_keys"].tolist() == (x[0, :stop] * 2).tolist()
        whole = (await reader.graph.run({reader.x: x}, fetch=reader.whole))[reader.whole]
        np.testing.assert_allclose(np.concatenate(found, 1), whole, rtol=1e-5, atol=1e-5)

    async with reader.graph, reader.batched(max_cells=20) as batcher:
        await asyncio.gather(*[read(batcher, number) for number in range(8)])
        assert batcher.statistics().blocks == 0


@pytest.mark.skipif(kernels.compiled("cached") is None, reason="NumPy reads them here")
def test_the_kernel_reads_blocks_of_sessions_alone() -> None:
    random = np.random.default_rng(0)
    for new, heads, groups, features in ((1, 4, 4, 16), (3, 4, 2, 5), (5, 6, 1, 8)):
        q, k, v, keys, values = (
            random.standard_normal((*front, width * features), dtype=np.float32)
            for front, width in (((7, new), heads), *[((7, new), groups)] * 2, *[((40, 4), groups)] * 2)
        )
        keys[39] = values[39] = np.nan  # nobody's
        table, used = random.integers(0, 39, (7, 6)), random.integers(0, 25, 7)
        table[np.arange(6) >= -(-used[:, np.newaxis] // 4)] = 39
        operation, given = CachedAttention(heads), [q, k, v, keys, values, table, used]
        (found,) = kernels._cached_attention(operation, given, None)
        np.testing.assert_allclose(found, operation.compute(*given), rtol=1e-5, atol=1e-5)
        assert np.isfinite(found).all()
        for wrong_table, wrong_used in ((table + 40, used), (table, used + 24), (table, used - 30)):
            with pytest.raises(IndexError):
                kernels._cached_attention(operation, [*given[:5], wrong_table, wrong_used], None)


async def test_blocks_come_back_and_hold_nothing_of_who_had_them() -> None:
    reader = Reader(blocks=1)
    async with reader.graph, reader.batched() as batcher:
        for value in np.nan, 1.0:
            async with batcher.session() as session:
                found = await reader.read(session, np.full((1, 1, 8), value, np.float32))
                found = await reader.read(session, np.full((1, 1, 8), value, np.float32))
                assert batcher.statistics().blocks == 1
        assert found.tolist() == [[[2.0] * 8]]


async def test_a_step_that_is_given_up_adds_nothing() -> None:
    reader = Reader()
    async with reader.graph, reader.batched() as batcher, batcher.session() as one, batcher.session() as two:
        x, other = text(6), text(3, 1)
        await asyncio.gather(reader.read(one, x[:, :3]), reader.read(two, other))
        step = asyncio.ensure_future(reader.read(one, np.full((1, 1, 8), np.nan, np.float32)))
        beside = asyncio.ensure_future(reader.read(two, x[:, :1]))
        await asyncio.sleep(0)
        step.cancel()
        await beside
        whole = (await reader.graph.run({reader.x: x}, fetch=reader.whole))[reader.whole]
        np.testing.assert_allclose(await reader.read(one, x[:, 3:]), whole[:, 3:], rtol=1e-5, atol=1e-5)


async def test_who_finds_no_blocks_waits_or_is_told_the_figures() -> None:
    reader = Reader(blocks=3)
    async with reader.graph, reader.batched() as batcher, batcher.session() as first:
        await reader.read(first, text(8))
        async with batcher.session() as full, batcher.session(timeout=None) as patient, batcher.session() as late:
            with pytest.raises(af.CacheFullError, match="needs 2 more blocks of its cache, of 3 1 are free"):
                await reader.read(full, text(5))
            waiting = asyncio.ensure_future(reader.read(patient, text(5)))
            await settle()
            with pytest.raises(af.CacheFullError) as behind:  # though there is one: who waits was there before
                await reader.read(late, text(1))
            assert (behind.value.free, behind.value.waiting) == (1, 1)
            assert not waiting.done()
            first.close()
            assert (await waiting).shape == (1, 5, 8)
            assert batcher.statistics().blocks == 2


async def test_sessions_that_all_wait_for_each_other_do_not_wait_for_ever() -> None:
    reader = Reader(blocks=2)
    async with reader.graph, reader.batched() as batcher:
        async with batcher.session(timeout=None) as one, batcher.session(timeout=None) as two:
            for session in one, two:
                await reader.read(session, text(4))
            waiting = asyncio.ensure_future(reader.read(one, text(1)))
            await settle()
            with pytest.raises(af.CacheFullError):
                await reader.read(two, text(1))
            two.close()
            await waiting


async def test_who_waits_for_blocks_and_is_closed_hears_of_it() -> None:
    reader = Reader(blocks=1)
    async with reader.graph, reader.batched() as batcher, batcher.session() as first:
        await reader.read(first, text(4))
        async with batcher.session(timeout=None) as session:
            waiting = asyncio.ensure_future(reader.read(session, text(1)))
            await settle()
            session.close()
            with pytest.raises(af.SessionClosedError):
                await waiting
        kept = {name: np.ones((2, 8), np.float32) for name in ("cache_keys", "cache_values")}
        async with batcher.session(timeout=None, state=kept) as session:
            waiting = asyncio.ensure_future(reader.read(session, text(1)))
            await settle()
            first.close()  # it has got the block, and is closed before it runs on
            session.close()
            with pytest.raises(af.SessionClosedError):
                await waiting
            assert session.state_dict()["cache_keys"].tolist() == kept["cache_keys"].tolist()
        assert batcher.statistics().blocks == 0


async def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    reader = Reader()
    async with reader.graph, reader.batched() as batcher, batcher.session() as session:
        await reader.read(session, text(20))
        with pytest.raises(af.FeedError, match="has read 20 positions of at most 24, and a step of 5 more"):
            await reader.read(session, text(5))
        with pytest.raises(af.FeedError, match="as many positions in each of"):
            batcher.session(state={"cache_keys": np.zeros((2, 8)), "cache_values": np.zeros((3, 8))})
        with pytest.raises(af.FeedError, match="no value for state 'cache_values'"):
            batcher.session(state={"cache_keys": np.zeros((2, 8))})
        with pytest.raises(af.CheckpointError, match="files have no caches yet"):
            await reader.graph.save(tmp_path / "g.af", fetch=reader.y)
    with pytest.raises(af.ShapeError, match="takes time new positions"):
        reader.cache.attention(reader.x[:, :1], reader.x[:, :1], reader.x[:, :1], heads=2)
    with pytest.raises(af.GraphError, match="must have the axis of the rows"):
        Reader(axis="batch").batched()
    other = reader.graph.cache("other", most=4, blocks=1)
    both = other.attention(reader.y, reader.y, reader.y, heads=2)
    with pytest.raises(af.GraphError, match="has 2 caches"):
        reader.graph.batched(fetch=both)


async def test_long_requests_have_frames_of_their_own() -> None:
    reader = Reader()
    async with reader.graph, reader.batched(max_cells=8) as batcher:
        sessions = [batcher.session() for _ in range(4)]
        for each in sessions:
            await each.__aenter__()
        for length, frames in ((4, 2), (10, 4), (1, 1)):
            before = batcher.statistics().frames
            await asyncio.gather(*[reader.read(each, text(length)) for each in sessions])
            assert batcher.statistics().frames - before == frames
        for each in sessions:
            each.close()
