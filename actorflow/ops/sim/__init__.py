"""Kernels for simulated accelerators: those of NumPy, run on the device's memory when its streams get to them.

Importing this package registers one for each kernel that this package has for the CPU with NumPy. Kernels that others
register for the CPU are theirs: an operation without a kernel here runs on the CPU, with copies around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import actorflow.ops.cpu
from actorflow.devices.sim import SimArray, launch_kernel
from actorflow.ops.cpu.described import make
from actorflow.ops.fused import Followed
from actorflow.ops.operation import Operation
from actorflow.ops.registry import Kernel, KernelKey, kernel, kernel_maker, kernels_of
from actorflow.ops.shaping import Reshape
from actorflow.ops.together import Together
from actorflow.spec import TensorSpec

__all__: list[str] = []


@kernel(Reshape, device="sim", library="sim", returns=True)
def _reshape(operation: Reshape, inputs: list[SimArray], _outputs: None) -> list[SimArray]:
    shape = operation.infer(*(TensorSpec(x.shape, x.dtype) for x in inputs))[0].shape
    return [inputs[0].reshape(shape)]


def _copier(known: Kernel) -> Callable[..., None]:
    """For a kernel that gives views on the CPU: arrays of a device are contiguous, so the contents are copied."""
    function = known.function

    def copy(operation: Any, inputs: list[Any], outputs: list[Any]) -> None:
        results = function(operation, inputs, None)
        known.check(results, [TensorSpec(output.shape, output.dtype) for output in outputs])
        for output, result in zip(outputs, results, strict=True):
            output[...] = result

    def launch(operation: Any, inputs: list[SimArray], outputs: list[SimArray]) -> None:
        launch_kernel(lambda xs, ys: copy(operation, xs, ys), inputs, outputs, operation.kind)

    return launch


def _launcher(known: Kernel) -> Callable[..., None]:
    function = known.function

    def launch(operation: Any, inputs: list[SimArray], outputs: list[SimArray], *frame: int) -> None:
        launch_kernel(lambda xs, ys: function(operation, xs, ys, *frame), inputs, outputs, operation.kind)

    return launch


def _register_all() -> None:
    for known in kernels_of("cpu", "numpy"):
        key, is_ours = known.key, known.function.__module__.startswith(actorflow.ops.cpu.__name__ + ".")
        # Nothing here goes piece by piece, and what is computed together is so on the host alone.
        if is_ours and key.operation not in (Reshape.__name__, Followed.__name__, Together.__name__):
            register = kernel(
                key.operation,
                device="sim",
                library="sim",
                dtypes=key.dtype,
                layout=key.layout,
                random=known.random,
                inplace=known.inplace,
                supports=known.supports,
            )
            register((_copier if known.returns else _launcher)(known))


_register_all()


@kernel_maker("sim", "sim")
def _make(operation: type[Operation], key: KernelKey) -> Kernel | None:
    """The kernel of an operation whose kernel for the CPU is made, too."""
    known = make(operation, key)
    if known is None:
        return None
    return replace(known, function=(_copier if known.returns else _launcher)(known), returns=False)
