"""Products with a weight, and what follows them, in one primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np

from actorflow.ops.cpu.buffers import Array, plain
from actorflow.ops.cpu.kept import kept
from actorflow.ops.fused import Followed
from actorflow.ops.onednn.following import Binary, Following
from actorflow.ops.onednn.library import BIAS, DST, POST_OP, SRC, SRC_1, WEIGHTS, Handle, UnsupportedError, libdnnl
from actorflow.ops.onednn.steps import (
    LIBRARY,
    Call,
    Reorder,
    Shared,
    kernel,
    others,
)
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

#: Constants in an order of the library's, for as long as something has them: by the constant's address, and the order.
_ORDERED: WeakValueDictionary[Any, Array] = WeakValueDictionary()


@dataclass(frozen=True)
class Product:
    """A product of an array with a weight, as the library is told of it.

    Attributes:
        describe: Makes the primitive's descriptor from those of the weight, of a bias, None for none, and of its
            attributes.
        weight: Descriptor of the weight as it lies.
        any_weight: Descriptor of the weight as the primitive likes it best.
        y: Descriptor of the result, whose second axis is that of the columns, and its number of axes.
        columns: Number of columns.
        turned: Whether the columns are on the weight's first axis, and not on its last one.
        work_ns: Estimated time of one thread.
    """

    describe: Callable[[Handle | int, Handle | None, Handle], Handle]
    weight: Handle
    any_weight: Handle
    y: Handle
    rank: int
    columns: int
    turned: bool
    work_ns: float


class Weighted:
    """Calls of a product in one step, with what follows it or without.

    Args:
        operation: The operation.
        product: The product.
        following: The post-ops and chain behind it.
        count: Number of the product's inputs, which come before those of what follows.
    """

    def __init__(
        self, operation: Operation, product: Product, following: Following | None = None, count: int = 2
    ) -> None:
        self._operation, self._product, self._following = operation, product, following
        static, rows = ([], []) if following is None else operands_of(following)
        has_bias = following is not None and following.shifts
        prepared = [WEIGHTS, *[BIAS] * has_bias, *[argument for argument, _ in static]]
        arguments = [SRC, *prepared, DST, *[argument for argument, _ in rows]]
        self._compute = Shared(self._described, arguments, 1 + len(prepared), product.work_ns, product.any_weight)
        self._reorder = Reorder(product.weight, self._compute.weight)
        self._order = libdnnl().order_of(self._compute.weight)
        self.direct: Any = None
        self._operands = [position for _, position in static]
        inside = () if following is None else tuple(following.static)
        self._static = [(position, count - 1 + position) for position in inside]
        # An input without rows may have rows in another plan: of one row or several.
        form = (LIBRARY, self._order, None if following is None else following.chain, inside)
        self._derived = kept(operation).derived(form)
        self._rows = [count - 1 + position for _, position in rows]

    def _described(self, weight: Handle | int) -> Handle:
        """Descriptor of the primitive of the product and what follows it."""
        following, found = self._following, libdnnl()
        post_ops = [] if following is None else _post_ops(following, self._product)
        bias = found.memory([self._product.columns], [1]) if following is not None and following.shifts else None
        return self._product.describe(weight, bias, found.attributes(post_ops))

    def __call__(self, operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        self.direct = None
        y, sources = outputs[0], (inputs[1], *[inputs[i] for _, i in self._static])
        prepared = self._derived.of(sources, self._prepared)
        if prepared is None:
            others(operation, y.dtype).function(operation, inputs, outputs)
            return
        self._compute(plain(inputs[0]), *prepared, y, *[plain(inputs[i]) for i in self._rows])
        if self._derived.is_held:
            places = [1, *[i for _, i in self._static]]
            self.direct = self._compute.directly([0, *prepared, -1, *self._rows], [(i, inputs[i]) for i in places])

    def _prepared(self, weight: Array, *static: Array) -> list[Array] | None:
        """The weight as the primitive likes it, and a bias and operands from what has no rows, if it takes them."""
        following = self._following
        if following is None:
            return [self._ordered(weight)]
        values = following.values({position: value for (position, _), value in zip(self._static, static, strict=True)})
        more = []
        if following.shifts:
            scale, shift = following.affine(values, self._product.columns)
            more.append(shift)
            if scale is not None:
                if not np.isfinite(scale).all():  # an infinite weight times numbers of both signs would be NaN
                    return None
                factors = scale.reshape(-1, *[1] * (weight.ndim - 1)) if self._product.turned else scale
                weight = np.multiply(weight, factors)
        columns = self._product.columns
        more += [
            np.ascontiguousarray(np.broadcast_to(values[position].reshape(-1), columns)) for position in self._operands
        ]
        return [self._ordered(weight), *more]

    def _ordered(self, weight: Array) -> Array:
        """The weight as the primitive likes it: of a constant that several products have, the same array for all."""
        if weight.flags.writeable:
            return self._reorder(plain(weight))
        key = id(weight), self._order, self._operation
        found = _ORDERED.get(key)
        if found is None:
            found = _ORDERED[key] = self._reorder(plain(weight))
            finalize(weight, _ORDERED.pop, key, None)
        return found


def operands_of(following: Following) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Operands of post-ops, without and with rows: their arguments, and their positions."""
    static: list[tuple[int, int]] = []
    rows: list[tuple[int, int]] = []
    for i, each in enumerate(following.post_ops):
        if isinstance(each, Binary):
            operand = (POST_OP * (i + 1) | SRC_1, int(each.operand))
            (static if following.is_static(operand[1]) else rows).append(operand)
    return static, rows


def _post_ops(following: Following, product: Product) -> list[tuple[Any, ...]]:
    """Post-ops as the library is told of them, behind a result whose columns are on its second axis."""
    found: list[tuple[Any, ...]] = []
    for each in following.post_ops:
        if not isinstance(each, Binary):
            found.append(tuple(each))
        elif following.is_static(int(each.operand)):
            ones = [1] * (product.rank - 1)
            found.append((each.kind, libdnnl().memory([1, product.columns, *ones[1:]], [product.columns, *ones])))
        else:
            found.append((each.kind, product.y))
    return found


#: Tells the library of an operation on arrays of some types.
Tell = Callable[[Any, Sequence[TensorSpec]], Product]
_TELL: dict[type[Operation], Tell] = {}


def _following(operation: Followed, specs: Sequence[TensorSpec]) -> Following:
    count = operation.count
    if not all(spec.size for spec in specs):
        raise UnsupportedError("no elements")
    (y,) = operation.main.infer(*specs[:count]) or ()
    return Following(operation.chain, [y, *specs[count:]])


def can(read: Callable[[Any, Sequence[TensorSpec]], object]) -> Callable[[Any, Sequence[TensorSpec]], bool]:
    """A function that tells whether a chain can be read as what the library computes; see `Kernel.joins`.

    The library itself is not asked, as plans are made on the loop, and an answer takes it up to half a millisecond.
    """

    def joins(operation: Any, specs: Sequence[TensorSpec]) -> bool:
        try:
            read(operation, specs)
        except UnsupportedError:
            return False
        return True

    return joins


def product(operation: type[Operation]) -> Callable[[Tell], Tell]:
    """Register what tells the library of a product, with a kernel that computes it, whatever follows."""

    def register(tell: Tell) -> Tell:
        _TELL[operation] = tell
        make = kernel(operation, keeps=True, joins=can(_following))
        make(lambda operation, specs: Weighted(operation, tell(operation, specs)))
        return tell

    return register


@kernel(Followed, keeps=True)
def _followed(operation: Followed, specs: Sequence[TensorSpec]) -> Call:
    told = _TELL[type(operation.main)](operation.main, specs[: operation.count])
    return Weighted(operation.main, told, _following(operation, specs), operation.count)
