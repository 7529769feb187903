"""Recurrent networks over whole sequences, where nothing is saved for a gradient: what is saved, the library keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from actorflow.ops import registry
from actorflow.ops.cpu.buffers import Array, plain
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import even_cuts
from actorflow.ops.cpu.recurrent import ragged
from actorflow.ops.nn.recurrent import GRU, LSTM, RNN, Ragged
from actorflow.ops.onednn import library as dnnl
from actorflow.ops.onednn.following import TANH
from actorflow.ops.onednn.library import Handle, UnsupportedError, libdnnl
from actorflow.ops.onednn.steps import LIBRARY, Compute, Reorder, kernel, steps
from actorflow.spec import TensorSpec

_LEFT_TO_RIGHT = 1
_WEIGHTS = (dnnl.WEIGHTS, dnnl.WEIGHTS_1)
#: Elements of the states of so many steps at once, at most: the library keeps some twenty times as many.
_MOST_ELEMENTS = 1 << 16
#: Of the library's gates, which ones of ours they are: input, forget, cell, output; update, reset, new.
_GATES = {LSTM: (0, 1, 2, 3), GRU: (1, 0, 2), RNN: (0,)}


class _Sequence:
    """Calls of a network in one step of a program, some steps of the sequence at once."""

    def __init__(self, operation: Any, specs: Sequence[TensorSpec]) -> None:
        self._operation, self._states = operation, operation.states
        (count, batch, features), width = specs[0].shape, specs[1].shape[1]
        gates = _GATES[type(operation)]
        self._turned = gates != tuple(range(len(gates)))
        self._biases = 4 if isinstance(operation, GRU) and operation.reset_after else len(gates)
        shapes = [(1, 1, n, len(gates), width) for n in (features, width)]
        # One row is multiplied with the weight as it is read from memory, and a network without gates has few columns.
        is_plain = batch == 1 or isinstance(operation, RNN)
        weights: list[Any] = [libdnnl().memory(shape, steps(shape) if is_plain else None) for shape in shapes]
        cuts = even_cuts(count, -(-count * batch * width // _MOST_ELEMENTS))
        made: dict[int, Compute] = {}
        for cut in cuts:
            length = cut.stop - cut.start
            if length not in made:
                made[length] = self._part(length, batch, features, width, weights)
                weights = [libdnnl().memory_of(made[length].descriptor, each) for each in _WEIGHTS]
        self._parts = [(made[cut.stop - cut.start], cut) for cut in cuts]
        given = [libdnnl().memory(shape, _given(shape)) for shape in shapes]
        self._reorders = [Reorder(one, other) for one, other in zip(given, weights, strict=True)]
        self._derived = kept(operation).derived((LIBRARY, *_form(weights, specs)))
        self.direct: Any = None

    def _part(self, length: int, batch: int, features: int, width: int, weights: Sequence[Handle | int]) -> Compute:
        found, operation, states = libdnnl(), self._operation, self._states
        x, y, state, bias = (
            found.memory(shape, steps(shape))
            for shape in (
                (length, batch, features),
                (length, batch, width),
                (1, 1, batch, width),
                (1, 1, self._biases, width),
            )
        )
        before, after = [x, *[state] * states, *weights], [bias, y, *[state] * states, 0]
        attributes = found.attributes()
        if isinstance(operation, LSTM):  # without peepholes and projections
            how: list[Any] = ["lstm_forward", dnnl.FORWARD_INFERENCE, _LEFT_TO_RIGHT, *before, None, None, *after]
        elif isinstance(operation, GRU):
            kind = "lbr_gru" if operation.reset_after else "gru"
            how = [f"{kind}_forward", dnnl.FORWARD_INFERENCE, _LEFT_TO_RIGHT, *before, *after]
        else:
            how = ["vanilla_rnn_forward", dnnl.FORWARD_INFERENCE, TANH, _LEFT_TO_RIGHT, *before, *after, 0.0, 0.0]
        read, written = (dnnl.SRC, dnnl.SRC_1, dnnl.SRC_2), (dnnl.DST, dnnl.DST_1, dnnl.DST_2)
        arguments = [*read[: 1 + states], *_WEIGHTS, dnnl.BIAS, *written[: 1 + states]]
        # The implementation named reference multiplies matrices by fast code, too.
        return Compute(found.descriptor(*how, attributes, slow=()), arguments)

    def __call__(self, operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        self.direct = None
        x, states, weights = plain(inputs[0]), inputs[1 : 1 + self._states], inputs[1 + self._states :]
        prepared = self._derived.of(weights, self._prepared)
        y, *lasts = outputs
        for compute, cut in self._parts:
            compute(x[cut], *map(plain, states), *prepared, y[cut], *lasts)
            states = [last.copy() for last in lasts] if cut.stop < len(y) else lasts
        if self._derived.is_held and len(self._parts) == 1:
            count = 1 + self._states
            expected = [(count + i, weight) for i, weight in enumerate(weights)]
            self.direct = self._parts[0][0].directly([*range(count), *prepared, *range(-1, -1 - count, -1)], expected)

    def _prepared(self, weight_x: Array, weight_h: Array, bias: Array, *more: Array) -> list[Array]:
        """Weights as the primitive likes them, and a bias of all."""
        width, order = weight_h.shape[1], [*_GATES[type(self._operation)]]

        def turned(array: Array) -> Array:
            return plain(array.reshape(-1, width, *array.shape[1:])[order] if self._turned else array)

        biases = turned(bias)
        if more and self._biases > len(order):  # that of the new state has its own within the product
            (other,) = map(turned, more)
            biases = np.concatenate([biases[:2] + other[:2], biases[2:], other[2:]])
        elif more:
            biases = biases + turned(more[0])
        packed = [reorder(turned(each)) for reorder, each in zip(self._reorders, (weight_x, weight_h), strict=True)]
        return [*packed, plain(biases)]


def _form(weights: Sequence[int], specs: Sequence[TensorSpec]) -> Sequence[Any]:
    """Orders of weights in memory; the types of the inputs where one is packed, which the library tells nobody how."""
    try:
        return [libdnnl().order_of(each) for each in weights]
    except UnsupportedError:
        return specs


def _given(shape: tuple[int, ...]) -> list[int]:
    """Strides of a weight as it lies, (gates * width, features), along (1, 1, features, gates, width)."""
    *_, features, gates, width = shape
    return [gates * width * features] * 2 + [1, width * features, features]


for _kind in (LSTM, GRU):
    kernel(_kind, keeps=True, supports=lambda operation: not operation.saves)(_Sequence)
#: Relu of the library makes 0 of NaN.
kernel(RNN, keeps=True, supports=lambda operation: operation.activation == "tanh")(_Sequence)


@registry.kernel(Ragged, library=LIBRARY, dtypes="float32", keeps=True)
def _ragged(operation: Ragged, inputs: list[Array], outputs: list[Array]) -> None:
    ragged((LIBRARY, "numpy"), operation, inputs, outputs)
