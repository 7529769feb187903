"""Recurrent networks over whole sequences, and steps of a long short-term memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.recurrent import GRUDown, LSTMDown, LSTMGatesDown, Ragged, RNNDown
from tests.operations.table import FLOATING, Make, Row, Sample, Wrong, normal

_GRADIENT = {"numpy": "differences check it as the gradient of its row", "torch": "only gradients are made of it"}


def _sequence(steps: int, batch: int, features: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the inputs."""
    state = (batch, width)
    return (steps, batch, features), state, state, (4 * width, features), (4 * width, width), (4 * width,)


def _of(gates: int, steps: int, batch: int, features: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the inputs of a network with one state and so many gates."""
    rows = gates * width
    biases = [(rows,)] * (1 + (gates == 3))
    return (steps, batch, features), (batch, width), (rows, features), (rows, width), *biases


def shapes_of(operation: Any, *sizes: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the inputs of a network: for so many steps, rows, features, and of that width."""
    return _sequence(*sizes) if operation.kind == "LSTM" else _of(3 if operation.kind == "GRU" else 1, *sizes)


def _down(gates: int, *sizes: int, more: bool = False) -> tuple[tuple[int, ...], ...]:
    """Shapes of the inputs of a gradient."""
    inputs = _sequence(*sizes) if gates == 4 else _of(gates, *sizes)
    states, state = (*inputs[0][:2], inputs[1][1]), [inputs[1]] * (1 + (gates == 4))
    saved = [(*states[:2], 4 * states[2])] * (gates > 1) + [states] * (gates == 4) * (1 + more)
    return states, *state, *inputs, states, *saved


def _step(gates: np.ndarray, cell: np.ndarray) -> list[np.ndarray]:
    i, f, z, o = np.split(gates, 4, -1)
    i, f, o = (1 / (1 + np.exp(-x)) for x in (i, f, o))
    z = np.tanh(z)
    cell = f * cell + i * z
    return [o * np.tanh(cell), cell, np.concatenate([i, f, z, o], -1)]


def _steps(x: Any, hidden: Any, cell: Any, weight_x: Any, weight_h: Any, bias: Any) -> list[np.ndarray]:
    found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for each in x:
        hidden, cell, activations = _step(each @ weight_x.T + hidden @ weight_h.T + bias, cell)
        for into, value in zip(found, (hidden, activations, cell), strict=True):
            into.append(value)
    state = (*x.shape[:2], cell.shape[-1])
    y, activations, cells = (
        np.stack(each) if each else np.zeros((*state[:2], n * state[2]))
        for each, n in zip(found, (1, 4, 1), strict=True)
    )
    return [y, hidden, cell, activations, cells]


def _tame(*shapes: tuple[int, ...]) -> Make:
    """Numbers so small that a network without gates does not make the rounding of a step larger with each one."""
    return lambda random: [0.4 * random.standard_normal(shape) for shape in shapes]


def _gru(
    x: Any, h: Any, weight_x: Any, weight_h: Any, bias: Any, bias_h: Any, reset_after: bool, saves: bool
) -> list[np.ndarray]:
    width, y, saved = h.shape[1], [], []
    for each in x:
        a_r, a_z, a_n = np.split(each @ weight_x.T + bias, 3, -1)
        w_r, w_z, w_n = np.split(weight_h, 3)
        b_r, b_z, b_n = np.split(bias_h, 3)
        r, z = (1 / (1 + np.exp(-a - h @ w.T - b)) for a, w, b in ((a_r, w_r, b_r), (a_z, w_z, b_z)))
        inside = h @ w_n.T + b_n if reset_after else r * h
        n = np.tanh(a_n + (r * inside if reset_after else inside @ w_n.T + b_n))
        h = (1 - z) * n + z * h
        y.append(h)
        saved.append(np.concatenate([r, z, n, inside], -1))
    found = [np.reshape(y, (*x.shape[:2], width)), h, np.reshape(saved, (*x.shape[:2], 4 * width))]
    return found if saves else found[:2]


def _rnn(x: Any, h: Any, weight_x: Any, weight_h: Any, bias: Any, activation: str) -> list[np.ndarray]:
    y = []
    for each in x:
        gates = each @ weight_x.T + h @ weight_h.T + bias
        h = np.tanh(gates) if activation == "tanh" else np.maximum(gates, 0)
        y.append(h)
    return [np.reshape(y, (*x.shape[:2], h.shape[1])), h]


def _ragged(network: Any, lengths: Sequence[int], *shapes: tuple[int, ...]) -> Make:
    return lambda random: [_tame(*shapes)(random)[0], np.array(lengths), *_tame(*shapes)(random)[1:]]


def _each(x: Any, lengths: Any, *more: Any, network: Any, reverse: bool) -> list[np.ndarray]:
    """Each sequence by itself."""
    count = network.states
    whole = {
        "LSTM": _steps,
        "GRU": lambda *given: _gru(*given, True, False),
        "RNN": lambda *given: _rnn(*given, "tanh"),
    }
    y, *lasts = np.zeros((*x.shape[:2], more[0].shape[1])), *[each.astype(float) for each in more[:count]]
    for row, length in enumerate(np.clip(lengths, 0, len(x))):
        own, way = slice(row, row + 1), slice(None, None, -1 if reverse else 1)
        found = whole[network.kind](x[:length, own][way], *[each[own] for each in more[:count]], *more[count:])
        y[:length, own] = found[0][way]
        for last, each in zip(lasts, found[1:], strict=False):
            last[own] = each
    return [y, *lasts]


#: Of gradients of sequences: what they are given follows from the inputs, so differences by it alone say nothing.
_BY_STEPS = _GRADIENT | {"differences": "those of the row of the sequence, to the second order, are its gradient"}
_WHOLE = {"torch": "tests/oracle compares the states, and gradients"}
#: Steps, batch, features, width of the state.
_SIZES = [(3, 2, 3, 2), (1, 2, 3, 2), (0, 2, 3, 2), (3, 0, 3, 2), (4, 3, 5, 6)]

ROWS = [
    Row(
        ops.LSTMGates,
        [Sample(ops.LSTMGates(), normal((n, 4 * width), (n, width))) for n, width in ((2, 3), (3, 6))],
        numpy=_step,
        onnx="Tanh",
        without={"torch": "tests/oracle compares whole sequences"},
        dtypes=FLOATING,
    ),
    Row(
        LSTMGatesDown,
        [Sample(LSTMGatesDown(), normal(*[(n, width)] * 4, (n, 4 * width))) for n, width in ((2, 3), (3, 6))],
        without=_GRADIENT,
        dtypes=FLOATING,
    ),
    Row(
        ops.LSTM,
        [
            *(Sample(ops.LSTM(), normal(*_sequence(*sizes))) for sizes in _SIZES),
            Sample(ops.LSTM(saves=False), normal(*_sequence(*_SIZES[-1]))),
        ],
        numpy=lambda *arrays, saves: _steps(*arrays)[: 5 if saves else 3],
        without={"torch": "it tells its activations nobody: tests/oracle compares the states"},
        dtypes=FLOATING,
    ),
    Row(
        LSTMDown,
        [Sample(LSTMDown(), normal(*_down(4, *sizes, more=more))) for sizes in _SIZES for more in (False, True)],
        without=_BY_STEPS,
        differentiable=False,
        dtypes=FLOATING,
    ),
    Row(
        ops.GRU,
        [
            *(Sample(ops.GRU(after), normal(*_of(3, *sizes))) for sizes in _SIZES for after in (True, False)),
            *(Sample(ops.GRU(after, saves=False), normal(*_of(3, *_SIZES[-1]))) for after in (True, False)),
        ],
        numpy=_gru,
        without=_WHOLE,
        dtypes=FLOATING,
    ),
    Row(
        GRUDown,
        [Sample(GRUDown(after), normal(*_down(3, *sizes))) for sizes in _SIZES for after in (True, False)],
        without=_BY_STEPS,
        differentiable=False,
        dtypes=FLOATING,
    ),
    Row(
        ops.RNN,
        [Sample(ops.RNN(name), _tame(*_of(1, *sizes))) for sizes in _SIZES for name in ("tanh", "relu")],
        numpy=_rnn,
        without=_WHOLE,
        dtypes=FLOATING,
    ),
    Row(
        Ragged,
        [
            Sample(Ragged(network, reverse), _ragged(network, lengths, *shapes_of(network, 4, 3, 2, 3)))
            for network in (ops.LSTM(), ops.GRU(), ops.RNN())
            for reverse, lengths in ((False, (2, 0, 9)), (True, (3, 4, 1)), (True, (2, 2, 2)))
        ],
        numpy=_each,
        without={"torch": "tests/oracle compares packed sequences"},
        dtypes=FLOATING,
        by_steps=True,
        closed=3,
        particular=True,
    ),
    Row(
        RNNDown,
        [Sample(RNNDown(name), normal(*_down(1, *sizes))) for sizes in _SIZES for name in ("tanh", "relu")],
        without=_BY_STEPS,
        differentiable=False,
        dtypes=FLOATING,
    ),
]

_SHAPES = _sequence(*_SIZES[0])

WRONG = [
    Wrong(
        ops.LSTMGates(),
        [(2, 8), (2, 3)],
        af.ShapeError,
        r"LSTMGates: gates must have shape \(batch, 4 \* hidden\), here \(2, 12\)",
    ),
    *(
        Wrong(ops.LSTM(), [*_SHAPES[:position], shape, *_SHAPES[position + 1 :]], af.ShapeError, f"LSTM: {match}, got")
        for position, shape, match in (
            (0, (2, 3), r"x must have shape \(steps, batch, features\)"),
            (1, (3, 2), r"hidden must have shape \(batch, hidden\), here \(2, 2\)"),
            (2, (2, 3), r"cell must have shape \(batch, hidden\), here \(2, 2\)"),
            (3, (8, 4), r"weight_x must have shape \(4 \* hidden, features\), here \(8, 3\)"),
            (5, (2,), r"bias must have shape \(4 \* hidden\), here \(8,\)"),
        )
    ),
    Wrong(ops.GRU(), [*_of(3, *_SIZES[0])[:5], (2,)], af.ShapeError, r"GRU: bias_h must have shape \(3 \* hidden\)"),
    *(
        Wrong(
            Ragged(ops.RNN()),
            [_of(1, *_SIZES[0])[0], given, *_of(1, *_SIZES[0])[1:]],
            kind,
            f"RNN: lengths must {match}",
        )
        for given, kind, match in (
            (("int64", 3), af.ShapeError, r"have shape \(batch,\), here \(2,\), got int64\[3\]"),
            ((2,), af.DTypeError, r"be integers, got float32\[2\]"),
        )
    ),
    Wrong(ops.RNN("sin"), _of(1, *_SIZES[0]), af.GraphError, "RNN: activation must be 'tanh' or 'relu', got 'sin'"),
    Wrong(
        RNNDown(),
        [*_down(1, *_SIZES[0])[:-1], (3, 2, 3)],
        af.ShapeError,
        r"RNNDown: y must be float32\[3, 2, 2\], got float32\[3, 2, 3\]",
    ),
    Wrong(
        LSTMDown(),
        [*_down(4, *_SIZES[0])[:-1], ("float64", 3, 2, 2)],
        af.DTypeError,
        "LSTMDown: cells must have g_y's dtype",
    ),
]
