"""The examples in docstrings run and print what they say; every public function and class has one, or a reason."""

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.devices import registry as kinds
from actorflow.ops import Operation
from actorflow.ops import registry as kernels

#: Modules whose names are public, with those that they name: a name of several is that of the first.
STARTS = ("actorflow.ops", "actorflow", "actorflow.checkpoint", "actorflow.devices.sim", "actorflow.transport")

#: What examples need not import.
GLOBALS = {"af": af, "np": np, "xp": xp}

#: Why a name has no example; what a rule says (`_reason`) is not repeated here.
WITHOUT = {
    "actorflow.devices.CudaDevice": "needs a GPU",
    "actorflow.devices.Device": "a base: the page on adding a device has a whole kind",
    "actorflow.devices.Event": "a base: `actorflow.devices.sim.SimEvent` has an example",
    "actorflow.devices.Segment": "a base: `actorflow.devices.sim.SimSegment` has an example",
    "actorflow.devices.Stream": "a base: `actorflow.devices.sim.SimStream` has an example",
    "actorflow.devices.StreamDevice": "a base: `actorflow.devices.SimDevice` has an example",
    "actorflow.ops.CachedAttention": "made by `Cache.attention`",
    "actorflow.ops.Fused": "made by plans and by arrays",
    "actorflow.ops.Step": "made by plans and by arrays",
    "actorflow.ops.GeluTanh": "made by `gelu`, with ``tanh=True``",
    "actorflow.pipeline.torch_dataset": "needs torch, which the tests do without",
}

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _modules() -> Iterator[ModuleType]:
    """The public modules, each once."""
    seen, waiting = set(), [importlib.import_module(name) for name in STARTS]
    while waiting:
        module = waiting.pop(0)
        if module.__name__ in seen:
            continue
        seen.add(module.__name__)
        yield module
        waiting[:0] = [value for _, value in _members(module) if inspect.ismodule(value)]


def _members(module: ModuleType) -> Iterator[tuple[str, object]]:
    """What a module says is public, or what it defines."""
    for name in getattr(module, "__all__", vars(module)):
        value = getattr(module, name)
        if hasattr(module, "__all__") or (not name.startswith("_") and _is_of(value, module)):
            yield name, value


def _is_of(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def _public() -> dict[str, object]:
    """Public functions and classes by their first name."""
    found: dict[int, tuple[str, object]] = {}
    for module in MODULES:
        for name, value in _members(module):
            if inspect.isclass(value) or inspect.isroutine(value):
                found.setdefault(id(value), (f"{module.__name__}.{name}", value))
    return dict(found.values())


MODULES = list(_modules())
PUBLIC = _public()


def _documentation(value: object) -> str:
    """Its own docstring: that of a base says nothing of a class."""
    return (vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__) or ""


def _reason(name: str, value: object) -> str | None:
    if inspect.isclass(value) and issubclass(value, BaseException):
        return "raised, not made"
    if inspect.isclass(value) and issubclass(value, Operation):
        makers = re.findall(r"[Ss]ee `(?:actorflow\.)?([\w.]+)`", _documentation(value))
        if any(public.endswith(f".{maker}") for public in PUBLIC for maker in makers):
            return "made by what its docstring names"
    return WITHOUT.get(name)


def _has_example(value: object) -> bool:
    return ">>> " in _documentation(value)


def _examples(name: str) -> list[doctest.DocTest]:
    """The examples of a module itself, or of a public name and of its methods."""
    is_module = name not in PUBLIC
    value = importlib.import_module(name) if is_module else PUBLIC[name]
    found = doctest.DocTestFinder(recurse=not is_module).find(value, name, module=False)
    return [test for test in found if test.examples]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A folder and a session of an example's own; what it registers is forgotten."""
    folder.mkdir()
    with chdir(folder), xp.session(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds, "_kinds", kinds._kinds.copy())
        patch.setattr(kernels, "_modules", kernels._modules.copy())
        yield
    for key, kernel in [*kernels._kernels.items()]:
        if "__main__" in (kernel.function.__module__, getattr(kernel.made_for, "__module__", "")):  # that of examples
            del kernels._kernels[key]


@pytest.mark.together("name", [*(module.__name__ for module in MODULES), *PUBLIC], at_once=40)
def test_examples(name: str, tmp_path: Path) -> None:
    for example in _examples(name):
        example.globs.update(GLOBALS)
        said: list[str] = []
        with alone(tmp_path / example.name):
            result = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append)
        assert not result.failed, "".join(said)


def test_every_public_name_has_an_example_or_a_reason() -> None:
    lacking = [name for name, value in PUBLIC.items() if not _has_example(value) and _reason(name, value) is None]
    assert lacking == []


def test_reasons_are_of_names_without_an_example() -> None:
    assert [name for name in WITHOUT if name not in PUBLIC or _has_example(PUBLIC[name])] == []
