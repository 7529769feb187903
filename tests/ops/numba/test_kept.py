"""What compiled kernels keep is never older than what they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices.cpu import CPU
from actorflow.ops import Operation
from actorflow.ops.cpu.kept import Kept, kept
from actorflow.ops.numba import compiled
from actorflow.ops.numba.product import Rows

X = np.random.default_rng(0).standard_normal((2, 6, 6, 8)).astype("f")
SHAPES = {"conv": (3, 3, 8, 16), "inner": (16, 288)}


@pytest.fixture(autouse=True)
def compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CPU, "libraries", ("numba", "numpy"))
    yield
    compiled()


def network(kind: str, x: af.Blob, weight: af.Blob, bias: af.Blob) -> af.Blob:
    """A product with what follows it."""
    y = af.ops.conv(x, weight, pad=1) if kind == "conv" else af.ops.inner(af.ops.reshape(x, (2, 288)), weight)
    return af.ops.relu(af.ops.bias(y, bias))


def expected(kind: str, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    if kind == "inner":
        return np.maximum(X.reshape(2, 288) @ weight.T + bias, 0)
    padded = np.pad(X, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    return np.maximum(np.einsum("bhwcij,ijco->bhwo", windows, weight) + bias, 0)


class Parts:
    """Weight and bias of a network, from somewhere; both are written over in place before each run."""

    def __init__(self, kind: str) -> None:
        self.weight, self.bias = np.zeros(SHAPES[kind], "f"), np.zeros(16, "f")

    def change(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.weight[:] = random.standard_normal(self.weight.shape)
        self.bias[:] = random.standard_normal(16)


def fed(graph: af.Graph, parts: Parts) -> tuple[af.Blob, af.Blob, Callable[[], dict[Any, Any]]]:
    w, b = graph.blob("w", parts.weight.shape), graph.blob("b", 16)
    return w, b, lambda: {w: parts.weight, b: parts.bias}


def returned(graph: af.Graph, parts: Parts) -> tuple[af.Blob, af.Blob, Callable[[], dict[Any, Any]]]:
    w, b = graph.blob("w", parts.weight.shape), graph.blob("b", 16)
    graph.function("weight", lambda: parts.weight) >> [w]
    graph.function("bias", lambda: parts.bias) >> [b]
    return w, b, dict


def viewed(graph: af.Graph, parts: Parts) -> tuple[af.Blob, af.Blob, Callable[[], dict[Any, Any]]]:
    flat, b = graph.blob("flat", parts.weight.size), graph.blob("b", 16)
    return af.ops.reshape(flat, parts.weight.shape), b, lambda: {flat: parts.weight.reshape(-1), b: parts.bias}


def assigned(graph: af.Graph, parts: Parts) -> tuple[af.Blob, af.Blob, Callable[[], dict[Any, Any]]]:
    w, b = graph.variable("w", parts.weight.shape), graph.variable("b", 16)

    def assign() -> dict[Any, Any]:
        w.value, b.value = parts.weight, parts.bias
        return {}

    return w, b, assign


def updated(graph: af.Graph, parts: Parts) -> tuple[af.Blob, af.Blob, Callable[[], dict[Any, Any]]]:
    """By functions, which give the variables their own memory: what is written there is the variables' at once."""
    w, b = graph.variable("w", parts.weight.shape), graph.variable("b", 16)
    graph.function("weight", lambda: parts.weight) >> [w]
    graph.function("bias", lambda: parts.bias) >> [b]
    return w, b, dict


def shown(graph: af.Graph, parts: Parts) -> tuple[af.Blob, af.Blob, Callable[[], dict[Any, Any]]]:
    """By a view of what is fed, which is then the variable's memory."""
    flat, w = graph.blob("flat", parts.weight.size), graph.variable("w", parts.weight.shape)
    [flat] >> graph.op("shape", af.ops.Reshape(parts.weight.shape)) >> [w]
    return w, graph.blob("b", 16), dict


async def test_tables_of_many_sizes_take_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorflow.ops.cpu.kept._MOST_BYTES", 100_000)
    graph = af.Graph("sizes")
    x = graph.blob("x", ("batch", "n", "n", 8))
    y = af.ops.conv(x, graph.constant(np.ones(SHAPES["conv"], "f")))
    y = af.ops.conv(y, graph.constant(np.ones((3, 3, 16, 16), "f")))
    async with graph:
        for n in range(80, 100):
            await graph.run({x: np.ones((1, n, n, 8), "f")})
            compiled()
        for n in range(80, 100):
            await graph.run({x: np.ones((1, n, n, 8), "f")})
        made = [kept(op.operation) for op in graph.ops if op.operation.kind == "Conv"]
        tables = {id(rows): rows.offsets.nbytes for each in made for rows in tables_of(each)}
        assert len(tables) > 2
        assert sum(tables.values()) <= 2 * 100_000
        graph.trim()
        assert not any("_kept" in vars(op.operation) for op in graph.ops)


def operations_of(graph: af.Graph) -> list[Operation]:
    (program,) = graph.engine._programs.values()
    return [actor.operation for actor in program.ops if hasattr(actor, "operation")]


def tables_of(own: Kept) -> list[Rows]:
    return [product.rows for call in own._made.values() for product in call._products.values()]


async def test_a_bound_call_keeps_no_buffer() -> None:
    """What is added to a convolution has rows of its own, which change in each call."""
    graph = af.Graph("residual")
    x = graph.blob("x", X.shape)
    weight = graph.constant(np.ones((3, 3, 8, 8), "f"))
    z = af.ops.relu(af.ops.conv(x, weight, pad=1))
    y = af.ops.relu(af.ops.conv(z, weight, pad=1) + z)
    async with graph:
        for _ in range(8):
            await graph.run({x: X}, fetch=[y])
            compiled()
        assert any("_bound" in vars(operation) for operation in operations_of(graph))
        assert graph.engine.resources.device(af.Place()).memory.used_bytes == 0


@pytest.mark.together("fuse", [True, False])
@pytest.mark.together("kind", SHAPES)
@pytest.mark.together("source", [fed, returned, viewed, assigned, updated])
async def test_weights_that_are_written_over(source: Any, kind: str, fuse: bool) -> None:
    graph, parts = af.Graph("net", fuse=fuse), Parts(kind)
    x = graph.blob("x", X.shape)
    weight, bias, feeds = source(graph, parts)
    y = network(kind, x, weight, bias)
    async with graph:
        for seed in range(8):
            parts.change(seed)
            result = await graph.run({x: X, **feeds()}, fetch=[graph, y])
            if seed or source is not updated:  # the first frame reads initial values
                np.testing.assert_allclose(result[y], expected(kind, parts.weight, parts.bias), rtol=1e-4, atol=1e-4)
            compiled()


async def test_a_fetched_variable_cannot_be_written_to() -> None:
    graph = af.Graph("net")
    w = graph.variable("w", 3, init=1)
    y = af.ops.scale(w, 2.0)
    async with graph:
        result = await graph.run(fetch=[w, y])
    with pytest.raises(ValueError, match="read-only"):
        result[w][:] = 5


@pytest.mark.parametrize("kind", SHAPES)
async def test_what_is_left_to_numpy_binds_no_call_of_other_images(kind: str) -> None:
    graph, parts = af.Graph("net"), Parts(kind)
    parts.change(0)
    x = graph.blob("x", ("n", *X.shape[1:]))
    y = af.ops.conv(x, graph.constant(parts.weight), pad=1) if kind == "conv" else None
    if y is None:
        y = af.ops.inner(af.ops.flatten(x), graph.constant(parts.weight))
    y = af.ops.relu(af.ops.bias(y, graph.constant(parts.bias)))
    random = np.random.default_rng(1)
    async with graph:
        for count in (8, 8, 5, 5, 5, 0, 0, 0, 5, 8, 0, 16, 16, 3):
            whole = random.standard_normal((2 * count, *X.shape[1:])).astype("f")
            for images in (whole[::2], np.ascontiguousarray(whole[1::2]), np.asfortranarray(whole[:count])):
                found = (await graph.run({x: images}))[y]
                flat = af.Graph("numpy", libraries=["numpy"], fuse=False)
                own = flat.blob("x", images.shape)
                z = network_of(kind, own, flat.constant(parts.weight), flat.constant(parts.bias), count)
                expected_ = np.empty(found.shape, "f") if not count else (await flat.run({own: images}))[z]
                await flat.aclose()
                np.testing.assert_allclose(found, expected_, rtol=1e-4, atol=1e-4)
                compiled()


def network_of(kind: str, x: af.Blob, weight: af.Blob, bias: af.Blob, count: int) -> af.Blob:
    y = af.ops.conv(x, weight, pad=1) if kind == "conv" else af.ops.inner(af.ops.reshape(x, (count, 288)), weight)
    return af.ops.relu(af.ops.bias(y, bias))


@pytest.mark.parametrize("kind", SHAPES)
async def test_a_variable_that_shows_what_was_fed(kind: str) -> None:
    graph, parts = af.Graph("net"), Parts(kind)
    x = graph.blob("x", X.shape)
    w, b, _ = shown(graph, parts)
    y = network(kind, x, w, b)
    async with graph:
        await graph.run({"flat": parts.weight.reshape(-1)}, fetch="shape")
        for seed in range(6):
            parts.change(seed)
            result = await graph.run({x: X, b: parts.bias}, fetch=y)
            np.testing.assert_allclose(result[y], expected(kind, parts.weight, parts.bias), rtol=1e-4, atol=1e-4)
            compiled()
