"""The disk of a simulated program: full, or without power at some step of writing a file, as a seed says."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol


class Chances(Protocol):
    """The decisions of a simulation about a disk."""

    def strikes(self, fault: str) -> bool:
        """Whether a fault strikes a step now: "is full", "lies" (flushed bytes are not kept), "loses power"."""

    def below(self, most: int, what: str) -> int:
        """A number from 0 on."""


class Disk:
    """Files as they are after a power cut. They are real ones; files written and not flushed are torn then.

    Args:
        chances: The decisions of the seed.
        cut: Called when power fails.
    """

    def __init__(self, chances: Chances, cut: Callable[[], None]) -> None:
        self._chances = chances
        self._cut = cut
        self._folders: set[Path] = set()
        self._flushed: set[Path] = set()  # files that have not been moved to their place yet
        self._unflushed: set[Path] = set()  # files at their place
        self._before: dict[
            Path, bytes | None
        ] = {}  # content of files that were replaced since their folder was flushed
        self._kept: TemporaryDirectory[str] | None = None

    def step(self, step: str, path: Path, to: Path | None = None) -> None:
        """A step of writing a file begins: "write" a new one, "flush" it or a folder, "replace" another file by it.

        Raises:
            OSError: if it fails, for want of room or power.
        """
        self._folders.add(path if path.is_dir() else path.parent.parent)  # a file is written in a folder of its own
        if self._kept is None and self._chances.strikes("loses power"):
            self._keep()
        if self._kept is not None:
            raise OSError(errno.EIO, "the disk has no power in the simulation")
        if step != "flush" and self._chances.strikes("is full"):
            raise OSError(errno.ENOSPC, "the disk is full in the simulation")
        if to is not None:
            self._before.setdefault(to, to.read_bytes() if to.exists() else None)
            (self._unflushed.discard if path in self._flushed else self._unflushed.add)(to)
        elif step == "flush" and not self._chances.strikes("lies"):
            self._flushed.add(path)
            self._before = {file: content for file, content in self._before.items() if file.parent != path}

    def _keep(self) -> None:
        """Keep the disk as it is at this moment, for the next start."""
        self._kept = TemporaryDirectory()
        top = self._top = min(self._folders, key=lambda folder: len(folder.parts))
        copy = Path(self._kept.name) / "disk"
        shutil.copytree(top, copy)
        for file, content in sorted(self._before.items()):
            there = copy / file.relative_to(top)
            if self._chances.below(2, "disk: a file is the one before"):
                self._unflushed.discard(file)
                there.unlink(missing_ok=True)
                if content is not None:
                    there.write_bytes(content)
        for file in sorted(self._unflushed):
            there = copy / file.relative_to(top)
            if there.exists():
                size = there.stat().st_size
                there.write_bytes(there.read_bytes()[: size - self._chances.below(size, "disk: a file is torn")])
        self._cut()

    def close(self) -> None:
        """Keep nothing."""
        if self._kept is not None:
            self._kept.cleanup()

    def start(self) -> None:
        """There is power again: files have the bytes that were kept."""
        assert self._kept is not None
        shutil.rmtree(self._top)
        shutil.copytree(Path(self._kept.name) / "disk", self._top)
        self._kept.cleanup()
        self._kept = None
        self._unflushed.clear()
        self._before.clear()
