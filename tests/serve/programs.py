"""Models for processes of the command, by ``tests.serve.programs:NAME``."""

import asyncio

import numpy as np

import actorflow as af


def slow() -> af.Model:
    """Rows of three numbers, ten times as much, after a millisecond or two of computing."""

    def busy(x: np.ndarray) -> np.ndarray:
        matrix = np.ones((256, 256), np.float32)
        for _ in range(4):
            matrix = matrix @ matrix / 256
        return x * np.float32(10)

    graph = af.Graph("slow", deterministic=True)
    x = graph.blob("x", ("batch", 3))
    return af.Model(graph, {"x": x}, {"y": graph.function("busy", busy, x.spec)(x)})


def endless() -> af.Model:
    """A model that says when it has begun, and never ends."""

    async def wait(x: np.ndarray) -> np.ndarray:
        print("computing", flush=True)
        await asyncio.Event().wait()
        return x

    graph = af.Graph("endless")
    x = graph.blob("x", ("batch", 3))
    return af.Model(graph, {"x": x}, {"y": graph.function("wait", wait, x.spec)(x)})


def twice() -> af.Graph:
    """A plain graph."""
    graph = af.Graph("twice")
    af.ops.scale(graph.blob("x", ("batch", 3)), 2.0, name="y")
    return graph


def sums() -> af.Graph:
    """A graph that keeps state."""
    graph = af.Graph("sums")
    x, total = graph.blob("x", ("batch", 3)), graph.state("total", ("batch", 3))
    total.assign(total + x)
    return graph


GRAPH = twice()
NUMBER = 3


def number() -> int:
    """No model."""
    return NUMBER
