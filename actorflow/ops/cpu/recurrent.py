"""Kernels of `actorflow.ops.nn.recurrent`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, in_float32, keep_where, scratch
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.reductions import sum_axes
from actorflow.ops.cpu.windows import as_matrix
from actorflow.ops.nn.recurrent import GRU, LSTM, RNN, GRUDown, LSTMDown, LSTMGates, LSTMGatesDown, Ragged, RNNDown
from actorflow.ops.registry import find_kernel, kernel
from actorflow.spec import TensorSpec


def _quarters(gates: Array) -> tuple[Array, Array, Array, Array]:
    width = gates.shape[1] // 4
    return gates[:, :width], gates[:, width : 2 * width], gates[:, 2 * width : 3 * width], gates[:, 3 * width :]


def _activate(gates: Array, out: Array) -> None:
    """Sigmoids of the input, forget and output gates and the tanh of the third quarter; ``out`` may be ``gates``.

    The sigmoid is ``(1 + tanh(v / 2)) / 2``: one tanh of all gates, which does not overflow.
    """
    width = gates.shape[1] // 4
    np.multiply(gates, 0.5, out=out)
    out[:, 2 * width : 3 * width] *= 2
    np.tanh(out, out=out)
    for part in (out[:, : 2 * width], out[:, 3 * width :]):
        part += 1
        part *= 0.5


def _sigmoid(x: Array) -> Array:
    return (np.tanh(x * 0.5) + 1) * 0.5


def _slope(y: Array) -> Array:
    """The derivative of a sigmoid whose result is ``y``."""
    return (1 - y) * y


def _step(activations: Array, cell: Array, new_hidden: Array, new_cell: Array) -> None:
    i, f, z, o = _quarters(activations)
    np.add(f * cell, i * z, out=new_cell)
    np.multiply(np.tanh(new_cell), o, out=new_hidden)


def _step_down(
    g_hidden: Array, g_cell: Array, cell: Array, new_cell: Array, activations: Array, dgates: Array, dcell: Array
) -> None:
    """``dcell`` may be ``g_cell``."""
    i, f, z, o = _quarters(activations)
    di, df, dz, do = _quarters(dgates)
    t = np.tanh(new_cell)
    np.multiply(g_hidden * t, _slope(o), out=do)
    total = g_hidden * o * (1 - t * t) + g_cell  # the gradient by the new cell
    np.multiply(total * z, _slope(i), out=di)
    np.multiply(total * cell, _slope(f), out=df)
    np.multiply(total * i, 1 - z * z, out=dz)
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
    """Arrays for the values that gradients need; scratch memory where nothing needs it."""
    return arrays or [scratch(f"saved {i}", shape, dtype) for i, shape in enumerate(shapes)]


def _of_inputs(x: Array, weight: Array, bias: Array, out: Array) -> Array:
    """The products of all steps' inputs with a weight, and a bias."""
    np.matmul(as_matrix(x), weight.T, out=as_matrix(out))
    return np.add(out, bias, out=out)


def _by_inputs(by_gates: Array, x: Array, weight: Array, dx: Array, dweight: Array, dbias: Array) -> None:
    """The gradients by the arguments of `_of_inputs`."""
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
    for gates, new_hidden, new_cell in zip(activations, y, cells, strict=True):
        gates += hidden @ weight_h.T
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
        dhidden += g_y[t]
        for each in g_cells:
            dcell += each[t]
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
    for t, (each, new) in enumerate(zip(gates, y, strict=True)):
        rz, n = each[:, :both], each[:, both:]
        r, z = rz[:, :width], rz[:, width:]
        recurrent = hidden @ rows
        rz[...] = _sigmoid(rz + recurrent[:, :both])
        inside = recurrent[:, both:] + bias_h[both:] if resets_after else r * hidden
        n += r * inside if resets_after else inside @ weight_h[both:].T
        np.tanh(n, out=n)
        np.add((hidden - n) * z, n, out=new)
        hidden = new
        if saved:
            saved[0][t, :, 3 * width :] = inside
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
    np.copyto(dhidden, g_hidden)
    for t in reversed(range(steps)):
        r, z, n, inside = _quarters(activations[t])
        before, by = y[t - 1] if t else hidden, by_gates[t]
        dr, dz, dn = by[:, :width], by[:, width:both], by[:, both:]
        dhidden += g_y[t]
        np.multiply((1 - z) * dhidden, 1 - n * n, out=dn)
        np.multiply((before - n) * dhidden, _slope(z), out=dz)
        dhidden *= z
        if resets_after:
            np.multiply(dn * inside, _slope(r), out=dr)
            by_products[t, :, :both] = by[:, :both]
            np.multiply(dn, r, out=by_products[t, :, both:])
            dhidden += by_products[t] @ weight_h
        else:
            more = dn @ weight_h[both:]
            np.multiply(more * before, _slope(r), out=dr)
            dhidden += more * r
            dhidden += by[:, :both] @ weight_h[:both]
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
    for new in y:
        new += hidden @ weight_h.T
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
        dhidden += g
        if operation.activation == "tanh":
            np.multiply(1 - each * each, dhidden, out=by)
        else:
            keep_where(each > 0, dhidden, by)
        np.matmul(by, weight_h, out=dhidden)
    _by_inputs(by_gates, x, weight_x, dx, dweight_x, dbias)
    _by_states(as_matrix(by_gates), hidden, y, dweight_h)


def ragged(libraries: Sequence[str], operation: Ragged, inputs: list[Array], outputs: list[Array]) -> None:
    """Sequences of several lengths, whose parts a library computes."""
    made, lengths = kept(operation).made, [min(max(n, 0), len(inputs[0])) for n in inputs[1].tolist()]
    # Of its own: what follows from the weights is kept by it.
    network: Any = made("network", lambda: replace(operation.network, **_UNSAVED.get(type(operation.network), {})))

    def run(given: list[Array], found: list[Array]) -> None:
        def bound() -> Any:
            specs = [TensorSpec(each.shape, each.dtype) for each in given]
            return find_kernel(network, "cpu", specs[0].dtype, libraries=libraries).bound(network, specs)

        made((libraries, given[0].shape), bound).function(network, given, found)

    operation.in_parts(lengths, [inputs[0], *inputs[2:]], outputs, run)


_UNSAVED: dict[Any, dict[str, Any]] = {LSTM: {"saves": False}, GRU: {"saves": False}}


@kernel(Ragged, keeps=True)
def _ragged(operation: Ragged, inputs: list[Array], outputs: list[Array]) -> None:
    ragged(("numpy",), operation, inputs, outputs)
