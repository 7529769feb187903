"""The linear algebra extension of the standard: functions of `actorflow.ops.linalg`."""

from typing import TYPE_CHECKING

# In rows, which the formatter would give a line for each name.
# fmt: off
# isort: off
from actorflow.array.namespace.functions import matmul, matrix_transpose
from actorflow.ops.linalg import (
    cholesky, cross, det, diagonal, eig, eigh, eigvals, eigvalsh, inv, matrix_norm, matrix_power, matrix_rank,
    outer, pinv, qr, slogdet, solve, svd, svdvals, tensordot, trace, vecdot, vector_norm,
)

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "tensordot", "trace", "vecdot", "vector_norm",
]

if not TYPE_CHECKING:  # for which any name would be one that is there

    def __getattr__(name: str) -> object:
        from actorflow.foreign import missing

        missing(__name__, name)
