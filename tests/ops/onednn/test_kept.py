"""What is kept of weights is never older than what kernels are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.ops.onednn import weighted
from actorflow.ops.onednn.weighted import Weighted

pytestmark = pytest.mark.usefixtures("by_default")

X = np.random.default_rng(0).standard_normal((2, 6, 6, 8)).astype("f")
SHAPES = {"conv": (3, 3, 8, 16), "inner": (16, 288)}


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


async def test_a_fetched_variable_cannot_be_written_to() -> None:
    graph = af.Graph("net")
    w = graph.variable("w", 3, init=1)
    y = af.ops.scale(w, 2.0)
    async with graph:
        result = await graph.run(fetch=[w, y])
    with pytest.raises(ValueError, match="read-only"):
        result[w][:] = 5


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


async def test_what_is_added_to_one_row_leaves_the_weight_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the shape of a bias of many rows; as a bias, it would have the weight put in order in each run."""
    made: list[int] = []
    prepare = Weighted._prepared

    def prepared(self: Weighted, inputs: Any) -> Any:
        made.append(1)
        return prepare(self, inputs)

    monkeypatch.setattr(Weighted, "_prepared", prepared)
    graph = af.Graph("residual")
    x = graph.blob("x", (1, "steps", 64))
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype("f")
    y = af.ops.inner(x, graph.constant(weight)) + x
    async with graph:
        for seed in range(5):
            value = np.random.default_rng(seed).standard_normal((1, 1, 64)).astype("f")
            found = (await graph.run({x: value}))[y]
            np.testing.assert_allclose(found, value @ weight.T + value, rtol=1e-5, atol=1e-5)
    assert 1 <= len(made) <= 2  # kept from the second use on


async def test_products_with_one_constant_have_it_in_order_once() -> None:
    graph = af.Graph("shared")
    x = graph.blob("x", (4, 64))
    weight = graph.constant(np.random.default_rng(0).standard_normal((64, 64)).astype("f"))
    before, y = set(weighted._ORDERED), x
    for _ in range(3):
        y = af.ops.relu(af.ops.inner(y, weight))
    turned = af.ops.inner(af.ops.inner(x, weight), weight)
    async with graph:
        for _ in range(4):
            found = (await graph.run({x: np.eye(4, 64, dtype="f")}))[turned]
            assert len(set(weighted._ORDERED) - before) == 1
    array = weight.producers[0].operation.value
    np.testing.assert_allclose(found, np.eye(4, 64, dtype="f") @ array.T @ array.T, rtol=1e-4, atol=1e-4)


async def test_products_with_what_a_file_holds_are_called_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays of a file are views of its bytes, which nobody writes to."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    graph, parts = af.Graph("net"), Parts("conv")
    parts.change(0)
    x = graph.blob("x", X.shape)
    y = network("conv", x, graph.constant(parts.weight), graph.constant(parts.bias))
    af.onnx.save(af.Model(graph, {"x": x}, {"y": y}), tmp_path / "net.onnx")
    model, calls, call = af.onnx.load(tmp_path / "net.onnx"), [], Weighted.__call__
    monkeypatch.setattr(Weighted, "__call__", lambda *given: calls.append(1) or call(*given))
    async with model.graph:
        found = [(await model.run({"x": X}))["y"] for _ in range(5)]
    assert 1 <= len(calls) <= 2
    for each in found:
        np.testing.assert_allclose(each, expected("conv", parts.weight, parts.bias), rtol=1e-4, atol=1e-4)
