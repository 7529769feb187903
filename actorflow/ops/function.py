"""Any Python function as an operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actorflow.errors import GraphError
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

__all__ = ["Function"]


@dataclass(frozen=True)
class Function(Operation):
    """A plain or ``async def`` function; it is its own kernel, on the CPU. See `Graph.function`.

    Attributes:
        fn: Called with the inputs' values.
        specs: Types of the outputs; None where the connected blobs say them.
    """

    arguments = ("*inputs",)
    differentiable = False

    fn: Callable[..., Any]
    specs: tuple[TensorSpec, ...] | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise GraphError(f"{self.fn!r} is not a function")
        for spec in self.specs or ():
            if not isinstance(spec, TensorSpec):
                raise GraphError(f"outputs of a function must be TensorSpec, got {spec!r}: af.TensorSpec.of(shape, dtype)")

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function, run as a task on the loop."""
        return inspect.iscoroutinefunction(self.fn) or inspect.iscoroutinefunction(
            getattr(self.fn, "__call__", None)  # noqa: B004  an object with `async def __call__`
        )

    def check_arity(self, count: int) -> None:
        """Any number of inputs is right."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...] | None:
        """The declared types, whatever the inputs are."""
        return self.specs

    def __str__(self) -> str:
        return getattr(self.fn, "__qualname__", None) or repr(self.fn)
