"""Counters that watchers read while lanes write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actorflow.trace.counters import Monitor


def test_changes_are_taken_while_lanes_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a lane marks while the changes are looked for is in these, or in the next: never lost, never an error."""
    monitor = Monitor(100)
    changes = monitor.changes()
    original, marks = np.flatnonzero, iter([(3, 7), (3, 8), (9,), ()])

    def meanwhile(array: Any) -> Any:
        for node in next(marks, ()):
            monitor.dirty[node] = 1
        return original(array)

    monkeypatch.setattr("actorflow.trace.counters.np.flatnonzero", meanwhile)
    monitor.dirty[7] = 1
    taken: list[int] = []
    for _ in range(4):
        taken += changes.take().tolist()
    assert set(taken) == {3, 7, 8, 9}
    assert not any(monitor.dirty)
