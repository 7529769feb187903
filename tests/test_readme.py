"""The programs in the README and in docs/ run as printed and print what it says there."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.effort import slow
from tests.support.pages import PAGES, PORT, ROOT, Block, agrees, blocks, is_one_folder
from tests.support.warm import run_program

#: What a program says that needs an extra's module.
NEEDS = {
    "torch": re.compile(r"^import torch$", re.MULTILINE),
    "numba": re.compile(r"^import numba$", re.MULTILINE),
}
#: Seconds for one command of a page.
PATIENCE_S = 120

#: Programs that import torch, run pytest, or train or try much.
LONG = {
    "add-a-device: Check it",
    "interchange: In and out",
    "own-operations: Kernels",
    "parallel: Data parallel",
    "parallel: Pipeline parallel",
    "testing: A service's tests with pytest",
    "torch-weights: start",
}
SEPARATE = [
    pytest.param(block, id=name, marks=[pytest.mark.slow] * (name in LONG))
    for page in PAGES
    if not is_one_folder(page)
    for block in blocks(page)
    if block.language == "python" and "not run" not in block.marks
    for name in [f"{page.stem}: {block.title}"]
]
TOGETHER = [page for page in PAGES if is_one_folder(page)]
#: A page whose programs start few processes and train little.
SHORT = [page for page in TOGETHER if page.stem == "start"]


@pytest.mark.together("page", PAGES, ids=lambda page: page.stem)
def test_every_program_has_its_output(page: Path) -> None:
    programs = [block for block in blocks(page) if block.language == "python"]
    assert len(programs) == page.read_text(encoding="utf-8").count("```python")
    for block in programs:
        assert "file" in block.marks or "not run" in block.marks or block.output is not None, block.title


def test_there_are_programs() -> None:
    run = [block for page in PAGES for block in blocks(page) if "not run" not in block.marks]
    not_run = [f"{page.stem}: {block.title}" for page in PAGES for block in blocks(page) if "not run" in block.marks]
    assert len([block for block in run if block.language == "python"]) >= 120
    assert not_run == NOT_RUN
    assert {page.parent.name for page in PAGES if blocks(page)} >= {"start", "how-to", "explanation"}


#: Programs that no test runs: where the page says why.
NOT_RUN: list[str] = []


@pytest.mark.parametrize("block", SEPARATE)
def test_program(block: Block, tmp_path: Path) -> None:
    skip_without_extras([block])
    path = tmp_path / "program.py"
    path.write_text(block.code, encoding="utf-8")
    done = run_program(path, folder=tmp_path)  # where a program may leave files
    assert done.returncode == 0, done.stderr
    assert block.output is not None
    assert [line.rstrip() for line in done.stdout.splitlines()] == block.output.splitlines()


def skip_without_extras(found: Iterable[Block]) -> None:
    """Skip where a program needs what is not installed, but not on CI, which has all of it."""
    for module, needs in NEEDS.items():
        if not os.environ.get("CI") and find_spec(module) is None and any(needs.search(each.code) for each in found):
            pytest.skip(f"{module} is not installed: make test WITH={module}")


@pytest.mark.parametrize("page", slow(TOGETHER, but=SHORT), ids=lambda page: page.stem)
def test_page(page: Path, tmp_path: Path) -> None:
    """All of a page, in one folder, as a reader does it."""
    found = blocks(page)
    skip_without_extras(found)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with ExitStack() as beside:
        for block in found:
            if "not run" not in block.marks:
                run_block(block, tmp_path, port, beside)


def run_block(block: Block, folder: Path, port: str, beside: ExitStack) -> None:
    """Keep and run a program, or run commands, and compare what is printed."""
    code = block.code.replace(PORT, port)
    if block.language == "python":
        name = block.marks.get("file", "program.py")
        (folder / name).write_text(code, encoding="utf-8")
        if block.output is not None:
            check(block.marks.get("run", f"python {name}"), block.output.replace(PORT, port), folder)
        return
    for command, output in block.commands:
        command, output = command.replace(PORT, port), output.replace(PORT, port)
        if "beside" in block.marks:
            beside.enter_context(run_beside(command, folder))
        else:
            check(command, output, folder)


def environment() -> dict[str, str]:
    """That of a reader who has installed the package: its commands are found."""
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(folders), "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def check(command: str, output: str, folder: Path) -> None:
    words = shlex.split(command)
    if words[0] == "python":
        done = run_program(*words[1:], folder=folder, environment=environment())
    else:
        done = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment(),
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert agrees(done.stdout, output), f"{command}\n{done.stdout}"


class run_beside:  # noqa: N801  a context manager that is used as a function
    """A command that runs on, and has printed its first line."""

    def __init__(self, command: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            shlex.split(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**environment(), "PYTHONUNBUFFERED": "1"},
        )

    def __enter__(self) -> None:
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        assert first, "it has ended"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE_S)


def test_linear_example_is_on_a_page() -> None:
    example = (ROOT / "examples" / "linear.py").read_text(encoding="utf-8")
    program = example[example.index("import numpy") :]
    assert any(f"```python\n{program}```\n" in page.read_text(encoding="utf-8") for page in PAGES)
