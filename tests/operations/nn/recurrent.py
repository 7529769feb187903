"""Long short-term memory, by steps and whole sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.recurrent import LSTMDown, LSTMGatesDown
from tests.operations.table import FLOATING, Row, Sample, Wrong, normal

_GRADIENT = {"numpy": "differences check it as the gradient of its row", "torch": "only gradients are made of it"}


def _sequence(steps: int, batch: int, features: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of the inputs."""
    state = (batch, width)
    return (steps, batch, features), state, state, (4 * width, features), (4 * width, width), (4 * width,)


def _down(steps: int, batch: int, features: int, width: int) -> tuple[tuple[int, ...], ...]:
    states, state = (steps, batch, width), (batch, width)
    gates = (steps, batch, 4 * width)
    return (states, state, state, *_sequence(steps, batch, features, width)[:5], states, gates, states)


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


_SMALL = [(3, 2, 3, 2), (1, 2, 3, 2), (0, 2, 3, 2)]

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
        [Sample(ops.LSTM(), normal(*_sequence(*sizes))) for sizes in (*_SMALL, (4, 3, 5, 6))],
        numpy=_steps,
        without={"torch": "it tells its activations nobody: tests/oracle compares the states"},
        dtypes=FLOATING,
    ),
    Row(
        LSTMDown,
        [Sample(LSTMDown(), normal(*_down(*sizes))) for sizes in (*_SMALL, (4, 3, 5, 6))],
        without=_GRADIENT,
        dtypes=FLOATING,
    ),
]

_SHAPES = _sequence(*_SMALL[0])

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
]
