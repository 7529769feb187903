"""Operations of `actorflow.ops` on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from actorflow.array.namespace.operate import constant
from actorflow.array.record.placement import home_of, transfer
from actorflow.array.record.primitives import primitive_of
from actorflow.array.record.record import Input, Record, record, record_parts
from actorflow.errors import GraphError
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    pass


def applied(operation: Operation, inputs: Sequence[Any]) -> Any:
    """Record an operation of `actorflow.ops`.

    Args:
        operation: The operation.
        inputs: Arrays, at least one; numbers and NumPy arrays beside them are constants.
    Returns:
        Its result; a tuple of them for several.
    Raises:
        GraphError: as its ``infer`` does.
    """
    nodes = _nodes(operation, inputs)
    operation.check_arity(len(nodes))
    specs = _inferred(operation, tuple([TensorSpec(node.shape, node.dtype) for node in nodes]))
    primitive = primitive_of(operation, nodes[0].dtype, len(specs))
    params, evaluator = primitive.new_params(), next(node for node in nodes if type(node) is Record).evaluator
    work = sum([node.size for node in nodes])
    if len(specs) == 1:
        found = [record(primitive, nodes, *specs[0], params, evaluator, work)]
    else:
        found = record_parts(primitive, nodes, params, work)
    if Record.placing is not None and primitive.random:  # which was drawn on the CPU
        place = home_of(next(node for node in nodes if type(node) is Record))
        found = [transfer(x, place) for x in found]
    return found[0] if len(specs) == 1 else tuple(found)


def _nodes(operation: Operation, inputs: Sequence[Any]) -> tuple[Input, ...]:
    kind = Record.array_type
    like = next(each for each in inputs if type(each) is kind).dtype
    return tuple(
        [each._node if type(each) is kind else constant(operation.function_name, each, like) for each in inputs]
    )


def _infer(operation: Operation, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    found = operation.infer(*specs)
    if found is None:
        raise GraphError(f"{operation.kind} does not say what its outputs are: it cannot be applied to arrays")
    return found


_known_inferences = lru_cache(maxsize=4_096)(_infer)


def _inferred(operation: Operation, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    try:
        return _known_inferences(operation, specs)
    except TypeError:  # an array among its parameters
        return _infer(operation, specs)
