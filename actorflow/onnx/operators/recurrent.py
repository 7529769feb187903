"""Recurrent networks over whole sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.graph.flow import scan
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.narrow import quantized
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Node, lowers
from actorflow.onnx.values import Array, Value
from actorflow.ops.cpu.buffers import narrow
from actorflow.ops.cpu.kept import kept
from actorflow.ops.indexing import line
from actorflow.ops.operation import Operation, savable
from actorflow.ops.registry import kernel
from actorflow.spec import TensorSpec

#: Activations, and their alpha and beta where a file gives none.
_ACTIVATIONS: Mapping[str, tuple[Callable[..., Any], tuple[float, ...]]] = MappingProxyType(
    {
        "tanh": (lambda x: ops.tanh(x), ()),
        "sigmoid": (lambda x: ops.sigmoid(x), ()),
        "relu": (lambda x: ops.relu(x), ()),
        "softsign": (lambda x: x / (ops.absolute(x) + 1.0), ()),
        "softplus": (lambda x: ops.softplus(x), ()),
        "elu": (lambda x, a: ops.elu(x, a), (1.0,)),
        "leakyrelu": (lambda x, a: ops.leaky_relu(x, a), (0.01,)),
        "thresholdedrelu": (lambda x, a: ops.where(x > a, x, 0.0), (1.0,)),
        "affine": (lambda x, a, b: x * a + b, (1.0, 0.0)),
        "scaledtanh": (lambda x, a, b: ops.tanh(x * b) * a, (1.0, 1.0)),
        "hardsigmoid": (lambda x, a, b: ops.clip(x * a + b, 0.0, 1.0), (0.2, 0.5)),
    }
)


def _gates(node: Node, position: int, direction: int, order: Sequence[int], start: int = 0, count: int = 0) -> Any:
    """The rows of the gates of a weight or bias, in our order: gate ``i`` of ours is gate ``order[i]`` of the file.

    Args:
        node: The node.
        position: The input.
        direction: Which direction's.
        order: As above.
        start: The gate that is number 0.
        count: Number of gates that the input has, if more than in ``order``.
    """
    value = node.value(position)
    width = value.shape[1] // (count or len(order))
    parts = [slice((start + i) * width, (start + i + 1) * width) for i in order]
    if value.is_constant:
        assert value.known is not None
        return constant(node.graph, np.concatenate([value.known[direction, part] for part in parts]), name="weight")
    return ops.concat([ops.slice(value.blob(), (direction, part)) for part in parts], axis=0)


def _state(node: Node, position: int, direction: int, batch_first: bool, x: Any) -> Any:
    """A first state of a direction, the same one for all rows of x where it has one; None for zeros."""
    if not node.has(position):
        return None
    blob = node.value(position).blob()
    state = ops.slice(blob, (slice(None), direction) if batch_first else (direction,))
    return ops.broadcast_to(state, (x.shape[1], state.shape[1])) if state.shape[0] == 1 != x.shape[1] else state


def _beside(parts: Sequence[Any], axis: int) -> Any:
    """Results of directions, along an axis of their own."""
    return ops.stack(parts, axis=axis) if len(parts) > 1 else ops.expand_dims(parts[0], axis)


def _activations(node: Node, names: Sequence[str], count: int) -> list[Callable[..., Any]]:
    """The activations of all directions, ``count`` each, behind the file's clip."""
    alphas, betas = (iter(node.attribute(f"activation_{each}") or []) for each in ("alpha", "beta"))
    clip = node.attribute("clip")
    found: list[Callable[..., Any]] = []
    for i, name in enumerate(names):
        if name not in _ACTIVATIONS:
            raise Refused(f"activation {name!r} is not supported")
        function, defaults = _ACTIVATIONS[name]
        given = [next(each, default) for each, default in zip((alphas, betas), defaults, strict=False)]

        most = None if i % count == 2 else clip  # a new cell is not clipped, as in ONNX Runtime

        def activated(x: Any, function: Any = function, given: Any = given, most: Any = most) -> Any:
            return function(x if most is None else ops.clip(x, -most, most), *given)

        found.append(activated)
    return found


def _by_steps(
    step: Callable[..., Sequence[Any]], x: Any, weight: Any, bias: Any, states: Sequence[Any], width: int,
    lengths: Any, reverse: bool,
) -> Sequence[Any]:  # fmt: skip
    """A network that no kernel is for, of any number of steps: the first state after each step, and the last states.

    Args:
        step: Makes the states of what follows from the input, ``x @ weight.T + bias``, and the states before.
        x, weight, bias, states, lengths, reverse: As those of `ops.lstm`.
        width: Length of a state.
    """
    gates = ops.inner(x, weight) if bias is None else ops.inner(x, weight) + bias
    first = tuple([x.constant_like(0.0, (x.shape[1], width)) if each is None else each for each in states])
    given = [gates]
    if lengths is not None:
        numbers = line(x, 0, x.shape[:2])
        given.append(ops.expand_dims(numbers < ops.cast(lengths, numbers.dtype), 2))

    def following(before: Any, entry: Any) -> Any:
        new = step(entry[0], *before)
        if lengths is None:
            return tuple(new), new[0]
        held = [ops.where(entry[1], after, state) for after, state in zip(new, before, strict=True)]
        return tuple(held), ops.where(entry[1], new[0], 0.0)

    last, y = scan(following, first, given, reverse=reverse)
    return (y, *last)


def _recurrent(node: Node, usual: Sequence[str], run: Callable[..., Sequence[Any]]) -> list[Value | None]:
    """Each direction by itself, and their results side by side."""
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[
        node.attribute("direction", "forward")
    ]
    names = [name.lower() for name in node.attribute("activations") or []]
    names += [*usual, *usual][len(names) : len(usual) * len(directions)]  # those left out are the usual ones
    activations = _activations(node, names, len(usual))
    is_usual = node.attribute("clip") is None and not node.attribute("input_forget", 0)
    batch_first = bool(node.attribute("layout", 0))
    x = node.x.blob((1, 0, 2) if batch_first else None)
    lengths = node.value(4).blob() if node.has(4) else None
    found = []
    for i, is_reverse in enumerate(directions):
        own = slice(i * len(usual), (i + 1) * len(usual))
        options = {"lengths": lengths, "reverse": is_reverse}
        found.append(run(x, i, batch_first, names[own] if is_usual else None, activations[own], options))
    whole, *states = zip(*found, strict=True)
    # (steps, directions, batch, hidden), or (batch, steps, directions, hidden)
    y = _beside(whole, 1)
    last = [_beside(state, 0) for state in states]
    if not batch_first:
        return [node.usual(y), *map(node.usual, last)]
    return [node.ordered((1, 2, 0, 3), y), *[node.ordered((1, 0, 2), state) for state in last]]


@lowers("LSTM")
def _lstm(node: Node) -> list[Value | None]:
    order = (0, 2, 3, 1)  # of input, output, forget, cell: ours are input, forget, cell, output
    forgets = bool(node.attribute("input_forget", 0))

    def run(x: Any, i: int, batch_first: bool, names: Any, activations: Any, options: Any) -> Sequence[Any]:
        bias = None
        if node.has(3):
            bias = _gates(node, 3, i, order, 0, 8) + _gates(node, 3, i, order, 4, 8)
        weights: Any = [_gates(node, position, i, order) for position in (1, 2)]
        states: Any = [_state(node, position, i, batch_first, x) for position in (5, 6)]
        if names == ["sigmoid", "tanh", "tanh"] and not node.has(7):
            return ops.lstm(x, weights[0], weights[1], bias, states[0], states[1], **options)
        width, (f, g, h) = weights[1].shape[1], activations
        looks = ops.split(_gates(node, 7, i, (0, 2, 1)), 3) if node.has(7) else None

        def step(gates: Any, hidden: Any, cell: Any) -> Sequence[Any]:
            a, b, z, o = ops.split(gates + ops.inner(hidden, weights[1]), 4, axis=1)
            if looks is not None:
                a, b = a + cell * looks[0], b + cell * looks[1]
            a = f(a)
            cell = (1.0 - a if forgets else f(b)) * cell + a * g(z)
            return f(o if looks is None else o + cell * looks[2]) * h(cell), cell

        return _by_steps(step, x, weights[0], bias, states, width, **options)

    return _recurrent(node, ("sigmoid", "tanh", "tanh"), run)


@lowers("GRU")
def _gru(node: Node) -> list[Value | None]:
    order = (1, 0, 2)  # of update, reset, hidden: ours are reset, update, new
    after = bool(node.attribute("linear_before_reset", 0))

    def run(x: Any, i: int, batch_first: bool, names: Any, activations: Any, options: Any) -> Sequence[Any]:
        bias, bias_h = (_gates(node, 3, i, order, start, 6) if node.has(3) else None for start in (0, 3))
        weights: Any = [_gates(node, position, i, order) for position in (1, 2)]
        state = _state(node, 5, i, batch_first, x)
        if names == ["sigmoid", "tanh"]:
            return ops.gru(x, weights[0], weights[1], bias, bias_h, state, reset_after=after, **options)
        width, (f, g) = weights[1].shape[1], activations
        first, last = ops.slice(weights[1], (slice(2 * width),)), ops.slice(weights[1], (slice(2 * width, None),))
        biases = [0.0, 0.0] if bias_h is None else ops.split(bias_h, [2 * width, width])

        def step(gates: Any, hidden: Any) -> Sequence[Any]:
            before, new = ops.split(gates, [2 * width, width], axis=1)
            r, z = ops.split(f(before + ops.inner(hidden, first) + biases[0]), 2, axis=1)
            given = r * (ops.inner(hidden, last) + biases[1]) if after else ops.inner(r * hidden, last) + biases[1]
            return ((1.0 - z) * g(new + given) + z * hidden,)

        return _by_steps(step, x, weights[0], bias, [state], width, **options)

    return _recurrent(node, ("sigmoid", "tanh"), run)


@lowers("RNN")
def _rnn(node: Node) -> list[Value | None]:
    def run(x: Any, i: int, batch_first: bool, names: Any, activations: Any, options: Any) -> Sequence[Any]:
        bias = _gates(node, 3, i, (0,), 0, 2) + _gates(node, 3, i, (0,), 1, 2) if node.has(3) else None
        weights: Any = [_gates(node, position, i, (0,)) for position in (1, 2)]
        state = _state(node, 5, i, batch_first, x)
        if names is not None and names[0] in {"tanh", "relu"}:
            return ops.rnn(x, weights[0], weights[1], bias, state, activation=names[0], **options)
        width, (f,) = weights[1].shape[1], activations

        def step(gates: Any, hidden: Any) -> Sequence[Any]:
            return (f(gates + ops.inner(hidden, weights[1])),)

        return _by_steps(step, x, weights[0], bias, [state], width, **options)

    return _recurrent(node, ("tanh",), run)


# -- of eight bits -----------------------------------------------------------------------------------------------------


@savable
@dataclass(frozen=True)
class QuantizedLSTM(Operation):
    """An LSTM of weights of 8 bits, which rounds what it multiplies with them to 8 bits, each step's state by itself.

    Gates are those of input, output, forget and cell; weights are whole numbers.

    Attributes:
        reverse: Whether it goes from the end of the sequence on.
    """

    arguments = ("x", "hidden", "cell", "weight_x", "weight_h", "scale_x", "scale_h", "bias")
    differentiable = False

    reverse: bool

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, hidden, cell = inputs[:3]
        return TensorSpec((x.shape[0], *hidden.shape), x.dtype), hidden, cell


@kernel(QuantizedLSTM, returns=True, keeps=True)
def _quantized(operation: QuantizedLSTM, inputs: list[Array], _outputs: None) -> list[Array]:
    x, hidden, cell, *weights, scale_x, scale_h, bias = inputs
    y, (rows, width) = np.empty((len(x), *hidden.shape), x.dtype), hidden.shape
    by_x, by_h = kept(operation).derived("weights").of(weights, lambda *each: [*map(_packed, each)])
    if not y.size:
        return [y, hidden, cell]
    gates, step = np.empty((len(x) * rows, 4 * width), np.float32), np.empty((rows, 4 * width), np.float32)
    _multiply(x.reshape(-1, x.shape[2]), by_x, scale_x, np.broadcast_to(bias, gates.shape), gates)
    gates, opened, new = gates.reshape(len(x), rows, 4 * width), step[:, : 3 * width], step[:, 3 * width :]
    out, cell, module = step[:, width : 2 * width], np.array(cell, order="C"), narrow()
    for i in range(len(x))[:: -1 if operation.reverse else 1]:
        _multiply(hidden, by_h, scale_h, gates[i], step, 3 * width)
        np.exp(opened, out=opened)
        np.tanh(new, out=new)
        if module is None:
            np.reciprocal(np.add(opened, 1, out=opened), out=opened)
            cell = opened[:, 2 * width :] * cell + opened[:, :width] * new
        else:
            module.gates(step, cell)
        hidden = np.multiply(out, np.tanh(cell, out=new), out=y[i])
    return [y, hidden.copy(), cell]


def _packed(weight: Array) -> Array:
    """Whole numbers as products take them."""
    module = narrow()
    return weight.astype(np.float32) if module is None else module.pack(weight.astype(np.int32), weight.itemsize)


def _multiply(x: Array, weight: Array, scale: Array, added: Array, y: Array, negated: int = 0) -> None:
    """Put rows, rounded to 8 bits between the least and the largest number, times whole numbers and a scale into y.

    Other numbers are added; the first columns, as many as are ``negated``, have the other sign then.
    """
    if (module := narrow()) is not None:
        module.product(np.ascontiguousarray(x), weight, scale, added, y, negated)
        return
    whole, step, zero = quantized(x)
    np.add(((whole - zero) @ weight) * (step * scale), added, out=y)
    np.negative(y[:, :negated], out=y[:, :negated])


def _whole(array: Array, zero: Any) -> Array:
    """Weights without their zero point, in 8 bits if these have them."""
    found = array.astype(np.int16) - np.int16(zero)
    fits = not found.size or (found.min() >= -128 and found.max() < 128)
    return found.astype(np.int8) if fits else found


@lowers(
    "com.microsoft:DynamicQuantizeLSTM",
    limits="other activations than the usual ones, clip, input_forget; peepholes and sequences of several lengths",
)
def _quantized_lstm(node: Node) -> list[Value | None]:
    if node.has(4) or node.has(7):
        raise Refused("peepholes and sequences of several lengths are not supported")

    def run(x: Any, i: int, batch_first: bool, names: Any, activations: Any, options: Any) -> Sequence[Any]:
        if names != ["sigmoid", "tanh", "tanh"]:
            raise Refused("other activations than sigmoid, tanh, tanh, clip and input_forget are not supported")
        weights, scales = [], []
        for at, position in ((1, 8), (2, 10)):
            array, scale = node.array(at, "a weight")[i], node.array(position, "a scale")[i]
            zero = node.array(position + 1, "a zero point")[i] if node.has(position + 1) else 0
            spend(*array.shape, size=4)
            weights.append(_whole(array, zero))
            scales.append(np.asarray(scale, np.float32).reshape(-1))
        width = weights[1].shape[0]
        bias = node.array(3, "the bias")[i] if node.has(3) else np.zeros(8 * width, np.float32)
        states = [_state(node, position, i, batch_first, x) for position in (5, 6)]
        states = [x.constant_like(0.0, (x.shape[1], width)) if state is None else state for state in states]
        given = [constant(node.graph, each) for each in (*weights, *scales, bias[: 4 * width] + bias[4 * width :])]
        made: Sequence[Any] = node.graph.apply(QuantizedLSTM(options["reverse"]), x, *states, *given)
        return made

    return _recurrent(node, ("sigmoid", "tanh", "tanh"), run)
