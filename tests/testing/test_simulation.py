"""Whole programs from a seed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.testing import Faults, InjectedError, SimulationError, shrink, simulate
from tests.support.effort import FULL
from tests.testing.simulated_programs import KINDS, Program, outcome

SEEDS = 20_000 if FULL else 12  # of each kind: 276 together, in 9 s of a core
#: Seeds that have found something, which was mended.
FOUND = {"variables": [5_001_323]}
PACKAGE = Path(af.__file__).parent
#: What a seed names, how code reaches it, and the modules that do so by themselves, with why a simulation does without.
PLACES: dict[str, tuple[str, dict[str, str]]] = {
    "time and threads": (
        r"^from time import|\btime\.\w+\(|\bthreading\.(Thread|Timer)\(|ThreadPoolExecutor|start_new_thread"
        r"|multiprocessing|datetime",
        {
            "core/": "has the clock",
            "threads.py": "starts the threads, and none in a simulation",
            "cli/": "is a program of its own",
            "web/": "shows a graph as it runs, by the time of day",
            "serve/": "measures how long requests take, for the statistics alone",
            "transport/mpi/": "connects processes",
            "pipeline/processes/": "is about processes",
            "pipeline/calls/options.py": "says at what time of day an item was skipped",
            "nn/progress.py": "refreshes a terminal",
            "trace/": "tells the time of day of its clock's zero",
            "devices/team.py": "shares cores, of which a simulation uses one",
            "ops/cpu/blocks.py": "measures its own parts, for the statistics alone",
            "runtime/batched.py": "measures how long requests take, for the statistics alone",
            "runtime/sessions.py": "measures how long steps take, for the statistics alone",
            "runtime/resources.py": "says at what time of day something failed",
            "runtime/pause.py": "says at what time of day a graph was paused",
            "testing/faults.py": "blocks the loop of a sequential graph for a time",
            "testing/conformance/": "measures a transport",
        },
    ),
    "files that are written": (
        r"\b(write_bytes|write_text|mkdir|unlink|mkstemp|rmtree|copytree|TemporaryDirectory|NamedTemporaryFile)\("
        r"|\bos\.(open|replace|rename|remove)\(|\bopen\([^)]*[\"'][wax]b?[\"']",
        {
            "checkpoint/": "asks the simulation before each step",
            "testing/disk.py": "is the disk of the simulation",
            "cli/": "is a program of its own",
            "trace/recording.py": "writes one file at once, which nothing reads again",
            "transport/mpi/": "connects processes",
            "web/control.py": "makes a file for a page, and deletes it",
        },
    ),
    "numbers that nothing seeds": (
        r"\brandom\.(random|rand\w+|choice\w*|shuffle|sample|uniform|gauss)\(|default_rng\(\)|SeedSequence\(\w*\)|urandom"
        r"|SystemRandom|\bsecrets\.|\buuid",
        {
            "array/namespace/creation.py": "draws its seeds from the simulation's",
            "pipeline/processes/": "is about processes",
            "ops/cpu/fills.py": "draws from the stream of a frame, which is called random",
            "transport/mpi/": "connects processes",
            "web/server.py": "makes a password",
        },
    ),
}


def digest(seeds: range) -> str:
    """What all programs do under some seeds, as one number."""
    return hashlib.sha256(repr([outcome(name, seed) for name in KINDS for seed in seeds]).encode()).hexdigest()


@pytest.mark.parametrize("name", KINDS)
def test_programs_hold_what_they_promise(name: str) -> None:
    for seed in [*range(SEEDS), *FOUND.get(name, [])]:
        outcome(name, seed)


@pytest.mark.parametrize("name", KINDS)
def test_a_seed_gives_the_same_again(name: str) -> None:
    found = [outcome(name, seed) for seed in (0, 0, 1, 1, 2)]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[0] != found[4]


@pytest.mark.slow
def test_both_forms_of_the_core_do_the_same() -> None:
    code = "from tests.testing.test_simulation import digest\nprint(digest(range(12)))"
    found = {
        form: subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "ACTORFLOW_CORE": form, "PYTHONHASHSEED": form},
            cwd=PACKAGE.parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for form in ("0", "")
    }
    assert found["0"] == found[""]


def test_time_jumps() -> None:
    async def program() -> float:
        await asyncio.sleep(86_400)
        return await asyncio.to_thread(lambda: 1.5)

    found = simulate(program, seed=0, time_limit_s=1e5)
    assert found.value == 1.5
    assert 86_400 < found.time_s < 86_401


def test_lanes_wait_for_each_other_in_any_order() -> None:
    """What is independent goes in several orders, which the values do not show."""

    async def program() -> list[str]:
        calls: list[str] = []
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])
            parts = [graph.function(name, lambda a, name=name: (calls.append(name), a)[1], x.spec)(x) for name in "abc"]
            y = af.ops.sum(af.ops.stack(parts))
            assert (await graph.run({x: 2}))[y] == 6
        return calls

    orders = {tuple(simulate(program, seed=seed).value) for seed in range(40)}
    assert len(orders) == 6


def test_nothing_can_happen() -> None:
    async def program() -> None:
        await asyncio.get_running_loop().create_future()

    # The limit is a timer, too.
    with pytest.raises(SimulationError, match=r"not ended after 50 s of its time: no frame is in flight"):
        simulate(program, seed=0, time_limit_s=50)


def test_a_program_that_does_not_end_is_told_with_what_it_waits_for() -> None:
    async def program() -> None:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])

            async def hang(a: np.ndarray) -> np.ndarray:
                await asyncio.sleep(1e6)
                return a

            y = graph.function("hang", hang, x.spec)(x)
            await graph.run({x: 1}, fetch=y)

    with pytest.raises(SimulationError, match=r"frame 0 of graph 'g', running: 'hang'") as caught:
        simulate(program, seed=3, faults=Faults(slow=0.5), time_limit_s=10)
    assert caught.value.__notes__[-1].startswith("again: af.testing.simulate(program, seed=3, faults=Faults(slow=0.5)")


def test_a_failure_that_nobody_waits_for() -> None:
    async def program() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match=r"Exception in callback .*ZeroDivisionError"):
        simulate(program, seed=0)


def test_arrays_are_awaited() -> None:
    async def awaited(x: xp.Array) -> object:
        return await x

    async def program() -> None:
        with xp.session():
            x = xp.sum(xp.ones(3).to_device("sim:0"))
            waiting = asyncio.ensure_future(awaited(x))
            await asyncio.sleep(0)
            with pytest.raises(af.DeviceError, match="in a simulation, await it"):
                float(x)
            assert await waiting == 3

    simulate(program, seed=0)


def test_random_arrays_follow_from_the_seed() -> None:
    async def program() -> float:
        with xp.session():
            return float(await xp.sum(xp.randn(3)))

    found = [simulate(program, seed=seed).value for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


class TestConnections:
    @staticmethod
    async def program() -> tuple[int, int]:
        """Bytes come as they were sent, and back, however many there are at once."""
        waits = 0

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while part := await reader.read(1 << 15):
                writer.write(part)
                await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(echo, port=80)
        with pytest.raises(OSError, match="in use"):
            await asyncio.start_server(echo, port=80)
        reader, writer = await asyncio.open_connection("localhost", 80)
        sent = np.random.default_rng(0).bytes(300_000)
        for start in range(0, len(sent), 60_000):
            writer.write(sent[start : start + 60_000])
            waits += writer.transport.get_write_buffer_size() > 1 << 16
            await writer.drain()
        writer.write_eof()
        received = await reader.read()
        assert received == sent[: len(received)]
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError, match="nothing listens at port 80"):
            await asyncio.open_connection("localhost", 80)
        return len(received), waits

    def test_bytes_arrive(self) -> None:
        found = [simulate(self.program, seed=seed) for seed in range(10)]
        assert {each.value[0] for each in found} == {300_000}
        assert max(each.value[1] for each in found) > 0
        assert len({each.time_s for each in found}) == 10

    def test_some_are_lost(self) -> None:
        ends = set()
        for seed in range(20):
            try:
                ends.add(simulate(self.program, seed=seed, faults=Faults(hangs_up=0.5, late=0.5)).value[0])
            except ConnectionResetError as error:
                ends.add(str(error))
        assert ends == {300_000, "connection 0 was lost in the simulation"}


class TestFaults:
    @staticmethod
    async def program() -> int:
        async with af.Graph("g") as graph:
            x = graph.blob("x", [])
            y = graph.function("plain", lambda a: a + 1, x.spec, retries=3)(x)
            return int((await graph.run({x: 1}))[y])

    def test_they_strike_attempts(self) -> None:
        found = [simulate(self.program, seed=seed, faults=Faults(fails=0.4)).trace for seed in range(10)]
        assert any("fails" in line for trace in found for line in trace)

    def test_a_call_that_always_fails(self) -> None:
        with pytest.raises(af.OpError) as caught:
            simulate(self.program, seed=0, faults=Faults(fails=1))
        assert isinstance(caught.value.__cause__, InjectedError)

    def test_slow_calls_take_the_time_of_the_simulation(self) -> None:
        usual, slow = (
            max(simulate(self.program, seed=seed, faults=Faults(slow=chance, slow_s=1e4)).time_s for seed in range(8))
            for chance in (0, 1)
        )
        assert usual < 1 < slow

    def test_a_blocked_loop_is_late_for_timers(self) -> None:
        times = [simulate(self.program, seed=seed, faults=Faults(blocks=1, blocked_s=1e3)).time_s for seed in range(8)]
        assert max(times) > 10

    def test_memory_is_short(self) -> None:
        with pytest.raises(af.OpError) as caught:
            simulate(self.program, seed=0, faults=Faults(memory=1))
        assert isinstance(caught.value.__cause__, MemoryError)

    def test_ranks_that_stop_are_lost(self) -> None:
        ends = set()
        for seed in range(20):
            try:
                ends.add(type(simulate(KINDS["ranks"].program, seed=seed, ranks=2, faults=Faults(stops=0.5)).value))
            except af.PeerLostError:
                ends.add(af.PeerLostError)
        assert ends == {tuple, af.PeerLostError}

    def test_messages_are_late_and_ranks_cut_off(self) -> None:
        def longest_s(**chances: float) -> float:
            faults = Faults(slow_s=50, frozen_s=50, **chances)
            return max(simulate(KINDS["ranks"].program, seed=seed, ranks=2, faults=faults).time_s for seed in range(6))

        assert longest_s() < 0.1
        assert longest_s(late=0.2) > 1
        assert longest_s(cuts=1) > 1

    def test_chances_are_checked(self) -> None:
        with pytest.raises(ValueError, match=r"Faults: fails must be from 0 to 1, got 2"):
            Faults(fails=2)


class TestShrink:
    def test_one_event_of_many(self) -> None:
        faults = Faults(fails=0.6, slow=0.3)
        seed = next(seed for seed in range(100) if len(outcome_of(TestFaults.program, seed, faults)) == 1)
        found = shrink(TestFaults.program, seed=seed, faults=faults)
        assert found == [f"op plain, frame 0: fails{f' ({n}.)' if n > 1 else ''}" for n in range(1, 5)]

    def test_an_order(self) -> None:
        async def program() -> None:
            calls: list[str] = []
            async with af.Graph("g") as graph:
                x = graph.blob("x", [])
                parts = [
                    graph.function(name, lambda a, name=name: (calls.append(name), a)[1], x.spec)(x) for name in "ab"
                ]
                y = af.ops.sum(af.ops.stack(parts))
                await graph.run({x: 2}, fetch=y)
            assert calls == ["a", "b"]  # which is true without a seed

        seed = next(seed for seed in range(100) if len(outcome_of(program, seed, None)) == 1)
        found = shrink(program, seed=seed)
        assert len(found) == 1
        assert "graph g: what goes next" in found[0] or "to its lane" in found[0]

    def test_a_program_that_does_not_fail(self) -> None:
        with pytest.raises(ValueError, match=r"does not fail under seed 0"):
            shrink(TestFaults.program, seed=0)


def outcome_of(program: Program, seed: int, faults: Faults | None) -> list[str]:
    """The trace, or the name of the error alone."""
    try:
        return ["ended", *simulate(program, seed=seed, faults=faults).trace]
    except (af.OpError, AssertionError) as error:
        return [type(error).__name__]


def test_simulations_do_not_nest() -> None:
    async def inner() -> None:
        pass

    async def program() -> None:
        await asyncio.sleep(0)
        asyncio._set_running_loop(None)
        try:
            simulate(inner, seed=0)
        finally:
            asyncio._set_running_loop(loop)

    loop: asyncio.AbstractEventLoop | None = None

    async def outer() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await program()

    with pytest.raises(RuntimeError, match="within another"):
        simulate(outer, seed=0)


@pytest.mark.parametrize("what", PLACES)
def test_all_that_a_seed_names_comes_from_few_places(what: str) -> None:
    """Else a seed would not name all that happens."""
    pattern, free = PLACES[what]
    reached, example = re.compile(pattern, re.MULTILINE), re.compile(r"^ *(>>>|\.\.\. ).*$", re.MULTILINE)
    texts = {path.relative_to(PACKAGE).as_posix(): example.sub("", path.read_text()) for path in PACKAGE.rglob("*.py")}
    found = {name for name, text in texts.items() if reached.search(text)}
    assert {name for name in found if not name.startswith(tuple(free))} == set()
    assert {each for each in free if not any(name.startswith(each) for name in found)} == set()
