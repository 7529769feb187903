"""CopyTo, Distribute, Scatter and Gather: values, gradients, where they are, and how many messages they take."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.nn.parallel import CopyTo, Distribute, Gather, Scatter
from actorflow.ops.transfer import Send
from tests.nn.parallel.ranks import Ranks, size_of

PLACES = (["cpu"], ["cpu", "sim:0", "cpu"], ["1/cpu", "cpu", "1/sim:0"], ["2/cpu", "1/sim:1", "1/sim:0", "1/sim:1"])


def sent(ranks: Ranks, fetch: list[str], rank: int = 0) -> list[int]:
    """To which ranks a rank sends something, once for each message."""
    targets = [ranks.built[rank][name] for name in fetch]
    plan = ranks.graphs[rank].compile(targets)
    return sorted(op.operation.target for op in plan.ops if isinstance(op.operation, Send))


def places_of(blobs: Any) -> list[str]:
    return [str(blob.place) for blob in blobs]


def weighted(tops: Any) -> af.Blob:
    """A loss by which each top has another gradient: ``i + 1`` times the top's values."""
    terms = []
    for i, top in enumerate(tops):
        with top.graph.root.at(top.place):
            flat = ops.reshape(top, (1, top.spec.size))
            terms.append(ops.scale(ops.reshape(ops.inner(flat, flat), ()), (i + 1) / 2))
    with tops[0].graph.root.at("cpu"):
        return ops.add(*terms)


@pytest.mark.parametrize("places", PLACES, ids=" ".join)
async def test_distribute(places: list[str]) -> None:
    def build(graph: af.Graph) -> Mapping[str, Any]:
        x = graph.blob("x", (2, 3), "float64")
        tops = [x] >> Distribute(places)
        names = {f"y{i}": y for i, y in enumerate(tops.top)}
        return {"x": x, "dx": af.gradient(weighted(tops.top), x), **names}

    ranks = Ranks(size_of(places), build)
    names = [f"y{i}" for i in range(len(places))]
    x = np.arange(6.0).reshape(2, 3)
    (found,) = await ranks.stream([{"x": x}], [*names, "dx"])
    assert places_of(ranks[name] for name in names) == places
    for name in names:
        np.testing.assert_array_equal(found[name], x)
    np.testing.assert_allclose(found["dx"], x * sum(range(1, len(places) + 1)))
    # One message to each other rank, however many of its places there are.
    others = {af.Place.parse(place).rank for place in places} - {0}
    assert sent(ranks, names) == sorted(others)


@pytest.mark.parametrize("places", PLACES, ids=" ".join)
@pytest.mark.parametrize("axis", [0, -1])
async def test_scatter_and_gather(places: list[str], axis: int) -> None:
    target = places[-1]

    def build(graph: af.Graph) -> Mapping[str, Any]:
        x, labels = graph.blob("x", (6, 2, 5), "float64"), graph.blob("labels", (6, 1, 4), "int64")
        split = Scatter(places, axis)
        split(x, labels)
        count = len(places)
        joined = split.top[:count] >> Gather(target, axis)
        with graph.subgraph("others"):
            split.top[count:] >> Gather("cpu", axis)
        parts = {f"part{i}": part for i, part in enumerate(split.top)}
        both = {"joined": joined.top[0], "others": graph["others/gather/join/out"]}
        return {"x": x, "labels": labels, "dx": af.gradient(weighted(split.top[:count]), x), **both, **parts}

    ranks = Ranks(size_of(places), build)
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((6, 2, 5)), random.integers(0, 9, (6, 1, 4))
    count = len(places)
    names = [f"part{i}" for i in range(2 * count)]
    (found,) = await ranks.stream([{"x": x, "labels": labels}], [*names, "joined", "others", "dx"])
    assert places_of(ranks[name] for name in names) == places * 2
    assert str(ranks["joined"].place) == target
    expected = [*np.array_split(x, count, axis), *np.array_split(labels, count, axis)]
    for name, part in zip(names, expected, strict=True):
        np.testing.assert_array_equal(found[name], part)
    np.testing.assert_array_equal(found["joined"], x)
    np.testing.assert_array_equal(found["others"], labels)
    factors = np.concatenate([np.full_like(part, i + 1) for i, part in enumerate(expected[:count])], axis)
    np.testing.assert_allclose(found["dx"], x * factors)


async def test_no_more_than_its_part_is_sent() -> None:
    def build(graph: af.Graph) -> Mapping[str, Any]:
        x = graph.blob("x", (9, 5))
        return {"x": x, **{f"part{i}": part for i, part in enumerate(Scatter(["cpu", "1/cpu", "2/cpu"])(x))}}

    ranks = Ranks(3, build)
    plan = ranks.graphs[0].compile([ranks["part1"], ranks["part2"]])
    sends = [op for op in plan.ops if isinstance(op.operation, Send)]
    assert [plan.slots[op.inputs[0]].spec.shape for op in sends] == [(3, 5), (3, 5)]


async def test_copy_moves_what_is_elsewhere() -> None:
    def build(graph: af.Graph) -> Mapping[str, Any]:
        x, z = graph.blob("x", 3), graph.blob("z", 2, "int64", "1/cpu")
        copy = CopyTo("1/cpu")
        copy(x, z)
        assert copy.top[1] is z
        return {"x": x, "z": z, "y": copy.top[0]}

    ranks = Ranks(2, build)
    (found,) = await ranks.stream([{"x": [1, 2, 3], "z": [4, 5]}], ["y", "z"])
    assert found["y"].tolist() == [1, 2, 3]
    assert found["z"].tolist() == [4, 5]
    assert str(ranks["y"].place) == "1/cpu"


def test_names_and_chains() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (4, 3))
    chain = CopyTo("sim:0", name="there") >> Distribute(["cpu", "sim:0"], name="both")
    [x] >> chain
    assert [blob.name for blob in chain.top] == ["chain/both/copy/out", "chain/there/copy/out"]
    with graph.at("sim:1"):  # a composite's places are its own
        assert places_of(Scatter(["cpu", "sim:0"])(x)) == ["cpu", "sim:0"]
        assert graph["scatter/split"].place == x.place
        assert str(Gather("sim:0")(x, x).place) == "sim:0"


@pytest.mark.together(
    ("make", "message"),
    [
        (lambda x: Distribute("cpu"), "must be a sequence of places, got 'cpu' alone"),
        (lambda x: Distribute([]), "give at least one place"),
        (lambda x: Distribute(["cpu"])(x, x), r"takes 1 bottom blob \(x\), got 2"),
        (lambda x: Scatter(["cpu"] * 4)(x), "an axis of 3 elements cannot be split into 4 parts"),
        (lambda x: Scatter(["cpu"] * 2, axis=2)(x), "axis must be from -2 to 1, got 2"),
        (lambda x: CopyTo("1/"), "'1/' is not a place"),
        (lambda x: Gather("cpu")(x, ops.cast(x, "float64")), "dtype"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    x = af.Graph("g").blob("x", (3, 2))
    with pytest.raises((af.GraphError, af.PlaceError), match=message):
        make(x)


async def test_places_that_are_not_there() -> None:
    graph = af.Graph("g")
    y = nn.parallel.CopyTo("1/cpu")(graph.blob("x", 3))
    with pytest.raises(af.PlaceError, match=r"1/cpu.*mpiexec -n 2"):
        await graph.run({"x": [1, 2, 3]}, fetch=[y])
