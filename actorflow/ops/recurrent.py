"""Long short-term memory: one step, and whole sequences.

The four gates lie side by side, in PyTorch's order: input, forget, cell, output. Weights have shape (4 * hidden,
features), as those of `inner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.basic import Fill
from actorflow.ops.functional import apply
from actorflow.ops.linear import bias as add_bias
from actorflow.ops.linear import inner
from actorflow.ops.operation import Operation, rank_is, same_dtype
from actorflow.ops.terms import constant_like, plus
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.node import Blob, Op

__all__ = ["LSTM", "LSTMDown", "LSTMGates", "LSTMGatesDown", "lstm", "lstm_cell"]


def _has_shape(kind: str, name: str, spec: TensorSpec, shape: tuple[int, ...], axes: str) -> None:
    if spec.shape != shape:
        raise ShapeError(f"{kind}: {name} must have shape ({axes}), here {shape}, got {spec}")


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
        _has_shape("LSTMGates", "gates", gates, (cell.shape[0], 4 * cell.shape[1]), "batch, 4 * hidden")
        return (cell, cell, gates)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`LSTMGatesDown`; the activations have no gradient of their own."""
        g_hidden, g_cell, g_activations = grads
        if g_activations is not None:
            raise GraphError(f"op {op.name!r}: only the states of LSTMGates have gradients, not the activations")
        _, cell, activations = op.outputs
        given = [constant_like(0.0, cell) if g is None else g for g in (g_hidden, g_cell)]
        made: Sequence[Blob] = apply(LSTMGatesDown(), *given, op.inputs[1], cell, activations)
        return made


@dataclass(frozen=True)
class LSTMGatesDown(Operation):
    """The gradient of `LSTMGates` by the gates and the cell, from its states and activations.

    Has no gradient: it would take the second derivatives of five functions in one kernel, which nothing has asked for.
    """

    arguments = ("g_hidden", "g_cell", "cell", "new_cell", "activations")
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Types of the gates and of the cell."""
        named = dict(zip(self.arguments, inputs, strict=True))
        same_dtype("LSTMGatesDown", **named)
        *states, activations = inputs
        rank_is("LSTMGatesDown", "cell", named["cell"], ("batch", "hidden"))
        batch, hidden = named["cell"].shape
        for name, spec in zip(self.arguments, states, strict=False):
            _has_shape("LSTMGatesDown", name, spec, (batch, hidden), "batch, hidden")
        _has_shape("LSTMGatesDown", "activations", activations, (batch, 4 * hidden), "batch, 4 * hidden")
        return (activations, named["cell"])


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
        batch, width = _check_sequence("LSTM", dict(zip(self.arguments, inputs, strict=True)))
        steps, dtype = x.shape[0], x.dtype
        states = TensorSpec((steps, batch, width), dtype)
        return (states, hidden, hidden, TensorSpec((steps, batch, 4 * width), dtype), states)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """`LSTMDown`; the activations and inner cells have no gradient of their own."""
        if grads[3] is not None or grads[4] is not None:
            raise GraphError(f"op {op.name!r}: only the states of LSTM have gradients, not the activations")
        y, *last, activations, cells = op.outputs
        given = [constant_like(0.0, o) if g is None else g for g, o in zip(grads[:3], (y, *last), strict=True)]
        x, hidden, cell, weight_x, weight_h, _ = op.inputs
        made: Sequence[Blob] = apply(LSTMDown(), *given, x, hidden, cell, weight_x, weight_h, y, activations, cells)
        return made


@dataclass(frozen=True)
class LSTMDown(Operation):
    """The gradient of `LSTM` by all its inputs, from these, its states and activations: back through all steps.

    Has no gradient: unroll `lstm_cell` from differentiable operations where gradients of gradients are needed.
    """

    arguments: ClassVar[tuple[str, ...]] = (
        *("g_y", "g_hidden", "g_cell", "x", "hidden", "cell", "weight_x", "weight_h"),
        *("y", "activations", "cells"),
    )
    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Types of the inputs of `LSTM`."""
        named = dict(zip(self.arguments, inputs, strict=True))
        same_dtype("LSTMDown", **named)
        x, hidden, cell, weight_x, weight_h = (named[k] for k in ("x", "hidden", "cell", "weight_x", "weight_h"))
        bias = TensorSpec(weight_x.shape[:1], x.dtype)
        taken = {"x": x, "hidden": hidden, "cell": cell, "weight_x": weight_x, "weight_h": weight_h, "bias": bias}
        batch, width = _check_sequence("LSTMDown", taken)
        steps = x.shape[0]
        for name in ("g_y", "y", "cells"):
            _has_shape("LSTMDown", name, named[name], (steps, batch, width), "steps, batch, hidden")
        for name in ("g_hidden", "g_cell"):
            _has_shape("LSTMDown", name, named[name], (batch, width), "batch, hidden")
        _has_shape(
            "LSTMDown", "activations", named["activations"], (steps, batch, 4 * width), "steps, batch, 4 * hidden"
        )
        return tuple(taken.values())


def _check_sequence(kind: str, named: dict[str, TensorSpec]) -> tuple[int, int]:
    """Check the inputs of an LSTM; its batch and hidden size."""
    same_dtype(kind, **named)
    rank_is(kind, "x", named["x"], ("steps", "batch", "features"))
    rank_is(kind, "hidden", named["hidden"], ("batch", "hidden"))
    _, batch, features = named["x"].shape
    width = named["hidden"].shape[1]
    _has_shape(kind, "hidden", named["hidden"], (batch, width), "batch, hidden")
    _has_shape(kind, "cell", named["cell"], (batch, width), "batch, hidden")
    _has_shape(kind, "weight_x", named["weight_x"], (4 * width, features), "4 * hidden, features")
    _has_shape(kind, "weight_h", named["weight_h"], (4 * width, width), "4 * hidden, hidden")
    _has_shape(kind, "bias", named["bias"], (4 * width,), "4 * hidden")
    return batch, width


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
    root = x.graph.root

    def zeros(shape: tuple[int, ...]) -> Blob:
        with root.at(x.place):
            made: Blob = root.apply(Fill(0.0, TensorSpec(shape, x.dtype)))
        return made

    rank_is("LSTM", "x", x.spec, ("steps", "batch", "features"))
    rank_is("LSTM", "weight_h", weight_h.spec, ("4 * hidden", "hidden"))
    state = (x.shape[1], weight_h.shape[1])
    hidden = zeros(state) if hidden is None else hidden
    cell = zeros(state) if cell is None else cell
    bias = zeros(weight_h.shape[:1]) if bias is None else bias
    y, last_hidden, last_cell, _, _ = apply(LSTM(), x, hidden, cell, weight_x, weight_h, bias, name=name)
    return y, last_hidden, last_cell
