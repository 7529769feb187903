"""Recurrent layers against PyTorch."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import actorflow as af
from actorflow import nn
from tests.oracle.comparison import drawn

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")

pytestmark = pytest.mark.oracle

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
