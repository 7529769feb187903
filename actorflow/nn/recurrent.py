"""Recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from actorflow import ops
from actorflow.errors import GraphError, ShapeError, flag, whole
from actorflow.graph.composite import Composite, Top
from actorflow.graph.nodes import Blob, Initializer, Variable
from actorflow.nn import init

#: How many rows of ``hidden`` each variable has.
_LSTM: Mapping[str, int] = MappingProxyType({"weight_x": 4, "weight_h": 4, "bias": 4})


class _Recurrent(Composite[Top]):
    """One layer of cells of one kind, in one direction; see `LSTMCell` for its arguments."""

    rows = _LSTM
    states: tuple[str, ...] = ("hidden", "cell")

    def __init__(
        self,
        hidden: int,
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.hidden = hidden = whole(f"{type(self).__name__}: hidden", hidden, 1)
        bound = 1 / math.sqrt(hidden)
        self.weight_init = weight_init or init.uniform(-bound, bound, seed)
        self.bias_init = bias_init or init.uniform(-bound, bound, seed)

    def _weights(self, x: Blob) -> dict[str, Variable]:
        columns = {"weight_x": (x.shape[-1],), "weight_h": (self.hidden,)}
        return {
            name: self.variable(
                x,
                name,
                (rows * self.hidden, *columns.get(name, ())),
                self.weight_init if name in columns else self.bias_init,
            )
            for name, rows in self.rows.items()
        }


class LSTMCell(_Recurrent[tuple[Blob, Blob]]):
    """One step of a long short-term memory; call it step by step, on the same variables, to unroll it.

    Bottom: x (batch, features), and perhaps hidden and cell (batch, ``hidden``), which are 0 otherwise. Top: the new
    hidden state and the new cell. Variables: ``weight_x`` (4 * hidden, features), ``weight_h`` (4 * hidden, hidden),
    ``bias`` (4 * hidden,); the gates are in PyTorch's order, input, forget, cell, output.

    Args:
        hidden: Length of the state.
        weight_init: Initializer of the weights; the default is uniform up to ``1 / sqrt(hidden)``, as PyTorch's.
        bias_init: Initializer of the bias; the default is that of the weights.
        seed: Chooses the default initializers' numbers.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``hidden`` is not positive.

    Example:
        >>> graph = af.Graph("g")
        >>> cell = af.nn.LSTMCell(8)
        >>> hidden, state = cell(graph.blob("x0", ["batch", 3]))
        >>> hidden, state = cell(graph.blob("x1", ["batch", 3]), hidden, state)
        >>> hidden.spec.shape, [variable.spec.shape for variable in cell.variables]
        ((batch, 8), [(32, 3), (32, 8), (32,)])
    """

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """One or three bottom blobs, two top blobs."""
        x, states = _with_states(self, self.states, bottom)
        if len(x.shape) != 2:
            raise ShapeError(f"LSTMCell: x must have shape (batch, features), got {x.spec}")
        if not states:
            zeros = ops.fill(x.graph, 0.0, (x.shape[0], self.hidden), x.dtype, name="zeros")
            states = dict.fromkeys(self.states, zeros)
        return ops.lstm_cell(x, **states, **self._weights(x), name="step")


class _Direction(_Recurrent[tuple[Blob, ...]]):
    """One layer of a recurrent network over whole sequences, in one direction."""

    def __init__(
        self, form: Callable[..., Sequence[Blob]], rows: Mapping[str, int], hidden: int, **settings: Any
    ) -> None:
        super().__init__(hidden, **settings)
        self.form, self.rows = form, rows

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        x, *states = bottom
        return self.form(x, **self._weights(x), **dict(zip(self.states, states, strict=False)), name="steps")


class _Sequences(Composite[Top]):
    """Layers of a recurrent network over whole sequences, in one direction or both; see `LSTM`."""

    states: tuple[str, ...] = ("hidden",)

    def __init__(
        self,
        hidden: int,
        layers: int = 1,
        *,
        bidirectional: bool = False,
        batch_first: bool = False,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        seed: int | None = None,
        name: str | None = None,
        form: Callable[..., Sequence[Blob]],
        rows: Mapping[str, int],
    ) -> None:
        super().__init__(name)
        kind = type(self).__name__
        self.hidden, layers = whole(f"{kind}: hidden", hidden, 1), whole(f"{kind}: layers", layers, 1)
        self.batch_first = flag(f"{kind}: batch_first", batch_first)
        self.directions = 1 + flag(f"{kind}: bidirectional", bidirectional)
        settings = {"weight_init": weight_init, "bias_init": bias_init, "seed": seed}
        self.layers = [
            _Direction(partial(form, reverse=back), rows, self.hidden, name=f"layer{i}{'_reverse' * back}", **settings)
            for i in range(layers)
            for back in (False, True)[: self.directions]
        ]

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """As many bottom blobs as states and one more, or one; as many top blobs as states and one more."""
        kind = type(self).__name__
        x, states = _with_states(self, self.states, bottom)
        if len(x.shape) != 3:
            axes = "batch, steps" if self.batch_first else "steps, batch"
            raise ShapeError(f"{kind}: x must have shape ({axes}, features), got {x.spec}")
        y = ops.transpose(x, (1, 0, 2)) if self.batch_first else x
        expected = (len(self.layers), y.shape[1], self.hidden)
        for name, blob in states.items():
            if blob.shape != expected:
                raise ShapeError(f"{kind}: {name} must have shape (layers, batch, hidden), {expected}, got {blob.spec}")
        parts = [ops.split(blob, expected[0]) for blob in states.values()]
        lasts: list[Sequence[Blob]] = []
        while len(lasts) < len(self.layers):
            found = []
            for layer in self.layers[len(lasts) : len(lasts) + self.directions]:
                first = [ops.reshape(of[len(lasts)], expected[1:]) for of in parts]
                part, *last = layer(y, *first, training=training)
                found.append(part)
                lasts.append(last)
            y = found[0] if len(found) == 1 else ops.concat(found, axis=2)
        y = ops.transpose(y, (1, 0, 2)) if self.batch_first else y
        return y, *(ops.stack(last) for last in zip(*lasts, strict=True))


class LSTM(_Sequences[tuple[Blob, Blob, Blob]]):
    """A long short-term memory over whole sequences.

    Bottom: x (steps, batch, features), and perhaps hidden and cell, (layers, batch, ``hidden``), which are 0 otherwise.
    Top: the last layer's hidden states (steps, batch, hidden), and each layer's last hidden state and cell, (layers,
    batch, hidden). As in PyTorch, time comes first by default. Variables of layer 0, in scope ``layer0``, and so on:
    as of `LSTMCell`.

    Args:
        hidden: Length of the state.
        layers: How many, each on the hidden states of the one before.
        bidirectional: Whether each layer is two, the second one from the last step to the first, in scope
            ``layer0_reverse``: their hidden states lie side by side, their last states one after the other.
        batch_first: Whether x and the hidden states are (batch, steps, ...); the states stay as they are.
        peepholes: Whether the gates see the cell, by a variable ``peepholes`` (3 * hidden,); see `ops.lstm_cell`. Then
            the number of steps must be known when it is built.
        weight_init, bias_init, seed: As in `LSTMCell`.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``hidden`` or ``layers`` is not positive.
    Source: `torch.nn.LSTM`.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["steps", "batch", 3])
        >>> lstm = af.nn.LSTM(8, layers=2, bidirectional=True)
        >>> states, hidden, cell = lstm(x)
        >>> states.spec.shape, hidden.spec.shape, cell.spec.shape
        ((steps, batch, 16), (4, batch, 8), (4, batch, 8))
    """

    states = ("hidden", "cell")

    def __init__(self, hidden: int, layers: int = 1, *, peepholes: bool = False, **settings: Any) -> None:
        rows = {**_LSTM, "peepholes": 3} if peepholes else _LSTM
        super().__init__(hidden, layers, form=ops.lstm, rows=rows, **settings)


class GRU(_Sequences[tuple[Blob, Blob]]):
    """Gated recurrent units over whole sequences: as `LSTM`, without cells.

    Bottom: x (steps, batch, features), and perhaps the hidden state, (layers, batch, ``hidden``), which is 0 otherwise.
    Top: the last layer's hidden states (steps, batch, hidden), and each layer's last one (layers, batch, hidden).
    Variables: ``weight_x`` (3 * hidden, features), ``weight_h`` (3 * hidden, hidden), ``bias`` and ``bias_h``
    (3 * hidden,).

    Args:
        hidden: Length of the state.
        layers: How many, each on the hidden states of the one before.
        reset_after: As for `ops.gru`.
        settings: ``bidirectional``, ``batch_first``, ``weight_init``, ``bias_init``, ``seed`` and ``name``, as in
            `LSTM`.
    Raises:
        GraphError: if ``hidden`` or ``layers`` is not positive.
    Source: `torch.nn.GRU`.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 5, 3])
        >>> states, hidden = af.nn.GRU(8, batch_first=True)(x)
        >>> states.spec.shape, hidden.spec.shape
        ((batch, 5, 8), (1, batch, 8))
    """

    def __init__(self, hidden: int, layers: int = 1, *, reset_after: bool = True, **settings: Any) -> None:
        rows = {"weight_x": 3, "weight_h": 3, "bias": 3, "bias_h": 3}
        super().__init__(hidden, layers, form=partial(ops.gru, reset_after=reset_after), rows=rows, **settings)


class RNN(_Sequences[tuple[Blob, Blob]]):
    """A simple recurrent network over whole sequences: as `LSTM`, without cells.

    Bottom and top: as of `GRU`. Variables: ``weight_x`` (hidden, features), ``weight_h`` (hidden, hidden) and ``bias``
    (hidden,).

    Args:
        hidden: Length of the state.
        layers: How many, each on the hidden states of the one before.
        activation: "tanh" or "relu", as for `ops.rnn`.
        settings: As for `GRU`.
    Raises:
        GraphError: if ``hidden`` or ``layers`` is not positive.
    Source: `torch.nn.RNN`.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [5, "batch", 3])
        >>> states, hidden = af.nn.RNN(8)(x)
        >>> states.spec.shape, hidden.spec.shape
        ((5, batch, 8), (1, batch, 8))
    """

    def __init__(self, hidden: int, layers: int = 1, *, activation: str = "tanh", **settings: Any) -> None:
        rows = {"weight_x": 1, "weight_h": 1, "bias": 1}
        super().__init__(hidden, layers, form=partial(ops.rnn, activation=activation), rows=rows, **settings)


def _with_states(layer: Composite[Any], states: Sequence[str], bottom: Sequence[Blob]) -> tuple[Blob, dict[str, Blob]]:
    x, *given = bottom
    if given and len(given) != len(states):
        names = ", ".join(("x", *states))
        raise GraphError(
            f"{type(layer).__name__} takes 1 or {1 + len(states)} bottom blobs ({names}), got {len(bottom)}"
        )
    return x, dict(zip(states, given, strict=False))
