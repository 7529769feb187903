"""Kernels of `actorflow.ops.nn.recurrent`: two launches per step, a product and everything else."""

from __future__ import annotations

from typing import Any

import cupy

from actorflow.interchange import to_numpy
from actorflow.ops.cuda.launch import FLOATS, Array, contiguous, elementwise, kernel, launch_flat
from actorflow.ops.cuda.linalg import dot, rows
from actorflow.ops.cuda.reductions import sum_axes
from actorflow.ops.nn.recurrent import GRU, LSTM, RNN, GRUDown, LSTMDown, LSTMGates, LSTMGatesDown, Ragged, RNNDown

_ADD = elementwise("add_to_rows", "T x, T more", "T y", "y = T(W(x) + W(more))")
_SIGMOIDS = "r = T(W(1) / (W(1) + exp(-(W(a_r) + W(h_r))))); z = T(W(1) / (W(1) + exp(-(W(a_z) + W(h_z)))));"
_AFTER = elementwise(
    "gru_reset_after",
    "T a_r, T a_z, T a_n, T h_r, T h_z, T h_n, T b_n, T hidden",
    "T r, T z, T n, T inside, T y",
    _SIGMOIDS + "const W h = W(h_n) + W(b_n), v = tanh(W(a_n) + W(r) * h); inside = T(h); n = T(v);"
    "y = T(v + W(z) * (W(hidden) - v))",
)
_RESET = elementwise(
    "gru_reset",
    "T a_r, T a_z, T h_r, T h_z, T hidden",
    "T r, T z, T inside",
    _SIGMOIDS + "inside = T(W(r) * W(hidden))",
)
_NEW = elementwise(
    "gru_new",
    "T a_n, T h_n, T z, T hidden",
    "T n, T y",
    "const W v = tanh(W(a_n) + W(h_n)); n = T(v); y = T(v + W(z) * (W(hidden) - v))",
)
#: The gradient by the new state: that by the last one so far, by the step's own output, and through the next product.
_NEW_DOWN = (
    "const W g = W(g_hidden) + W(g_y) + W(more);"
    "const W by_n = g * (W(1) - W(z)) * (W(1) - W(n) * W(n));"
    "dn = T(by_n); dz = T(g * (W(before) - W(n)) * W(z) * (W(1) - W(z))); dhidden = T(g * W(z));"
)
_BEFORE_DOWN = elementwise(
    "gru_new_down", "T g_hidden, T g_y, T more, T z, T n, T before", "T dz, T dn, T dhidden", _NEW_DOWN
)
_AFTER_DOWN = elementwise(
    "gru_reset_after_down",
    "T g_hidden, T g_y, T more, T r, T z, T n, T inside, T before",
    "T dr, T dz, T dn, T pr, T pz, T pn, T dhidden",
    _NEW_DOWN + "dr = pr = T(by_n * W(inside) * W(r) * (W(1) - W(r))); pz = dz; pn = T(by_n * W(r))",
)
_RESET_DOWN = elementwise(
    "gru_reset_down",
    "T g_hidden, T more, T r, T before",
    "T dr, T dhidden",
    "dr = T(W(more) * W(before) * W(r) * (W(1) - W(r))); dhidden = T(W(g_hidden) + W(more) * W(r))",
)
_RNN = {
    "tanh": elementwise("rnn_tanh", "T x, T more", "T y", "y = T(tanh(W(x) + W(more)))"),
    "relu": elementwise("rnn_relu", "T x, T more", "T y", "const W v = W(x) + W(more); y = T(v < W(0) ? W(0) : v)"),
}
_RNN_DOWN = {
    name: elementwise(f"rnn_{name}_down", "T g_hidden, T g_y, T y", "T by", body)
    for name, body in (
        ("tanh", "by = T((W(g_hidden) + W(g_y)) * (W(1) - W(y) * W(y)))"),
        ("relu", "by = T(W(y) > W(0) ? W(g_hidden) + W(g_y) : W(0))"),
    )
}


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


def _of_inputs(x: Array, weight: Array, bias: Array) -> Array:
    """The products of all steps' inputs with a weight, and a bias."""
    out = cupy.empty((*x.shape[:2], len(weight)), x.dtype)
    dot(rows(x), weight.T, rows(out))
    _ADD(out, bias, out)
    return out


def _by_inputs(by_gates: Array, x: Array, weight: Array, dx: Array, dweight: Array, dbias: Array) -> None:
    """The gradients by what `_of_inputs` takes."""
    flat = rows(by_gates)
    dot(flat, weight, rows(dx))
    dot(flat.T, rows(x), dweight)
    sum_axes(flat, (0,), dbias)


def _before(hidden: Array, y: Array) -> Array:
    """The hidden state that each step began with."""
    found = cupy.empty(y.shape, y.dtype)
    if len(y):
        cupy.copyto(found[0], hidden)
        cupy.copyto(found[1:], y[:-1])
    return found


def _thirds(gates: Array) -> tuple[Array, Array, Array]:
    width = gates.shape[-1] // 3
    return gates[:, :width], gates[:, width : 2 * width], gates[:, 2 * width :]


def _quarters(gates: Array) -> list[Array]:
    width = gates.shape[-1] // 4
    return [gates[:, k * width : (k + 1) * width] for k in range(4)]


@kernel(LSTM, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _lstm(operation: LSTM, inputs: list[Array], outputs: list[Array]) -> None:
    x, hidden, cell, weight_x, weight_h, bias = (contiguous(array) for array in inputs)
    y, last_hidden, last_cell, *saved = outputs
    gates = _of_inputs(x, weight_x, bias)
    activations, cells = saved or (gates, cupy.empty(y.shape, y.dtype))
    more = cupy.empty(gates.shape[1:], cell.dtype)
    for t in range(len(y)):
        dot(hidden, weight_h.T, more)
        _step(gates[t], more, cell, y[t], cells[t], activations[t])
        hidden, cell = y[t], cells[t]
    cupy.copyto(last_hidden, hidden)
    cupy.copyto(last_cell, cell)


@kernel(LSTMDown, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _lstm_down(operation: LSTMDown, inputs: list[Array], outputs: list[Array]) -> None:
    g_y, g_hidden, g_cell, x, hidden, cell, weight_x, weight_h, _, y, activations, cells, *g_cells = (
        contiguous(array) for array in inputs
    )
    dx, dhidden, dcell, dweight_x, dweight_h, dbias = outputs
    dgates = cupy.empty(activations.shape, x.dtype)
    cupy.copyto(dhidden, g_hidden)
    cupy.copyto(dcell, g_cell)
    for t in reversed(range(len(x))):
        for each in g_cells:
            _ADD(dcell, each[t], dcell)
        states = (cells[t - 1] if t else cell, cells[t], activations[t])
        _step_down(g_y[t], dhidden, dcell, states, dgates[t], dcell)
        dot(dgates[t], weight_h, dhidden)
    _by_inputs(dgates, x, weight_x, dx, dweight_x, dbias)
    dot(rows(dgates).T, rows(_before(hidden, y)), dweight_h)


@kernel(GRU, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _gru(operation: GRU, inputs: list[Array], outputs: list[Array]) -> None:
    x, hidden, weight_x, weight_h, bias, bias_h = (contiguous(array) for array in inputs)
    y, last, *saved = outputs
    (_, batch, width), after = y.shape, operation.reset_after
    both = 2 * width
    first = bias.copy()  # with all that is added to it whatever the state is
    part = slice(both if after else None)
    _ADD(bias[part], bias_h[part], first[part])
    gates = _of_inputs(x, weight_x, first)
    other = cupy.empty((batch, 4 * width), x.dtype)
    of_state = cupy.empty((batch, (3 if after else 2) * width), x.dtype)
    of_reset = cupy.empty((batch, width), x.dtype)
    for t, new in enumerate(y):
        a_r, a_z, a_n = _thirds(gates[t])
        r, z, n, inside = _quarters(saved[0][t] if saved else other)
        dot(hidden, weight_h[: of_state.shape[1]].T, of_state)
        if after:
            _AFTER(a_r, a_z, a_n, *_thirds(of_state), bias_h[both:], hidden, r, z, n, inside, new)
        else:
            _RESET(a_r, a_z, of_state[:, :width], of_state[:, width:], hidden, r, z, inside)
            dot(contiguous(inside), weight_h[both:].T, of_reset)
            _NEW(a_n, of_reset, z, hidden, n, new)
        hidden = new
    cupy.copyto(last, hidden)


@kernel(GRUDown, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _gru_down(operation: GRUDown, inputs: list[Array], outputs: list[Array]) -> None:
    g_y, g_hidden, x, hidden, weight_x, weight_h, _, _, y, activations = (contiguous(array) for array in inputs)
    dx, dhidden, dweight_x, dweight_h, dbias, dbias_h = outputs
    width, after = y.shape[2], operation.reset_after
    both = 2 * width
    by_gates = cupy.empty((*y.shape[:2], 3 * width), x.dtype)
    # With a reset behind the product, the third part of what it gives has another gradient.
    by_products = cupy.empty(by_gates.shape, x.dtype) if after else by_gates
    before, more = _before(hidden, y), cupy.empty(hidden.shape, x.dtype)
    more.fill(0)
    cupy.copyto(dhidden, g_hidden)
    for t in reversed(range(len(y))):
        r, z, n, inside = _quarters(activations[t])
        dr, dz, dn = _thirds(by_gates[t])
        if after:
            by = _thirds(by_products[t])
            _AFTER_DOWN(dhidden, g_y[t], more, r, z, n, inside, before[t], dr, dz, dn, *by, dhidden)
            dot(by_products[t], weight_h, more)
        else:
            _BEFORE_DOWN(dhidden, g_y[t], more, z, n, before[t], dz, dn, dhidden)
            dot(contiguous(dn), weight_h[both:], more)
            _RESET_DOWN(dhidden, more, r, before[t], dr, dhidden)
            dot(contiguous(by_gates[t][:, :both]), weight_h[:both], more)
    _ADD(dhidden, more, dhidden)
    _by_inputs(by_gates, x, weight_x, dx, dweight_x, dbias)
    flat = rows(by_products)
    sum_axes(flat, (0,), dbias_h)
    if after:
        dot(flat.T, rows(before), dweight_h)
    else:
        dot(contiguous(flat[:, :both]).T, rows(before), dweight_h[:both])
        dot(contiguous(flat[:, both:]).T, contiguous(rows(activations)[:, 3 * width :]), dweight_h[both:])


@kernel(RNN, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _rnn(operation: RNN, inputs: list[Array], outputs: list[Array]) -> None:
    x, hidden, weight_x, weight_h, bias = (contiguous(array) for array in inputs)
    y, last = outputs
    gates, more = _of_inputs(x, weight_x, bias), cupy.empty(hidden.shape, x.dtype)
    for each, new in zip(gates, y, strict=True):
        dot(hidden, weight_h.T, more)
        _RNN[operation.activation](each, more, new)
        hidden = new
    cupy.copyto(last, hidden)


@kernel(RNNDown, dtypes=FLOATS, captures=False)  # cuBLAS, which CuPy does not capture
def _rnn_down(operation: RNNDown, inputs: list[Array], outputs: list[Array]) -> None:
    g_y, g_hidden, x, hidden, weight_x, weight_h, _, y = (contiguous(array) for array in inputs)
    dx, dhidden, dweight_x, dweight_h, dbias = outputs
    by_gates = cupy.empty(y.shape, x.dtype)
    cupy.copyto(dhidden, g_hidden)
    for t in reversed(range(len(y))):
        _RNN_DOWN[operation.activation](dhidden, g_y[t], y[t], by_gates[t])
        dot(by_gates[t], weight_h, dhidden)
    _by_inputs(by_gates, x, weight_x, dx, dweight_x, dbias)
    dot(rows(by_gates).T, rows(_before(hidden, y)), dweight_h)


@kernel(Ragged, dtypes=FLOATS, captures=False)  # which asks how long sequences are
def _ragged(operation: Ragged, inputs: list[Array], outputs: list[Array]) -> None:
    x, lengths, *more = inputs
    ends = to_numpy(lengths).clip(0, len(x)).tolist()
    compute: Any = {LSTM: _lstm, GRU: _gru, RNN: _rnn}[type(operation.network)]
    operation.in_parts(ends, [x, *more], outputs, lambda *arrays: compute(operation.network, *arrays))
