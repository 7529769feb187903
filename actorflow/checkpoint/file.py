"""Files of named arrays in the format safetensors: written whole or not at all, checked when they are read."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import CheckpointError, listed, require
from actorflow.graph.nodes import Variable
from actorflow.threads import simulation

#: End of the names of folders that a killed process left behind, after the name of the file they were made for.
LEFTOVER = r"\.\d+-\d+\.tmp"

_numbers = itertools.count()
_writing: set[int] = set()  # numbers of the folders that this process writes in


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file in a folder beside its place, and move it there when all of it is on the disk.

    Raises:
        OSError: if that fails; nothing is left behind, and the rest of a killed process is cleared.
    """
    number = next(_numbers)
    folder = path.with_name(f".{path.name}.{os.getpid()}-{number}.tmp")
    try:
        _clear(path)
        _writing.add(number)  # now: another process may have had both numbers
        folder.mkdir()
        temporary = folder / path.name
        _begin("write", temporary)
        write(temporary)
        # A writer that goes by way of a temporary file gives it that one's mode: the owner's alone.
        temporary.chmod(folder.stat().st_mode & 0o666)
        _sync(temporary, os.O_RDWR)  # Windows flushes only files open for writing
        _begin("replace", temporary, path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _writing.discard(number)
    if os.name != "nt":  # which cannot open folders
        _sync(path.parent, os.O_RDONLY)


def _clear(path: Path) -> None:
    """Delete the folders of processes that were killed as they wrote a file."""
    for folder in path.parent.glob(f"{glob.escape(f'.{path.name}.')}*.tmp"):
        found = re.fullmatch(r"(\d+)-(\d+)\.tmp", folder.name[len(path.name) + 2 :])
        if found is not None and not _is_written(*map(int, found.groups())):
            shutil.rmtree(folder, ignore_errors=True)


def _is_written(process: int, number: int) -> bool:
    """Return whether a process still writes in its folder of a number, as far as that can be known."""
    if process == os.getpid():  # or another one had that number before, as in a container that is started again
        return number in _writing
    if os.name == "nt":  # where this signal ends it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _begin(step: str, path: Path, to: Path | None = None) -> None:
    if simulation.disk is not None:
        simulation.disk(step, path, to)


def _sync(path: Path, flags: int) -> None:
    _begin("flush", path)
    if simulation.disk is not None:
        return
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_CODES = {
    "bool": "BOOL",
    **{f"{kind}int{bits}": f"{kind or 'i'}{bits}".upper() for kind in ("u", "") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_FLOATS = {code: name for name, code in _CODES.items() if code in ("F16", "F32", "F64")}
#: Names of the checksums in the metadata: of the tensors, and of the other metadata.
_CRCS, _OWN_CRC = "crc32", "metadata_crc32"

#: Version of the metadata.
FORMAT = "1"
_LONGEST_HEADER = 100_000_000  # bytes of a file's table of contents; the format allows no more

Array = npt.NDArray[Any]


class DamagedError(CheckpointError):
    """A file is not as it was written: cut off, changed, or no checkpoint at all."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}", page="files" if path.suffix == ".af" else None)
        self.path = path
        self.problem = problem


class Tensor(NamedTuple):
    """One tensor of a file."""

    dtype: str  # code of the format: "F32", "BF16", ...
    shape: tuple[int, ...]  # length of each axis
    data: bytearray  # its bytes

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def array(self, dtype: np.dtype[Any]) -> Array:
        """Its values, without a copy; ``dtype`` is the one of its code."""
        return np.frombuffer(self.data, dtype).reshape(self.shape)

    def converted(self, dtype: np.dtype[Any]) -> Array | None:
        """Its values in another floating dtype: the same, or rounded in a narrower one; None if that cannot be."""
        if dtype.kind not in "fV":
            return None
        if self.dtype == "BF16":  # the upper half of a float32: its package need not be there
            values: Array = (self.array(np.dtype("<u2")).astype("<u4") << 16).view("<f4")
        elif self.dtype in _FLOATS:
            values = self.array(np.dtype(_FLOATS[self.dtype]))
        else:
            return None
        with np.errstate(over="ignore"):
            made = values.astype(dtype)
        are_kept = np.array_equal(np.isfinite(made), np.isfinite(values))
        return made if are_kept else None


class Content(NamedTuple):
    """Content of a file."""

    tensors: dict[str, Tensor]  # by name
    metadata: dict[str, str]  # texts by name, without the checksums


class Outline(NamedTuple):
    """Content of a file without the values."""

    names: frozenset[str]  # of its tensors
    metadata: dict[str, str]  # texts by name, without the checksums


def require_format() -> ModuleType:
    """The package ``safetensors``; raises MissingExtraError if it is not installed."""
    return require("safetensors", extra="checkpoint", purpose="a checkpoint")


def dtype_code(dtype: np.dtype[Any]) -> str | None:
    """The format's code of a dtype, None if it has none."""
    return _CODES.get(dtype.name)


def write_file(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write arrays of dtypes that have a `dtype_code`, and texts, by name; raises OSError if that fails."""
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
        CheckpointError: if the file cannot be read; `DamagedError` if it is not as it was written.
        MissingExtraError: if safetensors is not installed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    return parsed(path, content)


def parsed(path: Path, content: bytes) -> Content:
    """The content of a file of which the bytes were read; raises as `read_file` does."""
    safetensors = require_format()
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
    """Read a file's table of contents, without the values: a few kilobytes, however large it is.

    The metadata are checked; the rest is where the values are read. Raises as `read_file` does.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(min(length, _LONGEST_HEADER))
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        header = dict(read_json(text))
        metadata = dict(header.pop("__metadata__", None) or {})
    except (TypeError, ValueError) as error:
        raise DamagedError(path, f"the file is cut off, damaged or no checkpoint: {error}") from error
    metadata.pop(_CRCS, None)
    own = metadata.pop(_OWN_CRC, None)
    if "actorflow" in metadata or own is not None:
        _check_metadata(path, metadata, own)
    return Outline(frozenset(header), metadata)


def read_json(text: Any, counted: str = "[{,", **options: Any) -> Any:
    """The value of a JSON text in a file, as `json.loads` reads it.

    Args:
        text: The text, or its bytes.
        counted: The characters that stand before values that are counted.
        options: As for `json.loads`.
    Raises:
        ValueError: if it is not JSON, is nested too deep, or has so many values that they would take far more memory
            than the text; in files written here, a value has some ten letters.
        TypeError: if it is not a text.
    """
    if isinstance(text, bytes):
        text = str(text, "utf-8")
    if not isinstance(text, str):
        raise TypeError(f"expected a text, got {type(text).__name__}")
    values = sum(map(text.count, counted))
    if values > 100_000 + len(text) // 4:
        raise ValueError(f"expected at most one value in 4 bytes, got {values} in {len(text)}")
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("RecursionError: arrays and objects are nested too deep") from None


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """The error for a file that the system does not let us read."""
    return CheckpointError(f"{path}: the checkpoint cannot be read: {error}")


def _check_metadata(path: Path, metadata: Mapping[str, str], own: Any) -> None:
    if own != _metadata_crc(metadata):
        raise DamagedError(path, f"the metadata are damaged: checksum {_metadata_crc(metadata)}, expected {own}")


def _check(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], crcs: Any, own: Any) -> None:
    _check_metadata(path, metadata, own)
    try:
        expected = dict(read_json(crcs))
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


_SHOWN = 10  # names that a message lists

#: Under which names a file may have a variable's value, the best first.
Wanted = Mapping[Variable, tuple[str, ...]]


class Part(NamedTuple):
    """One of the files that a checkpoint is in."""

    path: Path  # the file
    names: frozenset[str]  # of its tensors
    rank: int = 0  # that saved it
    ranks: int = 1  # how many saved together
    frame: int | None = None  # number of the next frame there; None in weights, and in files of others
    position: dict[str, Any] | None = None  # the application's place in the data; None as above
    replicas: Mapping[str, str] = {}  # names of copies, with the name of the variable that each copies
    states: frozenset[str] = frozenset()  # names of values that only a training needs


class Values(NamedTuple):
    """Values for some variables, found in files."""

    parts: list[Part]  # the files that were looked into
    arrays: dict[Variable, npt.NDArray[Any]]  # values, each in memory of its own
    missing: list[Variable]  # variables that no file has
    problems: list[str]  # types that differ, in words


def find(paths: Sequence[Path], wanted: Wanted, *, every: bool = False, converts: bool = False) -> Values:
    """Look for variables in files, and read the files that have them; blocks.

    Args:
        paths: The files, the most likely one first.
        every: Whether to look into all files; else only until all variables have been found.
        converts: Whether floating values of another dtype are taken; see `Tensor.converted`.
    """
    parts: list[Part] = []
    tensors: dict[Path, dict[str, Tensor]] = {}
    lacking = {names[0] for names in wanted.values()}
    for path in paths:
        if parts and not lacking and not every:
            break
        if len(paths) == 1:  # read at once, so that all of it is of one file though another one may take its place
            content = read_file(path)
            tensors[path] = content.tensors
            outline = Outline(frozenset(content.tensors), content.metadata)
        else:
            outline = read_outline(path)
        parts.append(_part(path, outline))
        lacking -= outline.names
    homes = {
        variable: next(((part, name) for name in names for part in parts if name in part.names), None)
        for variable, names in wanted.items()
    }
    arrays, problems = {}, []
    for part in parts:
        own = {variable: home[1] for variable, home in homes.items() if home is not None and home[0] is part}
        if own and part.path not in tensors:
            content = read_file(part.path)
            tensors[part.path] = {name: content.tensors[name] for name in own.values() if name in content.tensors}
        for variable, name in own.items():
            tensor = tensors[part.path].get(name)
            if tensor is None:
                raise DamagedError(part.path, f"the file has been replaced while it was read: {name!r} is gone")
            code, array = dtype_code(variable.dtype), None
            if tensor.shape == variable.shape and tensor.dtype == code:
                array = tensor.array(variable.dtype)
            elif tensor.shape == variable.shape and converts:
                array = tensor.converted(variable.dtype)
            if array is None:
                own_type = f"{code or variable.dtype}{list(variable.shape)}"
                problems.append(f"variable {variable.name!r} is {own_type}, the file has {tensor}")
            else:
                arrays[variable] = array if name == wanted[variable][0] else array.copy()
        tensors.pop(part.path, None)
    return Values(parts, arrays, [variable for variable, home in homes.items() if home is None], problems)


def check_fit(
    what: str, found: Values, missing: Sequence[str], unexpected: Sequence[str], strict: bool, known: Collection[str]
) -> None:
    """Check that values fit; raises CheckpointError, naming all that do not."""
    problems = list(found.problems)
    count = len(found.parts)
    lacks = ("it lacks", "the file lacks")[count] if count < 2 else f"the {count} files lack"
    if strict and missing:
        problems.append(f"{lacks} {_listed(missing)}")
    if strict and unexpected:
        problems.append(f"the graph has no variable {_listed(unexpected)}")
    names = sorted({*unexpected}.union(*(part.names for part in found.parts)))
    if not (problems or found.arrays) and (missing or names) and not any(name in known for name in names):
        problems.append(
            "no name in it is that of a variable, so that nothing would be loaded: "
            f"it has {_listed(names) or 'none'}, expected {_listed([*known]) or 'none'}"
        )
    if problems:
        shown = problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])
        others = f" and {count - 1} more" if count > 1 else ""
        raise CheckpointError(
            f"{found.parts[0].path if count else 'the state dict'}{others} does not fit {what}: " + "; ".join(shown)
        )


def _part(path: Path, outline: Outline) -> Part:
    metadata = outline.metadata
    version = metadata.get("actorflow")
    if version is None:
        return Part(path, outline.names)
    if version != FORMAT:
        raise CheckpointError(f"{path}: expected a checkpoint of format {FORMAT}, got {version!r}")
    try:
        position = (
            None if (text := metadata.get("position")) is None else dict(read_json(text, "[{"))
        )  # numbers may have one digit
        frame = None if (text := metadata.get("frame")) is None else int(text)
        return Part(
            path,
            outline.names,
            int(metadata.get("rank", 0)),
            int(metadata.get("ranks", 1)),
            frame,
            position,
            dict(read_json(metadata.get("replicas", "{}"))),
            frozenset(read_json(metadata.get("states", "[]"))),
        )
    except (TypeError, ValueError) as error:
        raise DamagedError(path, f"the metadata are damaged: {type(error).__name__}: {error}") from error


def _listed(names: Sequence[str]) -> str:
    return listed([*map(repr, names)])
