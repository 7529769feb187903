"""Training and evaluation with an open batch axis: each example counts once, whatever the length of its batch."""

import asyncio
import io
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import actorflow as af
from actorflow import data, nn, ops

COUNT, FEATURES, CLASSES = 45, 6, 3
PIXELS = np.random.default_rng(0).standard_normal((COUNT, FEATURES))
LABELS = np.arange(COUNT) % CLASSES


class Setting:
    """A small classifier of float64 on batches of any length."""

    def __init__(self, rate: float = 0.1, **options: Any) -> None:
        self.graph = graph = af.Graph("open", deterministic=True)
        self.x = graph.blob("x", ("batch", FEATURES), "float64")
        self.labels = graph.blob("labels", ("batch",), "int64")
        scores = nn.InnerProduct(CLASSES, name="scores")(self.x)
        self.loss = ops.softmax_loss(scores, self.labels)
        self.hit = ops.cast(ops.equal(ops.argmax(scores, 1), self.labels), "float64")
        self.metrics = {"hit": self.hit, "accuracy": ops.mean(self.hit), "loss of all": self.loss}
        train = nn.SGD(rate, momentum=0.9).minimize(self.loss)
        self.trainer = nn.Trainer(self.loss, train, self.metrics, **options)

    def loader(self, size: int, **settings: Any) -> data.Batches:
        return data.Loader({self.x: PIXELS, self.labels: LABELS}, size, **settings)

    def weights(self) -> dict[str, bytes]:
        return {variable.name: variable.value.tobytes() for variable in self.graph.variables}


@settings(max_examples=20)
@given(st.integers(1, COUNT + 3), st.none() | st.integers(0, 5))
def test_means_of_an_evaluation_do_not_depend_on_the_size_of_batches(size: int, seed: int | None) -> None:
    setting = Setting()

    async def work() -> None:
        async with setting.graph:
            whole = await setting.graph.run(
                {setting.x: PIXELS, setting.labels: LABELS}, fetch=list(setting.metrics.values())
            )
            loader = setting.loader(size, seed=seed)
            for feeds in (loader, list(loader)):
                found = await setting.trainer.evaluate(feeds, setting.metrics)
                for name, blob in setting.metrics.items():
                    assert found[name] == pytest.approx(whole[blob].mean(), rel=1e-12)

    asyncio.run(work())


async def test_means_of_an_epoch_are_those_of_its_rows() -> None:
    setting, text = Setting(rate=0.0), io.StringIO()  # with the same weights in all steps
    trainer = setting.trainer
    rows = []
    async with setting.graph:
        whole = await setting.graph.run(
            {setting.x: PIXELS, setting.labels: LABELS}, fetch=list(setting.metrics.values())
        )
        loader = setting.loader(8, seed=1)
        with nn.Progress(1, 6, Console(file=text)) as progress:
            async for step in trainer.steps(loader):
                rows.append(step.rows)
                progress.advance(step)
        (epoch,) = await trainer.fit(loader, 2)
    assert rows == [8, 8, 8, 8, 8, 5]
    assert epoch.means["loss"] == pytest.approx(float(whole[setting.loss]), rel=1e-12)
    for name, blob in setting.metrics.items():
        assert epoch.means[name] == pytest.approx(whole[blob].mean(), rel=1e-12)
    assert f"loss {float(whole[setting.loss]):.3f}" in text.getvalue()


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 13), st.integers(1, 3))
def test_a_training_goes_on_in_the_middle_of_an_epoch(
    tmp_path_factory: pytest.TempPathFactory, taken: int, in_flight: int
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")

    async def run(folder: Path | None, until: int, *, resume: bool = False) -> tuple[list[Any], dict[str, bytes]]:
        setting = Setting(in_flight=in_flight)
        if folder is not None:
            setting.trainer._checkpoints = af.Checkpoints(setting.graph, folder)
        found = []
        async with setting.graph:
            if resume:
                assert await setting.trainer.resume()
            steps = setting.trainer.steps(setting.loader(8, seed=2), epochs=None, until=until)
            async with aclosing(steps):
                async for step in steps:
                    found.append(step)
        return found, setting.weights()

    expected, weights = asyncio.run(run(None, 14))
    first, _ = asyncio.run(run(folder, taken))
    rest, found = asyncio.run(run(folder, 14, resume=bool(taken)))
    assert [*first, *rest] == expected
    assert found == weights
    assert [step.rows for step in expected] == [8, 8, 8, 8, 8, 5] * 2 + [8, 8]


class TestRows:
    """Which open axes are those of a batch's rows."""

    def trainer(self, batch: Any = None) -> tuple[nn.Trainer, dict[af.Blob, Any]]:
        graph = af.Graph("sequences")
        x, weights = graph.blob("x", ("time", "batch")), graph.blob("weights", ("batch",))
        w = graph.variable("w", (), init=1.0)
        loss = ops.multiply(ops.mean(ops.multiply(ops.mean(x, 0), weights)), w)
        trainer = nn.Trainer(loss, nn.SGD(0.0).minimize(loss), batch=batch)
        feeds = [
            {x: np.full((5, n), value, np.float32), weights: np.ones(n, np.float32)} for n, value in ((1, 8), (3, 4))
        ]
        return trainer, feeds

    async def test_they_are_named(self) -> None:
        trainer, feeds = self.trainer("batch")
        async with trainer._graph:
            (epoch,) = await trainer.fit(feeds)
        assert epoch.means == {"loss": 5.0}

    async def test_that_is_asked_for_where_sources_begin_with_several(self) -> None:
        trainer, feeds = self.trainer()
        async with trainer._graph:
            with pytest.raises(af.GraphError, match="with the open axes 'batch', 'time': say by batch= which"):
                await trainer.fit(feeds)

    def test_they_are_there(self) -> None:
        with pytest.raises(
            af.GraphError, match=r"batch='rows' is no open axis of .*'sequences': these are batch, time"
        ):
            self.trainer("rows")
