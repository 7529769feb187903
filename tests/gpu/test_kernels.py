"""Every CUDA kernel against the CPU's, forwards and backwards, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow.ops.cpu  # noqa: F401  registers the kernels
from actorflow import ops
from actorflow.ops.registry import registered_kernels
from tests.support.kernel_cases import CASES, FLOATS, Case, check, compute_cpu


def test_every_operation_of_the_cpu_has_a_case() -> None:
    kinds = {key.operation for key in registered_kernels() if key.device == "cpu" and key.library == "numpy"}
    assert {case.operation.kind for case in CASES} >= {kind for kind in kinds if hasattr(ops, kind)}


@pytest.fixture(scope="module")
def compute_gpu(compute_by: Callable[..., Any]) -> Callable[..., list[np.ndarray]]:
    return compute_by("cupy")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_gives_what_the_cpu_gives(compute_gpu, case: Case, dtype: str) -> None:
    check(case, dtype, compute_gpu)


def test_a_mask_is_the_one_of_the_cpu_bit_by_bit(compute_gpu) -> None:
    x = np.ones(1_000_003, np.float32)
    for seed, frame in [(0, 0), (2**127 + 3, 2**40)]:
        operation = ops.Dropout(0.3, seed)
        for actual, wanted in zip(
            compute_gpu(operation, x, frame=frame), compute_cpu(operation, x, frame=frame), strict=True
        ):
            np.testing.assert_array_equal(actual, wanted)
