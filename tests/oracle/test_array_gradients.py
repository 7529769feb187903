"""Gradients of array code, and gradients of gradients, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from tests.array.test_gradients import FUNCTIONS, directions_of, loss_of, noted, projected, smooth, total
from tests.operations import Row, Sample
from tests.operations.functions.corners import CORNERS, Corner

torch = pytest.importorskip("torch", reason="torch is not installed: make test WITH=torch")
#: PyTorch by the names of the standard.
standard = pytest.importorskip("sklearn.externals.array_api_compat.torch")

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]

COMPARED = [row for row in FUNCTIONS if "torch" not in row.without]


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def slopes(loss: Callable[..., Any], tensors: list[Any]) -> list[Any]:
    """Gradients by PyTorch."""
    found = torch.autograd.grad(loss(*tensors), tensors, create_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, found, strict=True)]


def agree(found: Any, expected: list[Any]) -> None:
    for mine, its in zip(found, expected, strict=True):
        its = its.detach().resolve_conj().numpy()
        scale = max(1.0, float(np.max(np.abs(its), initial=0.0, where=np.isfinite(its))))
        np.testing.assert_allclose(mine.to_numpy(), its, rtol=1e-9, atol=1e-10 * scale)


def check(row: Row, sample: Sample) -> None:
    """Compare gradients, and gradients of these along a direction."""
    given = sample.drawn()
    arrays = [x for x in given if x.dtype.kind in "fc"]
    every, directions = range(len(arrays)), directions_of(arrays, 1)
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    ours, theirs = (partial(loss_of, row, sample, library, given) for library in (xp, standard))
    inner = af.grad(ours, every)
    agree(inner(*map(xp.asarray, arrays)), slopes(theirs, tensors))
    if row.orders > 1:
        twice = af.grad(lambda *moved: projected(xp, inner(*moved), directions), every)(*map(xp.asarray, arrays))
        agree(twice, slopes(lambda *moved: projected(standard, slopes(theirs, [*moved]), directions), tensors))


@pytest.mark.parametrize("row", COMPARED, ids=str)
def test_gradients_are_those_of_pytorch(row: Row) -> None:
    for sample in smooth(row):
        with noted(row, sample):
            check(row, sample)


@pytest.mark.parametrize("corner", CORNERS, ids=str)
def test_gradients_at_corners_are_those_of_pytorch(corner: Corner) -> None:
    tensors = [torch.tensor(array, requires_grad=True) for array in corner.arrays]
    found = af.grad(partial(total, corner, xp), range(len(tensors)))(*map(xp.asarray, corner.arrays))
    agree(found, slopes(partial(total, corner, standard), tensors))
