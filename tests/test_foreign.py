"""Names that other libraries have."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

import actorflow as af
from actorflow.foreign import HINTS

PLACES = {"af": af, "graph": af.Graph("g")}
EVERY = [(module, name) for module, names in HINTS.items() for name in names]


def shown(module: str, name: str) -> str:
    """Message on an attribute that a module lacks."""
    with pytest.raises(AttributeError) as caught:
        getattr(import_module(module), name)
    return str(caught.value)


@pytest.mark.together(("module", "name"), EVERY)
def test_every_hint_leads_to_what_is_there(module: str, name: str) -> None:
    text = shown(module, name)
    start = f"module {module!r} has no attribute {name!r}; here: "
    assert text.startswith(start)
    for path in re.findall(r"\b(?:af|graph)(?:\.\w+)+", text.removeprefix(start)):
        first, *rest = path.split(".")
        found = PLACES[first]
        for part in rest:
            found = getattr(found, part)


@pytest.mark.parametrize("module", HINTS)
def test_no_hint_is_of_what_is_there(module: str) -> None:
    assert HINTS[module].keys().isdisjoint(import_module(module).__all__)


@pytest.mark.together(
    ("module", "name", "expected"),
    [
        ("actorflow.nn", "LazyLinear", "here: af.nn.Linear(features), on the last axis"),
        ("actorflow.nn", "Dense", "here: af.nn.Linear(features), on the last axis"),
        ("actorflow.nn", "Sequential", "here: layers are joined with >>: "),
        ("actorflow.ops", "conv2d", "here: af.ops.conv(x, weight), "),
        ("actorflow.ops", "cat", "here: af.ops.concat"),
        ("actorflow.array", "concatenate", "here: af.array.concat"),
        ("actorflow.array.linalg", "norm", "here: vector_norm(x, axis=1, ord=2), or matrix_norm"),
        ("actorflow.array", "vstack", "here: af.array.concat(arrays, axis=0)"),
        ("actorflow.array", "dot", "here: x @ y, or af.array.matmul"),
        ("actorflow.array", "random", "here: af.array.randn(shape)"),
        ("actorflow.array", "copy", "here: af.array.asarray(x, copy=True)"),
        ("actorflow.array", "softmax_loss", "it is af.ops.softmax_loss"),
        ("actorflow.onnx", "export", "here: af.onnx.save"),
        ("actorflow", "abs", "here: abs(x), or af.ops.absolute(x)"),
        ("actorflow.ops", "while", "here: af.while_loop"),
        ("actorflow.ops", "cond", "it is af.cond"),
        ("actorflow.ops", "Linear", "it is af.nn.Linear"),
        ("actorflow.ops", "MultiheadAttention", "here: af.nn.MultiHeadAttention"),
        ("actorflow.nn", "DataLoader", "here: af.data.Loader"),
        ("actorflow.nn", "if", "here: af.cond("),
        ("actorflow", "Linear", "it is af.nn.Linear"),
        ("actorflow", "Conv", "it is af.nn.Conv"),
        ("actorflow", "softmax", "it is af.ops.softmax"),
        ("actorflow", "Loader", "it is af.data.Loader"),
        ("actorflow.nn", "relu", "it is af.ops.relu"),
        ("actorflow.ops", "Graph", "it is af.Graph"),
        ("actorflow.nn", "Cnov", "did you mean 'Conv'"),
        ("actorflow.ops", "sofmax", "did you mean 'softmax'"),
    ],
)
def test_what_is_said(module: str, name: str, expected: str) -> None:
    assert f"; {expected}" in shown(module, name)


@pytest.mark.parametrize("name", ["_hidden", "__wrapped__", "nothing_like_it"])
def test_other_names_are_just_missing(name: str) -> None:
    assert shown("actorflow.nn", name) == f"module 'actorflow.nn' has no attribute {name!r}"
    assert not hasattr(af.nn, name)


def test_an_import_says_as_much() -> None:
    for line, expected in {
        "from actorflow.nn import Dense": "af.nn.Linear",
        "from actorflow.ops import conv2d": "af.ops.conv",
        "from actorflow import Conv": "af.nn.Conv",
        "from actorflow.nn import Cnov": "did you mean 'Conv'",
    }.items():
        with pytest.raises(ImportError, match=f"cannot import name '[A-Za-z0-9]+' from .*{re.escape(expected)}"):
            exec(line)


def test_submodules_are_imported_as_ever() -> None:
    """Also those that nothing has loaded yet."""
    lines = "from actorflow import graph, trace; from actorflow.ops import sim; from actorflow.nn import layers"
    subprocess.run([sys.executable, "-W", "error", "-c", lines], check=True, timeout=120)


def test_asking_for_a_name_that_is_nowhere_loads_nothing() -> None:
    program = """
import sys, actorflow
before = set(sys.modules)
for name in ("Foo", "Linear", "Trainer", "softmax"):
    assert not hasattr(actorflow, name), name
loaded = {name for name in set(sys.modules) - before if name.startswith("actorflow")}
print(sorted(loaded - {"actorflow.foreign", "actorflow.errors"}))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
