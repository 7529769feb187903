"""Kernels of `actorflow.ops.nn.recurrent`: two launches per step, a product and everything else."""

from __future__ import annotations

import cupy

from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch_flat
from actorflow.ops.cuda.linalg import dot, rows
from actorflow.ops.cuda.reductions import sum_axes
from actorflow.ops.nn.recurrent import LSTM, LSTMDown, LSTMGates, LSTMGatesDown

_ADD = elementwise("add_to_rows", "T x, T more", "T y", "y = T(W(x) + W(more))")


def _step(gates: Array, more: Array | None, cell: Array, hidden: Array, new_cell: Array, activations: Array) -> None:
    arrays = (gates, gates if more is None else more, cell, hidden, new_cell, activations)
    args = (*arrays, cell.size, cell.shape[1], int(more is not None))
    launch_flat("recurrent", "lstm_gates", cell.size, args, cell.dtype)


def _step_down(
    g_hidden: Array, more: Array | None, g_cell: Array, states: tuple[Array, ...], dgates: Array, dcell: Array
) -> None:
    arrays = (g_hidden, g_hidden if more is None else more, g_cell, *states, dgates, dcell)
    args = (*arrays, dcell.size, dcell.shape[1], int(more is not None))
    launch_flat("recurrent", "lstm_gates_down", dcell.size, args, dcell.dtype)


@kernel(LSTMGates, dtypes=FLOATS)
def _lstm_gates(operation: LSTMGates, inputs: list[Array], outputs: list[Array]) -> None:
    gates, cell = (contiguous(x) for x in inputs)
    _step(gates, None, cell, *outputs)


@kernel(LSTMGatesDown, dtypes=FLOATS)
def _lstm_gates_down(operation: LSTMGatesDown, inputs: list[Array], outputs: list[Array]) -> None:
    g_hidden, g_cell, cell, new_cell, activations = (contiguous(x) for x in inputs)
    _step_down(g_hidden, None, g_cell, (cell, new_cell, activations), *outputs)


@kernel(LSTM, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _lstm(operation: LSTM, inputs: list[Array], outputs: list[Array]) -> None:
    x, hidden, cell, weight_x, weight_h, bias = (contiguous(array) for array in inputs)
    y, last_hidden, last_cell, activations, cells = outputs
    dot(rows(x), weight_x.T, rows(activations))
    _ADD(activations, bias, activations)
    more = cupy.empty((cell.shape[0], 4 * cell.shape[1]), cell.dtype)
    for t in range(x.shape[0]):
        dot(hidden, weight_h.T, more)
        _step(activations[t], more, cell, y[t], cells[t], activations[t])
        hidden, cell = y[t], cells[t]
    cupy.copyto(last_hidden, hidden)
    cupy.copyto(last_cell, cell)


@kernel(LSTMDown, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _lstm_down(operation: LSTMDown, inputs: list[Array], outputs: list[Array]) -> None:
    g_y, g_hidden, g_cell, x, hidden, cell, weight_x, weight_h, y, activations, cells = (
        contiguous(array) for array in inputs
    )
    dx, dhidden, dcell, dweight_x, dweight_h, dbias = outputs
    steps = x.shape[0]
    dgates = cupy.empty(activations.shape, x.dtype)
    cupy.copyto(dhidden, g_hidden)
    cupy.copyto(dcell, g_cell)
    for t in reversed(range(steps)):
        states = (cells[t - 1] if t else cell, cells[t], activations[t])
        _step_down(g_y[t], dhidden, dcell, states, dgates[t], dcell)
        dot(dgates[t], weight_h, dhidden)
    before = cupy.empty(y.shape, y.dtype)  # the hidden state that each step began with
    if steps:
        cupy.copyto(before[0], hidden)
        cupy.copyto(before[1:], y[: steps - 1])
    flat = rows(dgates)
    dot(flat, weight_x, rows(dx))
    dot(flat.T, rows(x), dweight_x)
    dot(flat.T, rows(before), dweight_h)
    sum_axes(flat, (0,), dbias)
