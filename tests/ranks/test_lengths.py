"""Open axes on several ranks: all have the same lengths in a frame, or none starts it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from tests.ranks.conftest import Ranks


def rows(count: int, name: str = "x", value: float = 1.0) -> dict[str, np.ndarray]:
    return {name: np.full((count, 2), value, np.float32)}


def there_and_back(graph: af.Graph) -> af.Blob:
    """Rank 0 has the feeds, rank 1 computes."""
    with graph.at("0/cpu"):
        x = graph.blob("x", ("batch", 2))
    with graph.at("1/cpu"):
        y = ops.scale(x, 3.0)
    with graph.at("0/cpu"):
        return ops.add(y, x, name="sum")


def two_sources(graph: af.Graph) -> af.Blob:
    """Each rank has feeds of one axis."""
    with graph.at("0/cpu"):
        x = graph.blob("x", ("batch", 2))
    with graph.at("1/cpu"):
        y = graph.blob("y", ("batch", 2))
    with graph.at("0/cpu"):
        return ops.add(x, y)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 3), st.integers(0, 99))
def test_a_rank_without_feeds_learns_the_lengths(lengths: list[int], in_flight: int, seed: int) -> None:
    """Also where the ranks keep different numbers of plans, so that one has forgotten what the other has not."""

    async def work() -> None:
        ranks = Ranks(there_and_back, seed=seed)
        ranks.graphs[1].options = ranks.graphs[1].options._replace(max_plans=1)

        async def one(graph: af.Graph, z: af.Blob) -> list[Any]:
            feeds = [rows(n, value=n) if graph.world.rank == 0 else {} for n in lengths]
            async with aclosing(graph.stream(feeds, fetch=[z], in_flight=in_flight)) as results:
                return [(result.lengths, result.get(z)) async for result in results]

        here, there = await ranks.all(one)
        assert [found for found, _ in here] == [found for found, _ in there] == [{"batch": n} for n in lengths]
        for n, (_, value) in zip(lengths, here, strict=True):
            np.testing.assert_array_equal(value, np.full((n, 2), 4.0 * n))
        await ranks.aclose()

    asyncio.run(work())


async def test_ranks_whose_feeds_differ_in_length_are_told_so() -> None:
    ranks = Ranks(two_sources)

    def run(lengths: tuple[int, int]) -> Any:
        def one(graph: af.Graph, z: af.Blob) -> Any:
            rank = graph.world.rank
            return graph.run(rows(lengths[rank], "xy"[rank]), fetch=[z])

        return one

    for _ in range(2):
        for error in await ranks.all(run((5, 3))):
            assert isinstance(error, af.ShapeError)
            assert "axis 'batch' is 5 in the feeds of rank 0, and 3 in those of rank 1" in str(error)
        here, there = await ranks.all(run((4, 4)))
        assert [value.shape for value in here.values()] == [(4, 2)]
        assert there.lengths == {"batch": 4}
    assert [graph.engine.next_number for graph in ranks.graphs] == [2, 2]
    await ranks.aclose()


@pytest.mark.parametrize(
    ("feed", "own", "others"),
    [
        ({"x": np.ones(3, np.float32)}, "feed for blob 'x': expected shape", "frame of graph 'ranks' could not start"),
        ({}, "no feed says the length of 'batch'", "no feed says the length of 'batch'"),
    ],
)
async def test_wrong_feeds_of_one_rank_start_no_frame_on_any(feed: dict[str, Any], own: str, others: str) -> None:
    ranks = Ranks(there_and_back, 3)
    errors = await ranks.all(lambda graph, z: graph.run(feed if graph.world.rank == 0 else {}, fetch=[z]))
    assert own in str(errors[0])
    assert all(others in str(error) for error in errors[1:])
    here, *_ = await ranks.all(lambda graph, z: graph.run(rows(2) if graph.world.rank == 0 else {}, fetch=[z]))
    assert here.lengths == {"batch": 2}
    await ranks.aclose()


async def test_ranks_that_do_not_run_the_same_are_told_so() -> None:
    def build(graph: af.Graph) -> tuple[af.Blob, af.Blob]:
        with graph.at("0/cpu"):
            closed = graph.blob("c", (2,))
        with graph.at("1/cpu"):
            doubled = ops.scale(closed, 2.0)
        return there_and_back(graph), doubled

    ranks = Ranks(build)
    errors = await ranks.all(
        lambda graph, built: graph.run({**rows(2), "c": np.ones(2, np.float32)}, fetch=[built[graph.world.rank]])
    )
    assert all("ranks 0 and 1 do not run the same ops" in str(error) for error in errors)
    await ranks.aclose()


async def test_one_rank_alone_may_go_on_without_a_failure_or_be_fed_what_an_op_writes() -> None:
    def build(graph: af.Graph) -> tuple[af.Blob, af.Blob]:
        with graph.at("0/cpu"):
            doubled = ops.scale(graph.blob("c", (2,)), 2.0)
        with graph.at("1/cpu"):
            return doubled, ops.exp(doubled)

    ranks, values = Ranks(build), np.ones(2, np.float32)
    wholes = await ranks.all(lambda graph, built: graph.run({"c": values}, fetch=built[1], partial=True))
    assert all("runs on 2 ranks: partial=True is for one" in str(error) for error in wholes)
    fed = await ranks.all(lambda graph, built: graph.run({built[0]: values}, fetch=built[1]))
    assert "op 'scale' writes it, and 2 ranks run the graph" in str(fed[0])
    assert isinstance(fed[1], af.ActorflowError)
    await ranks.aclose()


async def test_a_stream_that_one_rank_ends_early_ends_on_all() -> None:
    ranks = Ranks(there_and_back)

    async def one(graph: af.Graph, z: af.Blob) -> int:
        count = 0
        feeds = [rows(n) if graph.world.rank == 0 else {} for n in (1, 2, 3, 4, 5)]
        async with aclosing(graph.stream(feeds, fetch=[z], in_flight=1)) as results:
            async for _ in results:
                count += 1
                if graph.world.rank == 1 and count == 2:
                    break
        return count

    ended, count = await ranks.all(one)
    assert isinstance(ended, af.PeerFailedError)
    assert "rank 1 ended its stream before this frame" in str(ended)
    assert count == 2
    for n in (2, 7):
        here, _ = await ranks.all(lambda graph, z, n=n: graph.run(rows(n) if graph.world.rank == 0 else {}, fetch=[z]))
        assert here.lengths == {"batch": n}
    await ranks.aclose()


async def test_ranks_train_on_batches_of_their_own_lengths() -> None:
    """Each has an axis of its own: only gradients cross, and the weights are those of the whole batch on one place."""
    values = np.random.default_rng(0).standard_normal((12, 2))
    labels = np.arange(12) % 3
    cuts = [(5, 2), (0, 4), (6, 6)]

    def built(graph: af.Graph) -> tuple[af.Blob, af.Graph, list[Any]]:
        inputs, targets = [], []
        for rank in range(2):
            with graph.at(f"{rank}/cpu"):
                inputs.append(graph.blob(f"x{rank}", (f"batch{rank}", 2), "float64"))
                targets.append(graph.blob(f"labels{rank}", f"batch{rank}", "int64"))
        model = nn.parallel.DataParallel(
            nn.InnerProduct(3), ["0/cpu", "1/cpu"], loss=ops.softmax_loss, split=False, name="net"
        )
        loss = model(*inputs, *targets)
        return loss, model.minimize(nn.SGD(0.5)), model.replicas[0].variables

    async def train(graph: af.Graph, made: Any) -> list[dict[str, int]]:
        loss, step, _ = made
        rank, found = graph.world.rank, []
        for counts in cuts:
            part = slice(0, counts[0]) if rank == 0 else slice(counts[0], sum(counts))
            result = await graph.run({f"x{rank}": values[part], f"labels{rank}": labels[part]}, fetch=[loss, step])
            found.append(result.lengths)
        return found

    ranks = Ranks(built)
    here, there = await ranks.all(train)
    assert here == there == [{"batch0": first, "batch1": second} for first, second in cuts]

    plain = af.Graph("plain")
    x, y = plain.blob("x", ("batch", 2), "float64"), plain.blob("y", ("batch",), "int64")
    with plain.subgraph("net"):
        net = nn.InnerProduct(3)
        loss = ops.softmax_loss(net(x), y)
    step = nn.SGD(0.5).minimize(loss)
    async with plain:
        for counts in cuts:
            await plain.run({x: values[: sum(counts)], y: labels[: sum(counts)]}, fetch=[loss, step])
    for own, expected in zip(ranks.built[0][2], net.variables, strict=True):
        np.testing.assert_allclose(own.value, expected.value, rtol=1e-12)
    await ranks.aclose()
