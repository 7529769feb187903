"""When a rank that does not answer is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.transport.peers import Liveness, liveness_of

LIMIT_S = 60.0


class Clock:
    """A rank that looks at every interval, or later, and another that answers or not."""

    def __init__(self) -> None:
        self.asked = 0
        self.liveness = Liveness(LIMIT_S, self.ask)
        self.now_s = 1_000.0
        self.answers = True

    def ask(self, rank: int) -> None:
        self.asked += 1
        if self.answers:
            self.liveness.answered(rank)

    def look(self, delay_s: float | None = None, awaited: tuple[int, ...] = (1,)) -> list[int]:
        self.now_s += self.liveness.interval_s if delay_s is None else delay_s
        return self.liveness.look(self.now_s, awaited)

    def until_lost(self) -> float:
        start_s = self.now_s
        while not self.look():
            assert self.now_s < start_s + 2 * LIMIT_S
        return self.now_s - start_s


def test_whoever_answers_is_never_lost() -> None:
    clock = Clock()
    assert not any(clock.look() for _ in range(1_000))


@given(looks=st.integers(0, 50))
def test_whoever_does_not_is_lost_after_the_limit(looks: int) -> None:
    clock = Clock()
    for _ in range(looks):
        clock.look()
    clock.answers = False
    assert LIMIT_S <= clock.until_lost() <= 1.1 * LIMIT_S + 1e-6


def test_nobody_is_asked_whom_nobody_waits_for() -> None:
    clock = Clock()
    clock.answers = False
    for _ in range(1_000):
        assert not clock.look(awaited=())
    assert clock.asked == 0
    assert LIMIT_S <= clock.until_lost() <= 1.1 * LIMIT_S + 1e-6


@given(pauses=st.lists(st.floats(0, 1e6), max_size=4))
def test_time_in_which_this_rank_could_hear_nothing_hardly_counts(pauses: list[float]) -> None:
    """A blocked loop, a job that was stopped as a whole, a clock that jumps."""
    clock = Clock()
    clock.look()
    clock.answers = False
    assert not any(clock.look(pause_s) for pause_s in (*pauses, -1e6))
    clock.answers = True
    clock.look()
    assert not any(clock.look() for _ in range(100))


def test_no_limit() -> None:
    clock = Clock()
    clock.liveness.limit_s = math.inf
    clock.answers = False
    assert not any(clock.look() for _ in range(10_000))


@pytest.mark.together(
    ("seconds", "environment", "expected"),
    [
        (None, {}, 30.0),
        (None, {"ACTORFLOW_LIVENESS": ""}, 30.0),
        (None, {"ACTORFLOW_LIVENESS": "2.5"}, 2.5),
        (None, {"ACTORFLOW_LIVENESS": "inf"}, math.inf),
        (7.0, {"ACTORFLOW_LIVENESS": "2.5"}, 7.0),
    ],
)
def test_where_the_limit_comes_from(seconds: float | None, environment: dict[str, str], expected: float) -> None:
    assert liveness_of(seconds, environment) == expected


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(af.TransportError, match=r"ACTORFLOW_LIVENESS must be (positive|a number|a time)"):
        liveness_of(None, {"ACTORFLOW_LIVENESS": text})
