"""The safetensors format, written and read with checksums.

A file is the length of the header (8 bytes, little-endian), the header (JSON: type, shape and place of each tensor, and
a table of texts, ``__metadata__``), and the tensors' bytes without gaps. Checksums are kept in that table, where other
readers leave them alone: one of each tensor, and one of the header itself.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import CheckpointError

__all__ = ["DamagedError", "Header", "Tensor", "dtype_code", "read_header", "read_tensors", "write"]

_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
#: What the format's own readers accept.
_LONGEST_HEADER = 100_000_000
_OWN_CRC = '"header_crc32":"{:08x}"'
_CHUNK = 1 << 20

Array = npt.NDArray[Any]


class DamagedError(CheckpointError):
    """A file is not what was written: cut off, changed, or no checkpoint at all."""


class Tensor(NamedTuple):
    """One tensor of a file.

    Attributes:
        dtype: Code of the format: "F32", "BF16", ...
        shape: Length of each axis.
        start: First byte, counted from the end of the header.
        end: Byte after the last one.
        crc32: Checksum; None in files of others.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    crc32: int | None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Header(NamedTuple):
    """What a file contains.

    Attributes:
        tensors: By name, in the order of their bytes.
        metadata: Texts by name, without the checksums.
        length: Bytes before the tensors'.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    length: int


def dtype_code(dtype: np.dtype[Any]) -> str | None:
    """The format's code of a dtype, None if it has none."""
    return _CODES.get(dtype.name)


def write(file: BinaryIO, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a file.

    Args:
        file: Where to.
        arrays: By name; of dtypes that have a `dtype_code`.
        metadata: Texts by name.
    """
    # Wide elements first, so that each tensor lies on a multiple of its elements' size.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    entries: dict[str, Any] = {}
    checksums, offset = {}, 0
    for name, array in ordered:
        entries[name] = {
            "dtype": _CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        checksums[name] = zlib.crc32(_bytes_of(array))
    table = {**metadata, "crc32": json.dumps(checksums), "header_crc32": "0" * 8}
    text = json.dumps({"__metadata__": table, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    crc = _OWN_CRC.format(zlib.crc32(text)).encode()
    text = text.replace(_OWN_CRC.format(0).encode(), crc, 1)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for _, array in ordered:
        file.write(_bytes_of(array))


def read_header(file: BufferedReader, what: str) -> Header:
    """Read and check everything before the tensors' bytes, and that the file is as long as it says.

    Args:
        file: At its start.
        what: Name of the file, for messages.
    Raises:
        DamagedError: saying what is wrong.
    """
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        raise DamagedError(f"{what}: expected at least 8 bytes, got {size}: the file is cut off or no checkpoint")
    length = int.from_bytes(file.read(8), "little")
    if length > min(_LONGEST_HEADER, size - 8):
        raise DamagedError(
            f"{what}: the header should have {length:,} bytes, the file has {size - 8:,} after its first 8: "
            "it is cut off, damaged or no checkpoint"
        )
    text = file.read(length)
    try:
        entries = json.loads(text)
        table = entries.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in table.values()):
            raise ValueError("metadata must be texts")
        checksums = json.loads(table.pop("crc32")) if "crc32" in table else {}
        tensors = {
            name: Tensor(entry["dtype"], tuple(entry["shape"]), start, end, checksums.get(name))
            for name, entry in entries.items()
            for start, end in [entry["data_offsets"]]
        }
        _check_header(text, table)
        data = _check_tensors(tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{what}: the header is damaged: {type(error).__name__}: {error}") from error
    if size != 8 + length + data:
        raise DamagedError(
            f"{what}: expected {8 + length + data:,} bytes, got {size:,}: the file is cut off or damaged"
        )
    ordered = dict(sorted(tensors.items(), key=lambda item: item[1].start))
    return Header(ordered, table, 8 + length)


def read_tensors(
    file: BufferedReader, header: Header, wanted: Mapping[str, np.dtype[Any]], what: str
) -> Iterator[tuple[str, Array]]:
    """Read the wanted tensors, and check all.

    Args:
        file: At the end of the header.
        header: As read.
        wanted: Dtypes of the tensors that are given, by name.
        what: Name of the file, for messages.
    Raises:
        DamagedError: naming the tensor.
    """
    for name, tensor in header.tensors.items():
        crc = 0
        if name in wanted:
            array = np.empty(tensor.shape, wanted[name])
            buffer = _bytes_of(array)
            got = file.readinto(buffer)
            crc = zlib.crc32(buffer[:got])
        else:
            got = 0
            while got < tensor.end - tensor.start:
                part = file.read(min(_CHUNK, tensor.end - tensor.start - got))
                if not part:
                    break
                got += len(part)
                crc = zlib.crc32(part, crc)
        if got != tensor.end - tensor.start:
            raise DamagedError(f"{what}: the file ends within {name!r}: it is cut off")
        if tensor.crc32 is not None and crc != tensor.crc32:
            raise DamagedError(f"{what}: {name!r} is damaged: checksum {crc:08x}, expected {tensor.crc32:08x}")
        if name in wanted:
            yield name, array


def _bytes_of(array: Array) -> memoryview:
    # By way of uint8: a memoryview knows neither bfloat16 nor, once empty, any cast.
    flat: npt.NDArray[np.uint8] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.data


def _check_header(text: bytes, table: dict[str, str]) -> None:
    """Compare the header with its own checksum, and take that out; files of others have none."""
    own = table.pop("header_crc32", None)
    if own is None:
        if "actorflow" in table:
            raise ValueError("its checksum is missing")
        return
    crc = zlib.crc32(text.replace(f'"header_crc32":"{own}"'.encode(), _OWN_CRC.format(0).encode(), 1))
    if f"{crc:08x}" != own:
        raise ValueError(f"checksum {crc:08x}, expected {own}")


def _check_tensors(tensors: Mapping[str, Tensor]) -> int:
    """Check that tensors of known types follow each other without gaps; returns the end of the last."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        numbers = (tensor.start, tensor.end, *tensor.shape)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"{name!r} has sizes that are no sizes")
        if tensor.dtype not in _SIZES:
            raise ValueError(f"{name!r} is of unknown type {tensor.dtype!r}")
        size = math.prod(tensor.shape) * _SIZES[tensor.dtype]
        if tensor.start != end or tensor.end - tensor.start != size:
            raise ValueError(f"{name!r} {tensor} should be the {size:,} bytes from {end:,} on, not {tensor[2:4]}")
        end = tensor.end
    return end
