"""The examples that are programs run as they are, and print what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: object) -> list[str]:
    """The lines that an example prints."""
    command = [sys.executable, "-W", "error", EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_linear() -> None:
    assert run("linear.py") == ["(128, 16)", "[1. 1. 1.]"]


def test_stream_pipeline() -> None:
    lines = run("stream_pipeline.py")
    assert lines.count("microphone off") == 1
    lines.remove("microphone off")
    assert len(lines) == 12
    for number, line in enumerate(lines, 1):
        found = re.fullmatch(r"block +(\d+): (\d+) Hz, (\S+) +source ahead: ?(\**)", line)
        assert found is not None, line
        hertz = (262, 330, 392, 523)[(number - 1) % 4]
        assert int(found[1]) == number
        assert abs(int(found[2]) - hertz) <= 2
        assert found[3] == ("C", "E", "G", "C'")[(number - 1) % 4]
        assert len(found[4]) <= 3


def test_own_operation() -> None:
    *checks, training = run("own_operation.py")
    assert checks == ["the gradient is right", "the values are right"]
    assert re.fullmatch(r"accuracy: \d\d% at first, more than 95% in the end", training)


def write_cifar(folder: Path, count: int = 8) -> None:
    """Batches of few images, a brightness per class."""
    rng = np.random.default_rng(0)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        labels = np.arange(count, dtype=np.uint8) % 2
        images = rng.integers(0, 55, (count, 3072)) + 200 * labels[:, None]
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels, images]).astype(np.uint8).tobytes())


@pytest.mark.parametrize("place", ["cpu", "sim:0", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_train_cifar(tmp_path: Path, place: str) -> None:
    write_cifar(tmp_path)
    *steps, accuracy = run("train_cifar.py", tmp_path, "--place", place, "--steps", 20, "--batch", 10, "--widths", 4, 8)
    assert len(steps) == 10
    losses = [float(re.fullmatch(rf"step {2 * i} of 20: loss (\d+\.\d+)", line)[1]) for i, line in enumerate(steps, 1)]
    assert losses[-1] < losses[0]
    assert re.fullmatch(r"\d+\.\d% of 8 test images recognized", accuracy)


def test_train_cifar_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "train_cifar.py", tmp_path / "absent"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "absent: expected the directory of the CIFAR-10 files" in done.stderr
