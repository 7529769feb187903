"""Effort of a run of the suite: what is slow, and what only `make test-exhaustive` tries as a whole."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

import pytest

#: Whether every property, size and combination is wanted: ``ACTORFLOW_FULL_TESTS=1``, as `make test-exhaustive` sets.
FULL = bool(os.environ.get("ACTORFLOW_FULL_TESTS"))


def slow(cases: Iterable[object], but: Collection[object] = ()) -> list[object]:
    """Values for ``parametrize``, marked slow but for some."""
    return [case if case in but else _marked(case) for case in cases]


def _marked(case: object) -> object:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
