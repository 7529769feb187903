"""Results of each stage, against plain Python."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.pipeline import Pipeline, concat, interleave, merge, pad, source, zip_
from tests.pipeline.recipes import Numbers, collect

NUMBERS = st.lists(st.integers(-50, 50), max_size=30)
SIZES = st.integers(1, 7)


def items_of(pipeline: Pipeline) -> list[Any]:
    return asyncio.run(collect(pipeline))


class Indexed:
    """A map-style data set that cannot be iterated."""

    __iter__ = None

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return 10 * index


@pytest.mark.together(
    ("data", "expected"),
    [
        ([3, 1], [3, 1]),
        (range(3), [0, 1, 2]),
        (Indexed(), [0, 10, 20, 30, 40]),
        ({"a": 1, "b": 2}, ["a", "b"]),
        (Numbers(4), [0, 1, 2, 3]),
        (lambda epoch: [epoch] * 2, [0, 0]),
        (lambda epoch: Numbers(epoch + 2), [0, 1]),
        (np.arange(3), [0, 1, 2]),
        ([], []),
    ],
)
async def test_sources(data: Any, expected: list[Any]) -> None:
    loader = source(data)
    assert await collect(loader) == expected
    assert len(await collect(loader)) == len(expected) + (callable(data) and isinstance(data(0), Numbers))
    await loader.aclose()


class Opener:
    """Gives an epoch's items asynchronously when it is called."""

    async def __call__(self, epoch: int) -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield 10 * epoch + number


async def rows(factor: int, epoch: int) -> AsyncIterator[int]:
    async for number in Opener()(epoch):
        yield factor * number


@pytest.mark.parametrize("data", [Opener(), Opener().__call__, partial(rows, 1)])
async def test_a_source_may_be_an_async_generator_function(data: Any) -> None:
    loader = source(data)
    async with loader:
        assert await collect(loader, 2) == [0, 1]
        assert await collect(loader) == [2]  # goes on behind what was taken
        assert await collect(loader) == [10, 11, 12]


async def test_a_source_is_no_coroutine_function() -> None:
    async def listed(epoch: int) -> list[int]:
        return [epoch]

    with pytest.raises(af.PipelineError, match="not a coroutine: it may be an async generator function"):
        source(listed)  # type: ignore[arg-type]


async def test_samplers_order_is_taken() -> None:
    sampler = af.data.Sampler(10, seed=4, offset=1, interval=2)
    loader = source(range(100, 110), sampler=sampler)
    for epoch in range(3):
        assert await collect(loader) == [100 + row for row in sampler.rows(epoch)]
    loader = source(range(100, 110), shuffle=True, seed=4)
    assert await collect(loader) == [100 + row for row in af.data.Sampler(10, seed=4).rows(0)]


@given(NUMBERS, SIZES, st.booleans())
def test_batches(numbers: list[int], size: int, drop_last: bool) -> None:
    expected = [numbers[i : i + size] for i in range(0, len(numbers), size)]
    if drop_last and expected and len(expected[-1]) < size:
        expected.pop()
    assert items_of(source(numbers).batch(size, drop_last=drop_last, collate=list)) == expected
    stacked = items_of(source(numbers).batch(size, drop_last=drop_last))
    assert [batch.tolist() for batch in stacked] == expected
    assert items_of(source(numbers).batch(size).unbatch()) == numbers


@given(NUMBERS, st.integers(0, 12), st.integers(0, 12))
def test_parts(numbers: list[int], first: int, second: int) -> None:
    assert items_of(source(numbers).take(first)) == numbers[:first]
    assert items_of(source(numbers).skip(first).take(second)) == numbers[first:][:second]
    assert items_of(source(numbers).enumerate(first)) == list(enumerate(numbers, first))
    assert items_of(source(numbers).repeat(first % 4)) == numbers * (first % 4)
    cached = source(numbers).map(lambda x: [x]).cache().repeat(2)
    assert items_of(cached) == [[x] for x in numbers] * 2


async def test_endless_stream() -> None:
    loader = source(range(3)).repeat().take(10)
    assert await collect(loader) == [0, 1, 2] * 3 + [0]


async def test_a_bounded_cache_tells_how_many_bytes_it_holds() -> None:
    loader = source(["a", "bcd"]).cache(size_bytes=10, size=len)
    assert await collect(loader) == ["a", "bcd"]
    assert loader.stats()["cache"].peak_bytes == 4


async def test_cache_gives_the_same_objects_and_calls_nothing_again() -> None:
    calls = 0

    def make(x: int) -> list[int]:
        nonlocal calls
        calls += 1
        return [x]

    loader = source(range(5)).map(make).shuffle(3).cache()
    first, second = await collect(loader), await collect(loader)
    assert calls == 5
    assert all(one is other for one, other in zip(first, second, strict=True))
    await loader.aclose()
    assert await collect(loader) != []
    assert calls == 10


@given(NUMBERS, SIZES)
def test_shards_are_disjoint_and_of_one_size(numbers: list[int], world: int) -> None:
    uneven = [items_of(source(numbers).shard(rank, world, even=False)) for rank in range(world)]
    assert uneven == [numbers[rank::world] for rank in range(world)]
    even = [items_of(source(numbers).shard(rank, world)) for rank in range(world)]
    assert even == [numbers[: len(numbers) // world * world][rank::world] for rank in range(world)]


@given(NUMBERS, st.integers(1, 12), st.integers(0, 3))
def test_shuffles_are_permutations_that_depend_on_seed_and_epoch(numbers: list[int], size: int, seed: int) -> None:
    pairs = list(enumerate(numbers))
    loader = source(pairs).shuffle(size, seed=seed)
    first, second = items_of(loader), items_of(loader)
    assert sorted(first) == sorted(second) == pairs
    assert items_of(source(pairs).shuffle(size, seed=seed)) == first
    # An item cannot come before the buffer has reached it.
    assert all(number <= at + size for at, (number, _) in enumerate(first))


def test_shuffle_is_uniform() -> None:
    """Of 500 shuffles of four items, each of the 24 orders comes about as often: chi-squared below 99.9%."""
    counts = Counter(tuple(items_of(source(range(4)).shuffle(4, seed=seed))) for seed in range(500))
    expected = 500 / 24
    assert len(counts) == 24
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 49.7


@given(NUMBERS, NUMBERS, st.integers(1, 3))
def test_joins(a: list[int], b: list[int], block: int) -> None:
    assert items_of(zip_(source(a), source(b))) == list(zip(a, b, strict=False))
    assert items_of(concat(source(a), source(b))) == a + b
    merged = items_of(merge(source(a).map(lambda x: ("a", x)), source(b).map(lambda x: ("b", x))))
    assert [x for name, x in merged if name == "a"] == a
    assert [x for name, x in merged if name == "b"] == b
    rounds = itertools.zip_longest(
        [a[i : i + block] for i in range(0, len(a), block)],
        [b[i : i + block] for i in range(0, len(b), block)],
        fillvalue=[],
    )
    assert items_of(interleave(source(a), source(b), block=block)) == [
        x for pair in rounds for part in pair for x in part
    ]


def test_three_are_interleaved_in_their_order() -> None:
    assert items_of(interleave(source("abc"), source("de"), source("fgh"))) == list("adfbegch")


@given(NUMBERS)
def test_branches_keep_the_items_places(numbers: list[int]) -> None:
    async def wait(x: int) -> int:
        for _ in range(x % 5):
            await asyncio.sleep(0)
        return 10 * x

    loader = source(numbers).branch(
        lambda x: x % 3,
        {
            0: lambda p: p.map(wait, concurrency=3),
            1: lambda p: p.flat_map(lambda x: [x, -x]),
            2: lambda p: p.filter(lambda x: x > 0),
        },
    )
    made = {0: lambda x: [10 * x], 1: lambda x: [x, -x], 2: lambda x: [x] if x > 0 else []}
    assert items_of(loader) == [y for x in numbers for y in made[x % 3](x)]


async def test_branch_that_batches_gives_the_rest_at_the_end() -> None:
    loader = source(range(10)).branch(lambda x: x % 2, {0: lambda p: p, 1: lambda p: p.batch(2, collate=list)})
    assert await collect(loader) == [0, 2, [1, 3], 4, 6, [5, 7], 8, [9]]


async def test_names_are_unique_and_shown() -> None:
    loader = source([1]).map(abs).map(abs).filter(abs, name="keep").zip(source([2]))
    assert repr(loader) == "<Pipeline source -> abs -> abs#2 -> keep -> source -> zip>"


class Pair(NamedTuple):
    a: int
    b: int


OF_TYPES = "expected rows of one type in"


@pytest.mark.together(
    ("rows", "message"),
    [
        ([1, "a"], f"{OF_TYPES} a batch of 2, got int in row 0; str in row 1"),
        (["a", 1], f"{OF_TYPES} a batch of 2, got str in row 0; int in row 1"),
        ([1, None, 2], f"{OF_TYPES} a batch of 3, got int in rows 0, 2; NoneType in row 1"),
        ([None, 1], f"{OF_TYPES} a batch of 2, got NoneType in row 0; int in row 1"),
        ([1] * 7 + ["a"], f"{OF_TYPES} a batch of 8, got int in rows 0, 1, 2, 3, 4, ...; str in row 7"),
        ([np.zeros(2), [0, 0]], f"{OF_TYPES} a batch of 2, got ndarray in row 0; list in row 1"),
        ([np.array(["a"]), np.array([1])], f"{OF_TYPES} a batch of 2, got <U1 in row 0; int64 in row 1"),
        ([(1, 2), [1, 2]], f"{OF_TYPES} a batch of 2, got tuple in row 0; list in row 1"),
        ([Pair(1, 2), (1, 2)], f"{OF_TYPES} a batch of 2, got Pair in row 0; tuple in row 1"),
        ([{"x": 1}, [1]], f"{OF_TYPES} a batch of 2, got dict in row 0; list in row 1"),
        ([{"x": (1, 2)}, {"x": (1, "b")}], f"{OF_TYPES} ['x'][1] of a batch of 2, got int in row 0; str in row 1"),
        ([{"a": 1}, {"b": 1}], "expected mappings with the same keys in a batch of 2, got 'a' in row 0; 'b' in row 1"),
        ([(1,), (1, 2)], "expected as many parts in each row in a batch of 2, got 1 part in row 0; 2 parts in row 1"),
    ],
)
@pytest.mark.together("collate", [None, pad()])
async def test_rows_of_different_types_are_no_batch(rows: list[Any], message: str, collate: Any) -> None:
    async with source(rows).batch(len(rows), collate=collate) as loader:
        with pytest.raises(af.StageError, match=r"^stage 'batch/collate' \(map\) failed with") as raised:
            await collect(loader)
    assert str(raised.value.__cause__) == message


@pytest.mark.together(
    ("rows", "expected"),
    [
        ([1, 2.5], np.array([1, 2.5])),
        ([True, 2], np.array([1, 2])),
        ([np.uint8(1), np.float32(2)], np.array([1, 2], "float32")),
        ([np.str_("a"), np.str_("bc")], np.array(["a", "bc"])),
        (["a", None], ["a", None]),
    ],
)
async def test_rows_that_are_alike_enough(rows: list[Any], expected: Any) -> None:
    (batch,) = await collect(source(rows).batch(len(rows)))
    np.testing.assert_array_equal(batch, expected, strict=isinstance(expected, np.ndarray))
    assert type(batch) is type(expected)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_merge_by_time(a: list[int], b: list[int], c: list[int]) -> None:
    streams = [[(x, name) for x in sorted(xs)] for name, xs in zip("abc", (a, b, c), strict=True)]
    merged = items_of(merge(*map(source, streams), time=lambda item: item[0]))
    assert merged == sorted(itertools.chain(*streams))  # of equal times the first pipeline's first


async def test_merge_by_time_waits_for_all_streams_and_goes_on_where_it_was() -> None:
    come = asyncio.Event()

    async def late() -> AsyncIterator[int]:
        await come.wait()
        yield 2
        yield 5

    loader = merge(source([1, 3, 4]), source(lambda epoch: late()), time=lambda item: item)
    async with loader:
        items = aiter(loader)
        first = asyncio.ensure_future(anext(items))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not first.done()
        come.set()
        assert [await first, await anext(items)] == [1, 2]
        state = loader.state_dict()
    again = merge(source([1, 3, 4]), source(lambda epoch: late()), time=lambda item: item)
    again.load_state_dict(state)
    assert await collect(again) == [3, 4, 5]
    await again.aclose()


@pytest.mark.together(
    ("streams", "time", "message"),
    [
        (([1, 3, 2], [0, 9]), lambda x: x, "stream 0 goes back in time, from 3 to 2"),
        (([1], [1, 2]), lambda x: x[0], "TypeError"),
    ],
)
async def test_merge_by_time_of_what_has_no_order(streams: Any, time: Any, message: str) -> None:
    loader = merge(*map(source, streams), time=time)
    with pytest.raises(af.StageError, match=message):
        await collect(loader)
    await loader.aclose()


async def test_newest_gives_what_has_come_last_to_a_slow_consumer() -> None:
    go = [asyncio.Event() for _ in range(3)]

    async def bursts() -> AsyncIterator[int]:
        for number, event in enumerate(go):
            await event.wait()
            for i in range(10 * number + 1):
                yield 100 * number + i

    free, begun = asyncio.Event(), asyncio.Event()

    async def slow(item: int) -> int:
        begun.set()
        await free.wait()
        return item

    loader = source(lambda epoch: bursts()).newest().map(slow, concurrency=1)
    async with loader:
        taken = asyncio.ensure_future(collect(loader))
        go[0].set()
        await begun.wait()  # it is busy with 0 while all others come
        for event in go[1:]:
            event.set()
        while loader.stats()["source"].items_out < 1 + 11 + 21:
            await asyncio.sleep(0)
        free.set()
        assert await taken == [0, 220]
        newest = loader.stats()["newest"]
        assert (newest.items_in, newest.items_out, newest.skipped) == (33, 2, 31)


async def test_newest_hands_on_the_end_and_an_error() -> None:
    def fails() -> Any:
        yield 1
        raise ValueError("broken")

    assert (await collect(source([], name="nothing").newest())) == []
    loader = source(lambda epoch: fails()).newest().prefetch(3, size_bytes=100)
    with pytest.raises(af.StageError, match="broken"):
        await collect(loader)
    await loader.aclose()
