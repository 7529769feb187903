"""Recurrent layers; PyTorch checks their values in tests/oracle."""

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops


def test_a_cell_unrolled_is_the_sequence() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3, 2, 4), "f8")
    sequence, cell = nn.LSTM(5), nn.LSTMCell(5)
    y, last_hidden, last_cell = sequence(x)
    state: tuple[af.Blob, ...] = ()
    for part in ops.split(x, 3):
        state = cell(ops.reshape(part, (2, 4)), *state)
    assert len(cell.variables) == 3
    for mine, other in zip(cell.variables, sequence.variables, strict=True):
        mine.value = other.value
    value = np.random.default_rng(0).standard_normal(x.shape)
    result = graph.run_sync({x: value}, fetch=[y, last_hidden, last_cell, *state])
    np.testing.assert_allclose(result[last_hidden][0], result[state[0]], rtol=1e-12)
    np.testing.assert_allclose(result[last_cell][0], result[state[1]], rtol=1e-12)
    np.testing.assert_array_equal(result[y][-1], result[last_hidden][0])


@pytest.mark.parametrize("layers", [1, 2])
def test_first_states_are_taken_layer_by_layer(layers) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 4, 3), "f8")
    hidden, cell = (graph.blob(name, (layers, 4, 5), "f8") for name in ("hidden", "cell"))
    layer = nn.LSTM(5, layers)
    tops, whole = layer(x, hidden, cell), layer(x)
    feeds = {x: np.ones(x.shape), hidden: np.zeros(hidden.shape), cell: np.zeros(cell.shape)}
    result = graph.run_sync(feeds, fetch=[*tops, *whole])
    for mine, other in zip(tops, whole, strict=True):
        np.testing.assert_allclose(result[mine], result[other], rtol=1e-12)
    assert tops[1].shape == (layers, 4, 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(6, 2, seed=1),
        lambda: nn.LSTM(3, 2, seed=1, peepholes=True, bidirectional=True),
        lambda: nn.GRU(3, 2, seed=1, bidirectional=True),
        lambda: nn.GRU(6, seed=1, reset_after=False),
        lambda: nn.RNN(6, 1, seed=1),
    ],
)
def test_it_trains(make) -> None:
    graph = af.Graph("g")
    x, target = graph.blob("x", (5, 4, 3)), graph.blob("target", (5, 4, 6))
    y, *_ = make()(x)
    loss = ops.mse_loss(y, target)
    train = nn.SGD(1.0, momentum=0.9).minimize(loss)
    random = np.random.default_rng(0)
    feeds = {x: random.random(x.shape, np.float32), target: random.random(target.shape, np.float32) * 0.5}
    losses = [float(graph.run_sync(feeds, fetch=[loss, train])[loss]) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("shape", "more", "message"),
    [
        ((2, 3), [], r"LSTM: x must have shape \(steps, batch, features\), got float32\[2, 3\]"),
        ((2, 3, 4), [(1, 2, 5)] * 2, r"LSTM: hidden must have shape \(layers, batch, hidden\), \(1, 3, 5\), got"),
        ((2, 3, 4), [(1, 3, 5)], r"LSTM takes 1 or 3 bottom blobs \(x, hidden, cell\), got 2"),
    ],
)
def test_bottoms_that_do_not_fit_are_errors(shape, more, message) -> None:
    graph = af.Graph("g")
    with pytest.raises((af.ShapeError, af.GraphError), match=message):
        nn.LSTM(5)(graph.blob("x", shape), *(graph.blob(f"s{i}", s) for i, s in enumerate(more)))


def test_a_cell_takes_single_steps() -> None:
    graph = af.Graph("g")
    with pytest.raises(af.ShapeError, match=r"LSTMCell: x must have shape \(batch, features\)"):
        nn.LSTMCell(5)(graph.blob("x", (2, 3, 4)))
