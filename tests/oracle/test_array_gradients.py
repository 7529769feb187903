"""Gradients of array code, and gradients of gradients, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from tests.array.test_gradients import FUNCTIONS, listed, noted, smooth
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


def weights(i: int, y: Any) -> np.ndarray:
    return np.random.default_rng(i).uniform(0.5, 1.5, tuple(y.shape))


def ours(form: Callable[..., Any], arrays: list[np.ndarray], order: int) -> list[np.ndarray]:
    def weighted(i: int, y: Any) -> Any:
        if y.dtype.kind == "c":
            return weighted(i, xp.real(y)) + weighted(i + 10, xp.imag(y))
        return xp.sum((y + y * y) * xp.asarray(weights(i, y))) if y.dtype.kind == "f" else 0.0

    def total(results: Any, moved: Any) -> Any:
        terms = [weighted(i, y) for i, y in enumerate([*listed(results), *moved])]
        return sum(terms[1:], terms[0])

    function: Callable[..., Any] = lambda *moved: form(xp, *moved)  # noqa: E731
    positions = range(len(arrays))
    for _ in range(order):
        function = af.grad(lambda *moved, inner=function: total(inner(*moved), moved), argnums=positions)
    return [x.to_numpy() for x in function(*map(xp.asarray, arrays))]


def theirs(form: Callable[..., Any], arrays: list[np.ndarray], order: int) -> list[np.ndarray]:
    def weighted(i: int, y: Any) -> Any:
        if y.is_complex():
            return weighted(i, y.real) + weighted(i + 10, y.imag)
        return ((y + y * y) * torch.tensor(weights(i, y))).sum() if y.is_floating_point() else 0.0

    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    results = listed(form(standard, *tensors))
    for _ in range(order):
        total = sum(weighted(i, y) for i, y in enumerate([*results, *tensors]))
        found = torch.autograd.grad(total, tensors, create_graph=True, allow_unused=True)
        results = [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, found, strict=True)]
    return [y.detach().resolve_conj().numpy() for y in results]


def form_of(row: Row, sample: Sample) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """A sample as a function of its floating arrays, and these."""
    given = sample.drawn()

    def form(library: Any, *moved: Any) -> Any:
        rest = iter(moved)
        arrays = [next(rest) if x.dtype.kind in "fc" else library.asarray(x) for x in given]
        return row.of_standard(library, *arrays, **sample.parameters)

    return form, [x for x in given if x.dtype.kind in "fc"]


@pytest.mark.parametrize("row", COMPARED, ids=str)
def test_gradients_are_those_of_pytorch(row: Row) -> None:
    for sample in smooth(row):
        form, arrays = form_of(row, sample)
        with noted(row, sample):
            for order in range(1, row.orders + 1):
                for found, expected in zip(ours(form, arrays, order), theirs(form, arrays, order), strict=True):
                    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
                    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.parametrize("corner", CORNERS, ids=str)
def test_gradients_at_corners_are_those_of_pytorch(corner: Corner) -> None:
    arrays = [*corner.arrays]
    for found, expected in zip(ours(corner.form, arrays, 1), theirs(corner.form, arrays, 1), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
