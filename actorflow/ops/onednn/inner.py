"""Inner products, with what follows them as post-ops. BLAS is as fast where there is no weight that could be packed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array, put_rounded, scratch, widened
from actorflow.ops.cpu.parallel import product_ns
from actorflow.ops.linalg import Inner, InnerDown
from actorflow.ops.onednn.library import FORWARD_INFERENCE, Handle, libdnnl
from actorflow.ops.onednn.steps import Call, kernel
from actorflow.ops.onednn.weighted import Product, Tell, Weighted, product
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec


@product(Inner)
def _inner(operation: Inner, specs: Sequence[TensorSpec]) -> Product:
    columns, depth = specs[1].shape
    return _product(specs[0], columns, [depth, 1])


@product(InnerDown)
def _inner_down(operation: InnerDown, specs: Sequence[TensorSpec]) -> Product:
    columns = specs[1].shape[1]
    return _product(specs[0], columns, [1, columns])


def _product(rows_of: TensorSpec, columns: int, strides: Sequence[int]) -> Product:
    """The product with a weight (columns, depth) of such strides."""
    depth = rows_of.shape[-1]
    rows, found = rows_of.size // depth, libdnnl()
    x, y = (found.memory([rows, n], [n, 1]) for n in (depth, columns))

    def describe(weight: Handle | int, bias: Handle | None, attributes: Handle) -> Handle:
        return found.descriptor("inner_product_forward", FORWARD_INFERENCE, x, weight, bias, y, attributes)

    memories = (found.memory([columns, depth], strides), found.memory([columns, depth]), y)
    return Product(describe, *memories, 2, columns, strides[1] == 1, product_ns(rows, depth, columns))


class _OfHalf(Weighted):
    """A product of half precision by one of float32, for processors that have nothing for such numbers."""

    def __call__(self, operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        sums = scratch("sums of halves", outputs[0].shape, np.float32)
        super().__call__(operation, [widened(inputs[0]), inputs[1]], [sums])
        self.direct = None
        put_rounded(sums, outputs[0])

    def _prepared(self, weight: Array, *static: Array) -> list[Array] | None:
        return super()._prepared(widened(weight), *static)


def _of_half(tell: Tell, operation: Operation, specs: Sequence[TensorSpec]) -> Call:
    return _OfHalf(operation, tell(operation, [TensorSpec(spec.shape, np.dtype(np.float32)) for spec in specs]))


for _kind, _tell in ((Inner, _inner), (InnerDown, _inner_down)):
    kernel(_kind, dtypes=("float16", "bfloat16"), keeps=True)(partial(_of_half, _tell))
