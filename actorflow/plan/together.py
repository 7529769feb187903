"""Small ops of one kind that are computed by one call: an optimizer's updates, and limits of its gradients.

The step of an optimizer is one op for each variable, and many variables are small: biases, parameters of batch norm.
Firing such an op costs more than its kernel. Ops whose results nothing reads, or the same op alone,
may be joined in any graph: no path leads from one of them to another one. They
wait for each other, so large ones, whose time matters, are left to run as soon as they can.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from actorflow.devices import device_kind
from actorflow.loop import Steps
from actorflow.ops.nn.updates import ScaleBy, SquareSum, Update
from actorflow.ops.step import Step
from actorflow.ops.together import Together
from actorflow.plan.fuse import ChooseKernel, as_one, in_new_order
from actorflow.plan.plan import PlannedOp, Slot

_KINDS = (Update, SquareSum, ScaleBy)
#: Elements of an op's first input, at most.
_SMALL = 1 << 14


def gather(ops: Sequence[PlannedOp], slots: Sequence[Slot], choose: ChooseKernel) -> Steps[list[PlannedOp] | None]:
    """Join small ops that can be computed by one call.

    Args:
        ops: In a topological order.
        slots: Values that they read and write; their readers are changed in place.
        choose: Gives kernels.
    Returns:
        The new ops, in a topological order, with indices of their own; None where nothing can be joined.
    """
    groups: dict[Hashable, list[PlannedOp]] = {}
    unit_of: dict[int, Hashable] = {}  # the group of each op that can be joined
    for op in reversed(ops):
        if not isinstance(op.operation, _KINDS):
            continue
        key = _key(op, slots, unit_of)
        if key is not None:
            unit_of[op.index] = key
            groups.setdefault(key, []).append(op)
        yield
    joined: dict[int, PlannedOp] = {}
    for group in groups.values():
        if len(group) > 1:
            yield
            made = _join(group[::-1], slots, choose)
            if made is not None:
                joined.update({op.index: made for op in group})
    return (yield from in_new_order(ops, slots, joined)) if joined else None


def _key(op: PlannedOp, slots: Sequence[Slot], unit_of: dict[int, Hashable]) -> Hashable | None:
    """Key that ops which can be joined have in common; None for an op that cannot be."""
    kernel, node = op.kernel, op.node
    if kernel is None or op.parts or node.attempts is not None:
        return None
    if kernel.returns or kernel.random or kernel.keeps or not device_kind(op.place.kind).is_host:
        return None
    spec = slots[op.inputs[0]].spec
    if spec.size > _SMALL or kernel.key.library not in device_kind(op.place.kind).libraries:
        return None
    readers = {unit_of.get(index, index) for slot in op.outputs for index in slots[slot].consumers}
    if len(readers) > 1:
        return None
    return (op.operation.kind, spec.dtype, op.place, node.graph, node.lane, node.priority, node.hints, *readers)


def _join(group: Sequence[PlannedOp], slots: Sequence[Slot], choose: ChooseKernel) -> PlannedOp | None:
    inputs = tuple(dict.fromkeys(slot for op in group for slot in op.inputs))
    position = {slot: i for i, slot in enumerate(inputs)}
    outputs = [slot for op in group for slot in op.outputs]
    written = {slot: i for i, slot in enumerate(outputs)}
    steps = [
        Step(op.operation, tuple([position[i] for i in op.inputs]), tuple([written[i] for i in op.outputs]), site=site)
        for site, op in enumerate(group)
    ]
    operation = Together(tuple(steps), tuple([op.kernel for op in group if op.kernel is not None]))
    kernel = choose(group[-1], operation, slots[inputs[0]].spec.dtype)
    return None if kernel is None else as_one(group, operation, kernel, inputs, outputs, slots)
