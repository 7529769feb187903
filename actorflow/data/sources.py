"""Data sets by name, and the IDX file form that MNIST and its relatives come in. Nothing here downloads anything."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.data.dataset import Dataset, Split, stratified_split
from actorflow.errors import DataError, require, whole

_GZIP_MAGIC = b"\x1f\x8b"
_DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype("u1"),
    0x09: np.dtype("i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}


def read_idx(path: str | Path, *, axes: int | None = None) -> npt.NDArray[Any]:
    """Read an IDX file, gzip-compressed or not; its content says which, not its name.

    Args:
        path: The file.
        axes: Number of axes that the array must have: 3 for grey images, 1 for labels. None takes any.
    Returns:
        The array, in the file's dtype and the machine's byte order; writable.
    Raises:
        DataError: if the file cannot be read, is not an IDX file, has other axes, or is shorter or longer than its
            header says. The message names the file, what was expected and what was found.
    Source: the form is described with the MNIST database (LeCun, Cortes, Burges).

    Example:
        >>> from pathlib import Path
        >>> header = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3])  # bytes, in 2 axes, of lengths 2 and 3
        >>> _ = Path("small.idx").write_bytes(header + bytes([1, 2, 3, 4, 5, 6]))
        >>> af.data.read_idx("small.idx", axes=2)
        array([[1, 2, 3],
               [4, 5, 6]], dtype=uint8)
    """
    path = Path(path)
    axes = None if axes is None else whole("axes", axes, 0, error=DataError)
    content = _content(path)
    if len(content) < 4:
        raise DataError(f"{path}: expected an IDX file, got only {len(content)} bytes")
    zeros, code, axis_count = struct.unpack_from(">HBB", content)
    dtype = _DTYPES.get(code)
    if zeros != 0 or dtype is None:
        raise DataError(
            f"{path}: expected an IDX file, which starts with 00 00 and a type code "
            f"({', '.join(f'{known:02x}' for known in _DTYPES)}); got {content[:4].hex(' ')}"
        )
    if axes is not None and axis_count != axes:
        raise DataError(f"{path}: expected an array of {axes} axes, got {axis_count}")
    start = 4 + 4 * axis_count
    if len(content) < start:
        raise DataError(f"{path}: expected a header of {start} bytes ({axis_count} axes), got {len(content)} bytes")
    shape = struct.unpack_from(f">{axis_count}I", content, 4)
    expected, actual = math.prod(shape) * dtype.itemsize, len(content) - start
    if expected != actual:
        raise DataError(
            f"{path}: {'truncated' if actual < expected else 'too long'}: expected {expected} bytes of data for shape "
            f"{shape} of {dtype.newbyteorder('=')}, got {actual}"
        )
    array: npt.NDArray[Any] = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected an IDX file, but it cannot be read: {error.strerror}") from error
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"{path}: expected a whole gzip file, got {len(content)} bytes that do not decompress: {error}"
        ) from error


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

    Example:
        >>> data = af.data.digits(seed=0)
        >>> data
        <Dataset 'digits': 1438 to train, 359 to test, float32[8, 8, 1], 10 classes>
        >>> data.train.images.shape, data.test.labels.shape
        ((1438, 8, 8, 1), (359,))
    """
    sklearn = require("sklearn.datasets", extra="demo", purpose="the digits data set")
    bunch = sklearn.load_digits()
    images = np.asarray(bunch.images / 16, dtype=np.float32)[..., np.newaxis]
    labels = np.asarray(bunch.target)
    seed = whole("seed", seed, 0, error=DataError)
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

    Example:
        >>> from pathlib import Path
        >>> def idx(*lengths):  # an IDX file of zeros
        ...     header = bytes([0, 0, 8, len(lengths)]) + b"".join(length.to_bytes(4) for length in lengths)
        ...     return header + bytes(int(np.prod(lengths)))
        >>> for name in af.data.FASHION_MNIST_FILES:
        ...     _ = Path(name).write_bytes(idx(2, 28, 28) if "images" in name else idx(2))
        >>> data = af.data.fashion_mnist(".")
        >>> data.train.images.shape, data.classes[0]
        ((2, 28, 28, 1), 'T-shirt/top')
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise DataError(f"{folder}: expected the directory of the Fashion-MNIST files, but it is not a directory")
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
