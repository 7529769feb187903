"""Data sets by name. Nothing here downloads anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from actorflow.data.dataset import Dataset, Split, stratified_split
from actorflow.data.idx import read_idx
from actorflow.errors import DataError, require

#: What a Fashion-MNIST (or MNIST) directory holds, each as it is or with ``.gz``.
FASHION_MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def digits(*, seed: int = 0, test_share: float = 0.2) -> Dataset:
    """Scikit-learn's handwritten digits: 1,797 images of 8x8 pixels from 0 to 1, shape (count, 8, 8, 1).

    Args:
        seed: Chooses the test images; the set has no split of its own.
        test_share: Share of each class that is used for testing.
    Raises:
        MissingExtraError: if scikit-learn is not installed (extra ``demo``).
    Source: UCI "Optical Recognition of Handwritten Digits", shipped inside scikit-learn.
    """
    sklearn = require("sklearn.datasets", extra="demo", purpose="the digits data set")
    bunch = sklearn.load_digits()
    images = np.asarray(bunch.images / 16, dtype=np.float32)[..., np.newaxis]
    labels = np.asarray(bunch.target)
    train, test = stratified_split(images, labels, test_share=test_share, rng=np.random.default_rng(seed))
    return Dataset("digits", train, test, tuple(str(digit) for digit in range(10)))


def fashion_mnist(directory: str | Path) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 images of 28x28 pixels from 0 to 1, shape (count, 28, 28, 1).

    Args:
        directory: Where its four IDX files (`FASHION_MNIST_FILES`) are, gzip-compressed or not. MNIST itself, which
            has the same form, is read just as well.
    Raises:
        DataError: if a file is missing or malformed; the message names every missing file.
    Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST", arXiv 1708.07747.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise DataError(f"{folder}: expected the directory of the Fashion-MNIST files, but it is no directory")
    found = [_find(folder, name) for name in FASHION_MNIST_FILES]
    missing = [name for name, path in zip(FASHION_MNIST_FILES, found, strict=True) if path is None]
    if missing:
        present = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{folder}: expected the four IDX files of Fashion-MNIST, each with or without .gz; "
            f"missing: {', '.join(missing)}; the directory has: {present}"
        )
    train_images, train_labels, test_images, test_labels = (path for path in found if path is not None)
    return Dataset(
        "fashion-mnist",
        _split(train_images, train_labels),
        _split(test_images, test_labels),
        _FASHION_CLASSES,
    )


def _find(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def _split(images_path: Path, labels_path: Path) -> Split:
    images, labels = read_idx(images_path, axes=3), read_idx(labels_path, axes=1)
    for path, array in ((images_path, images), (labels_path, labels)):
        if array.dtype != np.uint8:
            raise DataError(f"{path}: expected unsigned bytes, got {array.dtype}")
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: expected {len(images)} labels, one per image of {images_path.name}, got {len(labels)}"
        )
    return Split(_unit(images), labels.astype(np.int64))


def _unit(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    unit = images[..., np.newaxis].astype(np.float32)
    unit /= 255
    return unit
