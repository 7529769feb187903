"""Waits for all that can happen by itself, and time limits that end when a test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import actorflow as af

#: A time limit that `held_limits` ends.
HELD_S = 86_400.0


async def settle() -> None:
    """Let everything happen that can without time passing or a thread ending."""
    for _ in range(50):
        await asyncio.sleep(0)


async def frames_begun(graph: af.Graph, count: int = 1) -> None:
    """Wait until so many frames have begun, however many turns of the loop their plan takes."""
    while graph.engine.frames.started < count:
        await asyncio.sleep(0)


async def come_to_rest(graph: af.Graph) -> None:
    """Let everything happen that can, threads that compute included."""
    frames, before = graph.engine.frames, (-1, -1)
    while frames.in_flight or before != (frames.started, frames.finished):
        before = frames.started, frames.finished
        await settle()


def in_threads(*works: Callable[[], object]) -> None:
    """Do each work in a thread of its own, all at the same time."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def held_limits() -> Iterator[Callable[[], None]]:
    """Yield a function that ends the time limits of `HELD_S` seconds that have begun on the running loop by then.

    A short limit would end, on a busy machine, before what a test wants to see has begun.
    """
    loop = asyncio.get_running_loop()
    call_later, begun = loop.call_later, []

    def begin(delay: float, callback: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, callback, *args, **kwargs)
        if HELD_S / 2 < delay < 2 * HELD_S:  # a part has passed when a frame starts, or none, but for rounding
            begun.append((timer, callback, args))
        return timer

    def end() -> None:
        while begun:
            timer, callback, args = begun.pop()
            if not timer.cancelled():
                timer.cancel()
                callback(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", begin)
        yield end
