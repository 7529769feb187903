"""The error tree, and what the errors carry."""

import asyncio
import multiprocessing
import pickle
import re
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import errors
from actorflow.testing import ConformanceError
from actorflow.testing.conformance.transports import NOTES


def test_the_tree_is_the_one_that_is_drawn() -> None:
    drawn = re.findall(r"[├└]── (\w+)(?: \((\w+)\))?", errors.__doc__ or "")
    names = {name for name, _ in drawn}
    assert names == set(errors.__all__) - {"ActorflowError", "require"}
    for name, builtin in drawn:
        kind = getattr(errors, name)
        assert issubclass(kind, af.ActorflowError)
        if builtin:
            assert issubclass(kind, getattr(__builtins__, builtin, None) or __builtins__[builtin])


@pytest.mark.together("kind", [af.CycleError, af.ShapeError, af.DTypeError, af.PlaceError, af.FeedError])
def test_wrong_graphs_are_value_errors(kind: type[Exception]) -> None:
    assert issubclass(kind, af.GraphError)
    assert issubclass(kind, ValueError)


def test_a_cycle_names_the_lines_of_its_ops() -> None:
    error = af.CycleError(["a", "x", "b", "y", "a"], {"a": "m.py:1 in f", "b": "m.py:2 in f", "c": "m.py:3 in f"})
    assert str(error).splitlines() == [
        "the graph has a cycle: a -> x -> b -> y -> a",
        "  op 'a' created at m.py:1 in f",
        "  op 'b' created at m.py:2 in f",
    ]
    assert len(str(af.CycleError([f"n{i}" for i in range(1000)], {f"n{i}": "m.py:1" for i in range(1000)}))) < 2000


@pytest.mark.together(
    ("name", "known", "expected"),
    [
        ("lss", ["loss", "scores"], "; did you mean 'loss'?"),
        ("LOSS", ["loss", "scores"], "; did you mean 'loss'?"),
        ("relu", ["ReLU", "relu"], "; did you mean 'relu'?"),
        ("conv1", ["conv2", "conv3", "conv4", "conv5"], "; did you mean 'conv5' or 'conv4' or 'conv3'?"),
        ("weight", ["part/of/a/long/way/weight", "bias"], "; did you mean 'part/of/a/long/way/weight'?"),
        ("net", ["net/first/layer/of/all/out", "other"], "; did you mean 'net/first/layer/of/all/out'?"),
        ("xyz", ["loss", "scores"], ""),
        ("", ["loss"], ""),
        (5, ["5"], ""),
        ("loss", [], ""),
    ],
)
def test_names_that_are_near_are_suggested(name: object, known: list[str], expected: str) -> None:
    assert errors.did_you_mean(name, known) == expected


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

    def test_one_that_is_there_in_part_says_what_is_missing(self, tmp_path: Path, monkeypatch: Any) -> None:
        (tmp_path / "there_in_part.py").write_text("import no_such_module")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(af.MissingExtraError, match=r"'actorflow\[draw\]': No module named 'no_such_module'$"):
            errors.require("there_in_part", extra="draw", purpose="drawing")


class SelfMadeError(Exception):
    """Cannot be made again from its arguments, so that no pickle of it can be read."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def failing_graph() -> af.Graph:
    graph = af.Graph("g")
    graph.function("part.mean", lambda x: 1 / 0, af.TensorSpec.of(()))(graph.blob("x", (2, 3)))
    return graph


def every_error() -> dict[str, af.ActorflowError]:
    """One of each class, as it is made where it is raised."""
    op = failing_graph()["part.mean"]
    made: dict[str, af.ActorflowError] = {
        "CycleError": af.CycleError([f"n{number}" for number in range(100)]),
        "OpError": af.OpError.of(op, ZeroDivisionError("by nothing"), lambda: 1 / 0),
        "NotFiniteError": af.NotFiniteError(op, errors.NotFiniteResultError("the result has 1 NaN, the inputs none")),
        "OpTimeoutError": af.OpTimeoutError(op, 1.5),
        "QueueFullError": af.QueueFullError("g", 3, 6, 8),
        "SessionsFullError": af.SessionsFullError("g", 8, 2),
        "CacheFullError": af.CacheFullError("g", 2, 1, 8, 3),
        "RunCancelledError": af.RunCancelledError("g", 7, "by somebody", ["w", "v"]),
        "PeerLostError": errors.PeerLostError(3),
        "PeerFailedError": errors.PeerFailedError(2, "op 'f' has failed there"),
        "StageError": errors.StageError.of("decode", "thread", "a.py:7", 5, {"name": "cat"}, ValueError("no cat")),
        "StageTimeoutError": errors.StageTimeoutError("decode", "thread", "a.py:7", 5, b"cat", 2.5),
        "MissingExtraError": af.MissingExtraError("drawing needs 'x'", name="x.part"),
        "ConformanceError": ConformanceError(af.Place.parse("sim:1"), NOTES.requirements[0], "a note", "nothing"),
    }
    made["OpError"].updated = ("w",)  # type: ignore[attr-defined]
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type) and name not in made:
            made[name] = kind(f"{name} says this\nin two lines")
    made["RaceError"].work = "add"  # type: ignore[attr-defined]
    return made


class TestPickling:
    @pytest.mark.together("name", every_error())
    @pytest.mark.together("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_message_attributes_and_cause_come_along(self, name: str, protocol: int) -> None:
        error = every_error()[name]
        error.add_note("a note")
        found = pickle.loads(pickle.dumps(error, protocol))
        assert type(found) is type(error)
        assert (str(found), repr(found), found.args) == (str(error), repr(error), error.args)
        left = {"_op", "_replay", "_alone"}
        assert vars(found) == {key: value for key, value in vars(error).items() if key not in left}
        assert found.__notes__ == error.__notes__
        assert found.__notes__[-1] == "a note"
        assert getattr(found, "name", None) == getattr(error, "name", None)
        assert repr(found.__cause__) == repr(error.__cause__)
        assert pickle.dumps(pickle.loads(pickle.dumps(found))) == pickle.dumps(found)

    def test_what_belongs_to_a_graph_is_left_where_that_is(self) -> None:
        with pytest.raises(af.OpError) as caught:
            failing_graph().run_sync({"x": np.zeros((2, 3), "f")})
        content = pickle.dumps(caught.value)
        assert b"Graph" not in content
        assert len(content) < 2_000
        found = pickle.loads(content)
        assert (found.op_name, found.updated) == ("part.mean", ())
        assert isinstance(found.__cause__, ZeroDivisionError)
        with pytest.raises(AttributeError, match=r"op 'part.mean' is a node of a graph in another process"):
            _ = found.op
        with pytest.raises(af.GraphError, match=r"op 'part.mean' cannot be replayed"):
            found.replay()

    def test_what_cannot_be_pickled_is_missed_alone(self) -> None:
        error = errors.StageError.of("lock", "thread", "a.py:7", 5, threading.Lock(), SelfMadeError("a", "b"))
        found = pickle.loads(pickle.dumps(error))
        assert (str(found), found.stage, found.number) == (str(error), "lock", 5)
        assert found.item is None
        assert found.__cause__ is None

    def test_causes_of_causes(self) -> None:
        error: BaseException = ValueError("the root")
        for depth in range(20):
            above = af.GraphError(f"at {depth}")
            above.__cause__ = error
            error = above
        found = pickle.loads(pickle.dumps(error))
        for depth in reversed(range(20)):
            assert str(found) == f"at {depth}"
            found = found.__cause__
        assert repr(found) == "ValueError('the root')"

    def test_a_cause_that_goes_in_a_circle_ends_somewhere(self) -> None:
        error = af.GraphError("round and round")
        error.__cause__ = error
        assert str(pickle.loads(pickle.dumps(error))) == "round and round"

    async def test_through_a_pool_of_processes(self) -> None:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            loop = asyncio.get_running_loop()
            with pytest.raises(af.OpError, match="failed with ZeroDivisionError: division by zero") as caught:
                await loop.run_in_executor(pool, run_there)
            assert (caught.value.op_name, caught.value.updated) == ("part.mean", ())
            with pytest.raises(af.CycleError, match="a -> b -> a") as cycle:
                await loop.run_in_executor(pool, compile_there)
            assert cycle.value.cycle == ("a", "b", "a")


def run_there() -> Any:
    failing_graph().run_sync({"x": np.zeros((2, 3), "f")})


def compile_there() -> Any:
    raise af.CycleError(["a", "b", "a"])
