"""Networks whose batch and image size are open compute what they do with these closed, to the bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import actorflow as af
from tests.support.effort import FULL, slow

NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...], list[int]]] = {
    "LeNet": (lambda: af.nn.LeNet(10), (28, 28, 1), [28]),
    "NIN": (lambda: af.nn.NIN(10), (32, 32, 3), [32, 28]),
    "ResNet": (lambda: af.nn.ResNet(10), (64, 64, 3), [64, 50]),
    "MobileNetV3": (lambda: af.nn.MobileNetV3(10), (64, 64, 3), [64, 50]),
    "GoogLeNet": (lambda: af.nn.GoogLeNet(10), (224, 224, 3), [224, 192] if FULL else [96, 64]),
}


def build(name: str, batch: Any, size: Any) -> tuple[af.Graph, af.Blob, af.Blob]:
    make, (*_, channels), _ = NETWORKS[name]
    graph = af.Graph(name, deterministic=True)
    x = graph.blob("x", (batch, *size, channels))
    return graph, x, make()(x, training=False)


async def result(graph: af.Graph, x: af.Blob, y: af.Blob, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return (await graph.run({x: value}, fetch=y))[y]


@pytest.mark.parametrize("name", slow(NETWORKS, but={"LeNet", "NIN"}))
async def test_results_are_those_of_closed_networks(name: str) -> None:
    _, (*_, channels), sizes = NETWORKS[name]
    open_size = ("height", "width") if len(sizes) > 1 else (sizes[0], sizes[0])
    graph, x, y = build(name, "batch", open_size)
    async with graph:
        for rows, size in [(rows, size) for size in sizes for rows in (4, 1)]:
            value = np.random.default_rng(size).standard_normal((rows, size, size, channels), np.float32)
            found = await result(graph, x, y, value)
            closed, u, z = build(name, rows, (size, size))
            async with closed:
                np.testing.assert_array_equal(found, await result(closed, u, z, value))


async def test_training_of_any_batch_is_that_of_closed_graphs() -> None:
    """Steps on batches of several lengths, one after the other, leave the weights that closed graphs would."""

    def make(batch: Any) -> tuple[af.Graph, af.Blob, af.Blob, Any]:
        graph = af.Graph("training", deterministic=True)
        x, labels = graph.blob("x", (batch, 12, 12, 2)), graph.blob("labels", (batch,), "int64")
        loss = af.ops.softmax_loss(af.nn.NIN(10, (4, 8))(x, training=True), labels)
        return graph, x, labels, [loss, af.nn.SGD(0.05, momentum=0.9).minimize(loss)]

    random = np.random.default_rng(0)
    lengths = [5, 1, 8, 5, 3, 1]
    batches = [(random.standard_normal((n, 12, 12, 2), np.float32), random.integers(0, 10, n)) for n in lengths]
    graph, x, labels, fetch = make("batch")
    known: dict[str, npt.NDArray[Any]] = {}
    async with graph:
        for number, (images, classes) in enumerate(batches):
            loss = (await graph.run({x: images, labels: classes}, fetch=fetch))[fetch[0]]
            closed, u, v, its = make(lengths[number])
            closed.engine.next_number = number  # for dropout
            for variable in closed.variables:
                if known:
                    variable.value = known[variable.name]
            async with closed:
                assert (await closed.run({u: images, v: classes}, fetch=its))[its[0]] == loss
            known = {variable.name: variable.value for variable in closed.variables}
            for variable in graph.variables:
                np.testing.assert_array_equal(variable.value, known[variable.name], err_msg=variable.name)
