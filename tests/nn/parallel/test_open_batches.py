"""Parallel training on batches of any length, also of fewer rows than places, gives the weights of one place."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from actorflow.nn.parallel.exchange import lengths_of
from tests.nn.parallel.ranks import Ranks, size_of
from tests.support.effort import slow

LENGTHS = (7, 1, 5, 0, 3)


def feeds() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [{"x": random.standard_normal((n, 5)), "labels": random.integers(0, 4, n)} for n in LENGTHS]


def sources(graph: af.Graph) -> tuple[af.Blob, af.Blob]:
    return graph.blob("x", ("batch", 5), "float64"), graph.blob("labels", ("batch",), "int64")


def optimizer() -> nn.Optimizer:
    return nn.SGD(0.1, momentum=0.9, weight_decay=0.01)


def plain(graph: af.Graph, scope: str, make: Any) -> Mapping[str, Any]:
    x, labels = sources(graph)
    with graph.subgraph(scope):
        net = make()
        loss = ops.softmax_loss(net(x), labels)
    return {"x": x, "labels": labels, "loss": loss, "train": optimizer().minimize(loss), "nets": [net]}


async def trained(ranks: Ranks) -> tuple[list[float], list[np.ndarray]]:
    found = await ranks.stream(feeds(), ["loss", "train"], 2)
    return [float(result["loss"]) for result in found], [
        af.to_numpy(ranks.value(variable)) for net in ranks["nets"] for variable in net.variables
    ]


async def check(parallel: Any, reference: Any, size: int) -> None:
    losses, weights = await trained(Ranks(size, parallel))
    expected, of_one = await trained(Ranks(1, reference))
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert np.isnan(losses[LENGTHS.index(0)]), "the mean of no rows, as on one place"
    for value, other in zip(weights, of_one * (len(weights) // len(of_one)), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("scheme", ["allreduce", "server", "aggregate"])
@pytest.mark.parametrize(
    "places",
    [["cpu", "cpu"], *slow([["sim:0", "cpu", "sim:1", "cpu"], ["cpu", "1/cpu"]]), ["1/cpu", "sim:0", "2/cpu"]],
    ids=str,
)
async def test_data_parallel(scheme: str, places: Sequence[str]) -> None:
    def make() -> af.Composite:
        return nn.MLP(4, (6,), activation="tanh")

    def parallel(graph: af.Graph) -> Mapping[str, Any]:
        x, labels = sources(graph)
        model = nn.parallel.DataParallel(make(), places, loss=ops.softmax_loss, scheme=scheme)
        loss = model(x, labels)
        nets = model.replicas if scheme == "allreduce" else model.replicas[:1]
        return {"x": x, "labels": labels, "loss": loss, "train": model.minimize(optimizer()), "nets": nets}

    await check(parallel, lambda graph: plain(graph, "dataparallel", make), size_of(places))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
async def test_pipeline_parallel(schedule: str) -> None:
    def stages() -> list[af.Composite]:
        return [nn.InnerProduct(6, activation="tanh", name="front"), nn.InnerProduct(4, name="back")]

    def parallel(graph: af.Graph) -> Mapping[str, Any]:
        x, labels = sources(graph)
        made = stages()
        model = nn.parallel.PipelineParallel(made, ["cpu", "1/cpu"], 3, loss=ops.softmax_loss, schedule=schedule)
        loss = model(x, labels)
        return {"x": x, "labels": labels, "loss": loss, "train": model.minimize(optimizer()), "nets": made}

    def reference(graph: af.Graph) -> Mapping[str, Any]:
        x, labels = sources(graph)
        with graph.subgraph("pipeline"):
            made = stages()
            loss = ops.softmax_loss(made[1](made[0](x)), labels)
        return {"x": x, "labels": labels, "loss": loss, "train": optimizer().minimize(loss), "nets": made}

    await check(parallel, reference, 2)


async def test_statistics_of_too_few_rows_are_refused_with_the_length() -> None:
    graph = af.Graph("g")
    x, labels = sources(graph)

    class Net(nn.MLP):
        def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
            return nn.BatchNorm(name="norm")(super().build(*bottom, training=training))

    model = nn.parallel.DataParallel(Net(4, ()), ["cpu", "cpu"], loss=ops.softmax_loss)
    loss = model(x, labels)
    seven, one, *_ = feeds()
    async with graph:
        await graph.run({x: seven["x"], labels: seven["labels"]}, fetch=[loss])
        with pytest.raises(af.ShapeError, match=r"with batch = 1: .*at least 2 elements per channel"):
            await graph.run({x: one["x"], labels: one["labels"]}, fetch=[loss])


@given(st.integers(1, 100), st.integers(1, 12))
def test_parts_are_as_even_as_can_be(length: int, parts: int) -> None:
    if length >= parts:
        found = lengths_of("parts", length, parts)
        assert sum(found) == length
        assert list(found) == sorted(found, reverse=True)
        assert max(found) - min(found) <= 1
    else:
        with pytest.raises(af.ShapeError, match=f"of {length} elements cannot be split into {parts} parts"):
            lengths_of("parts", length, parts)
    opened = lengths_of("parts", af.TensorSpec.of(("batch",)).shape[0], parts)
    numbers = [n if isinstance(n, int) else n.at({"batch": length}) for n in opened]
    assert sum(numbers) == length
    assert max(numbers) - min(numbers) <= 1
