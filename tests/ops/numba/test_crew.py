"""Pieces of compiled calls on several threads: each once, side by side with threads that linger, and alone without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.devices.team import Team
from actorflow.ops.numba import crew as module
from actorflow.ops.numba.assembly import entry, leave
from actorflow.ops.numba.crew import Crew
from actorflow.ops.numba.routine import Routine
from tests.support.waiting import in_threads

COUNT = Routine(
    "def count(x, step, begin, end):\n    for i in range(begin, end):\n        x[i] += step\n",
    "count",
    ["int64*", "intp", "intp", "intp"],
)


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Crew:
    """One of its own, with a team of its own; all that it needs is compiled."""
    for routine in (module._call(), module._linger(), COUNT):
        routine.wait()
    monkeypatch.setattr(module, "team", Team(longest_pause=0))
    return Crew()


@contextmanager
def lingering(crew: Crew) -> Iterator[None]:
    """A thread that lingers on and on, and the test's thread as a lane's."""
    ends = threading.Event()

    def linger() -> None:
        while not ends.is_set():
            crew.linger()

    thread = threading.Thread(target=linger)
    member = module.team.join()
    thread.start()
    try:
        yield
    finally:
        ends.set()
        while thread.is_alive():  # it may begin to linger just then
            crew.part()
            thread.join(0.001)
        module.team.leave(member)


def pieces_of(cuts: list[int]) -> np.ndarray:
    return np.array(list(zip([0, *cuts], cuts, strict=False)), np.int64).reshape(-1, 2)


@pytest.mark.parametrize("helped", [False, True])
@given(lengths=st.lists(st.integers(0, 50), max_size=30))
def test_each_piece_is_called_once(helped: bool, lengths: list[int]) -> None:
    cuts = np.cumsum(lengths).tolist()
    x = np.zeros(sum(lengths) + 1, np.int64)
    shared = module.crew
    for routine in (module._call(), module._linger(), COUNT):
        routine.wait()
    if helped:
        with lingering(shared):
            shared.work_off(COUNT, (id(x), 3), pieces_of(cuts), 1e9)
    else:
        shared.work_off(COUNT, (id(x), 3), pieces_of(cuts), 0.0)
    np.testing.assert_array_equal(x[:-1], 3)
    assert x[-1] == 0


def meeting() -> Routine:
    """Writes to one word, and waits until another one is written."""
    text = entry("meet", [("intp", "place"), ("intp", "own"), ("intp", "other")])
    place = text.let("inttoptr i64 %place to ptr")
    own, other = text.at("i64", place, "%own"), text.at("i64", place, "%other")
    text.do(f"store atomic i64 1, ptr {own} seq_cst, align 8")
    text.do("br label %look")
    text.do("look:")
    there = text.let(f"icmp ne i64 {text.let(f'load atomic i64, ptr {other} seq_cst, align 8')}, 0")
    text.do(f"br i1 {there}, label %out, label %look")
    text.do("out:")
    return Routine(leave(text), "meet", ["intp", "intp", "intp"], is_python=False)


def test_threads_that_linger_take_part(crew: Crew) -> None:
    routine = meeting()
    routine.wait()
    with lingering(crew):
        while not crew.waiting:
            threading.Event().wait(0)
        for _ in range(20):
            met = np.zeros(2, np.int64)  # each of the two pieces ends when the other one has begun
            crew.work_off(routine, (met.ctypes.data,), np.array([[0, 1], [1, 0]], np.int64), 0.0)
            assert met.tolist() == [1, 1]


def test_a_call_is_shared_where_somebody_takes_part(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorflow.devices.team.cores", lambda: 2)
    assert not crew.may_share(COUNT, 3, 1e9), "no lane's thread"
    member = module.team.join()
    assert crew.may_share(COUNT, 3, 1e9)
    assert not crew.may_share(COUNT, 3, 10.0), "not worth waking a thread for"
    member.at_work = True
    other = module.team.join()
    other.at_work = True
    assert not crew.may_share(COUNT, 3, 1e9), "no core is idle"
    for each in (other, member):
        module.team.leave(each)
    crew.linger()  # measures
    crew._looks = 1 << 60
    with lingering(crew):
        while not crew.waiting:
            threading.Event().wait(0)
        assert crew.may_share(COUNT, 3, 10.0)


@pytest.mark.parametrize(("gap_ns", "expected"), [(0, True), (10**6, False)])
def test_a_call_for_which_nobody_is_woken_is_not_shared(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, gap_ns: int, expected: bool
) -> None:
    """But it is known of the call before it that there was work again, and it is shared with a thread on its way."""
    monkeypatch.setattr("actorflow.devices.team.cores", lambda: 2)
    now_ns = [50_000]
    monkeypatch.setattr(module, "perf_counter_ns", lambda: now_ns[0])
    member = module.team.join()
    worth, before = (module.team.worth((COUNT.name, count, 1.5e5)) for count in (3, 4))
    assert worth is not None
    worth.gap_ns, crew._before = gap_ns, before
    try:
        assert crew.may_share(COUNT, 3, 1.5e5) is expected
        if not expected:
            crew._before, now_ns[0] = before, 80_000
            assert not crew.may_share(COUNT, 3, 1.5e5)
            assert before is not None
            assert before.gap_ns == 50_000, "the smaller of the last two"
            monkeypatch.setattr(module.team, "_invited", 1)
            assert crew.may_share(COUNT, 3, 1.5e5)
    finally:
        monkeypatch.undo()
        module.team.leave(member)


def test_what_help_does_not_make_faster_is_not_shared_for_a_while(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorflow.devices.team.cores", lambda: 2)
    monkeypatch.setattr(module, "team", Team())
    member = module.team.join()
    worth = module.team.worth((COUNT.name, 3, 1e9))
    assert worth is not None
    for _ in range(2):
        assert crew.may_share(COUNT, 3, 1e9)
        worth.judge(100, 100.0)
    assert [crew.may_share(COUNT, 3, 1e9) for _ in range(3)] == [False, True, True]
    module.team.leave(member)


def test_those_who_linger_come_back(crew: Crew) -> None:
    crew.linger()  # measures
    crew._looks = 1 << 60
    thread = threading.Thread(target=crew.linger)
    thread.start()
    while not crew.waiting:
        threading.Event().wait(0)
    crew.part()
    thread.join()
    assert not crew.waiting


@pytest.mark.parametrize(("gaps_ns", "stays"), [([0, 50_000, 90_000], True), ([900_000, 900_000], False)])
def test_nobody_lingers_where_there_will_be_nothing(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, gaps_ns: list[int], stays: bool
) -> None:
    """The last two times it took long until there was work to share again."""
    now_ns, parted = [0], []
    monkeypatch.setattr(module, "perf_counter_ns", lambda: now_ns[0])
    monkeypatch.setattr(crew, "part", lambda: parted.append(now_ns[0]))
    x, pieces = np.zeros(9, np.int64), pieces_of([3, 6, 9])
    member = module.team.join()
    crew._words[module._WAITING] = 1  # so it looks
    try:
        for gap_ns in [*gaps_ns, 0]:
            crew.work_off(COUNT, (id(x), 1), pieces, 1e5)
            now_ns[0] += gap_ns
        crew.work_off(COUNT, (id(x), 1), pieces, 1e5)
    finally:
        module.team.leave(member)
    assert bool(parted) is not stays
    np.testing.assert_array_equal(x, len(gaps_ns) + 2)


def test_a_thread_is_woken_for_long_work_and_for_what_is_followed_by_more(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[float] = []
    x, pieces = np.zeros(9, np.int64), pieces_of([3, 6, 9])
    member = module.team.join()

    def wakes(work_ns: float, gap_ns: int) -> bool:
        called.clear()
        worth = module.team.worth((COUNT.name, len(pieces), work_ns))
        assert worth is not None
        crew._before, worth.gap_ns = None, gap_ns
        monkeypatch.setattr(module.team, "call_in", lambda most: called.append(most))
        crew.work_off(COUNT, (id(x), 1), pieces, work_ns)
        return bool(called)

    try:
        assert [wakes(*each) for each in ((5e4, 0), (1.5e5, 0), (1.5e5, 10**6), (5e5, 10**6))] == [
            False,
            True,
            False,
            True,
        ]
    finally:
        module.team.leave(member)


def test_time_that_the_caller_waits_is_no_work(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help that comes late has not helped: one piece each, and the caller waits as long as it has computed."""
    judged: list[tuple[int, float]] = []
    worth = module.team.worth(None)
    assert worth is None, "not on a lane"
    monkeypatch.setattr(module.Worth, "judge", lambda self, *times: judged.append(times))
    monkeypatch.setattr(module, "thread_time_ns", iter([0, 2_000_000]).__next__)

    def call(place: int, give_way: int, *told: int) -> None:
        crew._words[module._TAKEN], crew._words[module._WAITED] = 1, 5_000

    monkeypatch.setattr(module, "_call", lambda: SimpleNamespace(function=call))
    crew._looks = 500  # in 100 us
    member = module.team.join()
    try:
        crew.work_off(COUNT, (0, 1), pieces_of([1, 2]), 0.0)
    finally:
        module.team.leave(member)
    assert [alone_ns for _, alone_ns in judged] == [2_000_000.0]


def test_calls_of_two_lanes_at_once(crew: Crew) -> None:
    x = np.zeros((2, 64), np.int64)
    pieces = pieces_of(list(range(1, 65)))
    start = threading.Barrier(2)

    def call(row: np.ndarray) -> None:
        member = module.team.join()
        start.wait()
        for _ in range(200):
            crew.work_off(COUNT, (id(row), 1), pieces, 0.0)
        module.team.leave(member)

    with lingering(crew):
        rows = [x[0], x[1]]
        in_threads(*(partial(call, row) for row in rows))
    np.testing.assert_array_equal(x, 200)
