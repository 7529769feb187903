"""Random graphs on the loop's thread, where all is in one order, and all that can be told of their runs."""

from __future__ import annotations

import hashlib
import random
from functools import partial
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.actors.dispatcher import Dispatcher
from actorflow.core import FOREVER_NS
from actorflow.runtime.build import Builder
from actorflow.runtime.engine import Engine

_SHAPE = (3, 5)
_FRAMES = 4


class PlantedError(Exception):
    """Raised by a function of a graph."""


async def told(count: int) -> list[dict[str, Any]]:
    """What is told of the runs of so many graphs: results, errors, calls, updates, trace and counts."""
    # All on the loop, from the first call on.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "_inline_ns", lambda _, operation: -1 if operation.may_last else FOREVER_NS)
        return [await _told(seed) for seed in range(count)]


async def _told(seed: int) -> dict[str, Any]:
    choose = random.Random(seed)
    calls: list[str] = []
    graph = af.Graph(f"random {seed}", fuse=choose.random() < 0.7)
    Engine(graph, partial(Dispatcher, slice_ns=FOREVER_NS >> 1))  # else time has a say in the order
    counter = graph.variable("counter", (), "float64")
    blobs = [graph.blob("x", _SHAPE), graph.blob("y", _SHAPE)]
    failing = choose.randrange(20)
    for index in range(choose.randrange(4, 14)):
        blobs.append(_op(graph, index, choose, blobs, calls, failing))
    [counter, blobs[-1]] >> graph.function("count", lambda old, y: old + float(y[0, 0])) >> [counter]
    fetch: list[Any] = [*choose.sample(blobs[2:], min(3, len(blobs) - 2)), graph]
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {"results": [], "error": ""}
    async with graph:
        for number in range(_FRAMES):
            feeds = {name: rng.standard_normal(_SHAPE).astype("float32") for name in ("x", "y")}
            try:
                result = await graph.run(feeds, fetch=tuple(fetch))
            except af.OpError as error:
                found["error"] += f"{number}: {error}; {error.updated}; {error.__cause__!r}\n".replace(
                    str(id(graph)), ""
                )
            else:
                bits = hashlib.sha256(b"".join(np.ascontiguousarray(result[key]).tobytes() for key in result))
                found["results"].append(bits.hexdigest())
        trace = graph.engine.trace.since(0)
        names = {node.id: node.name for node in graph.nodes}
        found["trace"] = [
            (names[node], frame) for node, frame in zip(trace.node.tolist(), trace.frame.tolist(), strict=True)
        ]
        found["tracks"] = [graph.engine.trace.tracks[track] for track in trace.track.tolist()]
        found["counts"] = {names[key]: (each.calls, each.failed) for key, each in graph.engine.profile.items()}
        found["counter"] = float(counter.value)
    found["calls"] = calls
    return found


def _op(
    graph: af.Graph, index: int, choose: random.Random, blobs: list[af.Blob], calls: list[str], failing: int
) -> af.Blob:
    reads = [choose.choice(blobs) for _ in range(choose.choice((1, 2, 2, 3, 9)))]
    kind = choose.choice(("function", "pair", "kernel", "kernel", "view", "async"))
    name = f"{kind}{index}"

    def compute(*inputs: Any) -> Any:
        calls.append(name)
        assert not any(array.flags.writeable for array in inputs)
        if failing == index and len(calls) > 6:
            raise PlantedError(name)
        return sum(inputs) / len(inputs) if len(inputs) > 1 else inputs[0]

    async def wait(*inputs: Any) -> Any:
        return compute(*inputs)

    spec = blobs[0].spec
    if kind == "function":
        return graph.function(name, compute, spec)(*reads)
    if kind == "async":
        return graph.function(name, wait, spec)(*reads)
    if kind == "pair":
        return graph.function(name, lambda *inputs: (compute(*inputs), inputs[0]), (spec, spec))(*reads)[
            choose.randrange(2)
        ]
    if kind == "view":
        return ops.reshape(ops.reshape(reads[0], (15,)), _SHAPE, name=name)
    made = ops.tanh(reads[0]) if len(reads) == 1 else reads[0] + reads[1]
    return ops.relu(made) if choose.random() < 0.5 else made * 0.5
