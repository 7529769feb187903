"""CIFAR-10, in each of the forms it is handed around in. Nothing here downloads anything."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from actorflow.data.dataset import Dataset, Split
from actorflow.data.images import read_image
from actorflow.errors import DataError

#: In the order of the labels, which is that of the alphabet, too.
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_SIDE, _CHANNELS = 32, 3
_PIXELS = _SIDE * _SIDE * _CHANNELS
_TRAIN, _TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})

_Bytes = npt.NDArray[np.uint8]
#: Images (count, 32, 32, 3) and labels (count,), as bytes.
_Part = tuple[_Bytes, _Bytes]


def cifar10(directory: str | Path) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 color images of 32x32 pixels from 0 to 1, shape (count, 32, 32, 3).

    Args:
        directory: What one of its archives unpacks to: the binary batches (``data_batch_1.bin``, ...), the Python
            batches (``data_batch_1``, ...), or a folder of images per class (``train/airplane/0000.png``, ...; JPEG
            or PNG). The batches may also be in their usual folder in it. Any number of images is taken.
    Raises:
        DataError: if the directory has none of these forms whole, or a file is malformed; the message says which.
        MissingExtraError: for folders of images, if Pillow is not installed (extra ``images``).
    Source: Krizhevsky, Learning multiple layers of features from tiny images, 2009.

    Example:
        >>> from pathlib import Path
        >>> def record(label):  # of the binary form: a label, then the channels of 32x32 pixels
        ...     return bytes([label]) + bytes(3 * 32 * 32)
        >>> for name in *(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin":
        ...     _ = Path(name).write_bytes(record(3) + record(8))
        >>> data = af.data.cifar10(".")
        >>> data
        <Dataset 'cifar-10': 10 to train, 2 to test, float32[32, 32, 3], 10 classes>
        >>> data.train.images.shape, data.test.labels, data.classes[3]
        ((10, 32, 32, 3), array([3, 8]), 'cat')
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise DataError(f"{folder}: expected the directory of the CIFAR-10 files, but it is not a directory")
    if (folder / "train").is_dir() or (folder / "test").is_dir():
        return _dataset(_read_images(folder / "train"), _read_images(folder / "test"))
    binary, python = (folder / name for name in ("cifar-10-batches-bin", "cifar-10-batches-py"))
    for place, suffix, read in (
        (folder, ".bin", _read_binary),
        (folder, "", _read_python),
        (binary, ".bin", _read_binary),
        (python, "", _read_python),
    ):
        if any((place / f"{name}{suffix}").is_file() for name in _TRAIN + _TEST):
            return _dataset(_read_batches(place, _TRAIN, suffix, read), _read_batches(place, _TEST, suffix, read))
    present = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    raise DataError(
        f"{folder}: expected CIFAR-10 as binary batches (data_batch_1.bin, ...), as Python batches (data_batch_1, ...) "
        f"or as a folder of images per class (train/airplane/*.png, ...); the directory has: {present}"
    )


def _dataset(train: _Part, test: _Part) -> Dataset:
    return Dataset("cifar-10", _split(*train), _split(*test), CIFAR10_CLASSES)


def _split(images: _Bytes, labels: _Bytes) -> Split:
    unit = images.astype(np.float32)
    unit /= 255
    return Split(unit, labels.astype(np.int64))


def _read_batches(folder: Path, names: Sequence[str], suffix: str, read: Callable[[Path], _Part]) -> _Part:
    files = [folder / f"{name}{suffix}" for name in names]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise DataError(f"{folder}: expected all batches of CIFAR-10; missing: {', '.join(missing)}")
    parts = [read(path) for path in files]
    for path, (images, labels) in zip(files, parts, strict=True):
        if not len(labels):
            raise DataError(f"{path}: expected at least one image, got none")
        if labels.max() >= len(CIFAR10_CLASSES):
            raise DataError(f"{path}: expected labels from 0 to {len(CIFAR10_CLASSES) - 1}, got {labels.max()}")
        assert len(images) == len(labels)
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _read_binary(path: Path) -> _Part:
    """Records of one byte for the label and 3,072 for the image."""
    content, record = _content(path), 1 + _PIXELS
    if len(content) % record:
        raise DataError(
            f"{path}: expected records of {record} bytes, a label and an image each; got {len(content)} bytes, "
            f"{len(content) % record} more than {len(content) // record} records"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _pixels(records[:, 1:]), records[:, 0]


def _read_python(path: Path) -> _Part:
    """A pickled dictionary with ``data``, an image per row, and ``labels``."""
    batch = _unpickle(path)
    if not isinstance(batch, dict):
        raise DataError(f"{path}: expected a pickled dictionary, got {type(batch).__name__}")
    # The files are of Python 2, whose strings come as bytes.
    fields = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    for key in ("data", "labels"):
        if key not in fields:
            raise DataError(f"{path}: expected a dictionary with 'data' and 'labels', {key!r} is missing")
    data, labels = fields["data"], fields["labels"]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (_PIXELS,):
        shown = f"{data.dtype}{data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{path}: expected 'data' to be an array uint8(count, {_PIXELS}), got {shown}")
    if not isinstance(labels, list) or len(labels) != len(data):
        shown = f"{len(labels)} of them" if isinstance(labels, list) else type(labels).__name__
        raise DataError(f"{path}: expected 'labels' to be a list of {len(data)}, one per image; got {shown}")
    for label in labels:
        if not isinstance(label, int) or not 0 <= label < len(CIFAR10_CLASSES):
            raise DataError(f"{path}: expected labels from 0 to {len(CIFAR10_CLASSES) - 1}, got {label!r}")
    return _pixels(data), np.array(labels, np.uint8)


def _pixels(rows: _Bytes) -> _Bytes:
    """Rows of a red, a green and a blue plane as (count, 32, 32, 3)."""
    return rows.reshape(-1, _CHANNELS, _SIDE, _SIDE).transpose(0, 2, 3, 1)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes text as {encoding}, which no CIFAR-10 batch needs")
    return text.encode("latin-1")


class _ArrayUnpickler(pickle.Unpickler):
    """Makes NumPy arrays and plain values, and calls nothing else that a file may name."""

    _ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("_codecs", "encode"): _encode,  # how Python 3 writes bytes in the protocol of Python 2
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        **{
            (f"numpy.{core}.{module}", name): np.empty(1).__reduce_ex__(protocol)[0]
            for core in ("core", "_core")
            for module, name, protocol in (("multiarray", "_reconstruct", 2), ("numeric", "_frombuffer", 5))
        },
    }

    def find_class(self, module: str, name: str) -> Any:
        """The object that a name in the file stands for."""
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no CIFAR-10 batch needs") from None


def _unpickle(path: Path) -> Any:
    content = _content(path)
    try:
        return _ArrayUnpickler(BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a malformed pickle may raise anything
        raise DataError(
            f"{path}: expected a pickled batch of CIFAR-10, got {len(content)} bytes that do not load: {error}"
        ) from error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a batch of CIFAR-10, but it cannot be read: {error.strerror}") from error


def _read_images(folder: Path) -> _Part:
    """Folders named after the classes, with an image per file."""
    missing = [name for name in CIFAR10_CLASSES if not (folder / name).is_dir()]
    if missing:
        raise DataError(f"{folder}: expected a folder of images per class; missing: {', '.join(missing)}")
    files = [
        (label, path)
        for label, name in enumerate(CIFAR10_CLASSES)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in _SUFFIXES
    ]
    if not files:
        raise DataError(f"{folder}: expected images ({', '.join(sorted(_SUFFIXES))}) in the classes' folders, got none")
    images = np.empty((len(files), _SIDE, _SIDE, _CHANNELS), np.uint8)
    for image, (_, path) in zip(images, files, strict=True):
        decoded = read_image(path)
        if decoded.shape != image.shape:
            height, width, _ = decoded.shape
            raise DataError(f"{path}: expected an image of {_SIDE}x{_SIDE} pixels, got {width}x{height}")
        image[...] = decoded
    return images, np.array([label for label, _ in files], np.uint8)
