"""One graph on several ranks of this process, and the plain sequential program that they compute together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import numpy as np

import actorflow as af
from actorflow.actors.frame import Frame
from actorflow.core import FrameState
from actorflow.transport.base import Transport
from actorflow.transport.local import LocalWorld
from tests.support.recipes import Array, Recipe, Reference, Step, evaluate, initial, is_view

#: Where ops and blobs of random graphs are.
PLACES = ("0/cpu", "1/cpu", "1/cpu", "2/cpu", "0/sim:0", "2/sim:0")
RANKS = 3


class PlantedError(Exception):
    pass


class Rank:
    """The recipe as the graph of one rank.

    Attributes:
        armed: The op that fails, and the frame in which it does.
    """

    def __init__(self, recipe: Recipe, world: Transport) -> None:
        self.recipe = recipe
        self.rank = rank = world.rank
        self.armed: tuple[int, int] | None = None
        self.graph = af.Graph("ranks", world=world, sequential=recipe.sequential)
        count = len(recipe.sources)
        values: dict[int, af.Blob] = {}
        # Each rank builds in an order of its own, as far as one may.
        order = np.random.default_rng([recipe.seed, rank]).permutation(recipe.first_blob)
        for i in map(int, order):
            if i < count:
                values[i] = self.graph.blob(f"x{i}", recipe.sources[i], "float64", recipe.home(i))
            else:
                shape = recipe.variables[i - count]
                values[i] = self.graph.variable(f"w{i}", shape, "float64", initial(i - count, shape), recipe.home(i))
        self.values = [values[i] for i in range(recipe.first_blob)]
        self.ops = [self._add(index, step) for index, step in enumerate(recipe.steps)]
        self.fetch = [*self.values[count:], self.graph]
        self.frames: list[Frame] = []
        self._record_frames()

    def _add(self, index: int, step: Step) -> af.Op:
        inputs = [self.values[i] for i in step.inputs]
        if step.target == len(self.values):
            self.values.append(self.graph.blob(f"y{index}", step.shape, "float64", step.place))
        options: dict[str, Any] = {"place": step.place, "lane": step.lane}
        if step.kind == "kernel" and all(blob.shape == step.shape for blob in inputs):
            op = self.graph.op(f"op{index}", af.ops.Sum() if len(inputs) > 1 else af.ops.Scale(0.75), **options)
        elif is_view(step, [blob.shape for blob in inputs]):
            op = self.graph.op(f"op{index}", af.ops.Reshape(step.shape), **options)
        else:
            options |= {"retries": step.retries, "backoff": 1e-4 * step.retries}
            op = self.graph.function(f"op{index}", self._function(index, step), concurrency=step.concurrency, **options)
        inputs >> op >> [self.values[step.target]]
        return op

    def _function(self, index: int, step: Step) -> Callable[..., Any]:
        def plain(*values: Array) -> Array:
            # Frames come in order: the one that has not been told of the end of `index` yet.
            if self.armed is not None and self.armed[0] == index:
                self.armed = None
                raise PlantedError(index)
            return evaluate(index, step, list(values))

        async def asynchronous(*values: Array) -> Array:
            for _ in range(index % 3):
                await asyncio.sleep(0)
            return plain(*values)

        return asynchronous if step.kind == "async" else plain

    def _record_frames(self) -> None:
        engine = self.graph.engine
        start = engine.start

        def recording(program: Any, feeds: Any, atomic: bool = False) -> Frame:
            frame = start(program, feeds, atomic)
            self.frames.append(frame)
            return frame

        engine.start = recording  # type: ignore[method-assign]

    def fetched(self, result: Any) -> dict[int, Array]:
        return {i: af.to_numpy(result[blob]) for i, blob in enumerate(self.values) if blob.name in result}


class World:
    """All ranks of one recipe, and its plain program."""

    def __init__(self, recipe: Recipe, seed: int | None) -> None:
        self.recipe = recipe
        self.local = LocalWorld(RANKS, seed)
        self.ranks = [Rank(recipe, transport) for transport in self.local.transports]
        self.reference = Reference(recipe)
        self.fed = 0

    async def on_all(self, work: Callable[[Rank], Awaitable[Any]]) -> list[Any]:
        """Do something on all ranks at once; errors of actorflow are results."""

        async def one(rank: Rank) -> Any:
            try:
                return await work(rank)
            except af.ActorflowError as error:
                return error

        async with asyncio.timeout(100):
            return await asyncio.gather(*map(one, self.ranks))

    def feeds(self, count: int) -> list[list[Array]]:
        generator = np.random.default_rng([self.recipe.seed, self.fed])
        self.fed += count
        return [[generator.standard_normal(shape) for shape in self.recipe.sources] for _ in range(count)]

    async def run(self, feeds: list[list[Array]]) -> list[Any]:
        """Frames with all of these feeds, at once or as a stream, on all ranks; what each rank fetched, by frame."""
        recipe = self.recipe

        async def work(rank: Rank) -> list[Any]:
            dicts = [{f"x{i}": value for i, value in enumerate(feed)} for feed in feeds]
            if not recipe.streams:
                runs = [rank.graph.run(feed, fetch=rank.fetch, atomic=recipe.atomic) for feed in dicts]
                return await asyncio.gather(*runs, return_exceptions=True)
            results: list[Any] = []
            stream = rank.graph.stream(dicts, fetch=rank.fetch, in_flight=recipe.in_flight, atomic=recipe.atomic)
            async with aclosing(stream):
                try:
                    async for result in stream:
                        results.append(result)
                except af.ActorflowError as error:
                    results.append(error)
            return results

        return await self.on_all(work)

    def check(self, feeds: list[list[Array]], results: list[Any]) -> None:
        """Put what each frame has updated into the plain program, frame by frame, and compare everything."""
        recipe, reference = self.recipe, self.reference
        frames = [rank.frames for rank in self.ranks]
        for number in range(max(map(len, frames), default=0)):
            values, new = reference.frame(feeds[number])
            for rank, result in zip(self.ranks, results, strict=True):
                if number < len(result) and not isinstance(result[number], BaseException):
                    for i, value in rank.fetched(result[number]).items():
                        np.testing.assert_array_equal(
                            value, values[i], err_msg=f"rank {rank.rank} {rank.values[i].name}"
                        )
            for target, value in new.items():
                home = self.ranks[af.Place.parse(recipe.home(target)).rank]
                if number < len(home.frames) and f"w{target}" in home.frames[number].updated:
                    reference.state[target - len(recipe.sources)] = value
        for rank in self.ranks:
            rank.frames.clear()
            for i, expected in enumerate(reference.state, len(recipe.sources)):
                if rank.values[i].place.rank == rank.rank:
                    np.testing.assert_array_equal(rank.values[i].value, expected, err_msg=rank.values[i].name)

    async def aclose(self) -> None:
        await self.on_all(lambda rank: rank.graph.aclose())
        for transport in self.local.transports:
            transport.close()

    def count(self, state: FrameState) -> int:
        """Frames that ended so, on all ranks."""
        return sum(frame.state is state for rank in self.ranks for frame in rank.frames)
