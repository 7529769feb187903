"""Every public name has its place in the reference."""

import inspect
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import actorflow as af

DOCS = Path(__file__).parents[2] / "docs"
LIST = re.compile(r"^```\{names\} (?P<module>\S+)\n(?P<names>.*?)^```$", re.MULTILINE | re.DOTALL)

#: Modules whose public names are described, all of them.
MODULES = [
    "actorflow",
    *(f"actorflow.{name}" for name in af.__all__ if inspect.ismodule(getattr(af, name))),
    "actorflow.array.fft",
    "actorflow.array.linalg",
    "actorflow.array.nn",
    "actorflow.checkpoint",
    "actorflow.devices.cuda",
    "actorflow.devices.sim",
    "actorflow.nn.init",
    "actorflow.nn.parallel",
    "actorflow.nn.rates",
    "actorflow.ops.fft",
    "actorflow.ops.linalg",
    "actorflow.transport",
]


def listed() -> Counter[str]:
    """Names that the pages describe, and how often; a star is for those of the module that no page lists."""
    found = Counter(
        f"{each['module']}.{name}"
        for page in DOCS.joinpath("reference").glob("*.md")
        for each in LIST.finditer(page.read_text(encoding="utf-8"))
        for name in each["names"].split()
    )
    for module in [name.removesuffix(".*") for name in found if name.endswith(".*")]:
        del found[f"{module}.*"]
        found.update({f"{module}.{name}" for name in public(module)} - found.keys())
    return found


def public(module: str) -> set[str]:
    """Public names of a module: what it lists, or what it defines itself."""
    room = import_module(module)
    names = getattr(room, "__all__", None)
    if names is None:
        own = {name for name, value in vars(room).items() if getattr(value, "__module__", None) == module}
        names = [name for name in own if not name.startswith("_")]
    return set(names)


@pytest.mark.together("module", MODULES, at_once=30)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    if module == "actorflow.onnx":
        pytest.importorskip("onnx", reason="onnx is not installed: pip install 'actorflow[onnx]'")
    room, described = import_module(module), listed()
    modules = {name for name in public(module) if inspect.ismodule(getattr(room, name)) and module == "actorflow"}
    # A name that an outer module has, too, is described there.
    outer = import_module(module.rpartition(".")[0]) if "." in module else None
    shared = {
        name
        for name in public(module)
        if f"{module}.{name}" not in described
        and getattr(outer, name, None) is getattr(room, name)
        and f"{outer.__name__ if outer else ''}.{name}" in described
    }
    elsewhere = {name for name in public(module) if module == "actorflow.devices.sim" and hasattr(af, name)}
    missing = public(module) - modules - shared - elsewhere
    assert not {name for name in missing if f"{module}.{name}" not in described}


def test_what_is_listed_exists_and_stands_there_once() -> None:
    for name, count in listed().items():
        module, _, last = name.rpartition(".")
        room = import_module(module)
        assert last in getattr(room, "__all__", vars(room)), name
        assert count == 1, name
