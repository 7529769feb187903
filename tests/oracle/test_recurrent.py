"""Long short-term memory against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from tests.oracle.comparison import check, drawn, examples

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")

pytestmark = pytest.mark.oracle

dtypes = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)
many = examples(25)


@many
@given(st.integers(0, 5), sizes, sizes, dtypes, seeds)
def test_a_step(batch, features, hidden, dtype, seed) -> None:
    shapes = (batch, features), (batch, hidden), (batch, hidden), (4 * hidden, features), (4 * hidden, hidden)
    arrays = drawn(seed, *shapes, (4 * hidden,), dtype=dtype)

    def theirs(x, h, c, weight_x, weight_h, bias):
        return torch.lstm_cell(x, (h, c), weight_x, weight_h, bias, torch.zeros_like(bias))

    check(ops.lstm_cell, theirs, arrays)


def _lstm(x, h, c, weight_x, weight_h, bias):
    return ops.lstm(x, weight_x, weight_h, bias, h, c)


def _torch_lstm(x, h, c, weight_x, weight_h, bias):
    weights = [weight_x, weight_h, bias, torch.zeros_like(bias)]
    y, last_h, last_c = torch.lstm(x, (h[None], c[None]), weights, True, 1, 0.0, True, False, False)
    return y, last_h[0], last_c[0]


@many
@given(st.integers(1, 4), sizes, sizes, sizes, dtypes, seeds)
def test_a_sequence(steps, batch, features, hidden, dtype, seed) -> None:
    shapes = (steps, batch, features), (batch, hidden), (batch, hidden), (4 * hidden, features), (4 * hidden, hidden)
    check(_lstm, _torch_lstm, drawn(seed, *shapes, (4 * hidden,), dtype=dtype))


@pytest.mark.parametrize("steps", [1, 2])
def test_the_third_derivative_of_a_sequence(steps) -> None:
    arrays = drawn(steps, (steps, 2, 3), (2, 2), (2, 2), (8, 3), (8, 2), (8,), dtype="float64")
    check(_lstm, _torch_lstm, arrays, orders=3)


@pytest.mark.parametrize("output", [0, 1, 2])
def test_the_gradient_of_one_output_alone(output) -> None:
    arrays = drawn(0, (3, 2, 4), (20, 4), (20, 5), dtype="float64")

    def theirs(x, weight_x, weight_h):
        zeros = torch.zeros(1, 2, 5, dtype=torch.float64)
        biases = [torch.zeros(20, dtype=torch.float64)] * 2
        y, h, c = torch.lstm(x, (zeros, zeros), [weight_x, weight_h, *biases], True, 1, 0.0, True, False, False)
        return (y, h[0], c[0])[output]

    check(lambda *given: ops.lstm(*given)[output], theirs, arrays)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_layer(batch_first, layers) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, 3, 5), "float64")
    layer = nn.LSTM(6, layers=layers, batch_first=batch_first)
    reference = torch.nn.LSTM(5, 6, num_layers=layers, batch_first=batch_first).double()
    tops = layer(x)
    for variable in layer.variables:
        value = np.random.default_rng(len(variable.name)).standard_normal(variable.shape) * 0.3
        variable.value = value
        _, scope, name = variable.name.split("/")
        kind = {"weight_x": "weight_ih", "weight_h": "weight_hh", "bias": "bias_ih"}[name]
        with torch.no_grad():
            getattr(reference, f"{kind}_l{scope.removeprefix('layer')}").copy_(torch.from_numpy(variable.value))
            getattr(reference, f"bias_hh_l{scope.removeprefix('layer')}").zero_()
    (value,) = drawn(0, x.shape, dtype="float64")
    result = graph.run_sync({x: value}, fetch=tops)
    y, (h, c) = reference(torch.from_numpy(value))
    for mine, expected in zip(tops, (y, h, c), strict=True):
        np.testing.assert_allclose(result[mine], expected.detach().numpy(), rtol=1e-9, atol=1e-12)
