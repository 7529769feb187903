"""Gradients of operations that have kernels of their own and are compositions of others, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

from actorflow.ops.backward import Backward
from actorflow.ops.elementwise import plus
from actorflow.ops.operation import Application, Grads, Operation, apply, inferred
from actorflow.ops.operators import Operators
from actorflow.ops.rows import with_constants
from actorflow.spec import TensorSpec


def composed_gradient(
    formula: Callable[..., Any], op: Application, grads: Grads, wanted: Sequence[bool]
) -> Sequence[Any]:
    """The gradient of an operation, as that of the composition that gives the same outputs of its inputs.

    Steps that the gradient does not need are not applied.

    Args:
        formula: Makes the outputs from the inputs alone, with functions and operators for blobs and arrays; None for an
            output that no gradient is known of.
        op, grads, wanted: As of `Operation.gradient`.
    """
    steps = _Steps()
    inputs = [steps.given(x) for x in op.inputs]
    outputs = formula(*inputs)
    active = {x for x, asked in zip(inputs, wanted, strict=True) if asked}
    forward = [step for step in steps.all if step.reach(active)]

    def through(step: _Step, grads: list[Any], asked: list[bool]) -> Sequence[Any]:
        assert step.operation is not None
        return step.operation.gradient(Application(step.inputs, step.outputs, op.name), grads, asked)

    backward = Backward(active, through, lambda _, terms: plus(*[g for _, g in terms]))
    for y, g in zip(outputs if isinstance(outputs, list | tuple) else [outputs], grads, strict=True):
        if g is not None and y is not None:
            backward.seed(y, steps.given(g))
    backward.walk(reversed(forward))
    by_inputs: list[Any] = [backward.grad(x) if x in active else None for x in inputs]
    return steps.apply(by_inputs)


class _Symbol(Operators):
    """An input of a composition, or a result of a step."""

    __slots__ = ("spec", "steps")

    def __init__(self, spec: TensorSpec, steps: _Steps) -> None:
        self.spec, self.steps = spec, steps

    def apply_operation(self, operation: Operation, inputs: Sequence[Any], name: str | None) -> Any:
        symbols: Sequence[Any] = with_constants(operation, inputs)
        specs = inferred(operation, [x.spec for x in symbols])
        assert specs is not None
        outputs = self.steps.add(partial(apply, operation), symbols, specs, operation)
        return outputs if len(outputs) > 1 else outputs[0]

    def constant_like(self, value: Any, shape: tuple[int, ...] = ()) -> Any:
        like = next((x for x in self.steps.values if x.dtype == self.dtype), self)
        make = methodcaller("constant_like", value, shape)
        return self.steps.add(make, [like], [TensorSpec(shape, self.dtype)])[0]

    def literal(self, value: Any) -> Any:
        like, spec = next(iter(self.steps.values)), getattr(value, "spec", None)  # numbers of open lengths have one
        return self.steps.add(methodcaller("literal", value), [like], [spec or TensorSpec(value.shape, value.dtype)])[0]


class _Step(NamedTuple):
    """An operation of a composition, or a constant."""

    make: Callable[..., Any]  # gives the values of the outputs from those of the inputs
    inputs: Sequence[_Symbol]
    outputs: Sequence[_Symbol]
    operation: Operation | None  # None for a constant

    def reach(self, active: set[_Symbol]) -> bool:
        """Return whether the outputs change with active inputs; then they are active, too."""
        kind = self.operation
        if kind is None or not kind.differentiable:
            return False
        if any(x in active and not kind.is_constant(i) for i, x in enumerate(self.inputs)):
            active.update(y for y in self.outputs if y.dtype.kind in "fcV")
        return any(y in active for y in self.outputs)


class _Steps:
    """The steps of a composition, each after the steps that it needs, and the values of symbols that are known."""

    def __init__(self) -> None:
        self.all: list[_Step] = []
        self.values: dict[_Symbol, Any] = {}

    def given(self, value: Any) -> _Symbol:
        symbol = _Symbol(value.spec, self)
        self.values[symbol] = value
        return symbol

    def add(
        self,
        make: Callable[..., Any],
        inputs: Sequence[_Symbol],
        specs: Sequence[TensorSpec],
        operation: Operation | None = None,
    ) -> Sequence[_Symbol]:
        step = _Step(make, inputs, [_Symbol(spec, self) for spec in specs], operation)
        self.all.append(step)
        return step.outputs

    def apply(self, results: Sequence[_Symbol | None]) -> list[Any]:
        """Apply the steps that results need."""
        needed, kept = set(results), []
        for step in reversed(self.all):
            if not needed.isdisjoint(step.outputs):
                needed.update(step.inputs)
                kept.append(step)
        for step in reversed(kept):
            made = step.make(*[self.values[x] for x in step.inputs])
            outputs = made if isinstance(made, list | tuple) else [made]
            self.values.update(zip(step.outputs, outputs, strict=True))
        return [None if x is None else self.values[x] for x in results]
