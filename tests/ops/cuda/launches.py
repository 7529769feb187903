"""What a CUDA device is given to do, counted without one: kernels and products, each fill and copy on the device.

Nothing is computed, so shapes may be those of large networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import actorflow as af
from actorflow.devices.cuda.device import CudaDevice
from actorflow.loop import at_once
from actorflow.ops import Operation, registry
from actorflow.plan.planner import planning


def calls_of(
    emulated: SimpleNamespace, kernel: registry.Kernel, operation: Operation, inputs: Iterable[af.TensorSpec]
) -> list[str]:
    """Names of what a kernel calls."""
    specs = tuple(inputs)
    with emulated.emulator.counting() as calls:
        arrays, outputs = (
            [emulated.emulator.cupy.empty(*spec) for spec in each] for each in (specs, operation.infer(*specs))
        )
        kernel.function(operation, arrays, outputs, *([0] if kernel.random else []))
        return [*calls]


def calls_of_frame(emulated: SimpleNamespace, graph: af.Graph, fetch: Sequence[Any]) -> dict[str, Counter[str]]:
    """What the kernels of each kind of operation call in a frame, without copies between devices."""
    with (
        mock.patch.dict(registry._kernels, emulated.kernels),
        mock.patch.object(registry, "_loaded", registry._loaded | {("cuda", "cupy")}),
        mock.patch.object(CudaDevice, "libraries", ("cupy",)),
        mock.patch.object(CudaDevice, "check"),
    ):
        plan = at_once(planning(graph, fetch))
    found: dict[str, Counter[str]] = {}
    for op in plan.ops:
        if op.place.kind == "cuda" and op.kernel is not None and not op.kernel.returns:
            specs = [plan.slots[i].spec for i in op.inputs]
            found.setdefault(op.operation.kind, Counter()).update(calls_of(emulated, op.kernel, op.operation, specs))
    return found
