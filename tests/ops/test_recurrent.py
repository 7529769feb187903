"""Recurrent networks; PyTorch checks the values in tests/oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_a_sequence_of_no_steps_keeps_its_first_states(kind: str, reverse: bool) -> None:
    """Others are what they are alone, and what stands behind their ends is read by nobody, NaN among it."""
    import actorflow.array as xp

    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    states = dict(zip(["hidden", "cell"][: 1 + (kind == "lstm")], drawn((3, 2), (3, 2)), strict=False))
    x, *weights = drawn((4, 3, 5), (gates * 2, 5), (gates * 2, 2))
    x[2:, 2] = np.nan
    run = getattr(ops, kind)

    def of(x: np.ndarray, rows: slice, **how: Any) -> list[np.ndarray]:
        first = {name: xp.asarray(each[rows]) for name, each in states.items()}
        return [np.asarray(each) for each in run(xp.asarray(x), *map(xp.asarray, weights), **first, **how)]

    y, *lasts = of(x, slice(None), lengths=xp.asarray([4, 0, 2]), reverse=reverse)
    for last, first in zip(lasts, states.values(), strict=True):
        np.testing.assert_array_equal(last[1], first[1])
    np.testing.assert_array_equal(y[:, 1], 0)
    np.testing.assert_array_equal(y[2:, 2], 0)
    for row, steps in ((0, 4), (2, 2)):
        alone = of(x[:steps, row : row + 1], slice(row, row + 1), reverse=reverse)
        for mine, other in zip((y[:steps, row], *[each[row] for each in lasts]), alone, strict=True):
            np.testing.assert_allclose(mine, np.reshape(other, mine.shape), rtol=1e-12)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_without_what_was_saved_are_the_same(kind: str) -> None:
    """They are then those of a composition, as are those by what is saved."""
    whole = {"lstm": ops.LSTM, "gru": ops.GRU}[kind]
    gates, count = {"lstm": (4, 3), "gru": (3, 2)}[kind]
    shapes = [(3, 2, 5), *[(2, 4)] * (count - 1), (gates * 4, 5), (gates * 4, 4), *[(gates * 4,)] * (1 + (gates == 3))]
    graph = af.Graph("g")
    inputs = [graph.variable(f"v{i}", each.shape, "f8", each) for i, each in enumerate(drawn(*shapes))]
    found = []
    for saves in (True, False):
        outputs = graph.apply(whole(saves=saves), *inputs)[:count]
        found.append(af.gradient(sum(ops.sum(ops.square(each)) for each in outputs), inputs))
    result = graph.run_sync(fetch=[*found[0], *found[1]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(result[one], result[other], rtol=1e-10, atol=1e-12)


def test_relu_keeps_what_is_not_a_number_and_gives_it_no_gradient() -> None:
    from actorflow.ops.nn.recurrent import RNNDown
    from tests.support.kernels import compute_cpu

    x, one, zero = np.full((1, 1, 1), np.nan), np.ones((1, 1)), np.zeros((1, 1))
    y, last = compute_cpu(ops.RNN("relu"), x, zero, one, one, np.zeros(1))
    assert np.isnan(y).all()
    assert np.isnan(last).all()
    dx, *_ = compute_cpu(RNNDown("relu"), np.ones_like(y), one, np.ones_like(x), zero, one, one, np.zeros(1), y)
    assert dx.item() == 0
