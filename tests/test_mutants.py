"""`tools/mutants`: each of its changes is made where it says, in functions that exist already."""

import builtins
import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PATH = Path(__file__).parents[1] / "tools" / "mutants"

SOURCE = '''
def counted(numbers, *, limit=3):
    """Count."""
    total = 0
    for number in numbers:
        if number == limit:
            break
        total += number
    return total

def maker(sign):
    def signed(number):
        return number if sign else -number
    return signed

positive = maker(True)
doubled = lambda number: number * 2

class Box:
    def __init__(self, value):
        self.value = value

    def items(self):
        yield not self.value

    def __repr__(self):
        return "text" if self.value else "no" + "text"

def fail(value):
    if value and not positive(value):
        raise ValueError(1 + 1)
    assert value < 2
'''
MUTANTS = {
    "counted: limit -> limit=4",
    "counted: 0 -> 1",
    "counted: number == limit -> number != limit",
    "counted: break -> continue",
    "counted: total += number -> total -= number",
    "counted: total += number -> nothing",
    "counted: return total -> return None",
    "maker: return signed -> return None",
    "maker.signed: return number if sign else -number -> return None",
    "maker.signed: number if sign else -number -> number if not sign else -number",
    "maker.signed: -number -> number",
    ": number * 2 -> number // 2",
    ": 2 -> 3",
    "Box.__init__: self.value = value -> nothing",
    "Box.items: not self.value -> self.value",
    "fail: value and (not positive(value)) -> value or not positive(value)",
    "fail: not positive(value) -> positive(value)",
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The program as a module, for files of a folder of the test."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("mutants", str(PATH))
    spec = importlib.util.spec_from_loader("mutants", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "mutants", module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)  # which it replaces
    return module


def load(path: Path) -> ModuleType:
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcomes(module: ModuleType) -> list[Any]:
    """What the functions of a module give."""

    def tried(*names: str) -> Any:
        try:
            return repr(eval(*names, vars(module)))
        except Exception as error:  # noqa: BLE001  as a result
            return type(error)

    return [
        *map(tried, ["counted([1, 2, 3, 4])", "positive(5)", "maker(False)(5)", "doubled(4)", "Box(7).value"]),
        *map(tried, ["[*Box(7).items()]", "fail(0)", "fail(1)"]),
    ]


def test_each_change_is_made_in_the_functions_that_exist(tool: Any, tmp_path: Path) -> None:
    name = "m.py"
    original = outcomes(load(tmp_path / name))
    found = [mutant.partition(": ")[2] for mutant in tool.named(name, tool.read(name)[1])]
    assert set(found) == MUTANTS
    assert len(found) == len(MUTANTS)
    modules = {f"m{k}.py: {mutant}": load(tmp_path / f"m{k}.py") for k, mutant in enumerate(found)}
    installer = tool.Installer()
    for mutant, module in modules.items():
        assert outcomes(module) == original
        installer.mutate(mutant)
        assert outcomes(module) != original, mutant
        again = importlib.util.spec_from_file_location("again", module.__file__)
        assert again is not None
        assert again.loader is not None
        imported = importlib.util.module_from_spec(again)
        again.loader.exec_module(imported)
        if "limit=" not in mutant:
            assert outcomes(imported) != original, f"{mutant} was not imported"


def test_a_probe_tells_which_places_are_reached_and_changes_nothing(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(tmp_path / "m.py")
    mutants = [*tool.named("m.py", tool.read("m.py")[1])]
    reached: set[int] = set()
    monkeypatch.setattr(builtins, tool.REACHED, reached.add, raising=False)
    original = outcomes(module)
    tool.Installer().probe(mutants)
    assert not reached
    assert module.counted([]) == 0
    assert {mutants[k].partition(": ")[2] for k in reached} == {
        "counted: limit -> limit=4",
        "counted: 0 -> 1",
        "counted: return total -> return None",
    }
    assert outcomes(module) == original
    assert reached == set(range(len(mutants)))
