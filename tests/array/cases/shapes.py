"""Functions that arrange elements anew, and parts of arrays."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

from tests.array.cases.registry import call, case, nonempty
from tests.array.families import ALL, FLOATS, KINDS, REAL, Call, arrays, axes, pairs


@case
def concat(draw: st.DrawFn) -> Call:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3))
    axis = draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    dtypes = draw(st.sampled_from(KINDS[1:3]))
    one, other = draw(arrays(dtypes[:4], shape)), draw(arrays(dtypes[:4], shape))
    return call([one, other], lambda xp, a, b: xp.concat([a, b, a], axis=axis))


@case
def stack(draw: st.DrawFn) -> Call:
    dtypes = draw(st.sampled_from(KINDS))[:4]
    x = draw(arrays(dtypes))
    y = draw(arrays(dtypes, x.shape))
    axis = draw(st.integers(-x.ndim - 1, x.ndim))
    return call([x, y], lambda xp, x, y: xp.stack([x, y], axis=axis))


@case
def unstack(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    return call([x], lambda xp, x: xp.unstack(x, axis=axis))


@case
def reshape(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    shape = (-1, *x.shape[:1]) if draw(st.booleans()) else x.shape[::-1]
    copy = draw(st.sampled_from((None, True)))
    return call([x], lambda xp, x: xp.reshape(x, shape, copy=copy))


@case
def squeeze_several(draw: st.DrawFn) -> Call:
    x = draw(arrays(ALL, (1, draw(st.integers(0, 2)), 1)))
    axes = draw(st.sampled_from((0, 2, -1, -3, (0, 2), (-1, 0), ())))
    return call([x], lambda xp, x: xp.squeeze(x, axis=axes))


@case
def moveaxis_several(draw: st.DrawFn) -> Call:
    x = draw(arrays(ALL, (2, 3, 4)))
    count = draw(st.integers(0, 3))
    source, target = (tuple(draw(st.permutations((0, 1, -1)))[:count]) for _ in range(2))
    return call([x], lambda xp, x: xp.moveaxis(x, source, target))


@case
def roll_several(draw: st.DrawFn) -> Call:
    x = draw(arrays(ALL, (2, 3, 4)))
    axes = tuple(draw(st.permutations((0, 1, -1)))[: draw(st.integers(1, 3))])
    shifts = tuple(draw(st.integers(-5, 5)) for _ in axes)
    return call([x], lambda xp, x: xp.roll(x, shifts, axis=axes))


@case
def expand_dims(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    axis = draw(st.integers(-x.ndim - 1, x.ndim))
    return call([x], lambda xp, x: xp.squeeze(xp.expand_dims(x, axis=axis), axis))


@case
def permute_dims(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    order = tuple(draw(st.permutations(range(x.ndim))))
    return call([x], lambda xp, x: xp.permute_dims(x, order))


@case
def moveaxis(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    source, target = draw(st.integers(-x.ndim, x.ndim - 1)), draw(st.integers(-x.ndim, x.ndim - 1))
    return call([x], lambda xp, x: xp.moveaxis(x, source, target))


@case
def flip(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    axis = draw(axes(x.ndim))
    return call([x], lambda xp, x: xp.flip(x, axis=axis))


@case
def roll(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    shift = draw(st.integers(-5, 5))
    axis = draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1)))
    return call([x], lambda xp, x: xp.roll(x, shift, axis=axis))


@case
def tile(draw: st.DrawFn) -> Call:
    times = tuple(draw(st.lists(st.integers(0, 3), min_size=0, max_size=3)))
    return call([draw(arrays())], lambda xp, x: xp.tile(x, times))


@case
def repeat(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    if draw(st.booleans()):
        counts = draw(hnp.arrays(np.int64, x.shape[axis], elements=st.integers(0, 3)))
        return call([x, counts], lambda xp, x, n: xp.repeat(x, n, axis=axis))
    times = draw(st.integers(0, 3))
    return call([x], lambda xp, x: (xp.repeat(x, times, axis=axis), xp.repeat(x, times)))


@case
def broadcast_arrays(draw: st.DrawFn) -> Call:
    return call(draw(pairs(ALL)), lambda xp, a, b: tuple(xp.broadcast_arrays(a, b)))


@case
def broadcast_to(draw: st.DrawFn) -> Call:
    x = draw(arrays())
    return call([x], lambda xp, x: xp.broadcast_to(x, (2, *x.shape)))


@case
def getitem(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    key = draw(hnp.basic_indices(x.shape, allow_newaxis=True))
    # The standard wants each axis named, or an ellipsis.
    key = key if isinstance(key, tuple) else (key,)
    key = key if any(part is Ellipsis for part in key) else (*key, Ellipsis)
    return call([x], lambda xp, x: x[key])


@case
def setitem(draw: st.DrawFn) -> Call:
    x = draw(nonempty(FLOATS, 1))
    key = draw(hnp.basic_indices(x.shape))
    key = key if isinstance(key, tuple) else (key,)
    key = key if any(part is Ellipsis for part in key) else (*key, Ellipsis)

    def assign(xp: Any, x: Any) -> Any:
        y = xp.asarray(x, copy=True)
        y[key] = 7.0
        return y, x

    return call([x], assign)


@case
def mask(draw: st.DrawFn) -> Call:
    x = draw(nonempty(FLOATS, 1, finite=True))

    def assign(xp: Any, x: Any) -> Any:
        y = xp.asarray(x, copy=True)
        y[y > 0] = -1.0
        return y, x[x > 0]

    return call([x], assign)


@case
def take(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 1))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    indices = draw(hnp.arrays(np.int64, st.integers(0, 4), elements=st.integers(0, x.shape[axis] - 1)))
    return call([x, indices], lambda xp, x, i: xp.take(x, i, axis=axis))


@case
def take_along_axis(draw: st.DrawFn) -> Call:
    x = draw(nonempty(REAL, 1, small=True))
    axis = draw(st.integers(-x.ndim, x.ndim - 1))
    return call([x], lambda xp, x: xp.take_along_axis(x, xp.argsort(x, axis=axis), axis=axis))


@case
def integer_index(draw: st.DrawFn) -> Call:
    x = draw(nonempty(ALL, 2, 2))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3))
    rows = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, x.shape[0] - 1)))
    columns = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, x.shape[1] - 1)))
    return call([x, rows, columns], lambda xp, x, i, j: x[i, j])
