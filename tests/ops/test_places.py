"""Each operation, forwards and backwards, gives the same on every kind of device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
from benchmarks.gpu.bench import relative_error
from benchmarks.gpu.cases import OperationCase, operation_cases

CASES = list(operation_cases(quick=True))
PLACES = ["sim:0", pytest.param("cuda:0", marks=pytest.mark.gpu)]
#: Relative errors in the sense of norms; sums of a few hundred products at most.
TOLERANCES = {"float32": 1e-5, "float64": 1e-13}


async def outputs(place: str, case: OperationCase, dtype: str) -> list[Any]:
    graph = af.Graph("one")
    with graph.at(place):
        inputs = [
            graph.variable(f"x{i}", array.shape, dtype if array.dtype.kind == "f" else array.dtype, array)
            for i, array in enumerate(case.arrays)
        ]
        op = graph.op("op", case.operation)
        op(*inputs)
    async with graph:
        for planned in graph.compile().ops:
            assert str(planned.place) == place, planned.note
        result = await graph.run(fetch=op.outputs)
        return [np.array(af.to_numpy(result[blob])) for blob in op.outputs]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
async def test_same_as_on_the_cpu(case: OperationCase, dtype: str, place: str) -> None:
    expected = await outputs("cpu", case, dtype)
    actual = await outputs(place, case, dtype)
    assert [array.dtype for array in actual] == [array.dtype for array in expected]
    for mine, reference in zip(actual, expected, strict=True):
        assert relative_error(mine, reference) <= TOLERANCES[dtype]


@pytest.mark.parametrize("place", PLACES)
async def test_training_is_the_same_as_on_the_cpu(place: str) -> None:
    def network(on: str) -> tuple[af.Graph, Any, Any, Any, Any]:
        graph = af.Graph("training")
        images, labels = graph.blob("images", (6, 12, 12, 3)), graph.blob("labels", (6,), "int64")
        layers = af.nn.NIN(4, (8, 8), seed=1)
        with graph.at(on):
            loss = af.ops.softmax_loss(layers(images, training=True), labels)
            updates = af.nn.SGD(0.1, 0.9, 1e-3).minimize(loss)
        return graph, layers, images, labels, [loss, updates]

    rng = np.random.default_rng(0)
    batches = [(rng.random((6, 12, 12, 3), np.float32), rng.integers(0, 4, 6)) for _ in range(5)]
    found = []
    for on in ("cpu", place):
        graph, layers, images, labels, fetch = network(on)
        async with graph:
            feeds = [{images: x, labels: y} for x, y in batches]
            losses = [float(af.to_numpy(r[fetch[0]])) async for r in graph.stream(feeds, fetch=fetch, in_flight=3)]
            found.append((losses, np.concatenate([np.ravel(v.value) for v in layers.variables])))
    (losses, weights), (other_losses, other_weights) = found
    assert len(losses) == 5
    np.testing.assert_allclose(other_losses, losses, rtol=1e-4)
    assert relative_error(other_weights, weights) <= 1e-4
