"""Recurrent networks: cells, and scans of them over whole sequences.

Gates lie side by side, in PyTorch's order: input, forget, cell, output of a long short-term memory. Weights have shape
(gates * hidden, features), as those of `inner`. A long short-term memory over whole sequences has kernels of its own,
one for the states and one for the gradient; all else is made of other operations, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.composition import composed_gradient
from actorflow.ops.elementwise import plus, tanh, where
from actorflow.ops.indexing import flip
from actorflow.ops.linalg import BiasDown, InnerDown, InnerWeight, inner
from actorflow.ops.linalg import bias as add_bias
from actorflow.ops.nn.activation import relu, sigmoid
from actorflow.ops.operation import Application, Cost, Grads, Operation, apply, blob_of, rank_is, same_dtype, whole
from actorflow.ops.shaping import concat, expand_dims, reshape, split, stack
from actorflow.spec import TensorSpec, known

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


#: Axes of the arguments of `LSTM`.
_AXES = {
    "x": "steps, batch, features",
    "hidden": "batch, hidden",
    "cell": "batch, hidden",
    "weight_x": "4 * hidden, features",
    "weight_h": "4 * hidden, hidden",
    "bias": "4 * hidden",
}


def check_axes(kind: str, axes: Mapping[str, str], inputs: Mapping[str, TensorSpec]) -> None:
    """Check that inputs have one floating dtype, and shapes that agree where axes have the same names.

    Args:
        kind: Name of the operation.
        axes: Names of the axes of each input, or products of a number and such a name.
        inputs: The types.
    """
    same_dtype(kind, **inputs)
    lengths: dict[str, int] = {}
    for name, text in axes.items():
        spec, own = inputs[name], text.split(", ")
        if len(spec.shape) != len(own):
            raise ShapeError(f"{kind}: {name} must have shape ({text}), got {spec}")
        lengths = dict(zip(own, spec.shape, strict=True)) | lengths
        expected = tuple(int(axis[0]) * lengths[axis[4:]] if " * " in axis else lengths[axis] for axis in own)
        if spec.shape != expected:
            raise ShapeError(f"{kind}: {name} must have shape ({text}), here {expected}, got {spec}")


def before_activation(g: Blob, activations: Blob) -> Blob:
    """The gradient by the gates from that by their activations alone."""
    i, f, z, o = split(activations, 4, axis=1)
    return g * concat([i * (1.0 - i), f * (1.0 - f), 1.0 - z * z, o * (1.0 - o)], axis=1)


@dataclass(frozen=True)
class LSTMGatesDown(Operation):
    """The gradient of `LSTMGates` by the gates and the cell, from its states and activations."""

    arguments = ("g_hidden", "g_cell", "cell", "new_cell", "activations")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        axes = dict.fromkeys(("cell", *self.arguments), "batch, hidden") | {"activations": "batch, 4 * hidden"}
        check_axes("LSTMGatesDown", axes, dict(zip(self.arguments, inputs, strict=True)))
        return (inputs[-1], inputs[2])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        return composed_gradient(_gates_down, op, grads, wanted)


def _gates_down(g_hidden: Blob, g_cell: Blob, cell: Blob, new_cell: Blob, activations: Blob) -> tuple[Blob, Blob]:
    i, f, z, o = split(activations, 4, axis=1)
    t = tanh(new_cell)
    d = g_cell + g_hidden * o * (1.0 - t * t)  # the gradient by the new cell
    return before_activation(concat([d * z, d * cell, d * i, g_hidden * t], axis=1), activations), d * f


def _through_time(
    g_y: Blob,
    g_hidden: Blob,
    g_cell: Blob,
    x: Blob,
    hidden: Blob,
    cell: Blob,
    weight_x: Blob,
    weight_h: Blob,
    y: Blob,
    activations: Blob,
    cells: Blob,
    g_activations: Blob | None = None,
    g_cells: Blob | None = None,
) -> list[Blob]:
    """`LSTMDown` of at least one step, step by step; gradients of gradients come by the activations and cells, too."""
    after, gates = _steps(cells), _steps(activations)
    outer = _steps(g_y)
    by_cells, by_activations = (None if g is None else _steps(g) for g in (g_cells, g_activations))
    found: list[Blob] = []
    for t in reversed(range(len(after))):
        g_hidden = g_hidden + outer[t]
        g_cell = g_cell if by_cells is None else g_cell + by_cells[t]
        by_gates, g_cell = apply(LSTMGatesDown(), g_hidden, g_cell, after[t - 1] if t else cell, after[t], gates[t])
        if by_activations is not None:
            by_gates = by_gates + before_activation(by_activations[t], gates[t])
        found.append(by_gates)
        g_hidden = blob_of(InnerDown(), by_gates, weight_h)
    first, whole_g = expand_dims(hidden, 0), stack(found[::-1])
    before = concat([first, split(y, [len(after) - 1, 1])[0]]) if len(after) > 1 else first
    return [
        apply(InnerDown(), whole_g, weight_x),
        g_hidden,
        g_cell,
        apply(InnerWeight(), whole_g, x),
        apply(InnerWeight(), whole_g, before),
        apply(BiasDown(), whole_g),
    ]


def _steps(x: Blob) -> list[Blob]:
    return [reshape(part, x.shape[1:]) for part in split(x, known("a step by step computation", x.shape[0]))]


@dataclass(frozen=True)
class LSTMDown(Operation):
    """The gradient of `LSTM` by all its inputs, from these, its states and activations: back through all steps.

    Its own gradient goes step by step through other operations.
    """

    arguments: ClassVar[tuple[str, ...]] = (
        *("g_y", "g_hidden", "g_cell", "x", "hidden", "cell", "weight_x", "weight_h"),
        *("y", "activations", "cells"),
    )

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        axes = {name: text for name, text in _AXES.items() if name != "bias"}
        axes |= dict.fromkeys(("g_y", "y", "cells"), "steps, batch, hidden")
        axes |= dict.fromkeys(("g_hidden", "g_cell"), "batch, hidden") | {"activations": "steps, batch, 4 * hidden"}
        check_axes("LSTMDown", axes, dict(zip(self.arguments, inputs, strict=True)))
        return (*inputs[3:8], TensorSpec(inputs[6].shape[:1], inputs[6].dtype))

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        if not op.inputs[3].shape[0]:
            return [None, *grads[1:3], *[None] * 8]
        return composed_gradient(_through_time, op, grads, wanted)


@dataclass(frozen=True)
class LSTMGates(Operation):
    """The new state of one step, from the gates before their activations; see `lstm_cell`.

    ``i, f, o`` are sigmoids and ``z`` a tanh of a quarter of ``gates`` each; ``cell = f * cell + i * z`` and
    ``hidden = o * tanh(cell)``. The third output is the gates' activations, for the gradient.
    """

    arguments = ("gates", "cell")
    per_element = 9  # four activations, and five more of the new cell and the new hidden state

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        gates, cell = inputs
        axes = {"cell": "batch, hidden", "gates": "batch, 4 * hidden"}
        check_axes("LSTMGates", axes, {"gates": gates, "cell": cell})
        return (cell, cell, gates)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        g_hidden, g_cell, g_activations = grads
        _, new_cell, activations = op.outputs
        by_gates: list[Blob] = []
        by_cell = None
        if g_hidden is not None or g_cell is not None:
            given = [new_cell.constant_like(0.0, new_cell.shape) if g is None else g for g in (g_hidden, g_cell)]
            through_states, by_cell = apply(LSTMGatesDown(), *given, op.inputs[1], new_cell, activations)
            by_gates.append(through_states)
        if g_activations is not None:
            by_gates.append(before_activation(g_activations, activations))
        return [plus(*by_gates), by_cell]


@dataclass(frozen=True)
class LSTM(Operation):
    """All steps of a sequence in one op; see `lstm`.

    Outputs: the hidden state after each step, the last hidden state, the last cell, and, for the gradient, the gates'
    activations and the cell after each step.
    """

    arguments = ("x", "hidden", "cell", "weight_x", "weight_h", "bias")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, hidden, *_ = inputs
        check_axes("LSTM", _AXES, dict(zip(self.arguments, inputs, strict=True)))
        (batch, width), steps = hidden.shape, x.shape[0]
        states = TensorSpec((steps, batch, width), x.dtype)
        return (states, hidden, hidden, TensorSpec((steps, batch, 4 * width), x.dtype), states)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        x, hidden, *_ = inputs
        y = outputs[0].size
        return Cost(4 * y * (x.shape[-1] + hidden.shape[-1]), (LSTMGates.per_element + 8) * y)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        y, *last, activations, cells = op.outputs
        g_y, g_hidden, g_cell = (
            o.constant_like(0.0, o.shape) if g is None else g for g, o in zip(grads[:3], (y, *last), strict=True)
        )
        x, hidden, cell, weight_x, weight_h, _ = op.inputs
        saved = (g_y, g_hidden, g_cell, x, hidden, cell, weight_x, weight_h, y, activations, cells)
        if (grads[3] is None and grads[4] is None) or not x.shape[0]:
            made: Sequence[Blob] = apply(LSTMDown(), *saved)
            return made
        return _through_time(*saved, grads[3], grads[4])


@whole
def lstm_cell(
    x: Blob,
    hidden: Blob,
    cell: Blob,
    weight_x: Blob,
    weight_h: Blob,
    bias: Blob | None = None,
    name: str | None = None,
    *,
    peepholes: Blob | None = None,
) -> tuple[Blob, Blob]:
    """One step of a long short-term memory.

    ``gates = x @ weight_x.T + hidden @ weight_h.T + bias``; sigmoids ``i, f, o`` and a tanh ``z`` of a quarter each;
    ``cell = f * cell + i * z``, ``hidden = o * tanh(cell)``.

    Args:
        x: Input, shape (batch, features), floating.
        hidden: Hidden state, shape (batch, hidden), dtype of ``x``.
        cell: Cell, likewise.
        weight_x: Shape (4 * hidden, features); rows are those of the gates i, f, z, o, in this order.
        weight_h: Shape (4 * hidden, hidden).
        bias: Shape (4 * hidden,): the sum of PyTorch's two; None for 0.
        name: Name of the op that makes the new state.
        peepholes: Factors on the cell, shape (3 * hidden,), that are added to the gates i and f, and on the new cell,
            added to o; None for 0.
    Returns:
        The new hidden state and the new cell, each (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs.
    Source: Hochreiter and Schmidhuber, 1997, with forget gates (Gers et al., 2000) and peepholes (Gers and Schmidhuber,
        2000); `torch.nn.LSTMCell`.
    Example:
        >>> x, weight_x, weight_h = xp.ones((2, 3)), xp.zeros((16, 3)), xp.zeros((16, 4))
        >>> hidden, cell = af.ops.lstm_cell(x, xp.zeros((2, 4)), xp.ones((2, 4)), weight_x, weight_h)
        >>> print(hidden.shape, cell[0])
        (2, 4) [0.5 0.5 0.5 0.5]
    """
    gates = plus(inner(x, weight_x), inner(hidden, weight_h))
    return _lstm_step(gates if bias is None else add_bias(gates, bias), cell, peepholes, name)


def _lstm_step(gates: Blob, cell: Blob, peepholes: Blob | None, name: str | None = None) -> tuple[Blob, Blob]:
    if peepholes is None:
        hidden, cell, _ = apply(LSTMGates(), gates, cell, name=name)
        return hidden, cell
    width = cell.shape[-1]
    for_inputs, for_outputs = split(peepholes, [2 * width, width])
    before, z, o = split(gates, [2 * width, width, width], axis=1)
    i, f = split(sigmoid(before + concat([cell, cell], axis=1) * for_inputs), 2, axis=1)
    cell = f * cell + i * tanh(z)
    return sigmoid(o + cell * for_outputs) * tanh(cell), cell


@whole
def lstm(
    x: Blob,
    weight_x: Blob,
    weight_h: Blob,
    bias: Blob | None = None,
    hidden: Blob | None = None,
    cell: Blob | None = None,
    name: str | None = None,
    *,
    peepholes: Blob | None = None,
    lengths: Blob | None = None,
    reverse: bool = False,
) -> tuple[Blob, Blob, Blob]:
    """A long short-term memory over whole sequences: `lstm_cell` step by step.

    It is one op, unless there are peepholes or lengths. Time comes first, as by default in PyTorch; `nn.LSTM` takes
    batches first on request.

    Args:
        x: Inputs, shape (steps, batch, features), floating.
        weight_x, weight_h, bias, peepholes: As in `lstm_cell`.
        hidden: First hidden state, shape (batch, hidden), dtype of ``x``; None for 0.
        cell: First cell, likewise.
        lengths, reverse: As in `scan`.
    Returns:
        The hidden states after each step, (steps, batch, hidden); the last one and the last cell, (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs.
    Source: As `lstm_cell`; `torch.nn.LSTM`.
    Example:
        >>> x, weight_x, weight_h = xp.ones((5, 2, 3)), xp.zeros((16, 3)), xp.zeros((16, 4))
        >>> steps, hidden, cell = af.ops.lstm(x, weight_x, weight_h, cell=xp.ones((2, 4)))
        >>> print(steps.shape, hidden.shape, cell[0, 0])  # half of the cell is kept in each step
        (5, 2, 4) (2, 4) 0.03125
    """
    if peepholes is not None or lengths is not None:

        def step(gates: Blob, hidden: Blob, cell: Blob) -> Sequence[Blob]:
            return _lstm_step(gates + inner(hidden, weight_h), cell, peepholes)

        weights, how = (weight_x, weight_h, bias), (lengths, reverse, name)
        y, last_hidden, last_cell = _scan("lstm", 4, step, x, *weights, [hidden, cell], *how)
        return y, last_hidden, last_cell
    rank_is("LSTM", "x", x.spec, ("steps", "batch", "features"))
    rank_is("LSTM", "weight_h", weight_h.spec, ("4 * hidden", "hidden"))
    state = (x.shape[1], weight_h.shape[1])
    hidden = x.constant_like(0.0, state) if hidden is None else hidden
    cell = x.constant_like(0.0, state) if cell is None else cell
    bias = x.constant_like(0.0, weight_h.shape[:1]) if bias is None else bias
    x = flip(x, 0) if reverse else x
    y, last_hidden, last_cell, _, _ = apply(LSTM(), x, hidden, cell, weight_x, weight_h, bias, name=name)
    return flip(y, 0) if reverse else y, last_hidden, last_cell


@whole
def rnn(
    x: Blob,
    weight_x: Blob,
    weight_h: Blob,
    bias: Blob | None = None,
    hidden: Blob | None = None,
    *,
    activation: str = "tanh",
    lengths: Blob | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> tuple[Blob, Blob]:
    """A simple recurrent network over whole sequences: ``hidden = tanh(x @ weight_x.T + hidden @ weight_h.T + bias)``.

    Args:
        x: Inputs, shape (steps, batch, features), floating, at least one step.
        weight_x: Shape (hidden, features), dtype of ``x``.
        weight_h: Shape (hidden, hidden).
        bias: Shape (hidden,): the sum of PyTorch's two; None for 0.
        hidden: First hidden state, shape (batch, hidden); None for 0.
        activation: "tanh" or "relu".
        lengths, reverse: As in `scan`.
    Returns:
        The hidden states after each step, (steps, batch, hidden), and the last one, (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
        GraphError: if the activation is unknown.
    Gradient: by all inputs.
    Source: Elman, Finding structure in time, 1990; `torch.nn.RNN`.
    Example:
        >>> x, weight_x, weight_h = xp.ones((3, 1, 1)), xp.ones((1, 1)), xp.ones((1, 1))
        >>> steps, last = af.ops.rnn(x, weight_x, weight_h, activation="relu")
        >>> print(xp.reshape(steps, (-1,)), last)
        [1. 2. 3.] [[3.]]
    """
    activate = {"tanh": tanh, "relu": relu}.get(activation)
    if activate is None:
        raise GraphError(f"rnn: activation must be 'tanh' or 'relu', got {activation!r}")

    def step(gates: Blob, hidden: Blob) -> Sequence[Blob]:
        return [activate(gates + inner(hidden, weight_h))]

    y, last = _scan("rnn", 1, step, x, weight_x, weight_h, bias, [hidden], lengths, reverse, name)
    return y, last


@whole
def gru(
    x: Blob,
    weight_x: Blob,
    weight_h: Blob,
    bias: Blob | None = None,
    bias_h: Blob | None = None,
    hidden: Blob | None = None,
    *,
    reset_after: bool = True,
    lengths: Blob | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> tuple[Blob, Blob]:
    """Gated recurrent units over whole sequences.

    With thirds ``a`` of ``x @ weight_x.T + bias`` and ``h`` of ``hidden @ weight_h.T + bias_h``: sigmoids ``r`` of
    ``a_r + h_r`` and ``z`` of ``a_z + h_z``, ``n = tanh(a_n + r * h_n)``, ``hidden = (1 - z) * n + z * hidden``.

    Args:
        x: Inputs, shape (steps, batch, features), floating, at least one step.
        weight_x: Shape (3 * hidden, features), dtype of ``x``; rows are those of r, z, n, in this order.
        weight_h: Shape (3 * hidden, hidden).
        bias: Shape (3 * hidden,); None for 0.
        bias_h: Likewise.
        hidden: First hidden state, shape (batch, hidden); None for 0.
        reset_after: Whether ``r`` is a factor on ``h_n``, as in PyTorch, cuDNN and ONNX with ``linear_before_reset``.
            If not, it is one on the hidden state that ``h_n`` is made of, as in the paper.
        lengths, reverse: As in `scan`.
    Returns:
        The hidden states after each step, (steps, batch, hidden), and the last one, (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs.
    Source: Cho et al., Learning phrase representations using RNN encoder-decoder, 2014; `torch.nn.GRU`.
    Example:
        >>> x, weight_x, weight_h = xp.ones((5, 2, 3)), xp.zeros((12, 3)), xp.zeros((12, 4))
        >>> steps, last = af.ops.gru(x, weight_x, weight_h, hidden=xp.ones((2, 4)))
        >>> print(steps.shape, last.shape)
        (5, 2, 4) (2, 4)
        >>> print(last[0, 0])  # half of it is kept in each step
        0.03125
    """
    width = weight_h.shape[-1]
    weights = [weight_h] if reset_after else split(weight_h, [2 * width, width])
    biases = [bias_h] if reset_after or bias_h is None else split(bias_h, [2 * width, width])

    def product(hidden: Blob, part: int) -> Blob:
        return _affine(hidden, weights[part], None if bias_h is None else biases[part])

    def step(gates: Blob, hidden: Blob) -> Sequence[Blob]:
        (a_rz, a_n), h = split(gates, [2 * width, width], axis=1), product(hidden, 0)
        h_rz, h_n = split(h, [2 * width, width], axis=1) if reset_after else (h, None)
        r, z = split(sigmoid(a_rz + h_rz), 2, axis=1)
        n = tanh(a_n + (product(r * hidden, 1) if h_n is None else r * h_n))
        return [n + z * (hidden - n)]

    y, last = _scan("gru", 3, step, x, weight_x, weight_h, bias, [hidden], lengths, reverse, name)
    return y, last


def _affine(x: Blob, weight: Blob, bias: Blob | None) -> Blob:
    return inner(x, weight) if bias is None else add_bias(inner(x, weight), bias)


def _scan(
    kind: str,
    gates: int,
    step: Callable[..., Sequence[Blob]],
    x: Blob,
    weight_x: Blob,
    weight_h: Blob,
    bias: Blob | None,
    states: Sequence[Blob | None],
    lengths: Blob | None,
    reverse: bool,
    name: str | None,
) -> tuple[Blob, ...]:
    """`scan` of the gates' products with ``x``, which are made of all steps at once; states that are None are 0."""
    rows = f"{gates} * hidden" if gates > 1 else "hidden"
    inputs = {"x": x.spec, "weight_h": weight_h.spec, "weight_x": weight_x.spec}
    check_axes(kind, {"x": _AXES["x"], "weight_h": f"{rows}, hidden", "weight_x": f"{rows}, features"}, inputs)
    zero = (x.shape[1], weight_h.shape[-1])
    first = [x.constant_like(0.0, zero) if state is None else state for state in states]
    return scan(step, _affine(x, weight_x, bias), first, lengths=lengths, reverse=reverse, name=name)


@whole
def scan(
    cell: Callable[..., Sequence[Blob]],
    x: Blob,
    states: Sequence[Blob],
    *,
    lengths: Blob | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> tuple[Blob, ...]:
    """A cell step by step: ``states = cell(x[t], *states)``, each step in ops of its own.

    Args:
        cell: Makes the new states, of the types of the old ones, from one step of ``x`` and the states.
        x: Inputs, shape (steps, batch, ...), at least one step.
        states: First states, one or more, (batch, ...).
        lengths: Number of steps of each sequence, shape (batch,), integers; None for all. Later steps leave its states
            as they are, and give 0.
        reverse: Whether the last step comes first.
        name: Name of the op that joins the outputs.
    Returns:
        The first state after each step, (steps, batch, ...), in the order of ``x``; then the last states.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by the inputs, the first states, and whatever the cell reads.
    Example:
        >>> graph = af.Graph("sums")
        >>> x, start = graph.blob("x", shape=(3, "batch")), graph.blob("start", shape="batch")
        >>> sums, last = af.ops.scan(lambda x, total: [total + x], x, [start])
        >>> print(graph.run_sync({x: [[1, 10], [2, 20], [3, 30]], start: [0, 0]})[sums])
        [[ 1. 10.]
         [ 3. 30.]
         [ 6. 60.]]
    """
    order = range(known("scan", x.shape[0]))[:: -1 if reverse else 1]
    steps, found = _steps(x), {}
    for t in order:
        new = cell(steps[t], *states)
        if lengths is not None:
            runs = [reshape(lengths > t, (-1, *[1] * (len(state.shape) - 1))) for state in new]
            found[t] = where(runs[0], new[0], 0.0)
            new = [where(*given) for given in zip(runs, new, states, strict=True)]
        states = new
        found.setdefault(t, new[0])
    return (stack([found[t] for t in sorted(found)], name=name), *states)
