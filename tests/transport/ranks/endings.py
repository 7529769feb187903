"""Ranks that end in different ways; arguments: what happens, and on which rank."""

import asyncio
import os
import signal
import sys

import actorflow as af

what, where = sys.argv[1], int(sys.argv[2])
world = af.world()


async def main() -> None:
    world.bind(asyncio.get_running_loop())
    sys.stdout.write(f"ready {os.getpid()}\n")
    sys.stdout.flush()
    if world.rank == where:
        match what:
            case "raise":
                raise ValueError("rank breaks")
            case "fail":
                raise af.PeerFailedError(1 - where, "frame 3 was given up")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "return":
                return
    elif what == "raise":
        await asyncio.sleep(0.2)
        raise af.PeerFailedError(where, "frame 3 was given up")
    await asyncio.sleep(0 if what == "return" else 30)


af.run(main())
sys.stdout.write(f"rank {world.rank} has ended\n")
