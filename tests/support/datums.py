"""Writes Caffe's messages and databases, after the description of the format and apart from the reader."""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = ["blob_proto", "database", "datum", "field"]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: float | bytes) -> bytes:
    """A field: an integer, a float of 4 bytes, or bytes."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def datum(image: Any, label: int, *, bgr: bool = True, packed: bool = False, encoded: bytes | None = None) -> bytes:
    """A `Datum` of an image (height, width, channels), red first."""
    image = np.asarray(image)
    height, width, channels = image.shape
    planes = image.transpose(2, 0, 1)
    if bgr and channels == 3:
        planes = planes[::-1]
    message = field(1, channels) + field(2, height) + field(3, width) + field(5, label)
    if encoded is not None:
        return message + field(4, encoded) + field(7, 1)
    if image.dtype == np.uint8:
        return message + field(4, planes.tobytes())
    if packed:
        return message + field(6, planes.astype("<f4").tobytes())
    return message + b"".join(field(6, float(value)) for value in planes.reshape(-1)) + field(7, 0)


def blob_proto(mean: Any, *, kind: str = "packed", bgr: bool = True) -> bytes:
    """A `BlobProto` of a mean image (height, width, channels), in one of the forms that there were."""
    planes = np.asarray(mean).transpose(2, 0, 1)
    if bgr and len(planes) == 3:
        planes = planes[::-1]
    channels, height, width = planes.shape
    sizes = field(1, 1) + field(2, channels) + field(3, height) + field(4, width)
    if kind == "packed":
        return sizes + field(5, planes.astype("<f4").tobytes())
    if kind == "numbers":
        return sizes + b"".join(field(5, float(value)) for value in planes.reshape(-1))
    shape = field(7, field(1, b"".join(map(varint, (1, channels, height, width)))))
    if kind == "shape":
        return field(5, planes.astype("<f4").tobytes()) + shape
    dims = field(7, b"".join(field(1, each) for each in (channels, height, width)))
    return dims + field(8, planes.astype("<f8").tobytes())


def database(path: Path, records: Iterable[bytes], *, subdir: bool = True) -> Path:
    """An LMDB database of records, with the keys that Caffe's tools give."""
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(path), map_size=1 << 26, subdir=subdir) as environment, environment.begin(write=True) as writing:
        for number, record in enumerate(records):
            writing.put(b"%08d_%d.jpg" % (number, number * 7919 % 100), record)
    return path
