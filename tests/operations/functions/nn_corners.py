"""Functions where their rules divide by zero, or choose."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow import ops
from tests.operations.elementwise import FEW_POINTS, triples
from tests.operations.table import SINGLE_AND_DOUBLE, Row, call, fixed, normal

_LARGEST: dict[str, Any] = {"axis": 1, "ord": np.inf}

ROWS = [
    Row(
        None,
        [call(ops.linalg.vector_norm, normal((2, 3)), **_LARGEST)],
        name="largest magnitude",
        torch=lambda torch, x, axis, **order: torch.linalg.vector_norm(x, order["ord"], axis),
        dtypes=SINGLE_AND_DOUBLE,
        corners=[call(ops.linalg.vector_norm, triples(FEW_POINTS), **_LARGEST)],
    ),
    Row(
        None,
        [call(ops.binary_cross_entropy, fixed([0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]), reduction="none")],
        name="ops.binary_cross_entropy of 0 and 1",
        torch="nn.functional.binary_cross_entropy",
        dtypes=SINGLE_AND_DOUBLE,
        differentiable=False,  # torch bounds the slope by 1e-12 in single precision
    ),
]
