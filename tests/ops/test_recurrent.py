"""Long short-term memory; PyTorch checks the values in tests/oracle."""

from __future__ import annotations

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.recurrent import LSTMGatesDown
from tests.support.numbers import drawn


def test_large_gates_do_not_overflow(compute) -> None:
    gates = np.array([[1e4, -1e4, 1e4, -1e4]], np.float32)
    hidden, cell, activations = compute(ops.LSTMGates(), gates, np.ones((1, 1), np.float32))
    np.testing.assert_array_equal(activations, [[1, 0, 1, 0]])
    assert (hidden.item(), cell.item()) == (0, 1)


def test_a_gradient_of_the_activations_alone() -> None:
    graph = af.Graph("g")
    gates, cell = graph.variable("gates", (2, 8), "f8", drawn((2, 8))[0]), graph.variable("cell", (2, 2), "f8")
    *_, activations = graph.apply(ops.LSTMGates(), gates, cell)
    grad = af.gradient(ops.sum(activations), gates)
    assert not any(isinstance(op.operation, LSTMGatesDown) for op in graph.ops)
    result = graph.run_sync(fetch=[grad, activations])
    y = result[activations]
    slope = y * (1 - y)
    slope[:, 4:6] = 1 - y[:, 4:6] ** 2
    np.testing.assert_allclose(result[grad], slope, rtol=1e-12)


def test_compositions_take_arrays_and_blobs() -> None:
    import actorflow.array as xp

    def both(x, wx, wh, lengths):
        y, last = ops.gru(x, wx, wh, lengths=lengths)
        back, first = ops.rnn(x, wh[:5] @ wx[:5], wh[:5], reverse=True)
        z, hidden, cell = ops.lstm(x, wx, wh, peepholes=wx[:15, 0]) if wx.shape[0] == 20 else (y, last, last)
        return y, last, back, first, z, hidden, cell

    arrays = [*drawn((3, 2, 5), (15, 5), (15, 5)), np.array([1, 3])]
    graph = af.Graph("g")
    blobs = [graph.blob(f"v{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    tops = both(*blobs)
    result = graph.run_sync(dict(zip(blobs, arrays, strict=True)), fetch=tops)
    for top, found in zip(tops, both(*map(xp.asarray, arrays)), strict=True):
        np.testing.assert_allclose(np.asarray(found), result[top], rtol=1e-12, atol=1e-14)
