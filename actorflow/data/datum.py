"""Caffe's messages of labelled images (``Datum``) and of mean images (``BlobProto``), read without Caffe.

Both are protocol buffers. A message is a row of fields, each a tag (the field's number and the kind of its value) and a
value, so a reader of some lines does for the few fields that there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.data.images import decoded
from actorflow.errors import DataError

Buffer = bytes | memoryview
_Field = tuple[int, Any]

#: Kinds of values on the wire.
_VARINT, _BITS64, _BYTES, _BITS32 = 0, 1, 2, 5
#: Numbers of a Datum's fields, and the kinds of those that are not repeated; the same of a BlobProto.
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOAT_DATA, _ENCODED = 1, 2, 3, 4, 5, 6, 7
_DATUM = {_CHANNELS: int, _HEIGHT: int, _WIDTH: int, _DATA: memoryview, _LABEL: int, _ENCODED: int}
_BLOB_SIZES, _BLOB_DATA, _BLOB_SHAPE, _BLOB_DOUBLE_DATA, _DIM = (1, 2, 3, 4), 5, 7, 8, 1
_BLOB = {**dict.fromkeys(_BLOB_SIZES, int), _BLOB_SHAPE: memoryview}
#: A tag of one byte and four bytes of a number: how repeated numbers that are not packed stand in a row.
_TAGGED = np.dtype([("tag", "u1"), ("value", "<f4")])


class Datum(NamedTuple):
    """A labelled image.

    Attributes:
        image: uint8, or float32 where floating numbers were stored; shape (height, width, channels).
        label: Its class.

    Example:
        >>> message = bytes([8, 1, 16, 1, 24, 2, 34, 2, 10, 20, 40, 7])  # channels, height, width, data, label
        >>> datum = af.data.read_datum(message)
        >>> datum.image.shape, datum.image.ravel(), datum.label
        ((1, 2, 1), array([10, 20], dtype=uint8), 7)
    """

    image: npt.NDArray[Any]
    label: int


def read_datum(record: Buffer, *, bgr: bool = True) -> Datum:
    """Read a ``Datum``, as Caffe and Purine2 stored them.

    Args:
        record: The message. Nothing of it is kept.
        bgr: Whether three channels are blue, green and red, as OpenCV has them and so Caffe's ``convert_imageset``.
            They become red, green and blue. An encoded image says its own.
    Raises:
        DataError: if it is not such a message, has no image, or has an image of another size than it says.
        MissingExtraError: if the image is encoded (such as JPEG) and Pillow is not installed (extra ``images``).

    Example:
        >>> message = bytes([8, 1, 16, 1, 24, 2, 34, 2, 10, 20, 40, 7])  # channels, height, width, data, label
        >>> datum = af.data.read_datum(message)
        >>> datum.image.shape, datum.label
        ((1, 2, 1), 7)
    """
    known, floats = _read(record, "Datum", _DATUM, _FLOAT_DATA)
    data, label = known.get(_DATA, b""), known.get(_LABEL, 0)
    shape = tuple(known.get(number, 0) for number in (_CHANNELS, _HEIGHT, _WIDTH))
    if known.get(_ENCODED, 0):
        return Datum(decoded(BytesIO(bytes(data)), "Datum", None), label)
    pixels = np.frombuffer(data, np.uint8) if len(data) else floats.astype(np.float32)
    if not pixels.size or min(shape) < 1 or pixels.size != math.prod(shape):
        raise DataError(f"Datum: expected channels x height x width numbers, got {pixels.size} for {shape}")
    return Datum(_last(pixels.reshape(shape), bgr), label)


def label_of(record: Buffer) -> int:
    """The label of a ``Datum`` alone: nothing is decoded or copied; raises DataError if it is not such a message."""
    label: int = _read(record, "Datum", _DATUM, _FLOAT_DATA)[0].get(_LABEL, 0)
    return label


def read_mean(path: str | Path, *, bgr: bool = True) -> npt.NDArray[np.float32]:
    """Read a mean image, a ``BlobProto`` (``mean.binaryproto``); float32, shape (height, width, channels).

    Args:
        path: The file.
        bgr: As for `read_datum`.
    Raises:
        DataError: if the file cannot be read or is not such a message.

    Example:
        >>> from pathlib import Path
        >>> numbers = np.array([1.5, 2.5], "float32").tobytes()
        >>> header = bytes([8, 1, 16, 1, 24, 1, 32, 2, 42, len(numbers)])  # number, channels, height, width, data
        >>> _ = Path("mean.binaryproto").write_bytes(header + numbers)
        >>> af.data.read_mean("mean.binaryproto").ravel()
        array([1.5, 2.5], dtype=float32)
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a mean image, but {error.strerror}") from error
    what = f"{path}: BlobProto"
    known, numbers = _read(content, what, _BLOB, _BLOB_DATA, _BLOB_DOUBLE_DATA)
    shape = [known.get(number, 0) for number in _BLOB_SIZES]
    if _BLOB_SHAPE in known:
        with _checked(what):
            shape = _dimensions(known[_BLOB_SHAPE])
    while len(shape) > 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 3 or min(shape) < 1 or math.prod(shape) != numbers.size:
        raise DataError(f"{path}: expected a mean of channels x height x width numbers, got {numbers.size} for {shape}")
    return _last(numbers.astype(np.float32).reshape(shape), bgr)


def _last(image: npt.NDArray[Any], bgr: bool) -> npt.NDArray[Any]:
    """An image of its own with its channels last, red first."""
    return np.array((image[::-1] if bgr and len(image) == 3 else image).transpose(1, 2, 0), order="C")


def _read(
    message: Buffer, what: str, kinds: Mapping[int, type], *repeated: int
) -> tuple[dict[int, Any], npt.NDArray[Any]]:
    known: dict[int, Any] = {}
    parts: list[npt.NDArray[Any]] = []
    with _checked(what):
        for number, value in _fields(memoryview(message)):
            if number in repeated:
                wide = "<f8" if number == _BLOB_DOUBLE_DATA else "<f4"
                parts.append(value if isinstance(value, np.ndarray) else np.frombuffer(value, wide))
            elif number in kinds:
                if not isinstance(value, kinds[number]):
                    raise ValueError(f"field {number} is a {type(value).__name__}")
                known[number] = value
    return known, np.concatenate(parts) if parts else np.empty(0, np.float32)


@contextmanager
def _checked(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise DataError(f"{what}: expected a protocol buffer of this kind, but {error}") from None


def _dimensions(message: memoryview) -> list[int]:
    found: list[int] = []
    for number, value in _fields(message):
        if number == _DIM:
            if isinstance(value, int):
                found.append(value)
                continue
            if not isinstance(value, memoryview):
                raise ValueError(f"field {number} of its shape is a {type(value).__name__}")
            at = 0
            while at < len(value):
                size, at = _varint(value, at)
                found.append(size)
    return found


def _fields(message: memoryview) -> Iterator[_Field]:
    """Number and value of each field: an integer, bytes, or numbers in a row; raises ValueError if it is cut off."""
    at = 0
    while at < len(message):
        tag, start = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError(f"there is no field at byte {at}")
        if kind == _VARINT:
            value, at = _varint(message, start)
            yield number, value
        elif kind == _BYTES:
            length, start = _varint(message, start)
            at = _end(message, start, length)
            yield number, message[start:at]
        elif kind == _BITS32 and start == at + 1:
            row = np.frombuffer(message[at : len(message) - (len(message) - at) % _TAGGED.itemsize], _TAGGED)
            others = row["tag"] != tag
            count = int(others.argmax()) if others.any() else len(row)
            at = _end(message, at, max(count, 1) * _TAGGED.itemsize)
            yield number, row["value"][:count]
        elif kind in (_BITS32, _BITS64):
            at = _end(message, start, 4 if kind == _BITS32 else 8)
            yield number, np.frombuffer(message[start:at], "<f4" if kind == _BITS32 else "<f8")
        else:
            raise ValueError(f"a field at byte {at} is of kind {kind}, which there is not")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A signed integer of 64 bits, seven of them in each byte, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError(f"an integer at byte {at} is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value, at


def _end(message: memoryview, start: int, length: int) -> int:
    if not 0 <= length <= len(message) - start:
        raise ValueError(f"{length} bytes at byte {start} are cut off after {len(message) - start}")
    return start + length
