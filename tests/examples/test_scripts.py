"""The examples that are programs run as they are, and print what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> list[str]:
    """The lines that an example prints."""
    command = [sys.executable, "-W", "error", EXAMPLES / name]
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
