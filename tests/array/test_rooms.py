"""Imports between the rooms of `actorflow.array` go one way, those for annotations and those in functions counted."""

import ast
from collections.abc import Iterator
from pathlib import Path

import actorflow.array

ROOT = Path(actorflow.array.__file__).parent
#: From the bottom up; a module without a room is in that of its line.
ROOMS = (
    ("record",),
    ("array", "namespace", "linalg", "fft"),
    ("transforms", "nn"),
    ("memory", "structures"),
    ("jobs",),
    ("sessions",),
    ("",),
)
LEVELS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Modules that a file imports from, below `actorflow.array`, with the names."""
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            for alias in statement.names:
                if (statement.module, alias.name) == ("actorflow", "array"):
                    yield "", ""
                elif statement.module == "actorflow.array":
                    yield alias.name, ""
                elif statement.module.startswith("actorflow.array."):
                    yield statement.module.removeprefix("actorflow.array."), alias.name


def test_no_room_imports_from_one_above() -> None:
    upward = []
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        for module, imported in imports(path):
            is_annotation = (module, imported) == ("array", "Array")
            if LEVELS[module.partition(".")[0]] > LEVELS[name.partition(".")[0]] and not is_annotation:
                upward.append(f"{name} -> {module}")
    assert not upward
