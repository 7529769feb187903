"""A network in stages, trained on micro-batches, gets the weights of one that is trained on the whole batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from actorflow.nn.parallel import Distribute, Gather, PipelineParallel, Scatter, Vectorize
from tests.nn.parallel.ranks import Ranks, size_of
from tests.support.effort import FULL, slow

BATCH = 7
OPTIMIZERS: dict[str, Callable[[], nn.Optimizer]] = {
    "sgd": lambda: nn.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda: nn.Adam(0.01),
}
PLACES = (["cpu", "cpu", "cpu"], ["cpu", "sim:0", "sim:1"], ["cpu", "1/cpu", "2/cpu"], ["1/sim:0", "cpu", "1/cpu"])


def layers() -> list[af.Composite]:
    """Three stages: one without variables, one with a weight that is used twice."""
    return [
        nn.Conv(2, 3, activation="tanh", name="conv"),
        nn.Pool("max", 2, name="pool"),
        Twice("twice"),
    ]


class Twice(af.Composite):
    """Scores by a layer on a layer, which share their weight."""

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        x = ops.flatten(bottom[0])
        weight = self.variable(x, "weight", (x.shape[1], x.shape[1]), nn.init.xavier(3))
        return ops.inner(ops.tanh(ops.inner(x, weight)), weight)


def inputs(graph: af.Graph) -> tuple[af.Blob, af.Blob]:
    return graph.blob("x", (BATCH, 6, 6, 1), "float64"), graph.blob("labels", BATCH, "int64")


def feeds(count: int = 3) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {"x": random.standard_normal((BATCH, 6, 6, 1)), "labels": random.integers(0, 8, BATCH)} for _ in range(count)
    ]


def build_plain(optimizer: str, graph: af.Graph) -> Mapping[str, Any]:
    x, labels = y, _ = inputs(graph)
    nets = layers()
    with graph.subgraph("pipeline"):
        for net in nets:
            y = net(y)
    loss = ops.softmax_loss(y, labels)
    return {"x": x, "labels": labels, "loss": loss, "train": OPTIMIZERS[optimizer]().minimize(loss), "nets": nets}


def build_pipeline(optimizer: str, places: Sequence[str], graph: af.Graph, *how: Any, **more: Any) -> Mapping[str, Any]:
    x, labels = inputs(graph)
    model = PipelineParallel(layers(), places, *how, loss=ops.softmax_loss, **more)
    loss = model(x, labels)
    train = model.minimize(OPTIMIZERS[optimizer]())
    return {"x": x, "labels": labels, "loss": loss, "train": train, "nets": model.stages, "model": model}


async def trained(ranks: Ranks, in_flight: int) -> tuple[list[float], list[np.ndarray]]:
    results = await ranks.stream(feeds(), ["loss", "train"], in_flight)
    variables = [variable for net in ranks["nets"] for variable in net.variables]
    return [float(result["loss"]) for result in results], [ranks.value(variable) for variable in variables]


_expected: dict[str, tuple[list[float], list[np.ndarray]]] = {}


async def check_like_the_whole(
    optimizer: str, places: Sequence[str], in_flight: int, *how: Any, seed: int | None = None, **more: Any
) -> None:
    if optimizer not in _expected:
        _expected[optimizer] = await trained(Ranks(1, lambda graph: build_plain(optimizer, graph)), 1)
    losses, weights = _expected[optimizer]
    ranks = Ranks(size_of(places), lambda graph: build_pipeline(optimizer, places, graph, *how, **more), seed)
    found, values = await trained(ranks, in_flight)
    np.testing.assert_allclose(found, losses, rtol=0, atol=1e-12)
    for value, expected in zip(values, weights, strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("places", slow(PLACES, but=PLACES[-2:]), ids=" ".join)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
async def test_like_the_whole(places: list[str], schedule: str) -> None:
    for optimizer, in_flight, count in (("sgd", 1, 5), ("sgd", 3, 2), ("adam", 3, 7)):
        await check_like_the_whole(optimizer, places, in_flight, count, schedule=schedule)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@given(
    places=st.lists(st.sampled_from(["cpu", "sim:0", "1/cpu", "1/sim:0", "2/cpu"]), min_size=3, max_size=3),
    count=st.integers(1, BATCH),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    in_flight=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=1_000 if FULL else 10)
def test_any_places_and_any_order_of_messages(
    places: list[str], count: int, schedule: str, in_flight: int, seed: int
) -> None:
    af.run(check_like_the_whole("sgd", places, in_flight, count, seed=seed, schedule=schedule))


def test_variables_are_where_their_stage_is() -> None:
    built = build_pipeline("sgd", ["cpu", "sim:0", "1/cpu"], af.Graph("g"), 3)
    conv, pool, scores = built["nets"]
    assert {str(variable.place) for variable in conv.variables} == {"cpu"}
    assert pool.variables == ()
    assert {str(variable.place) for variable in scores.variables} == {"1/cpu"}
    assert [variable.name for variable in conv.variables] == [
        f"pipeline/micro0/conv/{name}" for name in ("weight", "bias")
    ]
    assert [blob.shape for blob in built["model"].outputs] == [(3, 8), (2, 8), (2, 8)]


async def test_a_stage_can_be_data_parallel() -> None:
    """Composites nest: the middle stage runs at two places, each with half of the micro-batch."""

    def build(graph: af.Graph) -> Mapping[str, Any]:
        conv, pool, scores = layers()
        places = ["cpu", "1/cpu"]
        wide = Scatter(places) >> Vectorize(conv, places) >> Gather("cpu")
        x, labels = inputs(graph)
        model = PipelineParallel([wide, pool, scores], ["cpu", "1/cpu", "1/cpu"], 2, loss=ops.softmax_loss)
        loss = model(x, labels)
        train = model.minimize(nn.SGD(0.1))
        return {"x": x, "labels": labels, "loss": loss, "train": train, "nets": [conv, scores]}

    def plain(graph: af.Graph) -> Mapping[str, Any]:
        x, labels = y, _ = inputs(graph)
        conv, pool, scores = layers()
        y = scores(pool(conv(y)))
        loss = ops.softmax_loss(y, labels)
        return {"x": x, "labels": labels, "loss": loss, "train": nn.SGD(0.1).minimize(loss), "nets": [conv, scores]}

    staged, whole = Ranks(2, build), Ranks(1, plain)
    for mine, other in zip(_variables(staged), _variables(whole), strict=True):
        for graph in staged.graphs:
            if mine.place.rank == graph.world.rank:
                graph[mine.name].value = other.value
    (losses, weights), (expected, others) = await trained(staged, 2), await trained(whole, 1)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12)
    for weight, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(weight, other, rtol=0, atol=1e-12)


def _variables(ranks: Ranks) -> Iterator[af.Variable]:
    for net in ranks["nets"]:
        yield from net.variables


# -- how many micro-batches a stage holds ---------------------------------------------------------------------------

Log = list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Passed(ops.Operation):
    """``y = x``; tells a log what a stage holds more or less then, and what when the gradient passes."""

    stage: int
    log: Log
    onwards: int
    back: int

    def infer(self, *given: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return given

    def gradient(self, op: af.Op, grads: Sequence[af.Blob | None], wanted: Sequence[bool]) -> list[af.Blob | None]:
        assert grads[0] is not None
        return [grads[0].graph.root.apply(Passed(self.stage, self.log, self.back, 0), grads[0])]


@ops.kernel(Passed)
def passed(operation: Passed, given: list[Any], outputs: list[Any]) -> None:
    np.copyto(outputs[0], given[0])
    operation.log.append((operation.stage, operation.onwards))


class Stage(af.Composite):
    """Tells when a micro-batch enters it, and when it has come back to its weight."""

    def __init__(self, number: int, log: Log) -> None:
        super().__init__(f"stage{number}")
        self.number, self.log = number, log

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        (x,) = bottom
        weight = self.variable(x, "weight", x.shape[1:], 1.0)
        x = x.graph.root.apply(Passed(self.number, self.log, 1, 0), x)
        return ops.multiply(x, x.graph.root.apply(Passed(self.number, self.log, 0, -1), weight))


def most_held(log: Log, stage: int) -> int:
    held = most = 0
    for number, change in log:
        held += change if number == stage else 0
        most = max(most, held)
    return most


@pytest.mark.together("stages", [2, 3])
@pytest.mark.together("micro_batches", [1, 4, 7])
async def test_1f1b_holds_few_micro_batches(stages: int, micro_batches: int) -> None:
    log: Log = []

    def build(graph: af.Graph) -> Mapping[str, Any]:
        x = graph.blob("x", (micro_batches, 2))
        made = [Stage(i, log) for i in range(stages)]
        model = PipelineParallel(made, ["cpu"] * stages, micro_batches, loss=ops.sum, schedule="1f1b")
        loss = model(x)
        return {"x": x, "loss": loss, "train": model.minimize(nn.SGD(0.1))}

    ranks = Ranks(1, build)
    await ranks.stream([{"x": np.ones((micro_batches, 2), "f")}], ["loss", "train"])
    for stage in range(stages):
        assert [change for number, change in log if number == stage and change].count(1) == micro_batches
        assert 1 <= most_held(log, stage) <= stages - stage


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PipelineParallel([nn.Flatten()], ["cpu", "cpu"]), "a place for each of 1 stages, got 2"),
        (lambda: PipelineParallel([nn.Flatten()], ["cpu"], 0), "micro_batches must be at least 1, got 0"),
        (
            lambda: PipelineParallel([nn.Flatten()], ["cpu"], schedule="zb"),
            "schedule must be one of gpipe, 1f1b, got 'zb'",
        ),
        (lambda: PipelineParallel([nn.Flatten()], ["cpu"]).minimize(nn.SGD(0.1)), "has no gradients"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(af.GraphError, match=message):
        make()


def test_more_refusals() -> None:
    graph = af.Graph("g")
    x, labels = inputs(graph)
    with pytest.raises(af.ShapeError, match="an axis of 7 elements cannot be split into 8 parts"):
        PipelineParallel(layers(), ["cpu"] * 3, 8, loss=ops.softmax_loss)(x, labels)
    with pytest.raises(af.ShapeError, match="the loss must be 0-d"):
        PipelineParallel(layers(), ["cpu"] * 3)(x)
    with pytest.raises(af.GraphError, match="stage 'both' must have one top blob, got 2"):
        PipelineParallel([Distribute(["cpu", "sim:0"], name="both"), nn.Flatten()], ["cpu"] * 2)(x, labels)
    model = PipelineParallel(layers(), ["cpu"] * 3, loss=ops.softmax_loss)
    model(x, labels)
    other = graph.variable("other", 3)
    with pytest.raises(af.GraphError, match=r"cannot be differentiated by .*other"):
        model.minimize(nn.SGD(0.1), [other])
