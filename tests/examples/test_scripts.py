"""The examples that are programs run as they are, and print what they should."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from tests.support.digits import write_digits
from tests.support.warm import run_program

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: object) -> list[str]:
    """The lines that an example prints."""
    done = run_program(EXAMPLES / name, *arguments)
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


@pytest.mark.slow
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


def losses(lines: list[str], steps: int) -> list[float]:
    """Those of ten lines about steps."""
    assert len(lines) == min(10, steps)
    every = max(1, steps // 10)
    found = [re.fullmatch(rf"step {every * i} of {steps}: loss (\d+\.\d+)", line) for i, line in enumerate(lines, 1)]
    assert None not in found, lines
    return [float(match[1]) for match in found if match is not None]


@pytest.mark.parametrize(
    "place", ["cpu", pytest.param("sim:0", marks=pytest.mark.slow), pytest.param("cuda:0", marks=pytest.mark.gpu)]
)
def test_nin_cifar10(tmp_path: Path, place: str) -> None:
    write_cifar(tmp_path)
    options = ("--place", place, "--steps", 30, "--batch", 10, "--width", 24, "--init", "he", "--rate", 0.02)
    *steps, accuracy = run("nin_cifar10.py", tmp_path, *options)
    assert losses(steps, 30)[-1] < 1.0  # 2.3 for equal scores of all classes
    assert accuracy == "100.0% of 8 test images recognized"


def test_nin_cifar10_takes_the_papers_weights_unless_told(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    *steps, _ = run("nin_cifar10.py", tmp_path, "--steps", 2, "--batch", 4, "--width", 24)
    assert losses(steps, 2) == [pytest.approx(np.log(10), abs=0.01)] * 2  # the scores are almost 0


@pytest.mark.slow
def test_googlenet(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    *steps, accuracy = run("googlenet.py", tmp_path, "--steps", 2, "--batch", 2, "--size", 130, "--test", 4)
    assert len(losses(steps, 2)) == 2
    assert re.fullmatch(r"the class is among the first five in \d+\.\d% of test images", accuracy)


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_mnist_mlp(tmp_path: Path, idx, model: str) -> None:
    write_digits(tmp_path, idx)
    *steps, accuracy = run("mnist_mlp.py", tmp_path, "--model", model, "--steps", 20, "--batch", 20)
    found = losses(steps, 20)
    assert found[-1] < found[0]
    assert accuracy == "100.0% of 50 test images recognized"


@pytest.mark.slow
def test_lstm_text(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("abcdefg " * 50, encoding="utf-8")
    options = ("--steps", 100, "--batch", 8, "--window", 10, "--hidden", 16, "--rate", 0.05, "--length", 16)
    *steps, written = run("lstm_text.py", text, *options)
    assert losses(steps, 100)[-1] < 0.3
    assert written == "abcdefg abcdefg "


@pytest.mark.slow
def test_mnist_mlp_under_control(tmp_path: Path, idx) -> None:
    write_digits(tmp_path, idx)
    options = ("--control", "--save", tmp_path / "saved", "--steps", 10**9, "--batch", 20)
    command = [sys.executable, "-W", "error", EXAMPLES / "mnist_mlp.py", tmp_path, *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address, token = process.stdout.readline().removeprefix("watch and control it at ").strip().split("?token=")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

        def order(name: str) -> dict[str, Any]:
            request = Request(f"{address}api/control/{name}", b"{}", headers)
            with urlopen(request, timeout=60) as response:
                return dict(json.load(response))

        order("pause")
        order("step")
        (saved,) = (tmp_path / "saved").glob("*") if order("save") else ()
        order("resume")
        while not order("cancel")["cancelled"]:
            pass
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert saved.name.startswith("checkpoint-")
    assert "was cancelled from the page, by 127.0.0.1" in errors.splitlines()[-1]


@pytest.mark.parametrize("name", ["nin_cifar10.py", "googlenet.py", "mnist_mlp.py", "lstm_text.py", "completions.py"])
def test_a_training_says_what_is_missing(tmp_path: Path, name: str) -> None:
    done = run_program(EXAMPLES / name, tmp_path / "absent")
    assert done.returncode == 1
    assert "absent: expected " in done.stderr
    assert "Traceback" not in done.stderr
