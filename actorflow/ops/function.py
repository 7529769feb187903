"""Any Python function as an operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from actorflow.errors import GraphError
from actorflow.ops.callables import check_runs, is_async_function, name_of
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Function(Operation):
    """A plain or ``async def`` function; it is its own kernel, on the CPU. See `Graph.function`.

    Attributes:
        fn: Called with the inputs' values.
        specs: Types of the outputs; None where the connected blobs say them.
        concurrency: How many frames may be in an async function at once; None for as many as there are.
    """

    arguments = ("*inputs",)
    differentiable = False

    fn: Callable[..., Any]
    specs: tuple[TensorSpec, ...] | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise GraphError(f"{self.fn!r} is not a function")
        check_runs(self.fn, "an op")
        if self.concurrency is not None and self.concurrency < 1:
            raise GraphError(f"concurrency must be at least 1, got {self.concurrency}")
        if self.concurrency is not None and self.concurrency > 1 and not self.is_async:
            raise GraphError(f"{self} is no async function: its lane runs one call at a time, not {self.concurrency}")
        if self.specs is not None:
            object.__setattr__(self, "specs", checked_specs(self.specs))

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function, run as a task on the loop."""
        return is_async_function(self.fn)

    def check_arity(self, count: int) -> None:
        """Any number of inputs is right."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...] | None:
        """The declared types, whatever the inputs are."""
        return self.specs

    def __str__(self) -> str:
        return name_of(self.fn)


def checked_specs(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Types of a function's outputs, normalized: one object for all functions of a type.

    Raises:
        GraphError, ShapeError, DTypeError: if they are no types.
    """
    for spec in specs:
        if not isinstance(spec, TensorSpec):
            raise GraphError(f"outputs of a function must be TensorSpec, got {spec!r}: af.TensorSpec.of(shape, dtype)")
    try:
        return _shared(specs)
    except TypeError:  # made without a check, of parts that have no hash
        return _normalized(specs)


def _normalized(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple([TensorSpec.of(spec.shape, spec.dtype) for spec in specs])


_shared = lru_cache(maxsize=1024)(_normalized)
