"""A rank that ends while others wait for it: its program returns, its process dies, or it stands still."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.ranks.hub import Announcements, gather, hub_of
from actorflow.testing import virtual_time_loop
from actorflow.transport.local import LocalWorld
from tests.ranks.conftest import Ranks
from tests.ranks.rings import ROUNDS, ring
from tests.ranks.test_edges import there_and_back

FEED = {"x": np.zeros(4, np.float32)}
LIVENESS_S = 30.0


def in_virtual_time(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a program on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
        return runner.run(main)


async def leave(ranks: Ranks, rank: int) -> None:
    """End the program of a rank."""
    await ranks.graphs[rank].aclose()
    ranks.local.transports[rank].close()


async def raised(run: Awaitable[Any]) -> BaseException:
    """Error that a call raises."""
    async with asyncio.timeout(100):
        with pytest.raises(af.TransportError) as caught:
            await run
    return caught.value


async def fails(graph: af.Graph, rank: int, **options: Any) -> None:
    """Check that a run fails because a rank has left."""
    error = await raised(graph.run(FEED, **options))
    assert isinstance(error, af.PeerFailedError)
    assert error.rank == rank
    assert str(error) == f"rank {rank} has left: its program has ended while others wait for it"


# -- a program that returns ------------------------------------------------------------------------------------------


@pytest.mark.together("seed", [None, 1, 2])
@pytest.mark.together("victim", [0, 1])
async def test_a_rank_that_has_left_before_the_first_run(seed: int | None, victim: int) -> None:
    ranks = Ranks(ring, 3, seed)
    others = [graph for graph in ranks.graphs if graph.world.rank != victim]
    runs = [asyncio.create_task(fails(graph, victim)) for graph in others]
    await asyncio.sleep(0)
    await leave(ranks, victim)
    await asyncio.gather(*runs)
    for graph in others:
        await fails(graph, victim)
    await ranks.aclose()


@pytest.mark.together("seed", [None, 1, 2])
@pytest.mark.together("victim", [0, 1, 2])
async def test_a_rank_that_leaves_between_two_runs(seed: int | None, victim: int) -> None:
    ranks = Ranks(ring, 3, seed)

    async def work(graph: af.Graph, _: Any) -> None:
        for _ in range(3):
            await graph.run(FEED)
        if graph.world.rank == victim:
            await leave(ranks, victim)
        else:
            await fails(graph, victim)
            await fails(graph, victim)

    assert await ranks.all(work) == [None] * 3
    await ranks.aclose()


@pytest.mark.together("seed", range(8))
@pytest.mark.together("reduce", [False, True])
async def test_what_a_rank_has_done_its_part_of_ends(seed: int, reduce: bool) -> None:
    ranks = Ranks(lambda graph: ring(graph, reduce=reduce), 3, seed)

    async def work(graph: af.Graph, fetch: list[af.Blob]) -> int:
        for _ in range(3):
            result = await graph.run(FEED, fetch=fetch)
        await leave(ranks, graph.world.rank)
        return len(result)

    assert sum(await ranks.all(work)) == (4 if reduce else 1)
    await ranks.aclose()


async def test_an_empty_collective_needs_no_message_but_the_word_that_it_starts() -> None:
    def build(graph: af.Graph) -> None:
        for rank in range(3):
            with graph.at(f"{rank}/cpu"):
                graph.op(f"reduce{rank}", ops.AllReduce("sum", (0, 1, 2)))(graph.blob(f"x{rank}", (0,)))

    for seed in range(10):
        ranks = Ranks(build, 3, seed)

        async def work(graph: af.Graph, _: None, ranks: Ranks = ranks) -> None:
            await graph.run({f"x{rank}": np.zeros(0, np.float32) for rank in range(3)})
            await leave(ranks, graph.world.rank)

        assert await ranks.all(work) == [None] * 3
        await ranks.aclose()


async def test_what_does_not_need_the_rank_goes_on() -> None:
    ranks = Ranks(there_and_back, 3)
    feed = {"x": np.ones(4, np.float32)}
    await ranks.all(lambda graph, _: graph.run(feed))
    await leave(ranks, 2)
    for _ in range(3):
        results = await asyncio.gather(*(graph.run(feed) for graph in ranks.graphs[:2]))
        assert results[0]["c/out"].tolist() == [30.0] * 4
    await ranks.aclose()


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_streams_of_the_others_end_and_the_rest_goes_on(seed: int | None) -> None:
    ranks = Ranks(ring, 3, seed)

    async def work(graph: af.Graph, _: Any) -> int:
        count = 0
        feeds = (FEED for _ in range(3 if graph.world.rank == 2 else 10))
        with pytest.raises(af.PeerFailedError) if graph.world.rank != 2 else _nothing():
            async for _ in graph.stream(feeds, in_flight=2):
                count += 1
        if graph.world.rank == 2:
            await leave(ranks, 2)
        else:
            await fails(graph, 2)
        return count

    assert await ranks.all(work) == [3, 3, 3]
    await ranks.aclose()


class _nothing:  # noqa: N801  as contextlib's nullcontext
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


async def test_a_rank_that_leaves_in_the_middle_of_a_frame() -> None:
    entered = asyncio.Event()

    async def hook(number: int) -> None:
        if number == 1:
            entered.set()
            await asyncio.get_running_loop().create_future()

    ranks = Ranks(lambda graph: ring(graph, hook), 3)
    runs = [asyncio.create_task(graph.run(FEED)) for graph in ranks.graphs]
    await entered.wait()
    ranks.local.transports[0].close()
    for run in runs[1:]:
        error = await raised(run)
        assert isinstance(error, af.PeerFailedError)
        assert "frame 0 failed: the transport of rank 0 is closed" in str(error)
    assert str(await raised(runs[0])) == "the transport of rank 0 is closed"
    assert str(await raised(ranks.graphs[0].run(FEED))) == "the transport of rank 0 is closed"
    await ranks.aclose()


async def test_what_all_ranks_must_say_fails_without_one() -> None:
    world = LocalWorld(3)
    first, second, third = world.transports
    calls = [asyncio.create_task(gather(each, "steps", each.rank)) for each in (first, second)]
    while {*hub_of(first).awaited()} != {2}:  # so that its silence would be noticed, too
        await asyncio.sleep(0)
    third.bind(asyncio.get_running_loop())
    third.close()
    for call in calls:
        with pytest.raises(af.PeerFailedError, match="rank 2 has left"):
            await call
    assert not hub_of(first).awaited()
    with pytest.raises(af.PeerFailedError, match="rank 2 has left"):
        await gather(first, "steps", 0)
    world.close()


async def test_what_all_ranks_must_say_fails_once_one_is_lost() -> None:
    world = LocalWorld(2)
    first, second = world.transports
    announced, call = Announcements(first, "steps"), asyncio.create_task(gather(first, "steps", 0))
    second.bind(asyncio.get_running_loop())
    while not hub_of(first).awaited():
        await asyncio.sleep(0)
    world.kill(1)
    for waiting in call, gather(first, "steps", 0):
        with pytest.raises(af.PeerLostError, match="rank 1 is lost"):
            await waiting
    announced.say(7)  # to nobody
    assert not hub_of(first).awaited()
    world.close()


async def test_a_pause_of_a_rank_that_has_left_holds_nothing() -> None:
    ranks = Ranks(ring, 2)
    await ranks.all(lambda graph, _: graph.run(FEED))
    ranks.graphs[1].pause("for a look")
    while not ranks.graphs[0].engine.queue.is_held:
        await asyncio.sleep(0)
    ranks.local.transports[1].close()
    while ranks.graphs[0].engine.queue.is_held:
        await asyncio.sleep(0)
    await ranks.aclose()


# -- a rank that stands still ----------------------------------------------------------------------------------------


async def _frozen(seed: int | None) -> None:
    loop = asyncio.get_running_loop()
    ranks, stopped = Ranks(ring, 3, seed), loop.create_future()

    async def work(graph: af.Graph, _: Any) -> tuple[BaseException, float]:
        for _ in range(3):
            await graph.run(FEED)
        if graph.world.rank == 1:
            ranks.local.freeze(1)
            stopped.set_result(loop.time())
        error = await raised(graph.run(FEED))
        return error, loop.time() - await stopped

    works = [asyncio.create_task(work(*pair)) for pair in zip(ranks.graphs, ranks.built, strict=True)]
    for rank in (0, 2):
        error, after_s = await works[rank]
        assert isinstance(error, af.PeerLostError)
        assert error.rank == 1
        assert str(error).startswith("rank 1 is lost: it has not answered for 30 s, so its process is frozen")
        assert LIVENESS_S <= after_s <= 1.15 * LIVENESS_S
    assert not works[1].done()
    ranks.local.thaw(1)
    error, _ = await works[1]  # it goes on, and nobody waits for it any more
    assert isinstance(error, af.PeerFailedError)
    assert "has given this rank up" in str(error)
    await ranks.aclose()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_frozen_rank_is_lost(seed: int | None) -> None:
    in_virtual_time(_frozen(seed))


def test_whoever_leaves_for_a_lost_rank_says_so() -> None:
    async def main() -> None:
        ranks = Ranks(ring, 3)
        await ranks.all(lambda graph, _: graph.run(FEED))
        ranks.local.transports[2].liveness_s = float("inf")
        ranks.local.freeze(1)
        runs = [asyncio.create_task(raised(ranks.graphs[rank].run(FEED))) for rank in (0, 2)]
        assert isinstance(await runs[0], af.PeerLostError)
        await leave(ranks, 0)
        error = await runs[1]
        assert isinstance(error, af.PeerLostError)
        assert str(error) == "rank 1 is lost: it has not answered rank 0"
        ranks.local.close()
        await ranks.aclose()

    in_virtual_time(main())


def test_a_rank_that_is_thawed_in_time_is_not_lost() -> None:
    async def main() -> None:
        ranks = Ranks(ring, 3)
        await ranks.all(lambda graph, _: graph.run(FEED))
        ranks.local.freeze(1)
        run = asyncio.create_task(ranks.all(lambda graph, _: graph.run(FEED)))
        await asyncio.sleep(0.95 * LIVENESS_S)
        ranks.local.thaw(1)
        assert [len(result) for result in await run] == [0, 0, 1]
        await asyncio.sleep(3 * LIVENESS_S)
        assert [len(result) for result in await ranks.all(lambda graph, _: graph.run(FEED))] == [0, 0, 1]
        await ranks.aclose()

    in_virtual_time(main())


def test_a_rank_that_nobody_waits_for_is_not_lost() -> None:
    async def main() -> None:
        ranks = Ranks(ring, 3)
        await ranks.all(lambda graph, _: graph.run(FEED))
        ranks.local.freeze(1)
        await asyncio.sleep(10 * LIVENESS_S)
        ranks.local.thaw(1)
        assert [len(result) for result in await ranks.all(lambda graph, _: graph.run(FEED))] == [0, 0, 1]
        await ranks.aclose()

    in_virtual_time(main())


def test_no_limit() -> None:
    async def main() -> None:
        ranks = Ranks(ring, 2)
        for transport in ranks.local.transports:
            transport.liveness_s = float("inf")
        await ranks.all(lambda graph, _: graph.run(FEED))
        ranks.local.freeze(1)
        runs = [asyncio.create_task(graph.run(FEED)) for graph in ranks.graphs]
        await asyncio.sleep(100 * LIVENESS_S)
        ranks.local.thaw(1)
        assert [len(await run) for run in runs] == [0, 1]
        await ranks.aclose()

    in_virtual_time(main())


# -- any rank, in any way, at any moment -----------------------------------------------------------------------------

WAYS = {"leave": af.PeerFailedError, "kill": af.PeerLostError, "freeze": af.PeerLostError}


async def _ends(way: str, seed: int | None, rng: random.Random) -> None:
    """One rank ends; each of the others raises, at once or after the time that it may be silent."""
    loop = asyncio.get_running_loop()
    size, frame, number = rng.randint(2, 4), rng.randrange(4), rng.randrange(-1, ROUNDS)
    victim, streams, reduce = rng.randrange(size), rng.random() < 0.5, rng.random() < 0.5
    ended, frames = loop.create_future(), [0] * size

    async def end() -> None:
        ended.set_result(loop.time())
        if way == "leave":
            tasks[victim].cancel()
        else:
            (ranks.local.kill if way == "kill" else ranks.local.freeze)(victim)

    def build(graph: af.Graph) -> list[af.Blob]:
        async def hook(at: int) -> None:
            if graph.world.rank == victim and at == number and frames[victim] >= frame and not ended.done():
                await end()

        return ring(graph, hook, reduce)

    async def work(graph: af.Graph, fetch: list[af.Blob]) -> None:
        rank = graph.world.rank
        try:
            if streams:
                async for _ in graph.stream((FEED for _ in range(20)), fetch=fetch, in_flight=2):
                    await count(rank)
            else:
                while True:
                    await graph.run(FEED, fetch=fetch)
                    await count(rank)
        except asyncio.CancelledError:
            await leave(ranks, rank)
            raise

    async def count(rank: int) -> None:
        frames[rank] += 1
        if rank == victim and number < 0 and frames[rank] > frame and not ended.done():
            await end()
            await asyncio.sleep(0)

    ranks = Ranks(build, size, seed)
    tasks = [asyncio.create_task(work(*pair)) for pair in zip(ranks.graphs, ranks.built, strict=True)]
    limit_s = 1.15 * LIVENESS_S if way == "freeze" else 0.0
    for rank, task in enumerate(tasks):
        if rank != victim:
            error = await raised(task)
            assert isinstance(error, WAYS[way])
            if way == "leave" and streams:  # another that has ended its stream for that may have been faster
                assert error.rank != rank
            else:
                assert error.rank == victim
            assert loop.time() - await ended <= limit_s
    tasks[victim].cancel()
    await asyncio.gather(tasks[victim], return_exceptions=True)
    ranks.local.close()
    await ranks.aclose()


@given(way=st.sampled_from(sorted(WAYS)), seed=st.none() | st.integers(0, 2**16), rng=st.randoms(use_true_random=False))
def test_whichever_rank_ends_the_others_raise(way: str, seed: int | None, rng: random.Random) -> None:
    in_virtual_time(_ends(way, seed, rng))


def test_nothing_keeps_ranks_that_have_left() -> None:
    async def main() -> list[weakref.ref[Any]]:
        ranks = Ranks(there_and_back)
        await ranks.all(lambda graph, _: graph.run(FEED if graph.world.rank == 0 else {}))
        await ranks.aclose()
        return [weakref.ref(each) for graph in ranks.graphs for each in (graph, graph.world)]

    kept = asyncio.run(main())
    gc.collect()
    assert [each() for each in kept] == [None] * 4
