"""A session of its own for each test, so that none leaves workers or records behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import actorflow.array as xp
from actorflow.array.record import work
from actorflow.ops.cpu import blocks

#: Elements of a block where they are small, and from which on there are several.
BLOCK, LONG = 64, 128


@pytest.fixture(autouse=True)
def own_session(no_thread_left: None) -> Iterator[xp.Session]:
    with xp.session() as session:
        yield session


@pytest.fixture(scope="module")
def small_blocks() -> Iterator[None]:
    """Blocks so small that few numbers are computed in several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", BLOCK)
        patch.setattr(work, "_LONG", LONG)
        yield
