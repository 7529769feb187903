"""The table of operations is complete: each operation has a row, and a row says what is missing in it."""

from __future__ import annotations

import actorflow.ops.sim  # noqa: F401  registers the kernels
from actorflow.ops.registry import lookup
from tests.operations import ROWS, operations

OPERATIONS = [row for row in ROWS.values() if row.kind]
#: What no kernel computes, or only one of a plan, and what has tests of its own.
OTHERS = {"Followed", "Together", "Function", "Emitting", "AllReduce", "Numbers"}


def test_every_operation_has_a_row() -> None:
    assert {row.name for row in OPERATIONS} == {kind.__name__ for kind in operations()} - OTHERS
    assert [row.name for row in OPERATIONS if row.kind and row.name != row.kind.__name__] == []


def test_a_row_has_references_or_says_why_not() -> None:
    missing = {row.name: {name for name in ("numpy", "torch") if getattr(row, name) is None} for row in OPERATIONS}
    assert [row.name for row in OPERATIONS if missing[row.name] != row.without.keys() - {"differences"}] == []


def test_hosts_have_kernels_for_all_dtypes_of_a_row() -> None:
    left = []
    for row in OPERATIONS:
        for dtype in row.first.dtypes(row):
            operation = row.first.operation
            first = (row.first.specs(dtype) or operation.infer() or ())[0].dtype
            found = lookup(operation, "cpu", "numpy", first), lookup(operation, "sim", "sim", first)
            left += [] if all(found) else [(row.name, dtype, found)]
    assert left == []
