"""Operations of networks and how their inputs are drawn: what kernels of all devices are tried with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from actorflow import ops
from actorflow.ops.linalg import InnerDown, InnerWeight
from actorflow.ops.nn.activation import NormalCdf, NormalDensity
from actorflow.ops.nn.loss import NllLossDown, PairLoss, SoftmaxLossDown
from actorflow.ops.nn.lrn import ChannelWindowSum, LRNDown
from actorflow.ops.nn.norm import BatchNormDown, BatchNormInferenceDown, LayerNormDown
from actorflow.ops.nn.recurrent import LSTMDown, LSTMGatesDown
from actorflow.ops.nn.resize import Resize, ResizeDown

Make = Callable[[np.random.Generator], list[np.ndarray]]


class NeuralCase(NamedTuple):
    """An operation, its inputs as float64 and integers, and the positions of statistics: at least float32."""

    operation: ops.Operation
    make: Make
    statistics: tuple[int, ...] = ()


def _normal(*shapes: tuple[int, ...]) -> Make:
    return lambda random: [np.asarray(random.standard_normal(shape)) for shape in shapes]


def _positive(*shapes: tuple[int, ...], first: int = 0) -> Make:
    """Normal numbers, and from position ``first`` on positive ones."""

    def make(random: np.random.Generator) -> list[np.ndarray]:
        drawn = [np.asarray(random.standard_normal(shape)) for shape in shapes]
        return [x if i < first else np.abs(x) + 0.5 for i, x in enumerate(drawn)]

    return make


def _labeled(*before: tuple[int, ...], classes: int = 7, scores: bool = True, weighted: bool = False) -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        arrays = [np.asarray(random.standard_normal(shape)) for shape in before]
        arrays += [random.standard_normal((5, 6, classes))] if scores else []
        arrays.append(random.integers(0, classes, (5, 6)))
        return [*arrays, *([random.random(classes) + 0.1] if weighted else [])]

    return make


def _between(*before: tuple[int, ...], count: int = 2) -> Make:
    """Numbers between 0 and 1, after normal ones."""
    return lambda random: [
        *(np.asarray(random.standard_normal(shape)) for shape in before),
        *(0.1 + 0.8 * random.random((6, 7)) for _ in range(count)),
    ]


_X, _WIDE = (300, 7), (4, 90, 6)
_UP = [
    *(ops.LeakyRelu(0.1), ops.LeakyRelu(0.0), ops.Elu(0.7), ops.Silu(), ops.Gelu(), ops.GeluTanh()),
    *(ops.Softplus(2.0, 3.0), NormalCdf(), NormalDensity()),
]
_RESIZED = [
    *(Resize(1, size, mode) for mode in ("nearest", "linear", "cubic") for size in (1, 3, 6, 13)),
    *(Resize(1, 9, "linear", coordinates) for coordinates in ("align_corners", "asymmetric", "pytorch_half_pixel")),
    *(Resize(1, 9, "nearest", "asymmetric", how) for how in ("floor", "ceil", "round_prefer_ceil")),
    Resize(1, 8, "cubic", cubic=-0.5, scale=1.45),
]
_REDUCTIONS = ("mean", "sum", "none")


def _labels() -> list[NeuralCase]:
    cases = []
    for how in [("mean", 0.5, None), ("sum", 1.0, 2), ("none", 1.0, None), ("mean", 1.0, 3)]:
        g = (5, 6) if how[0] == "none" else ()
        for weighted in (False, True):
            cases += [
                NeuralCase(ops.SoftmaxLoss(*how), _labeled(weighted=weighted)),
                NeuralCase(SoftmaxLossDown(*how), _labeled(g, weighted=weighted)),
                NeuralCase(ops.NllLoss(*how), _labeled(weighted=weighted)),
                NeuralCase(NllLossDown(*how, classes=7), _labeled(g, scores=False, weighted=weighted)),
            ]
    return cases


def _lstm() -> list[NeuralCase]:
    steps, batch, features, width = 4, 3, 5, 6
    state, gates = (batch, width), (batch, 4 * width)
    inputs = [(steps, batch, features), state, state, (4 * width, features), (4 * width, width)]
    states = (steps, batch, width)
    return [
        NeuralCase(ops.LSTMGates(), _normal(gates, state)),
        NeuralCase(LSTMGatesDown(), _normal(state, state, state, state, gates)),
        NeuralCase(ops.LSTM(), _normal(*inputs, (4 * width,))),
        NeuralCase(LSTMDown(), _normal(states, state, state, *inputs, states, (steps, *gates), states)),
    ]


#: At least one for each operation of activations, normalization, losses, recurrence and matrices.
NEURAL_CASES = [
    *(NeuralCase(operation, _normal(_X)) for operation in _UP),
    *(NeuralCase(ops.LogSoftmax(axis), _normal(_WIDE)) for axis in (-1, 0, 1)),
    *_labels(),
    *(NeuralCase(loss(how, 0.5), _between()) for loss in PairLoss.__subclasses__() for how in _REDUCTIONS),
    NeuralCase(ops.Inner(), _normal((2, 3, 5), (4, 5))),
    NeuralCase(InnerDown(), _normal((2, 3, 4), (4, 5))),
    NeuralCase(InnerWeight(), _normal((2, 3, 4), (2, 3, 5))),
    NeuralCase(ops.Matmul(), _normal((4, 5), (5, 6))),
    NeuralCase(ops.Matmul(), _normal((2, 3, 4, 5), (5, 6))),
    NeuralCase(ops.Matmul(), _normal((2, 1, 4, 5), (3, 5, 6))),
    *(NeuralCase(ops.Matmul(), _normal(*pair)) for pair in (((5,), (3, 5, 6)), ((3, 4, 5), (5,)), ((5,), (5,)))),
    NeuralCase(ops.Matmul(True, True), _normal((2, 3, 5, 4), (6, 5))),
    NeuralCase(ops.Matmul(True, False, ()), _normal((2, 3, 5, 4), (2, 3, 5, 6))),
    NeuralCase(ops.Matmul(False, True, (1, 3)), _normal((2, 3, 4, 5), (3, 6, 5))),
    NeuralCase(ops.Matmul(False, False, (2, 3)), _normal((3, 4, 5), (5, 6))),
    NeuralCase(ops.BatchNorm(0.01, 0.3), _positive((5, 9, 7), (7,), (7,), (7,), (7,), first=3), (3, 4)),
    NeuralCase(BatchNormDown(0.01), _positive((5, 9, 7), (5, 9, 7), (7,), (7,), (7,), first=3), (3, 4)),
    NeuralCase(ops.BatchNormInference(0.01), _positive((5, 9, 7), (7,), (7,), (7,), (7,), first=3), (3, 4)),
    NeuralCase(BatchNormInferenceDown(0.01), _positive((5, 9, 7), (5, 9, 7), (7,), (7,), (7,), first=3), (3, 4)),
    *(NeuralCase(ops.LayerNorm(n, 0.01), _normal((4, 5, 70), *[(4, 5, 70)[-n:]] * 2)) for n in (1, 2, 3)),
    *(
        NeuralCase(
            LayerNormDown(n, 0.01),
            _positive((4, 5, 70), (4, 5, 70), (4, 5, 70)[-n:], *[(4, 5, 70)[:-n]] * 2, first=3),
            (3, 4),
        )
        for n in (1, 2)
    ),
    *(NeuralCase(ChannelWindowSum(size, side), _normal((6, 9))) for size in (4, 5) for side in (False, True)),
    *(NeuralCase(ops.LRN(0.5, beta, 5, 2.0), _normal((3, 5, 9))) for beta in (0.75, 0.6)),
    *(NeuralCase(LRNDown(0.5, beta, 4), _positive(*[(3, 5, 9)] * 4, first=3)) for beta in (0.75, 0.6)),
    *_lstm(),
    *(NeuralCase(operation, _normal((3, 6, 2, 5))) for operation in _RESIZED),
    *(NeuralCase(ResizeDown(operation, 6), _normal((3, operation.size, 2, 5))) for operation in _RESIZED),
]
