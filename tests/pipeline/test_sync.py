"""Loaders in programs without a loop, in PyTorch, in other processes; feeds; what is known of stages."""

import pickle
import threading
import time
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.pipeline import source
from tests.pipeline.recipes import collect

TWICE = source([1])


def square(x: int) -> int:
    return x * x


def test_iteration_without_a_loop_and_its_place() -> None:
    loader = source(range(10)).map(square, concurrency=2)
    items, states = [], []
    for item in loader.iter_sync():
        items.append(item)
        states.append(loader.state_dict()["position"])
    assert items == [x * x for x in range(10)]
    assert states == list(range(1, 11))
    assert loader.epoch == 1


def test_leaving_it_goes_on_where_it_was() -> None:
    loader = source(range(10)).map(square)
    for taken in (1, 3):
        items = loader.iter_sync(ahead=4)
        got = [next(items) for _ in range(taken)]
        items.close()  # type: ignore[attr-defined]
    assert got == [1, 4, 9]
    assert list(loader.iter_sync()) == [x * x for x in range(4, 10)]
    assert not [thread for thread in threading.enumerate() if thread.name == "actorflow-loader"]


def test_an_iteration_that_is_refused_leaves_the_one_under_way_alone() -> None:
    loader = source(range(10)).map(square)
    items = loader.iter_sync()
    got = [next(items), next(items)]
    with pytest.raises(af.PipelineError, match="is being iterated"):
        next(loader.iter_sync())
    assert [*got, *items] == [x * x for x in range(10)]
    assert loader.epoch == 1


async def test_a_running_loop_is_not_blocked() -> None:
    with pytest.raises(af.PipelineError, match="async for item in loader"):
        source([1]).iter_sync()


def test_pickled_loader_is_at_the_same_place() -> None:
    loader = source(list(range(6))).map(square)
    items = loader.iter_sync()
    assert [next(items), next(items)] == [0, 1]
    items.close()  # type: ignore[attr-defined]
    assert list(pickle.loads(pickle.dumps(loader)).iter_sync()) == [4, 9, 16, 25]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: make test WITH=torch")
def test_torch_data_loader() -> None:
    from torch.utils.data import DataLoader

    dataset = af.pipeline.torch_dataset(source(list(range(12))).map(square).batch(3))
    batches = [batch.tolist() for batch in DataLoader(dataset, batch_size=None)]
    assert batches == [[x * x for x in range(i, i + 3)] for i in range(0, 12, 3)]
    assert dataset.state_dict()["epoch"] == 1
    shared = [x for batch in DataLoader(dataset, batch_size=None, num_workers=2) for x in batch.tolist()]
    assert sorted(shared) == [x * x for x in range(12)]


async def test_feeds_of_tuples_mappings_and_single_items() -> None:
    graph = af.Graph("feeds")
    x, y = graph.blob("x", (2,)), graph.blob("y", (2,))
    total = af.ops.add(x, y)
    pairs = [(np.full(2, i, "float32"), np.full(2, 10, "float32")) for i in range(4)]
    async with graph:
        for feeds in (
            source(pairs).feed(x, y),
            source(pairs).map(lambda pair: {"a": pair[0], "b": pair[1]}).feed(a="x", b=y),
        ):
            results = [result[total][0] async for result in graph.stream(feeds, in_flight=2)]
            assert results == [10, 11, 12, 13]
            assert feeds.state_dict()["epoch"] == 1
    assert source([1]).feed(x).feed_of(3) == {x: 3}
    with pytest.raises(
        af.StageError, match=r"stage 'feed' .* items of 2 parts, a tuple, got 3 parts\n  item 0: \(1, 2, 3\)"
    ):
        await collect(source([(1, 2, 3)]).feed(x, y))  # type: ignore[arg-type]
    with pytest.raises(af.StageError, match="an item has no 'b'; it has 'a'"):
        await collect(source([{"a": 1}]).feed(b=x))  # type: ignore[arg-type]
    for wrong in ({"blobs": (), "parts": {}}, {"blobs": (x,), "parts": {"a": y}}):
        with pytest.raises(af.PipelineError, match="either blobs"):
            source([1]).feed(*wrong["blobs"], **wrong["parts"])  # type: ignore[arg-type]


async def test_statistics_and_bottleneck() -> None:
    ready = threading.Event()

    def slow(x: int) -> int:
        ready.wait(0.02)  # far longer than what a busy machine takes between two calls
        return x

    loader = source(range(40)).map(lambda x: x, name="quick").map(slow, concurrency=2).batch(4)
    assert loader.bottleneck() == "nothing has been delivered yet"
    began_s = time.perf_counter()
    async with loader:
        items = []
        async for item in loader:
            items.append(item)
            assert 0 < loader.stats().elapsed_s <= time.perf_counter() - began_s
    stats = loader.stats()
    assert stats.delivered == len(items) == 10
    assert [stage.name for stage in stats.stages] == ["source", "quick", "slow", "batch", "batch/collate"]
    assert (stats["slow"].calls, stats["slow"].items_in, stats["slow"].items_out) == (40, 40, 40)
    assert stats["slow"].p99_s >= stats["slow"].p50_s >= 0.02
    assert stats["slow"].running == stats["slow"].held == 0
    assert loader.bottleneck().startswith("stage 'slow' (map): with up to 2 calls at once")
    assert "concurrency=4" in loader.bottleneck()
    assert "slow" in str(stats)
    with pytest.raises(KeyError, match="no stage 'none'; there are source"):
        _ = stats["none"]


@pytest.mark.together(
    ("make", "message"),
    [
        (lambda: source(3), "a source must be"),
        (lambda: source(iter([1]), shuffle=True), "only a sequence"),
        (lambda: source([1, 2], sampler=af.data.Sampler(3)), "the sampler is for 3 items, but there are 2"),
        (lambda: source([1], executor="process"), "executor of a source"),
        (lambda: source([1]).batch(0), "size must be at least 1"),
        (lambda: source([1]).shard(2, 2), "rank must be less than world"),
        (lambda: source([1]).branch(lambda x: x, {}), "at least one branch"),
        (lambda: source([1]).branch(lambda x: x, {1: lambda p: p.take(1)}), "stage 'take' .* cannot stand in a branch"),
        (lambda: source([1]).branch(lambda x: x, {1: lambda p: source([1])}), "must add stages to the pipeline"),
        (lambda: af.pipeline.concat(), "at least one pipeline"),
        (lambda: TWICE.zip(TWICE.map(square)), "joined with itself"),
        (lambda: af.pipeline.merge(source([1]), [1]), "expected pipelines, got list"),
    ],
)
def test_wrong_pipelines_are_refused(make: Any, message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        make()


async def test_errors_while_it_runs() -> None:
    with pytest.raises(af.StageError, match="size_bytes=10"):
        await collect(source([b"123456"] * 2).cache(size_bytes=10, size=len))
    once = source(iter([1, 2]))
    assert await collect(once) == [1, 2]
    with pytest.raises(af.PipelineError, match="can be iterated once"):
        await collect(once)


async def test_padding() -> None:
    items = [{"a": np.arange(n), "n": n} for n in (1, 3, 2)]
    padded = pickle.loads(pickle.dumps(af.pipeline.pad(-1, multiple=4)))  # as another process has it
    (batch,) = await collect(source(items).batch(3, collate=padded))
    assert batch["a"].tolist() == [[0, -1, -1, -1], [0, 1, 2, -1], [0, 1, -1, -1]]
    assert batch["n"].tolist() == [1, 3, 2]
    assert [dict(item) for item in af.pipeline.unstack({"a": [1, 2], "b": ([3, 4],)})] == [
        {"a": 1, "b": (3,)},
        {"a": 2, "b": (4,)},
    ]
    with pytest.raises(af.PipelineError, match="of one length"):
        list(af.pipeline.unstack(([1, 2], [3])))
