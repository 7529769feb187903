import gzip
from pathlib import Path

import numpy as np
import pytest

from actorflow.data import FASHION_MNIST_FILES, digits, fashion_mnist
from actorflow.errors import DataError, MissingExtraError


def write_fashion_mnist(directory: Path, idx, *, train: int = 30, test: int = 20) -> None:
    rng = np.random.default_rng(0)
    for name, count in zip(FASHION_MNIST_FILES, (train, train, test, test), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        array = rng.integers(0, 10 if "labels" in name else 256, shape, dtype=np.uint8)
        (directory / f"{name}.gz").write_bytes(gzip.compress(idx(array), 1))


def test_digits() -> None:
    data = digits(seed=3)
    assert data.train.images.shape[1:] == data.test.images.shape[1:] == (8, 8, 1)
    assert len(data.train) + len(data.test) == 1797
    assert len(data.test) == pytest.approx(0.2 * 1797, abs=5)
    assert data.train.images.dtype == np.float32
    assert data.train.images.min() == 0
    assert data.train.images.max() == 1
    assert data.classes == tuple("0123456789")


def test_digits_split_depends_on_the_seed_alone() -> None:
    np.testing.assert_array_equal(digits(seed=1).test.images, digits(seed=1).test.images)
    assert not np.array_equal(digits(seed=1).test.images, digits(seed=2).test.images)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(
        MissingExtraError, match=r"the digits data set needs 'sklearn': pip install 'actorflow\[demo\]'"
    ):
        digits()


def test_fashion_mnist(tmp_path: Path, idx) -> None:
    write_fashion_mnist(tmp_path, idx)
    unpacked = tmp_path / "t10k-labels-idx1-ubyte"
    unpacked.write_bytes(gzip.decompress((tmp_path / "t10k-labels-idx1-ubyte.gz").read_bytes()))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    data = fashion_mnist(tmp_path)
    assert data.train.images.shape == (30, 28, 28, 1)
    assert data.test.images.shape == (20, 28, 28, 1)
    assert data.train.images.max() == 1
    assert data.test.labels.dtype == np.int64
    assert len(data.classes) == 10


def test_fashion_mnist_names_every_missing_file(tmp_path: Path, idx) -> None:
    write_fashion_mnist(tmp_path, idx)
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        DataError, match="missing: train-images-idx3-ubyte, t10k-labels-idx1-ubyte; the directory has: t"
    ):
        fashion_mnist(tmp_path)
    with pytest.raises(DataError, match="absent: expected the directory"):
        fashion_mnist(tmp_path / "absent")


def test_fashion_mnist_checks_that_files_fit_together(tmp_path: Path, idx) -> None:
    write_fashion_mnist(tmp_path, idx)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(idx(np.zeros(29, np.uint8)))
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz: expected 30 labels, one per image .*, got 29"):
        fashion_mnist(tmp_path)
    labels.write_bytes(idx(np.full(30, 10, np.uint8)))
    with pytest.raises(DataError, match="expected train labels from 0 to 9, got 10 to 10"):
        fashion_mnist(tmp_path)
    labels.write_bytes(idx(np.zeros(30, np.int32)))
    with pytest.raises(DataError, match="expected unsigned bytes, got int32"):
        fashion_mnist(tmp_path)
