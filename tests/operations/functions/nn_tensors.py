"""Functions of tensors: parameters that operations do not have, and what is made of several of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow import ops
from tests.operations.table import Make, Sample, call, composed, normal, whole

_CUBE = (2, 3, 4)


def _clip(x: Any, low: float | None = None, high: float | None = None) -> Any:
    return ops.clip(x, low, high)


def _without_then_with(x: Any, axis: int) -> Any:
    y = ops.expand_dims(x, axis)
    return y, ops.squeeze(y, axis), ops.squeeze(x)


def _parts(x: Any, keys: Any) -> Any:
    for key in keys:
        x = ops.slice(x, key)
    return x


def _parts_of_torch(torch: Any, x: Any, keys: Any) -> Any:
    """By the places of the elements, as torch has no negative steps."""
    index = np.arange(x.numel()).reshape(tuple(x.shape))
    for key in keys:
        index = np.asarray(index[key])
    return x.reshape(-1)[torch.from_numpy(np.array(index))]


def _embedding(weight: Any, indices: Any) -> Any:
    return ops.embedding(indices, weight)


def _embedded(rows: int, features: int, picked: tuple[int, ...]) -> Make:
    return lambda random: [random.standard_normal((rows, features)), random.integers(0, rows, picked)]


def _rows_and_columns(shape: tuple[int, ...], picked: tuple[int, ...]) -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        arrays = normal(shape, (*picked, *shape[2:]))(random)
        return [*arrays, *(random.integers(-n, n, picked) for n in shape[:2])]

    return make


def _add_at(x: Any, values: Any, i: Any, j: Any) -> Any:
    return ops.add_at(x, (i, j), values)


_TORCH_MODES = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def _scatter(x: Any, values: Any, indices: Any, axis: int, mode: str) -> Any:
    return ops.scatter(x, indices, values, axis, mode)  # type: ignore[arg-type]


def _scattered(shape: tuple[int, ...], axis: int, count: int, mode: str) -> Sample:
    picked = tuple(count if i == axis % len(shape) else n for i, n in enumerate(shape))

    def make(random: np.random.Generator) -> list[np.ndarray]:
        return [*normal(shape, picked)(random), random.integers(0, shape[axis], picked)]

    return call(_scatter, make, axis=axis, mode=mode)


def _top(x: Any, k: int, axis: int, largest: bool) -> Any:
    return ops.top_k(x, k, axis, largest=largest)


def _padded(torch: Any, x: Any, widths: Any, mode: str, value: float = 0.0) -> Any:
    flat = [n for pair in reversed(widths) for n in pair]
    if mode == "constant":
        return torch.nn.functional.pad(x, flat, "constant", value)
    theirs = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return torch.nn.functional.pad(x[None, None], flat, theirs)[0, 0]


_EVERYWHERE = {
    "constant": ((2, 0), (0, 3), (1, 1)),
    "reflect": ((1, 0), (2, 1), (0, 3)),
    "edge": ((4, 1), (0, 2), (1, 0)),
    "wrap": ((2, 1), (0, 3), (4, 4)),
}

ROWS = [
    composed(
        "ops.clip",
        lambda torch, x, low=None, high=None: torch.clamp(x, low, high),
        call(_clip, normal(_CUBE), low=-0.5, high=0.7),
        *(
            Sample(call(_clip, whole(-3, _CUBE), **bounds).what, whole(-3, _CUBE), smooth=False)
            for bounds in ({"low": 0.0}, {"high": 1.0})
        ),
    ),
    composed("a term twice", lambda torch, a, b: a + b + a, call(lambda a, b: ops.add(a, b, a), normal((2, 3), (3,)))),
    composed("ops.average", lambda torch, a, b: (a + b) / 2, call(ops.average, normal((2, 3), (2, 1)))),
    composed(
        "axes of length 1",
        lambda torch, x, axis: (x.unsqueeze(axis), x.unsqueeze(axis).squeeze(axis), x.squeeze()),
        *(call(_without_then_with, normal(x), axis=axis) for x, axis in (((2, 1, 3), -2), ((), 0), ((0, 1), 2))),
    ),
    composed(
        "slices of slices",
        _parts_of_torch,
        call(_parts, normal((4, 3, 5)), keys=(np.s_[::-2, None, ..., 1:0:-1],)),
        call(_parts, normal((4, 5)), keys=(np.s_[::-1, 1:], np.s_[1:, ::2], np.s_[-1])),
        call(_parts, normal((3, 4, 2)), keys=(np.s_[1:, None], np.s_[..., ::-1], np.s_[0, 0, 1:1])),
    ),
    composed(
        "ops.pad",
        _padded,
        *(call(ops.pad, normal((2, 3, 4)), widths=widths, mode=mode) for mode, widths in _EVERYWHERE.items()),
        call(ops.pad, normal((0, 3)), widths=((1, 2), (0, 1)), mode="constant", value=1.5),
    ),
    composed(
        "ops.embedding",
        # Torch's own has no second derivative where there are no elements.
        lambda torch, weight, indices: (
            torch.nn.functional.embedding(indices, weight) if weight.shape[1] * indices.numel() else weight[indices]
        ),
        *(
            call(_embedding, _embedded(*sizes))
            for sizes in ((3, 2, (4,)), (6, 1, (2, 3)), (2, 0, (3,)), (1, 5, ()), (4, 3, (0, 2)))
        ),
    ),
    composed(
        "ops.top_k",
        lambda torch, x, k, axis, largest: torch.topk(x, k, axis, largest),
        *(
            call(_top, normal(x), k=k, axis=axis, largest=largest)
            for x, k, axis in (((2, 5), 3, -1), ((4, 1, 3), 4, 0), ((3,), 0, 0))
            for largest in (True, False)
        ),
    ),
    composed(
        "ops.scatter",
        lambda torch, x, values, indices, axis, mode: x.scatter_reduce(axis, indices, values, _TORCH_MODES[mode]),
        *(
            _scattered(x, axis, count, mode)
            for x, axis, count in (((3, 4), 1, 5), ((2, 3, 2), -3, 0), ((4,), 0, 5))
            for mode in _TORCH_MODES
        ),
    ),
    composed(
        "ops.add_at",
        lambda torch, x, values, i, j: x.index_put((i, j), values, accumulate=True),
        *(
            call(_add_at, _rows_and_columns(x, picked))
            for x, picked in (((3, 4, 2), (5,)), ((2, 3), (3, 2)), ((1, 4), ()), ((3, 2, 4), (0, 2)))
        ),
    ),
]
