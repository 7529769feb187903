"""Gradients of array code: each rule against central differences, and their gradients against those of gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from tests.array.derivatives import CASES, complexes, numbers

STEP = 1e-6


def weighted(results: Any) -> Any:
    """A number that depends on every element of every result, and on real and imaginary parts in another way."""
    results = results if isinstance(results, tuple | list) else [results]
    total = xp.asarray(0.0)
    for i, y in enumerate(results):
        if y.dtype.kind == "c":
            total = total + weighted([xp.real(y), 0.5 * xp.imag(y)])
        else:
            total = total + xp.sum(y * xp.asarray(np.random.default_rng(i).uniform(0.5, 1.5, y.shape)))
    return total


def loss_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: weighted(function(*arrays))


def slopes(function: Callable[..., Any], arrays: list[np.ndarray], i: int) -> np.ndarray:
    """Central differences by the elements of one argument; by both parts of complex ones."""
    found = np.zeros_like(arrays[i])
    for index in np.ndindex(arrays[i].shape):
        for direction in (1.0, 1j) if found.dtype.kind == "c" else (1.0,):
            values = []
            for sign in (1, -1):
                moved = [np.array(array) for array in arrays]
                moved[i][index] += sign * STEP * direction
                values.append(float(function(*[xp.asarray(array) for array in moved])))
            found[index] += direction * (values[0] - values[1]) / (2 * STEP)
    return found


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_central_differences(name: str) -> None:
    function, _, arrays = CASES[name]
    loss = loss_of(function)
    found = af.grad(loss, argnums=range(len(arrays)))(*[xp.asarray(array) for array in arrays])
    for i, (grad, array) in enumerate(zip(found, arrays, strict=True)):
        assert (grad.shape, grad.dtype) == (array.shape, array.dtype)
        expected = slopes(loss, [*arrays], i)
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(grad.to_numpy(), expected, rtol=2e-5, atol=2e-7 * scale, err_msg=name)
