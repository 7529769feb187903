"""Functions of each element that take long, and chains with one: GELU, also as exporters write it, and others.

What is but a pass over memory is left to others, whose bits are NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from actorflow.ops import elementwise as ew
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import element_ns, even_cuts
from actorflow.ops.fused import Fused
from actorflow.ops.nn import activation
from actorflow.ops.onednn.following import LONG, Eltwise, Following, function_of
from actorflow.ops.onednn.library import DST, FORWARD_INFERENCE, SRC, Handle, UnsupportedError, libdnnl
from actorflow.ops.onednn.steps import (
    Call,
    Compute,
    Divisible,
    Indirect,
    Piece,
    Plain,
    kernel,
    part_of,
    plain,
)
from actorflow.ops.onednn.weighted import can, columns_of, operands_of, post_ops_of
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

#: Time of a function, in elements that are read or written.
_FUNCTION = 4
_KINDS: tuple[type[Operation], ...] = (
    activation.Elu,
    activation.GeluTanh,
    activation.Sigmoid,
    activation.Silu,
    activation.Softplus,
)


def _described(function: Eltwise, x: TensorSpec, post_ops: Sequence[tuple[Any, ...]] = ()) -> Handle:
    found, memory = libdnnl(), _matrix(x)
    how = (function.kind, memory, memory, function.alpha, function.beta, found.attributes(post_ops))
    return found.descriptor("eltwise_forward", FORWARD_INFERENCE, *how)


def _matrix(x: TensorSpec) -> Handle:
    """Rows and columns of an array, whatever its number of axes."""
    columns = x.shape[-1] if x.shape else 1
    return libdnnl().memory([x.size // columns, columns], [columns, 1])


def _function(operation: Any, specs: Sequence[TensorSpec]) -> Call:
    function = function_of(operation)
    if function is None:
        raise UnsupportedError(str(operation))
    work_ns = element_ns(_FUNCTION * specs[0].size) if specs[0].shape else 0.0
    return Plain(lambda specs: _described(function, specs[0]), specs, [SRC, DST], work_ns)


for _kind in _KINDS:
    kernel(_kind, inplace=True)(_function)


@kernel(activation.Gelu, inplace=True)
def _gelu(operation: Operation, specs: Sequence[TensorSpec]) -> Call:
    """The library's function multiplies minus infinity by 0, which is NaN."""
    compute = _function(operation, specs)

    def call(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
        (x,) = inputs
        zero = None if x.min() > -np.inf else np.isneginf(x)  # NaN is the least, too
        compute(operation, inputs, outputs)
        if zero is not None:
            np.copyto(outputs[0], 0.0, where=zero)

    return Indirect(call)


def _has_long(operation: Fused) -> bool:
    """Return whether a chain has a function that takes long, and no reduction."""
    found = [function_of(step.operation) for step in operation.steps]
    return any(type(step.operation) is ew.Erf for step in operation.steps) or any(
        each is not None and each.kind in LONG for each in found
    )


def _behind_nothing(operation: Fused, specs: Sequence[TensorSpec]) -> Following:
    """A chain as a function of its first input and post-ops."""
    following = Following(operation, specs, folds=False)
    is_long = any(isinstance(each, Eltwise) and each.kind in LONG for each in following.post_ops)
    if not is_long or not isinstance(following.post_ops[0], Eltwise):
        raise UnsupportedError("nothing that takes long")
    return following


def _described_chain(following: Following, x: TensorSpec) -> Handle:
    function, *post_ops = following.post_ops
    assert isinstance(function, Eltwise)
    return _described(function, x, post_ops_of(post_ops, following, _matrix(x), 2, x.shape[-1]))


def _described_by(operation: Fused, specs: Sequence[TensorSpec]) -> Handle:
    return _described_chain(_behind_nothing(operation, specs), specs[0])


@kernel(Fused, supports=_has_long, joins=can(_described_by))
def _chain(operation: Fused, specs: Sequence[TensorSpec]) -> Call:
    return _Chain(specs, _behind_nothing(operation, specs))


class _Chain:
    """A chain of functions of one input, and of what has no rows of its own."""

    def __init__(self, specs: Sequence[TensorSpec], following: Following) -> None:
        self._following, self._static = following, following.static
        self._columns = specs[0].shape[-1]
        static, rows = operands_of(following, first=1)
        self._operands, self._rows = [position for _, position in static], [position for _, position in rows]
        arguments = [SRC, *[argument for argument, _ in static], DST, *[argument for argument, _ in rows]]

        def part(x: TensorSpec) -> Compute:
            return Compute(_described_chain(following, x), arguments)

        def pieces(count: int) -> list[Piece]:
            cuts = even_cuts(specs[0].shape[0], count)
            places = [[(cut,), *[None] * len(static), (cut,), *[(cut,)] * len(rows)] for cut in cuts]
            return [(part(part_of(specs[0], 0, cut)), own) for cut, own in zip(cuts, places, strict=True)]

        work_ns = element_ns(_FUNCTION * specs[0].size) if len(specs[0].shape) > 1 else 0.0
        self._compute = Divisible(part(specs[0]), 1 + len(static), work_ns, pieces)
        self.direct = None if static else self._compute.directly([0, -1, *self._rows])

    def __call__(self, operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
        values = self._following.values({i: inputs[i] for i in self._static}) if self._operands else {}
        static = [columns_of(values[position], self._columns) for position in self._operands]
        self._compute(plain(inputs[0]), *static, outputs[0], *[plain(inputs[i]) for i in self._rows])
