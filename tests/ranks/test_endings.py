"""A training over MPI is ended in any way, at any moment: no hang, nothing left behind, the last checkpoint whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.effort import FULL
from tests.transport.jobs import ended, is_openmpi, need_mpi, start_job
from tests.transport.memory import assert_none_left, names
from tests.transport.test_mpi import assert_gone

TIMES = 50 if FULL else 4
SCRIPT = str(Path(__file__).with_name("training_job.py"))
RANKS = 3
WAYS = ("kill", "terminate", "interrupt", "raise")


def lines_until(job: subprocess.Popen[str], last: str, count: int = 1) -> list[str]:
    """Read what a job prints until so many lines that begin like this have come."""
    assert job.stdout is not None
    lines: list[str] = []
    while sum(line.startswith(last) for line in lines) < count:
        line = job.stdout.readline()
        if not line:
            pytest.fail(f"the job has ended: {lines} {job.communicate()}")
        lines.append(line.rstrip())
    return lines


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_training_is_ended_again_and_again(tmp_path: Path) -> None:
    need_mpi()
    if is_openmpi():
        pytest.skip("what a killed rank does to the others differs: see the test of losses")
    shared = names()
    rng = random.Random(7)
    before = 0
    for number in range(TIMES):
        way = WAYS[number % len(WAYS)]
        steps = rng.randrange(1, 12)
        victim = rng.randrange(RANKS)
        # Whoever continues finds the number of the step at which the error is planted from where he begins.
        failing = before + steps if way == "raise" else -1
        with start_job(RANKS, SCRIPT, tmp_path, failing, victim) as job:
            lines = lines_until(job, "ready", RANKS)
            started = [line.split() for line in lines if line.startswith("ready")]
            pids = [int(pid) for _, pid, _, _ in started]
            begun = {int(step) for _, _, step, _ in started}
            assert len(begun) == 1, f"the ranks continue at different steps: {started}"
            assert {expected for *_, expected in started} == {"True"}
            (begin,) = begun
            # Rank 0 has said that it has a step's file when the others may not: then the one before counts.
            assert begin >= before - 2, "a checkpoint has been lost"
            last = begin
            if way != "raise":
                steps_done = [line for line in lines if line.startswith("step")]
                lines = lines_until(job, "step", max(steps - len(steps_done), 1))
                last = int(lines[-1].split()[1])
                sent = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}[way]
                if way == "kill":
                    os.kill(pids[victim], sent)
                else:
                    job.send_signal(sent)
            done = ended(job)
            if way == "raise":
                assert done.err.count("Traceback") <= 2, done.err  # the error, and its cause
                assert "the planted error" in done.err
                assert "PeerFailedError" not in done.err
                last = begin
        assert done.status != 0
        assert_gone(pids)
        before = max(last - last % 2, begin)
    assert_none_left(shared)
