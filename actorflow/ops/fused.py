"""Several elementwise operations in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.activation import Relu, ReluDown, Sigmoid, SigmoidDown, Tanh, TanhDown
from actorflow.ops.arithmetic import Divide, Maximum, Minimum, Multiply, Scale, Subtract, Sum
from actorflow.ops.basic import Fill
from actorflow.ops.compare import (
    Equal,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    NotEqual,
    Where,
)
from actorflow.ops.convert import Cast
from actorflow.ops.operation import Operation
from actorflow.ops.powers import Exp, Log, Power, Reciprocal, Sqrt, Square
from actorflow.ops.unary import Absolute, Ceil, Clip, Floor, Negative, Round, Sign
from actorflow.spec import TensorSpec

__all__ = ["Fused", "FusedStep", "may_fuse"]

#: What can be a step, and the kinds of its first input's dtype for which all devices compute the same.
_KINDS: dict[type[Operation], str] = {
    **dict.fromkeys((Ceil, Divide, Exp, Floor, Log, Power, Reciprocal, Round, Scale, Sqrt), "f"),
    **dict.fromkeys((Relu, ReluDown, Sigmoid, SigmoidDown, Tanh, TanhDown), "f"),
    **dict.fromkeys((Multiply, Square, Subtract, Sum), "iuf"),
    **dict.fromkeys((Absolute, Clip, Maximum, Minimum, Sign), "iuf"),
    **dict.fromkeys((Greater, GreaterEqual, Less, LessEqual), "iuf"),
    **dict.fromkeys((Equal, NotEqual), "biuf"),
    **dict.fromkeys((LogicalAnd, LogicalNot, LogicalOr, LogicalXor, Where), "b"),
    Negative: "if",
    Cast: "biuf",
    Fill: "",
}
_HALF = np.dtype(np.float16)


class FusedStep(NamedTuple):
    """One operation of several.

    Attributes:
        operation: What is computed; see `may_fuse`.
        arguments: Positions of its inputs among the inputs of all, followed by the steps before it.
    """

    operation: Operation
    arguments: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.operation.kind.lower()}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class Fused(Operation):
    """Elementwise operations, each element taken through all of them at once.

    The values are those of the operations one after the other, each rounded to its dtype. A step that only constants
    lead to (`Fill`) is one number, of shape ``()``.

    Source: the chains of `actorflow.array`, which makes these; as ``cupy.fuse`` and numexpr do.

    Attributes:
        steps: The operations, in order.
        results: Positions of the steps whose values are the outputs; these have the shape of all inputs together.
    """

    arguments = ("*inputs",)

    steps: tuple[FusedStep, ...]
    results: tuple[int, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The types of ``results``.

        Raises:
            GraphError: if an operation cannot be a step.
            ShapeError: if a result does not have the shape of all inputs together.
        """
        specs = self.specs(inputs)
        found = tuple([specs[len(inputs) + i] for i in self.results])
        whole = np.broadcast_shapes(*[spec.shape for spec in inputs])
        for i, spec in zip(self.results, found, strict=True):
            if spec.shape != whole:
                raise ShapeError(f"Fused: step {i} must have the shape {whole} of all inputs together, got {spec}")
        return found

    def specs(self, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The types of the inputs, then of all steps.

        Raises:
            GraphError: if an operation cannot be a step.
        """
        specs = list(inputs)
        for i, (operation, arguments) in enumerate(self.steps):
            taken = [specs[position] for position in arguments]
            (result,) = operation.infer(*taken) or (None,)
            if result is None or not may_fuse(operation, taken, result):
                raise GraphError(f"Fused: step {i}, {operation} of {', '.join(map(str, taken))}, cannot be fused")
            specs.append(result)
        return specs

    def __str__(self) -> str:
        return f"Fused({', '.join(map(str, self.steps))})"


def may_fuse(operation: Operation, inputs: Sequence[TensorSpec], output: TensorSpec) -> bool:
    """Whether an operation can be a step of `Fused`: one formula for each element, the same on all devices."""
    kinds = _KINDS.get(type(operation))
    if kinds is None:
        return False
    if isinstance(operation, Fill):
        return output.shape == () and output.dtype.kind in "biuf"
    if isinstance(operation, Cast) and _HALF in (inputs[0].dtype, output.dtype):
        return False  # devices round by way of float32
    return all(spec.dtype.kind in "biuf" and spec.dtype.itemsize <= 8 for spec in (*inputs, output)) and (
        inputs[0].dtype.kind in kinds
    )
