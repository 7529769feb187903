"""The same graphs over MPI: each rank a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.effort import FULL
from tests.transport.jobs import run_job

GRAPHS = 200 if FULL else 15


@pytest.mark.slow
def test_random_graphs_equal_the_sequential_program() -> None:
    done = run_job(3, str(Path(__file__).with_name("over_mpi.py")), "--graphs", GRAPHS)
    assert done.status == 0, done.out + done.err
    assert sorted(done.out.splitlines()) == [f"rank {rank} of 3: {GRAPHS} graphs" for rank in range(3)]


@pytest.mark.slow
def test_a_pause_on_one_rank_is_no_stall_on_another() -> None:
    done = run_job(2, str(Path(__file__).with_name("pausing_job.py")))
    assert done.status == 0, done.out + done.err
    assert sorted(done.out.splitlines()) == [f"rank {rank}: 12 steps, 0 failed, right: True" for rank in range(2)]
