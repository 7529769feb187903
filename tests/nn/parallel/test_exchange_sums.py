"""Aggregate and AllReduce: values, gradients, orders, and how many messages they take."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.nn.parallel import Aggregate, AllReduce
from actorflow.ops.transfer import Receive
from tests.nn.parallel.ranks import Ranks, size_of
from tests.nn.parallel.test_exchange import places_of, weighted
from tests.support.effort import FULL

PLACES = (
    ["cpu"],
    ["cpu", "sim:0", "cpu"],
    ["1/cpu", "cpu", "1/sim:0"],
    ["2/cpu", "1/sim:1", "cpu", "1/sim:0", "1/cpu", "2/cpu"],
)
Build = Callable[[af.Graph], Mapping[str, Any]]


def built(places: list[str], make: Callable[[], af.Composite], dtype: str = "float64") -> Build:
    """A blob for each place, reduced; where a gradient exists, that of a loss by which the tops differ."""

    def build(graph: af.Graph) -> Mapping[str, Any]:
        xs = [graph.blob(f"x{i}", (2, 3), dtype, place) for i, place in enumerate(places)]
        reduce = make()
        reduce(*xs)
        tops = {f"y{i}": y for i, y in enumerate(reduce.top)}
        grads = af.gradient(weighted(reduce.top), xs) if dtype == "float64" else ()
        return {x.name: x for x in xs} | tops | {f"dx{i}": grad for i, grad in enumerate(grads)}

    return build


def values(places: list[str], dtype: str = "float64") -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {f"x{i}": (random.standard_normal((2, 3)) * 100).astype(dtype) for i in range(len(places))}


@pytest.mark.together("places", PLACES, ids=" ".join)
@pytest.mark.together("target", ["cpu", "sim:0", "1/cpu"])
@pytest.mark.together("average", [False, True])
async def test_aggregate(places: list[str], target: str, average: bool) -> None:
    ranks = Ranks(size_of([*places, target]), built(places, lambda: Aggregate(target, average)))
    feed = values(places)
    (found,) = await ranks.stream([feed], ["y0", *[f"d{name}" for name in feed]])
    share = 1 / len(places) if average else 1.0
    total = sum(feed.values()) * share
    assert str(ranks["y0"].place) == (target if len(places) > 1 or target != "cpu" else "cpu")
    np.testing.assert_allclose(found["y0"], total, rtol=1e-14)
    for name in feed:
        np.testing.assert_allclose(found[f"d{name}"], total * share, rtol=1e-13)
    # What another rank has is summed up there: one message from each.
    rank = af.Place.parse(target).rank
    plan = ranks.graphs[rank].compile([ranks.built[rank]["y0"]])
    received = sorted(op.operation.source for op in plan.ops if isinstance(op.operation, Receive))
    assert received == sorted({af.Place.parse(place).rank for place in places} - {rank})


def test_aggregate_adds_in_the_declared_order() -> None:
    graph = af.Graph("g")
    xs = [graph.blob(f"x{i}", ()) for i in range(3)]
    y = Aggregate("cpu")(*xs)
    big = np.float32(1e8)
    for given_values, total in (((big, -big, 1), 1), ((1, big, -big), 0)):
        assert graph.run_sync(dict(zip(xs, given_values, strict=True)))[y] == total


@pytest.mark.together("places", PLACES, ids=" ".join)
@pytest.mark.together("average", [False, True])
async def test_all_reduce(places: list[str], average: bool) -> None:
    ranks = Ranks(size_of(places), built(places, lambda: AllReduce(average)))
    feed = values(places)
    names = [f"y{i}" for i in range(len(places))]
    (found,) = await ranks.stream([feed], [*names, *[f"d{name}" for name in feed]])
    share = 1 / len(places) if average else 1.0
    total = sum(feed.values()) * share
    assert places_of(ranks[name] for name in names) == places
    for name in names:
        np.testing.assert_allclose(found[name], total, rtol=1e-14)
        np.testing.assert_array_equal(found[name], found["y0"])
    for name in feed:
        np.testing.assert_allclose(found[f"d{name}"], total * share * sum(range(1, len(places) + 1)), rtol=1e-13)


async def test_all_reduce_again_in_one_graph() -> None:
    """Each build is a collective of its own, and one op of it brings the others into the plan."""

    def build(graph: af.Graph) -> Mapping[str, Any]:
        xs = [graph.blob(f"x{i}", 2, "float64", place) for i, place in enumerate(("cpu", "1/cpu"))]
        once = AllReduce(name="sum")
        once(*xs)
        twice = AllReduce(name="sum")
        twice(*once.top)
        return {"x0": xs[0], "x1": xs[1], "y": twice.top[0]}

    ranks = Ranks(2, build)
    found = await ranks.stream([{"x0": [i, 1], "x1": [2, 3]} for i in range(5)], ["y"], in_flight=3)
    assert [frame["y"].tolist() for frame in found] == [[2 * i + 4, 8] for i in range(5)]


@pytest.mark.timeout(1200)
@given(
    places=st.lists(st.sampled_from(["cpu", "sim:0", "1/cpu", "1/sim:0", "2/cpu"]), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    in_flight=st.integers(1, 4),
)
@settings(max_examples=1_000 if FULL else 8)
def test_the_result_does_not_depend_on_timing(places: list[str], seed: int, in_flight: int) -> None:
    names = [f"y{i}" for i in range(len(places))]

    def run(seed: int | None, in_flight: int, make: Callable[[], af.Composite]) -> list[dict[str, np.ndarray]]:
        ranks = Ranks(size_of(places), built(places, make), seed)
        feeds = [{name: value * (i + 1) for name, value in values(places).items()} for i in range(4)]
        fetch = names if make is AllReduce else names[:1]
        return af.run(ranks.stream(feeds, fetch, in_flight))

    for make in (AllReduce, lambda: Aggregate(places[-1])):
        for quiet, shuffled in zip(run(None, 1, make), run(seed, in_flight, make), strict=True):
            assert quiet.keys() == shuffled.keys()
            for name, value in quiet.items():
                np.testing.assert_array_equal(shuffled[name], value)


class TestTheOperation:
    def test_what_it_refuses(self) -> None:
        x = af.Graph("g").blob("x", 3, "complex64")
        for operation, kind, message in (
            (ops.AllReduce("a", (0, 1), "mean"), af.GraphError, "operation must be 'sum', 'max' or 'min', got 'mean'"),
            (ops.AllReduce("a", (1, 0)), af.GraphError, r"ranks must be at least two, ascending, got \(1, 0\)"),
            (ops.AllReduce("a", (1,)), af.GraphError, "at least two"),
            (ops.AllReduce("a", (0, 1), "max"), af.DTypeError, "x must be real"),
        ):
            with pytest.raises(kind, match=message):
                x.graph.apply(operation, x)
        assert x.graph.apply(ops.AllReduce("a", (0, 1)), x).spec == x.spec

    def test_only_sums_have_a_gradient(self) -> None:
        graph = af.Graph("g")
        x = graph.blob("x", ())
        y = graph.apply(ops.AllReduce("a", (0, 1), "max"), x)
        with pytest.raises(af.GraphError, match="operation 'max' has no gradient"):
            af.gradient(y, x)


@pytest.mark.parametrize("reduce", [AllReduce(), Aggregate("cpu")])
def test_blobs_must_be_alike(reduce: af.Composite) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", 3)
    with pytest.raises(af.ShapeError, match=r"blob 'number' must have the shape of 'x', \(3,\), got float32\[\]"):
        reduce(x, graph.blob("number", (), place="1/cpu"))
    with pytest.raises(af.DTypeError, match="blob 'wide' must have the dtype of 'x', float32"):
        reduce(x, graph.blob("wide", 3, "float64", "1/cpu"))
