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


def _launcher(known: Kernel) -> Callable[..., None]:
    """Launch of a kernel for the CPU. What views show there is copied: arrays of a device are contiguous."""
    function = known.function

    def copy(operation: Any, inputs: list[Any], outputs: list[Any]) -> None:
        results = function(operation, inputs, None)
        known.check(results, [TensorSpec(output.shape, output.dtype) for output in outputs])
        for output, result in zip(outputs, results, strict=True):
            output[...] = result

    compute = copy if known.returns else function

    def launch(operation: Any, inputs: list[SimArray], outputs: list[SimArray], *frame: int) -> None:
        # Of weights a kernel may keep another form, as their memory on the CPU is not written again; here it may be.
        launch_kernel(
            lambda xs, ys: compute(operation, [x.view() for x in xs], ys, *frame), inputs, outputs, operation.kind
        )

    return launch


for _known in kernels_of("cpu", "numpy"):
    _key, _is_ours = _known.key, _known.function.__module__.startswith(actorflow.ops.cpu.__name__ + ".")
    # Nothing here goes piece by piece, and what is computed together is so on the host alone.
    if _is_ours and _key.operation not in (Reshape.__name__, Followed.__name__, Together.__name__):
        _register = kernel(
            _key.operation,
            device="sim",
            library="sim",
            dtypes=_key.dtype,
            layout=_key.layout,
            random=_known.random,
            inplace=_known.inplace,
            supports=_known.supports,
        )
        _register(_launcher(_known))


@kernel_maker("sim", "sim")
def _make(operation: type[Operation], key: KernelKey) -> Kernel | None:
    """The kernel of an operation whose kernel for the CPU is made, too."""
    known = make(operation, key)
    return None if known is None else replace(known, function=_launcher(known), returns=False)
