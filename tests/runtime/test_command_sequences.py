"""Any sequence of pauses, steps, resumptions, cancellations and runs: the frames that may start do, in their order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow.testing import interleave
from tests.support.waiting import come_to_rest, settle

INT = af.TensorSpec.of((), "int64")
EXAMPLES = max(25, settings.default.max_examples // 3)

COMMANDS = st.lists(
    st.one_of(
        st.sampled_from(["pause", "resume", "cancel", "cancel first", "drop", "wait", "snapshot"]),
        st.tuples(st.sampled_from(["run", "step", "stream", "in_flight"]), st.integers(1, 4)),
    ),
    max_size=25,
)


def mixed(total: Any, x: Any) -> Any:
    """Value that depends on the order of all that has been mixed in."""
    return (total * 3 + x) % 1_000_003


@dataclass
class Story:
    """Runs commands against a graph, and follows what must have become of its frames."""

    seed: int
    limit: int | None = None  # frames that may have started by now; None while the graph is not paused

    def __post_init__(self) -> None:
        graph = af.Graph("story")
        self.x, self.total = graph.blob("x", (), "int64"), graph.variable("total", (), "int64")
        self.y = graph.blob("y", (), "int64")

        async def slow(x: np.ndarray) -> np.ndarray:
            for _ in range(int(x) % 5):
                await asyncio.sleep(0)
            return x

        passed = graph.function("slow", slow, INT, concurrency=3)(self.x)
        mix = graph.function("mix", lambda total, x: (mixed(total, x), mixed(total, x)))
        [self.total, passed] >> mix >> [self.total, self.y]
        interleave(graph, self.seed)
        self.graph, self.next = graph, 1
        self.order: list[int] = []  # feeds, as their frames have started
        self.results: dict[int, int] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        start = graph.engine.start

        def started(program: Any, feeds: Any, atomic: bool = False) -> Any:
            frame = start(program, feeds, atomic)
            if feeds:
                self.order.append(int(feeds[self.x]))
                assert self.limit is None or len(self.order) <= self.limit, "a frame started that might not"
                self.frames[int(feeds[self.x])] = frame
            return frame

        self.frames: dict[int, Any] = {}
        graph.engine.start = started  # type: ignore[method-assign]

    def feed(self) -> dict[af.Blob, int]:
        self.next += 1
        return {self.x: self.next - 1}

    async def run(self) -> None:
        feed = self.feed()
        with suppress(af.RunCancelledError):
            self.results[feed[self.x]] = int((await self.graph.run(feed))[self.y])

    async def stream(self, in_flight: int) -> None:
        given: list[int] = []

        async def feeds() -> AsyncIterator[dict[af.Blob, int]]:
            for _ in range(6):
                feed = self.feed()
                given.append(feed[self.x])
                yield feed
                await asyncio.sleep(0)

        with suppress(af.RunCancelledError):
            async with aclosing(self.graph.stream(feeds(), in_flight=in_flight)) as results:
                count = 0
                async for result in results:
                    self.results[given[count]] = int(result[self.y])
                    count += 1

    async def snapshot(self) -> None:
        with suppress(af.GraphError):  # a frame before it was cancelled, so that updates may be missing
            await self.graph.engine.snapshot([self.total])[1]

    async def do(self, command: Any) -> None:
        name, number = command if isinstance(command, tuple) else (command, 0)
        graph, make = self.graph, asyncio.create_task
        actions: dict[str, Callable[[], Any]] = {
            "pause": graph.pause,
            "resume": graph.resume,
            "cancel": graph.cancel,
            "run": lambda: self.tasks.extend(make(self.run()) for _ in range(number)),
            "stream": lambda: self.tasks.append(make(self.stream(number))),
            "snapshot": lambda: self.tasks.append(make(self.snapshot())),
            "drop": lambda: self.tasks and self.tasks[-1].cancel(),
            "in_flight": lambda: [setattr(stream, "in_flight", number) for stream in graph.streams],
        }
        if name == "pause":
            self.limit = len(self.order)
        elif name == "resume":
            self.limit = None
        if name in actions:
            actions[name]()
        elif name == "cancel first":
            frames = [f for f in graph.engine.running if f in self.frames.values() and f.state.value == "running"]
            if frames:
                assert graph.cancel(frames[0].number) == [frames[0].number]
        elif name == "step":
            if self.limit is None:
                with pytest.raises(af.GraphError):
                    graph.step(number)
            else:
                self.limit += number
                graph.step(number)
        else:
            await settle()

    async def tell(self, commands: list[Any]) -> None:
        async with self.graph, asyncio.timeout(60):
            for command in commands:
                await self.do(command)
            if self.limit is not None:  # all that may start does, and no more
                asked = self.limit - len(self.order)
                await settle()
                pause = self.graph.paused
                assert pause is not None
                assert pause.steps == self.limit - len(self.order) <= asked
                assert not pause.steps or not pause.waiting
            self.limit = None
            self.graph.resume()
            outcomes = await asyncio.gather(*self.tasks, return_exceptions=True)
            assert all(o is None or isinstance(o, asyncio.CancelledError) for o in outcomes), outcomes
        self.check()

    def check(self) -> None:
        """The results are those of the frames one after the other; a cancelled one has updated all or nothing."""
        total = 0
        for number in self.order:
            if self.frames[number].updated:
                total = mixed(total, number)
            if number in self.results:
                assert self.results[number] == total
            else:
                assert self.frames[number].state.value in {"cancelled", "finished"}
        assert int(self.total.value) == total


@settings(max_examples=EXAMPLES)
@given(
    streams=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=5),
    commands=st.lists(st.tuples(st.sampled_from(["step", "run", "look"]), st.integers(1, 4)), max_size=12),
    seed=st.integers(0, 2**16),
)
def test_each_step_is_one_frame_and_one_feed(
    streams: list[tuple[int, int, int]], commands: list[tuple[str, int]], seed: int
) -> None:
    """Streams of so many feeds, with so many frames in flight, whose sources take so long; and runs among them."""

    async def main() -> None:
        story = Story(seed, limit=0)
        graph, given = story.graph, [0]
        graph.pause()
        results: list[list[int]] = [[] for _ in streams]

        async def feeds(number: int, count: int, slowness: int) -> AsyncIterator[dict[af.Blob, int]]:
            for at in range(count):
                for _ in range(slowness):
                    await asyncio.sleep(0)
                given[0] += 1
                yield {story.x: 100 * (number + 1) + at}

        async def follow(number: int, count: int, in_flight: int, slowness: int) -> None:
            async with aclosing(graph.stream(feeds(number, count, slowness), in_flight=in_flight)) as stream:
                async for result in stream:
                    results[number].append(int(result[story.y]))

        for number, (count, in_flight, slowness) in enumerate(streams):
            story.tasks.append(asyncio.create_task(follow(number, count, in_flight, slowness)))
        there, stepped = sum(count for count, _, _ in streams), 0
        async with graph, asyncio.timeout(60):
            for name, number in commands:
                if name == "step":
                    stepped += number
                    await story.do((name, number))
                elif name == "run":
                    there += number
                    await story.do((name, number))
                await come_to_rest(graph)
                runs = sum(feed < 100 for feed in story.order)
                assert given[0] == len(story.order) - runs, "a feed was asked for that could not be used"
                assert len(story.order) == min(stepped, there), "a step was lost, or used twice"
            story.limit = None
            graph.resume()
            await asyncio.gather(*story.tasks)
        story.check()
        totals, total = {}, 0
        for feed in story.order:
            totals[feed] = total = mixed(total, feed)
        for number, (count, _, _) in enumerate(streams):
            own = [feed for feed in story.order if feed // 100 == number + 1]
            assert own == [100 * (number + 1) + at for at in range(count)]
            assert results[number] == [totals[feed] for feed in own]

    asyncio.run(main())


@pytest.mark.parametrize("loop_factory", ["asyncio", "uvloop"])
@settings(max_examples=EXAMPLES)
@given(commands=COMMANDS, seed=st.integers(0, 2**16))
def test_any_sequence_of_commands(loop_factory: str, commands: list[Any], seed: int) -> None:
    factory = pytest.importorskip(loop_factory).new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(Story(seed).tell(commands))
