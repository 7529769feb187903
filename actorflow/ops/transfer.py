"""Copies between devices, which plans insert where an edge leads from one device to another."""

from __future__ import annotations

from dataclasses import dataclass

from actorflow.ops.operation import Operation
from actorflow.place import Place
from actorflow.spec import TensorSpec

__all__ = ["Stage", "Transfer"]


@dataclass(frozen=True)
class Transfer(Operation):
    """The same tensor on another device. One of the two is an accelerator, whose lane does it.

    Attributes:
        source: Where the tensor is.
        target: Where it is to be.
    """

    differentiable = False

    source: Place
    target: Place

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        return inputs

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class Stage(Operation):
    """The same tensor in host memory that a device can copy from by itself.

    Attributes:
        device: Which device.
    """

    differentiable = False

    device: Place

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The type of ``x``."""
        return inputs

    def __str__(self) -> str:
        return f"staged for {self.device}"
