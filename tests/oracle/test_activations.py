"""Activations and softmax against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow import ops
from tests.oracle.comparison import check, drawn, examples

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")
F = torch.nn.functional

pytestmark = pytest.mark.oracle

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
dtypes = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32 - 1)

CASES = {
    "relu": (ops.relu, torch.relu),
    "sigmoid": (ops.sigmoid, torch.sigmoid),
    "tanh": (ops.tanh, torch.tanh),
    "leaky_relu": (ops.leaky_relu, F.leaky_relu),
    "leaky_relu steep": (lambda x: ops.leaky_relu(x, 1.7), lambda x: F.leaky_relu(x, 1.7)),
    "leaky_relu flat": (lambda x: ops.leaky_relu(x, 0.0), lambda x: F.leaky_relu(x, 0.0)),
    "elu": (ops.elu, F.elu),
    "elu 0.3": (lambda x: ops.elu(x, 0.3), lambda x: F.elu(x, 0.3)),
    "gelu": (ops.gelu, F.gelu),
    "gelu tanh": (lambda x: ops.gelu(x, tanh=True), lambda x: F.gelu(x, approximate="tanh")),
    "silu": (ops.silu, F.silu),
    "softplus": (ops.softplus, F.softplus),
    "softplus 2": (lambda x: ops.softplus(x, 2.0, 3.0), lambda x: F.softplus(x, 2.0, 3.0)),
}


@pytest.mark.parametrize("kind", CASES)
@examples(10)
@given(shape=shapes, dtype=dtypes, stretch=st.sampled_from([0.1, 1.0, 6.0]), seed=seeds)
def test_activations_and_their_gradients(kind, shape, dtype, stretch, seed) -> None:
    (x,) = drawn(seed, shape, dtype=dtype)
    # torch's second derivative of softplus is 0 beyond the threshold, ours the logistic curve's.
    orders = 1 if kind == "softplus 2" else 2
    check(*CASES[kind], [(x * stretch).astype(dtype)], orders)


@pytest.mark.parametrize("kind", CASES)
def test_large_and_special_numbers(kind) -> None:
    x = np.array([0.0, -0.0, 1e-30, 1e30, -1e30, np.inf, 20.5, -20.5, 700.0, -700.0, np.nan])
    y, expected = (np.asarray(v) for v in (_first(CASES[kind][0], x), CASES[kind][1](torch.from_numpy(x)).numpy()))
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-50)  # torch rounds the tail of gelu to 0


def _first(function, x):
    import actorflow as af

    graph = af.Graph("one")
    blob = graph.blob("x", x.shape, x.dtype)
    y = function(blob)
    return np.array(graph.run_sync({blob: x})[y])


@pytest.mark.parametrize(
    ("mine", "oracle"), [(ops.softmax, torch.softmax), (ops.log_softmax, torch.log_softmax)], ids=["softmax", "log"]
)
@examples(20)
@given(shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5), data=st.data(), dtype=dtypes, seed=seeds)
def test_softmax_over_any_axis(mine, oracle, shape, data, dtype, seed) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    (x,) = drawn(seed, shape, dtype=dtype)
    check(lambda x: mine(x, axis), lambda x: oracle(x, axis), [(4 * x).astype(dtype)], orders=3)
