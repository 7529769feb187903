"""Long short-term memory: one step, and whole sequences.

The four gates lie side by side, in PyTorch's order: input, forget, cell, output. Weights have shape (4 * hidden,
features), as those of `inner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actorflow.ops.basic import filled
from actorflow.ops.functional import apply, whole
from actorflow.ops.joining import stack
from actorflow.ops.linear import BiasDown, InnerDown, InnerWeight, inner
from actorflow.ops.linear import bias as add_bias
from actorflow.ops.operation import Operation, rank_is, same_dtype
from actorflow.ops.recurrent_down import (
    LSTMDown,
    LSTMGatesDown,
    Trace,
    back_through,
    before_activation,
    check_sequence,
    check_shape,
)
from actorflow.ops.terms import constant_like, plus
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class LSTMGates(Operation):
    """What follows the products of one step: the new state from the gates before their activations.

    ``i, f, o`` are sigmoids and ``z`` a tanh of a quarter of ``gates`` each; ``cell = f * cell + i * z`` and
    ``hidden = o * tanh(cell)``. The third output is the gates' activations, for the gradient.
    """

    arguments = ("gates", "cell")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The new hidden state, the new cell, and the activations.

        Raises:
            ShapeError, DTypeError: if ``gates`` and ``cell`` do not fit.
        """
        gates, cell = inputs
        same_dtype("LSTMGates", gates=gates, cell=cell)
        rank_is("LSTMGates", "cell", cell, ("batch", "hidden"))
        check_shape("LSTMGates", "gates", gates, (cell.shape[0], 4 * cell.shape[1]), "batch, 4 * hidden")
        return (cell, cell, gates)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`LSTMGatesDown`; that of the activations, which gradients of gradients have, on top."""
        g_hidden, g_cell, g_activations = grads
        _, new_cell, activations = op.outputs
        by_gates: list[Blob] = []
        by_cell = None
        if g_hidden is not None or g_cell is not None:
            given = [constant_like(0.0, new_cell) if g is None else g for g in (g_hidden, g_cell)]
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
        """(steps, batch, hidden), two states, (steps, batch, 4 * hidden), (steps, batch, hidden).

        Raises:
            ShapeError, DTypeError: if the inputs do not fit.
        """
        x, hidden, *_ = inputs
        batch, width = check_sequence("LSTM", dict(zip(self.arguments, inputs, strict=True)))
        steps, dtype = x.shape[0], x.dtype
        states = TensorSpec((steps, batch, width), dtype)
        return (states, hidden, hidden, TensorSpec((steps, batch, 4 * width), dtype), states)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`LSTMDown`; step by step where the activations and inner cells, too, have one: of gradients."""
        y, *last, activations, cells = op.outputs
        g_y, g_hidden, g_cell = (
            constant_like(0.0, o) if g is None else g for g, o in zip(grads[:3], (y, *last), strict=True)
        )
        x, hidden, cell, weight_x, weight_h, _ = op.inputs
        trace = Trace(x, hidden, cell, weight_x, weight_h, y, activations, cells)
        if (grads[3] is None and grads[4] is None) or not x.shape[0]:
            made: Sequence[Blob] = apply(LSTMDown(), g_y, g_hidden, g_cell, *trace)
            return made
        steps, by_hidden, by_cell = back_through(trace, g_y, g_hidden, g_cell, grads[3], grads[4])
        by_gates = stack([step.by_gates for step in steps])
        return [
            apply(InnerDown(), by_gates, weight_x),
            by_hidden,
            by_cell,
            apply(InnerWeight(), by_gates, x),
            apply(InnerWeight(), by_gates, trace.hidden_before()),
            apply(BiasDown(), by_gates),
        ]


@whole
def lstm_cell(
    x: Blob, hidden: Blob, cell: Blob, weight_x: Blob, weight_h: Blob, bias: Blob | None = None, name: str | None = None
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
    Returns:
        The new hidden state and the new cell, each (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs.
    Source: Hochreiter and Schmidhuber, 1997, with forget gates (Gers et al., 2000); `torch.nn.LSTMCell`.
    """
    gates = plus(inner(x, weight_x), inner(hidden, weight_h))
    if bias is not None:
        gates = add_bias(gates, bias)
    new_hidden: Blob
    new_cell: Blob
    new_hidden, new_cell, _ = apply(LSTMGates(), gates, cell, name=name)
    return new_hidden, new_cell


def lstm(
    x: Blob,
    weight_x: Blob,
    weight_h: Blob,
    bias: Blob | None = None,
    hidden: Blob | None = None,
    cell: Blob | None = None,
    name: str | None = None,
) -> tuple[Blob, Blob, Blob]:
    """A long short-term memory over whole sequences, in one op: `lstm_cell` step by step.

    Time comes first, as by default in PyTorch; `nn.LSTM` takes batches first on request.

    Args:
        x: Inputs, shape (steps, batch, features), floating.
        weight_x: As in `lstm_cell`.
        weight_h: As in `lstm_cell`.
        bias: As in `lstm_cell`.
        hidden: First hidden state, shape (batch, hidden), dtype of ``x``; None for 0.
        cell: First cell, likewise.
        name: Name of the op.
    Returns:
        The hidden states after each step, (steps, batch, hidden); the last one and the last cell, (batch, hidden).
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs.
    Source: As `lstm_cell`; `torch.nn.LSTM`.
    """
    rank_is("LSTM", "x", x.spec, ("steps", "batch", "features"))
    rank_is("LSTM", "weight_h", weight_h.spec, ("4 * hidden", "hidden"))
    state = (x.shape[1], weight_h.shape[1])
    hidden = filled(0.0, state, x) if hidden is None else hidden
    cell = filled(0.0, state, x) if cell is None else cell
    bias = filled(0.0, weight_h.shape[:1], x) if bias is None else bias
    y, last_hidden, last_cell, _, _ = apply(LSTM(), x, hidden, cell, weight_x, weight_h, bias, name=name)
    return y, last_hidden, last_cell
