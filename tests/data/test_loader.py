"""Batches of an epoch, and the places that a loader goes back to."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.data import Augmentation, Crop, ImageFiles, Loader, Mirror, Resumable, Sampler
from actorflow.errors import DataError


class Watched:
    """A column that keeps which rows it was asked for, and can be told to fail."""

    def __init__(self, count: int) -> None:
        self.asked: list[int] = []
        self.failing: set[int] = set()
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        bad = self.failing & set(rows.tolist())
        if bad:
            raise OSError(f"row {bad} cannot be read")
        self.asked += rows.tolist()
        return rows * 10


def rows_of(loader: Loader, epochs: int = 1) -> list[list[list[int]]]:
    """What column "x" of each batch of some epochs is."""
    return [[feed["x"].tolist() for feed in loader] for _ in range(epochs)]


def test_columns_are_fed_by_key() -> None:
    key = object()
    x, y = np.arange(12).reshape(6, 2), np.arange(6) * 100
    (first, second) = Loader({"x": x, key: y}, 3)
    assert first.keys() == second.keys() == {"x", key}
    np.testing.assert_array_equal(second["x"], x[3:])
    np.testing.assert_array_equal(second[key], y[3:])


def test_each_epoch_is_the_samplers() -> None:
    loader = Loader({"x": np.arange(10)}, 5, seed=3)
    assert len(loader) == 2
    assert rows_of(loader, 3) == [Sampler(10, 3).rows(epoch).reshape(2, 5).tolist() for epoch in range(3)]
    assert (loader.epoch, loader.batch) == (3, 0)
    shared = Loader({"x": np.arange(10)}, 2, sampler=Sampler(10, 3, offset=1, interval=2))
    assert rows_of(shared) == [Sampler(10, 3).rows(0)[1::2][:4].reshape(2, 2).tolist()]


def test_the_last_batch_is_dropped_or_filled() -> None:
    assert rows_of(Loader({"x": np.arange(5)}, 2)) == [[[0, 1], [2, 3]]]
    filled = Loader({"x": np.arange(5)}, 2, drop_last=False)
    assert len(filled) == 3
    assert rows_of(filled) == [[[0, 1], [2, 3], [4, 0]]]
    assert [(feed["x"].tolist(), count) for feed, count in filled.counted()] == [([0, 1], 2), ([2, 3], 2), ([4, 0], 1)]
    assert rows_of(Loader({"x": np.arange(2)}, 5, drop_last=False)) == [[[0, 1, 0, 1, 0]]]


def test_transforms_get_the_rows_and_the_epoch() -> None:
    images = np.arange(6 * 4 * 4, dtype=np.float32).reshape(6, 4, 4, 1)
    augment = Augmentation([Crop(3), Mirror()], seed=5)
    loader = Loader({"x": images, "y": images}, 2, seed=1, transforms={"x": augment})
    for epoch in range(3):
        rows = loader.sampler.rows(epoch).reshape(3, 2)
        for feed, chosen in zip(loader, rows, strict=True):
            np.testing.assert_array_equal(feed["x"], augment(images[chosen], chosen, epoch))
            np.testing.assert_array_equal(feed["y"], images[chosen])


def test_files_of_images_are_a_column(tmp_path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        pillow.fromarray(np.full((2, 2, 3), number, np.uint8)).save(path)
    feeds = list(Loader({"x": ImageFiles(paths, dtype="uint8"), "y": np.arange(4)}, 2, seed=0))
    assert [feed["x"].shape for feed in feeds] == [(2, 2, 2, 3)] * 2
    assert [feed["x"][:, 0, 0, 0].tolist() for feed in feeds] == [feed["y"].tolist() for feed in feeds]


# -- places -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.none() | st.integers(0, 99), st.booleans(), st.data())
def test_a_place_is_gone_back_to_without_reading_what_was_before(count, seed, drop_last, data) -> None:
    size = data.draw(st.integers(1, count))

    def made() -> tuple[Watched, Loader]:
        column = Watched(count)
        return column, Loader({"x": column}, size, seed=seed, drop_last=drop_last)

    _, whole = made()
    expected = [batch for epoch in rows_of(whole, 3) for batch in epoch]
    taken = data.draw(st.integers(0, len(expected)))
    _, begun = made()
    found = []
    while len(found) < taken:
        for feed in begun:
            found.append(feed["x"].tolist())
            if len(found) == taken:
                break
    state = json.loads(json.dumps(begun.state_dict()))
    column, resumed = made()
    resumed.load_state_dict(state)
    assert column.asked == []
    while resumed.epoch < 3:
        found += [feed["x"].tolist() for feed in resumed]
    assert found == expected
    assert [row * 10 for row in column.asked] == [row for batch in expected[taken:] for row in batch]


def test_a_loader_knows_its_place() -> None:
    assert isinstance(Loader({"x": np.arange(3)}, 1), Resumable)
    assert not isinstance([{}], Resumable)


def test_an_epoch_that_was_left_goes_on() -> None:
    loader = Loader({"x": np.arange(6)}, 2)
    for feed in loader:
        assert feed["x"].tolist() == [0, 1]
        break
    assert rows_of(loader, 2) == [[[2, 3], [4, 5]], [[0, 1], [2, 3], [4, 5]]]


def test_a_batch_that_fails_is_named_and_asked_for_again() -> None:
    column = Watched(6)
    loader = Loader({"x": column}, 2)
    column.failing = {3}
    with pytest.raises(OSError, match="cannot be read") as caught:
        list(loader)
    assert caught.value.__notes__ == ["in batch 1 of epoch 0"]
    column.failing.clear()
    assert rows_of(loader) == [[[20, 30], [40, 50]]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "'seed': 1, .* got that of one with .*'seed': 2"),
        ({"count": 11}, "got that of one with .*'count': 11"),
        ({"size": 2}, "got that of one with .*'size': 2"),
        ({"more": 2}, "got that of one with .*'more': 2"),
        ({"drop_last": None}, "got that of one with .*'drop_last': None"),
        ({"epoch": -1}, "an epoch and a batch from 0 to 3, got .*'epoch': -1"),
        ({"batch": 4}, "an epoch and a batch from 0 to 3, got .*'batch': 4"),
        ({"batch": "1"}, "an epoch and a batch from 0 to 3, got .*'batch': '1'"),
        ({"epoch": None}, "an epoch and a batch from 0 to 3, got"),
    ],
)
def test_the_state_of_another_loader_is_an_error(change: dict[str, Any], message: str) -> None:
    loader = Loader({"x": np.arange(10)}, 3, seed=1)
    state = loader.state_dict()
    next(iter(loader))
    with pytest.raises(DataError, match=message):
        loader.load_state_dict({**state, **change})
    with pytest.raises(DataError, match=r"got {}"):
        loader.load_state_dict({})
    assert (loader.epoch, loader.batch) == (0, 1)
    loader.load_state_dict(state)
    assert (loader.epoch, loader.batch) == (0, 0)


class Named:
    name = "graph/images"


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (({}, 1), {}, "columns of one length, got none"),
        (({Named(): np.arange(3), "y": np.arange(4)}, 1), {}, "one length, got {'graph/images': 3, 'y': 4}"),
        (({"x": np.arange(3)}, 4), {}, "a batch size from 1 to 3, the examples of an epoch, got 4"),
        (({"x": np.arange(3)}, 0), {"drop_last": False}, "a batch size from 1 to 3, .* got 0"),
        (({"x": np.arange(3)}, 1), {"transforms": {Named(): len}}, "transforms for graph/images, which is no column"),
        (({"x": np.arange(3)}, 1), {"seed": 0, "sampler": Sampler(3, 0)}, "a sampler has a seed of its own"),
        (({"x": np.arange(3)}, 1), {"sampler": Sampler(4, 0)}, r"a sampler of 3 examples, .*Sampler\(count=4"),
    ],
)
def test_what_is_wrong_is_an_error(arguments, settings, message) -> None:
    with pytest.raises(DataError, match=message):
        Loader(*arguments, **settings)
