"""A session of its own for each test, so that none leaves workers or records behind."""

from collections.abc import Iterator

import pytest

import actorflow.array as xp


@pytest.fixture(autouse=True)
def own_session(no_thread_left: None) -> Iterator[xp.Session]:
    with xp.session() as session:
        yield session


@pytest.fixture
def lazy(own_session: xp.Session) -> Iterator[xp.Session]:
    """A session that computes what it is asked for, and nothing else."""
    with xp.session(run_ahead=False) as session:
        yield session
