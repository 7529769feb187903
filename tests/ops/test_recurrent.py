"""Long short-term memory; PyTorch checks the values in tests/oracle."""

from __future__ import annotations

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.recurrent import LSTMGatesDown


def _drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate(shapes)]


SHAPES = [(3, 2, 3), (2, 2), (2, 2), (8, 3), (8, 2), (8,)]


def _states(*blobs: af.Blob) -> list[af.Blob]:
    x, hidden, cell, weight_x, weight_h, bias = blobs
    return list(ops.lstm(x, weight_x, weight_h, bias, hidden, cell))


def test_a_sequence_is_its_steps() -> None:
    graph = af.Graph("g")
    blobs = [graph.variable(f"v{i}", v.shape, "f8", v) for i, v in enumerate(_drawn(*SHAPES))]
    x, hidden, cell, weight_x, weight_h, bias = blobs
    y, last_hidden, last_cell = _states(*blobs)
    unrolled = []
    for part in ops.split(x, 3):
        hidden, cell = ops.lstm_cell(ops.reshape(part, (2, 3)), hidden, cell, weight_x, weight_h, bias)
        unrolled.append(hidden)
    together = ops.stack(unrolled)
    target = ops.fill(graph, 0.3, y.shape, "f8")
    losses = [
        ops.add(ops.mse_loss(a, target), ops.mse_loss(b, ops.scale(b, 0.5)))
        for a, b in ((y, last_cell), (together, cell))
    ]
    grads = [af.gradient(loss, blobs) for loss in losses]
    result = graph.run_sync(fetch=[y, together, last_hidden, hidden, last_cell, cell, *grads[0], *grads[1]])
    pairs = [(y, together), (last_hidden, hidden), (last_cell, cell), *zip(*grads, strict=True)]
    for fused, own in pairs:
        np.testing.assert_allclose(result[fused], result[own], rtol=1e-10, atol=1e-14)


def test_no_steps_leave_the_state_and_have_no_gradient_by_the_weights() -> None:
    graph = af.Graph("g")
    shapes = [(0, 2, 3), *SHAPES[1:]]
    blobs = [graph.variable(f"v{i}", v.shape, "f8", v) for i, v in enumerate(_drawn(*shapes))]
    y, hidden, cell = _states(*blobs)
    grads = af.gradient(ops.sum(ops.square(hidden)), [blobs[1], blobs[3], blobs[4], blobs[5]])
    result = graph.run_sync(fetch=[y, hidden, cell, *grads])
    assert result[y].shape == (0, 2, 2)
    np.testing.assert_array_equal(result[hidden], blobs[1].value)
    np.testing.assert_array_equal(result[cell], blobs[2].value)
    np.testing.assert_allclose(result[grads[0]], 2 * blobs[1].value)
    assert not any(result[grad].any() for grad in grads[1:])


def test_large_gates_do_not_overflow(compute) -> None:
    gates = np.array([[1e4, -1e4, 1e4, -1e4]], np.float32)
    hidden, cell, activations = compute(ops.LSTMGates(), gates, np.ones((1, 1), np.float32))
    np.testing.assert_array_equal(activations, [[1, 0, 1, 0]])
    assert (hidden.item(), cell.item()) == (0, 1)


def test_a_gradient_of_the_activations_alone() -> None:
    graph = af.Graph("g")
    gates, cell = graph.variable("gates", (2, 8), "f8", _drawn((2, 8))[0]), graph.variable("cell", (2, 2), "f8")
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

    arrays = [*_drawn((3, 2, 5), (15, 5), (15, 5)), np.array([1, 3])]
    graph = af.Graph("g")
    blobs = [graph.blob(f"v{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    tops = both(*blobs)
    result = graph.run_sync(dict(zip(blobs, arrays, strict=True)), fetch=tops)
    for top, found in zip(tops, both(*map(xp.asarray, arrays)), strict=True):
        np.testing.assert_allclose(np.asarray(found), result[top], rtol=1e-12, atol=1e-14)
