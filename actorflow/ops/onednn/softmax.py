"""Softmax and its logarithm. The gradient is left to others: the library has no fast code of it for all processors."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.ops.cpu.parallel import element_ns
from actorflow.ops.nn.softmax import LogSoftmax, Softmax
from actorflow.ops.onednn.library import DST, FORWARD_INFERENCE, SRC, Handle, libdnnl
from actorflow.ops.onednn.steps import Call, Plain, kernel, steps
from actorflow.spec import TensorSpec

_ACCURATE, _LOG = 0x30000, 0x30001
#: Time of an exponential, in elements that are read or written.
_EXPONENTIAL = 4


@kernel(Softmax)
def _softmax(operation: Softmax, specs: Sequence[TensorSpec]) -> Call:
    return _along(_ACCURATE, operation.axis, specs)


@kernel(LogSoftmax)
def _log_softmax(operation: LogSoftmax, specs: Sequence[TensorSpec]) -> Call:
    return _along(_LOG, operation.axis, specs)


def _along(how: int, axis: int, specs: Sequence[TensorSpec]) -> Call:
    shape, found = specs[0].shape, libdnnl()
    memory = found.memory(shape, steps(shape))

    def describe() -> Handle:
        given = (how, memory, memory, axis % len(shape), found.attributes())
        return found.descriptor("softmax_forward", FORWARD_INFERENCE, *given)

    return Plain(describe, [SRC, DST], element_ns(_EXPONENTIAL * specs[0].size))
