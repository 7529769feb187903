"""No job leaves shared memory behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED = Path("/dev/shm")
#: Names that the jobs of others may have for a moment go away by themselves.
GRACE_S = 5.0


def names() -> set[str]:
    prefixes = ("mpich_shm", "actorflow-", "sm_segment")
    return {path.name for path in SHARED.glob("*") if path.name.startswith(prefixes)}


@pytest.fixture(autouse=True, scope="module")
def no_shared_memory_left() -> Iterator[None]:
    before = names()
    yield
    deadline_s = time.monotonic() + GRACE_S
    left = names() - before
    while left and time.monotonic() < deadline_s:
        time.sleep(0.05)
        left &= names()
    assert not left, f"jobs left shared memory behind: {sorted(left)}"
