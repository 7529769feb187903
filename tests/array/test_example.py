"""The example in array code, on a small data set."""

import re
from pathlib import Path

import pytest

from tests.support.digits import write_digits
from tests.support.warm import run_program

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_mlp_lazy.py"


def run(*arguments: object) -> list[str]:
    done = run_program(EXAMPLE, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_example_learns_as_with_numpy(tmp_path: Path, idx) -> None:
    write_digits(tmp_path, idx)
    options = ("--steps", 30, "--batch", 20, "--budget", 16)
    *steps, used, accuracy = run(tmp_path, *options)
    losses = [float(line.rpartition(" ")[2]) for line in steps]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    found = re.search(r"at most (\d+) MiB", used)
    assert found is not None
    assert 1 <= int(found[1]) <= 16
    assert accuracy == "100.0% of 50 test images recognized"
    *same, _, by_numpy = run(tmp_path, *options, "--numpy")
    assert [float(line.rpartition(" ")[2]) for line in same] == pytest.approx(losses, abs=2e-3)
    assert by_numpy == accuracy


@pytest.mark.slow
def test_the_example_says_what_is_missing(tmp_path: Path) -> None:
    done = run_program(EXAMPLE, tmp_path / "absent")
    assert done.returncode == 1
    assert "absent: expected " in done.stderr
