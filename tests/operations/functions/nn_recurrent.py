"""Recurrent networks: steps, and sequences of one or both directions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from actorflow import ops
from tests.operations.table import Make, Sample, call, composed, normal


def _lstm(x: Any, h: Any, c: Any, weight_x: Any, weight_h: Any, bias: Any, *peepholes: Any) -> Any:
    return ops.lstm(x, weight_x, weight_h, bias, h, c, peepholes=peepholes[0] if peepholes else None)


def _lstm_of_torch(torch: Any, x: Any, h: Any, c: Any, weight_x: Any, weight_h: Any, bias: Any, *more: Any) -> Any:
    if not more:
        weights = [weight_x, weight_h, bias, torch.zeros_like(bias)]
        y, last_h, last_c = torch.lstm(x, (h[None], c[None]), weights, True, 1, 0.0, True, False, False)
        return y, last_h[0], last_c[0]
    # Torch has no peepholes: their definition.
    i_peep, f_peep, o_peep = more[0].chunk(3)
    found = []
    for part in x:
        i, f, z, o = (part @ weight_x.T + h @ weight_h.T + bias).chunk(4, 1)
        i, f = torch.sigmoid(i + i_peep * c), torch.sigmoid(f + f_peep * c)
        c = f * c + i * torch.tanh(z)
        h = torch.sigmoid(o + o_peep * c) * torch.tanh(c)
        found.append(h)
    return torch.stack(found), h, c


def _cell_of_torch(torch: Any, x: Any, h: Any, c: Any, weight_x: Any, weight_h: Any, bias: Any) -> Any:
    return torch.lstm_cell(x, (h, c), weight_x, weight_h, bias, torch.zeros_like(bias))


def _weights(features: int, hidden: int, gates: int) -> list[tuple[int, ...]]:
    return [(gates * hidden, features), (gates * hidden, hidden), (gates * hidden,)]


def _states(steps: int, batch: int, features: int, hidden: int, with_peepholes: bool = False) -> Make:
    """Inputs of `_lstm`."""
    state, peepholes = (batch, hidden), [(3 * hidden,)] * with_peepholes
    return normal((steps, batch, features), state, state, *_weights(features, hidden, 4), *peepholes)


def _cell(batch: int, features: int, hidden: int) -> Make:
    return normal((batch, features), (batch, hidden), (batch, hidden), *_weights(features, hidden, 4))


#: Gates, layer of torch with its settings, and ours with both biases.
_CELLS: dict[str, tuple[int, str, dict[str, Any], Any]] = {
    "tanh": (1, "RNN", {}, lambda x, wx, wh, b, bh, **how: ops.rnn(x, wx, wh, b + bh, **how)),
    "relu": (
        1,
        "RNN",
        {"nonlinearity": "relu"},
        lambda x, wx, wh, b, bh, **how: ops.rnn(x, wx, wh, b + bh, activation="relu", **how),
    ),
    "gru": (3, "GRU", {}, ops.gru),
    "lstm": (4, "LSTM", {}, lambda x, wx, wh, b, bh, **how: ops.lstm(x, wx, wh, b + bh, **how)),
}


def sequences(x: Any, lengths: Any, *weights: Any, kind: str, packed: bool) -> Any:
    """Forwards, or forwards and backwards side by side, as torch's bidirectional layers: weights come twice."""
    one, known = _CELLS[kind][3], lengths if packed else None
    if len(weights) == 4:
        return one(x, *weights, lengths=known)
    (y, *last), (back, *first) = (one(x, *weights[4 * i : 4 * i + 4], lengths=known, reverse=bool(i)) for i in (0, 1))
    return [ops.concat([y, back], axis=2), *(ops.stack(pair) for pair in zip(last, first, strict=True))]


def _sequences_of_torch(torch: Any, x: Any, lengths: Any, *weights: Any, kind: str, packed: bool) -> Any:
    _, layer, settings, _ = _CELLS[kind]
    both = len(weights) > 4
    module = getattr(torch.nn, layer)(x.shape[2], weights[1].shape[1], bidirectional=both, **settings).to(x.dtype)
    given = dict(zip([name for name, _ in module.named_parameters()], weights, strict=True))
    inputs = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False) if packed else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y, last = torch.func.functional_call(module, given, (inputs,))
    if packed:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=len(x))
    last = last if isinstance(last, tuple) else (last,)
    return [y, *(state if both else state[0] for state in last)]


def _sequence(kind: str, steps: int, batch: int, features: int, hidden: int, both: bool, packed: bool) -> Sample:
    rows = _CELLS[kind][0] * hidden
    shapes = [(rows, features), (rows, hidden), (rows,), (rows,)] * (1 + both)

    def make(random: np.random.Generator) -> list[np.ndarray]:
        x, *weights = normal((steps, batch, features), *shapes)(random)
        return [x, random.integers(1, steps + 1, batch), *weights]

    return call(sequences, make, kind=kind, packed=packed)


def _gru(x: Any, h: Any, weight_x: Any, weight_h: Any, *biases: Any) -> Any:
    return ops.gru(x, weight_x, weight_h, *(biases + (None,) * 2)[:2], h, reset_after=False)


def _gru_of_torch(torch: Any, x: Any, h: Any, weight_x: Any, weight_h: Any, bias: Any, *more: Any) -> Any:
    """A reset before the product, which torch does not have: its definition."""
    found = []
    for part in x:
        a_r, a_z, a_n = (part @ weight_x.T + bias).chunk(3, 1)
        w_r, w_z, w_n = weight_h.chunk(3)
        b_r, b_z, b_n = more[0].chunk(3) if more else (0, 0, 0)
        r, z = torch.sigmoid(a_r + h @ w_r.T + b_r), torch.sigmoid(a_z + h @ w_z.T + b_z)
        h = (1 - z) * torch.tanh(a_n + (r * h) @ w_n.T + b_n) + z * h
        found.append(h)
    return torch.stack(found), h


def _resets(steps: int, batch: int, features: int, hidden: int, biased: bool) -> Make:
    biases = [(3 * hidden,)] * biased
    return normal((steps, batch, features), (batch, hidden), *_weights(features, hidden, 3), *biases)


#: Steps, batch, features, width of the state.
_SIZES = ((2, 2, 3, 2), (1, 2, 3, 2), (4, 1, 1, 3), (3, 5, 4, 1))

ROWS = [
    composed(
        "ops.lstm_cell",
        _cell_of_torch,
        *(call(ops.lstm_cell, _cell(*sizes)) for sizes in ((2, 3, 2), (0, 1, 5), (5, 4, 1))),
    ),
    composed("ops.lstm", _lstm_of_torch, *(call(_lstm, _states(*sizes)) for sizes in _SIZES), orders=3),
    composed("ops.lstm with peepholes", _lstm_of_torch, *(call(_lstm, _states(*sizes, True)) for sizes in _SIZES)),
    composed(
        "ops.gru with a reset before the product",
        _gru_of_torch,
        *(call(_gru, _resets(*sizes, biased)) for sizes in _SIZES for biased in (True, False)),
    ),
    *(
        composed(
            f"sequences of {kind}",
            _sequences_of_torch,
            *(
                _sequence(kind, *sizes, both, packed)
                for sizes, both, packed in zip(
                    _SIZES, (False, True, False, True), (False, True, True, False), strict=True
                )
            ),
        )
        for kind in _CELLS
    ),
]
