"""Waits for all that can happen by itself."""

from __future__ import annotations

import asyncio

import actorflow as af


async def settle() -> None:
    """Let everything happen that can without time passing or a thread ending."""
    for _ in range(50):
        await asyncio.sleep(0)


async def come_to_rest(graph: af.Graph) -> None:
    """Let everything happen that can, threads that compute included."""
    frames, before = graph.engine.frames, (-1, -1)
    while frames.in_flight or before != (frames.started, frames.finished):
        before = frames.started, frames.finished
        await settle()
