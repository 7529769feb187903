"""Folders of checkpoints: which are kept, which is loaded, and what a killed process leaves."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import actorflow as af
from tests.support.effort import FULL

KILLS = 100 if FULL else 5

#: Saves again and again; all variables of a checkpoint have one value, its step.
CHILD = """
import asyncio, sys
import numpy as np
import actorflow as af

graph = af.Graph("child")
variables = [graph.variable(f"v{i}", (50_000,), "float64") for i in range(4)]
for variable in variables:
    [variable] >> graph.function(f"{variable.name}.add", lambda v: v + 1) >> [variable]

async def main():
    async with graph:
        checkpoints = af.Checkpoints(graph, sys.argv[1], keep=3)
        found = await checkpoints.load()
        step = 0 if found is None else found.position["step"]
        while True:
            await graph.run(fetch=[f"{variable.name}.add" for variable in variables])
            step += 1
            saving = checkpoints.save(step, {"step": step})
            if step % 2:
                await graph.run(fetch=["v0.add"])  # begins while the file is written
                variables[0].value = variables[1].value
            await saving
            print(step, flush=True)

asyncio.run(main())
"""


def graph_of(value: float = 0.0) -> af.Graph:
    graph = af.Graph("g")
    graph.variable("w", (3,), "float64", value)
    return graph


async def saved(folder: Path, *steps: int, keep: int | None = 3) -> af.Checkpoints:
    graph = graph_of()
    async with graph:
        checkpoints = af.Checkpoints(graph, folder, keep=keep)
        for step in steps:
            graph["w"].value = np.full(3, float(step))
            await checkpoints.save(step, {"step": step})
    return checkpoints


@pytest.mark.parametrize(("keep", "left"), [(1, [30]), (2, [20, 30]), (3, [5, 20, 30]), (None, [1, 5, 20, 30])])
async def test_the_last_ones_are_kept(tmp_path: Path, keep, left) -> None:
    checkpoints = await saved(tmp_path / "new" / "folder", 1, 5, 20, 30, keep=keep)
    assert list(checkpoints.steps()) == left
    assert len(list(checkpoints.folder.iterdir())) == len(left)


async def test_the_last_one_is_loaded_or_the_one_that_is_asked_for(tmp_path: Path) -> None:
    await saved(tmp_path, 1, 5, 20)
    graph = graph_of()
    checkpoints = af.Checkpoints(graph, tmp_path)
    found = await checkpoints.load()
    assert found is not None
    assert (found.position, found.path.name) == ({"step": 20}, "checkpoint-0000000020.safetensors")
    assert set(graph["w"].value) == {20}
    assert await checkpoints.load(step=5) is not None
    assert set(graph["w"].value) == {5}
    with pytest.raises(af.CheckpointError, match="there is no checkpoint of step 7; there are 1, 5, 20"):
        await checkpoints.load(step=7)


async def test_an_empty_folder_and_none_have_nothing_to_load(tmp_path: Path) -> None:
    assert await af.Checkpoints(graph_of(), tmp_path).load() is None
    assert await af.Checkpoints(graph_of(), tmp_path / "none").load() is None


async def test_a_damaged_one_is_an_error_or_the_one_before_is_taken(tmp_path: Path, caplog) -> None:
    checkpoints = await saved(tmp_path, 1, 5, 20)
    newest = checkpoints.steps()[20]
    newest.write_bytes(newest.read_bytes()[:-3])
    graph = graph_of()
    async with graph:
        checkpoints = af.Checkpoints(graph, tmp_path, keep=2)
        with pytest.raises(af.CheckpointError, match=r"checkpoint-0000000020.safetensors: the file is cut off"):
            await checkpoints.load()
        assert set(graph["w"].value) == {0}
        found = await checkpoints.load(fallback=True)
        assert found is not None
        assert found.position == {"step": 5}
        assert "taking the one before" in caplog.text
        await checkpoints.save(10)
        assert list(checkpoints.steps()) == [5, 10]
    assert (tmp_path / "checkpoint-0000000020.safetensors.damaged").exists()


async def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    checkpoints = await saved(tmp_path, 1, 2)
    for path in checkpoints.steps().values():
        path.write_bytes(b"")
    with pytest.raises(
        af.CheckpointError, match=r"all checkpoints are damaged: .*0002.safetensors: the file is cut off"
    ):
        await checkpoints.load(fallback=True)


async def test_one_that_does_not_fit_is_never_passed_over(tmp_path: Path) -> None:
    await saved(tmp_path, 1, 2)
    graph = af.Graph("other")
    graph.variable("w", (4,), "float64")
    with pytest.raises(af.CheckpointError, match=r"variable 'w' is F64\[4\], the file has F64\[3\]"):
        await af.Checkpoints(graph, tmp_path).load(fallback=True)


async def test_steps_of_another_training_are_not_mixed_with_ones_own(tmp_path: Path) -> None:
    await saved(tmp_path, 100)
    graph = graph_of()
    async with graph:
        checkpoints = af.Checkpoints(graph, tmp_path)
        with pytest.raises(af.CheckpointError, match="step 10 cannot be saved, there is a checkpoint of step 100"):
            checkpoints.save(10)
        await checkpoints.load()
        await checkpoints.save(100)
        await checkpoints.save(101)
        with pytest.raises(af.CheckpointError, match="step 50 cannot be saved"):
            checkpoints.save(50)
        assert list(checkpoints.steps()) == [100, 101]


async def test_saves_at_once_are_written_one_after_the_other(tmp_path: Path) -> None:
    graph = graph_of()
    async with graph:
        checkpoints = af.Checkpoints(graph, tmp_path, keep=2)
        for task in [checkpoints.save(step) for step in range(1, 6)]:
            await task
        assert list(checkpoints.steps()) == [4, 5]


async def test_what_a_killed_process_left_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / ".checkpoint-0000000003.safetensors.123-0.tmp"
    others = [".best.safetensors.123-0.tmp", "notes.tmp"]
    for name in [left.name, *others]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "checkpoint-0000000003.safetensors").write_bytes(b"half")
    await saved(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "checkpoint-0000000004.safetensors"])


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(af.GraphError, match="keep must be at least 1, got 0"):
        af.Checkpoints(graph_of(), tmp_path, keep=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_any_moment_the_last_checkpoint_loads(tmp_path: Path) -> None:
    chance = random.Random(0)
    last = 0
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", CHILD, tmp_path], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(chance.randint(1, 3)):
            last = int(child.stdout.readline())
        try:  # some moment of the next saves
            child.wait(chance.uniform(0, 0.02))
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split()
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        last = int(rest[-1]) if rest else last
        _check(tmp_path, last)


def _check(folder: Path, last: int) -> None:
    """All that is there loads and is of one step, the last one reported or the one after it."""
    graph = af.Graph("child")
    variables = [graph.variable(f"v{i}", (50_000,), "float64") for i in range(4)]
    steps = af.Checkpoints(graph, folder).steps()
    assert max(steps) in (last, last + 1)
    for step, path in steps.items():
        found = af.load_checkpoint_sync(graph, path)
        assert found.position == {"step": step}
        assert {float(value) for variable in variables for value in np.unique(variable.value)} == {float(step)}
