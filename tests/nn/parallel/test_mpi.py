"""Four processes get the weights of one."""

from pathlib import Path

import pytest

from tests.transport.jobs import run_job


@pytest.mark.slow
def test_four_processes_train_like_one() -> None:
    done = run_job(4, str(Path(__file__).with_name("job.py")))
    assert (done.status, done.err) == (0, "")
    here = {
        "allreduce": [8, 8, 8, 8],
        "server": [1, 1, 2, 4],
        "aggregate": [8, 0, 0, 0],
        "gpipe": [2, 2, 2, 2],
        "1f1b": [2, 2, 2, 2],
    }
    assert sorted(done.out.splitlines()) == sorted(
        f"rank {rank}: {name}, {in_flight} in flight, {count} variables"
        for name, counts in here.items()
        for rank, count in enumerate(counts)
        for in_flight in (1, 3)
    )
