"""Programs of users under ``mypy --strict`` and strict pyright: public names have types, none of which is ``Any``."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import actorflow
from actorflow import _SUBMODULES

ROOT = Path(actorflow.__file__).parents[1]
PROGRAMS = Path(__file__).parent / "support"
#: Modules of public names; what `dir` shows of the package itself is that.
PUBLIC = ("", *_SUBMODULES, "array.fft", "array.linalg", "array.nn")


def all_names() -> str:
    """A program that uses all public names."""
    lines = ["import actorflow", *[f"import actorflow.{room}" for room in PUBLIC if room]]
    for room in PUBLIC:
        module = import_module(f"actorflow.{room}".rstrip("."))
        lines += [f"{module.__name__}.{name}" for name in module.__all__]
    return "\n".join(lines)


def mypy(folder: Path) -> set[tuple[str, int]]:
    """Files and lines of the programs in a folder that mypy complains of."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "."],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^([\w.]+):(\d+): error", done.stdout, re.MULTILINE)
    return {(name, int(line)) for name, line in found}


def pyright(folder: Path) -> set[tuple[str, int]]:
    """Likewise pyright, without its opinions on what is not used."""
    pytest.importorskip("pyright", reason="pyright is not installed: pip install 'pyright[nodejs]'")
    off = ("ArgumentType", "Coroutine", "Expression", "MemberType", "Variable", "VariableType")
    rules = {f"reportUnused{each}": False for each in off} | {f"reportUnknown{each}": True for each in off[-3:]}
    settings = {"include": ["."], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict", **rules}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found}


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_programs_of_users(tmp_path: Path, checker: Callable[[Path], set[tuple[str, int]]]) -> None:
    (tmp_path / "names.py").write_text(all_names())
    for name in ("user_program.py", "wrong_program.py"):
        (tmp_path / name).write_bytes((PROGRAMS / name).read_bytes())
    lines = (PROGRAMS / "wrong_program.py").read_text().splitlines()
    mistakes = [line for line, text in enumerate(lines, 1) if re.search(r"# \d+ ", text)]
    assert len(mistakes) >= 15
    assert sorted(checker(tmp_path)) == [("wrong_program.py", line) for line in mistakes]
