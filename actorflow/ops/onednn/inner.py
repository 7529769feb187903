"""Inner products, with what follows them as post-ops. BLAS is as fast where there is no weight that could be packed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from actorflow.ops.cpu.parallel import product_ns
from actorflow.ops.linalg import Inner, InnerDown
from actorflow.ops.onednn.library import FORWARD_INFERENCE, Handle, libdnnl
from actorflow.ops.onednn.weighted import Product, Tell, by_first_axis, product
from actorflow.spec import TensorSpec


@product(Inner)
def _inner(operation: Inner, specs: Sequence[TensorSpec]) -> Product:
    columns, depth = specs[1].shape
    return _product(_inner, operation, specs, columns, [depth, 1])


@product(InnerDown)
def _inner_down(operation: InnerDown, specs: Sequence[TensorSpec]) -> Product:
    columns = specs[1].shape[1]
    return _product(_inner_down, operation, specs, columns, [1, columns])


def _product(
    tell: Tell, operation: Inner | InnerDown, specs: Sequence[TensorSpec], columns: int, strides: Sequence[int]
) -> Product:
    """The product with a weight (columns, depth) of such strides."""
    depth = specs[0].shape[-1]
    rows, found = specs[0].size // depth, libdnnl()
    x, y = (found.memory([rows, n], [n, 1]) for n in (depth, columns))

    def describe(weight: Handle | int, bias: Handle | None, attributes: Handle) -> Handle:
        return found.descriptor("inner_product_forward", FORWARD_INFERENCE, x, weight, bias, y, attributes)

    memories = (found.memory([columns, depth], strides), found.memory([columns, depth]), y)
    work_ns, pieces = product_ns(rows, depth, columns), partial(by_first_axis, tell, operation, specs)
    return Product(describe, *memories, 2, columns, strides[1] == 1, work_ns, pieces)
