"""Fusing: elementwise operations of a tape that follow each other, as one compiled loop over memory.

Compiled loops compute what NumPy does to the bit, so it makes no difference which of them are compiled yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from actorflow.array.record.primitives import Primitive
from actorflow.array.record.record import OpStep
from actorflow.devices.cpu import CPU
from actorflow.errors import GraphError
from actorflow.ops.fused import Fused
from actorflow.ops.registry import find_kernel, load_libraries
from actorflow.ops.step import Step
from actorflow.spec import TensorSpec

#: Elements from which on a loop is quicker than NumPy's functions, whose calls cost less.
_LEAST = 1 << 13
#: Most operations of a loop.
_MOST_STEPS = 16
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


class Line(NamedTuple):
    """A step of a tape.

    Attributes:
        result: Its variable.
        at: Its position among the steps that the tape was made of.
        step: The operation.
        reads: Variables and constants that are its arguments.
    """

    result: str
    at: int
    step: OpStep
    reads: list[str]


class FusedPrimitive(Primitive):
    """Elementwise operations as one.

    Args:
        loop: Computes them, called with what they read and ``out``.
    """

    elementwise = aligned = True

    def __init__(self, name: str, loop: Callable[..., Any]) -> None:
        super().__init__(name, loop)


def fuse(lines: Sequence[Line], types: Mapping[str, TensorSpec], kept: set[str]) -> list[Line]:
    """The lines, with loops in the places of those that follow each other.

    A line is computed where its value is read, if that is one line, and of the same shape.

    Args:
        lines: In order.
        types: Of what is read besides their results.
        kept: Variables that are read afterwards.
    """
    made = {line.result: line for line in lines if _may_be_fused(line.step)}
    known = {**types, **{line.result: TensorSpec(line.step.shape, line.step.dtype) for line in lines}}
    readers: dict[str, set[int]] = {}
    for line in lines:
        for read in line.reads:
            readers.setdefault(read, set()).add(line.at)
    gone: set[int] = set()
    found: list[Line] = []
    for line in reversed(lines):
        if line.at in gone:
            continue
        loop = _loop(line, made, known, readers, kept) if line.result in made else None
        if loop is not None:
            gone.update(loop[1])
        found.append(line if loop is None else loop[0])
    return found[::-1]


def _may_be_fused(step: OpStep) -> bool:
    return step.op.elementwise and step.op.operation is not None and prod(step.shape) >= _LEAST


def _loop(
    end: Line,
    made: Mapping[str, Line],
    types: Mapping[str, TensorSpec],
    readers: Mapping[str, set[int]],
    kept: set[str],
) -> tuple[Line, set[int]] | None:
    """A line as a loop, with those whose values it alone reads, and the positions of these; None if that is no use."""
    own = [end]
    ats = {end.at}
    for line in own:  # which grows
        for read in line.reads:
            before = made.get(read)
            if before is None or before.at in ats or read in kept or before.step.shape != end.step.shape:
                continue
            if readers[read] <= ats and len(own) < _MOST_STEPS:
                own.append(before)
                ats.add(before.at)
    own.sort(key=lambda line: line.at)
    # One function of NumPy's is as quick as a loop; a kernel of several is not.
    if len(own) == 1 and type(end.step.op.operation).function is not None:
        return None
    results = {line.result for line in own}
    reads = [*dict.fromkeys([read for line in own for read in line.reads if read not in results])]
    places = {name: i for i, name in enumerate([*reads, *[line.result for line in own]])}
    steps = [Step(line.step.op.operation, tuple([places[read] for read in line.reads])) for line in own]
    specs = [types.get(read) for read in reads]
    if None in specs or end.step.dtype not in _DTYPES:
        return None
    loop = _compiled(Fused(tuple(steps), (len(steps) - 1,)), specs, end.step)  # type: ignore[arg-type]
    if loop is None:
        return None
    op = FusedPrimitive("+".join([line.step.name for line in own]), loop)
    return Line(end.result, end.at, end.step._replace(op=op, params=()), reads), ats


def _compiled(operation: Fused, specs: Sequence[TensorSpec], last: OpStep) -> Callable[..., Any] | None:
    """The operation as one loop; None if it is not one."""
    try:
        if operation.infer(*specs) != (TensorSpec(last.shape, last.dtype),):
            return None
    except GraphError:
        return None
    libraries = load_libraries("cpu", CPU.libraries)
    kernel = find_kernel(operation, "cpu", last.dtype, libraries=libraries)
    in_one_loop = getattr(kernel.function, "in_one_loop", None)
    found: Callable[..., Any] | None = None if in_one_loop is None else in_one_loop(operation, specs)
    return found
