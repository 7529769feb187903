"""Several operations by one call: one after the other."""

from __future__ import annotations

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.registry import kernel
from actorflow.ops.step import StepError
from actorflow.ops.together import Together


@kernel(Together)
def together(operation: Together, inputs: list[Array], outputs: list[Array]) -> None:
    """Compute each operation by its own kernel."""
    for position, (step, own) in enumerate(zip(operation.steps, operation.kernels, strict=True)):
        try:
            own.function(step.operation, [inputs[i] for i in step.inputs], [outputs[i] for i in step.outputs])
        except Exception as error:
            raise StepError(position) from error
