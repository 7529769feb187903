"""One operation of each kind that the package has, with its inputs in float32: what every device is tried with."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops import Operation
from actorflow.ops.fft import Fft, Ifft, Irfft, Rfft
from actorflow.ops.fills import Constant
from actorflow.ops.linalg import (
    BiasDown,
    Cholesky,
    Cofactors,
    Det,
    Eig,
    Eigh,
    InnerDown,
    InnerWeight,
    Inv,
    Pinv,
    Qr,
    Slogdet,
    Solve,
    Svd,
    VectorNorm,
)
from actorflow.ops.nn.activation import ReluDown
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.ops.nn.loss import SoftmaxLossDown
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from actorflow.ops.nn.softmax import SoftmaxDown
from actorflow.ops.nn.updates import NormFactor, ScaleBy, SquareSum
from tests.support.kernel_cases import TENSOR_CASES
from tests.support.neural_cases import NEURAL_CASES


def operations() -> set[type[Operation]]:
    """All operations of `actorflow.ops`, but for those that only plans insert and two that others derive from."""
    found, open_kinds = set(), [Operation]
    while open_kinds:
        for kind in open_kinds.pop().__subclasses__():
            open_kinds.append(kind)
            is_base = "__dataclass_params__" not in vars(kind) or kind.__name__.startswith("_")
            module = kind.__module__
            if module.startswith("actorflow.ops.") and module != "actorflow.ops.transfer" and not is_base:
                found.add(kind)
    return {kind for kind in found if kind.__name__ not in ("LabelLoss", "PairLoss", "Reduction")}


def spread(*shape: int) -> np.ndarray:
    """Some numbers, different at every place."""
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype("f")


X, Y = spread(2, 6, 6, 3), spread(2, 6, 6, 4)
MAXIMA = X.reshape(2, 3, 2, 3, 2, 3).max(axis=(2, 4))
FILTERS, LABELS = spread(3, 3, 3, 4), np.array([2, 0])
_BASIC: dict[str, tuple[Operation, list[Any]]] = {
    "Accuracy": (ops.Accuracy(), [spread(2, 3), LABELS]),
    "AdagradUpdate": (ops.AdagradUpdate(), [X, X, X * X, np.float32(0.1)]),
    "AdamUpdate": (ops.AdamUpdate(), [X, X, X, X * X, np.float32(0.1), np.int64(3)]),
    "AveragePool": (ops.AveragePool((2, 2), (2, 2)), [X]),
    "AveragePoolDown": (AveragePoolDown((2, 2), (2, 2), size=(6, 6)), [spread(2, 3, 3, 3)]),
    "Bias": (ops.Bias(), [X, spread(3)]),
    "BiasDown": (BiasDown(), [X]),
    "Cast": (ops.Cast(np.dtype("float64")), [X]),
    "Constant": (Constant(spread(3, 2)), []),
    "Conv": (ops.Conv(pad=(1, 1)), [X, FILTERS]),
    "ConvDown": (ConvDown(pad=1, size=(6, 6)), [Y, FILTERS]),
    "ConvWeight": (ConvWeight(pad=1, kernel=(3, 3)), [Y, X]),
    "Copy": (ops.Copy(), [X]),
    "Dropout": (ops.Dropout(0.4, 7), [X]),
    "Fill": (ops.Fill(2.5, af.TensorSpec.of((3, 2))), []),
    "Fused": (ops.Fused((ops.FusedStep(ops.Multiply(), (0, 1)), ops.FusedStep(ops.Relu(), (2,))), (1,)), [X, X]),
    "GlobalAverage": (ops.GlobalAverage(), [X]),
    "Inner": (ops.Inner(), [spread(2, 5), spread(4, 5)]),
    "InnerDown": (InnerDown(), [spread(2, 4), spread(4, 5)]),
    "InnerWeight": (InnerWeight(), [spread(2, 4), spread(2, 5)]),
    "MaxPool": (ops.MaxPool((2, 2), (2, 2)), [X]),
    "MaxPoolDown": (MaxPoolDown((2, 2), (2, 2)), [spread(2, 3, 3, 3), X, MAXIMA]),
    "Multiply": (ops.Multiply(), [X, X]),
    "NormFactor": (NormFactor(1.0), [np.float64(9.0), np.float64(16.0)]),
    "Relu": (ops.Relu(), [X]),
    "ReluDown": (ReluDown(), [X, X]),
    "Reshape": (ops.Reshape((2, -1)), [X]),
    "RmsPropUpdate": (ops.RmsPropUpdate(momentum=0.9), [X, X, X * X, np.float32(0.1), X]),
    "Scale": (ops.Scale(0.3), [X]),
    "ScaleBy": (ScaleBy(), [X, np.float64(0.3)]),
    "SgdUpdate": (ops.SgdUpdate(0.9, 0.1), [X, X, X, np.float32(0.1)]),
    "Sigmoid": (ops.Sigmoid(), [X]),
    "Softmax": (ops.Softmax(), [X]),
    "SoftmaxDown": (SoftmaxDown(), [X, X]),
    "SoftmaxLoss": (ops.SoftmaxLoss(), [spread(2, 3), LABELS]),
    "SoftmaxLossDown": (SoftmaxLossDown(), [np.float32(1.5), spread(2, 3), LABELS]),
    "SquareSum": (SquareSum(), [X]),
    "Sum": (ops.Sum(), [X, X, 2 * X]),
    "Tanh": (ops.Tanh(), [X]),
    "VectorNorm": (VectorNorm((0, -1), order=3.0), [X]),
    **{made.__name__: (made(3, 1), [X[0]]) for made in (Fft, Ifft, Irfft, Rfft)},
    "Transpose": (ops.Transpose((0, 3, 1, 2)), [X]),
}


_REGULAR = spread(2, 3, 3) + 3 * np.eye(3, dtype="f")
_SYMMETRIC = _REGULAR @ _REGULAR.mT
_MATRICES: dict[str, tuple[Operation, list[Any]]] = {
    **{made.__name__: (made(), [_REGULAR]) for made in (Det, Eig, Inv, Qr, Slogdet, Svd, Cofactors)},
    **{made.__name__: (made(), [_SYMMETRIC]) for made in (Cholesky, Eigh)},
    "Pinv": (Pinv(), [_REGULAR, np.float32(1e-3)]),
    "Solve": (Solve(), [_REGULAR, spread(3)]),
}
#: Kinds that LAPACK computes, which refuses matrices without a result, or does not end.
OF_LAPACK = frozenset(_MATRICES)


def _drawn(cases: Any) -> dict[str, tuple[Operation, list[Any]]]:
    """One case of each kind."""
    return {
        case.operation.kind: (
            case.operation,
            [x.astype("f") if x.dtype.kind == "f" else x for x in map(np.asarray, case.make(np.random.default_rng(0)))],
        )
        for case in cases
    }


#: By kind: the operation and its inputs.
CASES = {**_drawn(TENSOR_CASES), **_drawn(NEURAL_CASES), **_BASIC, **_MATRICES}
