"""A graph whose value goes round all ranks several times: whichever rank ends, the others need it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np

import actorflow as af
from actorflow import ops

__all__ = ["ROUNDS", "SPEC", "ring"]

ROUNDS = 3
SPEC = af.TensorSpec.of((4,))

#: Called in the op of a round on a rank, with the round.
Hook = Callable[[int], Awaitable[None]]


async def nothing(_: int) -> None:
    """No hook."""


def ring(graph: af.Graph, hook: Hook = nothing, reduce: bool = False) -> list[af.Blob]:
    """Three rounds over all ranks; at the end a sum over the ranks, if it is wanted.

    Returns:
        What is to be fetched.
    """
    size = graph.world.size
    y = graph.blob("x", (4,), place="0/cpu")
    for number in range(ROUNDS):
        for rank in range(size):
            with graph.at(f"{rank}/cpu"):
                y = graph.function(f"n{number}.{rank}", _step(number, hook), SPEC)(y)
    if not reduce:
        return [y]
    fetched = [y]
    for rank in range(size):
        with graph.at(f"{rank}/cpu"):
            own = ops.scale(y, 1.0, name=f"own{rank}")
            fetched.append(graph.op(f"sum{rank}", ops.AllReduce("sum", tuple(range(size))))(own))
    return fetched


def _step(number: int, hook: Hook) -> Callable[[np.ndarray], Awaitable[np.ndarray]]:
    async def step(x: np.ndarray) -> np.ndarray:
        await hook(number)
        await asyncio.sleep(0)
        return x + 1

    return step
