import os
import pickle
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorflow.data import CIFAR10_CLASSES, Dataset, cifar10
from actorflow.errors import DataError, MissingExtraError

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
Part = tuple[np.ndarray, np.ndarray]


def parts(count: int = 4) -> dict[str, Part]:
    """Random images (count, 32, 32, 3) and labels for each batch."""
    rng = np.random.default_rng(0)
    return {
        name: (rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, 10, count, np.uint8))
        for name in BATCHES
    }


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), 3072)


def write_binary(folder: Path, content: dict[str, Part]) -> None:
    folder.mkdir(exist_ok=True)
    for name, (images, labels) in content.items():
        records = [bytes([label]) + row.tobytes() for label, row in zip(labels, planes(images), strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(records))


def write_python(folder: Path, content: dict[str, Part], dump: Callable[[Any], bytes] = pickle.dumps) -> None:
    folder.mkdir(exist_ok=True)
    for name, (images, labels) in content.items():
        (folder / name).write_bytes(dump({"data": planes(images), "labels": labels.tolist(), "batch_label": name}))


def write_images(folder: Path, count: int = 2, suffix: str = ".png") -> None:
    pillow = pytest.importorskip("PIL.Image")
    for part in ("train", "test"):
        for label, name in enumerate(CIFAR10_CLASSES):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                image = np.full((32, 32, 3), 10 * label + number, np.uint8)
                pillow.fromarray(image).save(folder / part / name / f"{number:04}{suffix}")


def python_2(batch: dict[str, Any]) -> bytes:
    """The batch as Python 2 pickled it, by protocol 2: strings without an encoding, an array of the old module."""

    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(text)) + text

    data = batch["data"]
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + string(b"b") + b"tR"
    shape = b"(" + b"".join(b"J" + struct.pack("<i", length) for length in data.shape) + b"t"
    dtype = b"cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR"
    dtype += b"(K\x03" + string(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array += b"(K\x01" + shape + dtype + b"\x89" + string(data.tobytes()) + b"tb"
    labels = b"(" + b"".join(b"K" + bytes([label]) for label in batch["labels"]) + b"l"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + labels + b"u."


def check(data: Dataset, content: dict[str, Part]) -> None:
    for split, names in ((data.train, BATCHES[:5]), (data.test, BATCHES[5:])):
        images = np.concatenate([content[name][0] for name in names])
        assert split.images.dtype == np.float32
        np.testing.assert_array_equal(np.rint(split.images * 255), images)
        assert split.images.min() >= 0
        assert split.images.max() <= 1
        assert split.labels.dtype == np.int64
        np.testing.assert_array_equal(split.labels, np.concatenate([content[name][1] for name in names]))
    assert data.classes == CIFAR10_CLASSES


@pytest.mark.together(
    ("write", "inside"),
    [
        *[(write_binary, inside) for inside in ("", "cifar-10-batches-bin")],
        *[(write_python, inside) for inside in ("", "cifar-10-batches-py")],
        *[
            (partial(write_python, dump=partial(pickle.dumps, protocol=protocol)), "")
            for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
        ],
        (partial(write_python, dump=python_2), ""),
    ],
)
def test_batches(tmp_path: Path, write: Any, inside: str) -> None:
    content = parts()
    write(tmp_path / inside, content)
    check(cifar10(tmp_path if inside else str(tmp_path)), content)


def test_folders_of_images(tmp_path: Path) -> None:
    write_images(tmp_path)
    (tmp_path / "train" / "airplane" / "notes.txt").write_text("no image")
    data = cifar10(tmp_path)
    assert data.train.images.shape == data.test.images.shape == (20, 32, 32, 3)
    np.testing.assert_array_equal(data.train.labels, np.repeat(np.arange(10), 2))
    np.testing.assert_allclose(data.test.images[:, 5, 5, 1] * 255, np.add.outer(np.arange(10) * 10, [0, 1]).ravel())


def test_folders_of_jpeg_images(tmp_path: Path) -> None:
    write_images(tmp_path, count=1, suffix=".JPG")
    assert len(cifar10(tmp_path).train) == 10


def test_images_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "test"):
        for name in CIFAR10_CLASSES:
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "0.png").touch()
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"image files needs 'PIL': pip install 'actorflow\[images\]'"):
        cifar10(tmp_path)


def test_nothing_that_is_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: expected the directory of the CIFAR-10 files"):
        cifar10(tmp_path / "absent")
    with pytest.raises(DataError, match=r"binary batches .*, as Python batches .* folder of images .* has: nothing"):
        cifar10(tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").touch()
    with pytest.raises(DataError, match=r"the directory has: cifar-10-python\.tar\.gz"):
        cifar10(tmp_path)


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_missing_batches_are_named(tmp_path: Path, write: Callable[[Path, dict[str, Part]], None]) -> None:
    content = parts()
    del content["data_batch_2"], content["data_batch_5"]
    write(tmp_path, content)
    suffix = ".bin" if write is write_binary else ""
    with pytest.raises(DataError, match=f"(?m)missing: data_batch_2{suffix}, data_batch_5{suffix}$"):
        cifar10(tmp_path)


def test_missing_classes_are_named(tmp_path: Path) -> None:
    for name in CIFAR10_CLASSES[2:]:
        (tmp_path / "train" / name).mkdir(parents=True)
    with pytest.raises(DataError, match=r"train: expected a folder of images per class; missing: airplane, automobile"):
        cifar10(tmp_path)
    for name in CIFAR10_CLASSES:
        (tmp_path / "train" / name).mkdir(parents=True, exist_ok=True)
    with pytest.raises(DataError, match=r"train: expected images \(\.jpeg, \.jpg, \.png\).*, got none"):
        cifar10(tmp_path)


RECORD = bytes(3073)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected at least one image, got none"),
        (RECORD[:-1], "expected records of 3073 bytes.*; got 3072 bytes, 3072 more than 0 records"),
        (RECORD * 2 + b"\x00", "got 6147 bytes, 1 more than 2 records"),
        (RECORD + b"\x0a" + RECORD[1:], "expected labels from 0 to 9, got 10"),
    ],
)
def test_malformed_binary_batch(tmp_path: Path, content: bytes, message: str) -> None:
    write_binary(tmp_path, parts())
    (tmp_path / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        cifar10(tmp_path)
    assert str(tmp_path / "data_batch_3.bin") in str(caught.value)


IMAGES = np.zeros((2, 3072), np.uint8)


class Runs:
    """Function that a hostile file would have called."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("hostile",)


@pytest.mark.together(
    ("batch", "message"),
    [
        ([1, 2], "expected a pickled dictionary, got list"),
        ({"data": IMAGES}, "expected a dictionary with 'data' and 'labels', 'labels' is missing"),
        ({b"labels": [0, 1]}, "'data' is missing"),
        ({"data": [1, 2], "labels": [0, 1]}, r"'data' to be an array uint8\(count, 3072\), got list"),
        ({"data": IMAGES[:, 1:], "labels": [0, 1]}, r"got uint8\(2, 3071\)"),
        ({"data": IMAGES.astype(float), "labels": [0, 1]}, r"got float64\(2, 3072\)"),
        ({"data": IMAGES[0], "labels": [0, 1]}, r"got uint8\(3072,\)"),
        ({"data": IMAGES, "labels": [0]}, "'labels' to be a list of 2, one per image; got 1 of them"),
        ({"data": IMAGES, "labels": "ab"}, "one per image; got str"),
        ({"data": IMAGES, "labels": [0, 10]}, "expected labels from 0 to 9, got 10"),
        ({"data": IMAGES, "labels": [0, -1]}, "expected labels from 0 to 9, got -1"),
        ({"data": IMAGES, "labels": [0, "1"]}, "expected labels from 0 to 9, got '1'"),
        ({"data": IMAGES[:0], "labels": []}, "expected at least one image, got none"),
    ],
)
def test_malformed_python_batch(tmp_path: Path, batch: Any, message: str) -> None:
    write_python(tmp_path, parts())
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=message) as caught:
        cifar10(tmp_path)
    assert str(tmp_path / "test_batch") in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps({"data": IMAGES, "labels": [0, 1]})[:-9]])
def test_broken_pickle(tmp_path: Path, content: bytes) -> None:
    write_python(tmp_path, parts())
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_1: expected a pickled batch .* got {len(content)} bytes that do"):
        cifar10(tmp_path)


def test_pickle_calls_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path, parts())
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(DataError, match=r"it names (posix|nt)\.mkdir, which no CIFAR-10 batch needs"):
        cifar10(tmp_path)
    assert not (tmp_path / "hostile").exists()


def test_pickle_encodes_as_latin_1_alone(tmp_path: Path) -> None:
    write_python(tmp_path, parts())
    (tmp_path / "data_batch_1").write_bytes(b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8tR.")
    with pytest.raises(DataError, match="it encodes text as utf-8"):
        cifar10(tmp_path)


def test_malformed_images(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    write_images(tmp_path)
    path = tmp_path / "test" / "cat" / "0000.png"
    whole = path.read_bytes()
    pillow.fromarray(np.zeros((31, 32, 3), np.uint8)).save(path)
    with pytest.raises(DataError, match=r"0000\.png: expected an image of 32x32 pixels, got 32x31"):
        cifar10(tmp_path)
    for content in (b"", b"junk", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"0000\.png: expected an image, but it cannot be decoded"):
            cifar10(tmp_path)


def test_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_binary(tmp_path, parts())

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"data_batch_1\.bin: .* cannot be read: Permission denied"):
        cifar10(tmp_path)
