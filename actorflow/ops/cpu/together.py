"""Several operations by one call: one after the other."""

from __future__ import annotations

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.fused import StepError
from actorflow.ops.registry import kernel
from actorflow.ops.together import Together


@kernel(Together)
def together(operation: Together, inputs: list[Array], outputs: list[Array]) -> None:
    """Compute each operation by its own kernel."""
    begin = 0
    each = zip(operation.operations, operation.arguments_of, operation.counts, operation.kernels, strict=True)
    for step, (own, arguments, count, found) in enumerate(each):
        try:
            found.function(own, [inputs[i] for i in arguments], outputs[begin : begin + count])
        except Exception as error:
            raise StepError(step) from error
        begin += count
