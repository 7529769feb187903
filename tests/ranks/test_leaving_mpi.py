"""Ranks that end while others wait for them, each a process of its own: none of those waits for ever."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.support.effort import FULL, slow
from tests.transport.jobs import ended, is_openmpi, need_mpi, start_job
from tests.transport.test_mpi import assert_gone

SCRIPT = str(Path(__file__).with_name("leaving_job.py"))
RANKS = 3
HOWS = ("run", "stream", "run sum", "stream sum")
#: Seconds without a sign of life: few, as tests wait for them, but more than a busy machine keeps a thread waiting.
SILENCE_S = 4.0
#: For those who are told that a rank has ended, and do not wait for it to be silent.
NO_SILENCE_S = 10_000.0

ERRORS = {"leave": "PeerFailedError", "kill": "PeerLostError", "freeze": "PeerLostError"}


@pytest.fixture(autouse=True)
def mpi() -> None:
    need_mpi()


def run(folder: Path, way: str, victim: int, frame: int, number: int, how: str) -> tuple[int, dict[int, str]]:
    """A job in which a rank ends; its status, and what each of the others has found."""
    silence_s = NO_SILENCE_S if way == "leave" else SILENCE_S
    with start_job(RANKS, SCRIPT, way, victim, frame, number, how, folder, ACTORFLOW_LIVENESS=silence_s) as job:
        done = ended(job)
    assert "Traceback" not in done.err, done.err
    assert_gone([int(path.read_text()) for path in folder.glob("*.pid")])
    return done.status, {int(path.stem): path.read_text() for path in folder.glob("*.end")}


def check(folder: Path, way: str, victim: int, frame: int, number: int, how: str) -> list[float]:
    """The others raise what they should; after how many seconds."""
    status, found = run(folder, way, victim, frame, number, how)
    assert (status == 0) == (way == "leave"), "a job that has lost a rank has failed"
    if way == "kill" and not is_openmpi():  # the launcher has ended the others
        return []
    assert found.keys() == set(range(RANKS)) - {victim}, found
    for rank, text in found.items():
        kind, _, of, *_ = text.split()
        assert kind == ERRORS[way], found
        # Of a stream, another that has ended its own for that may have been faster.
        assert int(of) == victim or (way == "leave" and how.startswith("stream") and int(of) != rank), found
    return [float(text.split()[-2]) for text in found.values()]


ENDS = [
    ("leave", 1, 0, -1, "run"),
    ("freeze", 2, 2, -1, "run sum"),
    ("kill", 1, 1, 1, "run"),
]
if FULL:
    ENDS += [("leave", 0, 2, 1, "stream sum"), ("freeze", 0, 1, 1, "stream")]


@pytest.mark.parametrize(("way", "victim", "frame", "number", "how"), slow(ENDS))
def test_the_others_raise(tmp_path: Path, way: str, victim: int, frame: int, number: int, how: str) -> None:
    check(tmp_path, way, victim, frame, number, how)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["compute", "block"] if FULL else ["compute"])
def test_a_rank_whose_loop_stands_still_for_long_is_not_lost(tmp_path: Path, way: str) -> None:
    status, found = run(tmp_path, way, 1, 1, 1, "run")
    assert (status, found) == (0, dict.fromkeys(range(RANKS), "20 frames"))


@pytest.mark.slow
def test_a_rank_that_goes_on_after_it_was_lost_waits_for_nobody(tmp_path: Path) -> None:
    status, found = run(tmp_path, "thaw", 1, 1, 1, "run")
    ends = {rank: text.split()[0] for rank, text in found.items()}
    assert ends == {0: "PeerLostError", 1: "PeerFailedError", 2: "PeerLostError"}
    assert status == 0, "all have ended, one after the others have lost it"


@pytest.mark.skipif(not FULL, reason="takes minutes: make test-exhaustive")
@pytest.mark.timeout(3600)
def test_any_rank_in_any_way_at_any_moment(tmp_path: Path) -> None:
    rng, longest_s = random.Random(13), dict.fromkeys(("leave", "kill", "freeze"), 0.0)
    for index in range(51):
        way, folder = list(longest_s)[index % 3], tmp_path / str(index)
        folder.mkdir()
        after_s = check(folder, way, rng.randrange(RANKS), rng.randrange(6), rng.randrange(-1, 3), rng.choice(HOWS))
        longest_s[way] = max([longest_s[way], *after_s])
    sys.stdout.write(f"{longest_s}\n")  # seconds at most, for those who look with pytest -s
