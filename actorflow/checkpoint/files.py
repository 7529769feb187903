"""Files that are whole or not there, whatever happens to the process or the machine while they are written."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

#: How the names of folders end that a killed process left behind, after the name of the file they were made for.
LEFTOVER = r"\.\d+-\d+\.tmp"

_numbers = itertools.count()


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file in a folder beside its place, and move it there when all of it is on the disk.

    Args:
        path: Its place; a file there stays as it is until it is replaced.
        write: Writes the content to the path that it is given, by way of other files of that folder if it likes.
    Raises:
        OSError: if that fails; nothing is left behind.
    """
    folder = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}.tmp")
    folder.mkdir()
    try:
        temporary = folder / path.name
        write(temporary)
        # Who writes by way of a temporary file gives it that one's mode: the owner's alone.
        temporary.chmod(folder.stat().st_mode & 0o666)
        _sync(temporary, os.O_RDWR)  # Windows wants to write what it flushes
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if os.name != "nt":  # which cannot open folders
        _sync(path.parent, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
