"""Dropout."""

from __future__ import annotations

from actorflow import ops
from tests.operations.table import FLOATS, Row, Sample, normal

ROWS = [
    Row(
        ops.Dropout,
        [Sample(ops.Dropout(0.4, 7), normal((4, 5))), Sample(ops.Dropout(0.4, seed=2**70 + 5), normal((7, 33)))],
        without={
            "numpy": "its mask is the one that all devices draw: tests/ops/test_dropout.py says what it must be",
            "torch": "PyTorch draws another mask",
        },
        dtypes=(*FLOATS, "bfloat16"),
        orders=1,  # each application of arrays draws another mask
        random=True,
    )
]
