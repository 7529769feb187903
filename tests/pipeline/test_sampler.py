"""The order of an epoch, and the numbers it comes from."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.data import Draws, Sampler
from actorflow.errors import DataError

SEEDS = st.integers(0, 2**128)
EPOCHS = st.integers(0, 2**32)


@given(st.integers(1, 300), SEEDS, EPOCHS)
def test_an_epoch_has_every_example_once(count, seed, epoch) -> None:
    rows = Sampler(count, seed).rows(epoch)
    assert rows.dtype == np.int64
    assert sorted(rows.tolist()) == list(range(count))
    np.testing.assert_array_equal(Sampler(count, seed).rows(epoch), rows)


@given(st.integers(1, 300), st.none() | SEEDS, EPOCHS, st.data())
def test_shares_of_one_size_have_every_example_once(count, seed, epoch, data) -> None:
    interval = data.draw(st.integers(1, count))
    whole = Sampler(count, seed).rows(epoch)
    shares = [Sampler(count, seed, offset, interval) for offset in range(interval)]
    parts = [share.rows(epoch) for share in shares]
    assert {len(part) for part in parts} == {len(share) for share in shares} == {count // interval}
    np.testing.assert_array_equal(np.column_stack(parts).ravel(), whole[: count // interval * interval])


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(Sampler(50, seed).rows(epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_every_order_is_as_likely() -> None:
    sampler, epochs = Sampler(4, seed=1), 24 * 200
    found = Counter(tuple(sampler.rows(epoch)) for epoch in range(epochs))
    assert len(found) == 24
    # Chi squared with 23 degrees of freedom is more than 49.7 once in a thousand seeds.
    assert sum((count - 200) ** 2 / 200 for count in found.values()) < 49.7


def test_the_order_is_the_same_in_each_version() -> None:
    assert Sampler(10, seed=0).rows(0).tolist() == [7, 3, 8, 6, 1, 9, 0, 5, 2, 4]
    assert Sampler(10, seed=0).rows(1).tolist() == [6, 8, 3, 9, 2, 7, 0, 1, 4, 5]
    assert Sampler(5).rows(3).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "expected 0 <= offset < interval <= count, got offset 0, interval 1 and count 0"),
        ((5, 0, 2, 2), "got offset 2, interval 2 and count 5"),
        ((5, 0, 0, 6), "interval 6 and count 5"),
        ((5, -1), "seed must be at least 0, got -1"),
    ],
)
def test_what_is_wrong_is_an_error(arguments, message) -> None:
    with pytest.raises(DataError, match=message):
        Sampler(*arguments)


def test_epochs_are_not_negative() -> None:
    with pytest.raises(DataError, match="epoch must be at least 0, got -1"):
        Sampler(3, seed=0).rows(-1)


# -- draws --------------------------------------------------------------------------------------------------------


@given(SEEDS, EPOCHS, st.integers(0, 100), st.lists(st.integers(0, 2**40), min_size=1, max_size=20), st.data())
def test_numbers_depend_on_the_example_alone(seed, epoch, stream, rows, data) -> None:
    columns = data.draw(st.integers(1, 4))
    drawn = Draws(seed, epoch, np.array(rows), stream).uniform(columns)
    assert drawn.shape == (len(rows), columns)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for row, numbers in zip(rows, drawn, strict=True):
        alone = Draws(seed, epoch, np.array([row]), stream)
        np.testing.assert_array_equal(alone.uniform(columns)[0], numbers)
        np.testing.assert_array_equal(alone.uniform()[0], numbers[:1])


def test_seeds_epochs_streams_rows_and_columns_have_numbers_of_their_own() -> None:
    drawn = [
        Draws(seed, epoch, np.arange(50), stream).uniform(3)
        for seed in range(5)
        for epoch in range(5)
        for stream in range(5)
    ]
    assert len(np.unique(drawn)) == 125 * 150


def test_numbers_are_evenly_distributed_and_independent() -> None:
    drawn = Draws(0, 0, np.arange(40_000)).uniform(2)
    for column in drawn.T:
        counts = np.bincount((column * 100).astype(int), minlength=100)
        assert np.square(counts - 400).sum() / 400 < 149  # chi squared, 99 degrees of freedom, once in a thousand
    neighbours = np.corrcoef(np.column_stack([drawn[1:], drawn[:-1]]).T)
    assert np.abs(neighbours - np.eye(4)).max() < 0.02


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=3))
def test_integers_stay_below_their_bounds(bounds) -> None:
    drawn = Draws(3, 1, np.arange(100)).below(*bounds)
    assert drawn.shape == (100, len(bounds))
    assert (drawn >= 0).all()
    assert (drawn < bounds).all()


def test_every_integer_occurs() -> None:
    assert np.bincount(Draws(0, 0, np.arange(3_000)).below(3)[:, 0]).min() > 900


def test_the_numbers_are_the_same_in_each_version() -> None:
    assert Draws(7, 2, np.array([0, 5]), 1).below(1_000, 1_000).tolist() == [[683, 748], [929, 491]]
