"""A loader that goes on from a saved place gives what would have come: any stages, any concurrency, any place."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow.pipeline import Pipeline
from tests.pipeline.recipes import KEEPING, ORDERED, UNORDERED, Recipe, Step, collect, make, recipes
from tests.support.effort import FULL


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


def saved(pipeline: Pipeline, delivered: int | None = None) -> dict[str, Any]:
    """The place, once through JSON."""
    state: dict[str, Any] = json.loads(json.dumps(pipeline.state_dict(delivered=delivered)))
    return state


async def rest_of(recipe: Recipe, state: dict[str, Any], concurrency: int | None = None) -> list[Any]:
    pipeline = make(recipe, concurrency=concurrency)
    pipeline.load_state_dict(state)
    rest = await collect(pipeline) if state["epoch"] == 0 else []
    await pipeline.aclose()
    return rest


def count(items: list[Any]) -> Counter[str]:
    return Counter(map(repr, items))


def run(check: Any) -> None:
    asyncio.run(asyncio.wait_for(check, 60))


async def resumes_everywhere(recipe: Recipe, concurrency: int) -> None:
    whole = make(recipe)
    expected = await collect(whole)
    await whole.aclose()
    # One run, saved behind each of its items, while those after it are in flight.
    running = make(recipe)
    items, states = [], []
    async for item in running:
        items.append(item)
        states.append(saved(running))
    await running.aclose()
    assert items == expected
    for delivered in range(0, len(states), max(1, len(states) // 12)):
        state = states[delivered]
        assert expected[: delivered + 1] + await rest_of(recipe, state, concurrency) == expected
    # Saved twice: the second place is reached from the first.
    if len(states) > 2:
        again = make(recipe)
        again.load_state_dict(states[len(states) // 3])
        first = len(states) // 3 + 1
        middle = await collect(again, 1)
        state = saved(again)
        await again.aclose()
        rest = await rest_of(recipe, state) if middle else []
        assert expected[:first] + middle + rest == expected


@pytest.mark.slow
@settings(max_examples=3_000 if FULL else 40)
@given(recipes(*ORDERED), st.integers(1, 6))
@example(Recipe("list", 10, (Step("flat_map", 2, 1), Step("shuffle", 2, 1), Step("repeat", 4, 0))), 1)
@example(Recipe("async", 12, (Step("branch", 3, 5), Step("batch", 3, 0))), 2)
@example(Recipe("shuffled", 12, (Step("cache", 1, 0), Step("repeat", 4, 0), Step("shard", 2, 1))), 2)
def test_order_is_that_of_an_uninterrupted_run(recipe: Recipe, concurrency: int) -> None:
    run(resumes_everywhere(recipe, concurrency))


async def loses_nothing(recipe: Recipe, cut: float, concurrency: int) -> None:
    whole = make(recipe)
    expected = await collect(whole)
    await whole.aclose()
    running = make(recipe)
    first = await collect(running, round(cut * len(expected)))
    state = saved(running)
    await running.aclose()
    rest = await rest_of(recipe, state, concurrency)
    assert count(first + rest) == count(expected)
    # The same loader goes on, too.
    assert count(first + (await collect(running) if state["epoch"] == 0 else [])) == count(expected)
    await running.aclose()


@settings(max_examples=1_500 if FULL else 30)
@given(recipes(*KEEPING, *UNORDERED), st.floats(0, 1), st.integers(1, 6))
@example(Recipe("list", 20, (Step("unordered map", 5, 1), Step("unordered map", 3, 2))), 0.5, 1)
@example(Recipe("list", 20, (Step("unordered flat_map", 5, 1), Step("shuffle", 3, 2))), 0.5, 1)
def test_nothing_is_lost_or_doubled_where_order_is_chance(recipe: Recipe, cut: float, concurrency: int) -> None:
    run(loses_nothing(recipe, cut, concurrency))


async def goes_on_after_failures(recipe: Recipe, fails_at: set[int]) -> None:
    """Each failure ends an iteration; the next one begins behind the last item, and the call then works."""
    whole = make(recipe)
    expected = await collect(whole)
    failed: set[int] = set()
    numbers: Iterator[int] = iter(range(1_000_000))

    async def sometimes(x: Any) -> Any:
        number = next(numbers)
        await asyncio.sleep(0)
        if number in fails_at and number not in failed:
            failed.add(number)
            raise OSError(f"call {number}")
        return x

    pipeline = make(recipe).map(sometimes, concurrency=3)
    items: list[Any] = []
    causes = []
    for _ in range(len(fails_at) + 1):
        try:
            async for item in pipeline:
                items.append(item)
            break
        except af.StageError as error:
            causes.append(error.__cause__)
    assert all(isinstance(cause, OSError) for cause in causes)
    assert items == expected
    await pipeline.aclose()
    await whole.aclose()


@settings(max_examples=500 if FULL else 40)
@given(recipes(*ORDERED, most=3), st.sets(st.integers(0, 30), max_size=4))
def test_goes_on_where_a_failure_ended_it(recipe: Recipe, fails_at: set[int]) -> None:
    run(goes_on_after_failures(recipe, fails_at))


async def survives_cancellations(recipe: Recipe, turns: list[int]) -> None:
    tasks = asyncio.all_tasks()
    whole = make(recipe)
    expected = await collect(whole)
    pipeline = make(recipe)
    items: list[Any] = []

    async def consume() -> None:
        async for item in pipeline:
            items.append(item)
            await asyncio.sleep(0)

    for count_of_turns in turns:
        task = asyncio.create_task(consume())
        for _ in range(count_of_turns):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        if pipeline.epoch:
            break
    if not pipeline.epoch:
        await consume()
    assert items == expected
    await pipeline.aclose()
    await whole.aclose()
    assert asyncio.all_tasks() == tasks


@settings(max_examples=500 if FULL else 40)
@given(recipes(*ORDERED, most=4), st.lists(st.integers(0, 40), max_size=5))
def test_goes_on_where_it_was_cancelled(recipe: Recipe, turns: list[int]) -> None:
    run(survives_cancellations(recipe, turns))


async def test_place_behind_an_earlier_item() -> None:
    loader = af.pipeline.source(range(20)).map(lambda x: x * x).batch(3, collate=list)
    states: dict[int, Any] = {}
    batches = []
    async for batch in loader:
        batches.append(batch)
        states[len(batches)] = saved(loader)
        for delivered in range(1, len(batches) + 1):
            assert saved(loader, delivered) == states[delivered]
    states[len(batches)] = saved(loader)  # behind the last item is the next epoch
    for delivered, state in states.items():  # who takes items ahead is not done with them at the end
        assert saved(loader, delivered) == state
    with pytest.raises(af.PipelineError, match="expected delivered from 0 to 7, got 8"):
        loader.state_dict(delivered=8)
    loader.load_state_dict(states[1])
    with pytest.raises(af.PipelineError, match="not being iterated"):
        loader.state_dict(delivered=1)


async def test_merged_streams_go_on_as_before_though_one_gives_less() -> None:
    allowed = {0, 1, 2}
    numbers = af.pipeline.source(range(3)).filter(allowed.__contains__, executor="loop")
    loader = af.pipeline.merge(numbers, af.pipeline.source("abc"))
    items, states = [], []
    async for item in loader:
        items.append(item)
        states.append(saved(loader, 1))  # what comes after the first is known up to here
    allowed -= {1, 2}
    loader.load_state_dict(states[-1])
    assert await collect(loader) == [item for item in items[1:] if item not in (1, 2)]
    await loader.aclose()


async def test_place_that_is_not_known_is_refused() -> None:
    loader = af.pipeline.source(range(2_000))
    async for item in loader:
        if item == 1_500:
            with pytest.raises(af.PipelineError, match="expected delivered from 478 to 1501, got 5"):
                loader.state_dict(delivered=5)
            with pytest.raises(af.PipelineError, match="got 1502"):
                loader.state_dict(delivered=1_502)
            break
    await loader.aclose()


async def test_epochs_differ_and_are_the_same_again() -> None:
    def loader() -> Pipeline:
        return af.pipeline.source(range(30), shuffle=True, seed=1).shuffle(4, seed=2)

    first = loader()
    epochs = [await collect(first) for _ in range(3)]
    assert first.epoch == 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    second = loader()
    second.load_state_dict({**saved(second), "epoch": 1})
    assert [await collect(second) for _ in range(2)] == epochs[1:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "version 2, got 3"),
        ({"stages": "source"}, "another pipeline\n  here: source -> batch\n  there: source"),
    ],
)
def test_state_of_something_else_is_refused(change: dict[str, Any], message: str) -> None:
    loader = af.pipeline.source([1, 2]).batch(2, collate=list)
    with pytest.raises(af.PipelineError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(af.PipelineError, match="digest, epoch, position is missing"):
        loader.load_state_dict({"version": 1, "stages": ""})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(key=st.sampled_from(["version", "stages", "epoch", "position", "digest", None]), value=anything)
def test_foreign_states_are_refused_when_they_are_loaded(key: str | None, value: Any) -> None:
    """Whatever stands in them: stages would take another position for theirs, and fail in the middle of a run."""
    loader = af.pipeline.source(range(9)).shuffle(3).batch(2, collate=list).flat_map(iter).map(str, ordered=False)
    items = loader.iter_sync()
    first = [next(items), next(items)]
    items.close()
    state = json.loads(json.dumps(loader.state_dict()))
    changed = value if key is None else {**state, key: value}
    is_same = key is not None and value == state[key] and type(value) is type(state[key])
    if is_same or (key == "epoch" and type(value) is int and value >= 0):
        loader.load_state_dict(changed)
    else:
        with pytest.raises(af.PipelineError):
            loader.load_state_dict(changed)
    loader.load_state_dict(state)
    assert sorted([*first, *loader.iter_sync()]) == [str(n) for n in range(9)]


async def test_state_cannot_be_loaded_while_it_runs() -> None:
    loader = af.pipeline.source(range(5))
    async for _ in loader:
        with pytest.raises(af.PipelineError, match="is being iterated"):
            loader.load_state_dict(loader.state_dict())
        with pytest.raises(af.PipelineError, match="is being iterated"):
            aiter(loader)
        break
    loader.load_state_dict(loader.state_dict())
    assert await collect(loader) == [1, 2, 3, 4]


class Counting:
    """A source that knows its place."""

    def __init__(self, count: int) -> None:
        self.count, self.next = count, 0

    def __iter__(self) -> Iterator[int]:
        while self.next < self.count:
            self.next += 1
            yield self.next - 1
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next % self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


async def test_source_that_knows_its_place_is_asked_for_it() -> None:
    source = Counting(10)
    loader = af.pipeline.source(source, executor="loop").map(lambda x: -x, executor="loop").prefetch(3)
    assert await collect(loader, 4) == [0, -1, -2, -3]
    assert saved(loader)["position"] == [4, {"next": 4}]
    assert source.next > 4
    assert await collect(loader) == [-4, -5, -6, -7, -8, -9]
    assert await collect(loader, 2) == [0, -1]
    other = af.pipeline.source(Counting(10)).map(lambda x: -x).prefetch(3)
    other.load_state_dict(saved(loader))
    assert await collect(other) == [-i for i in range(2, 10)]
    await loader.aclose()
    await other.aclose()
