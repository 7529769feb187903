"""Every CUDA kernel against the CPU's, forwards and backwards, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from actorflow import ops
from tests.operations import Row, Sample, samples
from tests.operations.table import FLOATS
from tests.support.kernels import check, compute_cpu


@pytest.fixture(scope="module")
def compute_gpu(compute_by: Callable[..., Any]) -> Callable[..., list[np.ndarray]]:
    return compute_by("cupy")


@pytest.mark.together("dtype", FLOATS)
@pytest.mark.together(("row", "sample"), samples("cuda"), ids=str)
def test_a_kernel_gives_what_the_cpu_gives(compute_gpu, row: Row, sample: Sample, dtype: str) -> None:
    if dtype not in sample.dtypes(row):
        pytest.skip("has no numbers of this dtype")
    check(row, sample, dtype, compute_gpu)


def test_a_mask_is_the_one_of_the_cpu_bit_by_bit(compute_gpu) -> None:
    x = np.ones(1_000_003, np.float32)
    for seed, frame in [(0, 0), (2**127 + 3, 2**40)]:
        operation = ops.Dropout(0.3, seed)
        for actual, wanted in zip(
            compute_gpu(operation, x, frame=frame), compute_cpu(operation, x, frame=frame), strict=True
        ):
            np.testing.assert_array_equal(actual, wanted)
