"""Threads that help lanes: all pieces once, only while cores are idle, nothing left behind."""

import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices import CPU, team
from actorflow.devices.team import Member, Team

CORES = 3
#: Only a failing test waits this long.
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with three cores, whatever this one has."""
    monkeypatch.setattr(team, "cores", lambda: CORES)


@contextmanager
def joined(crew: Team) -> Iterator[Member]:
    """The test's thread as a lane's at work."""
    member = crew.join()
    member.at_work = True
    try:
        yield member
    finally:
        crew.leave(member)


def rest(crew: Team) -> None:
    """Wait until helpers that are done with their pieces are there for the next call."""
    while crew._invited:
        time.sleep(0)


def meeting(threads: int) -> tuple[list[threading.Thread], Callable[[int], None]]:
    """Work whose pieces all begin before any of them ends, so that each needs a thread; and those threads."""
    barrier = threading.Barrier(threads)
    seen: list[threading.Thread] = []

    def work(piece: int) -> None:
        seen.append(threading.current_thread())
        barrier.wait(PATIENCE_S)

    return seen, work


def test_idle_cores_take_part() -> None:
    crew = Team(longest_pause=0)
    with joined(crew):
        for _ in range(3):  # the threads stay
            seen, work = meeting(CORES)
            crew.spread(range(CORES), work)
            assert len(set(seen)) == CORES
            assert threading.current_thread() in seen
            assert {thread.name for thread in seen} - {threading.current_thread().name} == {"actorflow-team"}
            rest(crew)


def test_threads_end_with_the_last_lane() -> None:
    crew = Team(longest_pause=0)
    with joined(crew):
        seen, work = meeting(CORES)
        crew.spread(range(CORES), work)
        other = crew.join()
        crew.leave(other)
        crew._here.member = crew._members[0]
        rest(crew)
        again, work = meeting(CORES)
        crew.spread(range(CORES), work)
        assert set(again) == set(seen)
    for thread in set(seen) - {threading.current_thread()}:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    with joined(crew):
        seen, work = meeting(CORES)
        crew.spread(range(CORES), work)
        assert len(set(seen)) == CORES


@pytest.mark.parametrize("is_member", [False, True])
def test_in_order_on_the_caller_where_nothing_is_idle(is_member: bool) -> None:
    """On a thread of no lane, and while other lanes take all cores."""
    crew = Team(longest_pause=0)
    others = [crew.join() for _ in range(CORES - 1)] if is_member else []
    for other in others:
        other.at_work = True
    done = []

    def spread() -> None:
        crew.spread(range(50), lambda piece: done.append((piece, threading.current_thread().name)))

    if is_member:
        with joined(crew):
            spread()
    else:
        spread()
    assert done == [(piece, threading.current_thread().name) for piece in range(50)]
    assert crew._threads == 0
    for other in others:
        crew.leave(other)


def test_a_lane_that_waits_for_work_leaves_its_core() -> None:
    crew = Team(longest_pause=0)
    busy, waiting = crew.join(), crew.join()
    busy.at_work = True
    with joined(crew):
        assert crew.idle == 1
        seen, work = meeting(2)
        crew.spread(range(2), work)
        assert len(set(seen)) == 2
        waiting.at_work = True
        assert crew.idle == 0
    crew.leave(busy)
    crew.leave(waiting)


def test_a_core_that_becomes_idle_takes_part_in_what_is_left() -> None:
    crew = Team(longest_pause=0)
    others = [crew.join() for _ in range(CORES - 1)]
    for other in others:
        other.at_work = True
    with joined(crew):
        seen, meet = meeting(2)

        def work(piece: int) -> None:
            if piece < 2:  # nobody else can have begun by then
                others[0].at_work = piece == 0
            else:
                meet(piece)

        crew.spread(range(4), work)
        assert len(set(seen)) == 2
    for other in others:
        crew.leave(other)


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_what_a_piece_raises(kind: type[BaseException]) -> None:
    crew = Team(longest_pause=0)
    with joined(crew):
        barrier = threading.Barrier(CORES)

        def work(piece: int) -> None:
            if piece < CORES:
                barrier.wait(PATIENCE_S)
                if piece:
                    raise kind(piece)

        with pytest.raises(kind, match=r"^1$"):  # of two, that of the first piece
            crew.spread(range(1_000), work)
        seen, work = meeting(CORES)
        crew.spread(range(CORES), work)
        assert len(set(seen)) == CORES


def test_nothing_of_a_call_is_kept() -> None:
    """A buffer that another thread still knows is not used again by the pool."""
    crew = Team(longest_pause=0)
    with joined(crew):
        for _ in range(200):
            array = np.zeros(3)
            count = sys.getrefcount(array)
            kept = weakref.ref(array)

            def work(piece: int, array: np.ndarray = array) -> None:
                array[piece] = 1

            crew.spread(range(3), work)
            del work
            assert sys.getrefcount(array) == count
            del array
            assert kept() is None


def test_how_numpy_treats_errors_holds_for_helpers() -> None:
    crew = Team(longest_pause=0)
    barrier = threading.Barrier(CORES)

    def work(piece: int) -> None:
        barrier.wait(PATIENCE_S)
        assert np.geterr()["over"] == "ignore"
        np.multiply(np.full(3, 1e300), 1e300)  # a warning would be an error

    with joined(crew), np.errstate(over="ignore"):
        crew.spread(range(CORES), work)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_each_piece_once_whoever_calls(counts: list[int]) -> None:
    crew = Team(longest_pause=0)
    results = [np.zeros(count, np.int64) for count in counts]
    barrier = threading.Barrier(len(counts))

    def lane(result: np.ndarray) -> None:
        with joined(crew):
            barrier.wait(PATIENCE_S)
            for _ in range(3):

                def work(piece: int) -> None:
                    result[piece] += 1

                crew.spread(range(len(result)), work)

    lanes = [threading.Thread(target=lane, args=(result,)) for result in results]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join(PATIENCE_S)
    assert all((result == 3).all() for result in results)
    assert crew._threads == 0


def test_a_pause_where_help_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs may use the cores. Once is chance; the pause doubles up to the longest, and ends."""
    crew = Team(longest_pause=5)
    spread: list[bool] = []
    brought = False

    def together(call: object, pieces: int, worth: team.Worth) -> None:
        spread[-1] = True
        worth.judge(100, 180 if brought else 105)

    monkeypatch.setattr(crew, "_work_together", together)

    def pauses() -> str:
        spread.clear()
        for _ in range(16):
            spread.append(False)
            crew.spread(range(CORES), lambda piece: None)
        return "".join("x" if done else "." for done in spread)

    with joined(crew):
        assert pauses() == "xx.x...x.....x.."
        brought = True
        assert pauses() == "...xxxxxxxxxxxxx"
        brought = False
        assert pauses() == "xx.x...x.....x.."
        crew.spread(range(CORES), lambda piece: None, 1e9)
        assert spread[-1], "each kind of work by itself"


@pytest.mark.parametrize("core", [4, None])
def test_helps_on_another_core(monkeypatch: pytest.MonkeyPatch, core: int | None) -> None:
    """On Linux, where a thread may wake on the core of the one that woke it; elsewhere cores are not known."""
    crew = Team(longest_pause=0)
    barrier = threading.Barrier(CORES)
    moved: list[tuple[int, set[int]]] = []
    here = [core]
    monkeypatch.setattr(team, "_current_core", lambda: here[0])
    monkeypatch.setattr(team.os, "sched_getaffinity", lambda thread: {4, 5, 6}, raising=False)
    monkeypatch.setattr(
        team.os, "sched_setaffinity", lambda thread, cores: moved.append((thread, cores)), raising=False
    )
    with joined(crew):
        for here[0] in (core, core, core and 5):  # told when they begin, and when the caller is on another core
            crew.spread(range(CORES), lambda piece: barrier.wait(PATIENCE_S))
            rest(crew)
        threads = {thread.native_id for thread in threading.enumerate() if thread.name == "actorflow-team"}
    told = {thread: [cores for each, cores in moved if each == thread] for thread in threads}
    assert told == {thread: [] if core is None else [{5, 6}, {4, 6}] for thread in threads}
    assert len(threads) == CORES - 1


def test_threads_that_may_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "cores", lambda: 6)
    crew = Team()
    assert crew.threads == 1, "this is no lane's thread"
    others = [crew.join() for _ in range(5)]
    with joined(crew) as member:
        found = []
        for other in others:
            found.append(crew.threads)
            other.at_work = 1
        assert [*found, crew.threads] == [6, 3, 3, 3, 2, 1]
        others[0].at_work = others[1].at_work = 0
        assert crew.threads == 3
        with crew.at_work(2):
            assert (member.at_work, crew.idle) == (2, 1)
        assert (member.at_work, crew.idle) == (1, 2)


def test_a_piece_spreads_work_of_its_own() -> None:
    crew = Team(longest_pause=0)
    done: list[tuple[int, int]] = []
    with joined(crew):
        crew.spread(range(4), lambda i: crew.spread(range(4), lambda j: done.append((i, j))))
    assert sorted(done) == [(i, j) for i in range(4) for j in range(4)]


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    crew = Team(longest_pause=0)
    done: list[int] = []
    with joined(crew):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            crew.spread(range(3), done.append)
        assert done == [0, 1, 2]
        seen, work = meeting(CORES)
        crew.spread(range(CORES), work)
        assert len(set(seen)) == CORES


def test_lanes_are_members_while_they_live() -> None:
    graph = af.Graph("lanes")
    x = graph.blob("x", (), "int64")
    seen: list[tuple[int, int]] = []

    def look(x: np.ndarray) -> np.ndarray:
        seen.append((len(team.team._members), team.team.idle))
        return x

    before = len(team.team._members)
    graph.function("look", look, x.spec)(x)
    graph.run_sync({x: 1})
    assert seen == [(before + 1, CORES - 1)]


def test_a_closed_device_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team.team, "_worths", {})
    device = CPU(af.Place())
    lane = device.lane("main")
    seen, work = meeting(CORES)
    ended = threading.Event()
    lane._loop = type("Loop", (), {"call_soon_threadsafe": lambda self, callback: ended.set()})()
    lane.submit(lambda _: team.team.spread(range(CORES), work), None, lambda fence: None, urgent=True)
    assert ended.wait(PATIENCE_S)
    device.close()
    device.join()
    assert len(set(seen)) == CORES
    for thread in set(seen):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_fork_begins_anew() -> None:
    program = """
import os, threading, warnings
from actorflow.devices import team
warnings.simplefilter("ignore")
team.cores = lambda: 3
team.team._longest_pause = 0
member = team.team.join()
member.at_work = True

def meet():
    barrier = threading.Barrier(3)
    team.team.spread(range(3), lambda piece: barrier.wait(60))

meet()
child = os.fork()
if not child:
    assert team.team.idle == 3
    team.team.join().at_work = True
    meet()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
meet()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
