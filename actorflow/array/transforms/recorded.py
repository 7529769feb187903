"""Operations on arrays that `actorflow.ops` does not have, as operations of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.engine.evaluator import Evaluator
from actorflow.array.record.node import Node, given, tracing
from actorflow.array.record.primitives import Primitive, Value
from actorflow.errors import ShapeError
from actorflow.ops.operation import Operation
from actorflow.ops.registry import kernel
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.array import Array
    from actorflow.graph.nodes import Blob, Op


@dataclass(frozen=True, eq=False, slots=True)
class Recorded(Operation):
    """An operation on arrays, with its parameters; computed on the CPU, wherever its arrays live.

    Its gradient is the one that `actorflow.array.transforms.derivatives` has for it, if there is one.

    Attributes:
        primitive: The operation.
        params: Its parameters.
        fixed: For each input of the operation, its value if it is a constant; None for a blob.
        specs: Types of the results.
    """

    arguments = ("*inputs",)
    takes_complex = True

    primitive: Primitive
    params: tuple[Any, ...]
    fixed: tuple[Value | None, ...]
    specs: tuple[TensorSpec, ...]

    @property
    def differentiable(self) -> bool:  # type: ignore[override]
        """Whether there is a rule."""
        from actorflow.array.transforms.derivatives import rule_of  # rules are array code

        return rule_of(self.primitive.name) is not None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The types that were recorded."""
        return self.specs

    def arranged(self, values: Sequence[Any]) -> list[Any]:
        """Values of the inputs with the constants between them."""
        rest = iter(values)
        return [next(rest) if constant is None else constant for constant in self.fixed]

    def gradient(self, op: Op, grads: Sequence[Blob | None], wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """What the rule records for arrays without values, in the graph."""
        from actorflow.array.transforms.derivatives import Application, fit, rule_of
        from actorflow.array.transforms.translation import translate_all

        known: dict[Node, Any] = {}
        evaluator = Evaluator(dry_run=True)

        def stand_in(blob: Blob) -> Array:
            node = Node(None, (), blob.shape, blob.dtype, (), evaluator)
            known[node] = blob
            return node.show()

        with tracing(evaluator):
            reads = [stand_in(blob) for blob in op.inputs]
            outputs = tuple([stand_in(blob) for blob in op.outputs])
            slopes = tuple([None if g is None else stand_in(g) for g in grads])
            single = len(self.specs) == 1
            inputs = [given(each, evaluator) if isinstance(each, np.ndarray) else each for each in self.arranged(reads)]
            application = Application(tuple(inputs), self.params, outputs[0] if single else outputs)
            derive = rule_of(self.primitive.name)
            assert derive is not None
            derived = derive(application, slopes[0] if single else slopes)
            found = [g for g, constant in zip(derived, self.fixed, strict=True) if constant is None]
            fitted = [
                fit(g, x._node) if g is not None and want else None
                for g, x, want in zip(found, reads, wanted, strict=True)
            ]
        results = [g._node for g in fitted if g is not None]
        translate_all(op.graph.root, results, known, first=next(iter(known)).number)
        return [None if g is None else known[g._node] for g in fitted]

    def __str__(self) -> str:
        return self.primitive.name


@dataclass(frozen=True, eq=False, slots=True)
class Constant(Operation):
    """The same numbers in each run; nothing that could be trained.

    Attributes:
        array: The numbers.
    """

    arguments = ()
    differentiable = False

    array: Value

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of the numbers."""
        return (TensorSpec(self.array.shape, self.array.dtype),)

    def __str__(self) -> str:
        return "Constant"


def evaluate(op: Primitive, arguments: Sequence[Any], params: tuple[Any, ...], outputs: Sequence[Value]) -> None:
    """Compute an operation on values.

    Args:
        op: The operation.
        arguments: Values of its inputs.
        params: Its parameters.
        outputs: Arrays for its results, which it writes.
    Raises:
        ShapeError: if a result has another shape.
    """
    with np.errstate(all="ignore"):
        if op.elementwise or op.into:
            op.compute(*arguments, *params, out=outputs[0])
            return
        found = op.compute(*arguments, *params, owned=False) if op.owns else op.compute(*arguments, *params)
    for result, output in zip(found if type(found) is tuple else (found,), outputs, strict=True):
        if np.shape(result) != output.shape:
            raise ShapeError(f"{op.name}: recorded as shape {output.shape}, computed as {np.shape(result)}")
        np.copyto(output, result, casting="unsafe")


@kernel(Constant)
def _copy(operation: Constant, _inputs: list[Value], outputs: list[Value]) -> None:
    np.copyto(outputs[0], operation.array)


@kernel(Recorded)
def _compute(operation: Recorded, inputs: list[Value], outputs: list[Value]) -> None:
    evaluate(operation.primitive, operation.arranged(inputs), operation.params, outputs)
