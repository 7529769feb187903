"""Each rank saves its own variables; all load the same step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import actorflow as af
from actorflow import ops
from tests.ranks.conftest import Ranks

pytestmark = pytest.mark.any_loop

pytest.importorskip("safetensors")


def counting(graph: af.Graph) -> list[af.Variable]:
    """Two variables on two ranks, each updated with the other's value."""
    variables = [graph.variable(f"w{rank}", (2,), "float64", init=1.0 + rank, place=f"{rank}/cpu") for rank in range(2)]
    for rank, variable in enumerate(variables):
        [variable, variables[1 - rank]] >> graph.op(f"add{rank}", ops.Sum(), place=f"{rank}/cpu") >> [variable]
    return variables


async def steps(graph: af.Graph, count: int) -> None:
    async for _ in graph.stream(({} for _ in range(count)), in_flight=2):
        pass


async def trained(folder: Path, saves: dict[int, list[int]]) -> Ranks:
    """Ranks after 6 steps, each of which has saved at its own steps."""
    ranks = Ranks(counting)

    async def work(graph: af.Graph, _: Any) -> None:
        checkpoints = af.Checkpoints(graph, folder)
        for step in range(1, 7):
            await steps(graph, 1)
            if step in saves[graph.world.rank]:
                await checkpoints.save(step, {"step": step})

    assert await ranks.all(work) == [None, None]
    return ranks


async def loaded(folder: Path, fallback: bool = False) -> tuple[Ranks, list[Any]]:
    ranks = Ranks(counting)
    return ranks, await ranks.all(lambda graph, _: af.Checkpoints(graph, folder).load(fallback=fallback))


async def test_nothing_is_there_at_the_first_start(tmp_path: Path) -> None:
    ranks, found = await loaded(tmp_path)
    assert found == [None, None]
    await ranks.aclose()


async def test_a_lost_rank_ends_the_wait(tmp_path: Path) -> None:
    ranks = Ranks(counting)
    ranks.local.transports[0].bind(asyncio.get_running_loop())
    ranks.local.kill(1)
    with pytest.raises(af.PeerLostError):
        await af.Checkpoints(ranks.graphs[0], tmp_path).load()
    await ranks.graphs[0].aclose()


async def test_a_folder_that_one_rank_cannot_use_fails_the_save_of_all(tmp_path: Path) -> None:
    await (await trained(tmp_path, {0: [2], 1: [2, 4]})).aclose()
    ranks = Ranks(counting)
    kept = [af.Checkpoints(graph, tmp_path) for graph in ranks.graphs]

    async def work(graph: af.Graph, _: Any) -> None:
        checkpoints = kept[graph.world.rank]
        found = await checkpoints.load()
        assert found is not None
        assert found.position == {"step": 2}
        if graph.world.rank == 1:
            (left,) = (tmp_path / "rank-1-of-2").glob("*0004.safetensors")
            left.unlink()
            left.mkdir()  # so that it cannot be deleted as a file
        await checkpoints.save(3)

    errors = await ranks.all(work)
    assert [type(error) for error in errors] == [af.CheckpointError] * 2
    assert str(errors[0]).startswith("on rank 1: ")
    assert all("the folder cannot be used" in str(error) for error in errors)
    (left,) = (tmp_path / "rank-1-of-2").glob("*0004.safetensors")
    left.rmdir()
    paths = await ranks.all(lambda graph, _: kept[graph.world.rank].save(3))
    assert [path.parent.name for path in paths] == ["rank-0-of-2", "rank-1-of-2"]
    await ranks.aclose()
