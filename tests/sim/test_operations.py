"""Every operation on a simulated accelerator: forwards and backwards the very numbers of the CPU, in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.ops.cpu
import actorflow.ops.sim
from actorflow import ops
from actorflow.ops import Operation
from tests.operations import EACH
from tests.support.effort import slow


def spread(*shape: int) -> np.ndarray:
    """Some numbers, different at every place."""
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype("f")


BACKWARDS = [
    name
    for name, (operation, inputs) in EACH.items()
    if operation.differentiable
    and type(operation).gradient is not Operation.gradient
    and any(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in inputs)
]


def built(name: str, place: str) -> tuple[af.Graph, dict[af.Blob, Any], tuple[af.Blob, ...]]:
    """A graph of the one operation, what it is fed, and its outputs."""
    operation, arrays = EACH[name]
    graph = af.Graph("one")
    feeds: dict[af.Blob, Any] = {}
    with graph.at(place):
        for i, array in enumerate(arrays):
            blob = graph.blob(f"x{i}", np.shape(array), np.asarray(array).dtype)
            feeds[blob] = array
        tops = graph.op("one", operation)(*feeds)
    return graph, feeds, tops if isinstance(tops, tuple) else (tops,)


async def computed(graph: af.Graph, feeds: dict[af.Blob, Any], fetch: Any, place: str) -> list[np.ndarray]:
    """Results of two frames; nothing may be computed elsewhere."""
    assert {str(op.place) for op in graph.compile(fetch).ops} == {place}
    async with graph:
        results = [await graph.run(feeds, fetch=fetch) for _ in range(2)]
        return [af.to_numpy(result[blob]) for result in results for blob in fetch]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for value, other in zip(found, expected, strict=True):
        assert value.dtype == other.dtype
        np.testing.assert_array_equal(value, other)


@pytest.mark.together("name", slow(EACH, but={*EACH} - {*BACKWARDS}), at_once=40)
async def test_forwards(name: str) -> None:
    found = []
    for place in ("sim:0", "cpu"):
        graph, feeds, tops = built(name, place)
        found.append(await computed(graph, feeds, list(tops), place))
    assert_same(*found)


@pytest.mark.together("name", BACKWARDS, at_once=10)
async def test_backwards(name: str) -> None:
    found = []
    for place in ("sim:0", "cpu"):
        graph, feeds, tops = built(name, place)
        terms = []
        with graph.at(place):
            # What comes after the first output may be kept for the way back, and has no gradient itself.
            for i, top in enumerate(tops if name == "Split" else tops[:1]):
                for j, part in enumerate((ops.real(top), ops.imag(top)) if top.dtype.kind == "c" else (top,)):
                    if part.dtype.kind == "f":
                        size = part.spec.size
                        weights = graph.variable(f"w{i}.{j}", (1, size), part.dtype, spread(1, size))
                        terms.append(ops.reshape(ops.inner(ops.reshape(part, (1, size)), weights), ()))
            operation, _ = EACH[name]
            wrt = [blob for i, blob in enumerate(feeds) if blob.dtype.kind == "f" and not operation.is_constant(i)]
            grads = af.gradient(ops.add(*terms), wrt)
        found.append(await computed(graph, feeds, grads, place))
    assert_same(*found)


def _attend(x, context, weight):
    x = ops.rotary(x, *(ops.slice(weight, np.s_[:4, i : i + 2]) for i in (0, 2)))
    return ops.attention(x, context, context, ops.greater(weight[:4, :5], 0.0), causal=True, heads=4)


COMPOSITIONS = {
    "attention": (_attend, [(2, 4, 12), (2, 5, 6), (4, 5)]),
    "norms": (lambda x: ops.rms_norm(ops.instance_norm(ops.group_norm(x, 2))), [(2, 3, 4)]),
    "gru": (lambda x, wx, wh: ops.gru(x, wx, wh, reset_after=False, reverse=True)[0], [(3, 2, 4), (9, 4), (9, 3)]),
    "peepholes": (lambda x, wx, wh, p: ops.lstm(x, wx, wh, peepholes=p)[0], [(3, 2, 4), (12, 4), (12, 3), (9,)]),
    "norm, twice": (lambda x, g: af.gradient(ops.sum(ops.layer_norm(x) * g), x), [(3, 4), (3, 4)]),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
async def test_compositions(name: str) -> None:
    function, shapes = COMPOSITIONS[name]
    found = []
    for place in ("sim:0", "cpu"):
        graph = af.Graph("composed")
        with graph.at(place):
            feeds: dict[af.Blob, Any] = {graph.blob(f"x{i}", s): spread(*s) for i, s in enumerate(shapes)}
            y = function(*feeds)
            grads = af.gradient(ops.sum(ops.square(y)), [*feeds][:3])
        found.append(await computed(graph, feeds, [y, *grads], place))
    assert_same(*found)
