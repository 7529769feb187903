"""The error tree, and what the errors carry."""

import re

import numpy as np
import pytest

import actorflow as af
from actorflow import errors


def test_the_tree_is_the_one_that_is_drawn() -> None:
    drawn = re.findall(r"[├└]── (\w+)(?: \((\w+)\))?", errors.__doc__ or "")
    names = {name for name, _ in drawn}
    assert names == set(errors.__all__) - {"ActorflowError", "require"}
    for name, builtin in drawn:
        kind = getattr(errors, name)
        assert issubclass(kind, af.ActorflowError)
        if builtin:
            assert issubclass(kind, getattr(__builtins__, builtin, None) or __builtins__[builtin])


@pytest.mark.parametrize("kind", [af.CycleError, af.ShapeError, af.DTypeError, af.PlaceError, af.FeedError])
def test_wrong_graphs_are_value_errors(kind: type[Exception]) -> None:
    assert issubclass(kind, af.GraphError)
    assert issubclass(kind, ValueError)


def test_a_cycle_is_named_and_kept() -> None:
    error = af.CycleError(["a", "x", "b", "y", "a"])
    assert str(error) == "the graph has a cycle: a -> x -> b -> y -> a"
    assert error.cycle == ("a", "x", "b", "y", "a")


def test_the_message_of_a_long_cycle_shows_its_ends() -> None:
    names = [f"n{i}" for i in range(1000)]
    error = af.CycleError([*names, "n0"])
    assert len(error.cycle) == 1001
    assert str(error).startswith("the graph has a cycle: n0 -> n1 -> ")
    assert " -> n9 -> ... 981 more ... -> n991 -> " in str(error)
    assert str(error).endswith(" -> n999 -> n0")


def test_op_error_names_op_inputs_and_line() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 3))
    n = graph.blob("n", (), "int64")
    y = graph.blob("y", 2)
    [x, n] >> graph.function("part.mean", lambda x, n: 1 / 0) >> [y]
    with pytest.raises(af.OpError) as caught:
        graph.run_sync({x: np.zeros((2, 3), "f"), n: 1})
    error = caught.value
    assert error.op is graph["part.mean"]
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert re.search(
        r"op 'part\.mean' \(test_op_error_names_op_inputs_and_line\.<locals>\.<lambda>\) "
        r"failed with ZeroDivisionError: division by zero\n"
        r"  inputs: x float32\[2, 3\] on cpu, n int64\[\] on cpu\n"
        rf"  created at {re.escape(__file__)}:\d+ in test_op_error_names_op_inputs_and_line$",
        str(error),
    )


def test_op_error_of_an_op_without_inputs() -> None:
    graph = af.Graph("g")
    graph.function("f", lambda: 1 / 0)
    with pytest.raises(af.OpError, match="inputs: none"):
        graph.run_sync()


class TestRequire:
    def test_an_installed_module_is_returned(self) -> None:
        assert errors.require("numpy", extra="x", purpose="this test") is np

    def test_a_missing_one_names_the_extra(self) -> None:
        with pytest.raises(
            af.MissingExtraError, match=r"^drawing needs 'no_such_module': pip install 'actorflow\[draw\]'$"
        ) as caught:
            errors.require("no_such_module.part", extra="draw", purpose="drawing")
        assert isinstance(caught.value, ImportError)
        assert caught.value.name == "no_such_module.part"
        assert isinstance(caught.value.__cause__, ImportError)
