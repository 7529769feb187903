"""Functions where their rules divide by zero, or choose."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow import ops
from tests.operations.elementwise import FEW_POINTS, triples
from tests.operations.table import call, composed, fixed, normal

_LARGEST: dict[str, Any] = {"axis": 1, "ord": np.inf}

ROWS = [
    composed(
        "largest magnitude",
        lambda torch, x, axis, **order: torch.linalg.vector_norm(x, order["ord"], axis),
        call(ops.linalg.vector_norm, normal((2, 3)), **_LARGEST),
        corners=[call(ops.linalg.vector_norm, triples(FEW_POINTS), **_LARGEST)],
    ),
    composed(
        "ops.binary_cross_entropy of 0 and 1",
        "nn.functional.binary_cross_entropy",
        call(ops.binary_cross_entropy, fixed([0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]), reduction="none"),
        differentiable=False,  # torch bounds the slope by 1e-12 in single precision
    ),
]
