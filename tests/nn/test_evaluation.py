"""Evaluations: what is left behind however they end, and that rows which only fill a batch count nowhere."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import actorflow as af
from actorflow import data, nn, ops, pipeline

BATCH, COUNT = 8, 45
TRUE_MEAN = (COUNT - 1) / 2


def raised() -> None:
    raise OSError("planted")


class Rows:
    """A column with its own numbers, that fails or cancels the evaluation at a row."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.strike: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        if self.at is not None and self.at in rows:
            self.strike()
        return rows.astype("f4")


class Stream:
    """Feeds that know their place, made by an application."""

    def __init__(self, feed: Callable[[int], Any]) -> None:
        self.feed, self.batch, self.batches = feed, 0, COUNT // BATCH

    def __iter__(self) -> Iterator[Any]:
        while self.batch < self.batches:
            self.batch += 1
            yield self.feed(self.batch - 1)
        self.batch = 0

    def state_dict(self) -> dict[str, Any]:
        return {"batch": self.batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.batch = state["batch"]


class AsyncStream(Stream):
    __iter__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[Any]:
        for feed in Stream.__iter__(self):
            await asyncio.sleep(0)
            yield feed


class Setting:
    """A graph whose op can be made to fail, and feeds of each kind."""

    def __init__(self) -> None:
        self.graph = graph = af.Graph("setting")
        self.x = graph.blob("x", (BATCH,))
        w = graph.variable("w", (), init=1.0)
        self.failing = False
        self.row = graph.function("row", self.seen, self.x.spec)(self.x)
        self.mean = ops.mean(self.row)
        loss = ops.scale(w, 2.0)
        self.trainer = nn.Trainer(loss, nn.SGD(0.1).minimize(loss), in_flight=3)
        self.rows = Rows()

    def seen(self, x: np.ndarray) -> np.ndarray:
        if self.failing and x.max() >= 20:
            raise ValueError("planted")
        return x

    def feed(self, batch: int) -> Any:
        return {self.x: self.rows[np.arange(batch * BATCH, (batch + 1) * BATCH)]}

    def loader(self, **settings: Any) -> data.Batches:
        return data.Loader({self.x: self.rows}, BATCH, **settings)

    def feeds(self, kind: str) -> tuple[Any, Callable[[], Any]]:
        """The object that knows the place, and the feeds of an evaluation."""
        match kind:
            case "loader":
                loader = self.loader()
                return loader, lambda: loader
            case "filled":
                loader = self.loader(drop_last=False)
                return loader, lambda: loader
            case "pipeline":
                feeding = (
                    pipeline.source(range(COUNT // BATCH)).map(self.feed).map(lambda feed: feed[self.x]).feed(self.x)
                )
                return feeding, lambda: feeding
            case "stream":
                stream = Stream(self.feed)
                return stream, lambda: stream
            case _:
                later = AsyncStream(self.feed)
                return later, lambda: later

    def mean_of(self, kind: str) -> float:
        """The mean in an evaluation of all rows."""
        return TRUE_MEAN if kind == "filled" else (COUNT // BATCH * BATCH - 1) / 2


KINDS = ["loader", "filled", "pipeline", "stream", "later"]
ENDINGS = ["none", "op", "feed", "cancelled", "cancelled twice"]


@pytest.mark.together(
    ("kind", "ending"),
    [(kind, ending) for kind in KINDS for ending in ENDINGS] + [("filled", "metric")],
)
async def test_feeds_are_where_they_were_however_an_evaluation_ends(kind: str, ending: str) -> None:
    setting = Setting()
    knows, feeds = setting.feeds(kind)
    async with setting.graph:
        before = knows.state_dict()
        metrics = {"m": setting.row}
        running = asyncio.ensure_future(
            setting.trainer.evaluate(feeds(), {"m": setting.mean} if ending == "metric" else metrics)
        )
        if ending == "op":
            setting.failing = True
        elif ending == "feed":
            setting.rows.at, setting.rows.strike = 20, raised
        elif ending.startswith("cancelled"):
            loop = asyncio.get_running_loop()

            def cancel() -> None:
                loop.call_soon_threadsafe(running.cancel)
                if ending.endswith("twice"):
                    loop.call_soon_threadsafe(lambda: loop.call_soon(running.cancel))

            setting.rows.at, setting.rows.strike = 20, cancel
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        if ending == "none":
            assert outcome == {"m": setting.mean_of(kind)}
        else:
            expected = {"op": af.OpError, "feed": (OSError, af.StageError), "metric": af.GraphError}
            assert isinstance(outcome, expected.get(ending, asyncio.CancelledError)), outcome
        setting.failing, setting.rows.at = False, None
        assert knows.state_dict() == before
        for _ in range(2):
            assert await setting.trainer.evaluate(feeds(), metrics) == {"m": setting.mean_of(kind)}
            assert knows.state_dict() == before
        if hasattr(knows, "loader"):
            await knows.loader.aclose()


async def test_a_loader_that_was_left_in_the_middle_is_evaluated_whole() -> None:
    """Also while a training takes its feeds from it."""
    setting = Setting()
    loader = setting.loader(drop_last=False)
    found, seen = [], []
    async with setting.graph:
        next(iter(loader))
        assert await setting.trainer.evaluate(loader, {"m": setting.row}) == {"m": TRUE_MEAN}
        assert loader.next_batch == 1
        async for step in setting.trainer.steps(loader, 2):
            seen.append((step.epoch, step.rows))
            found.append(await setting.trainer.evaluate(loader, {"m": setting.row}))
    batches = -(-COUNT // BATCH)
    assert [epoch for epoch, _ in seen] == [0] * (batches - 1) + [1] * batches
    assert all(mean == {"m": TRUE_MEAN} for mean in found)


async def test_a_place_that_cannot_be_gone_back_to_is_told_and_hides_nothing() -> None:
    class Broken(Stream):
        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            raise OSError("it is gone")

    setting = Setting()
    feeds = Broken(setting.feed)
    async with setting.graph:
        with pytest.raises(OSError, match="it is gone"):
            await setting.trainer.evaluate(feeds, {"m": setting.row})
        setting.failing = True
        with pytest.raises(af.OpError) as caught:
            await setting.trainer.evaluate(feeds, {"m": setting.row})
    assert caught.value.__notes__[-1] == "the feeds could not be brought back to where they were: it is gone"


# -- rows that only fill a batch --------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 12), st.none() | st.integers(0, 5), st.integers(0, 2), st.integers(1, 3))
def test_what_fills_a_batch_counts_in_no_metric(
    count: int, size: int, seed: int | None, ndim: int, epochs: int
) -> None:
    """Means of an evaluation and of training epochs are those of the rows, each of which counts once."""
    values = np.random.default_rng(count).standard_normal((count, *(2,) * ndim))
    graph = af.Graph("g")
    x = graph.blob("x", (size, *(2,) * ndim), "float64")
    w = graph.variable("w", (), init=1.0)
    row, loss = ops.scale(x, 3.0), ops.scale(w, 2.0)
    trainer = nn.Trainer(loss, nn.SGD(0.1).minimize(loss), {"row": row})
    loader = data.Loader({x: values}, size, seed=seed, drop_last=False)
    expected = 3 * values.mean()

    async def work() -> None:
        async with graph:
            for feeds in (loader, list(loader), list(loader.one_pass())):
                found = await trainer.evaluate(feeds, {"row": row})
                assert found["row"] == pytest.approx(expected, abs=1e-12)
            for epoch in await trainer.fit(loader, epochs):
                assert epoch.means["row"] == pytest.approx(expected, abs=1e-12)

    asyncio.run(work())


async def test_a_mean_over_a_filled_batch_is_refused_before_anything_runs() -> None:
    setting = Setting()
    filled, whole = setting.loader(drop_last=False), setting.loader()
    loss = setting.trainer._loss
    trainer = nn.Trainer(loss, setting.graph["sgd"], {"m": setting.mean})
    message = "metric 'm' is a mean over the whole batch, of whose rows some may only fill it: give a value per row"
    async with setting.graph:
        for feeds in (filled, list(filled), [(setting.feed(0), 3)]):
            with pytest.raises(af.GraphError, match=message):
                await setting.trainer.evaluate(feeds, {"m": setting.mean})
        for training in (filled, lambda epoch: filled, list(filled)):
            with pytest.raises(af.GraphError, match=message):
                await trainer.fit(training)
        assert setting.graph.engine.next_number == 0
        assert trainer.number == 0
        assert await setting.trainer.evaluate(whole, {"m": setting.mean}) == {"m": setting.mean_of("loader")}
        with pytest.raises(af.GraphError, match="metric 'm' has values for 8 rows, but 9 rows of the batch count"):
            await setting.trainer.evaluate([(setting.feed(0), 9)], {"m": setting.row})


async def test_a_progress_shows_the_means_of_the_rows_that_count() -> None:
    setting, text = Setting(), io.StringIO()
    trainer = nn.Trainer(setting.trainer._loss, setting.graph["sgd"], {"row": setting.row})
    async with setting.graph:
        with nn.Progress(1, 6, Console(file=text)) as progress:
            async for step in trainer.steps(setting.loader(drop_last=False)):
                progress.advance(step)
    assert f"row {TRUE_MEAN:.3f}" in text.getvalue()
