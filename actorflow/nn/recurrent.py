"""Recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from actorflow import ops
from actorflow.errors import GraphError, ShapeError
from actorflow.graph.composite import Composite, Top
from actorflow.graph.nodes import Blob, Initializer
from actorflow.nn import init


class _Recurrent(Composite[Top]):
    """A layer of an LSTM; see `LSTMCell` for its arguments."""

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
        if hidden < 1:
            raise GraphError(f"{type(self).__name__}: hidden must be at least 1, got {hidden}")
        self.hidden = hidden
        bound = 1 / math.sqrt(hidden)
        self.weight_init = weight_init or init.uniform(-bound, bound, seed)
        self.bias_init = bias_init or init.uniform(-bound, bound, seed)

    def _weights(self, x: Blob) -> tuple[Blob, Blob, Blob]:
        rows = 4 * self.hidden
        return (
            self.variable(x, "weight_x", (rows, x.shape[-1]), self.weight_init),
            self.variable(x, "weight_h", (rows, self.hidden), self.weight_init),
            self.variable(x, "bias", (rows,), self.bias_init),
        )


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
    """

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """One or three bottom blobs, two top blobs."""
        x, hidden, cell = _with_state(self, bottom)
        if len(x.shape) != 2:
            raise ShapeError(f"LSTMCell: x must have shape (batch, features), got {x.spec}")
        if hidden is None or cell is None:
            hidden = cell = ops.fill(x.graph, 0.0, (x.shape[0], self.hidden), x.dtype, name="zeros")
        return ops.lstm_cell(x, hidden, cell, *self._weights(x), name="step")


class LSTM(Composite[tuple[Blob, Blob, Blob]]):
    """A long short-term memory over whole sequences.

    Bottom: x (steps, batch, features), and perhaps hidden and cell, (layers, batch, ``hidden``), which are 0 otherwise.
    Top: the last layer's hidden states (steps, batch, hidden), and each layer's last hidden state and cell, (layers,
    batch, hidden). As in PyTorch, time comes first by default. Variables of layer 0, in scope ``layer0``, and so on:
    as of `LSTMCell`.

    Args:
        hidden: Length of the state.
        layers: How many, each on the hidden states of the one before.
        batch_first: Whether x and the hidden states are (batch, steps, ...); the states stay as they are.
        weight_init, bias_init, seed: As in `LSTMCell`.
        name: Scope of its nodes.
    Raises:
        GraphError: if ``hidden`` or ``layers`` is not positive.
    Source: `torch.nn.LSTM`.
    """

    def __init__(
        self,
        hidden: int,
        layers: int = 1,
        *,
        batch_first: bool = False,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if hidden < 1 or layers < 1:
            raise GraphError(f"LSTM: hidden and layers must be at least 1, got {hidden} and {layers}")
        self.hidden, self.batch_first = hidden, batch_first
        self.layers = [
            _Sequence(hidden, weight_init=weight_init, bias_init=bias_init, seed=seed, name=f"layer{i}")
            for i in range(layers)
        ]

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        """One or three bottom blobs, three top blobs."""
        x, hidden, cell = _with_state(self, bottom)
        if len(x.shape) != 3:
            axes = "batch, steps" if self.batch_first else "steps, batch"
            raise ShapeError(f"LSTM: x must have shape ({axes}, features), got {x.spec}")
        if self.batch_first:
            x = ops.transpose(x, (1, 0, 2))
        count = len(self.layers)
        states: list[list[Blob]] = [[] for _ in range(count)]
        if hidden is not None and cell is not None:
            for name, blob in (("hidden", hidden), ("cell", cell)):
                if blob.shape != (count, x.shape[1], self.hidden):
                    expected = (count, x.shape[1], self.hidden)
                    raise ShapeError(
                        f"LSTM: {name} must have shape (layers, batch, hidden), {expected}, got {blob.spec}"
                    )
                parts = ops.split(blob, [1] * count, axis=0) if count > 1 else (blob,)
                for state, part in zip(states, parts, strict=True):
                    state.append(ops.reshape(part, part.shape[1:]))
        lasts: list[tuple[Blob, Blob]] = []
        for layer, state in zip(self.layers, states, strict=True):
            x, last_hidden, last_cell = layer(x, *state, training=training)
            lasts.append((last_hidden, last_cell))
        y = ops.transpose(x, (1, 0, 2)) if self.batch_first else x
        return y, ops.stack([h for h, _ in lasts]), ops.stack([c for _, c in lasts])


class _Sequence(_Recurrent[tuple[Blob, Blob, Blob]]):
    """One layer of an `LSTM`."""

    def build(self, *bottom: Blob, training: bool) -> Sequence[Blob]:
        x, hidden, cell = _with_state(self, bottom)
        return ops.lstm(x, *self._weights(x), hidden, cell, name="steps")


def _with_state(layer: Composite[Any], bottom: Sequence[Blob]) -> tuple[Blob, Blob | None, Blob | None]:
    if len(bottom) == 1:
        return bottom[0], None, None
    if len(bottom) == 3:
        return bottom[0], bottom[1], bottom[2]
    raise GraphError(f"{type(layer).__name__} takes 1 or 3 bottom blobs (x, hidden, cell), got {len(bottom)}")
