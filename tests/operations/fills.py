"""Constants and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.fills import Constant
from actorflow.spec import TensorSpec
from tests.operations.table import HOST, Row, Sample, Wrong, normal, refused

_SPEC = TensorSpec.of((4, 3), "float32")
_RANDOM = {
    "numpy": "its bits are those that all devices draw: tests/ops/test_tensor_operations.py has the distributions",
    "torch": "PyTorch draws other numbers",
}
_SPECS = (TensorSpec.of((5, 41), "float32"), TensorSpec.of((205,), "float64"))


def _random(kind: Any, *samples: Any) -> Row:
    return Row(kind, [Sample(each, normal()) for each in samples], without=_RANDOM, random=True)


ROWS = [
    Row(
        ops.Fill,
        [
            Sample(ops.Fill(2.5, TensorSpec.of((3, 2))), normal()),
            Sample(ops.Fill(0.25, _SPEC), normal()),
            *(Sample(ops.Fill(1.5, TensorSpec.of(shape)), normal()) for shape in [(), (3, 2), (0, 4)]),
        ],
        numpy=lambda value, spec: np.full(spec.shape, value, spec.dtype),
        torch=lambda torch, value, spec: torch.full(spec.shape, value, dtype=getattr(torch, spec.dtype.name)),
        onnx="Identity",
    ),
    Row(
        Constant,
        [Sample(Constant(np.random.default_rng(0).standard_normal((3, 2)).astype("f")), normal())],
        numpy=lambda value: value,
        torch=lambda torch, value: torch.tensor(value),
        devices=HOST,
        onnx="Identity",
    ),
    _random(ops.Gaussian, ops.Gaussian(TensorSpec.of((5, 41), "float64"), 2**70 + 5, 1.0, 2.0)),
    _random(ops.Uniform, *(ops.Uniform(spec, 7, -1.0, 3.0) for spec in _SPECS)),
    _random(
        ops.Bernoulli,
        *(ops.Bernoulli(spec, 7, 0.3) for spec in _SPECS),
        *(ops.Bernoulli(TensorSpec.of((5, 41), dtype), 7, 0.3) for dtype in ("bool", "int32", "float16")),
    ),
]

_X = (2,)

WRONG = [
    *refused(
        af.GraphError,
        (lambda x: ops.gaussian(x.graph, 2, std=-1.0), [_X], "Gaussian: std must not be negative"),
        (lambda x: ops.uniform(x.graph, 2, 1.0, 0.0), [_X], "Uniform: high must be at least low"),
        (lambda x: ops.bernoulli(x.graph, 2, 1.5), [_X], "Bernoulli: probability must be from 0 to 1"),
        (lambda x: ops.uniform(x.graph, 2, seed=-1), [_X], "Uniform: seed must be from 0"),
    ),
    Wrong(lambda x: ops.gaussian(x.graph, 2, dtype="int8"), [_X], af.DTypeError, "Gaussian: spec must be floating"),
]
