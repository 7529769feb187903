"""Effort of a run of the suite: `make test` takes short forms of what takes long, `make test-full` the whole."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

import pytest

#: Whether every property, size and combination is wanted: ``ACTORFLOW_FULL_TESTS=1``, as `make test-full` sets.
FULL = bool(os.environ.get("ACTORFLOW_FULL_TESTS"))


def slow(cases: Iterable[object], but: Collection[object] = ()) -> list[object]:
    """Values for ``parametrize``, marked slow but for some."""
    return [case if case in but else _marked(case) for case in cases]


def _marked(case: object) -> object:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
