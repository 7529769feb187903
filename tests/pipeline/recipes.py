"""Pipelines made of descriptions, so that hypothesis can draw and shrink them; plain Python says what they give."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

from hypothesis import strategies as st

import actorflow as af
from actorflow.pipeline import Pipeline

ORDERED = (
    "map",
    "async map",
    "thread map",
    "filter",
    "async filter",
    "flat_map",
    "async flat_map",
    "thread flat_map",
    "batch",
    "batch, unbatch",
    "shuffle",
    "take",
    "skip",
    "enumerate",
    "shard",
    "repeat",
    "cache",
    "prefetch",
    "limited",
    "branch",
    "zip",
    "concat",
    "interleave",
)
#: What a different order of the items before it does not make other items of.
KEEPING = (
    "map",
    "async map",
    "filter",
    "flat_map",
    "async flat_map",
    "prefetch",
    "batch, unbatch",
    "shuffle",
    "concat",
)
UNORDERED = ("unordered map", "unordered flat_map", "unordered thread map", "merge")


class Step(NamedTuple):
    """One stage: what it does, a small number for its size or concurrency, and a seed for what it does to each item."""

    kind: str
    size: int
    seed: int


class Recipe(NamedTuple):
    source: str
    count: int
    steps: tuple[Step, ...]


def steps(*kinds: str) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.sampled_from(kinds), st.integers(1, 5), st.integers(0, 999))


def recipes(*kinds: str, most: int = 5) -> st.SearchStrategy[Recipe]:
    sources = st.sampled_from(("list", "shuffled", "iterable", "async", "epochs"))
    return st.builds(Recipe, sources, st.integers(0, 24), st.lists(steps(*kinds), max_size=most).map(tuple))


def chance(item: Any, seed: int, of: int) -> int:
    """A number below ``of`` that depends on the item alone."""
    return random.Random(f"{item!r} {seed}").randrange(of)


class Numbers:
    """An async iterable that lets the loop run now and then."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def __aiter__(self) -> AsyncIterator[int]:
        for i in range(self._count):
            if i % 3 == 0:
                await asyncio.sleep(0)
            yield i


def make(recipe: Recipe, *, concurrency: int | None = None) -> Pipeline:
    """A new pipeline; ``concurrency`` overrides that of all steps."""
    pipeline = make_source(recipe.source, recipe.count)
    for step in recipe.steps:
        pipeline = add(pipeline, step, step.size if concurrency is None else concurrency)
    return pipeline


def make_source(kind: str, count: int) -> Pipeline:
    source = af.pipeline.source
    match kind:
        case "list":
            return source(list(range(count)))
        case "shuffled":
            return source(range(count), shuffle=True, seed=3)
        case "iterable":
            return source(dict.fromkeys(range(count)))
        case "async":
            return source(Numbers(count))
        case _:
            return source(lambda epoch: (100 * epoch + i for i in range(count)))


def functions(seed: int) -> dict[str, Callable[..., Any]]:
    """Functions that a step calls: all take a while that depends on the item, in turns of the loop."""

    async def wait(x: Any) -> Any:
        for _ in range(chance(x, seed, 4)):
            await asyncio.sleep(0)
        return x

    async def keep(x: Any) -> bool:
        await wait(x)
        return chance(x, seed, 3) > 0

    def several(x: Any) -> Iterator[Any]:
        for i in range(chance(x, seed, 4)):
            yield x, i

    async def several_async(x: Any) -> AsyncIterator[Any]:
        for i in range(chance(x, seed, 4)):
            if i % 2:
                await asyncio.sleep(0)
            yield x, i

    def fail(x: Any) -> Any:
        if chance(x, seed, 5) == 0:
            raise ValueError(f"no {x!r}")
        return x

    return {"wait": wait, "keep": keep, "several": several, "several_async": several_async, "fail": fail}


def add(pipeline: Pipeline, step: Step, concurrency: int) -> Pipeline:
    kind, _, seed = step
    call = functions(seed)
    match kind:
        case "map":
            return pipeline.map(lambda x: (x, seed))
        case "async map":
            return pipeline.map(call["wait"], concurrency=concurrency)
        case "thread map":
            return pipeline.map(lambda x: (x, -seed), concurrency=concurrency, executor="thread")
        case "unordered map":
            return pipeline.map(call["wait"], concurrency=concurrency, ordered=False)
        case "unordered thread map":
            return pipeline.map(lambda x: x, concurrency=concurrency, ordered=False, executor="thread")
        case "filter":
            return pipeline.filter(lambda x: chance(x, seed, 3))
        case "async filter":
            return pipeline.filter(call["keep"], concurrency=concurrency)
        case "flat_map":
            return pipeline.flat_map(call["several"])
        case "async flat_map":
            return pipeline.flat_map(call["several_async"], concurrency=concurrency)
        case "thread flat_map":
            return pipeline.flat_map(call["several"], concurrency=concurrency, executor="thread")
        case "unordered flat_map":
            return pipeline.flat_map(call["several_async"], concurrency=concurrency, ordered=False)
        case "limited":
            return pipeline.map(call["fail"], concurrency=concurrency, on_error=("skip", 10_000, 0.99)[seed % 3])
        case _:
            return add_passing(pipeline, step, concurrency)


def add_passing(pipeline: Pipeline, step: Step, concurrency: int) -> Pipeline:
    kind, size, seed = step
    call = functions(seed)
    match kind:
        case "batch":
            return pipeline.batch(size, collate=list, drop_last=bool(seed % 2))
        case "batch, unbatch":
            return pipeline.batch(size, collate=list).unbatch()
        case "shuffle":
            return pipeline.shuffle(2 * size, seed=seed)
        case "take":
            return pipeline.take(3 * size)
        case "skip":
            return pipeline.skip(size - 1)
        case "enumerate":
            return pipeline.enumerate(seed)
        case "shard":
            return pipeline.shard(seed % size, size, even=bool(seed % 2))
        case "repeat":
            return pipeline.repeat(size - 2 if size > 2 else 2)
        case "cache":
            return pipeline.cache()
        case "prefetch":
            return pipeline.prefetch(size, size_bytes=(None, 200)[seed % 2])
        case "branch":
            return pipeline.branch(
                lambda x: chance(x, seed, 4),
                {
                    0: lambda p: p,
                    1: lambda p: p.map(call["wait"], concurrency=concurrency).batch(2, collate=list),
                    2: lambda p: p.flat_map(call["several"]).shuffle(3, seed=seed),
                    3: lambda p: p.filter(lambda x: chance(x, seed, 2)).prefetch(2).enumerate(),
                },
            )
        case _:
            other = make(Recipe("list", 2 * size, (Step("async map", size, seed),)))
            join = {"zip": af.pipeline.zip_, "concat": af.pipeline.concat, "interleave": af.pipeline.interleave}
            return {**join, "merge": af.pipeline.merge}[kind](pipeline, other)


async def collect(pipeline: Pipeline, most: int | None = None) -> list[Any]:
    """The items, or the first ones."""
    items: list[Any] = []
    if most == 0:
        return items
    async for item in pipeline:
        items.append(item)
        if len(items) == most:
            break
    return items
