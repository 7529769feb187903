"""Parts by indices, writing into parts, the largest, and shapes, as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow import ops
from tests.operations.table import Row, Sample, fixed

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 4, 5))
ROWS, COLUMNS = np.array([2, 0, -1, 0]), np.array([[1, -4, 3, 1]]).T
PLACES = np.array([[0, 1], [2, -1], [0, 1], [1, 3]])
PARTS = RANDOM.standard_normal((4, 5))
UFUNCS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
ALONG = RANDOM.integers(-4, 4, (2, 3, 5))


def _put(x: np.ndarray, key: Any, values: Any, mode: str = "set") -> np.ndarray:
    y = x.copy()
    if mode == "set":
        y[key] = values
    else:
        UFUNCS[mode].at(y, key, values)
    return y


def _largest(x: np.ndarray, k: int, axis: int) -> np.ndarray:
    return np.moveaxis(np.sort(np.moveaxis(x, axis, -1), axis=-1)[..., ::-1][..., :k], -1, axis)


_WRITTEN = (np.arange(3)[:, None, None], ALONG.transpose(1, 0, 2), np.arange(5))
#: What ours makes of blobs or arrays, what NumPy makes of values, and these; floating ones are differentiated by.
_CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[np.ndarray]]] = {
    "x[i, :, j]": (lambda x, i, j: x[i, :, j], lambda x, i, j: x[i, :, j], [X, ROWS, COLUMNS]),
    "x[1, i, None]": (lambda x, i: x[1, i, None, ::-2], lambda x, i: x[1, i, None, ::-2], [X, ROWS]),
    "x[array]": (lambda x: x[[2, 0, 0], 1:], lambda x: x[[2, 0, 0], 1:], [X]),
    "x[mask]": (lambda x: x[X > 0.5], lambda x: x[X > 0.5], [X]),
    "gather_nd": (ops.gather_nd, lambda x, i: x[i[:, 0], i[:, 1]], [X, PLACES]),
    "gather_nd of one axis": (ops.gather_nd, lambda x, i: x[i[..., 0]], [X, PLACES[:3, :, None] % 3]),
    "gather_nd of batches": (
        lambda x, i: ops.gather_nd(x, i, batch_dims=1),
        lambda x, i: np.stack([row[at[:, 0]] for row, at in zip(x, i, strict=True)]),
        [X, ALONG[0][:, :, None]],
    ),
    **{
        f"scatter_nd {mode}": (
            lambda x, i, v, mode=mode: ops.scatter_nd(x, i, v, mode),
            lambda x, i, v, mode=mode: _put(x, (i[:, 0], i[:, 1]), v, mode),
            [X, PLACES, PARTS],
        )
        for mode in ("set", *UFUNCS)
    },
    "scatter_nd mul by zeros": (
        lambda x, i, v: ops.scatter_nd(x, i, v, "mul"),
        lambda x, i, v: _put(x, (i[:, 0], i[:, 1]), v, "mul"),
        [X, PLACES, PARTS * (RANDOM.random(PARTS.shape) < 0.6)],
    ),
    **{
        f"scatter {mode}": (
            lambda x, i, v, mode=mode: ops.scatter(x, i, v, axis=1, mode=mode),
            lambda x, i, v, mode=mode: _put(x, _WRITTEN, v, mode),
            [X, ALONG.transpose(1, 0, 2), RANDOM.standard_normal((3, 2, 5))],
        )
        for mode in ("set", "add", "max")
    },
    "add_at": (
        lambda x, i, v: ops.add_at(x, (slice(1, None), i), v),
        lambda x, i, v: _put(x, (slice(1, None), i), v, "add"),
        [X, ROWS, RANDOM.standard_normal((2, 4, 5))],
    ),
    "take_down": (lambda g, i: ops.take_down(g, i, 3), lambda g, i: _put(np.zeros((3, 5)), i, g, "add"), [PARTS, ROWS]),
    "top_k": (lambda x: ops.top_k(x, 2, axis=1)[0], lambda x: _largest(x, 2, 1), [X]),
    "top_k least": (lambda x: ops.top_k(x, 3, largest=False)[0], lambda x: np.sort(x)[..., :3], [X]),
    "top_k indices": (lambda x: ops.top_k(x, 1)[1], lambda x: np.argmax(x, -1, keepdims=True), [np.round(X)]),
    "top_k in order": (
        lambda x: ops.top_k(x, 2, sorted=False)[1],
        lambda x: np.sort(np.argsort(-x, -1, stable=True)[..., :2]),
        [np.round(X)],
    ),
    "nonzero": (
        lambda x: ops.nonzero(x, 7, fill=-1)[0],
        lambda x: np.concatenate([np.stack(np.nonzero(x)), np.full((2, 7), -1)], 1)[:, :7],
        [np.eye(4)],
    ),
    "nonzero of more": (lambda x: ops.nonzero(x, 2)[1], lambda x: np.count_nonzero(x), [np.eye(4)]),
    "searchsorted": (
        lambda x, v, i: ops.searchsorted(x, v, "right", sorter=i),
        lambda x, v, i: np.searchsorted(x, v, "right", i),
        [X[0, 0], np.append(X[0, 0], 0.1), np.argsort(X[0, 0])],
    ),
    "repeat": (lambda x: ops.repeat(x, (1, 0, 3), 0), lambda x: np.repeat(x, (1, 0, 3), 0), [X]),
}

#: Functions whose results are indices and counts.
_WHOLE = ("top_k i", "nonzero", "searchsorted")
ROWS = [
    Row(
        None,
        [Sample(ours, fixed(*values))],
        name=name,
        numpy=numpys,
        differentiable=not name.startswith(_WHOLE),
        orders=1 if "mul" in name else 2,  # whose second gradient is not that of factors that are 0
    )
    for name, (ours, numpys, values) in _CASES.items()
]
