"""Gradients of array code, and gradients of gradients, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from tests.array.derivatives import CASES, CORNERS, Case

torch = pytest.importorskip("torch", reason="torch is not installed: make test WITH=torch")

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("single_thread")]

COMPARED = {name: case for name, case in CASES.items() if case.theirs is not None}


@pytest.fixture(autouse=True)
def double_precision() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def weights(i: int, y: Any) -> np.ndarray:
    return np.random.default_rng(i).uniform(0.5, 1.5, tuple(y.shape))


def listed(results: Any) -> list[Any]:
    return [*results] if isinstance(results, tuple | list) else [results]


def ours(case: Case, order: int) -> list[np.ndarray]:
    def weighted(i: int, y: Any) -> Any:
        if y.dtype.kind == "c":
            return weighted(i, xp.real(y)) + weighted(i + 10, xp.imag(y))
        return xp.sum((y + y * y) * xp.asarray(weights(i, y)))

    def total(results: Any) -> Any:
        terms = [weighted(i, y) for i, y in enumerate(listed(results))]
        return sum(terms[1:], terms[0])

    function: Callable[..., Any] = case.ours
    positions = range(len(case.arrays))
    for _ in range(order):
        function = af.grad(lambda *arrays, inner=function: total(inner(*arrays)), argnums=positions)
    return [x.to_numpy() for x in function(*[xp.asarray(array) for array in case.arrays])]


def theirs(case: Case, order: int) -> list[np.ndarray]:
    def weighted(i: int, y: Any) -> Any:
        if y.is_complex():
            return weighted(i, y.real) + weighted(i + 10, y.imag)
        return ((y + y * y) * torch.tensor(weights(i, y))).sum()

    tensors = [torch.tensor(array, requires_grad=True) for array in case.arrays]
    assert case.theirs is not None
    results = listed(case.theirs(torch, *tensors))
    for _ in range(order):
        total = sum(weighted(i, y) for i, y in enumerate(results))
        found = torch.autograd.grad(total, tensors, create_graph=True, allow_unused=True)
        results = [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, found, strict=True)]
    return [y.detach().resolve_conj().numpy() for y in results]


@pytest.mark.parametrize(
    ("name", "order"),
    # Cofactors of singular matrices have no gradient.
    [(name, order) for name in COMPARED for order in (1, 2) if order == 1 or not name.startswith("linalg.det_")],
)
def test_gradients_are_those_of_pytorch(name: str, order: int) -> None:
    case = COMPARED[name]
    for found, expected in zip(ours(case, order), theirs(case, order), strict=True):
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.parametrize("name", CORNERS)
def test_gradients_at_corners_are_those_of_pytorch(name: str) -> None:
    for found, expected in zip(ours(CORNERS[name], 1), theirs(CORNERS[name], 1), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
