"""Kernels of `actorflow.ops.nn.recurrent`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import Array, in_float32, scratch
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.cpu.windows import as_matrix
from actorflow.ops.nn.recurrent import LSTM, LSTMDown, LSTMGates, LSTMGatesDown
from actorflow.ops.registry import kernel


def _quarters(gates: Array) -> tuple[Array, Array, Array, Array]:
    width = gates.shape[1] // 4
    return gates[:, :width], gates[:, width : 2 * width], gates[:, 2 * width : 3 * width], gates[:, 3 * width :]


def _activate(gates: Array, out: Array) -> None:
    """Sigmoids of the input, forget and output gates and the tanh of the third quarter; ``out`` may be ``gates``.

    The sigmoid is ``(1 + tanh(v / 2)) / 2``: one tanh of all gates, which does not overflow.
    """
    width = gates.shape[1] // 4
    np.multiply(gates, 0.5, out=out)
    middle = out[:, 2 * width : 3 * width]
    np.multiply(middle, 2, out=middle)
    np.tanh(out, out=out)
    for part in (out[:, : 2 * width], out[:, 3 * width :]):
        np.add(part, 1, out=part)
        np.multiply(part, 0.5, out=part)


def _step(activations: Array, cell: Array, new_hidden: Array, new_cell: Array) -> None:
    i, f, z, o = _quarters(activations)
    np.multiply(f, cell, out=new_cell)
    np.add(new_cell, np.multiply(i, z, out=new_hidden), out=new_cell)
    np.tanh(new_cell, out=new_hidden)
    np.multiply(new_hidden, o, out=new_hidden)


def _step_down(
    g_hidden: Array, g_cell: Array, cell: Array, new_cell: Array, activations: Array, dgates: Array, dcell: Array
) -> None:
    """``dcell`` may be ``g_cell``."""
    i, f, z, o = _quarters(activations)
    di, df, dz, do = _quarters(dgates)
    t = np.tanh(new_cell, out=scratch("tanh", cell.shape, cell.dtype))
    slope = scratch("slope", cell.shape, cell.dtype)
    total = scratch("total", cell.shape, cell.dtype)

    def through_sigmoid(y: Array, dy: Array) -> None:
        np.subtract(1, y, out=slope)
        np.multiply(slope, y, out=slope)
        np.multiply(dy, slope, out=dy)

    np.multiply(g_hidden, t, out=do)
    through_sigmoid(o, do)
    np.multiply(t, t, out=t)
    np.subtract(1, t, out=t)
    np.multiply(g_hidden, o, out=total)
    np.multiply(total, t, out=total)
    np.add(total, g_cell, out=total)  # the gradient by the new cell
    np.multiply(total, z, out=di)
    through_sigmoid(i, di)
    np.multiply(total, cell, out=df)
    through_sigmoid(f, df)
    np.multiply(total, i, out=dz)
    np.multiply(z, z, out=slope)
    np.subtract(1, slope, out=slope)
    np.multiply(dz, slope, out=dz)
    np.multiply(total, f, out=dcell)


@kernel(LSTMGates)
@in_float32
def _lstm_gates(operation: LSTMGates, inputs: list[Array], outputs: list[Array]) -> None:
    gates, cell = inputs
    hidden, new_cell, activations = outputs
    _activate(gates, activations)
    _step(activations, cell, hidden, new_cell)


@kernel(LSTMGatesDown)
@in_float32
def _lstm_gates_down(operation: LSTMGatesDown, inputs: list[Array], outputs: list[Array]) -> None:
    _step_down(*inputs, *outputs)


@kernel(LSTM)
@in_float32
def _lstm(operation: LSTM, inputs: list[Array], outputs: list[Array]) -> None:
    x, hidden, cell, weight_x, weight_h, bias = inputs
    y, last_hidden, last_cell, activations, cells = outputs
    np.matmul(as_matrix(x), weight_x.T, out=as_matrix(activations))
    np.add(activations, bias, out=activations)
    recurrent = scratch("recurrent", activations.shape[1:], x.dtype)
    for gates, new_hidden, new_cell in zip(activations, y, cells, strict=True):
        np.matmul(hidden, weight_h.T, out=recurrent)
        np.add(gates, recurrent, out=gates)
        _activate(gates, gates)
        _step(gates, cell, new_hidden, new_cell)
        hidden, cell = new_hidden, new_cell
    np.copyto(last_hidden, hidden)
    np.copyto(last_cell, cell)


@kernel(LSTMDown)
@in_float32
def _lstm_down(operation: LSTMDown, inputs: list[Array], outputs: list[Array]) -> None:
    g_y, g_hidden, g_cell, x, hidden, cell, weight_x, weight_h, y, activations, cells = inputs
    dx, dhidden, dcell, dweight_x, dweight_h, dbias = outputs
    steps = len(x)
    dgates = scratch("dgates", activations.shape, x.dtype)
    np.copyto(dhidden, g_hidden)
    np.copyto(dcell, g_cell)
    for t in reversed(range(steps)):
        np.add(dhidden, g_y[t], out=dhidden)
        before = cells[t - 1] if t else cell
        _step_down(dhidden, dcell, before, cells[t], activations[t], dgates[t], dcell)
        np.matmul(dgates[t], weight_h, out=dhidden)
    flat = as_matrix(dgates)
    np.matmul(flat, weight_x, out=as_matrix(dx))
    np.matmul(flat.T, as_matrix(x), out=dweight_x)
    dbias[...] = sum_axes(flat, (0,))
    dweight_h.fill(0)
    if steps:
        np.matmul(dgates[0].T, hidden, out=dweight_h)
    if steps > 1:
        dweight_h += np.matmul(as_matrix(dgates[1:]).T, as_matrix(y[:-1]))
