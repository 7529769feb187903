"""The way back through records: gradients of arrays, by the rules of their operations.

What a rule records are operations like any others, so that gradients have gradients, are fused and traced like
everything else.

Complex numbers follow PyTorch's convention: the gradient of a real loss by ``z = a + ib`` is ``dL/da + i dL/db``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from actorflow.array.array import Array
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART
from actorflow.array.record.record import SEVERAL, Record, given, parts_of, site_of
from actorflow.errors import GraphError
from actorflow.ops.backward import Backward
from actorflow.ops.operation import Application
from actorflow.ops.rows import fit


def pull_back(y: Array, seed: Array, wanted: Sequence[Array]) -> list[Array | None]:
    """The gradients of arrays, from that of a result that was computed from them.

    Args:
        y: The result, floating.
        seed: Its gradient, of the same type.
        wanted: What to differentiate by; none of them is computed from another.
    Returns:
        A gradient for each of ``wanted``, of its shape and dtype; None where it is zero.
    Raises:
        GraphError: if the result depends on none of ``wanted`` through floating arrays, or on one by an operation
            without a gradient; it names the operation and the line that recorded it.
    """
    targets = {x._node for x in wanted}
    active = _active(y._node, targets)
    if not active and y._node not in targets:
        raise GraphError("grad: the value does not depend on any argument to differentiate by, through floating arrays")
    backward = Backward({*targets, *active}, _through, _total)
    backward.seed(y._node, seed)
    backward.walk(map(_Step, reversed(active)))
    return [backward.grad(x._node) for x in wanted]


class _Step:
    """A record as the backward pass sees it. The gradient of several results is a dict of those by position."""

    def __init__(self, node: Record) -> None:
        assert node.op is not None
        self.node = node
        self.operation = None if node.op is PART or node.op is TRANSFER else node.op.operation
        self.inputs = [each if isinstance(each, Record) else None for each in node.inputs]
        self.outputs = (node,)


def _active(result: Record, targets: set[Record]) -> list[Record]:
    """The records between that depend on one of ``targets`` through floating arrays, in order."""
    first = min((node.number for node in targets), default=0)
    seen: set[Record] = set()
    stack = [result]
    while stack:
        node = stack.pop()
        if node not in seen and node not in targets and node.number > first:
            seen.add(node)
            stack.extend(each for each in node.inputs if type(each) is Record)
    active = set(targets)
    found = []
    for node in sorted(seen, key=lambda node: node.number):
        if node.dtype.kind in "fcO" and any(each in active for each in node.inputs if type(each) is Record):
            active.add(node)
            found.append(node)
    return found


def _total(node: Record, terms: list[Any]) -> Any:
    grads = [grad for _, grad in terms]
    if node.dtype != SEVERAL:
        return reduce(add, grads)
    parts = dict.fromkeys([i for grad in grads for i in grad])
    return {i: reduce(add, [grad[i] for grad in grads if i in grad]) for i in parts}


def _through(step: _Step, grads: list[Any], wanted: list[bool]) -> Sequence[Any]:
    node, (grad,), op = step.node, grads, step.node.op
    assert op is not None
    if op is PART:
        return [{node.params[0]: grad}]
    if op is TRANSFER:
        return [grad.to_device(node.params[0])]
    operation = op.operation
    if operation is None or not operation.differentiable:
        raise GraphError(f"{operation or op.name} has no gradient; recorded at {site_of(node.origin)}")
    inputs = [each.unheld() if isinstance(each, Record) else given(each, node.evaluator) for each in node.inputs]
    outputs, by_output = [node.unheld()], grads
    if node.dtype == SEVERAL:
        outputs = parts_of(node, operation.infer(*[x.spec for x in inputs]))
        by_output = [grad.get(i) for i in range(len(outputs))]
    found = operation.gradient(Application(inputs, outputs, op.name), by_output, wanted)
    return [None if g is None else fit(g, x) for x, g in zip(inputs, found, strict=True)]
