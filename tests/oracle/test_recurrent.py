"""Long short-term memory against PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

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


def _both(one: Callable[..., Any]) -> Callable[..., Any]:
    """Forwards and backwards side by side, as torch's bidirectional layers: weights come twice."""

    def ours(x, *rest):
        weights = [rest[: len(rest) // 2], rest[len(rest) // 2 :]]
        found = [one(x, *weights[i], reverse=bool(i)) for i in (0, 1)]
        (y, *last), (back, *first) = found
        return [ops.concat([y, back], axis=2), *(ops.stack(pair) for pair in zip(last, first, strict=True))]

    return ours


CELLS = {
    "tanh": (1, torch.nn.RNN, {}, lambda x, wx, wh, b, bh, **how: ops.rnn(x, wx, wh, ops.add(b, bh), **how)),
    "relu": (
        1,
        torch.nn.RNN,
        {"nonlinearity": "relu"},
        lambda x, wx, wh, b, bh, **how: ops.rnn(x, wx, wh, ops.add(b, bh), activation="relu", **how),
    ),
    "gru": (3, torch.nn.GRU, {}, ops.gru),
    "lstm": (4, torch.nn.LSTM, {}, lambda x, wx, wh, b, bh, **how: ops.lstm(x, wx, wh, ops.add(b, bh), **how)),
}


@pytest.mark.parametrize("kind", CELLS)
@many
@given(st.integers(1, 4), sizes, sizes, sizes, st.booleans(), st.booleans(), dtypes, seeds)
def test_sequences_of_one_or_both_directions(kind, steps, batch, features, hidden, both, packed, dtype, seed) -> None:
    gates, layer, settings, one = CELLS[kind]
    rows = gates * hidden
    shapes = [(rows, features), (rows, hidden), (rows,), (rows,)] * (1 + both)
    arrays = drawn(seed, (steps, batch, features), *shapes, dtype=dtype)
    lengths = np.random.default_rng(seed).integers(1, steps + 1, batch)

    def theirs(x, *weights):
        module = layer(features, hidden, bidirectional=both, **settings).to(x.dtype)
        names = [name for name, _ in module.named_parameters()]
        given = dict(zip(names, weights, strict=True))
        given_x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False) if packed else x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y, last = torch.func.functional_call(module, given, (given_x,))
        if packed:
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=steps)
        last = last if isinstance(last, tuple) else (last,)
        return [y, *(state if both else state[0] for state in last)]

    def ours(x, *weights):
        known = x.graph.variable("lengths", lengths.shape, "int64", lengths) if packed else None
        run = partial(one, lengths=known)
        return (_both(run) if both else run)(x, *weights)

    check(ours, theirs, arrays)


def _by_definition(x, h, c, weight_x, weight_h, bias, peepholes):
    i_peep, f_peep, o_peep = peepholes.chunk(3)
    found = []
    for part in x:
        i, f, z, o = (part @ weight_x.T + h @ weight_h.T + bias).chunk(4, 1)
        i, f = torch.sigmoid(i + i_peep * c), torch.sigmoid(f + f_peep * c)
        c = f * c + i * torch.tanh(z)
        h = torch.sigmoid(o + o_peep * c) * torch.tanh(c)
        found.append(h)
    return torch.stack(found), h, c


@many
@given(st.integers(1, 3), sizes, sizes, sizes, dtypes, seeds)
def test_peepholes(steps, batch, features, hidden, dtype, seed) -> None:
    state, rows = (batch, hidden), 4 * hidden
    shapes = [(steps, batch, features), state, state, (rows, features), (rows, hidden), (rows,), (3 * hidden,)]
    check(
        lambda x, h, c, weight_x, weight_h, bias, peepholes: ops.lstm(
            x, weight_x, weight_h, bias, h, c, peepholes=peepholes
        ),
        _by_definition,
        drawn(seed, *shapes, dtype=dtype),
    )


@many
@given(st.integers(1, 3), sizes, sizes, sizes, st.booleans(), dtypes, seeds)
def test_a_reset_before_the_product(steps, batch, features, hidden, biased, dtype, seed) -> None:
    rows = 3 * hidden
    shapes = [(steps, batch, features), (batch, hidden), (rows, features), (rows, hidden), (rows,), (rows,)]

    def theirs(x, h, weight_x, weight_h, bias, bias_h):
        found = []
        for part in x:
            a_r, a_z, a_n = (part @ weight_x.T + bias).chunk(3, 1)
            w_r, w_z, w_n = weight_h.chunk(3)
            b_r, b_z, b_n = bias_h.chunk(3) if biased else (0, 0, 0)
            r, z = torch.sigmoid(a_r + h @ w_r.T + b_r), torch.sigmoid(a_z + h @ w_z.T + b_z)
            h = (1 - z) * torch.tanh(a_n + (r * h) @ w_n.T + b_n) + z * h
            found.append(h)
        return torch.stack(found), h

    check(
        lambda x, h, weight_x, weight_h, bias, bias_h: ops.gru(
            x, weight_x, weight_h, bias, bias_h if biased else None, h, reset_after=False
        ),
        theirs,
        drawn(seed, *shapes, dtype=dtype),
    )


LAYERS = {
    "lstm": (nn.LSTM, torch.nn.LSTM, {}),
    "gru": (nn.GRU, torch.nn.GRU, {}),
    "tanh": (nn.RNN, torch.nn.RNN, {}),
    "relu": (partial(nn.RNN, activation="relu"), torch.nn.RNN, {"nonlinearity": "relu"}),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_layer(kind, both, batch_first, layers) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, 3, 5), "float64")
    make, oracle, settings = LAYERS[kind]
    layer = make(6, layers=layers, batch_first=batch_first, bidirectional=both)
    reference = oracle(5, 6, num_layers=layers, batch_first=batch_first, bidirectional=both, **settings).double()
    tops = layer(x)
    for variable in layer.variables:
        value = np.random.default_rng(len(variable.name)).standard_normal(variable.shape) * 0.3
        variable.value = value
        _, scope, name = variable.name.split("/")
        of = {"weight_x": "weight_ih", "weight_h": "weight_hh", "bias": "bias_ih", "bias_h": "bias_hh"}[name]
        with torch.no_grad():
            getattr(reference, f"{of}_l{scope.removeprefix('layer')}").copy_(torch.tensor(variable.value))
            if of == "bias_ih" and kind != "gru":
                getattr(reference, f"bias_hh_l{scope.removeprefix('layer')}").zero_()
    (value,) = drawn(0, x.shape, dtype="float64")
    result = graph.run_sync({x: value}, fetch=tops)
    y, last = reference(torch.from_numpy(value))
    last = last if isinstance(last, tuple) else (last,)
    for mine, expected in zip(tops, (y, *last), strict=True):
        np.testing.assert_allclose(result[mine], expected.detach().numpy(), rtol=1e-9, atol=1e-12)
