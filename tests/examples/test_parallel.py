"""The examples of several places run as they are, in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.test_scripts import losses, run, write_cifar


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_model_parallel(schedule: str) -> None:
    found = losses(run("model_parallel.py", "--steps", 60, "--batch", 100, "--schedule", schedule), 60)
    assert found[-1] < 0.5 * found[0]


@pytest.mark.parametrize("places", [[], ["--places", "cpu", "cpu"]])
@pytest.mark.parametrize("scheme", ["allreduce", "server"])
def test_data_parallel_nin(scheme: str, places: list[str]) -> None:
    options = ("--steps", 20, "--batch", 30, "--width", 24, "--scheme", scheme)
    found = losses(run("data_parallel_nin.py", *options, *places), 20)
    assert found[-1] < 0.5 * found[0]


def test_data_parallel_nin_on_data(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    options = ("--steps", 2, "--batch", 8, "--width", 8, "--places", "cpu", "sim:0")
    assert len(losses(run("data_parallel_nin.py", tmp_path, *options), 2)) == 2


def test_googlenet_data_parallel() -> None:
    lines = run("googlenet_data_parallel.py", "--steps", 2, "--places", 3, "--batch", 6)
    found = [re.fullmatch(r"step (\d) of 2, 3 places: loss \d+\.\d+", line) for line in lines]
    assert [match and match[1] for match in found] == ["1", "2"]
