"""Batches of an epoch, and the places that a loader goes back to."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.data import Augmentation, Batches, Blocks, Crop, ImageFiles, Loader, Mirror, Resumable, Sampler
from actorflow.errors import DataError, PipelineError, StageError


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


def rows_of(loader: Batches, epochs: int = 1) -> list[list[list[int]]]:
    """Column "x" of each batch of some epochs."""
    return [[feed["x"].tolist() for feed in loader] for _ in range(epochs)]


def test_columns_are_fed_by_key() -> None:
    key = object()
    x, y = np.arange(12).reshape(6, 2), np.arange(6) * 100
    (first, second) = Loader({"x": x, key: y}, 3)
    assert first.keys() == second.keys() == {"x", key}
    np.testing.assert_array_equal(second["x"], x[3:])
    np.testing.assert_array_equal(second[key], y[3:])


def test_lists_are_columns() -> None:
    feeds = list(Loader({"x": [[1, 2], [3, 4]], "y": (5, 6)}, 1))
    assert [(feed["x"].tolist(), feed["y"].tolist()) for feed in feeds] == [([[1, 2]], [5]), ([[3, 4]], [6])]


def test_each_epoch_is_the_samplers() -> None:
    loader = Loader({"x": np.arange(10)}, 5, seed=3)
    assert len(loader) == 2
    assert rows_of(loader, 3) == [Sampler(10, 3).rows(epoch).reshape(2, 5).tolist() for epoch in range(3)]
    assert (loader.epoch, loader.next_batch) == (3, 0)
    shared = Loader({"x": np.arange(10)}, 2, sampler=Sampler(10, 3, offset=1, interval=2))
    assert rows_of(shared) == [Sampler(10, 3).rows(0)[1::2][:4].reshape(2, 2).tolist()]


def test_the_last_batch_is_dropped_or_filled() -> None:
    assert rows_of(Loader({"x": np.arange(5)}, 2)) == [[[0, 1], [2, 3]]]
    filled = Loader({"x": np.arange(5)}, 2, drop_last=False)
    assert len(filled) == 3
    assert rows_of(filled) == [[[0, 1], [2, 3], [4, 0]]]
    assert [feed.count for feed in filled] == [2, 2, 1]
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

    def made() -> tuple[Watched, Batches]:
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


def test_an_epoch_is_taken_by_one_iterator_at_a_time() -> None:
    loader = Loader({"x": np.arange(8)}, 2)
    feeds = iter(loader)
    got = [next(feeds)["x"].tolist()]
    with pytest.raises(PipelineError, match="is being iterated"):
        next(iter(loader))
    with pytest.raises(PipelineError, match="is being iterated"):
        loader.load_state_dict(loader.state_dict())
    assert [*got, *(feed["x"].tolist() for feed in feeds)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_batch_that_fails_is_named_and_asked_for_again() -> None:
    column = Watched(6)
    loader = Loader({"x": column}, 2)
    column.failing = {3}
    with pytest.raises(StageError, match=r"OSError: row \{3\} cannot be read") as caught:
        list(loader)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.__notes__ == ["in batch 1 of epoch 0"]
    column.failing.clear()
    assert rows_of(loader) == [[[20, 30], [40, 50]]]


@pytest.mark.together(
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
    assert (loader.epoch, loader.next_batch) == (0, 1)
    loader.load_state_dict(state)
    assert (loader.epoch, loader.next_batch) == (0, 0)


class Named:
    name = "graph/images"


@pytest.mark.together(
    ("arguments", "settings", "message"),
    [
        (({}, 1), {}, "columns of one length, got none"),
        (({Named(): np.arange(3), "y": np.arange(4)}, 1), {}, "one length, got {'graph/images': 3, 'y': 4}"),
        (({"x": np.arange(3)}, 4), {}, "a batch size from 1 to 3, the examples of an epoch, got 4"),
        (({"x": np.arange(3)}, 0), {"drop_last": False}, "size must be at least 1, got 0"),
        (({"x": np.arange(3)}, 1), {"transforms": {Named(): len}}, "transforms for graph/images, not a column"),
        (({"x": np.arange(3)}, 1), {"seed": 0, "sampler": Sampler(3, 0)}, "a sampler has a seed of its own"),
        (({"x": np.arange(3)}, 1), {"sampler": Sampler(4, 0)}, r"a sampler of 3 examples, .*Sampler\(count=4"),
    ],
)
def test_what_is_wrong_is_an_error(arguments, settings, message) -> None:
    with pytest.raises(DataError, match=message):
        Loader(*arguments, **settings)


# -- one pass, and what only fills a batch --------------------------------------------------------------------------


@given(st.integers(1, 20), st.none() | st.integers(0, 9), st.booleans(), st.data())
def test_a_pass_of_its_own_is_the_whole_epoch_and_moves_nothing(count, seed, drop_last, data) -> None:
    size = data.draw(st.integers(1, count))
    loader, whole = (Loader({"x": np.arange(count)}, size, seed=seed, drop_last=drop_last) for _ in range(2))
    state = {
        **loader.state_dict(),
        "epoch": data.draw(st.integers(0, 2)),
        "batch": data.draw(st.integers(0, len(loader))),
    }
    loader.load_state_dict(state)
    whole.load_state_dict({**state, "batch": 0})
    first, second = loader.one_pass(), loader.one_pass()
    expected = [(feed["x"].tolist(), feed.count) for feed in whole]
    found: list[Any] = [[], []]
    for pair in zip(first, second, strict=True):  # neither disturbs the other
        for part, feed in zip(found, pair, strict=True):
            part.append((feed["x"].tolist(), feed.count))
    assert found == [expected, expected]
    assert loader.state_dict() == state
    counts = [rows for _, rows in expected]
    assert counts == [None] * (count // size) if drop_last else sum(counts) == count


# -- batches for open axes --------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.none() | st.integers(0, 9), st.data())
def test_each_example_comes_once_in_an_epoch_of_open_batches(count, seed, data) -> None:
    size = data.draw(st.integers(1, count + 3))
    graph = af.Graph("open")
    x = graph.blob("x", ("batch",), "int64")
    for loader in (
        Loader({x: np.arange(count)}, size, seed=seed),
        Loader({"x": np.arange(count)}, size, seed=seed, fill=False),
    ):
        for _ in range(2):
            batches = [next(iter(feed.values())) for feed in loader]
            assert sorted(np.concatenate(batches)) == list(range(count))
            assert [len(batch) for batch in batches[:-1]] == [size] * (len(loader) - 1)
            assert len(batches[-1]) == count - size * (len(loader) - 1)
        assert all(feed.count is None for feed in loader.one_pass())


def test_batches_are_short_only_for_open_blobs() -> None:
    graph = af.Graph("half open")
    values, opened, closed = np.arange(5.0), graph.blob("x", ("batch",)), graph.blob("y", (2,))
    assert len(Loader({opened: values}, 2)) == 3
    assert len(Loader({opened: values}, 2, drop_last=True)) == 2
    assert len(Loader({opened: values, closed: values}, 2)) == 2
    assert [feed.count for feed in Loader({opened: values}, 2, fill=True)] == [2, 2, 1]
    assert [len(feed[closed]) for feed in Loader({opened: values, closed: values}, 2, drop_last=False)] == [2, 2, 2]


# -- other numbers of loaders ---------------------------------------------------------------------------------------


def of_ranks(count: int, ranks: int, size: int, seed: int | None, drop_last: bool = True) -> list[Batches]:
    """One loader for each rank, which takes its share."""
    samplers = [Sampler(count, seed, rank, ranks) for rank in range(ranks)]
    return [Loader({"x": np.arange(count)}, size, sampler=sampler, drop_last=drop_last) for sampler in samplers]


def steps_of(loaders: list[Batches]) -> list[list[int]]:
    """Rows that all take together in each step of the rest of the epoch."""
    return [sorted(row for feed in feeds for row in feed["x"].tolist()) for feeds in zip(*loaders, strict=True)]


@given(
    st.sampled_from([12, 24, 60]),
    st.integers(0, 250),
    st.none() | st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=5),
)
def test_what_some_have_taken_others_go_on_behind(together: int, more: int, seed: int | None, parts: Any) -> None:
    """Of as many examples together, whatever their number; also over and over again."""
    count = together + more
    left = expected = steps_of(of_ranks(count, 1, together, seed))
    found: list[list[int]] = []
    states = None
    for many, ranks in [*parts, (len(expected), 1)]:
        if together % ranks:
            continue
        loaders = of_ranks(count, ranks, together // ranks, seed)
        for loader in loaders:
            loader.load_state_dicts(states or [Loader({"x": np.arange(count)}, together, seed=seed).state_dict()])
        iterators = [iter(loader) for loader in loaders]
        for _ in range(min(many, len(left))):
            found.append(sorted(row for iterator in iterators for row in next(iterator)["x"].tolist()))
        del iterators
        left = expected[len(found) :]
        states = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    assert found == expected
    assert steps_of(loaders) == []
    assert {loader.epoch for loader in loaders} == {1}


@pytest.mark.parametrize("epoch", [0, 2])
def test_blocks_of_neighbours_are_shared_out_anew(epoch: int) -> None:
    def made(ranks: int, size: int | None = None) -> list[Batches]:
        block = 24 // ranks
        orders = [Blocks(200, None, rank * block, 24, block) for rank in range(ranks)]
        return [Loader({"x": np.arange(200)}, size or block, sampler=order) for order in orders]

    (alone,) = made(1)
    alone.epoch = epoch
    expected = steps_of([alone])
    states = [{**loader.state_dict(), "epoch": epoch, "batch": 3} for loader in made(4)]
    for ranks in (1, 2, 3, 4):
        loaders = made(ranks)
        for loader in loaders:
            loader.load_state_dicts(states)
        assert steps_of(loaders) == expected[3:]
    (other,) = made(1, 8)
    with pytest.raises(
        DataError, match=r"72 examples .* by 24 on 4 ranks, .* take 8 on 1: .* 24 together, and whole blocks"
    ):
        other.load_state_dicts(states)
    wider = Loader({"x": np.arange(200)}, 48, sampler=Blocks(200, None, 0, 48, 48))
    with pytest.raises(DataError, match="in the order of this one"):
        wider.load_state_dicts(states)


def test_loaders_that_take_everything_are_at_one_place() -> None:
    states = [Loader({"x": np.arange(12)}, 4, seed=1).state_dict() | {"batch": 2} for _ in range(4)]
    alone = Loader({"x": np.arange(12)}, 4, seed=1)
    alone.load_state_dicts(states)
    assert (alone.epoch, alone.next_batch) == (0, 2)
    shares = of_ranks(12, 2, 2, 1)
    for share in shares:
        share.load_state_dicts(states)
    assert steps_of(shares) == [sorted(Sampler(12, 1).rows(0)[8:].tolist())]


@pytest.mark.together(
    ("change", "message"),
    [
        ({"seed": 2}, "the states of loaders in the order of this one, .*'seed': 1"),
        ({"drop_last": False}, "in the order of this one"),
        ({"interval": 5}, "at one place, of one share each"),
        ({"more": 2}, "the states of loaders like this, .*'more': 2"),
        ({"epoch": -1}, "an epoch and a batch from 0"),
    ],
)
def test_what_is_no_place_of_all_shares_is_an_error(change: dict[str, Any], message: str) -> None:
    states = [loader.state_dict() for loader in of_ranks(24, 4, 2, 1)]
    (loader,) = of_ranks(24, 1, 8, 1)
    with pytest.raises(DataError, match=message):
        loader.load_state_dicts([{**state, **change} for state in states])
    with pytest.raises(DataError, match="one loader or more, got none"):
        loader.load_state_dicts([])
    for wrong in (states[:3], [*states[:3], {**states[3], "batch": 1}], [*states[:3], {**states[3], "offset": 7}]):
        with pytest.raises(DataError, match="at one place, of one share each"):
            loader.load_state_dicts(wrong)
    assert (loader.epoch, loader.next_batch) == (0, 0)


def test_a_batch_that_is_cut_by_the_place_says_which_sizes_fit() -> None:
    states = [{**loader.state_dict(), "batch": 1} for loader in of_ranks(60, 4, 6, None)]
    (loader,) = of_ranks(60, 1, 10, None)
    message = (
        "24 examples of epoch 0 have been taken, by 24 on 4 ranks, .* take 10 on 1: give batches that are 24 together"
    )
    with pytest.raises(DataError, match=message):
        loader.load_state_dicts(states)
    loader.load_state_dicts([{**state, "batch": 0, "epoch": 3} for state in states])  # an epoch begins with any batch
    assert (loader.epoch, loader.next_batch) == (3, 0)
    loader.load_state_dicts([{**state, "batch": 2} for state in states])  # and ends with any
    assert (loader.epoch, loader.next_batch) == (0, 6)
