"""A training on shuffled, augmented images goes on bit by bit where a checkpoint was saved, anywhere in an epoch."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import data, nn, ops
from tests.support.effort import FULL
from tests.support.warm import run_program

COUNT, BATCH, CLASSES = 31, 4, 3
PER_EPOCH = COUNT // BATCH
STEPS = 20
EXAMPLES = 1_000 if FULL else 8


class Images:
    """A column of images that keeps which rows it was asked for."""

    def __init__(self) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 6, 2), np.uint8)
        self.asked: list[int] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.asked += rows.tolist()
        return self.pixels[rows]


class Training:
    """A small network with dropout on augmented images, built anew for each process that a test pretends to be."""

    def __init__(self, folder: Path | None, *, every: int = 1000, in_flight: int = 2, size: int = BATCH) -> None:
        self.graph = graph = af.Graph("network", deterministic=True)
        images, labels = graph.blob("images", (size, 5, 5, 2)), graph.blob("labels", (size,), "int64")
        hidden, scores = nn.InnerProduct(6, activation="relu", name="hidden"), nn.InnerProduct(CLASSES, name="scores")
        loss = ops.softmax_loss(scores(nn.Dropout(0.3)(hidden(ops.reshape(images, (size, 50))))), labels)
        train = nn.Adam(nn.rates.Cosine(0.02, STEPS)).minimize(loss)
        checkpoints = None if folder is None else af.Checkpoints(graph, folder)
        self.trainer = nn.Trainer(loss, train, in_flight=in_flight, checkpoints=checkpoints, every=every)
        self.images = Images()
        normal = data.Normalize.of(self.images.pixels, per="pixel")
        augment = data.Augmentation([normal, data.Crop(5, padding=1), data.Mirror()], seed=2)
        columns = {images: self.images, labels: np.arange(COUNT) % CLASSES}
        self.loader = data.Loader(columns, size, seed=1, transforms={images: augment})

    async def run(self, until: int | None = STEPS, leave: int | None = None, feeds: Any = None) -> list[float]:
        """Losses of the steps to one of them, which are perhaps left before."""
        found = []
        steps = self.trainer.steps(self.loader if feeds is None else feeds, epochs=None, until=until)
        async with self.graph, aclosing(steps):
            async for step in steps:
                found.append(step.loss)
                if step.number == leave:
                    break
        return found

    def weights(self) -> dict[str, bytes]:
        return {variable.name: variable.value.tobytes() for variable in self.graph.variables}


def check_read(asked: list[int], first: int, last: int = STEPS) -> None:
    """The examples of the steps behind one were read, each once and in order, and others ahead, of the same epoch."""
    orders = [data.Sampler(COUNT, 1).rows(epoch)[: PER_EPOCH * BATCH] for epoch in range(STEPS // PER_EPOCH + 2)]
    assert asked == np.concatenate(orders)[first * BATCH :][: len(asked)].tolist()
    end = -(-max(last, 1) // PER_EPOCH) * PER_EPOCH
    assert (last - first) * BATCH <= len(asked) <= (end - first) * BATCH


@pytest.fixture(scope="module")
def whole() -> tuple[list[float], dict[str, bytes]]:
    """Losses and last weights of a training that was never stopped."""
    training = Training(None)
    return asyncio.run(training.run()), training.weights()


@pytest.mark.timeout(1200)
@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(0, STEPS), min_size=1, max_size=3).map(sorted), st.integers(1, 4))
async def test_a_training_in_parts_is_the_whole(
    tmp_path_factory: pytest.TempPathFactory, whole, cuts, in_flight
) -> None:
    folder, found, before = tmp_path_factory.mktemp("parts"), [], 0
    for number, cut in enumerate([*cuts, STEPS]):
        part = Training(folder, in_flight=in_flight)
        assert await part.trainer.resume() == (number > 0)
        found += await part.run(until=cut)
        assert part.trainer.number == cut
        check_read(part.images.asked, before, cut)
        before = cut
    assert (found, part.weights()) == whole


@pytest.mark.parametrize(("every", "leave", "in_flight"), [(1, 3, 1), (3, 8, 2), (7, 7, 3), (7, 10, 3), (5, 19, 4)])
async def test_a_training_left_anywhere_goes_on_behind_the_last_checkpoint(
    tmp_path, whole, every, leave, in_flight
) -> None:
    expected, weights = whole
    left = Training(tmp_path, every=every, in_flight=in_flight)
    assert await left.run(leave=leave) == expected[:leave]
    resumed = Training(tmp_path, every=every, in_flight=in_flight)
    found = await resumed.trainer.resume()
    saved = resumed.trainer.number
    assert found == (saved > 0)
    assert saved % every == 0
    assert await resumed.run() == expected[saved:]
    check_read(resumed.images.asked, saved)
    assert resumed.weights() == weights


async def test_one_trainer_may_go_back_to_its_own_checkpoint(tmp_path) -> None:
    training = Training(tmp_path, every=6)
    expected = await training.run()
    await training.run(until=STEPS + 1)
    first = Training(tmp_path / "again", every=6)
    assert await first.run(leave=8) == expected[:8]
    assert await first.trainer.resume()
    assert first.trainer.number == 6
    assert await first.run() == expected[6:]


PROCESS = """
import asyncio, sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from actorflow.devices.cpu import CPU

CPU.libraries = ("numpy",)  # as in the tests' own process: other libraries' last bits are others
spec = spec_from_file_location("resumed", sys.argv[1])
module = module_from_spec(spec)
spec.loader.exec_module(module)

async def main():
    training = module.Training(Path(sys.argv[2]))
    assert await training.trainer.resume() == (sys.argv[4] == "resume")
    print(*(loss.hex() for loss in await training.run(until=int(sys.argv[3]))), sep="\\n")

asyncio.run(main())
"""


@pytest.mark.slow
def test_another_process_goes_on(tmp_path, whole) -> None:
    found: list[float] = []
    for until, how in ((7, "begin"), (STEPS, "resume")):
        done = run_program("-c", PROCESS, __file__, tmp_path, until, how)
        assert done.returncode == 0, done.stderr
        found += map(float.fromhex, done.stdout.split())
    last = Training(tmp_path)
    assert asyncio.run(last.trainer.resume())
    assert (found, last.weights()) == whole


async def test_epochs_end_where_they_would_have_ended(tmp_path) -> None:
    whole = Training(None)
    async with whole.graph:
        expected = await whole.trainer.fit(whole.loader, 3)
    await Training(tmp_path).run(until=PER_EPOCH)  # to the very end of the first epoch
    resumed = Training(tmp_path)
    await resumed.trainer.resume()
    async with resumed.graph:
        found = await resumed.trainer.fit(resumed.loader, 3)
    assert found == expected[1:]
    assert [(epoch.number, epoch.steps) for epoch in found] == [(1, PER_EPOCH), (2, PER_EPOCH)]


async def test_other_feeds_resume_by_skipping(tmp_path, whole) -> None:
    def feeds(training: Training) -> Any:
        def epoch(number: int) -> Iterator[Mapping[Any, Any]]:
            training.loader.load_state_dict({**training.loader.state_dict(), "epoch": number, "batch": 0})
            return iter(training.loader)

        return epoch

    expected, _ = whole
    first = Training(tmp_path)
    assert await first.run(until=10, feeds=feeds(first)) == expected[:10]
    resumed = Training(tmp_path)
    await resumed.trainer.resume()
    assert await resumed.run(feeds=feeds(resumed)) == expected[10:]
    check_read(resumed.images.asked, PER_EPOCH)  # the epoch's first three are skipped, and made


class Later:
    """An async iterable that knows its place."""

    def __init__(self, loader: data.Batches) -> None:
        self.state_dict = loader.state_dict
        self.load_state_dict = loader.load_state_dict
        self._loader = loader

    async def __aiter__(self) -> AsyncIterator[Mapping[Any, Any]]:
        for feed in self._loader:
            yield feed


async def test_any_feeds_may_know_their_place(tmp_path, whole) -> None:
    expected, _ = whole
    first = Training(tmp_path)
    assert await first.run(until=9, feeds=Later(first.loader)) == expected[:9]
    resumed = Training(tmp_path)
    await resumed.trainer.resume()
    assert await resumed.run(feeds=Later(resumed.loader)) == expected[9:]
    check_read(resumed.images.asked, 9)


async def test_what_does_not_fit_the_checkpoint_is_an_error(tmp_path) -> None:
    await Training(tmp_path / "loader").run(until=5)
    other = Training(tmp_path / "loader", size=BATCH)
    other.loader = data.Loader({"images": other.images}, BATCH, seed=3)
    await other.trainer.resume()
    with pytest.raises(af.DataError, match=r"got that of one with .*'seed': 1"):
        await other.run()
    plain = Training(tmp_path / "plain")
    await plain.run(until=5, feeds=list(plain.loader))
    resumed = Training(tmp_path / "plain")
    await resumed.trainer.resume()
    with pytest.raises(af.CheckpointError, match="step 5 was saved with feeds that do not know their place: Batches"):
        await resumed.run()
    assert len(await resumed.run(until=7, feeds=list(resumed.loader))) == 2


# -- how far ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 3])
async def test_until_is_the_last_step_of_all(tmp_path, in_flight) -> None:
    training = Training(tmp_path, in_flight=in_flight)
    assert len(await training.run(until=PER_EPOCH + 2)) == PER_EPOCH + 2
    assert (training.trainer.number, training.trainer.epoch) == (PER_EPOCH + 2, 1)
    assert await training.run(until=PER_EPOCH + 2) == []
    check_read(training.images.asked, 0, PER_EPOCH + 2)
    async with training.graph:
        steps = [step async for step in training.trainer.steps(training.loader, 2, until=1000)]
    assert [step.number for step in steps] == list(range(PER_EPOCH + 3, 2 * PER_EPOCH + 1))


async def test_a_training_without_an_end_needs_feeds() -> None:
    training = Training(None)
    with pytest.raises(af.GraphError, match="epoch 0 has no feeds: without epochs= that would never end"):
        await training.run(feeds=lambda epoch: [])
