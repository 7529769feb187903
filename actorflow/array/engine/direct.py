"""What is computed without units: a few small operations, by the thread that asks for them.

To plan such operations, hand them over and note their end takes several times as long as to compute them.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.engine.planning import common
from actorflow.array.record.node import HOST, Node
from actorflow.trace.ring import OpProfile

if TYPE_CHECKING:
    from actorflow.array.engine.evaluator import Evaluator

#: Operations; more of them are not slower as a unit.
_FEW = 8
#: Elements of each result and input, up to which nobody is kept waiting for the evaluator's lock.
_SMALL = 1 << 14


def compute_directly(roots: list[Node], evaluator: Evaluator) -> bool:
    """Compute records that are NumPy's loops over few elements; with the lock held, and without a budget.

    Returns:
        Whether that was done. What is of another kind, repeats itself, or fails, takes the usual way.
    """
    order: list[Node] = []
    stack = [*roots]
    while stack:
        node = stack.pop()
        if node.value is not None or node in order:
            continue
        if len(order) == _FEW or not _is_small(node, evaluator):
            return False
        order.append(node)
        stack += [each for each in node.inputs if type(each) is Node]
    order.sort(key=lambda node: node.number)
    if len(order) > 1 and common(order):
        return False
    with np.errstate(all="ignore"):
        return all(_compute(node, evaluator) for node in order)


def _is_small(node: Node, evaluator: Evaluator) -> bool:
    op = node.op
    return (
        op is not None
        and (op.elementwise or op.reduction)
        and node.evaluator is evaluator
        and node.unit is None
        and node.error is None
        and node.place is HOST
        and node.size <= _SMALL
        and all(each.size <= _SMALL for each in node.inputs)
    )


def _compute(node: Node, evaluator: Evaluator) -> bool:
    op: Any = node.op
    values = [each.value if type(each) is Node else each for each in node.inputs]
    if not all(type(value) is np.ndarray for value in values):  # one before has failed, or lives on a device
        return False
    start = perf_counter_ns()
    try:
        if op.elementwise:
            found = np.empty(node.shape, node.dtype)
            op.compute(*values, *node.params, out=found)
        else:
            found = np.asarray(op.compute(*values, *node.params), node.dtype)
    except Exception:  # noqa: BLE001  it is raised again on the usual way, which explains it
        return False
    elapsed_ns = perf_counter_ns() - start
    node.value = found
    node.inputs = ()
    evaluator.profile.setdefault(op.name, OpProfile()).add(elapsed_ns)
    evaluator.computed += 1
    return True
