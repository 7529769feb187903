"""Recurrent networks over whole sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from actorflow import ops
from actorflow.onnx.constants import constant
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Node, lowers
from actorflow.onnx.values import Value

_LIMITS = "other activations than the usual ones, clip, input_forget"


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


def _state(node: Node, position: int, direction: int, batch_first: bool) -> Any:
    """A first state of a direction; None for zeros."""
    if not node.has(position):
        return None
    blob = node.value(position).blob()
    return ops.slice(blob, (slice(None), direction) if batch_first else (direction,))


def _beside(parts: Sequence[Any], axis: int) -> Any:
    """Results of directions, along an axis of their own."""
    return ops.stack(parts, axis=axis) if len(parts) > 1 else ops.expand_dims(parts[0], axis)


def _recurrent(node: Node, activations: Sequence[str], run: Callable[..., Sequence[Any]]) -> list[Value | None]:
    """Each direction by itself, and their results side by side."""
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[
        node.attribute("direction", "forward")
    ]
    given = [name.lower() for name in node.attribute("activations") or []]
    usual = [*activations] * len(directions)
    if given and given[: len(usual)] != usual:  # more are there where the file takes the default for two directions
        raise Refused(f"activations {given} are not supported, only {', '.join(activations)}")
    if node.attribute("clip") is not None or node.attribute("input_forget", 0):
        raise Refused("clip and input_forget are not supported")
    batch_first = bool(node.attribute("layout", 0))
    x = node.x.blob((1, 0, 2) if batch_first else None)
    lengths = node.value(4).blob() if node.has(4) else None
    found = [run(x, i, batch_first, lengths, is_reverse) for i, is_reverse in enumerate(directions)]
    whole, *states = zip(*found, strict=True)
    # (steps, directions, batch, hidden), or (batch, steps, directions, hidden)
    y = _beside(whole, 1)
    last = [_beside(state, 0) for state in states]
    if not batch_first:
        return [node.usual(y), *map(node.usual, last)]
    return [node.ordered((1, 2, 0, 3), y), *[node.ordered((1, 0, 2), state) for state in last]]


@lowers("LSTM", limits=f"{_LIMITS}; peepholes and sequences of an open length")
def _lstm(node: Node) -> list[Value | None]:
    order = (0, 2, 3, 1)  # of input, output, forget, cell: ours are input, forget, cell, output

    def run(x: Any, i: int, batch_first: bool, lengths: Any, reverse: bool) -> Sequence[Any]:
        bias = None
        if node.has(3):
            bias = _gates(node, 3, i, order, 0, 8) + _gates(node, 3, i, order, 4, 8)
        return ops.lstm(
            x, _gates(node, 1, i, order), _gates(node, 2, i, order), bias, _state(node, 5, i, batch_first),
            _state(node, 6, i, batch_first), peepholes=_gates(node, 7, i, (0, 2, 1)) if node.has(7) else None,
            lengths=lengths, reverse=reverse,
        )  # fmt: skip

    return _recurrent(node, ("sigmoid", "tanh", "tanh"), run)


@lowers("GRU", limits=_LIMITS)
def _gru(node: Node) -> list[Value | None]:
    order = (1, 0, 2)  # of update, reset, hidden: ours are reset, update, new

    def run(x: Any, i: int, batch_first: bool, lengths: Any, reverse: bool) -> Sequence[Any]:
        bias, bias_h = (_gates(node, 3, i, order, start, 6) if node.has(3) else None for start in (0, 3))
        return ops.gru(
            x, _gates(node, 1, i, order), _gates(node, 2, i, order), bias, bias_h, _state(node, 5, i, batch_first),
            reset_after=bool(node.attribute("linear_before_reset", 0)), lengths=lengths, reverse=reverse,
        )  # fmt: skip

    return _recurrent(node, ("sigmoid", "tanh"), run)


@lowers("RNN", limits=_LIMITS)
def _rnn(node: Node) -> list[Value | None]:
    names = [name.lower() for name in node.attribute("activations") or ["Tanh"]]
    activation = names[0] if names[0] in ("tanh", "relu") else "tanh"

    def run(x: Any, i: int, batch_first: bool, lengths: Any, reverse: bool) -> Sequence[Any]:
        bias = _gates(node, 3, i, (0,), 0, 2) + _gates(node, 3, i, (0,), 1, 2) if node.has(3) else None
        return ops.rnn(
            x, _gates(node, 1, i, (0,)), _gates(node, 2, i, (0,)), bias, _state(node, 5, i, batch_first),
            activation=activation, lengths=lengths, reverse=reverse,
        )  # fmt: skip

    return _recurrent(node, (activation,), run)
