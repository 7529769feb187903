"""Attention and rotary positions; PyTorch checks values and gradients in tests/oracle."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow import ops
from tests.support.numbers import drawn


@pytest.mark.parametrize("additive", [False, True])
def test_a_query_that_sees_nothing_gives_0_and_has_no_gradient(additive) -> None:
    graph = af.Graph("g")
    q, k, v = (graph.variable(f"v{i}", a.shape, "f8", a) for i, a in enumerate(drawn((2, 3, 4), (2, 5, 4), (2, 5, 6))))
    seen = np.ones((3, 5), bool)
    seen[1] = False
    mask = graph.constant(np.where(seen, 0.0, -np.inf) if additive else seen)
    y = ops.attention(q, k, v, mask)
    grads = af.gradient(ops.sum(ops.square(y)), [q, k, v])
    result = graph.run_sync(fetch=[y, *grads])
    assert not result[y][:, 1].any()
    assert result[y][:, [0, 2]].all()
    assert not result[grads[0]][:, 1].any()
    assert all(np.isfinite(result[g]).all() for g in grads)


def test_a_causal_query_depends_on_no_later_key() -> None:
    q, k, v = (xp.asarray(a) for a in drawn((5, 4), (5, 4), (5, 2)))
    grads = af.grad(lambda v: xp.sum(ops.attention(q, k, v, causal=True)[2]))(v)
    assert np.asarray(grads)[:3].all()
    assert not np.asarray(grads)[3:].any()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_arrays_blobs_and_half_precision(name) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    x, context, angles = drawn((2, 4, 12), (2, 5, 6), (1, 4, 2))

    def function(x, context, cos, sin):
        q = ops.rotary(ops.rms_norm(x), cos, sin, interleaved=True)
        return ops.instance_norm(ops.attention(q, context, context, causal=True, heads=4))

    arrays = [x, context, np.cos(angles), np.sin(angles)]
    expected = np.asarray(function(*map(xp.asarray, arrays)))
    graph = af.Graph("g")
    blobs = [graph.blob(f"v{i}", a.shape, dtype) for i, a in enumerate(arrays)]
    y = function(*blobs)
    found = graph.run_sync({b: a.astype(dtype) for b, a in zip(blobs, arrays, strict=True)})[y]
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=0.1, atol=0.1)


@pytest.mark.together("masked", [False, True])
@pytest.mark.together(("heads", "kv"), [((), ()), ((4,), (2,)), ((2,), (2,))])
def test_the_last_op_has_the_name(heads, kv, masked) -> None:
    graph = af.Graph("g")
    q, k = graph.blob("q", (*heads, 3, 4)), graph.blob("k", (*kv, 3, 4))
    mask = graph.blob("mask", (3, 3), "bool") if masked else None
    assert ops.attention(q, k, k, mask, name="seen").name == "seen/out"
