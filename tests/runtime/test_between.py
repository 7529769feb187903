"""Feeds of blobs that ops would write."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import actorflow as af


class Net:
    """An encoder and a decoder, which count their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.graph = graph = af.Graph("net")
        self.x = graph.blob("x", ["n"])
        spec = self.x.spec
        self.hidden = graph.function("encode", self.counted("encode", lambda values: values + 1), spec)(self.x)
        self.y = graph.function("decode", self.counted("decode", lambda values: values * 10), spec)(self.hidden)

    def counted(self, name: str, fn: object) -> object:
        def call(values: np.ndarray) -> np.ndarray:
            self.calls.append(name)
            return fn(values)

        return call


async def test_the_ops_before_it_are_not_run() -> None:
    net = Net()
    async with net.graph as graph:
        for feeds in ({net.hidden: [1, 2]}, {"encode/out": [1, 2]}, {net.hidden: [1, 2], net.x: [5, 5]}):
            result = await graph.run(feeds)
            assert [*result] == [net.y.name]
            assert result[net.y].tolist() == [10, 20]
        assert (await graph.run({net.hidden: [3]}, fetch=[net.hidden, net.y]))[net.hidden].tolist() == [3]
        assert net.calls == ["decode"] * 4
        assert (await graph.run({net.x: [1]}))[net.y].tolist() == [20]
        feeds = ({net.hidden: [i]} if i % 2 else {net.x: [i]} for i in range(4))
        results = [result[net.y].item() async for result in graph.stream(feeds, in_flight=2)]
        assert results == [10, 10, 30, 30]


async def test_requests_of_a_batcher_feed_it() -> None:
    net = Net()
    async with net.graph as graph, graph.batched(feeds=[net.hidden], max_rows=8) as batcher:
        results = await asyncio.gather(*[batcher.run({"encode/out": [i]}) for i in range(3)])
        assert [result[net.y].tolist() for result in results] == [[0], [10], [20]]
        assert "encode" not in net.calls
        with pytest.raises(af.FeedError, match=r"needs values for 'encode/out'"):
            await batcher.run({"x": [1]})
    with pytest.raises(af.GraphError, match=r"feeds: 'decode/out' is not a blob that the results are computed of"):
        net.graph.batched(feeds=["decode/out"])


async def test_an_op_that_is_needed_for_another_output_runs_and_is_not_heard() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", [2])
    low, high = graph.function("split", lambda values: (values - 1, values + 1), [x.spec, x.spec])(x)
    total = low + high
    async with graph:
        assert (await graph.run({x: [1, 1]}))[total].tolist() == [2, 2]
        assert (await graph.run({x: [1, 1], low: [5, 5]}))[total].tolist() == [7, 7]
        assert (await graph.run({low: [5, 5], high: [1, 1]}))[total].tolist() == [6, 6]


async def test_what_is_fed_is_not_changed_and_gradients_start_from_it() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", [2])
    w = graph.variable("w", [2], init=3)
    hidden = af.ops.square(x)
    scaled = af.ops.relu(hidden) * w
    grad = af.gradient(af.ops.sum(scaled), [w, x])
    given = np.array([2, -2], np.float32)
    async with graph:
        result = await graph.run({hidden: given, x: [7, 7]}, fetch=[scaled, *grad])
        assert result[scaled].tolist() == [6, 0]
        assert result[grad[0]].tolist() == [2, 0]
        assert result[grad[1]].tolist() == [42, 0]  # 2 x of what is fed, behind what is fed
    assert given.tolist() == [2, -2]


async def test_sums_of_several_producers_and_devices() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", [2])
    with graph.at("sim:0"):
        both = graph.blob("both", [2])
        for name in "a", "b":
            [x] >> graph.op(name, af.ops.Exp()) >> [both]
        y = both * 2
    async with graph:
        assert af.to_numpy((await graph.run({x: [0, 0]}))[y]).tolist() == [4, 4]
        assert af.to_numpy((await graph.run({both: [5, 6]}))[y]).tolist() == [10, 12]


async def test_what_cannot_be_fed() -> None:
    net, looped = Net(), af.Graph("looped")
    x = looped.blob("x", [2])
    inside = []

    def body(state: af.Blob) -> af.Blob:
        inside.append(af.ops.exp(state))
        return inside[-1] * 2

    af.cond(af.ops.sum(x) > 0, body, lambda state: state * 3, x)
    constant = looped.constant([1.0, 2.0])
    z = constant + x
    with pytest.raises(
        af.FeedError, match=r"cannot feed blob 'decode/out': op 'decode' writes it, and nothing that is"
    ):
        await net.graph.run({net.x: [1], net.y: [1]})
    with pytest.raises(
        af.FeedError, match=r"cannot feed blob 'encode/out': op 'encode' writes it, and nothing that is"
    ):
        await net.graph.run({net.x: [1], net.hidden: [1]}, fetch=net.hidden.producers[0])
    with pytest.raises(af.ShapeError, match=r"feed for blob 'encode/out': expected shape"):
        await net.graph.run({net.hidden: [[1]]})
    with pytest.raises(af.FeedError, match=r"cannot feed blob '.*exp/out': it is computed in each call of 'cond"):
        await looped.run({x: [1, 1], inside[0]: [1, 1]})
    with pytest.raises(af.FeedError, match="cannot feed blob 'constant/out'"):
        await looped.run({x: [1, 1], constant: [1, 1]}, fetch=z)
