"""Operations on arrays of their own, computed by one call: what each of them costs besides is paid once."""

from __future__ import annotations

from dataclasses import dataclass, field

from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel
from actorflow.spec import TensorSpec


@dataclass(frozen=True)
class Together(Operation):
    """Operations of one kind, none of which reads what another one gives.

    Its inputs are those of all of them, each once; its outputs are theirs, one operation's after the other's.

    Attributes:
        operations: The operations, in order.
        arguments_of: For each of them, the positions of its inputs among all.
        counts: For each of them, the number of its outputs.
        kernels: The kernels that they have by themselves.
    """

    arguments = ("*inputs",)

    operations: tuple[Operation, ...]
    arguments_of: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    kernels: tuple[Kernel, ...] = field(repr=False)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        found: list[TensorSpec] = []
        for operation, arguments in zip(self.operations, self.arguments_of, strict=True):
            found += operation.infer(*[inputs[i] for i in arguments]) or ()
        return tuple(found)

    def outputs_of(self, step: int) -> tuple[int, ...]:
        """Positions of an operation's outputs."""
        begin = sum(self.counts[:step])
        return tuple(range(begin, begin + self.counts[step]))

    def times(self) -> list[int]:
        """Numbers that are to each other as the times of the operations: nothing tells them apart."""
        return [1] * len(self.operations)

    def __str__(self) -> str:
        return f"Together({len(self.operations)} of {self.operations[0].kind})"
