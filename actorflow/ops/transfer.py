"""Copies between devices and messages between ranks, which plans insert where an edge leads from one to another."""

from __future__ import annotations

from dataclasses import dataclass

from actorflow.ops.operation import Operation
from actorflow.place import Place
from actorflow.spec import TensorSpec


class _Moved(Operation):
    """The same tensor elsewhere."""

    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return inputs


@dataclass(frozen=True)
class Transfer(_Moved):
    """The same tensor on another device. One of the two is an accelerator, whose lane does it.

    Attributes:
        source: Place of the tensor.
        target: Place that it is copied to.
    """

    source: Place
    target: Place

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class Stage(_Moved):
    """The same tensor in host memory that a device can copy from by itself.

    Attributes:
        device: Place of that device.
    """

    device: Place

    def __str__(self) -> str:
        return f"staged for {self.device}"


@dataclass(frozen=True)
class Send(Operation):
    """The tensor goes to another rank.

    Attributes:
        target: That rank.
        edge: Name of the edge; the other rank's `Receive` has the same.
    """

    differentiable = False

    target: int
    edge: str

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return ()

    def __str__(self) -> str:
        return f"to rank {self.target}"


@dataclass(frozen=True)
class Receive(Operation):
    """The tensor that another rank sends.

    Attributes:
        source: That rank.
        edge: Name of the edge; the other rank's `Send` has the same.
        spec: Type of the tensor.
    """

    arguments = ()
    differentiable = False

    source: int
    edge: str
    spec: TensorSpec

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (self.spec,)

    def __str__(self) -> str:
        return f"from rank {self.source}"
