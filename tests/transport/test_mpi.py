"""The transport over MPI, in jobs of two to four ranks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.effort import FULL
from tests.transport.jobs import ended, is_openmpi, need_mpi, run_job, start_job

#: Ranks, kind of loop, bytes of a chunk, whether flags are shared, how the last rank ends.
JOBS = [
    (2, "uvloop", 1 << 22, "shared", "leaves"),
    (3, "asyncio", 1 << 16, "apart", "leaves"),
    (3, "asyncio", 1 << 22, "shared", "frozen"),
    (4, "uvloop", 1 << 18, "shared", "leaves"),
]
if FULL:
    JOBS = [
        (ranks, kind, chunk, memory, end)
        for ranks in (2, 3, 4)
        for kind in ("asyncio", "uvloop")
        for chunk in (1 << 10, 1 << 16, 1 << 22)
        for memory in ("shared", "apart")
        for end in ("leaves", "frozen")
    ]


@pytest.fixture(autouse=True)
def mpi() -> None:
    need_mpi()


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "kind", "chunk", "memory", "end"), JOBS)
def test_conformance(ranks: int, kind: str, chunk: int, memory: str, end: str) -> None:
    measured = FULL and chunk == 1 << 22
    done = run_job(ranks, "conform.py", kind, chunk, memory, "idle" if measured else "busy", end)
    assert done.status == (0 if end == "leaves" else 3), done.out + done.err
    lines = sorted(done.out.splitlines())
    told = ranks if end == "leaves" else ranks - 1
    assert [line.partition(":")[0] for line in lines] == [f"rank {rank}" for rank in range(told)], done.err
    partner = ["edges.credit", "edges.reuse", "ends.bind"]
    for rank, line in enumerate(lines):
        expected = [] if measured else ["ends.idle"]
        expected += ["ends.frozen" if end == "leaves" else "ends.leaves"]
        expected += partner if ranks == 3 and rank == 2 else []
        expected += ["ends.close"] if rank == ranks - 1 else []
        assert line.endswith(f"not checked: {sorted(expected)}")


def test_a_rank_whose_own_words_are_lost_closes() -> None:
    done = run_job(1, "unheard.py", module=False)
    assert (done.status, done.out) == (0, "closed\n"), done.err


def test_what_a_rank_that_has_left_did_not_do_is_looked_for_at_its_end_alone() -> None:
    done = run_job(1, "counted.py")
    assert (done.status, done.out) == (0, "300 came, 2 failed, 0 left, 2 looks\n"), done.err


def test_few_requests_end_as_many_do() -> None:
    done = run_job(1, "tested.py")
    assert (done.status, done.out) == (0, "as expected\n"), done.err


def test_a_rank_parks_soon_and_offers_a_core_that_others_keep_ever_less_often() -> None:
    done = run_job(1, "parking.py")
    assert (done.status, done.out.splitlines()) == (
        0,
        [
            "nothing comes: 13 looks, 3 offers",
            "five come: 18 looks, 3 offers",
            "has rung: 1 look, 0 offers",
            "reducing: 601 looks, 150 offers",
            "taken: 1 1 0 0 1 0 0 0 0 0 0 1 0 0 0 0",
            "free: 0 0 0 0 0 0 0 0 0 0 3 3 3 3 3 3 3 3 3 3",
        ],
    ), done.err


@pytest.mark.slow
def test_one_loop_after_the_other() -> None:
    done = run_job(2, "loops.py")
    assert done.status == 0, done.out + done.err
    assert sorted(done.out.splitlines()) == ["rank 0 has ended", "rank 1 has ended"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["within", "outside"])
def test_nothing_is_called_back_after_close(where: str) -> None:
    done = run_job(2, "closing.py", where)
    assert done.status == 0, done.out + done.err
    assert sorted(done.out.splitlines()) == ["rank 0 has ended", "rank 1 has ended"]


def test_the_mpi_of_the_package_index_does_not_know_cuda() -> None:
    done = run_job(2, "cuda.py")
    assert done.status == 0, done.err
    assert sorted(done.out.splitlines()) == [
        f"rank {rank}: asked True, cpu True, cuda False, same True" for rank in range(2)
    ]


class TestEnds:
    @pytest.mark.parametrize("module", [True, False], ids=["-m mpi4py", "alone"])
    def test_an_exception_ends_all_ranks_and_is_shown_once(self, module: bool) -> None:
        done = run_job(3, "endings.py", "raise", 1, module=module)
        assert done.status != 0
        assert done.err.count("Traceback") == done.err.count("ValueError: rank breaks") == 1, done.err
        assert "PeerFailedError" not in done.err
        assert "has ended" not in done.out

    def test_a_rank_that_another_failed_ends_the_job_if_that_does_not(self) -> None:
        done = run_job(2, "endings.py", "fail", 1)
        assert done.status != 0
        assert "Traceback" not in done.err
        assert (
            "rank 1: stopped, as rank 0 has failed or left, and has not ended the job: frame 3 was given up" in done.err
        )

    def test_ranks_that_return_end_without_an_error(self) -> None:
        done = run_job(3, "endings.py", "return", 1, module=False)
        assert (done.status, done.err) == (0, "")

    @pytest.mark.slow
    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_to_mpiexec_ends_all_ranks(self, sent: signal.Signals) -> None:
        with start_job(3, "endings.py", "wait", 0) as job:
            ranks = pids_of_ready(job, 3)
            job.send_signal(sent)
            done = ended(job)
        assert done.status != 0
        assert "Traceback" not in done.err, done.err
        if sent == signal.SIGINT and not is_openmpi():
            assert done.err.count("actorflow: interrupted") == 1
        assert_gone(ranks)

    @pytest.mark.slow
    def test_the_shared_memory_of_a_job_has_no_names(self) -> None:
        with start_job(3, "endings.py", "wait", 0) as job:
            maps = [Path(f"/proc/{pid}/maps") for pid in pids_of_ready(job, 3)]
            if not maps[0].exists():
                pytest.skip("this system does not tell what memory a process has")
            shared = [line for path in maps for line in path.read_text().splitlines() if "/dev/shm/" in line]
            job.send_signal(signal.SIGTERM)
            ended(job)
        assert shared
        assert [line for line in shared if not line.endswith("(deleted)")] == []

    @pytest.mark.slow
    def test_a_killed_rank_ends_the_job_where_the_mpi_cannot_go_on(self) -> None:
        if is_openmpi():
            pytest.skip("Open MPI goes on, see the test of losses")
        done = run_job(3, "endings.py", "kill", 1)
        assert done.status != 0
        assert "KILLED" in done.err.upper() + done.out.upper()

    @pytest.mark.skipif(not FULL, reason="takes minutes: make test-exhaustive")
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("seed", range(50 if FULL else 1))
    def test_any_signal_at_any_moment(self, seed: int) -> None:
        rng = random.Random(seed)
        with start_job(3, "endings.py", "wait", 0) as job:
            ranks = pids_of_ready(job, rng.randint(1, 3))  # before, mpiexec itself may lose a signal
            time.sleep(rng.random() * 0.3)
            sent = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
            if rng.random() < 0.5:
                os.kill(rng.choice(ranks), sent)
            else:
                job.send_signal(sent)
            done = ended(job)
        assert done.status != 0
        assert_gone(ranks)


@pytest.mark.parametrize(("waiting", "chunk"), [("busy", 1 << 22), ("busy", 1 << 10), ("idle", 1 << 22)])
def test_a_lost_rank_is_told_to_the_others(waiting: str, chunk: int) -> None:
    if not is_openmpi():
        pytest.skip("needs an MPI with ULFM: make test-openmpi")
    done = run_job(3, "loss.py", waiting, chunk)
    assert {"rank 0 has ended", "rank 1 has ended"} <= set(done.out.splitlines()), done.out + done.err
    assert "Traceback" not in done.err


def pids_of_ready(job: subprocess.Popen[str], count: int) -> list[int]:
    """Wait until so many ranks run."""
    assert job.stdout is not None
    text = ""
    while text.count("ready ") < count or not text.endswith("\n"):
        part = os.read(job.stdout.fileno(), 4096).decode()
        if not part:
            pytest.fail(f"the ranks have not begun: {text} {job.communicate()}")
        text += part
    return [int(pid) for pid in text.replace("ready", " ").split()]


def assert_gone(pids: list[int], grace_s: float = 5.0) -> None:
    """Check that processes have ended."""
    deadline_s = time.monotonic() + grace_s
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline_s, f"ranks have been left behind: {left}"
        time.sleep(0.02)
