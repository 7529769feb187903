"""Constants of a program: values that its frames read and none of them computes; all programs of a graph share them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from actorflow.actors.finite import look
from actorflow.errors import OpError
from actorflow.ops.fills import Constant
from actorflow.ops.transfer import Transfer
from actorflow.plan.plan import Plan, PlannedOp
from actorflow.runtime.resources import Resources


def constants_of(plan: Plan, resources: Resources) -> dict[int, Any]:
    """The constants that a plan's frames read, by slot: computed on the host, and copied to where they are read.

    Values computed for another program of the graph are taken from there. On the host they cannot be written to.

    Raises:
        OpError: if a computation, or a copy, fails.
    """
    if plan.graph.options.dry_run or not plan.folded:
        return {}
    # Of a plan that looks at what is made, all are made anew.
    slots, known = plan.slots, resources.constants
    if plan.check is not None:
        known = defaultdict(WeakValueDictionary)
    keys: dict[int, Hashable] = {}
    varying: set[int] = set()  # slots of what is another value for other lengths of axes
    for op in plan.folded:
        is_own = op.site is op.node
        if (is_own and op.operation is not op.node.operation) or not varying.isdisjoint(op.inputs):
            varying.update(op.outputs)
        lengths = plan.lengths if varying.issuperset(op.outputs) else ()
        made_of: Any = (op.node, lengths) if is_own else (op.operation, keys[op.inputs[0]])
        keys.update({slot: (made_of, op.kernel, position) for position, slot in enumerate(op.outputs)})
    read = [slot for slot in slots if slot.is_constant and slot.readers]
    values = {slot.index: known[slot.place][keys[slot.index]] for slot in read if keys[slot.index] in known[slot.place]}
    needed = {slot.index for slot in read}
    if plan.identity is not None:  # all ranks fail if one does, wherever that constant is read
        needed.update(keys)
    steps = []
    for op in reversed(plan.folded):
        if not needed.isdisjoint(op.outputs) and not values.keys() >= {*op.outputs}:
            steps.append(op)
            needed.update(op.inputs)
    with np.errstate(all="ignore"):
        for op in reversed(steps):
            found = _compute(op, [values[slot] for slot in op.inputs], plan, resources)
            values.update(zip(op.outputs, found, strict=True))
    for slot in read:
        known[slot.place][keys[slot.index]] = values[slot.index]
    return {slot.index: values[slot.index] for slot in read}


def _compute(op: PlannedOp, inputs: list[Any], plan: Plan, resources: Resources) -> Sequence[Any]:
    try:
        if isinstance(op.operation, Transfer):
            device = resources.device(op.operation.target)
            value = device.upload(inputs[0])
            device.memory.adopt(value)
            return [value]
        if type(op.operation) is Constant:
            return [op.operation.value]
        found = _call(op, inputs)
        if plan.check is not None and op.inputs:
            look(plan.check, op.node, inputs, found)
        return found
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        replay = None if op.kernel is None else partial(_call, op, inputs)
        raise OpError.of(op.node, error, replay) from error


def _call(op: PlannedOp, inputs: list[Any]) -> Sequence[Any]:
    kernel = op.kernel
    assert kernel is not None
    results = None if kernel.returns else [np.empty(*spec) for spec in op.specs]
    returned = kernel.function(op.operation, [*inputs], results)
    if results is None:
        kernel.check(returned, op.specs)
        results = returned
    for result in results:
        result.setflags(write=False)
    return results
