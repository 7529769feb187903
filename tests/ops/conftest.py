"""Runs single kernels, and watches that they keep the contract of `Kernel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow.ops.cpu  # noqa: F401  registers the kernels
from actorflow.ops import Operation, find_kernel
from actorflow.spec import TensorSpec
from tests.support import layouts

Compute = Callable[..., list[np.ndarray]]
Layout = Callable[[np.ndarray, str], np.ndarray]


@pytest.fixture(scope="session")
def compute() -> Compute:
    """``compute(operation, *arrays, frame=0)``: outputs of the CPU kernel."""

    def run(operation: Operation, *inputs: Any, frame: int = 0) -> list[np.ndarray]:
        arrays = [np.asarray(x).view() for x in inputs]
        before = [array.copy() for array in arrays]
        for array in arrays:
            array.flags.writeable = False
        specs = operation.infer(*(TensorSpec(a.shape, a.dtype) for a in arrays))
        kernel = find_kernel(operation, "cpu", specs[0].dtype)
        if kernel.returns:
            outputs = kernel.function(operation, arrays, None)
        else:
            outputs = [np.empty(spec.shape, spec.dtype) for spec in specs]
            for output in outputs:  # whatever is not written is nan, or odd
                output.reshape(-1).view(np.uint8)[...] = 0xFF if output.dtype != bool else 1
            kernel.function(operation, arrays, outputs, *([frame] if kernel.random else []))
        for array, old in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, old)
        assert [(o.shape, o.dtype) for o in outputs] == [(s.shape, s.dtype) for s in specs]
        return outputs

    return run


@pytest.fixture(scope="session")
def laid_out() -> Layout:
    """``laid_out(array, layout)``: the same values, in memory as one of `LAYOUTS` says."""
    return layouts.laid_out
