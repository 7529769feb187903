"""Chains of elementwise ops of a graph, joined, and the reductions that end them: on an accelerator one kernel each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from actorflow.devices import device_kind
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.ops.fills import Constant, Fill
from actorflow.ops.fused import Fused, FusedColumns, FusedStep, columns_of, may_fuse, may_reduce
from actorflow.ops.operation import Operation
from actorflow.ops.registry import load_libraries, registered_kernels
from actorflow.ops.shaping import Reduction
from actorflow.place import Place
from actorflow.plan.validate import needed_ops

#: Limits of one chain: of the arguments of a kernel, and of the time to compile it.
_MOST_STEPS, _MOST_INPUTS, _MOST_RESULTS = 32, 8, 8


class Joined(NamedTuple):
    """A graph with its chains joined.

    Attributes:
        graph: The new graph.
        blobs: For blobs of the old graph those of the new one: sources, and what is read outside of the chains.
        origins: For names of ops of the new graph, the ops of the old one.
    """

    graph: Graph
    blobs: dict[Blob, Blob]
    origins: dict[str, Sequence[Op]]


def join(source: Graph, wanted: Iterable[Blob], target: Graph) -> Joined:
    """Copy the part of a graph that blobs need, each chain of elementwise ops of an accelerator as one op.

    Reductions of a chain's values that go along the same axes are part of it.

    Args:
        source: The graph; it is not changed.
        wanted: Its blobs whose values are needed.
        target: An empty graph.
    """
    joined = Joined(target, {}, {})
    for blob in source.blobs:
        if isinstance(blob, Variable):
            joined.blobs[blob] = target.variable(blob.name, blob.shape, blob.dtype, blob.value, blob.place)
        elif not blob.producers:
            joined.blobs[blob] = target.blob(blob.name, blob.shape, blob.dtype, blob.place)
    needed = set(wanted)
    ops = needed_ops(needed)
    inside = set(ops)
    for group in _groups([op for op in ops if not _is_number(op) or op.outputs[0] in needed]):
        members = set(group)
        results = [
            op
            for op in group
            if op.outputs[0] in needed or any(op in inside and op not in members for op in op.outputs[0].consumers)
        ]
        if len(group) == 1 and not _takes_numbers(group[0]):
            _copy(joined, group[0])
        else:
            _fuse(joined, group, results)
    return joined


def _copy(joined: Joined, op: Op) -> None:
    made = joined.graph.op(op.name, op.operation, op.place)
    joined.origins[op.name] = (op,)
    made(*[_input(joined, blob) for blob in op.inputs])
    joined.blobs.update(zip(op.outputs, made.outputs, strict=True))


def _fuse(joined: Joined, group: Sequence[Op], results: Sequence[Op]) -> None:
    inputs = list(dict.fromkeys(_outer(group)))
    positions = {blob: i for i, blob in enumerate(inputs)}
    steps: list[FusedStep] = []

    def add(op: Op) -> None:
        arguments = tuple([positions[blob] for blob in op.inputs])
        positions[op.outputs[0]] = len(inputs) + len(steps)
        steps.append(FusedStep(_as_step(op), arguments))

    for op in group:
        for blob in op.inputs:
            if blob not in positions:
                add(blob.producers[0])  # a number
        add(op)
    found = tuple([positions[op.outputs[0]] - len(inputs) for op in results])
    made = joined.graph.op(results[-1].name, Fused(tuple(steps), found), group[0].place)
    joined.origins[made.name] = group
    made(*[_input(joined, blob) for blob in inputs])
    joined.blobs.update({op.outputs[0]: blob for op, blob in zip(results, made.outputs, strict=True)})


def _input(joined: Joined, blob: Blob) -> Blob:
    if blob not in joined.blobs:
        _copy(joined, blob.producers[0])  # a number that an op by itself reads
    return joined.blobs[blob]


def _outer(group: Sequence[Op]) -> Iterator[Blob]:
    own = {blob for op in group for blob in op.outputs}
    for op in group:
        for blob in op.inputs:
            if blob not in own and not any(map(_is_number, blob.producers)):
                yield blob


def _takes_numbers(op: Op) -> bool:
    """Return whether a kernel for a chain spares the ops that fill numbers for an op by itself."""
    return _is_elementwise(op) and 0 < len(set(_outer([op]))) < len(set(op.inputs))


def _is_number(op: Op) -> bool:
    step = _as_step(op)
    return isinstance(step, Fill) and may_fuse(step, (), op.outputs[0].spec)


def _as_step(op: Op) -> Operation:
    """The operation of an op as a step of a chain, whose numbers are fills."""
    operation, spec = op.operation, op.outputs[0].spec
    if isinstance(operation, Constant) and spec.shape == ():
        return Fill(operation.value.item(), spec)
    return operation


def _groups(ops: Sequence[Op]) -> Iterator[Sequence[Op]]:
    """Group the ops, in an order in which the groups can run.

    An op's level is how many edges lie on the longest way to it that cannot be fused. Only ops of one level are
    joined, so no two groups wait for each other.
    """
    levels: dict[Op, int] = {}
    groups: dict[Op, list[Op]] = {}
    for op in ops:
        level, joined = 0, []
        for blob in op.inputs:
            for before in blob.producers:
                if before not in levels:
                    continue
                if _is_link(before, op):
                    level = max(level, levels[before])
                    joined.append(before)
                else:
                    level = max(level, levels[before] + 1)
        levels[op] = level
        group = groups[op] = [op]
        for before in joined:
            other = groups[before]
            if levels[before] == level and other is not group:
                other.extend(group)
                for member in group:
                    groups[member] = other
                group = other
    unique = [sorted(group, key=lambda op: op.id) for group in {id(group): group for group in groups.values()}.values()]
    for group in sorted(unique, key=lambda group: (levels[group[0]], group[0].id)):
        yield from _parts(group)


def _is_link(before: Op, op: Op) -> bool:
    """Return whether an op can take a value of a chain from the one that computes it, element by element."""
    if before.place != op.place or not _is_elementwise(before):
        return False
    if _columns(op) is not None:
        return True
    return before.outputs[0].shape == op.outputs[0].shape and _is_elementwise(op)


def _parts(group: Sequence[Op]) -> Iterator[Sequence[Op]]:
    """Divide a group into parts within the limits, whose reductions go along the same axes."""
    part: list[Op] = []
    others: list[Op] = []  # reductions along other axes: nothing in the group reads them
    along: FusedColumns | None = None
    for op in group:
        columns = _columns(op)
        if None not in (along, columns) and columns != along:
            others.append(op)
            continue
        along = along or columns
        grown = [*part, op]
        if part and (len(grown) > _MOST_STEPS or len(set(_outer(grown))) > _MOST_INPUTS):
            yield from _narrow(part)
            grown, along = [op], columns
        part = grown
    yield from _narrow(part)
    if others:
        yield from _parts(others)


def _narrow(part: Sequence[Op]) -> Iterator[Sequence[Op]]:
    own = set(part)
    read_outside = sum(any(op not in own for op in member.outputs[0].consumers) for member in part)
    if len(part) > 1 and (read_outside > _MOST_RESULTS or not any(True for _ in _outer(part))):
        yield from _narrow(part[: len(part) // 2])
        yield from _narrow(part[len(part) // 2 :])
    else:
        yield part


def _is_elementwise(op: Op) -> bool:
    inputs = [blob.spec for blob in op.inputs]
    return len(op.outputs) == 1 and _has_kernel(op.place) and may_fuse(op.operation, inputs, op.outputs[0].spec)


def _columns(op: Op) -> FusedColumns | None:
    """The columns along which a reduction goes that may end a chain; None for other ops."""
    operation = op.operation
    if isinstance(operation, Reduction) and _has_kernel(op.place) and may_reduce(operation, op.inputs[0].spec):
        shape = op.inputs[0].shape
        return columns_of(shape, operation.axes(len(shape)))
    return None


@cache
def _has_kernel(place: Place) -> bool:
    kind = device_kind(place.kind)
    libraries = load_libraries(place.kind, kind.libraries)
    known = {(key.operation, key.device, key.library) for key in registered_kernels()}
    return not kind.is_host and any((Fused.__name__, place.kind, library) in known for library in libraries)
