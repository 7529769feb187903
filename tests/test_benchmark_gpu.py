"""The benchmark of the GPU, tried out without one, and what becomes of its figures."""

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.devices import check_place
from actorflow.errors import DeviceUnavailableError
from actorflow.ops.fills import Constant
from actorflow.ops.nn.conv import ConvWeight
from actorflow.ops.nn.pool import MaxPoolDown
from actorflow.place import Place
from benchmarks.gpu.bench import relative_error
from benchmarks.gpu.cases import operation_cases
from benchmarks.harness import Budget, Relation, Row, Table
from benchmarks.results import Answer, markdown
from tests.support.warm import Completed, run_program

ROOT = Path(__file__).parents[1]


def command(*arguments: object) -> Completed:
    return run_program("-m", "benchmarks", "gpu", "--quick", "--repeat", "1", *arguments, folder=ROOT, timeout_s=110)


def write_cifar(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([i]) + rng.bytes(3072) for i in range(2)))


@pytest.mark.slow
def test_all_of_it_runs_on_a_simulated_accelerator(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    results = tmp_path / "results"
    ended = command("--place", "sim:0", "--data", tmp_path, "--results", results)
    assert ended.returncode == 0, ended.stderr
    (table,), (figures,) = results.glob("*.md"), results.glob("*.json")
    assert table.stem == figures.stem
    text = table.read_text(encoding="utf-8")
    tables = json.loads(figures.read_text(encoding="utf-8"))["questions"]["gpu"]["tables"]
    (results_met,) = tables[0]["budgets"]
    assert results_met["met"], tables[0]
    for found in tables:
        assert found["title"] in text
        for budget in found["budgets"]:
            if "bytes" in budget["text"] or "memory" in budget["text"]:
                assert budget["met"], found  # no figure of time, so true on any machine
    assert "CIFAR-10, test images recognized" in text


@pytest.mark.slow
def test_without_a_gpu_it_says_what_it_looked_for() -> None:
    try:
        check_place(Place.parse("cuda:0"))
    except DeviceUnavailableError as error:
        reason = str(error)
    else:
        pytest.skip("there is a GPU")
    ended = command()
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert "actorflow[cuda" in ended.stderr


@pytest.mark.slow
def test_missing_data_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    ended = command("--place", "cpu", "--data", tmp_path / "absent")
    assert ended.returncode == 2
    assert "absent: expected the directory of the CIFAR-10 files" in ended.stderr


def test_every_operation_of_the_training_has_a_case() -> None:
    measured = {type(case.operation) for case in operation_cases(quick=True)}
    graph = af.Graph("training")
    images, labels = graph.blob("images", (4, 32, 32, 3)), graph.blob("labels", (4,), "int64")
    scores = af.nn.NIN.cifar10()(images)
    loss, accuracy = ops.softmax_loss(scores, labels), ops.accuracy(scores, labels)
    af.nn.SGD(0.1, momentum=0.9, weight_decay=1e-4).minimize(loss)
    assert accuracy.shape == ()
    needed = {type(op.operation) for op in graph.ops}
    assert {ops.Conv, ConvWeight, MaxPoolDown, ops.SgdUpdate} <= needed
    # The user's, and what computes nothing in a frame.
    assert needed - measured <= {ops.Function, ops.Fill, Constant, ops.Reshape}


def test_titles_of_cases_are_unique() -> None:
    titles = [case.title for case in operation_cases(quick=True)]
    assert len(set(titles)) == len(titles)


def test_relative_error_sees_what_is_wrong() -> None:
    x = np.array([3.0, 4.0], np.float32)
    assert relative_error(x, x) == 0
    assert relative_error(x + np.array([0, 0.5]), x) == pytest.approx(0.1)
    assert relative_error(np.array([3.0, np.nan]), x) == np.inf
    assert relative_error(x[:1], x) == np.inf
    assert relative_error(np.zeros(2), np.zeros(2)) == 0


def test_tables_of_one_unit_become_lines_of_one_table() -> None:
    def table(title: str, unit: str, **rows: float) -> Table:
        budget = Budget("at most 2", "mine", Relation.AT_MOST, 2.0)
        return Table(title, unit, {name: Row(name, [figure]) for name, figure in rows.items()}, "peer", [budget])

    answer = Answer(
        [table("small", "us", mine=1, peer=2), table("large", "us", mine=3, peer=2, third=4), table("x", "ms", mine=1)],
        ["a peer: not installed"],
    )
    machine = {
        "gpus": [
            {
                "name": "A GPU",
                "memory_bytes": 1 << 34,
                "multiprocessors": 8,
                "driver": "600.1",
                "cuda": "13.0",
                "runtime": "13.1",
            }
        ],
        "cpu": "a processor",
        "cores": 2,
        "system": "a system",
        "python": "3.12",
        "versions": {"numpy": "2.4", "torch": None},
    }
    head = {"quick": False, "rounds": 7, "loop": "uvloop", "machine": machine}
    lines = markdown("A GPU", datetime(2026, 1, 2, tzinfo=UTC), head, {"gpu": answer}).splitlines()
    assert lines[0] == "# A GPU, 2026-01-02"
    assert "- GPU: A GPU, 16,384 MiB, 8 multiprocessors; driver 600.1, CUDA 13.0, runtime 13.1" in lines
    assert "- Versions: Python 3.12, numpy 2.4; uvloop loop" in lines
    start = lines.index("| us (x peer) | mine | peer | third |")
    assert lines[start + 1 : start + 4] == [
        "|---|---:|---:|---:|",
        "| small | 1.00 (0.50) | 2.00 |  |",
        "| large | 3.00 (1.50) | 2.00 | 4.00 (2.00) |",
    ]
    assert "**x**" in lines
    assert "- large: MISSED: at most 2: 3.00 us, by a factor of 1.50" in lines
    assert "- a peer: not installed" in lines
