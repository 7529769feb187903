"""Shared memory that MPI jobs have left behind."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["assert_none_left", "names"]

SHARED = Path("/dev/shm")
GRACE_S = 60.0


def names() -> set[str]:
    """Segments of the kinds that jobs of this program have."""
    prefixes = ("mpich_shm", "actorflow-", "sm_segment")
    return {path.name for path in SHARED.glob("*") if path.name.startswith(prefixes)}


def assert_none_left(before: set[str]) -> None:
    """Check that there are none but those of before, and those that a running process uses: another test's, say."""
    deadline_s = time.monotonic() + GRACE_S
    while left := names() - before - _used():
        assert time.monotonic() < deadline_s, f"jobs left shared memory behind: {sorted(left)}"
        time.sleep(0.05)


def _used() -> set[str]:
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:  # it has ended meanwhile
            continue
        found |= {line.rpartition("/dev/shm/")[2] for line in text.splitlines() if "/dev/shm/" in line}
    return found
