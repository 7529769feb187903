"""The IDX file form of MNIST and its relatives: a small header, then one dense array."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DataError

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
        DataError: if the file cannot be read, is no IDX file, has other axes, or is shorter or longer than its header
            says. The message names the file, what was expected and what was found.
    Source: the form is described with the MNIST database (LeCun, Cortes, Burges).
    """
    path = Path(path)
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
