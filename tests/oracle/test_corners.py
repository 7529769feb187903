"""Gradients where rules divide by zero, take its logarithm or choose: at 0, -0, 1, -1, infinities and ties.

All rows of the table of operations, and reductions: they are PyTorch's, or one of ours with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow.array as xp
from actorflow import grad, ops
from actorflow.ops import linalg
from actorflow.ops.rows import Elementwise
from tests.operations.elementwise import rows

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("single_thread")

POINTS = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -0.5, 0.5, np.inf, -np.inf, 3.0, -3.0])
#: What PyTorch calls rows that have another name there.
NAMES: dict[str, Callable[..., Any]] = {
    "absolute": torch.abs, "copy": torch.clone, "divide": torch.div, "elu": F.elu, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "hard_sigmoid": F.hardsigmoid, "hard_swish": F.hardswish,
    "leaky_relu": F.leaky_relu, "multiply": torch.mul, "negative": torch.neg,
    "normal_cdf": torch.special.ndtr, "power": torch.pow, "silu": F.silu, "softplus": F.softplus,
    "subtract": torch.sub, "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "imag": lambda x: x * 0.0,
}  # fmt: skip
#: Rows that PyTorch does not have: gradients by hand, with a 1 for g.
OWN: dict[str, Callable[..., list[np.ndarray]]] = {
    # The square root of a variance is taken of what is never negative, and equal numbers have no direction.
    "deviation": lambda x: [np.where(x == 0, 0.0, 0.5 / np.sqrt(np.where(x == 0, 1.0, x)))],
    # The element itself is picked at the bound, as by torch.clamp.
    "at_least": lambda a, b: [np.where(a >= b, 1.0, 0.0), np.where(a >= b, 0.0, 1.0)],
    "at_most": lambda a, b: [np.where(a <= b, 1.0, 0.0), np.where(a <= b, 0.0, 1.0)],
}
#: Where gradients are not PyTorch's, and why.
OTHERWISE: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "remainder": (
        lambda a, b: np.isinf(a) | np.isinf(b),
        "-floor(a / b), whose floor is the standard's for infinities",
    ),
    "fmod": (lambda a, b: np.isinf(a) | np.isinf(b), "-trunc(a / b), likewise"),
    "hypot": (lambda a, b: (a == 0) & (b == 0), "0 at the origin, as vector_norm there and in PyTorch; not NaN"),
    "copysign": (lambda a, b: np.isinf(a), "1 or -1, as everywhere else; not NaN"),
}
KINDS = [kind for kind in rows() if "f" in kind.kinds and kind.differentiable and not kind.conditions]


def _by_torch(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    given = [torch.tensor(array, requires_grad=True) for array in arrays]
    found = torch.autograd.grad(function(*given).sum(), given, allow_unused=True)
    return [np.zeros_like(x) if g is None else g.numpy() for x, g in zip(arrays, found, strict=True)]


def _by_rules(function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    found = grad(lambda *given: xp.sum(function(*given)), tuple(range(len(arrays))))(*map(xp.asarray, arrays))
    return [g.to_numpy() for g in found]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.function_name)
def test_gradients_of_rows(kind: type[Elementwise]) -> None:
    name, count = kind.function_name, len(kind.arguments)
    function = getattr(ops, name, None) or (lambda *given: ops.operation.apply(kind(), *given))
    arrays = [x.reshape(-1) for x in np.meshgrid(*[POINTS] * count, indexing="ij")]
    if name.endswith("_down") or name == "normal_density":  # which gradients alone are made of
        pytest.skip("is tried as the gradient of its row")
    with np.errstate(all="ignore"):
        wanted = OWN[name](*arrays) if name in OWN else _by_torch(NAMES.get(name) or getattr(torch, name), *arrays)
        found = _by_rules(function, *arrays)
    is_other, _ = OTHERWISE.get(name, (lambda *arrays: np.zeros(arrays[0].shape, bool), ""))
    kept = ~is_other(*arrays)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got[kept], want[kept], rtol=1e-6, atol=1e-9)


REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (lambda x: ops.sum(x, 1), lambda x: x.sum(1)),
    "mean": (lambda x: ops.mean(x, 1), lambda x: x.mean(1)),
    "max": (lambda x: ops.max(x, 1), lambda x: x.amax(1)),
    "min": (lambda x: ops.min(x, 1), lambda x: x.amin(1)),
    "prod": (lambda x: ops.prod(x, 1), lambda x: x.prod(1)),
    "var": (lambda x: xp.var(x, axis=1), lambda x: x.var(1, correction=0)),
    "cumsum": (lambda x: ops.cumsum(x, 1), lambda x: x.cumsum(1)),
    "softmax": (lambda x: ops.softmax(x, 1) * xp.asarray(np.arange(3.0)), lambda x: x.softmax(1) * torch.arange(3.0)),
    "log_softmax": (lambda x: ops.log_softmax(x, 1), lambda x: x.log_softmax(1)),
    **{
        f"norm of order {order}": (
            lambda x, order=order: linalg.vector_norm(x, axis=1, ord=order),
            lambda x, order=order: torch.linalg.vector_norm(x, order, 1),
        )
        for order in (1, 2, 3, np.inf)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_of_reductions(name: str) -> None:
    """Of zeros of either sign, ties, ones and, but for sums of squares, infinities."""
    ours, theirs = REDUCTIONS[name]
    values = POINTS[:7] if "norm" in name or name in ("var", "softmax", "log_softmax", "prod") else POINTS
    x = np.stack([each.reshape(-1) for each in np.meshgrid(values, values, values, indexing="ij")], 1)
    with np.errstate(all="ignore"):
        (found,), (wanted,) = _by_rules(ours, x), _by_torch(theirs, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_the_deviation_of_equal_numbers_has_no_slope() -> None:
    """PyTorch's is NaN: what is divided by it is then, too, for good."""
    (found,) = _by_rules(lambda x: xp.std(x, axis=1), np.array([[2.0, 2.0, 2.0], [0.0, -0.0, 0.0]]))
    np.testing.assert_array_equal(found, np.zeros((2, 3)))
