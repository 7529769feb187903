"""Data sets by name, and the forms of files that they come in. Nothing here downloads anything."""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import zlib
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from actorflow.data.dataset import Dataset, Split, stratified_split
from actorflow.data.images import read_image
from actorflow.errors import DataError, real, require, whole

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
            header says. The message names the file, and the forms expected and found.
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
    content = _unpacked(path)
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


def _unpacked(path: Path) -> bytes:
    content = _content(path, "an IDX file")
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"{path}: expected a whole gzip file, got {len(content)} bytes that do not decompress: {error}"
        ) from error


#: Files of a Fashion-MNIST (or MNIST) directory, each as it is or with ``.gz``.
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
    seed = whole("seed", seed, 0, error=DataError)
    test_share = real("test_share", test_share, above=0, below=1, error=DataError)
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
    folder = _folder(directory, "Fashion-MNIST")
    found = [_find(folder, name) for name in FASHION_MNIST_FILES]
    missing = [name for name, path in zip(FASHION_MNIST_FILES, found, strict=True) if path is None]
    if missing:
        raise DataError(
            f"{folder}: expected the four IDX files of Fashion-MNIST, each with or without .gz; "
            f"missing: {', '.join(missing)}; the directory has: {_names_in(folder)}"
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
    return _of_bytes(images[..., np.newaxis], labels)


#: In the order of the labels, which is that of the alphabet, too.
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_SIDE, _CHANNELS = 32, 3
_PIXELS = _SIDE * _SIDE * _CHANNELS
_TRAIN, _TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})
_BATCH = "a batch of CIFAR-10"

_Bytes = npt.NDArray[np.uint8]
_Part = tuple[_Bytes, _Bytes]  # images (count, 32, 32, 3) and labels (count,), as bytes


def cifar10(directory: str | Path) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 color images of 32x32 pixels from 0 to 1, shape (count, 32, 32, 3).

    Args:
        directory: Contents of one of its archives: the binary batches (``data_batch_1.bin``, ...), the Python
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
    folder = _folder(directory, "CIFAR-10")
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
    raise DataError(
        f"{folder}: expected CIFAR-10 as binary batches (data_batch_1.bin, ...), as Python batches (data_batch_1, ...) "
        f"or as a folder of images per class (train/airplane/*.png, ...); the directory has: {_names_in(folder)}"
    )


def _dataset(train: _Part, test: _Part) -> Dataset:
    return Dataset("cifar-10", _of_bytes(*train), _of_bytes(*test), CIFAR10_CLASSES)


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
    content, record = _content(path, _BATCH), 1 + _PIXELS
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
    content = _content(path, _BATCH)
    try:
        return _ArrayUnpickler(BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a malformed pickle may raise anything
        raise DataError(
            f"{path}: expected a pickled batch of CIFAR-10, got {len(content)} bytes that do not load: {error}"
        ) from error


def _read_images(folder: Path) -> _Part:
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


def _folder(directory: str | Path, what: str) -> Path:
    folder = Path(directory)
    if not folder.is_dir():
        raise DataError(f"{folder}: expected the directory of the {what} files, but it is not a directory")
    return folder


def _names_in(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"


def _content(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected {what}, but it cannot be read: {error.strerror}") from error


def _of_bytes(images: npt.NDArray[np.uint8], labels: npt.NDArray[Any]) -> Split:
    unit = images.astype(np.float32)
    unit /= 255
    return Split(unit, labels.astype(np.int64))
