"""The examples of several places run as they are, in one process and in several."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.examples.test_scripts import EXAMPLES, losses, run, write_cifar
from tests.transport.jobs import run_job


def run_ranks(ranks: int, name: str, *arguments: object) -> list[str]:
    """The lines that an example prints on so many ranks."""
    done = run_job(ranks, str(EXAMPLES / name), *arguments)
    assert (done.status, done.err) == (0, "")
    return done.out.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_model_parallel(schedule: str) -> None:
    found = losses(run("model_parallel.py", "--steps", 60, "--batch", 100, "--schedule", schedule), 60)
    assert found[-1] < 0.5 * found[0]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["allreduce", "server"])
def test_data_parallel_nin(scheme: str) -> None:
    found = losses(run("data_parallel_nin.py", "--scheme", scheme), 20)
    assert found[-1] < 0.5 * found[0]


def test_data_parallel_nin_on_data(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    options = ("--steps", 2, "--batch", 8, "--width", 8, "--places", "cpu", "sim:0")
    assert len(losses(run("data_parallel_nin.py", tmp_path, *options), 2)) == 2


@pytest.mark.slow
def test_googlenet_data_parallel() -> None:
    lines = run("googlenet_data_parallel.py", "--steps", 2, "--places", 3, "--batch", 6)
    found = [re.fullmatch(r"step (\d) of 2, 3 places: loss \d+\.\d+", line) for line in lines]
    assert [match and match[1] for match in found] == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["allreduce", "server"])
def test_data_parallel_on_ranks(scheme: str) -> None:
    options = ("data_parallel_nin.py", "--steps", 10, "--batch", 30, "--width", 16, "--scheme", scheme)
    alone = losses(run(*options, "--places", "cpu", "cpu"), 10)
    np.testing.assert_allclose(losses(run_ranks(2, *options), 10), alone, atol=0.005)


@pytest.mark.slow
def test_model_parallel_on_ranks() -> None:
    options = ("model_parallel.py", "--steps", 30, "--batch", 60)
    alone = losses(run(*options), 30)
    np.testing.assert_allclose(losses(run_ranks(3, *options), 30), alone, atol=0.005)


@pytest.mark.slow
def test_ping_pong() -> None:
    (line,) = run_ranks(2, "ping_pong.py", "--size", 4096, "--rounds", 3, "--steps", 2)
    assert re.fullmatch(r"4096 bytes: \d+\.\d us a hop, \S+ GB/s", line)
