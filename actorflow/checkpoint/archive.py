"""The file that a graph is saved to: a zip of two members, which are stored as they are.

Nothing is unpacked to the disk, and nothing is compressed: what a member takes in memory is what it takes in the file.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from actorflow.checkpoint.file import DamagedError, unreadable, write_atomically, write_file
from actorflow.errors import CheckpointError

STRUCTURE, TENSORS = "graph.json", "weights.safetensors"
#: Most bytes that are read at once while the table of contents is looked for; that of two members is far smaller.
_LONGEST_TABLE = 1 << 17


def write(path: Path, structure: bytes, arrays: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all; blocks.

    Args:
        path: Its place.
        structure: What the graph is.
        arrays: NumPy arrays by name.
    Raises:
        CheckpointError: if it cannot be written.
    """

    def pack(temporary: Path) -> None:
        tensors = temporary.with_name(TENSORS)
        write_file(tensors, arrays, {"actorflow_graph": STRUCTURE})
        with zipfile.ZipFile(temporary, "w") as file:
            file.writestr(zipfile.ZipInfo(STRUCTURE), structure)
            member = zipfile.ZipInfo(TENSORS)
            member.file_size = tensors.stat().st_size  # larger ones need another header
            with tensors.open("rb") as content, file.open(member, "w") as out:
                shutil.copyfileobj(content, out, 1 << 20)

    try:
        write_atomically(path, pack)
    except OSError as error:
        raise CheckpointError(f"{path}: the graph cannot be written: {error}") from error


def read(path: Path) -> tuple[bytes, bytes]:
    """Read a file, which may be anything; blocks.

    Returns:
        The description of the graph, and the tensors.
    Raises:
        CheckpointError: if it cannot be read; `DamagedError` if it is not such a file.
    """
    try:
        with path.open("rb") as opened:
            return _read(path, opened)
    except OSError as error:
        raise unreadable(path, error) from error


def _read(path: Path, opened: io.BufferedReader) -> tuple[bytes, bytes]:
    size_bytes = opened.seek(0, io.SEEK_END)
    try:
        file: Any = _Opened(opened)
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            found = sorted(member.filename for member in members)
            if found != [STRUCTURE, TENSORS]:
                raise ValueError(
                    f"expected the members {STRUCTURE} and {TENSORS}, got {', '.join(found) or 'none':.200}"
                )
            for member in members:
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise ValueError(f"member {member.filename}: expected one that is neither compressed nor encrypted")
            if sum(max(member.file_size, member.compress_size) for member in members) > size_bytes:
                raise ValueError(f"expected members that fit into {size_bytes} bytes")
            file.most = size_bytes
            return archive.read(STRUCTURE), archive.read(TENSORS)
    except OSError:
        raise
    except Exception as error:
        # zipfile raises whatever reading a field has led to.
        problem = f"the file is cut off, damaged or no graph: {error}"
        raise DamagedError(path, problem) from error


class _Opened:
    """An open file of which only so many bytes are read at once, whatever its fields say.

    Attributes:
        most: How many.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.most = _LONGEST_TABLE
        self.seek: Callable[..., int] = file.seek
        self.tell, self.seekable = file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(self.most + 1 if size < 0 else min(size, self.most + 1))
        if len(content) > self.most:
            raise ValueError(f"expected at most {self.most} bytes, got more")
        return content
