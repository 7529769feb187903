"""Rooms of the package: what import-linter, which leaves out imports for annotations, does not hold.

A room is a folder of the package or a file at its root, taken as a whole.
"""

import ast
import re
import tomllib
from pathlib import Path
from textwrap import dedent

import actorflow

PACKAGE = Path(actorflow.__file__).parent
SOURCES = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
MOST_FILES = 9
#: What annotations of lower rooms may name.
NODES = {"Graph", "Blob", "Op", "Variable"}
#: What methods of `Graph` and `Plan` run, show or record, which their annotations may name.
ABOVE = {"graph/graph.py": {"checkpoint", "plan", "runtime", "show", "trace"}, "plan/plan.py": {"show"}}


def test_annotations_point_down_too() -> None:
    linter = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = reversed(linter["contracts"][0]["layers"])
    levels = {"__init__": len(linter["contracts"][0]["layers"])}  # the face, which names what is in all of them
    levels |= {room.strip(): level for level, rooms in enumerate(layers) for room in rooms.split("|")}
    found = 0
    for module, text in SOURCES.items():
        room = Path(module).parts[0].removesuffix(".py")
        for block in re.findall(r"^if TYPE_CHECKING:\n((?: {4}.*\n|\n)+)", text, re.MULTILINE):
            for line in ast.parse(dedent(block)).body:
                if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("actorflow."):
                    target = (line.module or "").split(".")[1]
                    found += 1
                    if levels[target] > levels[room] and target not in ABOVE.get(module, {}):
                        assert target == "graph", f"{module}: {block}"
                        assert {each.name for each in line.names} <= NODES, module
    assert found > 100


def test_rooms_ask_the_face_for_the_version_alone() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir()}
    asked = {
        name for text in SOURCES.values() for name in re.findall(r"^ *from actorflow import (\w+)", text, re.MULTILINE)
    }
    assert asked - rooms == {"__version__"}


def test_few_files_stand_at_the_root() -> None:
    files = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(files) <= MOST_FILES, files


def test_every_room_says_what_it_is_for() -> None:
    for folder in PACKAGE.iterdir():
        if (folder / "__init__.py").exists():
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder
