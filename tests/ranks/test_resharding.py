"""Checkpoints of some ranks with which any other number of ranks goes on, to the same values; or it is an error."""

from __future__ import annotations

import asyncio
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops, pipeline
from actorflow.ranks.hub import gather
from actorflow.transport.local import LocalWorld
from tests.ranks.conftest import Ranks
from tests.ranks.resharding import SCHEMES, STEPS, Training
from tests.support.effort import FULL, slow
from tests.transport.jobs import run_job

pytestmark = pytest.mark.any_loop

pytest.importorskip("safetensors")

STOP = 7
PAIRS = [(4, 2), (4, 3), (4, 1), (1, 4), (2, 3), (3, 4)]
#: All of them under all schemes; every fifth has each scheme, more ranks and less.
TRAINED = [(scheme, *pair) for scheme in SCHEMES for pair in PAIRS]


@cache
def straight(scheme: str) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses and the values of the training that one rank does at a stretch."""
    training = Training(LocalWorld(1).transports[0], scheme, None)
    with asyncio.Runner() as runner:
        losses = runner.run(training.run())
    return losses, training.values()


async def trained(size: int, scheme: str, folder: Path, until: int | None = None, **settings: Any) -> list[Training]:
    """The ranks of one job, when it has ended."""
    world = LocalWorld(size)
    ranks = [Training(transport, scheme, folder, **settings) for transport in world.transports]
    async with asyncio.timeout(100):
        ranks[0].losses, *others = await asyncio.gather(*(rank.run(until) for rank in ranks))  # type: ignore[attr-defined]
    assert all(losses == ranks[0].losses for losses in others)  # type: ignore[attr-defined]
    world.close()
    return ranks


def assert_went_on(ranks: list[dict[str, np.ndarray]], losses: Any, expected: Any, begun: int) -> None:
    """Check that the ranks have the values of one rank that never stopped."""
    straight_losses, values = expected
    np.testing.assert_allclose(losses, straight_losses[begun:], rtol=0, atol=1e-12)
    assert set().union(*ranks) == values.keys()
    for found in ranks:
        for name, value in found.items():
            np.testing.assert_allclose(value, values[name], rtol=0, atol=1e-12, err_msg=name)


@pytest.fixture(scope="module", autouse=True)
def straight_trainings() -> None:
    """Computed before there is a loop."""
    for scheme in SCHEMES:
        straight(scheme)


@pytest.mark.parametrize(("scheme", "saved", "going_on"), slow(TRAINED, but=TRAINED[::5]))
async def test_a_training_goes_on_on_another_number_of_ranks(tmp_path, scheme, saved, going_on) -> None:
    await trained(saved, scheme, tmp_path, STOP)
    ranks = await trained(going_on, scheme, tmp_path)
    assert [rank.begun for rank in ranks] == [STOP] * going_on
    assert_went_on([rank.values() for rank in ranks], ranks[0].losses, straight(scheme), STOP)


@pytest.mark.parametrize("scheme", slow(SCHEMES, but=["stages"]))
async def test_it_may_change_again_and_again(tmp_path: Path, scheme: str) -> None:
    """Also in one folder, where the last ones are kept, whoever has saved them."""
    for size, until in ((4, 3), (2, 5), (3, 6), (1, 9), (4, None)):
        ranks = await trained(size, scheme, tmp_path, until, every=2)
    assert_went_on([rank.values() for rank in ranks], ranks[0].losses, straight(scheme), 9)
    for rank in ranks:
        kept = list(rank.checkpoints.steps())
        assert kept in ([12, 14, 15], [10, 12, 14, 15])  # a rank may end before it hears that others have the last one
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert folders == [f"rank-{rank}-of-4" for rank in range(4)]
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["shares", "stages"])
def test_over_mpi_too(tmp_path: Path, scheme: str) -> None:
    def run(size: int, folder: Path, until: int) -> list[dict[str, np.ndarray]]:
        done = run_job(size, str(Path(__file__).with_name("resharding_job.py")), scheme, folder, until)
        assert done.status == 0, done.out + done.err
        begun = 0 if until == STOP else STOP
        assert sorted(done.out.splitlines()) == [f"rank {rank} went on behind step {begun}" for rank in range(size)]
        return [dict(np.load(folder / f"values-{rank}.npz")) for rank in range(size)]

    first = tmp_path / "4"
    first.mkdir()
    run(4, first, STOP)
    for size in (2, 3, 1) if FULL else (3,):
        folder = shutil.copytree(first, tmp_path / f"on {size}")
        ranks = run(size, folder, STEPS)
        losses = [rank.pop("losses") for rank in ranks]
        assert_went_on(ranks, losses[0], straight(scheme), STOP)


# -- copies -----------------------------------------------------------------------------------------------------------


def by_hand(graph: af.Graph, replicas: bool = True) -> list[af.Variable]:
    """A data-parallel training without composites: a weight on each rank, and the same update everywhere."""
    size = graph.world.size
    weights: list[af.Variable] = []
    for rank in range(size):
        with graph.at(f"{rank}/cpu"):
            if rank and replicas:
                weights.append(graph.replica(f"w{rank}", weights[0]))
            else:
                weights.append(graph.variable(f"w{rank}", (2,), "float64", nn.init.gaussian(1.0, seed=3)))
            add = graph.function(f"add{rank}", lambda w: w + 1.0, weights[-1].spec)
            [weights[-1]] >> add >> [weights[-1]]
    return weights


async def saved(size: int, build: Any, folder: Path, *steps: int, **settings: Any) -> None:
    """All ranks of a job run a frame and save, for each step."""
    ranks = Ranks(build, size)

    async def work(graph: af.Graph, _: Any) -> None:
        checkpoints = af.Checkpoints(graph, folder, **settings)
        for step in steps:
            await graph.run()
            await checkpoints.save(step, {"step": step})
            await gather(graph.world, "steps of the test", step)  # what was said before has been heard

    assert await ranks.all(work) == [None] * size
    await ranks.aclose()


async def loaded(size: int, build: Any, folder: Path, **settings: Any) -> tuple[Ranks, list[Any]]:
    ranks = Ranks(build, size)
    return ranks, await ranks.all(lambda graph, _: af.Checkpoints(graph, folder).load(**settings))


@pytest.mark.parametrize(("before", "after"), PAIRS)
async def test_copies_made_by_hand_are_more_or_fewer(tmp_path: Path, before: int, after: int) -> None:
    await saved(before, by_hand, tmp_path, 1, 2)
    ranks, found = await loaded(after, by_hand, tmp_path)
    alone = by_hand(af.Graph("alone", world=LocalWorld(1).transports[0]))[0].value
    for rank, weights in enumerate(ranks.built):
        np.testing.assert_array_equal(weights[rank].value, alone + 2)
        assert (found[rank].position, found[rank].frame, found[rank].saved_on) == ({"step": 2}, 2, before)
        assert (found[rank].missing, found[rank].unexpected, found[rank].is_resharded) == ((), (), True)
    await ranks.aclose()


async def test_copies_that_nobody_calls_copies_are_an_error_on_all_ranks(tmp_path: Path) -> None:
    def build(graph: af.Graph) -> list[af.Variable]:
        return by_hand(graph, replicas=False)

    await saved(2, build, tmp_path / "more", 1)
    await saved(3, build, tmp_path / "fewer", 1)
    for size, folder, where, message in (
        (3, "more", 2, "the 2 files lack 'w2'"),
        (2, "fewer", 0, "the graph has no variable 'w2'"),
    ):
        ranks, found = await loaded(size, build, tmp_path / folder)
        assert all(isinstance(error, af.CheckpointError) and message in str(error) for error in found)
        assert [str(error).startswith("on rank") for error in found] == [
            size == 3 and rank != where for rank in range(size)
        ]
        for rank, (weights, fresh) in enumerate(zip(ranks.built, Ranks(build, size).built, strict=True)):
            np.testing.assert_array_equal(weights[rank].value, fresh[rank].value)  # nothing has been loaded
        ranks, found = await loaded(size, build, tmp_path / folder, strict=False)
        assert [checkpoint.missing for checkpoint in found] == [("w2",) if rank == 2 else () for rank in range(size)]
        assert {checkpoint.unexpected for checkpoint in found} == {() if size == 3 else ("w2",)}
        await ranks.aclose()


def test_a_replica_is_of_a_variable_of_its_graph() -> None:
    graph, other = af.Graph("g"), af.Graph("h")
    w = graph.variable("w", (3,), init=nn.init.gaussian(1.0, seed=1))
    copy = graph.replica("copy", w, "sim:0")
    again = graph.replica("again", copy)
    assert (copy.spec, str(copy.place), copy.replica_of, again.replica_of) == (w.spec, "sim:0", w, w)
    np.testing.assert_array_equal(again.value, w.value)
    for wrong in (other.variable("w", ()), graph.blob("x", ()), "w"):
        with pytest.raises(af.GraphError, match="replica 'more': expected a variable of graph 'g', got"):
            graph.replica("more", wrong)


async def test_running_statistics_of_a_new_copy_are_those_of_the_first(tmp_path: Path) -> None:
    def build(graph: af.Graph) -> Any:
        places = [f"{rank}/cpu" for rank in range(graph.world.size)]
        x = graph.blob("x", (12, 4), "float64")
        net = nn.BatchNorm(name="norm") >> nn.InnerProduct(1, name="fc")
        model = nn.parallel.DataParallel(net, places, loss=lambda y: ops.mean(y))
        loss = model(x)
        return x, model, loss, model.minimize(nn.Adam(0.1))

    ranks = Ranks(build, 2)
    drawn = np.random.default_rng(0).standard_normal((12, 4))

    async def work(graph: af.Graph, built: Any) -> Any:
        x, model, loss, train = built
        for _ in range(3):
            await graph.run({x: drawn}, fetch=[loss, train])
        await af.Checkpoints(graph, tmp_path).save(3)
        return [variable.value for variable in model.replicas[graph.world.rank].variables]

    first, second = await ranks.all(work)
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    await ranks.aclose()
    for size in (2, 3, 1):
        ranks, found = await loaded(size, build, tmp_path)
        assert [checkpoint.missing + checkpoint.unexpected for checkpoint in found] == [()] * size
        for rank, (_, model, _, _) in enumerate(ranks.built):
            values = [variable.value for variable in model.replicas[rank].variables]
            for value, expected in zip(values, second if rank == 1 else first, strict=True):
                np.testing.assert_array_equal(value, expected)
        states = [variable for variable in ranks.graphs[0].variables if variable.is_state]
        assert {variable.replica_of in (None, *states) for variable in states} == {True}
        await ranks.aclose()


# -- places in the data ---------------------------------------------------------------------------------------------


async def test_places_that_differ_are_given_and_never_guessed(tmp_path: Path) -> None:
    ranks = Ranks(by_hand, 2)

    async def work(graph: af.Graph, _: Any) -> None:
        await graph.run()
        await af.Checkpoints(graph, tmp_path).save(1, {"row": 10 * graph.world.rank})

    await ranks.all(work)
    await ranks.aclose()
    ranks, found = await loaded(2, by_hand, tmp_path)
    assert [checkpoint.position for checkpoint in found] == [{"row": 0}, {"row": 10}]
    await ranks.aclose()
    ranks, found = await loaded(3, by_hand, tmp_path)
    for rank, checkpoint in enumerate(found):
        assert checkpoint.positions == {0: {"row": 0}, 1: {"row": 10}}
        with pytest.raises(
            af.CheckpointError, match=f"2 ranks have saved it, .* that of rank {rank} of 3: make it of `pos"
        ):
            _ = checkpoint.position
    await ranks.aclose()


async def test_a_file_of_one_rank_alone_is_no_checkpoint_of_another_number(tmp_path: Path) -> None:
    def build(graph: af.Graph) -> list[af.Variable]:
        return [graph.variable(f"w{i}", (), place=f"{i % graph.world.size}/cpu") for i in range(2)]

    ranks = Ranks(build, 2)
    await ranks.all(
        lambda graph, _: af.save_checkpoint(graph, tmp_path / f"{graph.world.rank}", {"a": graph.world.rank})
    )
    await ranks.aclose()
    alone = af.Graph("alone", world=LocalWorld(1).transports[0])
    build(alone)
    for rank in range(2):
        with pytest.raises(af.CheckpointError, match=f"the file lacks 'w{1 - rank}'"):
            await af.load_checkpoint(alone, tmp_path / f"{rank}")
        found = await af.load_checkpoint(alone, tmp_path / f"{rank}", strict=False)
        assert (found.saved_on, found.positions, found.missing) == (2, {rank: {"a": rank}}, (f"w{1 - rank}",))
        with pytest.raises(af.CheckpointError, match="2 ranks have saved it"):
            _ = found.position


def minimized(graph: af.Graph) -> tuple[af.Blob, af.Blob, af.Graph]:
    """A training on rank 0, whose feeds come there."""
    x = graph.blob("x", (2,), "float64", "0/cpu")
    with graph.at("0/cpu"):
        w = graph.variable("w", (2,), "float64", init=1.0)
        loss = ops.mean(ops.add(ops.scale(w, 2.0), x))
    return x, loss, nn.SGD(0.1).minimize(loss)


async def trainers(size: int, folder: Path, feeds: Any, until: int | None) -> list[Any]:
    """Final values of each rank's training."""
    ranks = Ranks(minimized, size)

    async def work(graph: af.Graph, built: Any) -> list[float]:
        x, loss, train = built
        trainer = nn.Trainer(loss, train, checkpoints=af.Checkpoints(graph, folder))
        await trainer.resume()
        made = feeds(x, graph.world.rank, graph.world.size)
        return [step.loss async for step in trainer.steps(made, 2, until=until)]

    found = await ranks.all(work)
    await ranks.aclose()
    return found


def batches(epoch: int) -> list[np.ndarray]:
    return [np.full(2, 10.0 * epoch + i) for i in range(6)]


async def test_feeds_that_do_not_know_their_place_go_on_behind_the_same_step(tmp_path: Path) -> None:
    def feeds(x: af.Blob, rank: int, size: int) -> Any:
        return lambda epoch: [{x: batch} for batch in batches(epoch)]

    (whole,) = await trainers(1, tmp_path / "whole", feeds, None)
    begun = await trainers(3, tmp_path / "parts", feeds, 8)
    rest = await trainers(2, tmp_path / "parts", feeds, None)
    assert begun == [whole[:8]] * 3
    assert rest == [whole[8:]] * 2


@pytest.mark.parametrize("shared", [True, False])
async def test_feeds_that_cannot_be_resharded_say_so(tmp_path: Path, shared: bool) -> None:
    def feeds(x: af.Blob, rank: int, size: int) -> Any:
        source = pipeline.source([row for batch in batches(0) for row in (batch,) * 2])
        return (source if shared else source.shard(rank, size)).feed(x)

    begun = await trainers(2, tmp_path, feeds, 4)
    assert [len(losses) for losses in begun] == [4, 4]
    rest = await trainers(3, tmp_path, feeds, None)
    if shared:  # all at one place
        assert [len(losses) for losses in rest] == [2 * 12 - 4] * 3
    else:
        message = (
            "was saved on 2 ranks, whose feeds were each at a place of its own: Feeding on 3 cannot go on behind all"
        )
        assert all(isinstance(error, af.CheckpointError) and message in str(error) for error in rest)


async def test_ranks_that_were_at_different_steps_are_no_training(tmp_path: Path) -> None:
    ranks = Ranks(minimized, 2)

    async def work(graph: af.Graph, _: Any) -> None:
        position = {"step": 4 + graph.world.rank, "epoch": 0, "batch": 4}
        await af.Checkpoints(graph, tmp_path).save(4, position)

    await ranks.all(work)
    await ranks.aclose()
    (error,) = await trainers(1, tmp_path, lambda x, rank, size: [], None)
    assert isinstance(error, af.CheckpointError)
    assert "expected all ranks at one step, epoch and batch, got [(4, 0, 4), (5, 0, 4)]" in str(error)


# -- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4])
async def test_files_of_which_none_is_whole_are_no_first_start(tmp_path: Path, size: int) -> None:
    await saved(4, by_hand, tmp_path, 1, 2)
    for path in (tmp_path / "rank-2-of-4").iterdir():
        path.unlink()
    ranks, found = await loaded(size, by_hand, tmp_path)
    for error in found:
        assert isinstance(error, af.CheckpointError)
        assert "no checkpoint is whole: of step 2 of 4 ranks, the last one, ranks 2 have no file; delete" in str(error)
    await ranks.aclose()


async def test_ranks_that_end_while_they_save_for_the_first_time_begin_anew(tmp_path: Path, caplog: Any) -> None:
    await saved(3, by_hand, tmp_path, 10)
    (tmp_path / "rank-1-of-3" / "checkpoint-0000000010.safetensors").unlink()
    ranks, found = await loaded(2, by_hand, tmp_path)
    assert all(isinstance(error, af.CheckpointError) for error in found)  # it may be one that another number has lost
    await ranks.aclose()
    ranks = Ranks(by_hand, 3)

    async def work(graph: af.Graph, _: Any) -> list[int]:
        checkpoints = af.Checkpoints(graph, tmp_path)
        assert await checkpoints.load() is None
        await checkpoints.save(4, {"step": 4})
        return list(checkpoints.steps())

    assert await ranks.all(work) == [[4]] * 3
    assert "no checkpoint has ever been whole: of step 10 of 3 ranks, the last one, ranks 1 have no file" in caplog.text
    await ranks.aclose()


async def test_the_last_one_that_is_whole_is_taken_whoever_saved_it(tmp_path: Path) -> None:
    await saved(4, by_hand, tmp_path, 1, 2, 3)
    await saved(2, by_hand, tmp_path, 4, keep=None)
    (tmp_path / "rank-1-of-2" / "checkpoint-0000000004.safetensors").unlink()
    for size in (1, 2, 4):
        ranks, found = await loaded(size, by_hand, tmp_path)
        assert [checkpoint.position for checkpoint in found] == [{"step": 3}] * size
        await ranks.aclose()
    # What the lost one has left disturbs none.
    ranks = Ranks(by_hand, 2)

    async def work(graph: af.Graph, _: Any) -> list[int]:
        checkpoints = af.Checkpoints(graph, tmp_path, keep=2)
        await checkpoints.load()
        await checkpoints.save(3 + 1, {"step": 40})
        await checkpoints.save(5, {"step": 50})
        return list(checkpoints.steps())

    assert [steps[-2:] for steps in await ranks.all(work)] == [[4, 5]] * 2
    await ranks.aclose()
    ranks, found = await loaded(3, by_hand, tmp_path)
    assert [checkpoint.position for checkpoint in found] == [{"step": 50}] * 3
    await ranks.aclose()


async def test_what_one_rank_alone_has_saved_later_does_not_stop_the_others(tmp_path: Path) -> None:
    """It died while it saved step 100; the next job saves other steps."""
    await saved(2, by_hand, tmp_path, 50, 100)
    (tmp_path / "rank-0-of-2" / "checkpoint-0000000100.safetensors").unlink()
    ranks = Ranks(by_hand, 2)

    async def work(graph: af.Graph, _: Any) -> Any:
        checkpoints = af.Checkpoints(graph, tmp_path, keep=1)
        assert (await checkpoints.load()).position == {"step": 50}
        await checkpoints.save(60)
        await checkpoints.save(70)
        return max(checkpoints.steps())

    assert await ranks.all(work) == [70, 70]
    await ranks.aclose()


@pytest.mark.parametrize("before", [(), (50,)])
async def test_files_of_two_jobs_are_never_one_checkpoint(tmp_path: Path, before: tuple[int, ...]) -> None:
    """Rank 1 died while it saved step 100; in the next job it saves that step before rank 0 has saved any, and ends."""
    await saved(2, by_hand, tmp_path, *before, 100)
    (tmp_path / "rank-1-of-2" / "checkpoint-0000000100.safetensors").unlink()
    ranks = Ranks(by_hand, 2)
    found = [af.Checkpoints(graph, tmp_path) for graph in ranks.graphs]
    await asyncio.gather(*(checkpoints.load() for checkpoints in found))
    save = found[1].save(100)
    await ranks.graphs[0].aclose()
    ranks.local.transports[0].close()
    with pytest.raises(af.PeerFailedError, match="rank 0 has left"):
        await save
    await ranks.aclose()
    ranks, again = await loaded(2, by_hand, tmp_path)
    assert [checkpoint and checkpoint.position for checkpoint in again] == [{"step": 50} if before else None] * 2
    await ranks.aclose()


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_rank_that_is_ahead_deletes_nothing_that_the_others_need(tmp_path: Path, ahead: int) -> None:
    ranks = Ranks(by_hand, 2)

    async def work(graph: af.Graph, _: Any) -> None:
        checkpoints = af.Checkpoints(graph, tmp_path, keep=1)
        for step in (1, 2, 3, 4) if graph.world.rank == ahead else (1,):
            await checkpoints.save(step, {"step": step})

    await ranks.all(work)
    await ranks.aclose()
    ranks, found = await loaded(2, by_hand, tmp_path)
    assert [checkpoint.position for checkpoint in found] == [{"step": 1}] * 2
    await ranks.aclose()


async def test_ranks_may_have_disks_of_their_own_as_long_as_they_are_as_many(tmp_path: Path) -> None:
    async def on_own_disks(size: int, work: Any) -> list[Any]:
        ranks = Ranks(by_hand, size)
        found = await ranks.all(
            lambda graph, _: work(graph, af.Checkpoints(graph, tmp_path / f"{graph.world.rank}", keep=2))
        )
        await ranks.aclose()
        return found

    async def save(graph: af.Graph, checkpoints: af.Checkpoints) -> int:
        found = await checkpoints.load()
        begun = 0 if found is None else found.position["step"]
        for step in range(begun + 1, begun + 6):
            await graph.run()
            await checkpoints.save(step, {"step": step})
            await gather(graph.world, "steps of the test", step)  # what was said before has been heard
        return len(checkpoints.steps())

    for _ in range(2):
        assert all(count in (2, 3) for count in await on_own_disks(2, save))  # they hear of each other's
    errors = await on_own_disks(3, lambda graph, checkpoints: checkpoints.load())
    for rank, error in enumerate(errors):
        assert isinstance(error, af.CheckpointError)
        unseen = {0: "1", 1: "0"}.get(rank, "0, 1")
        assert f"rank {rank} of 3 does not see the files of ranks {unseen}; they must be in one folder" in str(error)


async def test_a_step_that_others_have_saved_is_not_saved_again(tmp_path: Path) -> None:
    await saved(2, by_hand, tmp_path, 5)
    ranks = Ranks(by_hand, 1)

    async def work(graph: af.Graph, _: Any) -> None:
        checkpoints = af.Checkpoints(graph, tmp_path)
        with pytest.raises(af.CheckpointError, match="step 4 cannot be saved, there is a checkpoint of step 5"):
            checkpoints.save(4)
        assert (await checkpoints.load()).position == {"step": 5}
        with pytest.raises(
            af.CheckpointError, match=r"step 5 cannot be saved, another number of ranks has saved it in .*-of-2"
        ):
            checkpoints.save(5)
        await checkpoints.save(6)

    assert await ranks.all(work) == [None]
    await ranks.aclose()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("fallback", [False, True])
async def test_damage_is_found_by_whoever_needs_the_file(tmp_path: Path, size: int, fallback: bool) -> None:
    await saved(3, by_hand, tmp_path, 1, 2)
    newest = tmp_path / "rank-0-of-3" / "checkpoint-0000000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-8])
    ranks, found = await loaded(size, by_hand, tmp_path, fallback=fallback)
    if fallback:
        assert [checkpoint.position for checkpoint in found] == [{"step": 1}] * size
        assert newest.with_name(newest.name + ".damaged").exists()
    else:
        assert all(isinstance(error, af.CheckpointError) and "rank-0-of-3" in str(error) for error in found)
    await ranks.aclose()


async def test_an_error_of_one_rank_is_one_of_all_and_nothing_is_loaded(tmp_path: Path) -> None:
    """Whatever it is; no rank waits for another in vain."""
    await saved(2, by_hand, tmp_path, 1)

    def build(graph: af.Graph) -> list[af.Variable]:
        weights = [graph.variable("w0", (2,), "float64", place="0/cpu")]
        return [*weights, graph.variable("w1", (3 if graph.world.rank else 2,), "float64", place="1/cpu")]

    ranks, (first, second) = await loaded(2, build, tmp_path, fallback=True)
    assert "does not fit graph 'ranks': variable 'w1' is F64[3], the file has F64[2]" in str(second)
    assert str(first) == f"on rank 1: {second}"
    assert not ranks.built[0][0].value.any()
    await ranks.aclose()
    (tmp_path / "file").write_text("")
    ranks, found = await loaded(2, by_hand, tmp_path / "file")
    assert all(isinstance(error, af.CheckpointError) and "the folder cannot be used" in str(error) for error in found)
    await ranks.aclose()


async def test_folders_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """They do not say of how many ranks they are."""
    await saved(3, by_hand, tmp_path, 1)
    for rank in range(3):
        (tmp_path / f"rank-{rank}-of-3").rename(tmp_path / f"rank-{rank}")
    for size in (3, 2, 1):
        ranks, found = await loaded(size, by_hand, tmp_path)
        assert [(checkpoint.position, checkpoint.saved_on) for checkpoint in found] == [({"step": 1}, 3)] * size
        await ranks.aclose()
