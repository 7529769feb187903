"""Files that are whole or not there, whatever happens to the process or the machine while they are written."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["LEFTOVER", "write_atomically"]

#: How the names of files end that a killed process left behind, after the name of the file they were to become.
LEFTOVER = r"\.\d+-\d+\.tmp"

_numbers = itertools.count()


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file beside its place, and move it there when all of it is on the disk.

    Args:
        path: Its place; a file there stays as it is until it is replaced.
        write: Writes the content.
    Raises:
        OSError: if that fails; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Put the move on the disk, too."""
    if os.name == "nt":  # which cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
