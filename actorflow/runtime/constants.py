"""Constants of a program: what its frames read and none of them computes; all programs of a graph share them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from actorflow.errors import GraphError, OpError
from actorflow.ops.fills import Constant
from actorflow.ops.transfer import Transfer
from actorflow.plan.plan import Plan, PlannedOp, Slot
from actorflow.runtime.resources import Resources


def constants_of(plan: Plan, resources: Resources) -> dict[int, Any]:
    """The constants that a plan's frames read, by slot: computed on the host, and copied to where they are read.

    What has been computed for another program of the graph is taken from there. On the host they cannot be written to.

    Raises:
        OpError: if a computation, or a copy, fails.
    """
    if plan.graph.options.dry_run or not plan.folded:
        return {}
    slots, known = plan.slots, resources.constants
    keys: dict[int, Hashable] = {}
    for op in plan.folded:
        # Of other lengths of axes, the same op has another operation, or what it reads is another constant.
        node = op.node if op.shown_as is op.node else None
        made_of = (node, op.operation, op.kernel, tuple([keys[slot] for slot in op.inputs]))
        number = resources.constant_numbers.setdefault(made_of, len(resources.constant_numbers))
        keys.update({slot: (number, position) for position, slot in enumerate(op.outputs)})
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
            found = _compute(op, [values[slot] for slot in op.inputs], slots, resources)
            values.update(zip(op.outputs, found, strict=True))
    for slot in read:
        known[slot.place][keys[slot.index]] = values[slot.index]
    return {slot.index: values[slot.index] for slot in read}


def _compute(op: PlannedOp, inputs: list[Any], slots: Sequence[Slot], resources: Resources) -> Sequence[Any]:
    try:
        if isinstance(op.operation, Transfer):
            device = resources.device(op.operation.target)
            value = device.upload(inputs[0])
            device.memory.adopt(value)
            return [value]
        if type(op.operation) is Constant:
            return [op.operation.value]
        return _call(op, inputs, slots)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        replay = None if op.kernel is None else partial(_call, op, inputs, slots)
        raise OpError.of(op.node, error, replay) from error


def _call(op: PlannedOp, inputs: list[Any], slots: Sequence[Slot]) -> Sequence[Any]:
    kernel = op.kernel
    assert kernel is not None
    outputs = None if kernel.returns else [np.empty(*slots[slot].spec) for slot in op.outputs]
    returned = kernel.function(op.operation, [*inputs], outputs)
    results = [*map(np.asarray, returned)] if outputs is None else outputs
    if len(results) != len(op.outputs):
        raise GraphError(f"the kernel must return {len(op.outputs)} values, got {len(results)}")
    for result in results:
        result.setflags(write=False)
    return results
