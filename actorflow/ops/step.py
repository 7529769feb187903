"""Steps: operations on values that have positions, of which plans, and operations made of several ones, consist."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec


@dataclass(slots=True, unsafe_hash=True)
class Step:
    """An operation on values that have positions: the slots of a frame in a plan, or the values of a chain.

    One that is a part of an operation is never changed.

    Attributes:
        operation: The operation.
        inputs: Positions of what it reads. In a chain these are the inputs of all, followed by the steps before it.
        outputs: Positions of what it writes; empty in a chain, where each step has one value.
        specs: Types of what it writes; empty where the operation infers them from those of the inputs.
        site: The node that shows its state, times and errors: a node of a graph; where an operation stands for
            several ops, the position of one of them.
    """

    operation: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    specs: tuple[TensorSpec, ...] = ()
    site: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.operation.kind.lower()}({', '.join(map(str, self.inputs))})"


class StepError(Exception):
    """Raised by kernels of operations made of steps, from what one of the steps has raised.

    Attributes:
        step: Position of the step.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step} failed")
        self.step = step
