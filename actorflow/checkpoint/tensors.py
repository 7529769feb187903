"""Named arrays in safetensors files, with checksums.

The package `safetensors` writes and reads the format. Here is what it leaves out: checksums, kept in the file's
metadata where other readers leave them alone, and which of NumPy's dtypes is which of the format's.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import CheckpointError, require

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
#: Names of the checksums in the metadata: of the tensors, and of the other metadata.
_CRCS, _OWN_CRC = "crc32", "metadata_crc32"

#: Bytes of a file's table of contents; the format allows no more.
_LONGEST_HEADER = 100_000_000

Array = npt.NDArray[Any]


class DamagedError(CheckpointError):
    """A file is not what was written: cut off, changed, or no checkpoint at all.

    Attributes:
        path: The file.
        problem: What is wrong with it.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class Tensor(NamedTuple):
    """One tensor of a file.

    Attributes:
        dtype: Code of the format: "F32", "BF16", ...
        shape: Length of each axis.
        data: Its bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytearray

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def array(self, dtype: np.dtype[Any]) -> Array:
        """Its values, without a copy; ``dtype`` is the one of its code."""
        return np.frombuffer(self.data, dtype).reshape(self.shape)


class Content(NamedTuple):
    """What is in a file.

    Attributes:
        tensors: By name.
        metadata: Texts by name, without the checksums.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


class Outline(NamedTuple):
    """What is in a file, without the values.

    Attributes:
        names: Of its tensors.
        metadata: Texts by name, without the checksums.
    """

    names: frozenset[str]
    metadata: dict[str, str]


def require_format() -> ModuleType:
    """The package ``safetensors``.

    Raises:
        MissingExtraError: if it is not installed.
    """
    return require("safetensors", extra="checkpoint", purpose="a checkpoint")


def dtype_code(dtype: np.dtype[Any]) -> str | None:
    """The format's code of a dtype, None if it has none."""
    return _CODES.get(dtype.name)


def write_file(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a file.

    Args:
        path: Where to.
        arrays: By name; of dtypes that have a `dtype_code`.
        metadata: Texts by name.
    Raises:
        OSError: if that fails.
        MissingExtraError: if safetensors is not installed.
    """
    error_type = require_format().SafetensorError
    save_file = require("safetensors.numpy", extra="checkpoint", purpose="a checkpoint").save_file
    # The package takes an array's memory as it lies there.
    dense = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    crcs = {
        # By way of uint8: a buffer of bfloat16 cannot be asked for.
        name: _crc_of(_CODES[array.dtype.name], array.shape, array.reshape(-1).view(np.uint8).data)
        for name, array in dense.items()
    }
    table = {**metadata, _CRCS: json.dumps(crcs), _OWN_CRC: _metadata_crc(metadata)}
    try:
        save_file(dense, path, table)
    except error_type as error:
        raise OSError(str(error)) from error


def read_file(path: Path) -> Content:
    """Read a file and check it; those that other programs wrote have no checksums.

    Raises:
        DamagedError: saying what is wrong.
        OSError: if the file cannot be read.
        MissingExtraError: if safetensors is not installed.
    """
    safetensors = require_format()
    content = path.read_bytes()
    try:
        found = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise DamagedError(path, f"the file is cut off, damaged or no checkpoint: {error}") from error
    tensors = {name: Tensor(entry["dtype"], tuple(entry["shape"]), entry["data"]) for name, entry in found}
    # The package gives the metadata of a path alone, where there may be another file by now.
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header.get("__metadata__") or {}
    crcs, own = metadata.pop(_CRCS, None), metadata.pop(_OWN_CRC, None)
    if "actorflow" in metadata or own is not None:
        _check(path, tensors, metadata, crcs, own)
    return Content(tensors, metadata)


def read_outline(path: Path) -> Outline:
    """Read what is in a file, without the values: a few kilobytes, however large it is.

    The metadata are checked. The rest is where the values are read.

    Raises:
        DamagedError, OSError, MissingExtraError: as for `read_file`.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(min(length, _LONGEST_HEADER))
    try:
        header = dict(json.loads(text))
        metadata = dict(header.pop("__metadata__", None) or {})
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedError(path, f"the file is cut off, damaged or no checkpoint: {error}") from error
    metadata.pop(_CRCS, None)
    own = metadata.pop(_OWN_CRC, None)
    if "actorflow" in metadata or own is not None:
        _check_metadata(path, metadata, own)
    return Outline(frozenset(header), metadata)


def _check_metadata(path: Path, metadata: Mapping[str, str], own: Any) -> None:
    if own != _metadata_crc(metadata):
        raise DamagedError(path, f"the metadata are damaged: checksum {_metadata_crc(metadata)}, expected {own}")


def _check(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], crcs: Any, own: Any) -> None:
    """Compare a file's content with its checksums."""
    _check_metadata(path, metadata, own)
    try:
        expected = dict(json.loads(crcs))
    except (TypeError, ValueError) as error:
        raise DamagedError(path, f"the checksums are damaged: {error}") from error
    for name, tensor in tensors.items():
        crc = _crc_of(*tensor)
        if crc != expected.pop(name, None):
            raise DamagedError(path, f"{name!r} is damaged: its checksum is {crc}, which is not what was written")
    if expected:
        raise DamagedError(path, f"the file lacks {next(iter(expected))!r}, which was written")


def _crc_of(code: str, shape: tuple[int, ...], data: bytearray | memoryview) -> str:
    return f"{zlib.crc32(data, zlib.crc32(f'{code}{list(shape)}'.encode())):08x}"


def _metadata_crc(metadata: Mapping[str, str]) -> str:
    return f"{zlib.crc32(json.dumps(metadata, sort_keys=True).encode()):08x}"
