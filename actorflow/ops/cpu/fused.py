"""Kernel of `actorflow.ops.fused`: the steps' own kernels, block by block."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from actorflow.ops.basic import Fill
from actorflow.ops.cpu.buffers import BLOCK, Array, scratch
from actorflow.ops.cpu.parallel import elementwise
from actorflow.ops.fused import Fused
from actorflow.ops.operation import Operation
from actorflow.ops.registry import find_kernel, kernel
from actorflow.spec import TensorSpec

__all__: list[str] = []


class _Step(NamedTuple):
    compute: Callable[..., Any]
    operation: Operation
    arguments: tuple[int, ...]
    dtype: np.dtype[Any]
    constant: Array | None
    result: int | None


@lru_cache(maxsize=256)
def _steps(operation: Fused, specs: tuple[TensorSpec, ...]) -> list[_Step]:
    """The steps with their kernels, for inputs of these types."""
    found = operation.specs(specs)
    outputs = {step: i for i, step in enumerate(operation.results)}
    steps = []
    for i, (each, arguments) in enumerate(operation.steps):
        dtype = found[len(specs) + i].dtype
        known = find_kernel(each, "cpu", found[arguments[0]].dtype if arguments else dtype)
        constant = np.full((), each.value, dtype) if isinstance(each, Fill) else None
        steps.append(_Step(known.function, each, arguments, dtype, constant, outputs.get(i)))
    return steps


@kernel(Fused)
@elementwise
def _fused(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    steps = _steps(operation, tuple([TensorSpec(x.shape, x.dtype) for x in inputs]))
    shape, size = outputs[0].shape, outputs[0].size
    with np.errstate(all="ignore"):
        if all(x.size == 1 or (x.shape == shape and x.flags.c_contiguous) for x in (*inputs, *outputs)):
            flat = [x.reshape(-1 if x.size > 1 else ()) for x in (*inputs, *outputs)]
            for start in range(0, size, BLOCK):
                parts = [x[start : start + BLOCK] if x.ndim else x for x in flat]
                _run(steps, parts[: len(inputs)], parts[len(inputs) :])
        elif size:
            _run(steps, [x.reshape(()) if x.size == 1 else np.broadcast_to(x, shape) for x in inputs], outputs)


def _run(steps: list[_Step], inputs: list[Array], outputs: list[Array]) -> None:
    values, shape = list(inputs), outputs[0].shape
    for i, step in enumerate(steps):
        if step.constant is not None:
            values.append(step.constant)
            if step.result is not None:
                outputs[step.result].fill(step.constant)
            continue
        arguments = [values[a] for a in step.arguments]
        if step.result is not None:
            out = outputs[step.result]
        else:
            out = scratch(f"fused {i}", shape if any(x.ndim for x in arguments) else (), step.dtype)
        step.compute(step.operation, arguments, [out])
        values.append(out)
