"""The same layer at several places: where things are, what is shared, how it begins."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from actorflow.nn.parallel import Aggregate, Distribute, Gather, ParameterServer, Scatter, Vectorize
from tests.nn.parallel.ranks import Ranks
from tests.support.effort import FULL

PLACES = ["cpu", "sim:0", "1/cpu"]


def inner() -> af.Composite:
    return nn.InnerProduct(2, activation="tanh", name="inner")


def test_a_composite_is_shared() -> None:
    graph = af.Graph("g")
    layer = inner()
    chain = Distribute(PLACES) >> Vectorize(layer, PLACES, name="layers")
    [graph.blob("x", (4, 3))] >> chain
    assert [str(blob.place) for blob in chain.top] == PLACES
    assert layer.variables == graph.variables
    assert {str(variable.place) for variable in graph.variables} == {"cpu"}
    assert [op.name for op in graph.ops if op.operation.kind == "Inner"] == [
        f"chain/layers/replica{i}/inner/inner" for i in range(3)
    ]


def test_a_function_makes_layers_with_variables_of_their_own() -> None:
    graph, places = af.Graph("g"), ["cpu", "sim:0", "sim:1"]
    vectorize = Vectorize(inner, places)
    [graph.blob("x", (4, 3))] >> Distribute(places) >> vectorize
    weights = [layer.variables[0] for layer in vectorize.layers]
    assert [str(weight.place) for weight in weights] == places
    assert [weight.name for weight in weights] == [f"vectorize/replica{i}/inner/weight" for i in range(3)]
    for weight in weights:
        np.testing.assert_array_equal(weight.value, weights[0].value)
    other = Vectorize(inner, places)
    other(*vectorize.bottom)
    assert not np.array_equal(other.layers[0].variables[0].value, weights[0].value)  # another layer


def test_copies_within_copies_begin_alike() -> None:
    def nested() -> af.Composite:
        made = Distribute(["cpu", "sim:0"]) >> Vectorize(inner, ["cpu", "sim:0"]) >> Gather("cpu", 1)
        made.name = "nested"
        return made

    graph = af.Graph("g")
    outer = Vectorize(nested, PLACES[:2])
    outer(*Distribute(PLACES[:2])(graph.blob("x", (4, 3))))
    weights = [variable for variable in graph.variables if variable.name.endswith("weight")]
    assert len(weights) == 4
    for weight in weights:
        np.testing.assert_array_equal(weight.value, weights[0].value)


async def test_several_bottoms_and_tops_across_ranks() -> None:
    class Both(af.Composite):
        def build(self, *bottom: af.Blob, training: bool) -> Any:
            a, b = bottom
            return ops.add(a, b), ops.subtract(a, b)

    def build(graph: af.Graph) -> Mapping[str, Any]:
        a, b = graph.blob("a", 6), graph.blob("b", 6)
        vectorize = Vectorize(Both(), PLACES)
        vectorize(*Scatter(PLACES)(a, b))
        sums, differences = (Gather("cpu")(*vectorize.top[i : i + 3]) for i in (0, 3))
        return {"a": a, "b": b, "sums": sums, "differences": differences}

    a, b = np.arange(6, dtype="f"), np.arange(6, dtype="f") ** 2
    (found,) = await Ranks(2, build).stream([{"a": a, "b": b}], ["sums", "differences"])
    np.testing.assert_array_equal(found["sums"], a + b)
    np.testing.assert_array_equal(found["differences"], a - b)


async def test_a_shared_layer_is_trained_by_all_places() -> None:
    """Without DataParallel: composites, a gradient, an optimizer."""

    def build(graph: af.Graph) -> Mapping[str, Any]:
        x = graph.blob("x", (6, 3), "float64")
        layer = inner()
        tops = Vectorize(layer, PLACES)(*Scatter(PLACES)(x))
        losses = []
        for top in tops:
            with graph.at(top.place):
                losses.append(ops.sum(ops.square(top)))
        loss = Aggregate("cpu")(*losses)
        return {"x": x, "loss": loss, "train": nn.SGD(0.1).minimize(loss), "layer": layer}

    def whole(graph: af.Graph) -> Mapping[str, Any]:
        x = graph.blob("x", (6, 3), "float64")
        layer = inner()
        with graph.subgraph("vectorize"):
            loss = ops.sum(ops.square(layer(x)))
        return {"x": x, "loss": loss, "train": nn.SGD(0.1).minimize(loss), "layer": layer}

    random = np.random.default_rng(0)
    feeds = [{"x": random.standard_normal((6, 3))} for _ in range(5)]
    apart, together = Ranks(2, build), Ranks(1, whole)
    found, expected = await apart.stream(feeds, ["loss", "train"], 2), await together.stream(feeds, ["loss", "train"])
    np.testing.assert_allclose([f["loss"] for f in found], [e["loss"] for e in expected], rtol=1e-12)
    for mine, other in zip(apart["layer"].variables, together["layer"].variables, strict=True):
        np.testing.assert_allclose(apart.value(mine), together.value(other), atol=1e-12)


def test_refusals() -> None:
    x = af.Graph("g").blob("x", (4, 3))
    with pytest.raises(af.GraphError, match="bottom blobs for each of 2 places, got 3"):
        Vectorize(inner(), ["cpu", "sim:0"])(x, x, x)
    with pytest.raises(af.GraphError, match="must be a composite or make one, got int"):
        Vectorize(lambda: 3, ["cpu"])  # type: ignore[arg-type, return-value]


class TestParameterServer:
    def test_the_largest_goes_where_the_least_is(self) -> None:
        graph = af.Graph("g")
        variables = [graph.variable(f"v{i}", size) for i, size in enumerate([1, 5, 2, 4, 3])]
        server = ParameterServer(["cpu", "1/cpu", "cpu"])
        server.hold(variables)
        assert {str(place): size for place, size in server.size_bytes.items()} == {"cpu": 32, "1/cpu": 28}
        assert [str(variable.place) for variable in variables] == ["cpu", "cpu", "cpu", "1/cpu", "1/cpu"]

    @given(sizes=st.lists(st.integers(0, 1000), max_size=40), count=st.integers(1, 5))
    @settings(max_examples=2_000 if FULL else 50)
    def test_no_place_has_more_than_one_variable_too_many(self, sizes: list[int], count: int) -> None:
        graph = af.Graph("g")
        variables = [graph.variable(f"v{i}", size, "uint8") for i, size in enumerate(sizes)]
        server = ParameterServer([f"{rank}/cpu" for rank in range(count)])
        server.hold(variables)
        held = list(server.size_bytes.values())
        assert sum(held) == sum(sizes)
        assert max(held) - min(held) <= max(sizes, default=0)
        for place, size in server.size_bytes.items():
            assert size == sum(variable.spec.size_bytes for variable in variables if variable.place == place)
