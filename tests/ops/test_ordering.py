"""Parts by indices, writing into parts, scans, sorting and searching: of graphs and of lazy arrays, beside NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow import ops

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 4, 5))
ZEROS = X * (RANDOM.random(X.shape) < 0.7)
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


def _scanned(x: np.ndarray, ufunc: np.ufunc, exclusive: bool, reverse: bool) -> np.ndarray:
    x = x[:, ::-1] if reverse else x
    y = ufunc.accumulate(x, axis=1)
    if exclusive:
        y = np.concatenate([np.full_like(y[:, :1], ufunc.identity), y[:, :-1]], axis=1)
    return y[:, ::-1] if reverse else y


_WRITTEN = (np.arange(3)[:, None, None], ALONG.transpose(1, 0, 2), np.arange(5))
#: What ours makes of blobs or arrays, what NumPy makes of values, and these; floating ones are differentiated by.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[np.ndarray]]] = {
    "x[i, :, j]": (lambda x, i, j: x[i, :, j], lambda x, i, j: x[i, :, j], [X, ROWS, COLUMNS]),
    "x[i, j]": (lambda x, i, j: x[..., i, 1:, j], lambda x, i, j: x[i, 1:, j], [X, ROWS, COLUMNS]),
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
    "take_down": (
        lambda g, i: ops.take_down(g, i, 3),
        lambda g, i: _put(np.zeros((3, 5)), i, g, "add"),
        [PARTS, ROWS],
    ),
    "top_k": (lambda x: ops.top_k(x, 2, axis=1)[0], lambda x: _largest(x, 2, 1), [X]),
    "top_k least": (lambda x: ops.top_k(x, 3, largest=False)[0], lambda x: np.sort(x)[..., :3], [X]),
    "top_k indices": (lambda x: ops.top_k(x, 1)[1], lambda x: np.argmax(x, -1, keepdims=True), [np.round(X)]),
    "top_k in order": (
        lambda x: ops.top_k(x, 2, sorted=False)[1],
        lambda x: np.sort(np.argsort(-x, -1, stable=True)[..., :2]),
        [np.round(X)],
    ),
    "sort": (lambda x: ops.sort(x, 1, descending=True), lambda x: np.sort(x, 1)[:, ::-1], [X]),
    "argsort": (lambda x: ops.argsort(x, 0), lambda x: np.argsort(x, 0, stable=True), [np.round(X)]),
    **{
        f"{name} {exclusive} {reverse}": (
            lambda x, f=form, e=exclusive, r=reverse: f(x, 1, e, r),
            lambda x, u=ufunc, e=exclusive, r=reverse: _scanned(x, u, e, r),
            [values],
        )
        for name, form, ufunc, values in (
            ("cumsum", ops.cumsum, np.add, X),
            ("cumprod", ops.cumprod, np.multiply, X),
            ("cumprod of zeros", ops.cumprod, np.multiply, ZEROS),
        )
        for exclusive in (False, True)
        for reverse in (False, True)
    },
    "prod of zeros": (lambda x: ops.prod(x, 1), lambda x: x.prod(1), [ZEROS]),
    "prod of all": (lambda x: ops.prod(x), lambda x: x.prod(), [X[0]]),
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
    "isin": (ops.isin, np.isin, [np.round(X), np.array([1.0, 0.0])]),
    "roll": (lambda x: ops.roll(x, (1, -7), (0, 2)), lambda x: np.roll(x, (1, -7), (0, 2)), [X]),
    "roll of all": (lambda x: ops.roll(x, 3), lambda x: np.roll(x, 3), [X]),
    "tile": (lambda x: ops.tile(x, (2, 1, 1, 2)), lambda x: np.tile(x, (2, 1, 1, 2)), [X]),
    "repeat": (lambda x: ops.repeat(x, (1, 0, 3), 0), lambda x: np.repeat(x, (1, 0, 3), 0), [X]),
    "tril": (lambda x: ops.tril(x, -1), lambda x: np.tril(x, -1), [X]),
    "triu": (lambda x: ops.triu(x, 1), lambda x: np.triu(x, 1), [X]),
    "moveaxis": (lambda x: ops.moveaxis(x, (0, 1), (-1, 0)), lambda x: np.moveaxis(x, (0, 1), (-1, 0)), [X]),
    "unstack": (lambda x: ops.unstack(x, -1)[2], lambda x: x[..., 2], [X]),
}


@pytest.mark.parametrize("name", CASES)
def test_graphs_arrays_and_numpy_agree(name: str) -> None:
    ours, numpys, values = CASES[name]
    expected = np.asarray(numpys(*values))
    graph = af.Graph("g")
    blobs = [graph.blob(f"x{i}", each.shape, each.dtype) for i, each in enumerate(values)]
    y = ours(*blobs)
    of_graph = graph.run_sync(dict(zip(blobs, values, strict=True)), fetch=[y])[y]
    of_array = ours(*[xp.asarray(each) for each in values])
    for found in (of_graph, of_array.to_numpy()):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


FLOATING = [name for name in CASES if not name.startswith(("top_k i", "argsort", "nonzero", "searchsorted", "isin"))]


def _along(grads: Any, towards: list[Any]) -> Any:
    return sum(xp.sum(g * t) for g, t in zip(grads, towards, strict=True))


def _difference(function: Callable[..., Any], arrays: list[Any], towards: list[Any]) -> float:
    """The derivative along a direction, as a central difference."""
    ahead, behind = (
        float(function(*[x + by * t for x, t in zip(arrays, towards, strict=True)])) for by in (1e-5, -1e-5)
    )
    return (ahead - behind) / 2e-5


@pytest.mark.parametrize("name", FLOATING)
def test_gradients_of_graphs_and_arrays_to_the_second_order(name: str) -> None:
    ours, _, values = CASES[name]
    numbers = [each for each in values if each.dtype.kind == "f"]
    arrays = [xp.asarray(each) for each in numbers]
    towards = [xp.asarray(RANDOM.standard_normal(each.shape)) for each in numbers]
    which = tuple(range(len(numbers)))

    def result(*given: Any) -> Any:
        rest = iter(given)
        return ours(*[next(rest) if each.dtype.kind == "f" else given[0].literal(each) for each in values])

    def loss(*given: Any) -> Any:
        return xp.sum(result(*given) ** 2.0)

    def slope(*given: Any) -> Any:
        return _along(af.grad(loss, which)(*given), towards)

    first = af.grad(loss, which)(*arrays)
    np.testing.assert_allclose(float(_along(first, towards)), _difference(loss, arrays, towards), rtol=1e-6, atol=1e-6)
    graph = af.Graph("g")
    blobs = [graph.variable(f"x{i}", each.shape, each.dtype, init=each) for i, each in enumerate(numbers)]
    grads = af.gradient(ops.sum(ops.square(result(*blobs))), blobs)
    found = graph.run_sync({}, fetch=grads)
    for g, of_array in zip(grads, first, strict=True):
        np.testing.assert_allclose(found[g], of_array.to_numpy(), rtol=1e-9, atol=1e-12)
    if "mul" not in name:  # whose second gradient is not that of factors that are 0
        second = float(_along(af.grad(slope, which)(*arrays), towards))
        np.testing.assert_allclose(second, _difference(slope, arrays, towards), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda x, i: ops.top_k(x, 5, axis=1), af.ShapeError, "top_k: k must be from 0 to 4, got 5"),
        (lambda x, i: ops.scatter_nd(x, i, x), af.ShapeError, r"Scatter: values of shape \(3, 4, 5\) do not broadcast"),
        (lambda x, i: ops.scatter_nd(x, i, i), af.DTypeError, "Scatter: values must have x's dtype float64"),
        (lambda x, i: ops.scatter_nd(x, i, x[:2, 0], "sub"), af.GraphError, "mode must be 'set', 'add'"),
        (lambda x, i: ops.gather_nd(x, i, 1), af.ShapeError, "gather_nd: indices must have shape"),
        (lambda x, i: ops.roll(x, (1, 2), 0), af.ShapeError, "roll: give one shift, or one for each of 1 axes"),
        (lambda x, i: ops.repeat(x, (1, 2), 0), af.ShapeError, "repeat: repeats must be one number or 3 numbers"),
        (lambda x, i: ops.tril(x[0, 0]), af.ShapeError, r"tril: x must have shape \(..., rows, columns\)"),
        (lambda x, i: ops.cumsum(x, 3), af.AxisError, "CumSum: axis must be from -3 to 2, got 3"),
        (lambda x, i: ops.cumsum(ops.isin(x, x)), af.DTypeError, "CumSum: x must be numeric"),
        (lambda x, i: ops.searchsorted(x, x), af.ShapeError, "searchsorted: x1 must have one axis"),
        (lambda x, i: ops.searchsorted(x[0, 0], x, "up"), af.GraphError, "side must be 'left' or 'right'"),
        (lambda x, i: ops.nonzero(x, -1), af.ShapeError, "size must not be negative"),
        (lambda x, i: ops.concat([]), af.ShapeError, "concat: give at least one part"),
        (lambda x, i: x[x > 0.0], af.DTypeError, "that only the values tell"),
        (lambda x, i: x[[3]], af.ShapeError, "index 3 is out of bounds for an axis of length 3"),
    ],
)
def test_errors_name_what_is_wrong(wrong: Any, error: type[Exception], message: str) -> None:
    graph = af.Graph("g")
    x, i = graph.blob("x", (3, 4, 5), "float64"), graph.blob("i", (2, 2), "int64")
    with pytest.raises(error, match=message):
        wrong(x, i)
    assert len(graph.ops) <= 2  # what a part of an expression has made


def test_half_precision_is_summed_in_float32() -> None:
    x = np.full(4096, 0.1, np.float16)
    graph = af.Graph("g")
    blob = graph.blob("x", x.shape, x.dtype)
    total = ops.cumsum(blob)[-1]
    added = ops.take_down(blob, blob.literal(np.zeros(4096, int)), 1)
    found = graph.run_sync({blob: x})
    expected = x.astype(np.float32).sum()
    np.testing.assert_allclose([found[total], found[added][0]], expected, rtol=1e-3)


def test_axes_may_be_integers_of_numpy() -> None:
    one = np.int64(1)
    x = xp.asarray(X)
    graph = af.Graph("g")
    blob = graph.blob("x", X.shape, X.dtype)
    for each, functions in ((x, xp), (blob, ops)):
        for name in ("expand_dims", "flip", "sort", "roll", "unstack", "take", "repeat"):
            more = {"roll": (1,), "take": (each.literal(np.array([0, 1])),), "repeat": (2,)}.get(name, ())
            found, wanted = (getattr(functions, name)(each, *more, axis=axis) for axis in (one, 1))
            assert found[0].shape == wanted[0].shape, name
    assert ops.concat([blob, blob], one).shape == (3, 8, 5)
    assert ops.stack([blob, blob], one).shape == (3, 2, 4, 5)
    assert blob[np.int8(0), : np.int64(2)].shape == (2, 5)
