"""A rank ends while the others wait for it: ``mpiexec -n 3 python -m mpi4py``.

Arguments: how it ends, which one, before which frame (in which round of it, or -1 for between two), how frames are run,
and a folder. Each rank puts its process there, and each of the others what it has raised, and after how many seconds: a
launcher that has lost a rank may read no output any more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import actorflow as af
from tests.ranks.rings import ring
from tests.support.effort import FULL

way, how, folder = sys.argv[1], sys.argv[5], Path(sys.argv[6])
victim, frame, number = map(int, sys.argv[2:5])
world = af.world()
(folder / f"{world.rank}.pid").write_text(str(os.getpid()))
frames = 0
#: For how often the silence that is the end of a rank one may stand still.
SILENCES = 3 if FULL else 2
FEED = {"x": np.zeros(4, np.float32)}


def end() -> None:
    global way
    now, way = way, ""
    if now == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif now in ("freeze", "thaw"):
        os.kill(os.getpid(), signal.SIGSTOP)
    elif now == "compute":
        end_s = time.monotonic() + SILENCES * world.liveness_s
        while time.monotonic() < end_s:
            pass
    elif now == "block":
        time.sleep(SILENCES * world.liveness_s)


async def hook(at: int) -> None:
    if world.rank == victim and at == number and frames >= frame and way:
        if way == "leave":
            task.cancel()
        else:
            end()


async def count() -> None:
    global frames
    frames += 1
    if world.rank == victim and number < 0 and frames > frame and way:
        if way == "leave":
            raise asyncio.CancelledError
        end()


def tell(found: str) -> None:
    (folder / "unfinished").with_suffix(f".{world.rank}").write_text(found)
    (folder / "unfinished").with_suffix(f".{world.rank}").rename(folder / f"{world.rank}.end")


async def told(*ranks: int) -> None:
    """Wait until some ranks have told what they have found."""
    while not all((folder / f"{rank}.end").exists() for rank in ranks):
        await asyncio.sleep(0.01)


async def main() -> None:
    global task
    task = asyncio.current_task()
    graph = af.Graph("leaving", world=world)
    fetch = ring(graph, hook, reduce=how.endswith("sum"))
    before_s = time.monotonic()
    try:
        async with graph:
            if how.startswith("stream"):
                async for _ in graph.stream((FEED for _ in range(20)), fetch=fetch, in_flight=2):
                    await count()
                    before_s = time.monotonic()
            else:
                for _ in range(20):
                    await graph.run(FEED, fetch=fetch)
                    await count()
                    before_s = time.monotonic()
    except asyncio.CancelledError:  # the program of this rank is over
        return
    except af.TransportError as error:
        if sys.argv[1] == "thaw" and world.rank == victim:
            world.close()  # before the others hear of it: they end the job with status 1 if they end before it
        tell(f"{type(error).__name__} of {error.rank} after {time.monotonic() - before_s:.3f} s")
        if sys.argv[1] == "thaw" and world.rank != victim:
            await told(*{*range(world.size)} - {victim})  # all have lost it: now it may go on
            os.kill(int((folder / f"{victim}.pid").read_text()), signal.SIGCONT)
            await told(victim)  # else the job would end without it
    else:
        tell(f"{frames} frames")


task: asyncio.Task[None] | None = None
af.run(main())
