"""Gradients of array code, and gradients of gradients, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.array.derivatives import CASES, CORNERS, Case
from tests.operations import Row, Sample
from tests.operations.table import fixed
from tests.oracle.comparison import check

torch = pytest.importorskip("torch", reason="torch is not installed: make test WITH=torch")

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]


@pytest.fixture(autouse=True)
def double_precision() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def compare(name: str, case: Case, orders: int, is_corner: bool = False) -> None:
    sample = Sample(case.ours, fixed(*case.arrays))
    row = Row(None, [sample], name=name, torch=case.theirs)
    check(row, sample, sample.drawn(), orders, is_corner=is_corner)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.theirs is not None])
def test_gradients_are_those_of_pytorch(name: str) -> None:
    # Cofactors of singular matrices have no gradient.
    compare(name, CASES[name], 1 if name.startswith("linalg.det_") else 2)


@pytest.mark.parametrize("name", CORNERS)
def test_gradients_at_corners_are_those_of_pytorch(name: str) -> None:
    compare(name, CORNERS[name], 1, is_corner=True)
