"""A program as a user writes it, for the type checkers of `tests/test_typing.py`: nothing that it uses is ``Any``.

It trains a model on what a pipeline reads, and answers requests with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import actorflow as af
import actorflow.array as xp

Floats = npt.NDArray[np.float32]
Arrays = npt.NDArray[Any]


# -- a graph with functions of its own ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    features: int = 64
    classes: int = 10
    size: int = 32


def described(settings: Settings) -> tuple[af.Graph, af.Blob, af.Blob]:
    graph = af.Graph("digits", memory_budget=1 << 30)
    x = graph.blob("x", ("batch", settings.features))
    network = af.nn.InnerProduct(32) >> af.nn.Activation("relu") >> af.nn.InnerProduct(settings.classes)
    scores = network(x, training=False)
    assert_type(scores, af.Blob)
    assert_type(network.variables, tuple[af.Variable, ...])
    return graph, x, scores


def described_by_hand() -> af.Blob:
    graph = af.Graph("by hand")
    x = graph.blob("x", ("batch", 4))
    w = graph.variable("w", (2, 4), init=0.5)
    inner = graph.op("inner", af.ops.Inner(), lane="compute")
    y = inner(x, w)
    assert_type(y, af.Blob)
    assert_type(y.name.upper(), str)
    assert_type(inner.outputs, tuple[af.Blob, ...])
    split = graph.op("split", af.ops.Split((1, 1), axis=1))
    split(y)
    left, right = split.outputs
    assert_type(left - right, af.Blob)

    @graph.function(outputs=af.TensorSpec.of(()), inputs=y)
    def norm(values: Floats) -> np.floating[Any]:
        return np.linalg.norm(values)

    assert_type(norm.outputs[0], af.Blob)

    async def looked_up(values: Floats) -> Floats:
        await asyncio.sleep(0)
        return values + 1

    op = graph.function("looked_up", looked_up, af.TensorSpec.of(("batch", 2)), concurrency=4)
    assert_type(op(y), af.Blob)
    found = graph["inner/out"]
    assert_type(found, af.Blob)
    assert_type(found.spec.size_bytes, int)
    assert_type(graph.resolve("inner"), af.Blob | af.Op | af.Graph)
    assert_type(graph.constant(1.0), af.Blob)
    joined = graph.op("joined", af.ops.Concat(axis=1))
    assert_type([left, right] >> joined, af.Op)
    assert_type(joined >> graph.blob("both", ("batch", 2)), af.Blob)
    assert_type(w.value, Arrays)
    assert_type(graph.nodes[0].name, str)
    assert_type(graph.sinks, tuple[af.Blob, ...])
    assert_type(graph.statistics().ops["inner"].calls, int)
    assert_type(graph.statistics().memory[af.Place()].held_bytes, int)
    assert_type(graph.compile(), af.Plan)
    assert_type(graph.function(abs), af.Op)
    return left + right * 2


class Block(af.Composite):
    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        (x,) = bottom
        return af.ops.relu(x)


class Halves(af.Composite[tuple[af.Blob, af.Blob]]):
    def build(self, *bottom: af.Blob, training: bool) -> Sequence[af.Blob]:
        return bottom[0], bottom[0]


def layers(x: af.Blob, sequence: af.Blob) -> af.Blob:
    assert_type([x] >> af.nn.Conv(8, 3), af.nn.Conv)
    assert_type(Block("block")(x), af.Blob)
    left, right = Halves()(x)
    assert_type(left, af.Blob)
    _hidden, _last, cell = af.nn.LSTM(4)(sequence)
    assert_type(cell, af.Blob)
    return left - right


def expressions(x: af.Blob, y: xp.Array) -> af.Blob:
    assert_type(2 * x + 1.0, af.Blob)
    assert_type(x / x - np.float32(0.5), af.Blob)
    assert_type(x * np.ones(3, np.float32), af.Blob)
    assert_type(-(abs(x) ** 2) @ x.T, af.Blob)
    assert_type((x < 1) & ~(x >= 0.5), af.Blob)
    assert_type(x == x, bool)
    assert_type(x.transpose(1, 0).ndim, int)
    assert_type(y.sum(0).reshape(3, 1).astype("int8").transpose() + y.T, xp.Array)
    return x[1:, ..., None].mean(axis=0, keepdims=True).astype("float64").reshape(-1).sum()


def decided(x: af.Blob) -> af.Blob:
    """Branches and loops give what their bodies do."""
    y = af.cond(x.sum() > 0, lambda: af.ops.sqrt(x), lambda: -x)
    assert_type(y, af.Blob)

    def following(y: af.Blob, error: af.Blob) -> tuple[af.Blob, af.Blob]:
        z = (y + x / y) / 2
        return z, af.ops.absolute(z - y)

    root, error = af.while_loop(lambda y, error: error > 1e-4, following, (x, x), limit=20)
    assert_type(root, af.Blob)
    assert_type(error, af.Blob)

    def added(total: af.Blob, x: af.Blob) -> tuple[af.Blob, af.Blob]:
        return total + x, total * x

    last, taken = af.scan(added, 0.0, x)
    assert_type((last, taken), tuple[af.Blob, af.Blob])
    assert_type(af.switch(last.astype("int64"), [lambda: -x, lambda: x]), af.Blob)
    return root


def called(other: af.Graph, model: af.Model) -> None:
    graph = af.Graph("caller")
    x = graph.blob("x", ("rows",))
    assert_type(graph.call(other, {"x": x}, fetch="y", timeout=1.0), af.Blob)
    assert_type(graph.call(model, {"x": x}), dict[str, af.Blob])


# -- data --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    pixels: Floats
    label: int


async def fetched(number: int) -> bytes:
    await asyncio.sleep(0)
    return bytes([number])


def decoded(data: bytes) -> Floats:
    return np.frombuffer(data, np.uint8).astype(np.float32)


def labelled(data: bytes) -> tuple[Floats, int]:
    return decoded(data), len(data)


def named(data: bytes) -> dict[str, Floats]:
    return {"x": decoded(data)}


def words(number: int) -> Iterator[str]:
    yield from str(number).split()


def pictures_of(items: Sequence[Floats]) -> list[Picture]:
    return [Picture(item, 0) for item in items]


def as_texts(numbers: af.pipeline.Pipeline[int]) -> af.pipeline.Pipeline[str]:
    return numbers.map(str)


def as_they_are(numbers: af.pipeline.Pipeline[int]) -> af.pipeline.Pipeline[int]:
    return numbers


def pipelines() -> None:
    numbers = af.pipeline.source(range(100), shuffle=True, seed=0)
    pages = numbers.map(fetched, concurrency=8, retries=2)
    assert_type(pages, af.pipeline.Pipeline[bytes])
    for texts in numbers.map(str).batch(2).iter_sync():
        assert_type(texts, list[str])
        assert_type(texts[0].upper(), str)
    assert_type(numbers.batch(2, drop_last=True), af.pipeline.Pipeline[Arrays])
    assert_type(pages.map(decoded).batch(8, concurrency=2), af.pipeline.Pipeline[Arrays])
    assert_type(pages.map(labelled).batch(8), af.pipeline.Pipeline[tuple[Arrays, Arrays]])
    assert_type(pages.map(named).batch(8), af.pipeline.Pipeline[dict[str, Arrays]])
    assert_type(pages.map(decoded).batch(2, collate=pictures_of), af.pipeline.Pipeline[list[Picture]])
    assert_type(numbers.flat_map(words).batch(3, collate=" ".join), af.pipeline.Pipeline[str])
    assert_type(numbers.zip(pages).take(3).prefetch(2), af.pipeline.Pipeline[tuple[int, bytes]])
    assert_type(pages.filter(bool).prefetch(2), af.pipeline.Pipeline[bytes])
    assert_type(pages.enumerate(), af.pipeline.Pipeline[tuple[int, bytes]])
    assert_type(pages.map(labelled).batch(8, collate=af.pipeline.pad(-1)), af.pipeline.Pipeline[tuple[Arrays, Arrays]])
    assert_type(pages.map(decoded).batch(8).to("sim:0"), af.pipeline.Pipeline[Arrays])
    assert_type(af.pipeline.zip_(numbers, pages, pages), af.pipeline.Pipeline[tuple[int, bytes, bytes]])
    assert_type(numbers.branch(bool, {True: as_texts, False: as_texts}), af.pipeline.Pipeline[str])
    assert_type(numbers.branch(bool, {True: as_texts, False: as_they_are}), af.pipeline.Pipeline[object])
    assert_type(pages.batch(4, collate=list), af.pipeline.Pipeline[list[bytes]])
    assert_type(af.pipeline.source(lambda epoch: [str(epoch)]), af.pipeline.Pipeline[str])
    assert_type(numbers.stats()["source"].items_per_s, float)


async def epochs(loader: af.data.Batches) -> AsyncIterator[Arrays]:
    async for feed in loader:
        assert_type(feed["x"], Arrays)
        yield feed["x"]


# -- arrays ------------------------------------------------------------------------------------------------------------

Weights = dict[str, xp.Array]


def loss(weights: Weights, x: xp.Array, target: xp.Array) -> xp.Array:
    scores = xp.tanh(x @ weights["w"] + weights["b"])
    assert_type(scores, xp.Array)
    return xp.mean((scores - target) ** 2)


def with_scores(weights: Weights, x: xp.Array) -> tuple[xp.Array, xp.Array]:
    scores = x @ weights["w"]
    return xp.sum(scores), scores


def steps(weights: Weights, x: xp.Array, target: xp.Array) -> Weights:
    value, gradient = af.value_and_grad(loss, cache=True)(weights, x, target)
    assert_type(value, xp.Array)
    assert_type(gradient, Weights)
    assert_type(af.grad(loss)(weights, x, target), Weights)
    both = af.value_and_grad(loss, (0, 1))(weights, x, target)
    assert_type(both, tuple[xp.Array, tuple[Weights, xp.Array]])
    (total, scores), slope = af.value_and_grad(with_scores, has_aux=True)(weights, x)
    assert_type((total, scores, slope), tuple[xp.Array, xp.Array, Weights])
    assert_type(af.grad(with_scores, has_aux=True)(weights, x), tuple[Weights, xp.Array])
    assert_type(xp.where(x > 0, x, xp.zeros_like(x)).sum(axis=0), xp.Array)
    assert_type(xp.linalg.vector_norm(x), xp.Array)
    assert_type(xp.nn.softmax(x), xp.Array)
    assert_type(np.asarray(value).dtype, np.dtype[Any])
    assert_type(float(value), float)
    return {name: each - 0.1 * gradient[name] for name, each in weights.items()}


# -- training, serving -------------------------------------------------------------------------------------------------


async def trained(settings: Settings, folder: Path) -> af.Model:
    graph, x, scores = described(settings)
    labels = graph.blob("labels", ("batch",), "int64")
    total = af.nn.SoftmaxLoss()(scores, labels)
    assert_type(total, af.Blob)
    assert_type(af.gradient(total, graph.variables), list[af.Blob])
    inputs, classes = np.ones((96, settings.features), np.float32), np.zeros(96, np.int64)
    loader = af.data.Loader({"x": inputs, "labels": classes}, settings.size, seed=0)
    async with graph:
        async for batch in epochs(loader):
            result = await graph.run({x: batch, labels: np.zeros(len(batch))}, fetch=[total, scores], timeout=5.0)
            assert_type(result[total], Arrays)
            assert_type(result.get(scores), Arrays | None)
            assert_type(result.frames, tuple[int, ...])
            assert_type(list(result.values()), list[Arrays])
        graph.pause("why")
        assert_type(graph.paused, af.Pause | None)
        assert_type(graph.cancel(reason="over"), list[int])
        async for result in graph.stream(({x: batch} async for batch in epochs(loader)), fetch=scores, in_flight=2):
            assert_type(result, af.Result)
        await af.save_weights(graph, folder / "weights.safetensors")
    model = af.Model.of(graph, fetch=scores)
    assert_type(model.inputs, dict[str, af.Blob])
    return model


async def batched(model: af.Model, values: Floats) -> float:
    async with model.graph, model.batched(max_rows=16, max_wait=0.001, queue_rows=64) as batcher:
        assert_type(batcher, af.Batcher)
        result = await batcher.run({"x": values}, priority=1, timeout=1.0)
        assert_type(result["scores"], Arrays)
        assert_type(batcher.statistics().frames, int)
        return float(result["scores"].max())


async def in_sessions(model: af.Model) -> list[Arrays]:
    found: list[Arrays] = []
    async with model.sessions({"state": "following"}, max_sessions=8) as batcher:
        async with batcher.session(key="customer", weight=2) as session:
            assert_type(session, af.Session)
            step = await session.run({"x": [1.0]})
            assert_type(step["y"], Arrays)
            assert_type(session.state_dict(), dict[str, Arrays])
        async for step in batcher.iterate({"x": [1.0]}, feedback={"x": "y"}, limit=3, key="other"):
            assert_type(step, af.Result)
            found.append(step["y"])
    return found


async def answered(model: af.Model, values: Floats) -> dict[str, Arrays]:
    try:
        found = await model.run({"x": values}, timeout=1.0)
    except af.OpError as error:
        assert_type(error.op, af.Op)
        raise
    except (af.RunTimeoutError, af.QueueFullError) as error:
        print(type(error).__name__)
        return {}
    assert_type(found, dict[str, Arrays])
    return found


async def serve(model: af.Model) -> None:
    async with af.serve.Server(af.serve.create_app({"digits": model}, token="secret"), port=0) as server:
        assert_type(server, af.serve.Server)
        assert_type(server.url, str)
    async with af.web.serve(model.graph) as page:
        assert_type(page.url, str)


def main() -> None:
    model = af.run(trained(Settings(), Path()))
    assert_type(model, af.Model)
    assert_type(model.run_sync({"x": [[1.0] * 64]}), dict[str, Arrays])
    assert_type(model.graph.run_sync({"x": [[1.0] * 64]}), af.Result)
    print(model.graph.summary(), described_by_hand(), af.world().rank)


if __name__ == "__main__":
    main()
