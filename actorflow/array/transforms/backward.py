"""The way back through records: gradients of arrays, by the rules of their operations.

What a rule records are operations like any others, so that gradients have gradients, are fused and traced like
everything else.

Complex numbers follow PyTorch's convention: the gradient of a real loss by ``z = a + ib`` is ``dL/da + i dL/db``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actorflow.array.array import Array
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART
from actorflow.array.record.record import SEVERAL, Record, given, parts_of, site_of
from actorflow.errors import GraphError
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
    grads: dict[Record, Any] = {y._node: seed}
    active = _active(y._node, targets)
    if not active and y._node not in targets:
        raise GraphError("grad: the value does not depend on any argument to differentiate by, through floating arrays")
    reached = {*targets, *active}
    for node in reversed(active):
        if node in grads:
            for each, g in _through(node, grads.pop(node), reached):
                _add(grads, each, g)
    return [grads.get(x._node) for x in wanted]


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


def _add(grads: dict[Record, Any], node: Record, grad: Any) -> None:
    before = grads.get(node)
    if before is None:
        grads[node] = grad
    elif isinstance(grad, dict):
        for i, g in grad.items():
            before[i] = before[i] + g if i in before else g
    else:
        grads[node] = before + grad


def _through(node: Record, grad: Any, active: set[Record]) -> list[tuple[Record, Any]]:
    op = node.op
    assert op is not None
    if op is PART or op is TRANSFER:
        [read] = node.inputs
        assert type(read) is Record
        return [(read, {node.params[0]: grad} if op is PART else grad.to_device(node.params[0]))]
    operation = op.operation
    if operation is None or not operation.differentiable:
        raise GraphError(f"{operation or op.name} has no gradient; recorded at {site_of(node.origin)}")
    inputs = [each.unheld() if isinstance(each, Record) else given(each, node.evaluator) for each in node.inputs]
    wanted = [
        isinstance(each, Record) and each in active and not operation.is_constant(i)
        for i, each in enumerate(node.inputs)
    ]
    outputs, grads = [node.unheld()], [grad]
    if node.dtype == SEVERAL:
        outputs = parts_of(node, operation.infer(*[x.spec for x in inputs]))
        grads = [grad.get(i) for i in range(len(outputs))]
    found = operation.gradient(Application(inputs, outputs, op.name), grads, wanted)
    return [
        (each, fit(g, x))
        for each, x, g, want in zip(node.inputs, inputs, found, wanted, strict=True)
        if g is not None and want and isinstance(each, Record)
    ]
