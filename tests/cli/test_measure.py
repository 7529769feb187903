"""``actorflow measure``: what rows cost, and what follows."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.cli import main
from actorflow.cli.measure import Timing, advice, fed
from actorflow.spec import TensorSpec

MODULE = """
import actorflow as af

graph = af.Graph("measured")
x = graph.blob("x", ("n", 4))
y = af.nn.InnerProduct(3, activation="relu", name="fc")(x, training=False)
model = af.Model(graph, {"x": x}, {"y": y})

fixed = af.Graph("fixed")
fixed_model = af.Model(fixed, {"i": fixed.blob("i", (2,), "int64")}, {"j": fixed["i"] + 1})

open_graph = af.Graph("open")
two = open_graph.blob("x", ("n", "steps"))
two_axes = af.Model(open_graph, {"x": two}, {"y": two * 2.0})
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"measured_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


def timings(*per_run: tuple[int, float], cores: int = 2) -> list[Timing]:
    return [Timing("actorflow", cores, rows, int(1e6 * ms)) for rows, ms in per_run]


def test_a_model(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", f"{module}:model", "--rows", "4,1", "--seconds", "0.001", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["rows"] for each in found["timings"]} == {1, 4}
    assert {each["backend"] for each in found["timings"]} == {"actorflow"}
    assert 1 in {each["cores"] for each in found["timings"]} or not Path("/proc/self/task").is_dir()
    assert all(each["run_ns"] > 0 for each in found["timings"])
    assert "Inner" in found["operations"]
    assert sum(found["operations"].values()) == pytest.approx(1)
    assert "actorflow serve --max-rows" in found["advice"]


def test_the_table(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", f"{module}:fixed_model", "--seconds", "0.001"]) == 0
    text = capsys.readouterr().out
    assert "rows a second" in text
    assert "Sum" in text
    assert "no open first axis" in text


def test_cores_are_given_back(module: str) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("the system has no affinities")
    before = os.sched_getaffinity(0)
    assert main(["measure", f"{module}:model", "--rows", "1", "--seconds", "0.001", "--json"]) == 0
    assert os.sched_getaffinity(0) == before


def test_against_another_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    graph = af.Graph("g")
    y = graph.blob("x", ("n", 3)) * 2.0
    af.onnx.save(af.Model(graph, {"x": graph["x"]}, {"y": y}), tmp_path / "m.onnx")
    said = ["--rows", "2", "--seconds", "0.001", "--against", "onnxruntime", "--json"]
    assert main(["measure", str(tmp_path / "m.onnx"), *said]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["backend"] for each in found["timings"]} == {"actorflow", "onnxruntime"}


@pytest.mark.together(
    "arguments, words",
    [
        (["two_axes"], "open axes besides that of rows: steps; fix them by --axes steps=N"),
        (["model", "--against", "onnxruntime"], "only files .onnx have another backend"),
    ],
)
def test_what_is_refused(arguments: Any, words: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", f"{module}:{arguments[0]}", *arguments[1:]]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.together(
    "given, words",
    [
        (timings((1, 10), (8, 79), (32, 300)), "gain nothing by sharing a run (1.07 times as many a second)"),
        (timings((1, 1), (8, 2), (32, 8.1)), "4.0 times as fast: actorflow serve --max-rows 8"),
        (timings((1, 1), (8, 4), (32, 4)), "8.0 times as fast: actorflow serve --max-rows 32"),
        ([*timings((1, 1), (8, 8), cores=1), *timings((1, 1), (8, 2))], "--max-rows 8"),  # all cores count
        (timings((1, 1)), "--max-rows 0"),
    ],
)
def test_advice(given: Any, words: str) -> None:
    assert words in advice(given)


def test_what_is_fed() -> None:
    assert fed(TensorSpec.of(("n", 2), "float32"), {"n": 5}).shape == (5, 2)
    assert fed(TensorSpec.of((3,), "bool"), {}).tolist() == [False] * 3
    assert fed(TensorSpec.of((2,), "int64"), {}).dtype == np.int64
