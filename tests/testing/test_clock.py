"""The virtual-time loop: exact times, no waiting, and no jump while a thread works."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.testing import inject, virtual_time_loop

SPEC = af.TensorSpec.of((), "int64")


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """On a new loop of its own."""
    with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
        return runner.run(main)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_time_jumps_to_the_next_timer_and_is_exact() -> None:
    async def main() -> list[tuple[str, float]]:
        seen = []

        async def wait(name: str, *delays: float) -> None:
            for delay in delays:
                await asyncio.sleep(delay)
                seen.append((name, now()))

        await asyncio.gather(wait("a", 0.1, 0.2, 86_400), wait("b", 0.2, 0.2), wait("c", 1e-3))
        return seen

    assert run(main()) == [("c", 0.001), ("a", 0.1), ("b", 0.2), ("a", 0.3), ("b", 0.4), ("a", 86_400.3)]


def test_a_year_of_seconds() -> None:
    async def main() -> float:
        for _ in range(365):
            await asyncio.sleep(86_400 + 0.1)
        return now()

    assert run(main()) == pytest.approx(365 * 86_400 + 36.5, abs=1e-5)


def test_timeouts() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return now()

    assert run(main()) == 3600


def test_the_clock_stands_still_while_an_executor_works() -> None:
    async def main() -> float:
        release, started = threading.Event(), threading.Event()

        def work() -> float:
            started.set()
            assert release.wait(60)
            return 1.0

        loop = asyncio.get_running_loop()
        timer = loop.call_later(5, pytest.fail, "time passed while a thread worked")
        call = asyncio.create_task(asyncio.to_thread(work))
        # Ends in real time only, while the loop has nothing else to do than to wait.
        threading.Thread(target=lambda: started.wait(60) and release.set()).start()
        await call
        timer.cancel()
        assert now() == 0
        await asyncio.sleep(1)
        return now()

    assert run(main()) == 1


def test_the_clock_stands_still_while_an_executor_is_shut_down() -> None:
    """Which a runner does with a timeout, in a thread of its own."""
    found = []

    class Executor(ThreadPoolExecutor):
        def shutdown(self, *args: Any, **options: Any) -> None:
            found.append(loop.is_at_work)
            super().shutdown(*args, **options)

    with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
        loop = runner.get_loop()
        loop.set_default_executor(Executor())
        assert runner.run(asyncio.to_thread(int)) == 0
        assert not loop.is_at_work
    assert found[:1] == [True]  # closing asks again, without waiting
    assert loop.time() == 0


def test_the_clock_stands_still_while_a_lane_works() -> None:
    async def main() -> None:
        release, started = threading.Event(), threading.Event()

        def work() -> int:
            started.set()
            assert release.wait(60)
            return 1

        graph = af.Graph("lane")
        y = graph.function("work", work, SPEC)()
        threading.Thread(target=lambda: started.wait(60) and release.set()).start()
        async with graph:
            async with asyncio.timeout(1e-6):
                assert (await graph.run())[y] == 1
            assert now() == 0

    run(main())


def test_a_thread_that_sleeps_on_the_clock_lets_it_jump() -> None:
    async def main() -> None:
        graph = af.Graph("sleep")
        x = graph.blob("x", (), "int64")
        slow = graph.function("slow", lambda a: a + 1, SPEC, lane="left")(x)
        behind = graph.function("behind", lambda a: a + 2, SPEC, lane="left")(x)
        other = graph.function("other", lambda a: a + 3, SPEC, lane="right")(x)
        async with graph:
            with inject(graph, "slow", delay_s=60), inject(graph, "other", delay_s=90):
                result = await graph.run({x: 0})
                assert now() == 90
                assert [int(result[blob]) for blob in (slow, behind, other)] == [1, 2, 3]
                result = await graph.run({x: 1})
                assert now() == 180
        assert graph.engine.frames.finished == 2

    run(main())


def test_input_comes_before_the_next_timer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        left.setblocking(False)
        with left, right:
            loop.call_later(1, right.send, b"second")
            right.send(b"first")
            assert await loop.sock_recv(left, 10) == b"first"
            assert now() == 0
            assert await loop.sock_recv(left, 10) == b"second"
            assert now() == 1

    run(main())


def test_a_loop_that_is_closed_ends_sleeping_threads() -> None:
    graph = af.Graph("abandoned")
    graph.function("slow", lambda: 1, SPEC)()
    inject(graph, "slow", delay_s=60)

    async def main() -> None:
        task = asyncio.create_task(graph.run())
        while not graph.engine.resources.lanes_at_work():
            await asyncio.sleep(0)
        task.cancel()

    run(main())
    asyncio.run(graph.aclose())
    assert graph.engine.frames.in_flight == 0


class TestPolicies:
    """The engine's use of time, to the microsecond."""

    @pytest.mark.parametrize("kind", ["plain", "async"])
    def test_backoff_doubles(self, kind: str) -> None:
        async def main() -> None:
            calls: list[float] = []
            loop = asyncio.get_running_loop()

            def flaky() -> int:
                calls.append(loop.time())
                if len(calls) < 4:
                    raise ConnectionError
                return 1

            async def flaky_later() -> int:
                return flaky()

            graph = af.Graph("backoff")
            fn = flaky if kind == "plain" else flaky_later
            y = graph.function("flaky", fn, SPEC, retries=3, backoff=0.5)()
            async with graph:
                assert (await graph.run())[y] == 1
            assert calls == [0, 0.5, 1.5, 3.5]

        run(main())

    @pytest.mark.together("delay_s", [0.999, 1.001])
    @pytest.mark.together("kind", ["plain", "async", "kernel"])
    def test_an_ops_timeout(self, kind: str, delay_s: float) -> None:
        async def double(a: np.ndarray) -> np.ndarray:
            return a * 2

        async def main() -> None:
            graph = af.Graph("timeout")
            x = graph.blob("x", (), "float64")
            if kind == "kernel":
                y = graph.op("op", af.ops.Scale(2.0), timeout=1)(x)
            else:
                y = graph.function("op", double if kind == "async" else lambda a: a * 2, x.spec, timeout=1)(x)
            async with graph:
                with inject(graph, "op", delay_s=delay_s):
                    if delay_s < 1:
                        assert (await graph.run({x: 4}))[y] == 8
                        assert now() == delay_s
                    else:
                        with pytest.raises(af.OpTimeoutError):
                            await graph.run({x: 4})
                        assert now() == 1
                # A thread cannot be stopped: the next call waits for it.
                assert (await graph.run({x: 4}))[y] == 8
                assert now() == (delay_s if delay_s < 1 or kind != "async" else 1)

        run(main())

    @pytest.mark.parametrize("kind", ["plain", "kernel"])
    def test_the_time_of_the_op_in_front_is_not_the_ops_own(self, kind: str) -> None:
        async def main() -> None:
            graph = af.Graph("timeout")
            x = graph.blob("x", (), "float64")
            y = graph.function("first", lambda a: a + 1, x.spec)(x)
            if kind == "kernel":
                z = graph.op("second", af.ops.Scale(2.0), timeout=1)(y)
            else:
                z = graph.function("second", lambda a: a * 2, x.spec, timeout=1)(y)
            async with graph:
                with inject(graph, "first", delay_s=10):
                    assert (await graph.run({x: 4}))[z] == 10
                assert now() == 10

        run(main())

    def test_a_runs_timeout_and_the_stall_limit(self) -> None:
        async def main() -> None:
            async def slow() -> int:
                return 1

            graph = af.Graph("stall", stall_limit=100)
            graph.function("slow", slow, SPEC)()
            async with graph:
                with inject(graph, "slow", delay_s=1000, frames={0, 1}):
                    with pytest.raises(af.RunTimeoutError):
                        await graph.run(timeout=7)
                    assert now() == 7
                    with pytest.raises(af.StallError):
                        await graph.run()
                    assert 107 <= now() <= 207
                await graph.run()

        run(main())


class TestOverlap:
    def test_three_stages_take_their_frames_at_once(self) -> None:
        async def stage(a: np.ndarray) -> np.ndarray:
            await asyncio.sleep(0.01)
            return a + 1

        async def main() -> float:
            graph = af.Graph("stages")
            x = y = graph.blob("x", (), "int64")
            for i in range(3):
                y = graph.function(f"stage{i}", stage, SPEC)(y)
            async with graph:
                got = [int(r[y]) async for r in graph.stream(({x: i} for i in range(100)), in_flight=3)]
            assert got == list(range(3, 103))
            return now()

        assert run(main()) == (100 + 2) * 0.01

    def test_a_hundred_waits_side_by_side(self) -> None:
        async def wait(a: np.ndarray) -> np.ndarray:
            await asyncio.sleep(0.01)
            return a

        async def main() -> float:
            graph = af.Graph("wide")
            x = graph.blob("x", (), "int64")
            for i in range(100):
                graph.function(f"wait{i}", wait, SPEC)(x)
            async with graph:
                assert len(await graph.run({x: 1})) == 100
            return now()

        assert run(main()) == 0.01

    def test_lanes_overlap_as_tasks_do(self) -> None:
        async def main() -> float:
            graph = af.Graph("lanes")
            x = y = graph.blob("x", (), "float64")
            for i in range(3):
                y = graph.op(f"stage{i}", af.ops.Scale(2.0), lane=f"lane{i}")(y)
            for i in range(3):
                inject(graph, f"stage{i}", delay_s=0.01)
            async with graph:
                got = [float(r[y]) async for r in graph.stream(({x: float(i)} for i in range(50)), in_flight=3)]
            assert got == [8.0 * i for i in range(50)]
            return now()

        assert run(main()) == (50 + 2) * 0.01
