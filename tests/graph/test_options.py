"""Options of how a graph runs: sequentially, dry, deterministically; and what watches over it."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import actorflow as af
from actorflow.devices import Lane, team
from actorflow.devices.team import Team
from actorflow.runtime import resources
from actorflow.testing import virtual_time_loop
from actorflow.testing.clock import sleep_in_thread

SPEC = af.TensorSpec.of((), "int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangeOptions(af.devices.DeviceOptions):
    """Of no kind of device that there is."""


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


class TestSequential:
    async def test_one_op_after_the_other_on_the_loop(self) -> None:
        calls: list[tuple[str, threading.Thread]] = []
        running = 0

        def plain(name: str):
            return lambda *values: calls.append((name, threading.current_thread())) or len(values)

        async def task(*values: np.ndarray) -> int:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            running -= 1
            return plain("task")(*values)

        graph = af.Graph("sequential", sequential=True)
        x = graph.blob("x", (), "int64")
        outputs = [graph.function(f"plain{i}", plain(f"plain{i}"), SPEC, lane=f"lane{i}")(x) for i in range(3)]
        outputs += [graph.function(f"task{i}", task, SPEC)(x) for i in range(3)]
        graph.function("last", plain("last"), SPEC)(*outputs)
        async with graph:
            for _ in range(3):
                calls.clear()
                await graph.run({x: 1})
                names = [name for name, _ in calls]
                assert names == ["plain0", "plain1", "plain2", "task", "task", "task", "last"]
                assert {thread for _, thread in calls} == {threading.main_thread()}


@dataclass(frozen=True, slots=True, eq=False)
class Look(af.ops.Operation):
    """Its input; notes the threads of BLAS."""

    seen: list[set[int]]
    arguments = ("x",)
    differentiable = False

    def infer(self, x: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return (x,)

    def compute(self, x: Any) -> Any:
        self.seen.append(blas_threads())
        return x


class TestDryRun:
    async def test_types_without_computing(self) -> None:
        graph = af.Graph("dry", dry_run=True)
        x = graph.blob("x", (128, 10))
        w = graph.variable("w", (16, 10))
        y = af.ops.inner(x, w)
        z = graph.function("never", lambda a: pytest.fail("it ran"), af.TensorSpec.of(()))(y)
        async with graph:
            result = await graph.run({x: np.ones((128, 10), "f")}, fetch=[y, z])
            assert result[y] == af.TensorSpec.of((128, 16))
            assert str(result[z]) == "float32[]"
            with pytest.raises(af.ShapeError):
                await graph.run({x: np.ones((128, 11), "f")})
            assert [r[z].shape async for r in graph.stream([{x: np.ones((128, 10), "f")}] * 3)] == [()] * 3


class TestDeterministic:
    async def test_blas_stays_on_one_thread(self) -> None:
        before = blas_threads()
        graph = af.Graph("deterministic", deterministic=True)
        x, y = graph.blob("x", (4, 4)), graph.constant(np.ones((4, 4), "f"))
        of_runs: list[set[int]] = []
        of_constants: list[set[int]] = []
        graph.op("run", Look(of_runs))(x) + graph.op("fold", Look(of_constants))(y)
        async with graph:
            await graph.run({x: np.ones((4, 4), "f")})
        assert of_constants == of_runs == [{1}]
        assert blas_threads() == before

    async def test_not_after_its_device_could_not_be_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(team, "cores", lambda: 2)  # so that on one core, too, lanes are told from a kept thread
        limits = Team()
        monkeypatch.setattr(resources, "team", limits)
        graph = af.Graph("deterministic", deterministic=True, devices={"sim:0": StrangeOptions()})
        y = af.ops.exp(graph.blob("x", (4,), place="sim:0"), name="y")
        for _ in range(2):
            with pytest.raises(af.DeviceError, match="takes SimOptions, got StrangeOptions"):
                await graph.run({"x": np.zeros(4, "f")}, fetch=y)
        await graph.aclose()
        assert limits.share == 2


@dataclass(frozen=True, slots=True, eq=False)
class Sleep(af.ops.Operation):
    """Its input, after 70 s on the loop's clock once it knows its lane."""

    loop: asyncio.AbstractEventLoop
    lanes: list[Lane] = field(default_factory=list)
    arguments = ("x",)
    differentiable = False

    def infer(self, x: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return (x,)

    def compute(self, x: Any) -> Any:
        for lane in self.lanes:
            sleep_in_thread(self.loop, lane, 70)
        return x


class TestStall:
    async def test_a_frame_without_progress_fails_with_what_it_waits_for(self) -> None:
        async def never() -> int:
            await asyncio.Event().wait()
            return 1

        graph = af.Graph("stall", stall_limit=0.01)
        y = graph.function("never", never, SPEC)()
        graph.function("after", lambda a, b: a, SPEC)(y, y)
        async with graph:
            with pytest.raises(af.StallError) as caught:
                await graph.run()
        message = str(caught.value)
        assert "frame 0 made no progress for 0.01 s; running: 'never'" in message
        assert "op 'after' waits for 2 of 2 inputs: op 'never', 'never'" in message

    async def test_a_frame_that_waits_for_a_variable(self) -> None:
        async def never(value: np.ndarray) -> int:
            await asyncio.Event().wait()
            return 1

        graph = af.Graph("stall")
        n = graph.variable("n", (), "int64")
        [n] >> graph.function("never", never) >> [n]
        async with graph:
            first = asyncio.create_task(graph.run())
            await asyncio.sleep(0)
            with pytest.raises(af.RunTimeoutError) as caught:
                await graph.run(timeout=0.005)
            first.cancel()
            await asyncio.wait([first])
        message = str(caught.value)
        assert "frame 1 timed out after 0.005 s; running: nothing" in message
        assert "op 'never' waits for 1 of 1 inputs: an earlier frame's turn at a variable" in message

    def test_progress_is_no_stall(self) -> None:
        async def step(a: np.ndarray) -> np.ndarray:
            await asyncio.sleep(2)  # on the virtual clock: the limit passes several times in a run, never in a step
            return a

        async def main() -> None:
            graph = af.Graph("slow", stall_limit=5)
            y = x = graph.blob("x", (), "int64")
            for i in range(60):
                y = graph.function(f"step{i}", step, SPEC)(y)
            async with graph:
                assert (await graph.run({x: 7}))[y] == 7

        with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
            runner.run(main())

    def test_each_end_on_a_lane_is_progress(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The loop is told when nothing is left to do there, which is later than the limit."""
        for name in ("INLINE_NS", "INLINE_ALONE_NS", "LONG_NS", "SLICE_NS"):
            monkeypatch.setattr(
                f"actorflow.actors.op.{name}", 0
            )  # on the loop, a call would keep the clock from going on

        async def main() -> None:
            sleep = Sleep(asyncio.get_running_loop())
            graph = af.Graph("slow", stall_limit=100)
            y = x = graph.blob("x", (), "int64")
            for i in range(6):
                y = graph.op(f"step {i}", sleep)(y)
            async with graph:
                for _ in range(2):
                    await graph.run({x: 7})
                ops = [*graph.engine._programs.values()][-1].ops
                sleep.lanes.append(ops[0].lane)
                assert (await graph.run({x: 7}))[y] == 7
            assert sleep.loop.time() == 6 * 70

        with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
            runner.run(main())


@pytest.fixture
def reported(caplog: pytest.LogCaptureFixture) -> Iterator[threading.Event]:
    """Set when something is logged."""
    event, handler = threading.Event(), logging.Handler()
    handler.emit = lambda record: event.set()  # type: ignore[method-assign]
    logging.getLogger("actorflow").addHandler(handler)
    with caplog.at_level(logging.WARNING, "actorflow"):
        yield event
    logging.getLogger("actorflow").removeHandler(handler)


class TestBlocking:
    async def test_the_op_that_blocks_the_loop_is_named_with_its_stack(
        self, reported: threading.Event, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def blocks_the_loop() -> None:
            assert reported.wait(60)

        graph = af.Graph("blocked", block_limit=0.01)
        graph.function("culprit", blocks_the_loop)
        async with graph:
            await graph.run()
        assert "task 'culprit' has blocked the event loop for 0.01 s" in caplog.text
        assert "in blocks_the_loop" in caplog.text

    def test_each_loop_is_watched(self, reported: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
        async def blocks_the_loop(blocks: Any) -> Any:
            assert not blocks or reported.wait(60)
            return blocks

        graph = af.Graph("blocked", block_limit=0.01)
        blocks = graph.blob("blocks", (), "bool")
        graph.function("culprit", blocks_the_loop, blocks.spec)(blocks)
        graph.run_sync({blocks: False})
        before = threading.active_count()
        reported.clear()
        graph.run_sync({blocks: True})
        assert threading.active_count() <= before
        asyncio.run(graph.aclose())
        assert "in blocks_the_loop" in caplog.text
