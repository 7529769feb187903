"""Products with a weight, and what follows them, in one primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.kept import kept
from actorflow.ops.fused import Followed, StepError
from actorflow.ops.onednn.following import Binary, Following
from actorflow.ops.onednn.library import BIAS, DST, POST_OP, SRC, SRC_1, WEIGHTS, Handle, UnsupportedError, libdnnl
from actorflow.ops.onednn.steps import LIBRARY, Call, Compute, Reorder, kernel, plain, written
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec


@dataclass(frozen=True)
class Product:
    """A product of an array with a weight, as the library is told of it.

    Attributes:
        describe: Makes the primitive's descriptor from those of a bias, None for none, and of its attributes.
        weight: Descriptor of the weight as it lies.
        y: Descriptor of the result, whose second axis is that of the columns, and its number of axes.
        columns: Number of columns.
        turned: Whether the columns are on the weight's first axis, and not on its last one.
        work_ns: Estimated time of one thread.
    """

    describe: Callable[[Handle | None, Handle], Handle]
    weight: Handle
    y: Handle
    rank: int
    columns: int
    turned: bool
    work_ns: float


class Weighted:
    """Calls of a product in one step, with what follows it or without.

    Args:
        product: The product.
        following: What follows.
        count: Number of the product's inputs, which come before those of what follows.
    """

    def __init__(self, product: Product, following: Following | None = None, count: int = 2) -> None:
        found = libdnnl()
        self._following, self._turned, self._columns = following, product.turned, product.columns
        bias = None
        static: list[tuple[int, int]] = []  # arguments that are operands of post-ops, and their positions in the chain
        rows: list[tuple[int, int]] = []
        post_ops: list[tuple[Any, ...]] = []
        if following is not None:
            if following.shifts:
                bias = found.memory([product.columns], "float32", [1])
            for i, each in enumerate(following.post_ops):
                if not isinstance(each, Binary):
                    post_ops.append(tuple(each))
                    continue
                position, argument = int(each.operand), POST_OP * (i + 1) | SRC_1
                is_static = following.is_static(position)
                (static if is_static else rows).append((argument, position))
                post_ops.append((each.kind, self._one_row(product.rank) if is_static else product.y))
        attributes = found.attributes(post_ops)
        prepared = [WEIGHTS, *([] if bias is None else [BIAS]), *[argument for argument, _ in static]]
        arguments = [SRC, *prepared, DST, *[argument for argument, _ in rows]]
        self._compute = Compute(lambda: product.describe(bias, attributes), arguments, product.work_ns)
        weight = found.memory_of(self._compute.descriptor, WEIGHTS)
        self._reorder = Reorder(product.weight, weight)
        self._operands = [position for _, position in static]
        inside = [] if following is None else following.static
        self._static = [(position, count - 1 + position) for position in inside]
        self._rows = [count - 1 + position for _, position in rows]

    def _one_row(self, rank: int) -> Handle:
        shape = [1, self._columns, *[1] * (rank - 2)]
        return libdnnl().memory(shape, "float32", [self._columns, *[1] * (rank - 1)])

    def __call__(self, operation: Any, inputs: list[Array], outputs: list[Array], finish: Any = None) -> None:
        x, y = plain(inputs[0]), written(outputs[0])
        sources = (inputs[1], *[inputs[i] for _, i in self._static])
        prepared = kept(operation).derived(sources, lambda: self._prepared(inputs))
        self._compute(x, *prepared, y, *[plain(inputs[i]) for i in self._rows])
        if y is not outputs[0]:
            np.copyto(outputs[0], y)
        if finish is not None:
            finish(0, y.size // y.shape[-1])

    def _prepared(self, inputs: Sequence[Array]) -> list[Array]:
        """The weight as the primitive likes it, and a bias and operands, from what has no rows."""
        weight, following = inputs[1], self._following
        if following is None:
            return [self._reorder(plain(weight))]
        values = following.values({position: inputs[i] for position, i in self._static})
        more = []
        if following.shifts:
            scale, shift = following.affine(values, self._columns)
            more.append(shift)
            if scale is not None:
                factors = scale.reshape(-1, *[1] * (weight.ndim - 1)) if self._turned else scale
                weight = np.multiply(weight, factors)
        operands = [np.broadcast_to(values[position].reshape(-1), self._columns) for position in self._operands]
        more += map(np.ascontiguousarray, operands)
        return [self._reorder(plain(weight)), *more]


#: What tells the library of an operation, by its kind.
PRODUCTS: dict[type[Operation], Callable[[Any, Sequence[TensorSpec]], Product]] = {}


def product(
    operation: type[Operation],
) -> Callable[[Callable[[Any, Sequence[TensorSpec]], Product]], Callable[[Any, Sequence[TensorSpec]], Product]]:
    """Register what tells the library of a product, with a kernel that computes it, whatever follows."""

    def register(tell: Callable[[Any, Sequence[TensorSpec]], Product]) -> Callable[..., Product]:
        PRODUCTS[operation] = tell
        kernel(operation, keeps=True)(lambda operation, specs: Weighted(tell(operation, specs)))
        return tell

    return register


@kernel(Followed, keeps=True, supports=lambda operation: operation.kernel.key.library == LIBRARY)
def _followed(operation: Followed, specs: Sequence[TensorSpec]) -> Call:
    count, main = operation.count, operation.main
    tell = PRODUCTS.get(type(main))
    if tell is None:
        raise UnsupportedError(main.kind)
    (y,) = main.infer(*specs[:count]) or ()
    call = Weighted(tell(main, specs[:count]), Following(operation.chain, [y, *specs[count:]]), count)

    def compute(operation: Followed, inputs: list[Array], outputs: list[Array]) -> None:
        begin_ns = perf_counter_ns()
        try:
            call(operation, inputs, outputs)
        except Exception as error:
            raise StepError(0) from error
        operation.main_ns[0] += perf_counter_ns() - begin_ns

    return compute
