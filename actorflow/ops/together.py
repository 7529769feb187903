"""Operations on arrays of their own, computed by one call: what each of them costs besides is paid once."""

from __future__ import annotations

from dataclasses import dataclass, field

from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel
from actorflow.ops.step import Step
from actorflow.spec import TensorSpec


@dataclass(frozen=True)
class Together(Operation):
    """Operations of one kind, none of which reads what another one gives.

    Its inputs are those of all of them, each once; its outputs are theirs, one operation's after the other's.

    Attributes:
        steps: The operations, in order; inputs and outputs are positions among all.
        kernels: The kernels that they have by themselves.
    """

    arguments = ("*inputs",)

    steps: tuple[Step, ...]
    kernels: tuple[Kernel, ...] = field(repr=False)

    @property
    def results(self) -> tuple[int, ...]:
        """For each output, the position of the step that gives it."""
        return tuple([i for i, step in enumerate(self.steps) for _ in step.outputs])

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return tuple(
            [spec for step in self.steps for spec in step.operation.infer(*[inputs[i] for i in step.inputs]) or ()]
        )

    def times(self) -> list[int]:
        """Numbers that are to each other as the times of the operations: nothing tells them apart."""
        return [1] * len(self.steps)

    def __str__(self) -> str:
        return f"Together({len(self.steps)} of {self.steps[0].operation.kind})"
