"""Memory: what a frame takes, budgets that frames and ops wait for, and buffers in steady state."""

import asyncio
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices.memory import COPIED_BYTES
from actorflow.ops import Operation, kernel
from actorflow.testing import interleave

MIB = 1 << 20


def wide_graph(branches: int, budget: int | None = None) -> tuple[af.Graph, af.Blob, af.Blob]:
    """Branches with 1 MiB at each of three steps, added up one after the other."""
    graph = af.Graph("wide", memory_budget=budget, fuse=False)
    x = graph.blob("x", (MIB // 4,))
    total = af.ops.scale(x, 0.0)
    for i in range(branches):
        y = x
        for step in range(3):
            y = af.ops.scale(y, 1.0 + i + step)
        total = af.ops.add(total, y)
    return graph, x, total


class TestFootprint:
    def test_a_chain_holds_two_values_at_a_time(self) -> None:
        graph = af.Graph("chain", fuse=False)
        y = graph.blob("x", (1000,))
        for _ in range(10):
            y = af.ops.scale(y, 2.0)
        cost = graph.memory_cost()
        assert (cost.variable_bytes, cost.peak_bytes, cost.total_bytes) == (0, 8000, 40_000)

    def test_updates_and_fetches_count(self) -> None:
        graph = af.Graph("update")
        w = graph.variable("w", (1000,))
        y = af.ops.scale(w, 2.0)
        [y] >> graph.op("assign", af.ops.Copy()) >> [w]
        assert graph.memory_cost().variable_bytes == 4000
        assert graph.memory_cost().peak_bytes == 8000
        assert graph.memory_cost(fetch=[y]).peak_bytes == 4000

    def test_the_table_names_the_largest(self) -> None:
        graph = af.Graph("table")
        x = graph.blob("x", (1000,))
        af.ops.scale(x, 2.0, name="double")
        text = str(graph.memory_cost())
        assert "one frame: 4,000 bytes at its peak" in text
        assert "held at the peak, op 'double'" in text
        assert "4,000  double/out" in text


class TestBudget:
    async def test_a_quarter_of_the_naive_memory_is_enough(self) -> None:
        free, x, total = wide_graph(32)
        naive = free.memory_cost().total_bytes
        batch = np.random.default_rng(0).random(MIB // 4, dtype=np.float32)
        async with free:
            expected = (await free.run({x: batch}))[total]
        budget = naive // 4
        graph, x, total = wide_graph(32, budget)
        async with graph:
            for _ in range(3):
                np.testing.assert_array_equal((await graph.run({x: batch}))[total], expected)
            pool = graph.engine.resources.device(af.Place()).memory
            assert 0 < pool.peak_bytes <= budget

    async def test_overlapping_frames_share_it(self) -> None:
        budget = 12 * MIB
        graph, x, total = wide_graph(8, budget)
        batches = [np.full(MIB // 4, i, np.float32) for i in range(12)]
        expected = sum((1 + i) * (2 + i) * (3 + i) for i in range(8))
        async with graph:
            results = await asyncio.gather(*(graph.run({x: batch}, fetch=[total]) for batch in batches))
            for i, result in enumerate(results):
                assert (result[total] == i * expected).all()
            # What was fetched is the application's: up to a result per frame is held besides.
            assert graph.engine.resources.device(af.Place()).memory.peak_bytes <= budget + len(batches) * MIB
            assert graph.engine.resources.budget is not None
            assert graph.engine.resources.budget.shared_bytes == 0

    async def test_what_can_never_fit_fails_at_compile(self) -> None:
        graph, x, _ = wide_graph(4, 2 * MIB)
        graph.variable("w", (MIB // 4,))
        with pytest.raises(af.OutOfMemoryError) as caught:
            graph.compile()
        message = str(caught.value)
        assert "graph 'wide' needs" in message
        assert f"its budget is {2 * MIB:,} bytes" in message
        assert "held at the peak" in message
        with pytest.raises(MemoryError):
            await graph.run({x: np.zeros(MIB // 4, "f")})

    async def test_failures_give_everything_back(self) -> None:
        graph, x, total = wide_graph(8, 6 * MIB)
        fails = True

        def check(a: np.ndarray) -> np.ndarray:
            if fails:
                raise ValueError("planted")
            return a

        checked = graph.function("check", check, total.spec)(total)
        zeros = np.zeros(MIB // 4, "f")
        async with graph:
            results = await asyncio.gather(*(graph.run({x: zeros}) for _ in range(5)), return_exceptions=True)
            assert all(isinstance(result, af.OpError) for result in results)
            tasks = [asyncio.create_task(graph.run({x: zeros})) for _ in range(5)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            fails = False
            assert (await graph.run({x: zeros}))[checked].shape == (MIB // 4,)
            assert graph.engine.resources.budget is not None
            assert graph.engine.resources.budget.shared_bytes == 0


@dataclass(frozen=True)
class Layout:
    """Sizes and inputs of ops, how tight the budget is, frames, order of events."""

    ops: tuple[tuple[int, tuple[int, ...], str], ...]
    slack: int
    frames: int
    trains: bool
    seed: int


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    ops = []
    for i in range(draw(st.integers(1, 14))):
        inputs = tuple(draw(st.lists(st.integers(0, i), min_size=1, max_size=3)))
        ops.append((draw(st.sampled_from((0, 1, 10, 100))), inputs, draw(st.sampled_from(("main", "side", "async")))))
    return Layout(
        tuple(ops),
        draw(st.sampled_from((0, 1, 50, 400))),
        draw(st.integers(1, 5)),
        draw(st.booleans()),
        draw(st.integers(0, 2**32 - 1)),
    )


class Live:
    """Counts the bytes of arrays from when they are made until nobody holds them."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.peak_bytes = 0

    def track(self, array: np.ndarray) -> np.ndarray:
        self._add(array.nbytes)
        weakref.finalize(array, self._add, -array.nbytes)
        return array

    def _add(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.size_bytes)


def build(layout: Layout, budget: int | None) -> tuple[af.Graph, af.Blob, Live]:
    graph = af.Graph("random", memory_budget=budget)
    x = graph.blob("x", (1,), "float64")
    live = Live()
    blobs = [x]
    for i, (size, inputs, lane) in enumerate(layout.ops):

        def compute(*values: np.ndarray, size: int = size) -> np.ndarray:
            return live.track(np.full((size,), 1.0 + sum(float(value.sum()) for value in values)))

        async def compute_async(*values: np.ndarray, size: int = size) -> np.ndarray:
            await asyncio.sleep(0)
            return live.track(np.full((size,), 1.0 + sum(float(value.sum()) for value in values)))

        spec = af.TensorSpec.of((size,), "float64")
        arguments = [blobs[j] for j in inputs]
        if lane == "async":
            blobs.append(graph.function(f"op{i}", compute_async, spec)(*arguments))
        else:
            blobs.append(graph.function(f"op{i}", compute, spec, lane=lane)(*arguments))
    if layout.trains:
        w = graph.variable("w", (20,), "float64")
        update = graph.function("update", lambda old, term: live.track(old + term.sum()))
        [w, blobs[-1]] >> update >> [w]
    return graph, x, live


@given(layout=layouts())
async def test_any_graph_ends_within_the_tightest_budget(layout: Layout) -> None:
    graph, x, _ = build(layout, None)
    cost = graph.memory_cost()
    async with graph:
        expected = [await graph.run({x: [float(i)]}) for i in range(layout.frames)]
    budget = cost.variable_bytes + cost.peak_bytes + layout.slack
    tight, x, live = build(layout, budget)
    interleave(tight, layout.seed)
    sinks = [sink.name for sink in tight.sinks]
    async with tight:
        async with asyncio.timeout(60):
            await asyncio.gather(*(tight.run({x: [float(i)]}, fetch=[tight]) for i in range(layout.frames)))
            assert live.peak_bytes <= budget
            if layout.trains:
                tight["w"].value = np.zeros(20)
            results = await asyncio.gather(*(tight.run({x: [float(i)]}) for i in range(layout.frames)))
        assert tight.engine.resources.budget is not None
        assert tight.engine.resources.budget.shared_bytes == 0
    for result, wanted in zip(results, expected, strict=True):
        for name in sinks:
            np.testing.assert_array_equal(result[name], wanted[name])
    if layout.trains:
        np.testing.assert_array_equal(tight["w"].value, graph["w"].value)


class TestInPlace:
    async def test_a_chain_of_elementwise_kernels_takes_one_buffer(self) -> None:
        graph = af.Graph("chain", fuse=False)
        y = x = graph.blob("x", (1000,))
        for _ in range(10):
            y = af.ops.relu(af.ops.scale(y, 2.0))
        batch = np.linspace(-1, 1, 1000, dtype=np.float32)
        original = batch.copy()
        async with graph:
            for _ in range(3):
                result = await graph.run({x: batch})
                np.testing.assert_array_equal(batch, original)
                np.testing.assert_array_equal(result[y], np.maximum(original, 0) * 1024)
            # The result is a copy.
            assert graph.engine.resources.device(af.Place()).memory.allocations == 1

    async def test_what_somebody_else_reads_is_not_overwritten(self) -> None:
        graph = af.Graph("shared")
        x = graph.blob("x", (1000,))
        kept: list[np.ndarray] = []
        a = af.ops.scale(x, 2.0)  # read twice
        b, c = af.ops.relu(a), af.ops.scale(a, -1.0)
        d = af.ops.scale(b, 3.0)  # fetched besides
        e = af.ops.relu(d)
        f = af.ops.scale(c, 5.0)
        [f] >> graph.function("keep", lambda value: kept.append(value))
        batch = np.linspace(-1, 1, 1000, dtype=np.float32)
        async with graph:
            for _ in range(4):
                result = await graph.run({x: batch}, fetch=[b, d, e, graph])
                np.testing.assert_array_equal(result[b], np.maximum(batch * 2, 0))
                np.testing.assert_array_equal(result[d], np.maximum(batch * 2, 0) * 3)
                np.testing.assert_array_equal(result[e], result[d])
                assert not np.shares_memory(result[e], result[d])
        for value in kept:
            np.testing.assert_array_equal(value, batch * -10)

    async def test_an_old_value_goes_with_the_last_frame_that_reads_it(self) -> None:
        graph = af.Graph("weights", fuse=False)
        x = graph.blob("x", (4,))
        w = graph.variable("w", (4,), init=1.0)
        y = af.ops.add(af.ops.multiply(af.ops.multiply(x, w), w), w)
        async with graph:
            for number in range(1, 12):
                w.value = np.full(4, number, np.float32)
                result = await graph.run({x: np.ones(4, np.float32)})
                assert (result[y] == number * number + number).all()
                old = weakref.ref(w.held)
            w.value = np.zeros(4, np.float32)
            await graph.run({x: np.ones(4, np.float32)})
            assert old() is None


@dataclass(frozen=True)
class Doubled(Operation):
    """Twice the rows, in an array of the kernel's own: it may return one instead of a view."""

    arguments = ("x",)

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        rows, columns = inputs[0].shape
        return (af.TensorSpec((2 * rows, columns), inputs[0].dtype),)


@kernel(Doubled, returns=True)
def _doubled(_operation: Doubled, inputs: list[np.ndarray], _outputs: None) -> list[np.ndarray]:
    return [np.concatenate([inputs[0], inputs[0]])]


async def test_a_view_of_an_array_of_the_kernels_own_does_not_go_to_another_bucket() -> None:
    graph = af.Graph("own")
    x = graph.blob("x", (50, 40))
    scaled = af.ops.scale(x, 2.0)
    own = graph.blob("own", (100, 40))
    [scaled] >> graph.op("double", Doubled()) >> [own]
    y = af.ops.scale(af.ops.reshape(own, (40, 100)), 0.5)
    batch = np.arange(2000, dtype="float32").reshape(50, 40)
    async with graph:
        for i in range(4):
            result = await graph.run({x: batch + i}, fetch=[y])
            np.testing.assert_array_equal(result[y].reshape(100, 40), np.concatenate([batch + i, batch + i]))


class TestSharedMemory:
    """Values of several types that a plan alone has, of 80,000 bytes each."""

    @staticmethod
    def chain(**options: Any) -> tuple[af.Graph, af.Blob, list[af.Blob]]:
        graph = af.Graph("shared", fuse=False, **options)
        x = y = graph.blob("x", (20_000,))
        values = []
        for dtype in ("int32", "uint32", "float32") * 2:
            y = af.ops.cast(y, dtype)
            values.append(y)
        return graph, x, values

    async def allocations(self, graph: af.Graph, x: af.Blob, fetch: list[af.Blob]) -> int:
        """Buffers made for what is not fetched."""
        results = []
        async with graph:
            for number in range(4):
                results.append(await graph.run({x: np.full(20_000, number, "f")}, fetch=fetch))
                assert all(results[-1][y].base is None for y in fetch)
            made = graph.engine.resources.device(af.Place()).memory.allocations
        assert all((abs(result[y]) == number).all() for number, result in enumerate(results) for y in fetch)
        return made - sum(1 if y.spec.size_bytes <= COPIED_BYTES else 4 for y in fetch)

    async def test_types_of_one_size(self) -> None:
        graph, x, values = self.chain()
        assert await self.allocations(graph, x, [af.ops.max(values[-1])]) == 2

    async def test_what_is_fetched_has_memory_of_its_own(self) -> None:
        graph, x, values = self.chain()
        assert await self.allocations(graph, x, values[2:4]) == 2

    async def test_what_may_be_written_over_what_is_fetched(self) -> None:
        graph, x, values = self.chain()
        assert await self.allocations(graph, x, [af.ops.negative(values[0])]) == 0

    async def test_what_a_function_keeps_stays(self) -> None:
        graph, x, values = self.chain()
        kept: list[Any] = []
        y = graph.function("keep", lambda value: kept.append(value[5:]), [])(values[1])
        assert not y
        async with graph:
            for number in range(4):
                await graph.run({x: np.full(20_000, number, "f")})
        assert [set(value.tolist()) for value in kept] == [{0.0}, {1.0}, {2.0}, {3.0}]

    async def test_a_budget_counts_each_value(self) -> None:
        graph, x, values = self.chain(memory_budget=400_000)
        assert await self.allocations(graph, x, [af.ops.max(values[-1])]) == 3


LENGTHS = np.random.default_rng(0).integers(50, 1_000, 120).tolist()
LONGEST = max(LENGTHS)


class Lengths:
    """A model of pictures and of what many have besides: views, what kernels return, results large and small."""

    def __init__(self, place: str = "cpu", **options: Any) -> None:
        self.graph = graph = af.Graph("lengths", **options)
        with graph.at(place):
            self.x = x = graph.blob("x", ("batch", "n", 64))
            y = af.ops.conv(x, graph.constant(np.full((1, 64, 16), 0.01, "f")))
            y = af.ops.relu(y) + af.ops.relu(af.ops.conv(y, graph.constant(np.full((3, 16, 16), 0.01, "f")), pad=1) + y)
            z = af.ops.tanh(af.ops.sort(af.ops.cast(af.ops.reshape(y, (-1, 16)), "float64"), axis=1))
            self.large = af.ops.softmax(af.ops.concat([z, z], axis=1))
            self.small = af.ops.sum(y, axis=(1, 2))
        self.place = af.Place.parse(place)

    def feeds(self, n: int) -> dict[Any, Any]:
        return {self.x: np.ones((1, n, 64), "f")}

    @property
    def pool(self) -> Any:
        return self.graph.engine.resources.device(self.place).memory

    async def peak(self, lengths: list[int], how: str) -> int:
        """The most that was held while frames of these lengths ran one after the other."""
        async with self.graph:
            if how == "stream":
                async for _ in self.graph.stream(map(self.feeds, lengths), fetch=[self.large, self.small], in_flight=1):
                    pass
            elif how == "batched":
                async with self.graph.batched(fetch=[self.small], max_rows=1) as batcher:
                    for n in lengths:
                        await batcher.run(self.feeds(n))
            else:
                fetch = [self.large, self.small] if how == "run" else [self.small]
                for n in lengths:
                    await self.graph.run(self.feeds(n), fetch=fetch)
            peak: int = self.pool.peak_bytes
            assert self.pool.used_bytes >= 0
            self.graph.trim()
            assert self.pool.held_bytes == self.pool.used_bytes
        return peak


@pytest.mark.any_loop
class TestManyLengths:
    """Plans for many lengths, whose buffers all have other sizes, hold little more than the longest needs alone."""

    @pytest.fixture(autouse=True)
    def nothing_is_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("actorflow.devices.memory._LITTLE_BYTES", 0)

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["run", "small", "stream", "batched"])
    @pytest.mark.parametrize("options", [{}, {"fuse": False}, {"memory_budget": 1 << 30}], ids=["", "alone", "budget"])
    async def test_they_share_memory(self, how: str, options: dict[str, Any]) -> None:
        alone = await Lengths(**options).peak([LONGEST] * 3, how)
        assert await Lengths(**options).peak([*LENGTHS, *LENGTHS[40::-1]], how) <= 3 * alone

    @pytest.mark.parametrize("how", ["run", "small", "stream", "batched"])
    async def test_some_share_memory(self, how: str) -> None:
        some = LENGTHS[:30]
        alone = await Lengths().peak([max(some)] * 3, how)
        assert await Lengths().peak([*some, *some[10::-1]], how) <= 3 * alone

    async def test_on_a_device(self) -> None:
        some = LENGTHS[:20]
        alone = await Lengths("sim:0").peak([max(some)] * 3, "run")
        assert await Lengths("sim:0").peak(some, "run") <= 3 * alone

    async def test_on_a_device_whose_frames_overlap(self) -> None:
        """The simulated device's detector of races sees what is used too early."""
        model = Lengths("sim:0", max_plans=8)
        lengths = [*range(50, 60), 500, *range(55, 65), 700] * 2
        async with model.graph:
            at = 0
            async for result in model.graph.stream(map(model.feeds, lengths), fetch=[model.small], in_flight=3):
                found = af.to_numpy(result[model.small])
                again = await model.graph.run(model.feeds(lengths[at]), fetch=[model.small])
                np.testing.assert_allclose(found, af.to_numpy(again[model.small]))
                at += 1

    @pytest.mark.slow
    async def test_small_ones(self) -> None:
        alone = await Lengths().peak([100] * 3, "run")
        assert await Lengths().peak([*range(20, 101)] * 2, "run") <= 3 * alone

    async def test_one_length_finds_its_buffers(self) -> None:
        model = Lengths()
        async with model.graph:
            for n in [*range(100, 130)] + [LONGEST] * 3:
                await model.graph.run(model.feeds(n), fetch=[model.small])
            before = model.pool.allocations
            for _ in range(5):
                await model.graph.run(model.feeds(LONGEST), fetch=[model.small])
            assert model.pool.allocations == before

    async def test_what_kernels_return_is_not_the_pools(self) -> None:
        graph = af.Graph("returned", fuse=False)
        x = graph.blob("x", (30, 30, 8))
        y = af.ops.softmax(af.ops.sort(af.ops.tanh(x), axis=0))
        total = af.ops.mean(af.ops.relu(af.ops.reshape(af.ops.sort(y, axis=1), (-1, 8))))
        async with graph:
            for _ in range(10):
                await graph.run({x: np.ones((30, 30, 8), "f")}, fetch=[total])
                pool = graph.engine.resources.device(af.Place()).memory
                assert pool.used_bytes == 0
                assert sum(bucket.free_bytes for bucket in [*pool._buckets.values()]) <= pool.held_bytes

    async def test_trim_while_frames_run(self) -> None:
        model = Lengths()
        expected = {}
        async with model.graph:
            for n in (60, 70, 900):
                expected[n] = (await model.graph.run(model.feeds(n), fetch=[model.large]))[model.large].copy()
            for _ in range(5):
                runs = [asyncio.create_task(model.graph.run(model.feeds(n), fetch=[model.large])) for n in expected]
                await asyncio.sleep(0)
                model.graph.trim()
                for n, run in zip(expected, runs, strict=True):
                    np.testing.assert_array_equal((await run)[model.large], expected[n])


@pytest.mark.slow
@pytest.mark.any_loop
@given(
    lengths=st.lists(st.integers(1, 400), min_size=4, max_size=16),
    in_flight=st.integers(1, 4),
    fetch=st.lists(st.sampled_from(("scaled", "viewed", "last", "small")), min_size=1, unique=True),
    drop=st.integers(1, 6),
    fuse=st.booleans(),
    seed=st.integers(0, 99),
)
async def test_what_is_kept_is_never_written_whatever_the_lengths(
    lengths: list[int], in_flight: int, fetch: list[str], drop: int, fuse: bool, seed: int
) -> None:
    """Results, views of them, values of taps and what functions keep, of frames that overlap and of many plans."""
    held: list[tuple[np.ndarray, np.ndarray]] = []

    def values(n: int) -> dict[str, np.ndarray]:
        value = np.full((n, 4), n % 7, "f")
        last = np.tanh(3 * value.reshape(-1).astype("d"))
        return {"scaled": 3 * value, "viewed": 6 * value.reshape(-1), "last": last, "small": last.sum()}

    def hold(name: str, n: int, value: np.ndarray) -> None:
        held.append((value, values(n)[name]))
        if value.ndim:
            held.append((value[1::2], values(n)[name][1::2]))

    def look(value: np.ndarray) -> np.ndarray:
        hold("scaled", len(value), value)
        return value

    with pytest.MonkeyPatch.context() as patch:
        # All kinds of memory, for arrays that take no time.
        patch.setattr("actorflow.plan.memory.SHARED_BYTES", 1 << 9)
        patch.setattr("actorflow.runtime.program.COPIED_BYTES", 1 << 8)
        patch.setattr("actorflow.runtime.program.POOLED_BYTES", 1 << 11)
        patch.setattr("actorflow.devices.memory._LITTLE_BYTES", 0)
        graph = af.Graph("kept", fuse=fuse, max_plans=6)
        x = graph.blob("x", ("n", 4))
        scaled = af.ops.scale(x, 3.0)
        seen = graph.function("look", look, scaled.spec)(af.ops.sort(af.ops.relu(scaled), axis=0))
        viewed = af.ops.reshape(af.ops.scale(seen, 2.0), (-1,))
        last = af.ops.tanh(af.ops.cast(af.ops.scale(viewed, 0.5), "float64"))
        blobs = {"scaled": scaled, "viewed": viewed, "last": last, "small": af.ops.sum(last)}
        interleave(graph, seed)

        async def collect(tap: Any) -> None:
            async for sample in tap:
                for name in ("scaled", "viewed"):
                    if blobs[name] in sample:
                        hold(name, sample.lengths["n"], sample[blobs[name]])

        async with graph:
            tap = graph.tap(scaled, viewed, every=2)
            taking = asyncio.create_task(collect(tap))
            feeds = [{x: np.full((n, 4), n % 7, "f")} for n in lengths]
            fetched = [blobs[name] for name in fetch]
            async for result in graph.stream(feeds, fetch=fetched, in_flight=in_flight):
                for name in fetch:
                    hold(name, result.lengths["n"], result[blobs[name]])
                del result
                for value, expected in held:
                    np.testing.assert_allclose(value, expected, rtol=1e-6)
                if len(held) > 8 * drop:
                    del held[: 4 * drop]
                    graph.trim() if drop == 1 else None
                value = None
            tap.close()
            await taking
