"""Products of stacks of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from actorflow.errors import ShapeError
from actorflow.ops.functional import apply, blob_of
from actorflow.ops.operation import Operation, same_dtype
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True)
class Matmul(Operation):
    """``y = a @ b`` over the last two axes; see `matmul`.

    Attributes:
        transpose_a: Use the transposed matrices of ``a``.
        transpose_b: Use the transposed matrices of ``b``.
        batch: The result's axes before the matrices: the products are summed over axes that it lacks or has length 1
            on, and repeated on those that they lack or have length 1 on. None for those of the products. Gradients of
            operands that were broadcast need it.
    """

    arguments = ("a", "b")

    transpose_a: bool = False
    transpose_b: bool = False
    batch: tuple[int, ...] | None = None

    def product_batch(self, a: TensorSpec, b: TensorSpec) -> tuple[int, ...]:
        """The axes before the matrices that the products have.

        Raises:
            ShapeError: if those of ``a`` and ``b`` do not broadcast.
        """
        try:
            return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            raise ShapeError(f"Matmul: b must broadcast with a's batch {a.shape[:-2]}, got {b}; a is {a}") from None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """(batch..., rows of ``a``, columns of ``b``).

        Raises:
            ShapeError, DTypeError: if ``a`` and ``b`` do not fit.
        """
        a, b = inputs
        same_dtype("Matmul", a=a, b=b)
        for name, spec in (("a", a), ("b", b)):
            if len(spec.shape) < 2:
                raise ShapeError(f"Matmul: {name} must have shape (..., rows, columns), got {spec}")
        rows, inner = a.shape[-2:][:: -1 if self.transpose_a else 1]
        other, columns = b.shape[-2:][:: -1 if self.transpose_b else 1]
        if inner != other:
            axis = "last" if self.transpose_b else "second last"
            raise ShapeError(f"Matmul: b must have length {inner} on its {axis} axis, got {b}; a is {a}")
        batch = self.product_batch(a, b)
        if self.batch is not None:
            try:
                np.broadcast_shapes(batch, self.batch)
            except ValueError:
                raise ShapeError(f"Matmul: products of batch {batch} cannot be summed to {self.batch}") from None
            batch = self.batch
        return (TensorSpec((*batch, rows, columns), a.dtype),)

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """Products with the other factor, summed over what was broadcast."""
        (g,), (a, b) = grads, op.inputs
        assert g is not None
        da = db = None
        if wanted[0]:
            batch = a.shape[:-2]
            if self.transpose_a:  # a.T = g @ b'.T, so a = b' @ g.T
                da = apply(Matmul(self.transpose_b, True, batch), b, g)
            else:
                da = apply(Matmul(False, not self.transpose_b, batch), g, b)
        if wanted[1]:
            batch = b.shape[:-2]
            if self.transpose_b:
                db = apply(Matmul(True, self.transpose_a, batch), g, a)
            else:
                db = apply(Matmul(not self.transpose_a, False, batch), a, g)
        return [da, db]


def matmul(a: Blob, b: Blob, *, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None) -> Blob:
    """Products of matrices, or of stacks of them: ``y = a @ b`` over the last two axes.

    Args:
        a: Shape (..., rows, inner), or (..., inner, rows) with ``transpose_a``; floating.
        b: Shape (..., inner, columns), or (..., columns, inner) with ``transpose_b``; dtype of ``a``. The axes before
            the last two broadcast with those of ``a``.
        transpose_a: Use the transposed matrices of ``a``.
        transpose_b: Use the transposed matrices of ``b``.
        name: Name of the op.
    Returns:
        Blob of shape (..., rows, columns), dtype of ``a``.
    Raises:
        ShapeError: if the shapes do not fit. Vectors are no matrices: reshape them.
        DTypeError: if the dtypes differ or are not floating.
    Gradient: da = g @ b.T; db = a.T @ g; summed over axes that were broadcast.
    Source: `torch.matmul`.
    """
    return blob_of(Matmul(transpose_a, transpose_b), a, b, name=name)
