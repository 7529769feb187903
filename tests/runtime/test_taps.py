"""Taps: values of frames for those who look on, and nothing else is changed by them."""

import asyncio
import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.runtime import taps


@pytest.fixture
async def graph() -> Any:
    """A graph with a variable that counts frames: what a frame reads is the number of the frames before it."""
    graph = af.Graph("g")
    x, count = graph.blob("x", (3,)), graph.variable("count", (3,), init=0.0)
    [count, graph.constant(np.ones(3, "f"))] >> graph.op("step", ops.Sum()) >> [count]
    ops.tanh(ops.scale(ops.add(x, count, name="sum"), 2.0, name="double"), name="last")
    async with graph:
        yield graph


async def looked_at(graph: af.Graph, frames: int, tap: Any) -> list[af.Result]:
    """Samples that a tap has of some frames, taken out as soon as they are there."""
    samples: list[af.Result] = []

    async def look() -> None:
        async for sample in tap:
            samples.append(sample)

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    for number in range(frames):
        result = await graph.run({"x": np.full(3, number, "f")}, fetch=["last/out", "step"])
        assert list(result) == ["last/out"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    tap.close()
    await looking
    return samples


async def test_samples_have_the_values_of_their_frames(graph: af.Graph) -> None:
    samples = await looked_at(graph, 10, graph.tap("double", "sum/out", "x", "count"))
    assert [sample.frames for sample in samples] == [(number,) for number in range(10)]
    for number, sample in enumerate(samples):
        assert list(sample) == ["double/out", "sum/out", "x", "count"]
        np.testing.assert_array_equal(sample["double/out"], 4.0 * number)
        np.testing.assert_array_equal(sample["sum/out"], 2.0 * number)
        np.testing.assert_array_equal(sample[graph["x"]], number)
        assert not any(value.flags.writeable for value in sample.values())


@pytest.mark.parametrize("every", [1, 3, 7])
async def test_every_so_many_frames(graph: af.Graph, every: int) -> None:
    samples = await looked_at(graph, 20, graph.tap("sum", every=every))
    assert [sample.frames[0] for sample in samples] == [*range(0, 20, every)]


async def test_an_interval(graph: af.Graph) -> None:
    assert len(await looked_at(graph, 20, graph.tap("sum", interval=1e6))) == 1


async def test_results_are_the_same_and_no_program_but_two_is_made(graph: af.Graph) -> None:
    plain = af.Graph("plain")
    x = plain.blob("x", (64, 32))
    y = ops.softmax(ops.relu(ops.scale(x, 1.5, name="hidden")))
    feed = np.random.default_rng(0).normal(size=(64, 32)).astype("f")
    async with plain:
        expected = (await plain.run({x: feed}, fetch=y))[y].copy()
        async with plain.tap("hidden", every=2) as tap:
            for _ in range(12):
                np.testing.assert_array_equal((await plain.run({x: feed}, fetch=y))[y], expected)
                if tap.is_waiting:
                    np.testing.assert_array_equal((await anext(tap))["hidden/out"], feed * np.float32(1.5))
        assert len(plain.engine._programs) == 2
        await plain.run({x: feed}, fetch=y)
        assert len(plain.engine._programs) == 2


async def test_nothing_is_computed_for_it(graph: af.Graph) -> None:
    calls = []
    graph.function("aside", lambda x: calls.append(1) or x, graph["x"].spec)(graph["x"])
    samples = await looked_at(graph, 4, graph.tap("aside", "sum"))
    assert not calls
    assert [list(sample) for sample in samples] == [["sum/out"]] * 4


async def test_what_was_fed_is_copied(graph: af.Graph) -> None:
    """The application may write into its arrays as soon as a run has ended."""
    feed = np.ones(3, "f")
    async with graph.tap("x", "count") as tap:
        await graph.run({"x": feed})
        feed[:] = 7
        await graph.run({"x": feed})
        sample = await anext(tap)
    np.testing.assert_array_equal(sample["x"], 1)
    np.testing.assert_array_equal(sample["count"], 0)


async def test_no_frame_is_sampled_while_a_sample_waits(graph: af.Graph) -> None:
    async with graph.tap("sum") as tap:
        for _ in range(5):
            await graph.run({"x": np.zeros(3, "f")})
        assert (await anext(tap)).frames == (0,)
        for _ in range(5):
            await graph.run({"x": np.zeros(3, "f")})
        assert (await anext(tap)).frames == (5,)


async def test_failed_and_cancelled_frames_give_no_sample(graph: af.Graph) -> None:
    def fail(x: np.ndarray) -> np.ndarray:
        if x[0] < 0:
            raise ValueError("negative")
        return x

    started = asyncio.Event()

    async def wait(x: np.ndarray) -> np.ndarray:
        started.set()
        if x[0] > 1:
            await asyncio.Event().wait()
        return x

    y = graph.function("wait", wait, graph["x"].spec)(
        graph.function("fail", fail, graph["x"].spec)(ops.scale(graph["x"], 1.0, name="before"))
    )
    async with graph.tap("before") as tap:
        for value in (-1.0, 2.0):
            run = asyncio.create_task(graph.run({"x": np.full(3, value, "f")}, fetch=y))
            if value > 0:
                await started.wait()
                run.cancel()
            with pytest.raises((af.OpError, asyncio.CancelledError)):
                await run
            assert not tap.is_waiting
        await graph.run({"x": np.zeros(3, "f")}, fetch=y)
        assert (await anext(tap)).frames == (2,)


async def test_several_taps(graph: af.Graph) -> None:
    first, second = graph.tap("sum", every=2), graph.tap("double", "sum", every=3)
    frames: dict[Any, list[int]] = {first: [], second: []}
    for _ in range(12):
        await graph.run({"x": np.zeros(3, "f")}, fetch=["last/out", "step"])
        for tap in (first, second):
            if tap.is_waiting:
                frames[tap].append((await anext(tap)).frames[0])
    first.close()
    second.close()
    assert [*frames.values()] == [[0, 2, 4, 6, 8, 10], [0, 3, 6, 9]]
    assert graph.engine.resources.taps.open == ()


async def test_a_simulated_accelerator() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,), place="sim:0")
    ops.tanh(ops.scale(x, 2.0, name="double"))
    async with graph, graph.tap("double") as tap:
        for number in range(3):
            await graph.run({x: np.full(3, number, "f")})
            sample = await anext(tap)
            assert type(sample["double/out"]) is np.ndarray
            np.testing.assert_array_equal(sample["double/out"], 2.0 * number)


async def test_open_axes_and_batched_runs() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ("batch", 2))
    ops.tanh(ops.scale(x, 2.0, name="double"), name="last")
    async with graph, graph.tap("double") as tap, graph.batched(max_rows=8) as batched:
        await asyncio.gather(*[batched.run({"x": np.full((1, 2), i, "f")}) for i in range(4)])
        sample = await anext(tap)
        assert sample["double/out"].shape[1] == 2
        assert sample.lengths == {"batch": len(sample["double/out"])}


async def test_no_memory_is_kept(graph: af.Graph) -> None:
    tap = graph.tap("sum")
    dead = []
    for _ in range(30):
        await graph.run({"x": np.zeros(3, "f")})
        sample = await anext(tap)
        dead.append(weakref.ref(sample["sum/out"].base))
        del sample
    tap.close()
    gc.collect()
    assert sum(ref() is not None for ref in dead) == 0


async def test_it_ends_with_the_iteration(graph: af.Graph) -> None:
    tap = graph.tap("sum")
    waiting = asyncio.create_task(anext(tap, None))
    await asyncio.sleep(0)
    with pytest.raises(af.GraphError, match="one task at a time"):
        await anext(tap)
    tap.close()
    assert await waiting is None
    with pytest.raises(StopAsyncIteration):
        await anext(tap)


async def test_mistakes(graph: af.Graph) -> None:
    with pytest.raises(af.GraphError, match="no blob, op or sub-graph named 'summ'; did you mean"):
        graph.tap("summ")
    with pytest.raises(af.GraphError, match="name blobs or ops with outputs"):
        graph.tap()
    with pytest.raises(af.GraphError, match="'part' is a sub-graph"):
        graph.tap(graph.subgraph("part"))
    for wrong in ({"every": 0}, {"interval": -1.0}, {"interval": float("nan")}, {"in_a_row": 0}):
        with pytest.raises(af.GraphError, match=r"(every|interval|in_a_row) must "):
            graph.tap("sum", **wrong)
    graph.delete_subgraph("part")


@pytest.mark.parametrize("in_flight", [1, 4])
async def test_frames_in_a_row(graph: af.Graph, in_flight: int) -> None:
    """What changes from one frame to the next can be told by two of them."""
    pairs = []

    async def look(tap: Any) -> None:
        async for sample in tap:
            pairs.append((sample.frames[0], float(sample["count"][0])))

    async with graph.tap("count", every=5, in_a_row=2) as tap:
        looking = asyncio.create_task(look(tap))
        async for _ in graph.stream(({"x": np.zeros(3, "f")} for _ in range(40)), in_flight=in_flight):
            pass
    await looking
    pairs.sort()  # with several in flight, a frame may end before those that started earlier
    assert all(number == count for number, count in pairs)
    firsts, seconds = pairs[::2], pairs[1::2]
    assert len(seconds) > 4
    assert all(second[0] == first[0] + 1 for first, second in zip(firsts, seconds, strict=False))
    assert all(later[0] >= first[0] + 5 for first, later in itertools.pairwise(firsts))


async def test_what_was_fed_is_copied_aside_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on meanwhile, and the caller has its result only when it may write into its arrays again."""
    graph = af.Graph("g")
    x = graph.blob("x", (1 << 18,))
    ops.scale(x, 2.0, name="double")
    feed = np.ones(1 << 18, "f")
    async with graph, graph.tap("x") as tap:
        copied = []
        aside = taps.aside

        async def watched(work: Any, size_bytes: int) -> Any:
            copied.append(size_bytes)
            await asyncio.sleep(0)
            return await aside(work, size_bytes)

        monkeypatch.setattr(taps, "aside", watched)
        await graph.run({"x": feed})
        assert copied == [feed.nbytes]
        feed[:] = 7
        np.testing.assert_array_equal((await anext(tap))["x"], 1)
        await graph.run({"x": feed})
        np.testing.assert_array_equal((await anext(tap))["x"], 7)


async def test_views_are_copied_of_what_was_fed_alone() -> None:
    """Views of a frame's own memory keep it, whether what they show is sampled, too, or not."""
    graph = af.Graph("g")
    x = graph.blob("x", (1 << 8, 1 << 8))
    fed, own = ops.reshape(x, (1 << 16,), name="fed"), ops.scale(x, 2.0, name="own")
    sampled, alone = ops.reshape(own, (1 << 16,), name="sampled"), ops.reshape(ops.exp(x), (1 << 16,), name="alone")
    ops.concat([ops.scale(each, 3.0) for each in (fed, sampled, alone)])
    feed = np.ones((1 << 8, 1 << 8), "f")
    async with graph, graph.tap("own/out", "fed/out", "sampled/out", "alone/out") as tap:
        samples = []
        for number in range(4):
            feed[:] = number
            await graph.run({"x": feed})
            samples.append(await anext(tap))
    for number, sample in enumerate(samples):
        np.testing.assert_array_equal(sample[fed], number)
        np.testing.assert_array_equal(sample[sampled], 2 * number)
        np.testing.assert_allclose(sample[alone], np.exp(np.float32(number)), rtol=1e-6)
        assert np.shares_memory(sample[sampled], sample[own])
        assert sample[fed].base.shape == fed.shape  # a copy
        assert sample[alone].base.shape == x.shape


async def test_variables_are_not_copied(graph: af.Graph) -> None:
    """Their arrays are never changed."""
    async with graph.tap("count") as tap:
        held = graph["count"].held
        await graph.run({"x": np.zeros(3, "f")}, fetch=["step"])
        assert np.shares_memory((await anext(tap))["count"], held)
