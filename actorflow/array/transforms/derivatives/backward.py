"""Back from results to what they were computed from, record by record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.record.node import Node, given, record, site_of
from actorflow.array.record.primitives import PART
from actorflow.array.transforms.derivatives.lifted import pull_back_lifted
from actorflow.array.transforms.derivatives.rules import Application, fit, outputs_of, rule_of
from actorflow.array.transforms.lifting import GraphOperation
from actorflow.errors import GraphError

if TYPE_CHECKING:
    from actorflow.array.array import Array


def pull_back(seeds: Sequence[tuple[Array, Array]], wanted: Sequence[Array]) -> list[Array | None]:
    """The gradients of arrays for those of what was computed from them.

    Args:
        seeds: Results, floating, with their gradients, of the same types.
        wanted: What to differentiate by; none of them is computed from another.
    Returns:
        A gradient for each of ``wanted``, of its shape and dtype; None where it is zero.
    Raises:
        GraphError: if a result depends on one of ``wanted`` by an operation without a gradient; it names the
            operation and the line that recorded it.
    """
    targets = {x._node for x in wanted}
    grads: dict[Node, Any] = {}
    for y, g in seeds:
        _add(grads, y._node, g)
    for node in reversed(_active([y._node for y, _ in seeds], targets)):
        if node in grads:
            for each, g in _through(node, grads.pop(node)):
                if each in targets or each.op is not None:
                    _add(grads, each, g)
    return [grads.get(x._node) for x in wanted]


def pulled_back(function: Any, arrays: Sequence[Array], grad: Array) -> list[Array | None]:
    """The gradients of arrays for that of a function of them: rules of operations that are made of others."""
    return pull_back([(function(*arrays), grad)], arrays)


def depends(results: Sequence[Array], wanted: Sequence[Array]) -> set[Node]:
    """Which of ``wanted`` any of the results depends on, through floating arrays."""
    targets = {x._node for x in wanted}
    found = {y._node for y in results} & targets
    for node in _active([y._node for y in results], targets):
        found.update(each for each in node.inputs if type(each) is Node and each in targets)
    return found


def _active(results: Iterable[Node], targets: set[Node]) -> list[Node]:
    """The records between that depend on one of ``targets`` through floating arrays, in order."""
    first = min((node.number for node in targets), default=0)
    seen: set[Node] = set()
    stack = [*results]
    while stack:
        node = stack.pop()
        if node not in seen and node not in targets and node.number > first:
            seen.add(node)
            stack.extend(each for each in node.inputs if type(each) is Node)
    active = set(targets)
    found = []
    for node in sorted(seen, key=lambda node: node.number):
        if node.dtype.kind in "fcO" and any(each in active for each in node.inputs if type(each) is Node):
            active.add(node)
            found.append(node)
    return found


def _add(grads: dict[Node, Any], node: Node, grad: Any) -> None:
    before = grads.get(node)
    if before is None:
        grads[node] = grad
    elif isinstance(grad, dict):
        for i, g in grad.items():
            before[i] = before[i] + g if i in before else g
    else:
        grads[node] = before + grad


def _through(node: Node, grad: Any) -> list[tuple[Node, Any]]:
    """The contributions of one record to its inputs' gradients."""
    op = node.op
    assert op is not None
    if op is PART:
        [whole] = node.inputs
        assert type(whole) is Node
        return [(whole, {node.params[0]: grad})]
    inputs = tuple([_shown(each) if isinstance(each, Node) else given(each, node.evaluator) for each in node.inputs])
    floating = [type(each) is Node and each.dtype.kind in "fc" for each in node.inputs]
    if isinstance(op, GraphOperation):
        found: Sequence[Any] = pull_back_lifted(op, inputs, _outputs(node, op.outputs), grad, floating)
    else:
        function = rule_of(op.name)
        if function is None:
            raise GraphError(f"{op.name} has no gradient; recorded at {site_of(node.origin)}")
        at = Application(inputs, node.params, None)
        several = outputs_of(op.name)
        kinds = None if several is None else several(at)
        outputs = _outputs(node, kinds)
        g = grad if kinds is None else tuple([grad.get(i) for i in range(len(kinds))])
        found = function(at._replace(output=outputs), g)
    return [
        (each, fit(g, each))
        for each, g, wanted in zip(node.inputs, found, floating, strict=True)
        if g is not None and wanted and type(each) is Node
    ]


def _outputs(node: Node, kinds: Any) -> Any:
    if node.dtype != np.dtype(object):
        return _shown(node)
    return tuple([record(PART, (node,), shape, kind, (i,), node.evaluator) for i, (shape, kind) in enumerate(kinds)])


def _shown(node: Node) -> Array:
    """An array of a record; the one that shows it, if there is one."""
    held = node.handle() if node.handle is not None else None
    if held is not None and held._node is node:
        return held
    array = object.__new__(Node.array_type)
    array._node = node
    return array
