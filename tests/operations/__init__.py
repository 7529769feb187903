"""The table of operations: for each one row, which all suites take their cases from.

Its files mirror those of `actorflow.ops`. What a row says is in `tests.operations.table`.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import actorflow.ops.cpu  # noqa: F401  registers the kernels
from actorflow.ops import Operation
from tests.operations.table import Row, Sample, Wrong

__all__ = [
    "EACH", "PARTICULAR", "ROWS", "Row", "Sample", "WRONG", "calls", "cases", "drawn", "operations", "row_of", "samples"
]  # fmt: skip


def _listed(name: str) -> Iterator[Any]:
    """What the files of the table have under a name."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        yield from getattr(import_module(module.name), name, ())


#: All rows, by name.
ROWS: dict[str, Row] = {}
for _row in _listed("ROWS"):
    assert _row.name not in ROWS, f"{_row.name} has two rows"
    ROWS[_row.name] = _row
#: What is refused, and with which words.
WRONG: list[Wrong] = [*_listed("WRONG")]


def operations() -> set[type[Operation]]:
    """All operations of `actorflow.ops`, but for those that only plans insert and those that others derive from."""
    found, open_kinds = set(), [Operation]
    while open_kinds:
        for kind in open_kinds.pop().__subclasses__():
            open_kinds.append(kind)
            module, name = kind.__module__, kind.__name__
            is_there = getattr(sys.modules.get(module), name, None) is kind  # one with slots is made twice
            if module.startswith("actorflow.ops.") and module != "actorflow.ops.transfer" and is_there:
                found.add(kind)
    bases = {"Arrangement", "Elementwise", "LabelLoss", "PairLoss", "Reduction", "Update"}
    return {kind for kind in found if kind.__name__ not in bases and not kind.__name__.startswith("_")}


def row_of(operation: Operation) -> Row:
    """The row of an operation."""
    return ROWS[operation.kind]


def samples(device: str = "cpu") -> list[tuple[Row, Sample]]:
    """The samples of all operations that a kind of device computes."""
    rows = [row for row in ROWS.values() if row.kind is not None and device in row.devices]
    return [(row, sample) for row in rows for sample in row.samples]


def cases(chosen: list[tuple[Row, Sample]]) -> list[Any]:
    """Rows and samples for ``parametrize``: the first one of each row, and the others, which are slow."""
    first = {row.name: sample for row, sample in reversed(chosen)}
    return [
        pytest.param(row, sample, id=f"{row}-{i}", marks=() if sample is first[row.name] else pytest.mark.slow)
        for i, (row, sample) in enumerate(chosen)
    ]


#: One operation of each kind, with its inputs in float32.
EACH: dict[str, tuple[Operation, list[np.ndarray[Any, Any]]]] = {
    name: (row.first.operation, row.first.inputs()) for name, row in ROWS.items() if row.kind is not None
}
#: Kinds whose inputs must be those of a sample.
PARTICULAR = frozenset(name for name, row in ROWS.items() if row.particular)


def calls() -> list[tuple[Row, Sample]]:
    """The samples of functions of blobs and arrays: of several operations, or of one with other parameters."""
    return [(row, each) for row in ROWS.values() if row.kind is None and row.drawn is None for each in row.samples]


def drawn(reference: str) -> list[Row]:
    """The rows of functions of arrays, which draw their samples, if they have a reference."""
    return [row for row in ROWS.values() if row.drawn is not None and reference not in row.without]
