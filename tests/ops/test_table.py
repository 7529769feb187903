"""The table of operations is complete: each operation has a row, and a row says what is missing in it."""

from __future__ import annotations

import pytest

import actorflow.ops.sim  # noqa: F401  registers the kernels
from actorflow.ops.registry import lookup
from tests.operations import ROWS, Row, operations

OPERATIONS = [row for row in ROWS.values() if row.kind]
#: What no kernel computes, or only one of a plan, and what has tests of its own.
OTHERS = {"Followed", "Together", "Function", "AllReduce", "Numbers"}


def test_every_operation_has_a_row() -> None:
    assert {row.name for row in OPERATIONS} == {kind.__name__ for kind in operations()} - OTHERS
    assert all(row.name == row.kind.__name__ for row in OPERATIONS if row.kind)


@pytest.mark.parametrize("row", OPERATIONS, ids=str)
def test_a_row_has_references_or_says_why_not(row: Row) -> None:
    missing = {name for name in ("numpy", "torch") if getattr(row, name) is None}
    assert missing == row.without.keys() - {"differences"}


@pytest.mark.parametrize("row", OPERATIONS, ids=str)
def test_the_hosts_have_kernels_for_all_dtypes_of_a_row(row: Row) -> None:
    sample = row.first
    for dtype in sample.dtypes(row):
        first = (sample.specs(dtype) or sample.operation.infer() or ())[0].dtype
        for device, library in (("cpu", "numpy"), ("sim", "sim")):
            assert lookup(sample.operation, device, library, first), (device, dtype)
