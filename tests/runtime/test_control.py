"""Pausing, stepping, resuming, cancelling: exactly the frames that may start do, in their order; nothing hangs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.testing import virtual_time_loop
from tests.ranks.conftest import Ranks
from tests.support.waiting import settle

INT = af.TensorSpec.of((), "int64")


@dataclass
class Adder:
    """A graph that adds what it is fed to a variable, and waits in the middle of each frame until it is let go."""

    graph: af.Graph = field(default_factory=lambda: af.Graph("adder"))
    entered: list[int] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        graph = self.graph
        self.x, self.total = graph.blob("x", (), "int64"), graph.variable("total", (), "int64")
        self.y = graph.blob("y", (), "int64")

        async def hold(x: np.ndarray) -> np.ndarray:
            self.entered.append(int(x))
            await self.gate.wait()
            return x

        held = graph.function("hold", hold, INT, concurrency=1000)(self.x)
        [self.total, held] >> graph.function("add", lambda total, x: (total + x, total + x)) >> [self.total, self.y]
        self.gate.set()

    async def add(self, x: int, **options: Any) -> int:
        return int((await self.graph.run({self.x: x}, **options))[self.y])

    def begin(self, *numbers: int) -> list[asyncio.Task[int]]:
        """A task for each run; they have come to where they wait when this returns from `settle`."""
        return [asyncio.create_task(self.add(number)) for number in numbers]

    @property
    def started(self) -> int:
        return self.graph.engine.frames.started


@pytest.fixture
async def adder(calls_count_as_short: None) -> AsyncIterator[Adder]:
    made = Adder()
    async with made.graph:
        assert await made.add(0) == 0  # planned, and known to be short
        for _ in range(4):
            await made.add(0)
        made.entered.clear()
        yield made


class TestPause:
    async def test_frames_in_flight_end_and_no_other_starts(self, adder: Adder) -> None:
        adder.gate.clear()
        (first,) = adder.begin(1)
        await settle()
        adder.graph.pause("for a look")
        later = adder.begin(2, 3)
        await settle()
        assert adder.entered == [1]
        pause = adder.graph.paused
        assert pause is not None
        assert (pause.reason, pause.steps, pause.waiting) == ("for a look", 0, 2)
        assert str(pause) == "paused (for a look)"
        adder.gate.set()
        assert await first == 1
        await settle()
        assert not any(run.done() for run in later)
        adder.graph.resume()
        assert await asyncio.gather(*later) == [3, 6]
        assert adder.graph.paused is None

    async def test_those_that_waited_come_before_those_that_come_at_the_resume(self, adder: Adder) -> None:
        adder.graph.pause()
        waiting = adder.begin(1, 2, 3)
        await settle()
        adder.graph.resume()
        assert await adder.add(10) == 16  # called in the same step of the loop
        assert await asyncio.gather(*waiting) == [1, 3, 6]

    async def test_a_run_that_is_cancelled_in_the_line_takes_no_step(self, adder: Adder) -> None:
        adder.graph.pause()
        first, second = adder.begin(1, 2)
        await settle()
        adder.graph.step()
        first.cancel()
        assert await second == 2
        await asyncio.wait([first])
        assert first.cancelled()
        pause = adder.graph.paused
        assert pause is not None
        assert (pause.steps, pause.waiting) == (0, 0)

    async def test_a_wrong_feed_takes_no_step(self, adder: Adder) -> None:
        adder.graph.pause()
        wrong = asyncio.create_task(adder.graph.run({}))
        (right,) = adder.begin(5)
        await settle()
        adder.graph.step()
        with pytest.raises(af.FeedError):
            await wrong
        assert await right == 5

    async def test_the_time_of_a_run_goes_on(self, adder: Adder) -> None:
        adder.graph.pause("at night")
        with pytest.raises(af.RunTimeoutError, match=r"before its frame started; graph 'adder' is paused \(at night\)"):
            await adder.add(1, timeout=0.01)
        assert adder.graph.paused is not None
        assert adder.graph.paused.waiting == 0
        adder.graph.resume()
        assert await adder.add(2) == 2

    def test_what_is_left_of_its_time_is_what_its_frame_has(self) -> None:
        async def main() -> None:
            adder = Adder()
            loop = asyncio.get_running_loop()
            async with adder.graph:
                await adder.add(0)
                adder.gate.clear()
                adder.graph.pause()
                loop.call_later(3, adder.graph.resume)
                began_s = loop.time()
                with pytest.raises(af.RunTimeoutError, match="frame 1 timed out after 5 s"):
                    await adder.add(1, timeout=5)
                assert loop.time() - began_s == pytest.approx(5)

        with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
            runner.run(main())

    def test_a_paused_graph_is_no_stall(self) -> None:
        async def main() -> None:
            adder = Adder(af.Graph("adder", stall_limit=1))
            adder.gate.clear()
            async with adder.graph:
                (run,) = adder.begin(1)
                await settle()
                adder.graph.pause()
                await asyncio.sleep(100)  # on the virtual clock
                assert not run.done()
                adder.graph.resume()
                with pytest.raises(af.StallError):
                    await run

        with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
            runner.run(main())

    async def test_a_graph_may_change_while_it_is_paused(self, adder: Adder) -> None:
        adder.graph.pause()
        run = asyncio.create_task(adder.graph.run({adder.x: 2}))
        await settle()
        twice = adder.graph.function("twice", lambda y: 2 * y, INT)(adder.y)
        adder.graph.resume()
        assert int((await run)[twice]) == 4

    @pytest.mark.parametrize("stepped", [False, True])
    async def test_closing_cancels_those_that_wait_and_ends_the_pause(self, adder: Adder, stepped: bool) -> None:
        adder.graph.pause()
        runs = adder.begin(1, 2)
        stream = asyncio.create_task(anext(adder.graph.stream([{adder.x: 3}])))
        await settle()
        if stepped:
            adder.graph.step()  # the first has been woken, but is not there yet
        await adder.graph.aclose()
        await asyncio.wait([*runs, stream], timeout=60)
        assert all(task.cancelled() for task in [*runs, stream])
        assert adder.graph.paused is None
        assert await adder.add(4) == 4

    async def test_a_snapshot_is_taken_while_paused(self, adder: Adder) -> None:
        await adder.add(7)
        adder.graph.pause()
        (waiting,) = adder.begin(1)
        await settle()
        _, values = adder.graph.engine.snapshot([adder.total])
        assert [int(value) for value in await values] == [7]
        adder.graph.resume()
        assert await waiting == 8

    def test_a_graph_can_be_paused_before_it_runs(self) -> None:
        adder = Adder()
        adder.graph.pause()
        with pytest.raises(af.GraphError, match=r"graph 'adder' is paused: run_sync\(\) would wait for ever"):
            adder.graph.run_sync({adder.x: 1})
        adder.graph.resume()

        async def main() -> int:
            async with adder.graph:
                return await adder.add(1)

        assert asyncio.run(main()) == 1

    async def test_wrong_uses(self, adder: Adder) -> None:
        with pytest.raises(af.GraphError, match="graph 'adder' cannot be stepped: it is not paused"):
            adder.graph.step()
        adder.graph.pause()
        with pytest.raises(ValueError, match="frames must be at least 1, got 0"):
            adder.graph.step(0)
        part = adder.graph.subgraph("part")
        for call in (part.pause, part.resume, part.step, part.cancel):
            with pytest.raises(af.GraphError, match="is a sub-graph"):
                call()


class TestCancel:
    async def test_who_awaits_is_told_and_is_not_cancelled_itself(self, adder: Adder) -> None:
        adder.gate.clear()
        first, second = adder.begin(1, 2)
        await settle()
        number = adder.graph.engine.running[0].number
        assert adder.graph.cancel(number, reason="from a test") == [number]
        with pytest.raises(
            af.RunCancelledError, match=f"frame {number} of graph 'adder' was cancelled from a test"
        ) as e:
            await first
        assert (e.value.frame, e.value.updated) == (number, ())
        assert not first.cancelled()
        adder.gate.set()
        assert await second == 2  # as if the first one had never been
        assert adder.graph.engine.frames.cancelled == 1
        assert adder.graph.engine.frames.failed == 0
        assert not adder.graph.engine.errors

    async def test_a_frame_that_is_not_there(self, adder: Adder) -> None:
        adder.gate.clear()
        runs = adder.begin(1)
        await settle()
        with pytest.raises(af.GraphError, match="frame 99 of graph 'adder' is not in flight; in flight: 5"):
            adder.graph.cancel(99)
        adder.gate.set()
        await asyncio.gather(*runs)
        with pytest.raises(af.GraphError, match="in flight: none"):
            adder.graph.cancel(5)

    async def test_what_was_updated_is_said(self) -> None:
        graph, gate = af.Graph("two"), asyncio.Event()
        done, undone = graph.variable("done", (), "int64"), graph.variable("undone", (), "int64")
        [done] >> graph.function("quick", lambda n: n + 1) >> [done]

        async def never(n: np.ndarray) -> np.ndarray:
            await gate.wait()
            return n + 1

        [undone] >> graph.function("slow", never) >> [undone]
        async with graph:
            run = asyncio.create_task(graph.run())
            while not graph.engine.running or not graph.engine.running[0].updated:
                await asyncio.sleep(0)
            graph.cancel()
            with pytest.raises(af.RunCancelledError, match="variables updated before: done") as caught:
                await run
            assert caught.value.updated == ("done",)
            assert (int(done.value), int(undone.value)) == (1, 0)

    async def test_a_stream_ends_behind_the_results_before(self, adder: Adder) -> None:
        async with aclosing(adder.graph.stream([{adder.x: i} for i in (1, 2, 3)], in_flight=2)) as stream:
            results = [int((await anext(stream))[adder.y])]
            adder.gate.clear()  # before the third frame starts, which the first one made room for
            while 3 not in adder.entered:
                await asyncio.sleep(0)
            adder.graph.cancel(adder.graph.engine.running[-1].number)
            adder.gate.set()
            with pytest.raises(af.RunCancelledError):
                async for result in stream:
                    results.append(int(result[adder.y]))
        assert results == [1, 3]

    async def test_while_paused_those_that_wait_go_on_waiting(self, adder: Adder) -> None:
        adder.gate.clear()
        (running,) = adder.begin(1)
        await settle()
        adder.graph.pause()
        (waiting,) = adder.begin(2)
        await settle()
        assert len(adder.graph.cancel()) == 1
        with pytest.raises(af.RunCancelledError):
            await running
        adder.gate.set()
        await settle()
        assert not waiting.done()
        adder.graph.resume()
        assert await waiting == 2

    async def test_no_checkpoint_is_cancelled(self, adder: Adder) -> None:
        adder.gate.clear()
        (run,) = adder.begin(1)
        await settle()
        _, values = adder.graph.engine.snapshot([adder.total])
        assert len(adder.graph.cancel()) == 1
        with pytest.raises(af.GraphError, match="some of its updates may be missing"):
            await values
        with pytest.raises(af.RunCancelledError):
            await run

    async def test_an_atomic_frame_leaves_nothing(self, adder: Adder) -> None:
        adder.gate.clear()
        run = asyncio.create_task(adder.add(1, atomic=True))
        await settle()
        adder.graph.cancel()
        with pytest.raises(af.RunCancelledError):
            await run
        assert int(adder.total.value) == 0


class Source:
    """Feeds, and how many were asked for."""

    def __init__(self, adder: Adder, count: int) -> None:
        self.given = 0
        self._adder, self._count = adder, count

    async def feeds(self) -> AsyncIterator[dict[Any, int]]:
        for i in range(self._count):
            self.given += 1
            await asyncio.sleep(0)
            yield {self._adder.x: i}


async def one_feed(adder: Adder, come: asyncio.Event) -> AsyncIterator[dict[Any, int]]:
    """A source whose only feed takes its time."""
    await come.wait()
    yield {adder.x: 1}


class TestStream:
    async def test_more_in_flight_are_asked_for_at_once(self, adder: Adder) -> None:
        adder.gate.clear()
        async with aclosing(adder.graph.stream(Source(adder, 20).feeds(), in_flight=1)) as stream:
            assert adder.graph.streams == []
            first = asyncio.ensure_future(anext(stream))
            await settle()
            assert adder.graph.streams == [stream]
            assert (stream.in_flight, stream.held, stream.started) == (1, 1, 1)
            stream.in_flight = 4
            await settle()
            assert (stream.held, len(adder.entered)) == (4, 4)
            stream.in_flight = 2
            adder.gate.set()
            await first
            await settle()
            assert stream.held == 3
            await anext(stream)
            await settle()
            assert stream.held == 2
            rest = [int(result[adder.y]) async for result in stream]
            assert rest == list(np.cumsum(range(20)))[2:]
        assert adder.graph.streams == []
        with pytest.raises(ValueError, match="in_flight must be at least 1, got 0"):
            stream.in_flight = 0
        stream.in_flight = 3  # of one that has ended: no harm
        await settle()

    async def test_streams_are_numbered_and_forgotten(self, adder: Adder) -> None:
        streams = [adder.graph.stream([{adder.x: i}]) for i in range(3)]
        assert [stream.number for stream in streams] == [0, 1, 2]
        for stream in streams:
            await anext(stream)
        assert adder.graph.streams == streams
        await streams.pop(1).aclose()
        assert adder.graph.streams == streams
        for stream in streams:
            await stream.aclose()

    async def test_it_is_a_generator_like_any_other(self, adder: Adder) -> None:
        stream = adder.graph.stream([{adder.x: i} for i in range(3)])
        assert int((await stream.asend(None))[adder.y]) == 0
        with pytest.raises(LookupError, match="mine"):
            await stream.athrow(LookupError("mine"))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    async def test_one_step_is_for_one_of_several_streams(self, adder: Adder) -> None:
        sources = [Source(adder, 3) for _ in range(3)]
        adder.graph.pause()
        before = adder.started
        streams = [adder.graph.stream(source.feeds()) for source in sources]
        firsts = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await settle()
        for count in range(1, 4):  # they take turns
            adder.graph.step()
            await settle()
            assert adder.started == before + count
            assert [source.given for source in sources] == [1] * count + [0] * (3 - count)
            assert [first.done() for first in firsts] == [True] * count + [False] * (3 - count)
        adder.graph.step(2)
        await settle()
        assert [source.given for source in sources] == [2, 2, 1]
        for stream in streams:
            await stream.aclose()

    async def test_a_slow_source_keeps_its_step_and_holds_nobody_up(self, adder: Adder) -> None:
        come = asyncio.Event()

        adder.graph.pause()
        stream = adder.graph.stream(one_feed(adder, come))
        first = asyncio.ensure_future(anext(stream))
        await settle()
        (run,) = adder.begin(10)
        await settle()
        adder.graph.step()
        await settle()
        pause = adder.graph.paused
        assert pause is not None
        assert (pause.steps, pause.waiting, adder.entered) == (1, 1, [])
        adder.graph.step()
        assert await run == 10
        come.set()
        assert int((await first)[adder.y]) == 11
        pause = adder.graph.paused
        assert pause is not None
        assert pause.steps == 0
        await stream.aclose()

    @pytest.mark.parametrize("end", ["exhausted", "failed", "wrong", "left"])
    async def test_a_stream_that_does_not_use_its_step_gives_it_back(self, adder: Adder, end: str) -> None:
        asked = asyncio.Event()

        async def feeds() -> AsyncIterator[dict[Any, int]]:
            asked.set()
            if end == "left":
                await asyncio.Event().wait()
            if end == "failed":
                raise LookupError("the source")
            if end == "wrong":
                yield {}

        adder.graph.pause()
        stream = adder.graph.stream(feeds())
        first = asyncio.ensure_future(anext(stream))
        await settle()
        (run,) = adder.begin(3)
        adder.graph.step()
        await asked.wait()
        if end == "left":
            await settle()
            assert not run.done()
            first.cancel()
        assert await run == 3
        expected = {"exhausted": StopAsyncIteration, "failed": LookupError, "wrong": af.FeedError}
        with pytest.raises(expected.get(end, asyncio.CancelledError)):
            await first

    async def test_a_step_that_was_kept_is_gone_with_its_pause(self, adder: Adder) -> None:
        """A feed that has been asked for then waits in the line, where it was."""
        come = asyncio.Event()

        adder.graph.pause()
        stream = adder.graph.stream(one_feed(adder, come))
        first = asyncio.ensure_future(anext(stream))
        await settle()
        adder.graph.step()
        await settle()
        adder.graph.pause("none at all")
        come.set()
        await settle()
        pause = adder.graph.paused
        assert pause is not None
        assert (pause.steps, pause.waiting, adder.entered) == (0, 1, [])
        adder.graph.step()
        assert int((await first)[adder.y]) == 1
        await stream.aclose()

    async def test_fewer_in_flight_while_it_waits_for_a_step(self, adder: Adder) -> None:
        source = Source(adder, 5)
        async with aclosing(adder.graph.stream(source.feeds(), in_flight=2)) as stream:
            await anext(stream)
            stream.in_flight = 3
            adder.graph.pause()
            await settle()
            held, given = stream.held, source.given
            stream.in_flight = held
            adder.graph.step()
            await settle()
            assert (stream.held, source.given) == (held, given)
            assert adder.graph.paused is not None
            assert adder.graph.paused.steps == 1
            adder.graph.resume()
            assert len([result async for result in stream]) == 4


class Looks:
    """The looks of a graph's supervisor whether frames make progress: each is taken when the test says so."""

    def __init__(self, graph: af.Graph) -> None:
        self._due: list[Callable[[], None]] = []
        supervisor = graph.engine.observer.limits
        begin = supervisor.begin
        supervisor.begin = lambda frame, loop: begin(frame, self)  # type: ignore[method-assign, assignment, arg-type]

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> None:
        assert delay == 0.1
        self._due.append(partial(callback, *args))

    def take(self) -> None:
        due, self._due = self._due, []
        assert due
        for look in due:
            look()


class TestRanks:
    """A pause holds the frames of its rank; those of the others wait for its messages."""

    @staticmethod
    def build(graph: af.Graph) -> tuple[af.Blob, af.Blob]:
        x = graph.blob("x", (), "int64")
        y = graph.function("near", lambda x: x + 1, INT, place="0/cpu")(x)
        z = graph.function("far", lambda y: y * 2, INT, place="1/cpu")(y)
        return x, graph.function("back", lambda z: z - 1, INT, place="0/cpu")(z)

    async def test_the_others_wait_without_a_stall(self) -> None:
        ranks = Ranks(self.build, stall_limit=0.1)
        first, second = ranks.graphs
        Looks(first)
        looks = Looks(second)
        try:
            await ranks.all(lambda graph, built: graph.run({built[0]: 1}))
            first.pause()
            runs = asyncio.create_task(ranks.all(lambda graph, built: graph.run({built[0]: 2})))
            async with asyncio.timeout(100):
                while not (second.engine.queue.paused_ranks and second.engine.frames.in_flight):
                    await asyncio.sleep(0)
            for _ in range(6):  # over several limits the frame is where it was, and is left alone
                looks.take()
                await settle()
            assert second.engine.queue.paused_ranks == {0}
            assert (first.engine.frames.in_flight, second.engine.frames.in_flight) == (0, 1)
            first.resume()
            result, _ = await runs
            assert int(result[ranks.built[0][1]]) == 5
            assert not second.engine.queue.paused_ranks
        finally:
            await ranks.aclose()

    async def test_the_others_hear_of_a_pause_from_before_they_were_met(self) -> None:
        ranks = Ranks(self.build)
        try:
            first, second = ranks.graphs
            first.pause()
            runs = asyncio.create_task(ranks.all(lambda graph, built: graph.run({built[0]: 2})))
            async with asyncio.timeout(60):
                while not second.engine.queue.paused_ranks:
                    await asyncio.sleep(0)
            first.resume()
            result, _ = await runs
            assert int(result[ranks.built[0][1]]) == 5
        finally:
            await ranks.aclose()

    async def test_a_cancelled_frame_is_told_of_elsewhere(self) -> None:
        ranks = Ranks(self.build)
        try:
            await ranks.all(lambda graph, built: graph.run({built[0]: 1}))
            first, second = ranks.graphs
            second.pause()
            run = asyncio.create_task(first.run({ranks.built[0][0]: 2}))
            while not first.engine.running:
                await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(af.RunCancelledError):
                await run
            second.resume()
            with pytest.raises(af.PeerFailedError, match="was cancelled"):
                await second.run({ranks.built[1][0]: 2})
            results = await ranks.all(lambda graph, built: graph.run({built[0]: 3}))
            assert int(results[0][ranks.built[0][1]]) == 7
        finally:
            await ranks.aclose()
