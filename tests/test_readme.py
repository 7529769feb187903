"""The README's programs run as printed and print what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM = re.compile(
    r"^## (?P<title>.*?)$|^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL
)


def programs() -> list[object]:
    found, title = [], "start"
    for match in PROGRAM.finditer(README):
        title = match["title"] or title
        if match["code"]:
            found.append(pytest.param(match["code"], match["output"], id=title))
    return found


def test_every_program_has_its_output() -> None:
    assert len(programs()) == README.count("```python") > 0


@pytest.mark.parametrize(("code", "output"), programs())
def test_program(code: str, output: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == output.splitlines()


def test_linear_example_is_the_readmes() -> None:
    example = (ROOT / "examples" / "linear.py").read_text(encoding="utf-8")
    program = example[example.index("import numpy") :]
    assert f"```python\n{program}```\n" in README
