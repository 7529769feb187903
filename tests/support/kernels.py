"""Kernels by themselves: those of the CPU, and others beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow.ops import Operation, find_kernel, registry
from actorflow.spec import TensorSpec
from tests.operations import Row, Sample, operations
from tests.support.layouts import laid_out


def kernel_on_cpu(key: registry.KernelKey) -> registry.Kernel:
    """The kernel of the CPU for the operation of a key."""
    [kind] = [kind for kind in operations() if kind.__name__ == key.operation]
    found = registry.lookup(kind.__new__(kind), "cpu", "numpy", np.dtype(key.dtype))
    assert found is not None
    return found


def compute_cpu(operation: Operation, *arrays: np.ndarray, frame: int = 0) -> list[np.ndarray]:
    """Outputs of the CPU's kernel."""
    specs = operation.infer(*(TensorSpec(a.shape, a.dtype) for a in arrays))
    assert specs is not None
    kernel = find_kernel(operation, "cpu", (arrays[0] if arrays else specs[0]).dtype)
    if kernel.returns:
        return kernel.function(operation, list(arrays), None)
    outputs = [np.empty(spec.shape, spec.dtype) for spec in specs]
    kernel.function(operation, list(arrays), outputs, *([frame] if kernel.random else []))
    return outputs


def check(
    row: Row, sample: Sample, dtype: str, compute: Callable[..., list[np.ndarray]], layout: str = "C", seed: int = 0
) -> None:
    """Compare ``compute(operation, *arrays, frame=...)`` with the CPU, which computes half precision in float32."""
    arrays: list[Any] = sample.inputs(dtype, seed)
    precise = [a.astype(np.float32) if a.dtype == np.float16 else a for a in arrays]
    expected = compute_cpu(sample.operation, *precise, frame=3)
    found = compute(sample.operation, *(laid_out(a, layout) for a in arrays), frame=3)
    relative, absolute = row.bounds(dtype)
    # Sums lose digits with the number of their terms, whatever comes out.
    scale = max([1.0, *(np.abs(e[np.isfinite(e)]).max(initial=0) for e in expected if e.dtype.kind == "f")])
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.shape == wanted.shape
        np.testing.assert_allclose(actual, wanted, rtol=relative, atol=absolute * scale, err_msg=f"{sample} of {dtype}")
