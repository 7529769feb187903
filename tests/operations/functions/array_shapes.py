"""Functions that arrange elements anew; parts of arrays, and what is written into them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.operations.functions.draws import ALL, FLOATS, INEXACT, NUMERIC, REAL, Call, Draws, function

_CUBE = (2, 3, 4)
_BACKWARDS = {"torch": "PyTorch has no negative steps"}


def _several(d: Draws, count: int, dtypes: tuple[str, ...] = NUMERIC) -> list[np.ndarray]:
    """Arrays of one shape, and of dtypes of one kind."""
    x = d.array(dtypes, dims=(1, 3))
    same = tuple(name for name in dtypes if np.dtype(name).kind == x.dtype.kind)
    return [x, *(d.array(same, d.shape) for _ in range(count - 1))]


def _drawn_reshape(d: Draws) -> Call:
    x = d.nonempty(ALL)
    shape = d.among((-1, x.shape[0]), x.shape[::-1], (-1,))
    return d(x, shape=shape, copy=None if d.is_smooth else d.among(None, True))


def _moved(d: Draws) -> Call:
    """One axis, or several."""
    if d.among(False, True):
        return d(d.nonempty(), source=d.axis(), to=d.axis())
    x, count = d.array(ALL, _CUBE), d.whole(0, 3)
    source, target = (tuple(d.random.permutation((0, 1, -1))[:count].tolist()) for _ in range(2))
    return d(x, source=source, to=target)


def _rolled(d: Draws) -> Call:
    """Along one axis, all, or several."""
    if d.among(False, True):
        return d(d.nonempty(), shift=d.whole(-5, 5), axis=d.one((None, d.axis())))
    x = d.array(ALL, _CUBE)
    axes = tuple(d.random.permutation((0, 1, -1))[: d.whole(1, 3)].tolist())
    return d(x, shift=tuple(d.whole(-5, 5) for _ in axes), axis=axes)


def _repeated(d: Draws) -> Call:
    x = d.nonempty(ALL)
    axis = d.axis()
    return d(x, d.random.integers(0, 4, x.shape[axis]), axis=axis)


def _broadcast(d: Draws) -> Call:
    x = d.array(ALL)
    return d(x, shape=(2, *(4 if n == 1 else n for n in x.shape)))


def _drawn_assignment(d: Draws) -> Call:
    x = d.nonempty(FLOATS)
    return d(x, d.array((d.dtype,), ()), key=d.key())


def _assigned(xp: Any, x: Any, *values: Any, key: Any, again: Any = None) -> Any:
    """What becomes of an array, and the array."""
    y = x * 1
    for i, part in enumerate((key,) if again is None else (key, again)):
        y[xp.asarray(part) if isinstance(part, np.ndarray) else part] = values[i % len(values)] * 2
    return y * y, x


#: Keys of a cube, and shapes of what is written there.
_PARTS = (
    ((slice(None), 1, Ellipsis), (2, 4)),
    ((0, slice(None, None, 2), Ellipsis), ()),
    ((slice(None), slice(0, 2), Ellipsis), (2, 1, 1)),
    (np.array([[True, False, True], [False, False, True]]), ()),
)
_MORE_PARTS = (
    (np.array([[True, False, True], [False, True, True]]), (4,)),
    (_PARTS[3][0], (3, 4)),
    (np.array([1, 0]), _CUBE),
)


def _drawn_part(parts: Any, again: Any = None) -> Any:
    def draw(d: Draws) -> Call:
        key, shape = d.among(*parts)
        return d(d.array(("float64",), _CUBE), d.array(("float64",), shape), key=key, again=again)

    return draw


def _of_mask(xp: Any, x: Any) -> Any:
    y = xp.asarray(x, copy=True)
    y[y > 0] = -1.0
    return y, x[x > 0]


def _at(d: Draws) -> Call:
    x = d.nonempty(ALL)
    axis = d.axis()
    return d(x, d.random.integers(0, x.shape[axis], d.whole(0, 4)), axis=axis)


def _places(d: Draws) -> Call:
    x = d.array(ALL, dims=(2, 2), least=1)
    shape = tuple(d.whole(0, 3) for _ in range(d.whole(1, 2)))
    return d(x, *(d.random.integers(0, n, shape) for n in x.shape))


def _along(d: Draws) -> Call:
    x = d.nonempty(REAL)
    axis = d.axis()
    shape = tuple(d.whole(1, 4) if i == axis % x.ndim else n for i, n in enumerate(x.shape))
    return d(x, d.random.integers(0, x.shape[axis], shape), axis=axis)


ROWS = [
    function(
        "concat",
        lambda d: d(*_several(d, 2), axis=d.one((None, 0, d.axis()))),
        lambda xp, x, y, axis: xp.concat([x, y, x * y[: min(1, y.shape[0]), ...] if axis == 0 else x], axis=axis),
    ),
    function(
        "stack",
        lambda d: d(*_several(d, 2, ALL), axis=d.axis(extra=1)),
        lambda xp, x, y, axis: xp.stack([x, y], axis=axis),
    ),
    function("unstack", lambda d: d(d.nonempty(), axis=d.axis()), lambda xp, x, axis: tuple(xp.unstack(x, axis=axis))),
    function("reshape", _drawn_reshape),
    function(
        "squeeze", lambda d: d(d.array(ALL, (1, d.whole(0, 2), 1)), axis=d.among(0, 2, -1, -3, (0, 2), (-1, 0), ()))
    ),
    function(
        "expand_dims",
        lambda d: d(d.array(), axis=d.axis(extra=1)),
        lambda xp, x, axis: (xp.expand_dims(x, axis=axis), xp.squeeze(xp.expand_dims(x, axis=axis), axis)),
    ),
    function("permute_dims", lambda d: d(d.array(), axes=tuple(d.random.permutation(len(d.shape)).tolist()))),
    function("moveaxis", _moved, lambda xp, x, source, to: xp.moveaxis(x, source, to)),
    function("flip", lambda d: d(d.array(), axis=d.axes())),
    function("roll", _rolled),
    function(
        "tile",
        lambda d: d(d.array(), repetitions=tuple(d.whole(0, 3) for _ in range(d.whole(0, 4)))),
        lambda xp, x, repetitions: xp.tile(x, repetitions),
    ),
    function(
        "repeat",
        lambda d: d(d.nonempty(), times=d.whole(0, 3), axis=d.axis()),
        lambda xp, x, times, axis: (xp.repeat(x, times, axis=axis), xp.repeat(x, times)),
    ),
    function("repeat by counts", _repeated, lambda xp, x, n, axis: xp.repeat(x, n, axis=axis)),
    function("broadcast_arrays", lambda d: d(*d.pair(ALL)), lambda xp, x, y: tuple(xp.broadcast_arrays(x, y))),
    function("broadcast_to", _broadcast),
    function(
        "meshgrid",
        lambda d: d(d.array(NUMERIC, (3,)), d.array((d.dtype,), (d.whole(0, 2),)), indexing=d.among("xy", "ij")),
        lambda xp, x, y, indexing: tuple(xp.meshgrid(x, y, x, indexing=indexing)),
    ),
    function(
        "triangles",
        lambda d: d(d.nonempty(dims=2), k=d.whole(-3, 3)),
        lambda xp, x, k: (xp.tril(x, k=k), xp.triu(x, k=k), xp.tril(x), xp.triu(x)),
    ),
    function(
        "x[key]", lambda d: d(d.nonempty(), key=d.key(is_new=True)), lambda xp, x, key: x[key], without=_BACKWARDS
    ),
    function(
        "x[::-1]",
        lambda d: d(d.array(INEXACT, _CUBE)),
        lambda xp, x: (xp.flip(x, axis=1)[:, :2, ::2], x[1, ..., -1, None]),
    ),
    function("x[key] = y", _drawn_assignment, _assigned, without=_BACKWARDS),
    function("x[part] = y", _drawn_part(_PARTS), _assigned),
    function("x[part], x[:, 1:] = y", _drawn_part(_PARTS[1:2], (slice(None), slice(1, None), Ellipsis)), _assigned),
    function("x[mask]", lambda d: d(d.nonempty(FLOATS, small=True)), _of_mask, differentiable=False),
    function(
        "x[known mask]",
        lambda d: d(d.array(INEXACT, _CUBE)),
        lambda xp, x: x[xp.asarray(_PARTS[3][0])],
        without={"standard": "a mask may not be shorter than an array"},
    ),
    function(
        "x[mask or indices] = y",
        _drawn_part(_MORE_PARTS),
        _assigned,
        without={"standard": "only numbers are written at masks, and nothing at indices"},
    ),
    function(
        "x[[1, 0, 1]] = y",
        _drawn_part([(np.array([1, 0, 1]), (3, 3, 4))]),
        _assigned,
        without={
            "standard": "nothing is written at indices",
            "torch": "all that is written to a place has its gradient",
        },
    ),
    function("x[i, j]", _places, lambda xp, x, i, j: x[i, j]),
    function(
        "x[[...], :, i]",
        lambda d: d(d.array(INEXACT, _CUBE)),
        lambda xp, x: x[[0, 1, 0, 0], :, xp.asarray([3, 1, 3, 0])],
        without={"standard": "no list is an index"},
    ),
    function("take", _at, lambda xp, x, i, axis: xp.take(x, i, axis=axis)),
    function("take_along_axis", _along),
    function(
        "made inside",
        lambda d: d(d.array(("float64",), (2, 2))),
        lambda xp, x: xp.where(
            xp.asarray([True, False]),
            xp.asarray([[4.0, 1.0], [0.0, 2.0]]) @ x,
            xp.linalg.solve(xp.asarray([[4.0, 1.0], [0.0, 2.0]]), x * x),
        ),
    ),
    function(
        "products inside",
        lambda d: d(d.array(("float64",), (2, 2))),
        lambda xp, x: (
            xp.tensordot(xp.asarray([[4.0, 1.0], [0.0, 2.0]]), x, axes=1),
            xp.linalg.outer(x[0, :], xp.asarray([1.0, 3.0])) * xp.take(x, xp.asarray([1, 1]), axis=0),
            *_assigned(xp, x, xp.asarray([5.0, 6.0]), key=(1, Ellipsis)),
        ),
    ),
]
