"""The trainer: steps, epochs, evaluation, and that a training goes on as if it had never stopped."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import actorflow as af
from actorflow import nn, ops
from actorflow.checkpoint.file import read_file
from actorflow.nn import rates
from tests.support.waiting import settle

BATCH, FEATURES, CLASSES, BATCHES = 8, 5, 3, 7

OPTIMIZERS = {
    "sgd": lambda: nn.SGD(0.2, momentum=0.9, weight_decay=1e-3),
    "adam": lambda: nn.Adam(rates.Warmup(rates.Cosine(0.05, 20), 3), clip=nn.Clip(norm=1.0)),
}


class Network:
    """A small network with dropout, built anew for each process that a test pretends to be."""

    def __init__(self, optimizer: str = "sgd", folder: Path | None = None, **settings: Any) -> None:
        self.graph = graph = af.Graph("network", deterministic=True)
        self.x, self.labels = graph.blob("x", (BATCH, FEATURES)), graph.blob("labels", (BATCH,), "int64")
        hidden, scores = nn.InnerProduct(6, activation="relu", name="hidden"), nn.InnerProduct(CLASSES, name="scores")
        drop = nn.Dropout(0.3)
        loss = ops.softmax_loss(scores(drop(hidden(self.x))), self.labels)
        with graph.subgraph("test"):
            tested = scores(drop(hidden(self.x, training=False), training=False), training=False)
            self.accuracy = ops.accuracy(tested, self.labels)
        self.rows = tested
        self.checkpoints = None if folder is None else af.Checkpoints(graph, folder, keep=None)
        train = OPTIMIZERS[optimizer]().minimize(loss)
        self.trainer = nn.Trainer(
            loss, train, {"twice": ops.scale(loss, 2.0)}, checkpoints=self.checkpoints, **settings
        )

    def feeds(self, epoch: int) -> Iterator[dict[Any, Any]]:
        """Other batches in each epoch."""
        random = np.random.default_rng((7, epoch))
        for _ in range(BATCHES):
            x = random.standard_normal((BATCH, FEATURES)).astype(np.float32)
            yield {self.x: x, self.labels: random.integers(0, CLASSES, BATCH)}

    async def later(self, epoch: int) -> AsyncIterator[dict[Any, Any]]:
        for feed in self.feeds(epoch):
            await asyncio.sleep(0)
            yield feed

    def values(self) -> dict[str, np.ndarray]:
        return {variable.name: variable.value for variable in self.graph.variables}


async def trained(network: Network, epochs: int, until: int | None = None) -> list[nn.Step]:
    """The steps of a training, perhaps left behind one of them."""
    found = []
    async with network.graph, aclosing(network.trainer.steps(network.feeds, epochs)) as steps:
        async for step in steps:
            found.append(step)
            if step.number == until:
                break
    return found


# -- steps and epochs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 3])
async def test_steps_come_in_order_with_their_numbers(in_flight) -> None:
    network = Network(in_flight=in_flight)
    steps = await trained(network, 3)
    assert [step.number for step in steps] == list(range(1, 3 * BATCHES + 1))
    assert [step.epoch for step in steps] == [epoch for epoch in range(3) for _ in range(BATCHES)]
    assert all(step.metrics["twice"] == 2 * step.loss for step in steps)
    assert steps[-1].loss < steps[0].loss
    assert [step.loss for step in steps] == [step.loss for step in await trained(Network(in_flight=1), 3)]


async def test_feeds_may_be_async_a_list_or_an_iterator_for_one_epoch() -> None:
    expected = [step.loss for step in await trained(Network(), 1)]
    for name in ("later", "list", "iterator"):
        network = Network()
        feeds = {"later": network.later, "list": [*network.feeds(0)], "iterator": network.feeds(0)}[name]
        async with network.graph:
            assert [step.loss async for step in network.trainer.steps(feeds)] == expected
    async with network.graph:
        with pytest.raises(af.GraphError, match="the feeds ended with the first epoch: give a function of the epoch"):
            await network.trainer.fit(network.feeds(0), epochs=3)


async def test_epochs_have_means_and_what_validation_gives_at_their_end() -> None:
    network, seen = Network(in_flight=3), []
    other = Network()

    async def validate() -> dict[str, float]:
        seen.append(network.trainer.number)
        return await network.trainer.evaluate(network.feeds(100), {"accuracy": network.accuracy})

    async with network.graph:
        epochs = await network.trainer.fit(network.feeds, 2, validate=validate)
    assert [(epoch.number, epoch.steps) for epoch in epochs] == [(0, BATCHES), (1, BATCHES)]
    assert seen == [BATCHES, 2 * BATCHES]
    steps = []
    async with other.graph:  # one by one, with the same frames
        for epoch in range(2):
            steps += [step.loss async for step in other.trainer.steps(other.feeds, epoch + 1)]
            expected = await other.trainer.evaluate(other.feeds(100), {"accuracy": other.accuracy})
            assert epochs[epoch].validation == expected
            assert epochs[epoch].means["loss"] == pytest.approx(np.mean(steps[-BATCHES:]))
            assert epochs[epoch].means["twice"] == pytest.approx(2 * np.mean(steps[-BATCHES:]))


async def test_a_training_can_go_on_for_more_epochs() -> None:
    network = Network()
    async with network.graph:
        assert len(await network.trainer.fit(network.feeds, 1)) == 1
        assert [epoch.number for epoch in await network.trainer.fit(network.feeds, 3)] == [1, 2]
        assert await network.trainer.fit(network.feeds, 3) == []


async def test_one_loop_at_a_time() -> None:
    network = Network()
    async with network.graph, aclosing(network.trainer.steps(network.feeds)) as steps:
        await anext(steps)
        with pytest.raises(af.GraphError, match="steps are running already"):
            await network.trainer.fit(network.feeds)


def test_what_is_wrong_is_an_error() -> None:
    graph = af.Graph("g")
    x, w = graph.blob("x", (2,)), graph.variable("w", ())
    loss = ops.scale(w, 2.0)
    train = nn.SGD(0.1).minimize(loss)
    with pytest.raises(af.GraphError, match=r"Trainer: the loss must have shape \(\), got float32\[2\]"):
        nn.Trainer(x, train)
    with pytest.raises(af.GraphError, match="Trainer: in_flight must be at least 1, got 0"):
        nn.Trainer(loss, train, in_flight=0)


# -- evaluation ---------------------------------------------------------------------------------------------------


async def test_evaluation_trains_nothing() -> None:
    network = Network()
    before = network.values()
    async with network.graph:
        await network.trainer.evaluate(network.feeds(0), {"accuracy": network.accuracy})
        assert np.isnan((await network.trainer.evaluate([], {"accuracy": network.accuracy}))["accuracy"])
    for name, value in network.values().items():
        np.testing.assert_array_equal(value, before[name])


# -- checkpoints --------------------------------------------------------------------------------------------------


async def test_checkpoints_are_of_the_step_they_say_whatever_is_in_flight(tmp_path: Path) -> None:
    await trained(Network("adam", tmp_path / "three", every=5, in_flight=3), 2)
    await trained(Network("adam", tmp_path / "one", every=5, in_flight=1), 2)
    names = sorted(path.name for path in (tmp_path / "three").iterdir())
    assert names == [f"checkpoint-{step:010d}.safetensors" for step in (5, 10, 14)]
    for name in names:
        assert read_file(tmp_path / "three" / name) == read_file(tmp_path / "one" / name)


async def test_a_finished_training_has_nothing_left_to_do(tmp_path: Path) -> None:
    await trained(Network(folder=tmp_path, every=5), 2)
    again = Network(folder=tmp_path, every=5)
    assert await again.trainer.resume()
    assert await trained(again, 2) == []
    assert len(await trained(again, 3)) == BATCHES


@pytest.mark.parametrize("moment", [2, 5, 11])
async def test_cancelled_at_any_moment_the_last_checkpoint_is_whole(tmp_path: Path, moment) -> None:
    network = Network(folder=tmp_path, every=1)
    reached = asyncio.Event()

    async def train() -> None:
        async with network.graph:
            async for step in network.trainer.steps(network.feeds, 3):
                if step.number == moment:
                    reached.set()

    task = asyncio.ensure_future(train())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]
    resumed = Network(folder=tmp_path)
    assert await resumed.trainer.resume() == bool(resumed.checkpoints.steps())
    saved = resumed.trainer.number
    assert saved <= moment + 2
    assert await trained(resumed, 3) == (await trained(Network(), 3))[saved:]


async def test_a_checkpoint_that_cannot_be_written_ends_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(af.CheckpointError, match="the folder cannot be used"):
        await trained(Network(folder=tmp_path / "file", every=2), 1)
    with pytest.raises(af.CheckpointError, match="the folder cannot be used"):
        await trained(Network(folder=tmp_path / "file", every=100), 1)


async def test_a_step_that_fails_is_what_is_told(tmp_path: Path) -> None:
    network = Network(folder=tmp_path, every=1)

    def feeds(epoch: int) -> Iterator[dict[Any, Any]]:
        for i, feed in enumerate(network.feeds(epoch)):
            yield feed if i < 3 else {**feed, network.labels: np.full(BATCH, 99)}

    async with network.graph:
        with pytest.raises(af.OpError, match="softmaxloss"):
            await network.trainer.fit(feeds)
    resumed = Network(folder=tmp_path)
    assert await resumed.trainer.resume()
    assert resumed.trainer.number == 3


async def test_feeds_that_are_fewer_than_before_are_an_error(tmp_path: Path) -> None:
    await trained(Network(folder=tmp_path, every=5), 1, until=6)
    network = Network(folder=tmp_path)
    await network.trainer.resume()
    async with network.graph:
        with pytest.raises(af.DataError, match="epoch 0 has 2 feeds, but 5 had been taken when saved"):
            await network.trainer.fit([*network.feeds(0)][:2])


async def test_resuming_needs_checkpoints_of_a_trainer(tmp_path: Path) -> None:
    with pytest.raises(af.GraphError, match="nothing to resume from without checkpoints="):
        await Network().trainer.resume()
    assert not await Network(folder=tmp_path).trainer.resume()
    network = Network(folder=tmp_path)
    async with network.graph:
        await network.checkpoints.save(1, {"mine": 1})
    with pytest.raises(af.CheckpointError, match=r"expected the position of a trainer, got {'mine': 1}"):
        await network.trainer.resume()


# -- progress -----------------------------------------------------------------------------------------------------


async def test_progress_is_a_line_per_epoch_off_a_terminal(monkeypatch) -> None:
    network, text = Network(), io.StringIO()
    progress = nn.Progress(2, BATCHES, Console(file=text))
    with progress:
        for step in await trained(network, 2):
            progress.advance(step)
    lines = text.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("loss " in line and "twice " in line for line in lines)


async def test_fit_shows_progress_and_validation_when_asked(capsys) -> None:
    network = Network()

    async def validate() -> dict[str, float]:
        return {"accuracy": 0.25}

    async with network.graph:
        await network.trainer.fit(network.feeds, 1, validate=validate, progress=True)
    assert capsys.readouterr().out.endswith("validation accuracy 0.250\n")


async def test_a_terminal_shows_a_bar() -> None:
    network, text = Network(), io.StringIO()
    with nn.Progress(1, BATCHES, Console(file=text, force_terminal=True, width=100)) as progress:
        for step in await trained(network, 1):
            progress.advance(step)
    assert f"{BATCHES}/{BATCHES}" in text.getvalue()
    assert "epoch 1/1" in text.getvalue()


# -- checkpoints on demand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("feeding", ["feeds", "later"])
async def test_a_checkpoint_on_demand_is_gone_on_from(tmp_path, feeding, paused) -> None:
    expected = [step.loss for step in await trained(Network(), 3)]
    network = Network(folder=tmp_path, every=1000, in_flight=3)
    async with network.graph, aclosing(network.trainer.steps(getattr(network, feeding), 3)) as steps:
        for _ in range(BATCHES + 2):
            await anext(steps)
        if paused:
            network.graph.pause()
            await settle()
        saving = asyncio.create_task(network.trainer.save())
        if paused:
            await settle()
            network.graph.resume()
        await anext(steps)
        path = await saving
    (number,) = network.checkpoints.steps()
    assert path == network.checkpoints.steps()[number]
    again = Network(folder=tmp_path)
    assert await again.trainer.resume()
    assert again.trainer.number == number >= BATCHES + 2
    assert [step.loss for step in await trained(again, 3)] == expected[number:]


async def test_a_feed_that_was_taken_before_the_pause_is_waited_for(tmp_path) -> None:
    network = Network(folder=tmp_path, in_flight=1)
    there = asyncio.Event()

    async def feeds(epoch: int) -> AsyncIterator[dict[Any, Any]]:
        for feed in network.feeds(epoch):
            await there.wait()
            yield feed

    async with network.graph, aclosing(network.trainer.steps(feeds)) as steps:
        first = asyncio.ensure_future(anext(steps))
        await settle()
        network.graph.pause()
        there.set()
        await settle()  # the feed has come, its step may not begin
        saving = asyncio.create_task(network.trainer.save())
        await settle()
        assert not saving.done()
        assert network.checkpoints.steps() == {}
        network.graph.step()
        await first
        await saving
        assert list(network.checkpoints.steps()) == [1]
        network.graph.resume()


async def test_checkpoints_on_demand_before_and_after_the_steps(tmp_path) -> None:
    network = Network(folder=tmp_path, every=1000)
    async with network.graph:
        await network.trainer.save()
        await trained_on(network, 1)
        await network.trainer.save()
    assert list(network.checkpoints.steps()) == [0, BATCHES]


async def trained_on(network: Network, epochs: int) -> None:
    async for _ in network.trainer.steps(network.feeds, epochs):
        pass


async def test_when_there_is_no_checkpoint_on_demand(tmp_path) -> None:
    async with (network := Network()).graph:
        with pytest.raises(af.GraphError, match="nowhere to save to without checkpoints="):
            await network.trainer.save()
    network = Network(folder=tmp_path)
    never = asyncio.Event()

    async def feeds(epoch: int) -> AsyncIterator[dict[Any, Any]]:
        for feed in network.feeds(epoch):
            yield feed
            await never.wait()

    async with network.graph:
        async with aclosing(network.trainer.steps(feeds)) as steps:
            await anext(steps)
            await settle()  # the next feed has been asked for
            saving = asyncio.create_task(network.trainer.save())
            await settle()
            assert not saving.done()
        with pytest.raises(af.GraphError, match="given up before it could be saved"):
            await saving
        with pytest.raises(af.GraphError, match=r"steps have been cancelled.*resume\(\) first"):
            await network.trainer.save()


async def test_a_checkpoint_on_demand_that_fails_does_not_end_the_training(tmp_path) -> None:
    (tmp_path / "file").write_text("no folder")
    network = Network(folder=tmp_path / "file", every=1000)
    async with network.graph, aclosing(network.trainer.steps(network.feeds)) as steps:
        await anext(steps)
        saving = asyncio.create_task(network.trainer.save())
        await anext(steps)
        with pytest.raises(af.CheckpointError, match="the folder cannot be used"):
            await saving
        await anext(steps)
