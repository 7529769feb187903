"""Labelled images in memory, in batches of one size, as graphs with fixed shapes want them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import DataError, real, whole


class Batch(NamedTuple):
    """Some images and their labels.

    Attributes:
        images: float32, shape (batch, ...).
        labels: int64, shape (batch,).
        valid: Number of rows that count; those after them only fill the batch.

    Example:
        >>> split = af.data.Split(np.zeros([3, 8, 8, 1], "float32"), np.array([0, 1, 2]))
        >>> first, second = split.in_order(2)
        >>> second.images.shape, second.labels, second.valid
        ((2, 8, 8, 1), array([2, 0]), 1)
    """

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    valid: int


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """A part of a data set.

    Attributes:
        images: float32, shape (count, ...).
        labels: int64, shape (count,).

    Raises:
        DataError: if there are not as many labels as images, or none.

    Example:
        >>> split = af.data.Split(np.zeros([5, 8, 8, 1], "float32"), np.arange(5))
        >>> split
        <Split of 5 images, float32[8, 8, 1]>
        >>> [batch.labels.tolist() for batch in split.in_order(2)]  # the last one is filled up
        [[0, 1], [2, 3], [4, 0]]
        >>> sum(len(batch.labels) for batch in split.shuffled(2, np.random.default_rng(0)))
        4
    """

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"expected one label per image, got labels of shape {self.labels.shape} "
                f"for images of shape {self.images.shape}"
            )
        if len(self.labels) == 0:
            raise DataError("expected at least one image, got none")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<Split of {len(self)} images, {self.images.dtype}{list(self.images.shape[1:])}>"

    def shuffled(self, size: int, rng: np.random.Generator) -> Iterator[Batch]:
        """One epoch of full batches in random order; images that fill no batch are left out of this epoch.

        Args:
            size: Images per batch, from 1 to the number of images.
            rng: Gives the order.
        Raises:
            DataError: if no batch of this size can be filled.

        Example:
            >>> split = af.data.Split(np.zeros([5, 2], "float32"), np.arange(5))
            >>> [batch.labels.shape for batch in split.shuffled(2, np.random.default_rng(0))]
            [(2,), (2,)]
        """
        size = whole("size", size, 1, len(self), error=DataError)
        order = rng.permutation(len(self))
        return (
            Batch(self.images[rows], self.labels[rows], size)
            for rows in (order[start : start + size] for start in range(0, len(self) - size + 1, size))
        )

    def in_order(self, size: int) -> Iterator[Batch]:
        """Every image once, in order; the last batch is filled up from the first image on, with rows that do not count.

        Args:
            size: Images per batch, at least 1.
        Raises:
            DataError: if the size is less.
        """
        size = whole("size", size, 1, error=DataError)
        rows = np.arange(size)
        return (
            Batch(
                self.images.take(rows + start, axis=0, mode="wrap"),
                self.labels.take(rows + start, mode="wrap"),
                min(size, len(self) - start),
            )
            for start in range(0, len(self), size)
        )


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A data set of labelled images.

    Attributes:
        name: Name in messages.
        train: The part to learn from.
        test: The part to measure with.
        classes: Name of each class; labels are positions in it.

    Raises:
        DataError: if a label names no class.

    Example:
        >>> part = af.data.Split(np.array([[0], [4]], "float32"), np.array([0, 1]))
        >>> data = af.data.Dataset("toy", train=part, test=part, classes=("cat", "dog"))
        >>> data
        <Dataset 'toy': 2 to train, 2 to test, float32[1], 2 classes>
        >>> data.standardized().train.images
        array([[-1.],
               [ 1.]], dtype=float32)
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= len(self.classes):
                raise DataError(
                    f"{self.name}: expected {part} labels from 0 to {len(self.classes) - 1}, got {low} to {high}"
                )

    def __repr__(self) -> str:
        images = f"{self.train.images.dtype}{list(self.train.images.shape[1:])}"
        counts = f"{len(self.train)} to train, {len(self.test)} to test"
        return f"<Dataset {self.name!r}: {counts}, {images}, {len(self.classes)} classes>"

    def standardized(self) -> Dataset:
        """The same with the train images' mean subtracted, then divided by their standard deviation."""
        mean, std = self.train.images.mean(dtype=np.float64), self.train.images.std(dtype=np.float64)
        scale = np.float32(1 / std if std > 0 else 1)

        def scaled(split: Split) -> Split:
            return Split((split.images - np.float32(mean)) * scale, split.labels)

        return Dataset(self.name, scaled(self.train), scaled(self.test), self.classes)


def stratified_split(
    images: npt.NDArray[np.float32], labels: npt.NDArray[Any], *, test_share: float, rng: np.random.Generator
) -> tuple[Split, Split]:
    """Split at random into train and test, with the same share of every class in both.

    Args:
        images: Shape (count, ...).
        labels: Integers, shape (count,).
        test_share: Share of each class that goes to the test split, between 0 and 1; rounded, but at least one image
            of a class and not all of them.
        rng: Chooses.
    Returns:
        The train split and the test split, each in the order of ``images``.
    Raises:
        DataError: if the share is not between 0 and 1, or a class has a single image.

    Example:
        >>> labels = np.array([0] * 8 + [1] * 4)
        >>> images = np.zeros([12, 2], "float32")
        >>> train, test = af.data.stratified_split(images, labels, test_share=0.25, rng=np.random.default_rng(0))
        >>> np.bincount(train.labels), np.bincount(test.labels)
        (array([6, 3]), array([2, 1]))
    """
    test_share = real("test_share", test_share, above=0, below=1, error=DataError)
    in_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            raise DataError(f"expected at least two images of each class to split them, class {label} has one")
        count = min(max(round(test_share * len(rows)), 1), len(rows) - 1)
        in_test[rng.choice(rows, count, replace=False)] = True
    labels = labels.astype(np.int64)
    return Split(images[~in_test], labels[~in_test]), Split(images[in_test], labels[in_test])
