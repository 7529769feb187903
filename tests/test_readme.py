"""The programs in the README and in docs/ run as printed and print what it says there."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.warm import run_program

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAM = re.compile(
    r"^## (?P<title>.*?)$|^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL
)

#: What a program says that needs torch, itself or as a kernel library.
TORCH = re.compile(r"^import torch$|libraries=\[\"torch\"\]", re.MULTILINE)
HAS_TORCH = find_spec("torch") is not None or bool(os.environ.get("CI"))


def programs(page: Path) -> list[object]:
    found, title = [], "start"
    for match in PROGRAM.finditer(page.read_text(encoding="utf-8")):
        title = match["title"] or title
        if match["code"]:
            found.append(pytest.param(match["code"], match["output"], id=f"{page.stem}: {title}"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_program_has_its_output(page: Path) -> None:
    assert len(programs(page)) == page.read_text(encoding="utf-8").count("```python")


def test_there_are_programs() -> None:
    assert {page.stem for page in PAGES if programs(page)} >= {
        "README",
        "errors",
        "lanes",
        "memory",
        "own-operations",
        "running",
        "testing",
    }


@pytest.mark.parametrize(("code", "output"), [program for page in PAGES for program in programs(page)])
def test_program(code: str, output: str, tmp_path: Path) -> None:
    if TORCH.search(code) and not HAS_TORCH:
        pytest.skip("torch is not installed: make test WITH=torch")
    path = tmp_path / "program.py"
    path.write_text(code, encoding="utf-8")
    done = run_program(path, folder=tmp_path)  # where a program may leave files
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == output.splitlines()


def test_linear_example_is_the_readmes() -> None:
    example = (ROOT / "examples" / "linear.py").read_text(encoding="utf-8")
    program = example[example.index("import numpy") :]
    assert f"```python\n{program}```\n" in PAGES[0].read_text(encoding="utf-8")
