"""Parts by indices, writing into parts, scans, sorting and searching: of graphs and of lazy arrays, beside NumPy's."""

from __future__ import annotations

import numpy as np

import actorflow as af
import actorflow.array as xp
from actorflow import ops

X = np.random.default_rng(0).standard_normal((3, 4, 5))


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
