"""No job leaves shared memory behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transport.memory import assert_none_left, names


@pytest.fixture(autouse=True, scope="module")
def no_shared_memory_left() -> Iterator[None]:
    before = names()
    yield
    assert_none_left(before)
