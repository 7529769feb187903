"""Functions of each element that take long, and chains with one: GELU, also as exporters write it, and others; softmax.

Functions that are but a pass over memory are left to others, whose bits are NumPy's. Products of images with a number
for each channel of each image, as squeeze-and-excite has them, are here: NumPy goes along the channels alone there, a
short row in each call. The gradient of softmax is not: the library has no fast code of it for all processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from actorflow.ops import elementwise as ew
from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import element_ns
from actorflow.ops.fused import Fused
from actorflow.ops.nn import activation
from actorflow.ops.nn.softmax import LogSoftmax, Softmax
from actorflow.ops.onednn.following import LONG, MULTIPLY, Eltwise, Following, function_of
from actorflow.ops.onednn.library import DST, FORWARD_INFERENCE, SRC, SRC_1, Handle, UnsupportedError, libdnnl
from actorflow.ops.onednn.steps import Call, Indirect, Plain, images, kernel, steps
from actorflow.ops.onednn.weighted import can
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


def _function(operation: Any, specs: Sequence[TensorSpec]) -> Call:
    return _of(function_of(operation), specs)


def _of(function: Eltwise | None, specs: Sequence[TensorSpec]) -> Call:
    if function is None:
        raise UnsupportedError("no such function")

    x = specs[0]

    def describe() -> Handle:
        """Rows and columns of an array, whatever its number of axes."""
        found = libdnnl()
        columns = x.shape[-1] if x.shape else 1
        memory = found.memory([x.size // columns, columns], [columns, 1])
        how = (function.kind, memory, memory, function.alpha, function.beta, found.attributes())
        return found.descriptor("eltwise_forward", FORWARD_INFERENCE, *how)

    return Plain(describe, [SRC, DST], element_ns(_FUNCTION * x.size))


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


def _one(operation: Fused, specs: Sequence[TensorSpec]) -> Eltwise:
    """A chain as one function that takes long: the library has no code for the processor where something follows it."""
    found = Following(operation, specs, folds=False).post_ops
    if len(found) != 1 or not isinstance(found[0], Eltwise) or found[0].kind not in LONG:
        raise UnsupportedError("no function that takes long, or not alone")
    return found[0]


@kernel(Fused, supports=_has_long, joins=can(_one))
def _chain(operation: Fused, specs: Sequence[TensorSpec]) -> Call:
    return _of(_one(operation, specs), specs)


#: The library's numbers of the accurate softmax, and of its logarithm.
_SOFTMAX: dict[type[Operation], int] = {Softmax: 0x30000, LogSoftmax: 0x30001}


def _softmax(operation: Any, specs: Sequence[TensorSpec]) -> Call:
    shape, found = specs[0].shape, libdnnl()
    memory = found.memory(shape, steps(shape))

    def describe() -> Handle:
        given = (_SOFTMAX[type(operation)], memory, memory, operation.axis % len(shape), found.attributes())
        return found.descriptor("softmax_forward", FORWARD_INFERENCE, *given)

    return Plain(describe, [SRC, DST], element_ns(_FUNCTION * specs[0].size))


for _kind in _SOFTMAX:
    kernel(_kind)(_softmax)


def _is_of_channels(_: Operation, specs: Sequence[TensorSpec]) -> bool:
    whole, other = specs if specs[0].size >= specs[1].size else specs[::-1]
    return len(whole.shape) > 2 and other.shape == (whole.shape[0], *[1] * (len(whole.shape) - 2), whole.shape[-1])


@kernel(ew.Multiply, inplace=True, fits=_is_of_channels)
def _multiply(_: Operation, specs: Sequence[TensorSpec]) -> Call:
    is_first = specs[0].size >= specs[1].size
    whole = specs[0 if is_first else 1]

    def describe() -> Handle:
        full, one = (images(spec.shape) for spec in (specs if is_first else specs[::-1]))
        return libdnnl().descriptor("binary", MULTIPLY, full, one, full, libdnnl().attributes())

    arguments = [SRC, SRC_1] if is_first else [SRC_1, SRC]
    return Plain(describe, [*arguments, DST], element_ns(2 * whole.size))
