"""Rooms of the package, and which of them import which: no two import each other, and the longest chain is short.

All imports of a module count, those for annotations and those inside functions too. A room is a folder of the package
or a file at its root, taken as a whole.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import actorflow

PACKAGE = Path(actorflow.__file__).parent
#: `actorflow/__init__.py`, which names what is in all rooms and imports it when it is asked for.
FACE = "actorflow"
#: What annotations of lower rooms may name.
NODES = {"Graph", "Blob", "Op", "Variable"}
#: Classes whose methods run, show or record what they define: by module, the class and the rooms that it may ask for
#: inside its methods and name in their annotations.
ABOVE = {
    "graph.graph": ("Graph", {"checkpoint", "plan", "runtime", "show", "trace"}),
    "plan.plan": ("Plan", {"show"}),
}
MOST_FILES, MOST_LAYERS = 9, 13


class Import(NamedTuple):
    """One name that one module imports from another room; ``owner`` is the class around it, if it is in a method."""

    module: str
    target: str
    name: str
    for_types: bool
    owner: str | None

    @property
    def rooms(self) -> tuple[str, str]:
        return room(self.module), room(self.target)

    @property
    def may_point_up(self) -> bool:
        """Return whether it is one of the two exceptions."""
        if self.for_types and room(self.target) == "graph" and self.name in NODES:
            return True
        owner, rooms = ABOVE.get(self.module, (None, set()))
        return room(self.target) in rooms and (self.for_types or (self.owner is not None and self.owner == owner))

    def __str__(self) -> str:
        how = "for annotations" if self.for_types else f"in a method of {self.owner}" if self.owner else "plainly"
        return f"{self.module} imports {self.name} of {self.target} {how}"


def room(module: str) -> str:
    return module.partition(".")[0] or FACE


def sources(package: Path) -> dict[str, str]:
    """Each module's text, by its name without that of the package."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


def imports(modules: Mapping[str, str]) -> list[Import]:
    """All imports from one room of another; the package is not a room."""
    found = []
    for module, text in modules.items():
        if room(module) != FACE:
            found += [each for each in _imports(module, ast.parse(text), modules) if each.rooms[0] != each.rooms[1]]
    return found


def _imports(
    module: str, node: ast.AST, modules: Mapping[str, str], for_types: bool = False, owners: tuple[str, ...] = ()
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # which has no import, and most of the nodes
            continue
        types = for_types or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
        inside = owners
        if isinstance(child, ast.ClassDef):
            inside = (child.name,)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = (*owners, child.name)
        owner = owners[0] if len(owners) > 1 else None
        if isinstance(child, ast.ImportFrom):
            assert not child.level, f"{module} has a relative import"
            if child.module == "actorflow" or (child.module or "").startswith("actorflow."):
                base = (child.module or "").removeprefix("actorflow").removeprefix(".")
                for alias in child.names:
                    inner = f"{base}.{alias.name}".lstrip(".")
                    yield Import(module, inner if inner in modules else base, alias.name, types, owner)
        elif isinstance(child, ast.Import):
            for alias in child.names:
                if alias.name == "actorflow" or alias.name.startswith("actorflow."):
                    target = alias.name.removeprefix("actorflow").removeprefix(".")
                    yield Import(module, target, target or "itself", types, owner)
        yield from _imports(module, child, modules, types, inside)


def mutual(found: list[Import]) -> list[str]:
    """Imports by which two rooms import each other, but for the exceptions: of each pair the direction with fewer."""
    arrows: dict[tuple[str, str], list[Import]] = defaultdict(list)
    for each in found:
        if not each.may_point_up:
            arrows[each.rooms].append(each)
    pairs = [(a, b) for a, b in arrows if (b, a) in arrows and (len(arrows[a, b]), a) <= (len(arrows[b, a]), b)]
    return [f"{a} and {b} import each other: {each}" for a, b in sorted(pairs) for each in arrows[a, b]]


def longest_chain(found: list[Import]) -> list[str]:
    """The longest chain of rooms of which each imports the next, the exceptions aside."""
    below: dict[str, set[str]] = defaultdict(set)
    for each in found:
        if not each.may_point_up and each.rooms[1] != FACE:
            below[each.rooms[0]].add(each.rooms[1])
    path: list[str] = []

    @cache
    def down(start: str) -> tuple[str, ...]:
        assert start not in path, f"rooms import each other in a circle: {' -> '.join([*path, start])}"
        path.append(start)
        longest = max((down(each) for each in sorted(below[start])), key=len, default=())
        path.pop()
        return start, *longest

    return [*max((down(each) for each in sorted(below)), key=len, default=())]


@cache
def of_package() -> list[Import]:
    return imports(sources(PACKAGE))


def test_no_two_rooms_import_each_other() -> None:
    assert mutual(of_package()) == []


def test_rooms_ask_the_face_for_the_version_alone() -> None:
    assert {each.name for each in of_package() if each.rooms[1] == FACE} == {"__version__"}


def test_few_files_stand_at_the_root() -> None:
    files = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(files) <= MOST_FILES, files


def test_the_longest_chain_of_rooms_is_short() -> None:
    chain = longest_chain(of_package())
    assert len(chain) <= MOST_LAYERS, " -> ".join(chain)


def test_every_room_says_what_it_is_for() -> None:
    for folder in PACKAGE.iterdir():
        if (folder / "__init__.py").exists():
            assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder


GRAPH = {"graph.graph": "class Graph: ...\nclass Store: ...", "ops.nn": "from actorflow.graph.graph import Graph"}


class TestTheCheckItself:
    @pytest.mark.together(
        "text",
        [
            "from actorflow.graph.graph import Graph",
            "def f():\n    from actorflow.graph.graph import Graph",
            "if TYPE_CHECKING:\n    from actorflow.graph.graph import Store",
            "import actorflow.graph.graph",
            "from actorflow.graph import graph",
        ],
    )
    def test_it_finds_what_points_up(self, text: str) -> None:
        modules = {
            "graph.graph": "from actorflow.ops.nn import x\nfrom actorflow.ops.nn import y",
            "ops.nn": text,
        }
        (complaint,) = mutual(imports(modules))
        assert complaint.startswith("ops and graph import each other: ops.nn imports ")

    def test_annotations_may_name_nodes(self) -> None:
        text = "if TYPE_CHECKING:\n    from actorflow.graph.graph import Graph"
        assert not mutual(imports({"graph.graph": "from actorflow.ops.nn import x", "ops.nn": text}))

    @pytest.mark.together(
        ("module", "text", "fails"),
        [
            ("graph.graph", "class Graph:\n    def run(self):\n        from actorflow.runtime.engine import E", False),
            ("graph.graph", "if TYPE_CHECKING:\n    from actorflow.runtime.engine import E", False),
            ("graph.graph", "class Other:\n    def run(self):\n        from actorflow.runtime.engine import E", True),
            ("graph.graph", "class Graph:\n    from actorflow.runtime.engine import E", True),
            ("graph.graph", "def run():\n    from actorflow.runtime.engine import E", True),
            ("graph.nodes", "class Graph:\n    def run(self):\n        from actorflow.runtime.engine import E", True),
            ("graph.nodes", "if TYPE_CHECKING:\n    from actorflow.runtime.engine import E", True),
        ],
    )
    def test_methods_of_graph_may_ask_for_what_runs_it(self, module: str, text: str, fails: bool) -> None:
        engine = "from actorflow.graph.graph import Graph"
        assert bool(mutual(imports({"runtime.engine": engine, "graph.graph": "", module: text}))) is fails

    def test_it_measures_the_longest_chain(self) -> None:
        modules = {
            "": "",
            "cli": "from actorflow.web.page import x\nfrom actorflow.errors import y",
            "web.page": "def f():\n    from actorflow.errors import y",
            "errors": "",
        }
        assert longest_chain(imports(modules)) == ["cli", "web", "errors"]

    def test_it_finds_circles_of_three(self) -> None:
        modules = {name: f"from actorflow.{after} import x" for name, after in [("a", "b"), ("b", "c"), ("c", "a")]}
        with pytest.raises(AssertionError, match="a -> b -> c -> a"):
            longest_chain(imports(modules))
