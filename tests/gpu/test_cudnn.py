"""cuDNN's convolutions on a GPU, against the CPU's and CuPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.errors import MissingExtraError
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.ops.registry import lookup
from tests.operations import Row, Sample, samples
from tests.support.kernels import check

CONVOLUTIONS = [each for each in samples("cuda") if isinstance(each[1].what, ops.Conv | ConvDown | ConvWeight)]


@pytest.fixture(scope="module")
def compute_cudnn(compute_by: Callable[..., Any]) -> Callable[..., list[np.ndarray]]:
    try:
        return compute_by("cudnn")
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("row", "sample"), CONVOLUTIONS, ids=str)
def test_a_convolution_is_the_cpus(compute_cudnn: Any, row: Row, sample: Sample, dtype: str) -> None:
    if lookup(sample.operation, "cuda", "cudnn", np.dtype(dtype)) is None:
        pytest.skip("left to CuPy: its border is wider on one side")
    check(row, sample, dtype, compute_cudnn)


def test_results_repeat_bit_by_bit(compute_cudnn: Any) -> None:
    random = np.random.default_rng(0)
    g, x = (random.standard_normal(shape).astype("f") for shape in [(16, 30, 30, 32), (16, 32, 32, 16)])
    first, *others = [compute_cudnn(ConvWeight(kernel=(3, 3)), g, x)[0] for _ in range(4)]
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_a_graph_prefers_it(compute_cudnn: Any) -> None:
    graph = af.Graph("convolved")
    with graph.at("cuda:0"):
        x = graph.blob("x", (2, 8, 8, 4))
        y = ops.conv(x, graph.variable("w", (3, 3, 4, 8), init=af.nn.init.gaussian(seed=0)))
    (planned,) = [op for op in graph.compile().ops if isinstance(op.operation, ops.Conv)]
    assert planned.kernel is not None
    assert planned.kernel.key.library == "cudnn"
    batch = np.random.default_rng(0).standard_normal((2, 8, 8, 4)).astype("f")
    found = af.to_numpy(graph.run_sync({x: batch})[y])
    expected = ops.find_kernel(ops.Conv(), "cpu", np.dtype("f"))
    out = np.empty(found.shape, "f")
    expected.function(ops.Conv(), [batch, graph.variables[0].value], [out])
    np.testing.assert_allclose(found, out, rtol=1e-4, atol=1e-4)
