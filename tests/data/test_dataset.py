import numpy as np
import pytest

from actorflow.data import Dataset, Split, stratified_split
from actorflow.errors import DataError


def test_what_is_shown_of_it_is_short() -> None:
    split = Split(np.zeros((500, 28, 28, 1), np.float32), np.arange(500) % 3)
    assert repr(split) == "<Split of 500 images, float32[28, 28, 1]>"
    shown = repr(Dataset("letters", split, Split(split.images[:40], split.labels[:40]), ("a", "b", "c")))
    assert shown == "<Dataset 'letters': 500 to train, 40 to test, float32[28, 28, 1], 3 classes>"


def numbered(count: int) -> Split:
    """Images that carry their own number, so that batches show where their rows came from."""
    numbers = np.arange(count)
    return Split(numbers.astype(np.float32).reshape(-1, 1, 1, 1), numbers)


def test_shuffled_gives_every_image_at_most_once_and_only_full_batches() -> None:
    batches = list(numbered(11).shuffled(4, np.random.default_rng(0)))
    assert [batch.valid for batch in batches] == [4, 4]
    seen = np.concatenate([batch.labels for batch in batches])
    assert len(set(seen)) == 8
    for batch in batches:
        np.testing.assert_array_equal(batch.images[:, 0, 0, 0], batch.labels)


def test_shuffled_depends_on_the_generator_alone() -> None:
    def order(seed: int) -> list[int]:
        return [int(n) for batch in numbered(50).shuffled(10, np.random.default_rng(seed)) for n in batch.labels]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == list(range(50))


@pytest.mark.together("size", [1, 3, 4, 10, 11, 25])
def test_in_order_counts_every_image_once(size: int) -> None:
    batches = list(numbered(10).in_order(size))
    assert {batch.images.shape for batch in batches} == {(size, 1, 1, 1)}
    counted = np.concatenate([batch.labels[: batch.valid] for batch in batches])
    np.testing.assert_array_equal(counted, np.arange(10))
    np.testing.assert_array_equal(np.concatenate([batch.images[: batch.valid, 0, 0, 0] for batch in batches]), counted)


def test_batch_size_is_checked_before_the_first_batch() -> None:
    for size in (0, -1, 11):
        with pytest.raises(DataError, match=f"size must be from 1 to 10, got {size}"):
            numbered(10).shuffled(size, np.random.default_rng(0))
    with pytest.raises(DataError, match="size must be at least 1, got 0"):
        numbered(10).in_order(0)


def test_split_checks_its_labels() -> None:
    images = np.zeros((3, 2, 2, 1), np.float32)
    with pytest.raises(DataError, match=r"one label per image, got labels of shape \(2,\) for images of shape \(3, 2"):
        Split(images, np.zeros(2, np.int64))
    with pytest.raises(DataError, match="at least one image"):
        Split(images[:0], np.zeros(0, np.int64))
    with pytest.raises(DataError, match="expected test labels from 0 to 1, got 0 to 2"):
        Dataset("few", Split(images, np.zeros(3, np.int64)), Split(images, np.arange(3)), ("a", "b"))


def test_standardized_uses_the_train_images() -> None:
    rng = np.random.default_rng(0)
    train = Split(rng.normal(5, 3, (200, 2, 2, 1)).astype(np.float32), np.zeros(200, np.int64))
    test = Split(train.images + 6, train.labels)
    scaled = Dataset("normal", train, test, ("all",)).standardized()
    assert scaled.train.images.dtype == np.float32
    assert scaled.train.images.mean() == pytest.approx(0, abs=1e-4)
    assert scaled.train.images.std() == pytest.approx(1, abs=1e-4)
    assert scaled.test.images.mean() == pytest.approx(6 / train.images.std(), rel=1e-3)


def test_standardized_leaves_constant_images_finite() -> None:
    flat = Split(np.full((2, 1, 1, 1), 7, np.float32), np.zeros(2, np.int64))
    assert (Dataset("flat", flat, flat, ("all",)).standardized().train.images == 0).all()


def test_stratified_split_keeps_the_share_of_each_class() -> None:
    labels = np.repeat(np.arange(3), [100, 50, 10])
    images = np.arange(160, dtype=np.float32).reshape(-1, 1, 1, 1)
    train, test = stratified_split(images, labels, test_share=0.2, rng=np.random.default_rng(0))
    assert np.bincount(test.labels).tolist() == [20, 10, 2]
    assert np.bincount(train.labels).tolist() == [80, 40, 8]
    together = np.concatenate([train.images, test.images]).ravel()
    np.testing.assert_array_equal(np.sort(together), images.ravel())


def test_stratified_split_leaves_each_part_an_image_of_each_class() -> None:
    labels = np.array([0, 0, 1, 1, 1])
    images = np.zeros((5, 1, 1, 1), np.float32)
    for share in (0.01, 0.99):
        train, test = stratified_split(images, labels, test_share=share, rng=np.random.default_rng(0))
        assert set(train.labels) == set(test.labels) == {0, 1}


def test_stratified_split_refuses_what_cannot_be_split() -> None:
    images = np.zeros((3, 1, 1, 1), np.float32)
    with pytest.raises(DataError, match="class 1 has one"):
        stratified_split(images, np.array([0, 0, 1]), test_share=0.5, rng=np.random.default_rng(0))
    with pytest.raises(DataError, match=r"test_share must be more than 0 and less than 1, got 1\.0"):
        stratified_split(images, np.zeros(3, int), test_share=1.0, rng=np.random.default_rng(0))
