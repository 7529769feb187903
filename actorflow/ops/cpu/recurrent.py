"""Kernels of `actorflow.ops.nn.recurrent`."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, in_float32, keep_where, scratch
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.cpu.windows import as_matrix
from actorflow.ops.nn.recurrent import GRU, LSTM, RNN, GRUDown, LSTMDown, LSTMGates, LSTMGatesDown, RNNDown
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


def _sigmoid(x: Array) -> None:
    """In the place of its argument."""
    np.tanh(np.multiply(x, 0.5, out=x), out=x)
    np.add(x, 1, out=x)
    np.multiply(x, 0.5, out=x)


def _through_sigmoid(y: Array, dy: Array, slope: Array) -> None:
    """The gradient by what a sigmoid was taken of, in the place of that by the result ``y``; ``slope`` is scratch."""
    np.subtract(1, y, out=slope)
    np.multiply(slope, y, out=slope)
    np.multiply(dy, slope, out=dy)


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

    np.multiply(g_hidden, t, out=do)
    _through_sigmoid(o, do, slope)
    np.multiply(t, t, out=t)
    np.subtract(1, t, out=t)
    np.multiply(g_hidden, o, out=total)
    np.multiply(total, t, out=total)
    np.add(total, g_cell, out=total)  # the gradient by the new cell
    np.multiply(total, z, out=di)
    _through_sigmoid(i, di, slope)
    np.multiply(total, cell, out=df)
    _through_sigmoid(f, df, slope)
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


def _saved(arrays: list[Array], *shapes: tuple[int, ...], dtype: Any) -> list[Array]:
    """Where what gradients need is written; scratch memory where nothing needs it."""
    return arrays or [scratch(f"saved {i}", shape, dtype) for i, shape in enumerate(shapes)]


def _of_inputs(x: Array, weight: Array, bias: Array, out: Array) -> Array:
    """The products of all steps' inputs with a weight, and a bias."""
    np.matmul(as_matrix(x), weight.T, out=as_matrix(out))
    return np.add(out, bias, out=out)


def _by_inputs(by_gates: Array, x: Array, weight: Array, dx: Array, dweight: Array, dbias: Array) -> None:
    """The gradients by what `_of_inputs` takes."""
    flat = as_matrix(by_gates)
    np.matmul(flat, weight, out=as_matrix(dx))
    np.matmul(flat.T, as_matrix(x), out=dweight)
    dbias[...] = sum_axes(flat, (0,))


def _by_states(by_gates: Array, hidden: Array, y: Array, dweight: Array) -> None:
    """The gradient by the weight that the state before each step is multiplied with; gates are rows of all steps."""
    batch = len(hidden)
    dweight.fill(0)
    if len(y):
        np.matmul(by_gates[:batch].T, hidden, out=dweight)
    if len(y) > 1:
        dweight += np.matmul(by_gates[batch:].T, as_matrix(y[:-1]))


@kernel(LSTM)
@in_float32
def _lstm(operation: LSTM, inputs: list[Array], outputs: list[Array]) -> None:
    x, hidden, cell, weight_x, weight_h, bias = inputs
    y, last_hidden, last_cell, *saved = outputs
    activations, cells = _saved(saved, (*y.shape[:2], weight_x.shape[0]), y.shape, dtype=x.dtype)
    _of_inputs(x, weight_x, bias, activations)
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
    g_y, g_hidden, g_cell, x, hidden, cell, weight_x, weight_h, _, y, activations, cells, *g_cells = inputs
    dx, dhidden, dcell, dweight_x, dweight_h, dbias = outputs
    dgates = scratch("dgates", activations.shape, x.dtype)
    np.copyto(dhidden, g_hidden)
    np.copyto(dcell, g_cell)
    for t in reversed(range(len(x))):
        np.add(dhidden, g_y[t], out=dhidden)
        for each in g_cells:
            np.add(dcell, each[t], out=dcell)
        before = cells[t - 1] if t else cell
        _step_down(dhidden, dcell, before, cells[t], activations[t], dgates[t], dcell)
        np.matmul(dgates[t], weight_h, out=dhidden)
    _by_inputs(dgates, x, weight_x, dx, dweight_x, dbias)
    _by_states(as_matrix(dgates), hidden, y, dweight_h)


@kernel(GRU)
@in_float32
def _gru(operation: GRU, inputs: list[Array], outputs: list[Array]) -> None:
    x, hidden, weight_x, weight_h, bias, bias_h = inputs
    y, last, *saved = outputs
    (steps, batch, width), resets_after = y.shape, operation.reset_after
    both = 2 * width
    first = bias.copy()  # with all that is added to it whatever the state is
    first[: both if resets_after else None] += bias_h[: both if resets_after else None]
    gates = _of_inputs(x, weight_x, first, scratch("gates", (steps, batch, 3 * width), x.dtype))
    rows = weight_h.T if resets_after else weight_h[:both].T
    recurrent = scratch("recurrent", (batch, rows.shape[1]), x.dtype)
    other = scratch("inside", (batch, width), x.dtype)
    for t, (each, new) in enumerate(zip(gates, y, strict=True)):
        rz, n = each[:, :both], each[:, both:]
        r, z = rz[:, :width], rz[:, width:]
        inside = saved[0][t, :, 3 * width :] if saved else other
        np.matmul(hidden, rows, out=recurrent)
        np.add(rz, recurrent[:, :both], out=rz)
        _sigmoid(rz)
        if resets_after:
            np.add(recurrent[:, both:], bias_h[both:], out=inside)
            np.multiply(r, inside, out=new)
        else:
            np.multiply(r, hidden, out=inside)
            np.matmul(inside, weight_h[both:].T, out=new)
        np.tanh(np.add(n, new, out=n), out=n)
        np.subtract(hidden, n, out=new)
        np.multiply(new, z, out=new)
        hidden = np.add(new, n, out=new)
    if saved:
        np.copyto(saved[0][..., : 3 * width], gates)
    np.copyto(last, hidden)


@kernel(GRUDown)
@in_float32
def _gru_down(operation: GRUDown, inputs: list[Array], outputs: list[Array]) -> None:
    g_y, g_hidden, x, hidden, weight_x, weight_h, _, _, y, activations = inputs
    dx, dhidden, dweight_x, dweight_h, dbias, dbias_h = outputs
    (steps, batch, width), resets_after = y.shape, operation.reset_after
    both = 2 * width
    by_gates = scratch("dgates", (steps, batch, 3 * width), x.dtype)
    # With a reset behind the product, the third part of what it gives has another gradient.
    by_products = scratch("dproducts", by_gates.shape, x.dtype) if resets_after else by_gates
    slope = scratch("slope", (batch, width), x.dtype)
    more = scratch("total", (batch, width), x.dtype)
    np.copyto(dhidden, g_hidden)
    for t in reversed(range(steps)):
        r, z, n, inside = _quarters(activations[t])
        before, by = y[t - 1] if t else hidden, by_gates[t]
        dr, dz, dn = by[:, :width], by[:, width:both], by[:, both:]
        np.add(dhidden, g_y[t], out=dhidden)
        np.multiply(n, n, out=slope)
        np.subtract(1, slope, out=slope)
        np.subtract(1, z, out=dn)
        np.multiply(dn, dhidden, out=dn)
        np.multiply(dn, slope, out=dn)
        np.subtract(before, n, out=dz)
        np.multiply(dz, dhidden, out=dz)
        _through_sigmoid(z, dz, slope)
        np.multiply(dhidden, z, out=dhidden)
        if resets_after:
            np.multiply(dn, inside, out=dr)
            _through_sigmoid(r, dr, slope)
            np.copyto(by_products[t, :, :both], by[:, :both])
            np.multiply(dn, r, out=by_products[t, :, both:])
            np.matmul(by_products[t], weight_h, out=more)
        else:
            np.matmul(dn, weight_h[both:], out=more)
            np.multiply(more, before, out=dr)
            _through_sigmoid(r, dr, slope)
            np.multiply(more, r, out=more)
            np.add(dhidden, more, out=dhidden)
            np.matmul(by[:, :both], weight_h[:both], out=more)
        np.add(dhidden, more, out=dhidden)
    _by_inputs(by_gates, x, weight_x, dx, dweight_x, dbias)
    flat = as_matrix(by_products)
    dbias_h[...] = sum_axes(flat, (0,))
    if resets_after:
        _by_states(flat, hidden, y, dweight_h)
    else:
        _by_states(flat[:, :both], hidden, y, dweight_h[:both])
        np.matmul(flat[:, both:].T, as_matrix(activations)[:, 3 * width :], out=dweight_h[both:])


@kernel(RNN)
@in_float32
def _rnn(operation: RNN, inputs: list[Array], outputs: list[Array]) -> None:
    x, hidden, weight_x, weight_h, bias = inputs
    y, last = outputs
    _of_inputs(x, weight_x, bias, y)
    recurrent = scratch("recurrent", hidden.shape, x.dtype)
    for new in y:
        np.matmul(hidden, weight_h.T, out=recurrent)
        np.add(new, recurrent, out=new)
        hidden = np.tanh(new, out=new) if operation.activation == "tanh" else np.maximum(new, 0, out=new)
    np.copyto(last, hidden)


@kernel(RNNDown)
@in_float32
def _rnn_down(operation: RNNDown, inputs: list[Array], outputs: list[Array]) -> None:
    g_y, g_hidden, x, hidden, weight_x, weight_h, _, y = inputs
    dx, dhidden, dweight_x, dweight_h, dbias = outputs
    by_gates = scratch("dgates", y.shape, x.dtype)
    np.copyto(dhidden, g_hidden)
    for each, g, by in zip(y[::-1], g_y[::-1], by_gates[::-1], strict=True):
        np.add(dhidden, g, out=dhidden)
        if operation.activation == "tanh":
            np.multiply(each, each, out=by)
            np.subtract(1, by, out=by)
            np.multiply(by, dhidden, out=by)
        else:
            keep_where(each > 0, dhidden, by)
        np.matmul(by, weight_h, out=dhidden)
    _by_inputs(by_gates, x, weight_x, dx, dweight_x, dbias)
    _by_states(as_matrix(by_gates), hidden, y, dweight_h)
