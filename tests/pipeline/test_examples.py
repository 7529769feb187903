"""The examples of loaders run as they are."""

import re
from pathlib import Path

import pytest

from tests.support.warm import Completed, run_program

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: object) -> Completed:
    done = run_program(EXAMPLES / name, *arguments)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_images_from_disk() -> None:
    done = run("async_loader.py", "--epochs", 1, "--batch", 50, "--width", 8)
    assert done.stderr == ""
    first, busy, *table = done.stdout.splitlines()
    assert re.fullmatch(r"16 batches of dark_left, dark_top: loss \d\.\d+ -> \d\.\d+", first)
    assert re.fullmatch(r"the graph was busy \d+\.\d% of the time", busy)
    assert [line.split()[0] for line in table[1:4]] == ["source", "read", "decode"]
    assert table[-1].startswith("What holds the loader up: ")


def test_web_server_with_faults() -> None:
    done = run("http_loader.py")
    lines = done.stdout.splitlines()
    assert lines[0] == f"sum of the records: {sum(i for i in range(200) if i % 50 != 49)}"
    assert re.fullmatch(r"\d+ requests repeated, \d+ of them after a timeout", lines[1])
    assert lines[2] == "4 of 200 records left out: ValueError: expected 32 bytes, got 12"
    assert done.stderr.startswith("stage 'parse' leaves out item ")
