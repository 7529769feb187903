"""The table of operators: how each is lowered to operations, one row for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from actorflow.onnx.refusal import DependsOnData, Refused
from actorflow.onnx.values import Order, Value, common_order, in_order, usual
from actorflow.spec import Length, TensorSpec

if TYPE_CHECKING:
    from onnx import NodeProto

    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob

#: A lowering gives the value of each output.
Lowered = Value | Sequence[Value | None]
Lower = Callable[["Node"], Lowered]
_F = TypeVar("_F", bound=Lower)
#: Parameters of a node: as many as outputs or axes, at most.
_MOST_NUMBERS = 1 << 16


class Row(NamedTuple):
    """An operator.

    Attributes:
        operator: Its name, after its domain and a colon where that is not ONNX's own.
        lower: Lowers a node.
        limits: Refused forms of it, for the documentation.
    """

    operator: str
    lower: Lower
    limits: str


TABLE: dict[str, Row] = {}


def row(operator: str, lower: Lower, limits: str = "") -> None:
    """Enter an operator in the table."""
    assert operator not in TABLE, operator
    TABLE[operator] = Row(operator, lower, limits)


def lowers(*operators: str, limits: str = "") -> Callable[[_F], _F]:
    """Decorate the function that lowers these operators."""

    def entered(lower: _F) -> _F:
        for operator in operators:
            row(operator, lower, limits)
        return lower

    return entered


class Node:
    """A node of the file, as its lowering sees it.

    Attributes:
        graph: Where its ops are made.
        operator: Name of its operator.
        inputs: Values of its inputs; None for those that are left out.
        outputs: Names of its outputs, empty for those that are not asked for.
        opset: Version of the operators.
        alone: Whether each value, by its position among the inputs, is read by this node alone.
    """

    def __init__(
        self,
        graph: Graph,
        proto: NodeProto,
        attributes: dict[str, Any],
        inputs: Sequence[Value | None],
        opset: int,
        alone: Sequence[bool],
        make: Callable[[Callable[[], tuple[Order, Blob]]], Callable[[], tuple[Order, Blob]]],
    ) -> None:
        self.graph = graph
        self.proto = proto
        self.operator = proto.op_type
        self.attributes = attributes
        self.inputs = inputs
        self.outputs = list(proto.output)
        self.opset = opset
        self.alone = alone
        self.deferred = make

    # -- what it is given ----------------------------------------------------------------------------------------------

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute: a number, a list of numbers, text or an array."""
        return self.attributes.get(name, default)

    def has(self, position: int) -> bool:
        """Whether an input is given."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def value(self, position: int) -> Value:
        """The value of an input."""
        value = self.inputs[position] if position < len(self.inputs) else None
        if value is None:
            raise Refused(f"input {position} is missing")
        return value

    @property
    def x(self) -> Value:
        """The value of the first input."""
        return self.value(0)

    def wants(self, position: int) -> bool:
        """Whether an output is asked for."""
        return position < len(self.outputs) and bool(self.outputs[position])

    def array(self, position: int, what: str) -> Any:
        """The array that an input always is.

        Raises:
            Refused: if it is not constant.
        """
        value = self.value(position)
        if value.known is None:
            raise DependsOnData(f"{what} must be constant, and depends on data here")
        return value.known

    def numbers(self, position: int, what: str) -> list[Any]:
        """The integers that an input is: numbers, and lengths that follow from open axes.

        Raises:
            Refused: if they depend on data.
        """
        found = self.value(position).numbers
        if found is None:
            raise DependsOnData(
                f"{what} must be constant, or follow from the lengths of axes, and depends on data here"
            )
        if found.size > _MOST_NUMBERS:
            raise Refused(f"{what} must be at most {_MOST_NUMBERS} numbers, got {found.size}")
        return [each if isinstance(each, Length) else int(each) for each in found.reshape(-1).tolist()]

    def axis(self, rank: int, default: int = 0, name: str = "axis") -> int:
        """The attribute ``axis``, counted from the front."""
        return within(self.attribute(name, default), rank)

    # -- what it gives -------------------------------------------------------------------------------------------------

    def usual(self, blob: Blob) -> Value:
        """The value that a blob holds in the order of the file."""
        return in_order(self.graph, usual(len(blob.shape)), blob)

    def ordered(self, order: Order, blob: Blob) -> Value:
        """The value that a blob holds with its axes in an order."""
        return in_order(self.graph, order, blob)

    def constant(self, array: Any) -> Value:
        """The value of an array."""
        array = np.asarray(array)
        return Value(self.graph, TensorSpec(array.shape, array.dtype), known=array)

    def aligned(self, *values: Value) -> tuple[Order, list[Blob]]:
        """Blobs that broadcast with each other, in the order of axes that needs the fewest transpositions."""
        rank = max(value.rank for value in values)
        order = common_order(values, rank)
        blobs = [value.broadcastable(order) for value in values]
        if rank and all(not len(blob.shape) for blob in blobs):  # constants of one element: the result has their axes
            i = next(i for i, value in enumerate(values) if value.rank == rank)
            blobs[i] = values[i].blob(order)
        return order, blobs


def within(axis: int, rank: int) -> int:
    """An axis, counted from the front.

    Raises:
        Refused: if there is none.
    """
    if not -rank <= axis < max(rank, 1):
        raise Refused(f"axis {axis} is not one of {rank}")
    return axis % rank if rank else 0
