"""Edges between ranks are just edges."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.transport.local import LocalTransport
from tests.ranks.conftest import Ranks


def there_and_back(graph: af.Graph, length: int | str = 4) -> af.Blob:
    with graph.at("0/cpu"):
        x = graph.blob("x", (length,))
        a = ops.scale(x, 2.0, name="a")
    with graph.at("1/cpu"):
        b = ops.scale(a, 3.0, name="b")
    with graph.at("0/cpu"):
        return ops.scale(b, 5.0, name="c")


def test_the_plan_of_each_rank_has_its_own_ops_alone(world_of: Any) -> None:
    plans = []
    for transport in world_of(3):
        graph = af.Graph("ranks", world=transport)
        there_and_back(graph)
        plans.append(graph.compile().summary())
    assert "send of a/out" in plans[0]
    assert "receive of b/out" in plans[0]
    assert "to rank 1" in plans[0]
    assert "b/out" not in plans[2]
    assert "fetched: nothing" in plans[1]


async def test_one_message_serves_all_readers_of_a_rank() -> None:
    def build(graph: af.Graph) -> list[af.Blob]:
        with graph.at("0/cpu"):
            x = graph.blob("x", (2,))
            a = ops.scale(x, 2.0, name="a")
        with graph.at("1/cpu"):
            return [ops.scale(a, float(i), name=f"y{i}") for i in range(3)]

    ranks = Ranks(build)
    assert ranks.graphs[0].compile().summary().count("send of") == 1
    _, result = await ranks.all(lambda graph, _: graph.run({"x": [1, 2]}))
    assert [result[f"y{i}/out"].tolist() for i in range(3)] == [[0, 0], [2, 4], [4, 8]]
    await ranks.aclose()


async def test_terms_of_several_ranks_are_summed_in_declared_order() -> None:
    terms = [1e16, 1.0, -1e16]

    def build(graph: af.Graph) -> af.Blob:
        y = graph.blob("y", (), "float64", "1/cpu")
        for rank, term in enumerate(terms):
            graph.function(f"term{rank}", lambda term=term: term, place=f"{rank}/cpu") >> [y]
        return y

    for seed in range(6):
        ranks = Ranks(build, 3, seed)
        results = await ranks.all(lambda graph, y: graph.run(fetch=[y]))
        assert results[1]["y"] == (1e16 + 1.0) - 1e16
        assert list(results[0]) == list(results[2]) == []
        await ranks.aclose()


async def test_values_of_accelerators_go_by_way_of_their_hosts() -> None:
    def build(graph: af.Graph) -> af.Blob:
        with graph.at("0/sim:0"):
            x = graph.blob("x", (8,))
            a = ops.scale(x, 2.0, name="a")
        with graph.at("1/sim:0"):
            return ops.scale(a, 2.0, name="b")

    ranks = Ranks(build)
    _, result = await ranks.all(lambda graph, _: graph.run({"x": np.ones(8, np.float32)}))
    np.testing.assert_array_equal(af.to_numpy(result["b/out"]), np.full(8, 4.0))
    assert "copy of a/out" in ranks.graphs[0].compile().summary()
    await ranks.aclose()


async def test_a_transport_that_takes_arrays_of_a_device_gets_them_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def bytes_of(self: LocalTransport, array: Any) -> memoryview:
        return memoryview(af.to_numpy(array).reshape(-1).view(np.uint8))

    monkeypatch.setattr(LocalTransport, "takes", lambda self, kind: kind in ("cpu", "sim"))
    usual = LocalTransport.bytes_of
    monkeypatch.setattr(
        LocalTransport,
        "bytes_of",
        lambda self, array: usual(self, array) if isinstance(array, np.ndarray) else bytes_of(self, array),
    )

    def build(graph: af.Graph) -> af.Blob:
        with graph.at("0/sim:0"):
            a = ops.scale(graph.blob("x", (8,)), 2.0, name="a")
        with graph.at("1/sim:0"):
            return ops.scale(a, 2.0, name="b")

    ranks = Ranks(build)
    assert "copy of a/out" not in ranks.graphs[0].compile().summary()
    for _ in range(3):
        _, result = await ranks.all(lambda graph, _: graph.run({"x": np.ones(8, np.float32)}))
        np.testing.assert_array_equal(af.to_numpy(result["b/out"]), np.full(8, 4.0))
    await ranks.aclose()


@pytest.mark.together("shape", [(), (0, 3), (1,), (3, 5)])
@pytest.mark.together("dtype", ["float32", "int8", "bool", "complex128"])
async def test_any_shape_and_dtype(shape: tuple[int, ...], dtype: str) -> None:
    def build(graph: af.Graph) -> af.Blob:
        x = graph.blob("x", shape, dtype, "0/cpu")
        return graph.op("read", ops.Copy(), place="1/cpu")(x)

    ranks = Ranks(build)
    value = (np.random.default_rng(0).standard_normal(shape) * 5).astype(dtype)
    _, result = await ranks.all(lambda graph, _: graph.run({"x": value}))
    np.testing.assert_array_equal(result["read/out"], value)
    assert result["read/out"].dtype == value.dtype
    await ranks.aclose()


async def test_a_value_that_is_not_contiguous_is_sent() -> None:
    def build(graph: af.Graph) -> af.Blob:
        with graph.at("0/cpu"):
            x = graph.blob("x", (2, 3))
            turned = graph.function("turn", np.transpose, af.TensorSpec.of((3, 2)))(x)
        return graph.op("read", ops.Copy(), place="1/cpu")(turned)

    ranks = Ranks(build)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    _, result = await ranks.all(lambda graph, _: graph.run({"x": x}))
    np.testing.assert_array_equal(result["read/out"], x.T)
    await ranks.aclose()


def test_python_objects_stay_on_their_rank(world_of: Any) -> None:
    graph = af.Graph("ranks", world=world_of(2)[0])
    x = graph.blob("x", (), object, "0/cpu")
    graph.function("read", len, af.TensorSpec.of((), "int64"), place="1/cpu")(x)
    with pytest.raises(af.errors.DTypeError, match="blob 'x' of Python objects cannot be sent to another rank"):
        graph.compile()


def test_a_rank_that_is_not_there_is_named(world_of: Any) -> None:
    graph = af.Graph("ranks", world=world_of(2)[0])
    ops.relu(graph.blob("x", (3,), place="3/cpu"))
    with pytest.raises(af.errors.PlaceError, match=r"'3/cpu' is on rank 3, but this program has 2 ranks: .*-n 4"):
        graph.compile()


async def test_many_graphs_of_one_name_share_the_ranks() -> None:
    transports = Ranks(there_and_back).local.transports
    pairs = []
    for number in range(3):
        graphs = [af.Graph("ranks", world=transport) for transport in transports]
        for graph in graphs:
            there_and_back(graph)
        pairs.append((number, graphs))

    async def run(number: int, graph: af.Graph) -> Any:
        return await graph.run({"x": np.full(4, number, np.float32)})

    results = await asyncio.gather(*(run(number, graph) for number, graphs in pairs for graph in graphs))
    assert [result["c/out"][0] for result in results[::2]] == [0.0, 30.0, 60.0]
    for _, graphs in pairs:
        await asyncio.gather(*(graph.aclose() for graph in graphs))


def numbers_of(values: Any) -> Any:
    """Each value by itself, but for one that is negative."""
    for value in values:
        if value < 0:
            raise ValueError("negative")
        yield value


async def test_items_of_an_op_are_computed_on_its_rank() -> None:
    def build(graph: af.Graph) -> None:
        with graph.at("0/cpu"):
            x, offset = graph.blob("x", ("n",)), graph.blob("offset", ())
        with graph.at("1/cpu"):
            factor = graph.variable("factor", (), init=3.0)
            item = graph.function("numbers", numbers_of, outputs=af.TensorSpec.of(()), emits=True)(ops.scale(x, 2.0))
            y = af.collect(item * factor + offset, length="n", name="joined")
        with graph.at("0/cpu"):
            ops.scale(y, 5.0, name="c")

    ranks = Ranks(build)
    for n in (2, 5):
        x = np.arange(n, dtype=np.float32)
        first, second = await ranks.all(lambda graph, _, x=x: graph.run({"x": x, "offset": 1}))
        np.testing.assert_array_equal(first["c/out"], (6 * x + 1) * 5)
        assert list(second) == []
    failed = await ranks.all(lambda graph, _: graph.run({"x": [1, -1], "offset": 0}))
    assert isinstance(failed[1], af.OpError)
    assert "after 1 items" in failed[1].__notes__
    assert isinstance(failed[0], af.PeerFailedError)
    await ranks.aclose()


async def test_what_follows_an_item_stays_on_its_rank(world_of: Any) -> None:
    transport, _ = world_of(2)
    graph = af.Graph("ranks", world=transport)
    x = graph.blob("x", (2,))
    item = graph.function("numbers", numbers_of, outputs=af.TensorSpec.of(()), emits=True)(x)
    with graph.at("1/cpu"):
        y = item * 2
    with pytest.raises(af.PlaceError, match="all of that has one rank"):
        graph.compile([af.collect(y)])


@pytest.mark.together("kind", ["scan", "cond"])
async def test_a_body_is_on_one_rank_and_reads_what_others_have(kind: str) -> None:
    def build(graph: af.Graph, inside: str = "1/cpu") -> None:
        with graph.at("0/cpu"):
            x, w = graph.blob("x", (2,)), graph.variable("w", (2,), init=[2.0, 3.0])
            total = ops.sum(x)

        def step(c: af.Blob, _: None = None) -> Any:
            with graph.at(inside):
                half = w * 0.5  # a number beside what another rank has
                return (c * half * 2, None) if kind == "scan" else c * half * 2

        with graph.at("1/cpu"):
            y = af.scan(step, x, length=3)[0] if kind == "scan" else af.cond(total > 0, step, lambda c: c, x)
        with graph.at("0/cpu"):
            ops.scale(y, 2.0, name="c")

    ranks = Ranks(build)
    for x in ([1, 2], [1, -2]):
        first, second = await ranks.all(lambda graph, _, x=x: graph.run({"x": x}))
        factor = np.array([8, 27]) if kind == "scan" else np.array([2, 3]) if sum(x) > 0 else 1
        assert first["c/out"].tolist() == (2 * factor * np.array(x)).tolist()
        assert list(second) == []
    await ranks.aclose()
    wrong = Ranks(lambda graph: build(graph, "0/cpu"))
    for graph in wrong.graphs:  # none of them waits for the others
        with pytest.raises(af.PlaceError, match=r"either has one rank: make all of it in `with graph\.at\('0/cpu'\)`"):
            graph.compile()
    await wrong.aclose()


async def test_a_call_of_another_graph_is_made_by_one_rank() -> None:
    others: list[af.Graph] = []

    def build(graph: af.Graph) -> None:
        other = af.Graph("other")
        others.append(other)
        given = other.blob("given", ("k",))
        made = given * other.variable("factor", (), init=7.0)
        with graph.at("0/cpu"):
            x = graph.blob("x", (3,))
        with graph.at("1/cpu"):
            y = graph.call(other, {given: x}, fetch=made)
        with graph.at("0/cpu"):
            ops.scale(y, 2.0, name="c")

    ranks = Ranks(build)
    first, _ = await ranks.all(lambda graph, _: graph.run({"x": [1, 2, 3]}))
    assert first["c/out"].tolist() == [14, 28, 42]
    assert [other.statistics().frames.finished for other in others] == [0, 1]
    await ranks.aclose()
    for other in others:
        await other.aclose()
