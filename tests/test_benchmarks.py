"""Smoke tests: every benchmark runs and reports; nothing here is about how fast anything is."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import BY_NAME, QUESTIONS, main
from benchmarks.harness import Budget, Harness, Relation, Row, Table
from benchmarks.inference import check_scores, parts
from benchmarks.inference import shares_outside_kernels as shares_of_runs
from benchmarks.inference.names import ONNX, OURS
from benchmarks.process import Process
from benchmarks.report import as_json
from benchmarks.training import Stepped, check_losses, shares_outside_kernels
from benchmarks.training.names import TORCH
from benchmarks.workloads import chain, layered, sinks_of
from tests.support.effort import slow
from tests.support.warm import run_program

ROOT = Path(__file__).parents[1]


def rows(**samples: list[float]) -> dict[str, Row]:
    return {name: Row(name, figures) for name, figures in samples.items()}


@pytest.mark.parametrize("name", slow(QUESTIONS, but={"dispatch"}))
def test_question_runs_quick_and_writes_json(name: str, tmp_path: Path) -> None:
    # A process of its own: benchmarks register operations, and their tickers and threads are not pytest's affair.
    file = tmp_path / "figures.json"
    ended = run_program("-m", "benchmarks", name, "--quick", "--repeat", "1", "--json", file, folder=ROOT)
    assert ended.returncode == 0, ended.stderr
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["quick"] is True
    assert content["machine"]["cores"] >= 1
    assert content["machine"]["versions"]["numpy"]
    assert list(content["questions"]) == [name]
    tables = content["questions"][name]["tables"]
    assert tables
    for table in tables:
        assert table["title"] in ended.stdout
        for row in table["rows"]:
            assert len(row["samples"]) == 1
            assert row["name"] in ended.stdout
        for budget in table["budgets"]:
            assert budget["text"] in ended.stdout


def test_list_says_what_each_asks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*QUESTIONS, *BY_NAME]
    assert all(line.endswith("?") for line in lines)


@pytest.mark.parametrize("arguments", [["nonsense"], ["--repeat", "0"]])
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[0].lstrip("-") in capsys.readouterr().err


def test_missing_peer_is_left_out_and_said() -> None:
    harness = Harness()
    assert harness.peer("a_package_that_nobody_has") is None
    assert "a_package_that_nobody_has" in harness.left_out[0]


@pytest.mark.together(
    ("relation", "limit", "value", "met"),
    [
        (Relation.AT_MOST, 2.0, 2.0, True),
        (Relation.AT_MOST, 1.9, 2.0, False),
        (Relation.TIMES, 0.5, 0.5, True),
        (Relation.TIMES, 0.4, 0.5, False),
        (Relation.BELOW, 2.0, 2.0, True),
        (Relation.BELOW, 2.1, 2.0, False),
        (Relation.MORE, -2.0, -2.0, True),
        (Relation.MORE, -3.0, -2.0, False),
    ],
)
def test_budgets_are_judged_within_rounds(relation: Relation, limit: float, value: float, met: bool) -> None:
    # The second round was disturbed as a whole, which its ratio does not show.
    table = rows(mine=[2.0, 20.0, 1.0], peer=[4.0, 40.0, 2.0])
    if relation is Relation.MORE:
        table = rows(mine=[2.0, 20.0, 1.0], peer=[4.0, 22.0, 3.0])
    verdict = Budget("text", "mine", relation, limit, "peer").judge(table)
    assert verdict.value == pytest.approx(value)
    assert verdict.met is met


def test_budget_without_its_peer_is_not_judged() -> None:
    verdict = Budget("text", "mine", Relation.BELOW, 2.0, "peer").judge(rows(mine=[1.0]))
    assert verdict.value is None
    assert verdict.met is None


def test_rows_have_quartiles_and_ratios_to_the_reference() -> None:
    table = Table("title", "us", rows(mine=[1.0, 2.0, 3.0, 4.0, 5.0], loop=[2.0, 2.0, 2.0, 2.0, 2.0]), "loop")
    assert table.rows["mine"].median == 3.0
    assert table.rows["mine"].spread == (2.0, 4.0)
    assert table.ratio("mine") == 1.5
    assert Table("title", "us", rows(mine=[1.0]), "loop").ratio("mine") is None
    assert as_json([table], [])["tables"][0]["rows"][0]["ratio"] == 1.5


async def test_contenders_take_turns_and_each_begins_a_round() -> None:
    order: list[str] = []

    def case(name: str, is_async: bool) -> Any:
        async def figure() -> float:
            await asyncio.sleep(0)
            return record()

        def record() -> float:
            order.append(name)
            return float(len(order))

        return figure if is_async else record

    table = await Harness(rounds=2).compare("title", "us", {"a": case("a", True), "b": case("b", False)})
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert table.rows["a"].samples == [3.0, 6.0]
    assert table.rows["b"].samples == [4.0, 5.0]


def test_layers_read_only_the_layer_before() -> None:
    tasks = layered(1_000, width=100, fan_in=3)
    assert len(tasks) == 1_000
    for i, inputs in enumerate(tasks):
        layer = i // 100
        assert inputs == (0,) if layer == 0 else len(set(inputs)) == 3
        assert all((value - 1) // 100 == layer - 1 for value in inputs if layer)
    assert sinks_of(tasks) == list(range(901, 1_001))
    assert sinks_of(chain(10)) == [10]


def stepped(wall_ms: float, kernels_ms: float = 0.0, loss: float = 1.0) -> Stepped:
    return Stepped(wall_ms, wall_ms, kernels_ms, loss)


def test_time_outside_kernels_is_the_rest_of_a_step() -> None:
    table = shares_outside_kernels("title", {OURS: [stepped(10.0, 9.8), stepped(8.0, 7.6)], TORCH: [stepped(9.0)]})
    assert list(table.rows) == [OURS]
    assert table.rows[OURS].samples == pytest.approx([2.0, 5.0])
    (verdict,) = table.verdicts()
    assert verdict.value == pytest.approx(3.5)
    assert verdict.met is False


@pytest.mark.parametrize("loss", [1.01, float("nan")])
def test_contenders_that_train_different_networks_are_an_error(loss: float) -> None:
    check_losses("nin", {OURS: [stepped(1.0)], TORCH: [stepped(1.0, loss=1.0005), stepped(1.0, loss=3.0)]})
    with pytest.raises(AssertionError, match="losses after the same steps differ"):
        check_losses("nin", {OURS: [stepped(1.0)], TORCH: [stepped(1.0, loss=loss)]})


async def test_a_contender_that_ends_early_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    async with Process.started("benchmarks.training.contender", OURS, 1) as process:
        with pytest.raises(RuntimeError, match=f"{OURS}: the process ended, with code 1"):
            await process.ask("no such network", 1, 1)
    assert "KeyError: 'no such network'" in capfd.readouterr().err


def test_runs_of_networks_are_taken_apart() -> None:
    ours = [
        {"ms": 4.0, "kernels": {"Relu": 1.0, "Conv 1x1": 2.0}},
        {"ms": 5.0, "kernels": {"Relu": 0.5, "Conv 1x1": 4.0}},
    ]
    theirs = [{"ms": 2.0, "kernels": {"Conv 1x1": 9.0}}] * 2
    assert shares_of_runs("title", ours).rows[OURS].samples == pytest.approx([25.0, 10.0])
    table = parts("title", {ONNX: theirs, OURS: ours})
    assert list(table.rows) == [f"{OURS}: Conv 1x1", f"{OURS}: Relu", f"{ONNX}: Conv 1x1"]
    assert table.rows[f"{OURS}: Relu"].samples == [1.0, 0.5]


@pytest.mark.parametrize("score", [10.001, float("nan")])
def test_contenders_that_compute_different_networks_are_an_error(score: float) -> None:
    check_scores("lenet", {OURS: [10.0, 0.0], ONNX: [10.00005, -0.00005]})
    with pytest.raises(AssertionError, match="lenet: the scores of onnxruntime and of actorflow lie"):
        check_scores("lenet", {OURS: [10.0, 0.0], ONNX: [score, 0.0]})


def test_differences_of_results_of_files() -> None:
    from benchmarks.onnx.files import difference

    x = np.array([1.0, -4.0, np.nan])
    assert difference(x, x) == 0
    assert difference(np.add(x, [0, 0.04, 0]), x) == pytest.approx(0.01)
    assert difference(np.array([0.0]), np.array([1e-4])) == pytest.approx(1e-2)  # of small numbers, 1e-2 is the largest
    for other in (x[:2], np.zeros(3), np.array(["a", "b", "c"])):
        assert difference(other, x) == np.inf


@pytest.mark.slow
def test_a_table_of_files(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from benchmarks.onnx.files import _first, main

    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "small.onnx").write_bytes(_first())
    (tmp_path / "package" / "broken.onnx").write_bytes(b"nothing")
    assert main([str(tmp_path), "--out", str(tmp_path / "table.md")]) == 0
    text = (tmp_path / "table.md").read_text()
    assert "- 1 files that onnxruntime computes: 1 load by default, 1 by default or by onnxruntime" in text
    assert "| package/small.onnx | 0.3 | actorflow | " in text
    assert "| package/broken.onnx | onnxruntime: load: " in text
