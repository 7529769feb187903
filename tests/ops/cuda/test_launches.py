"""How much is launched: by a training step of a network, and by kernels of one operation."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.ops import Operation, registry
from actorflow.ops.nn.norm import BatchNormDown, BatchNormInferenceDown, LayerNormDown
from actorflow.ops.nn.windows import slide
from actorflow.spec import OpenedInt, TensorSpec
from tests.ops.cuda.launches import calls_of, calls_of_frame
from tests.support.kernels import compute_cpu


def test_a_training_step_of_a_network_in_network(emulated, record_property) -> None:
    """All that one step launches, kind by kind (``--junit-xml`` has the table): at most as much as is known."""
    graph = af.Graph("nin")
    with graph.at("cuda:0"):
        images, labels = graph.blob("images", (128, 32, 32, 3)), graph.blob("labels", (128,), "int64")
        layers = af.nn.NIN(10, (96, 192, 192), dropout=0.1, seed=0)
        loss = ops.softmax_loss(layers(images, training=True), labels)
        updates = af.nn.SGD(0.01, 0.9, 1e-4).minimize(loss)
    found = calls_of_frame(emulated, graph, [updates])
    record_property("launches", {kind: dict(calls) for kind, calls in found.items()})
    assert found["SgdUpdate"] == {"actorflow_sgd": len(layers.variables)}
    assert sum(calls.total() for calls in found.values()) <= 98


def _norms(rows: int, channels: int, dtype: str) -> list[tuple[Operation, list[TensorSpec], int, int]]:
    """Operations, their inputs, and launches without parts and with parts."""
    wide = np.promote_types(dtype, np.float32)
    x, own = TensorSpec.of((rows, channels), dtype), TensorSpec.of((channels,), dtype)
    of_columns, of_rows = TensorSpec.of((channels,), wide), TensorSpec.of((rows,), wide)
    return [
        (ops.BatchNorm(), [x, own, own, of_columns, of_columns], 2, 3),
        (BatchNormDown(), [x, x, own, of_columns, of_columns], 2, 3),
        (BatchNormInferenceDown(), [x, x, own, of_columns, of_columns], 2, 3),
        (ops.LayerNorm(), [x, own, own], 2, 2),
        (LayerNormDown(), [x, x, own, of_rows, of_rows], 3, 4),
    ]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rows", [32, 128 * 32 * 32], ids=["without parts", "with parts"])
def test_norms(emulated, rows, dtype) -> None:
    for operation, inputs, without, with_parts in _norms(rows, 96, dtype):
        kernel = emulated.kernels[registry.KernelKey(operation.kind, "cuda", "cupy", dtype, "any")]
        calls = calls_of(emulated, kernel, operation, inputs)
        narrowed = dtype == "float16" and operation.kind.endswith("Down")
        assert len(calls) == (without if rows == 32 else with_parts) + narrowed, (operation, calls)


def test_lengths_of_open_axes_are_numbers_to_kernels(compute_cuda) -> None:
    x, weight = (np.random.default_rng(0).standard_normal(shape) for shape in ((2, 5, 5, 3), (3, 3, 3, 4)))
    open_shape = (2, OpenedInt(5), OpenedInt(5), 3)
    slide.cache_clear()  # windows are kept by their sizes
    ops.Conv(pad=1).infer(TensorSpec(open_shape, x.dtype), TensorSpec.of(weight.shape, weight.dtype))
    (found,), (expected,) = (compute(ops.Conv(pad=1), x, weight) for compute in (compute_cuda, compute_cpu))
    slide.cache_clear()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
