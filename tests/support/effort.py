"""Effort of a run of the suite: `make test` takes short forms of what takes long, `make test-full` the whole."""

from __future__ import annotations

import os

#: Whether every property, size and combination is wanted: ``ACTORFLOW_FULL_TESTS=1``, as `make test-full` sets.
FULL = bool(os.environ.get("ACTORFLOW_FULL_TESTS"))
