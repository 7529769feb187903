"""When a rank parks, and how often it offers its core, with a bell that nobody hears and nothing under way."""

import asyncio
from unittest import mock

from actorflow.transport.mpi import polling
from actorflow.transport.mpi.polling import Poller


class Nothing:
    """Nothing is under way; counts the looks."""

    pending = sending = reducing = False

    def __init__(self) -> None:
        self.looks = 0
        self.come = 0  # looks that find something

    def poll(self, whole: bool = False) -> bool:
        self.looks += 1
        self.come -= 1
        return self.come >= 0

    def check(self) -> None:
        """No rank has died."""


class Bell:
    """A bell that says when its rank parks."""

    def __init__(self) -> None:
        self.has_rung = False
        self.parked = asyncio.Event()

    def fileno(self) -> int:
        return -1

    def park(self, sending: bool) -> None:
        self.parked.set()

    def wake(self) -> None:
        self.parked.clear()

    def drain(self) -> None:
        """No ring has come."""

    def settle(self) -> None:
        """No rank waits to be rung."""


class Core:
    """A core, and the clock that shows when it comes back."""

    def __init__(self) -> None:
        self.now_s = self.taken_s = 0.0
        self.offers = 0

    def offer(self) -> None:
        self.offers += 1
        self.now_s += self.taken_s

    def time_s(self) -> float:
        return self.now_s


async def main() -> None:
    loop, core, watched, bell = asyncio.get_running_loop(), Core(), Nothing(), Bell()
    poller = Poller(watched, bell)
    with (
        mock.patch.object(loop, "add_reader"),
        mock.patch.object(loop, "remove_reader"),
        mock.patch.object(polling.os, "sched_yield", core.offer),
        mock.patch.object(polling, "perf_counter", core.time_s),
    ):
        poller.bind(loop)
        await show(poller, watched, bell, core)
        poller.close()


async def show(poller: Poller, watched: Nothing, bell: Bell, core: Core) -> None:
    await bell.parked.wait()

    async def burst() -> tuple[int, int]:
        """Looks and offers until it parks."""
        watched.looks = core.offers = 0
        poller.wake()
        await bell.parked.wait()
        return watched.looks, core.offers

    print("nothing comes: {} looks, {} offers".format(*await burst()))
    watched.come = 5
    print("five come: {} looks, {} offers".format(*await burst()))
    bell.has_rung = True
    print("has rung: {} look, {} offers".format(*await burst()))
    watched.reducing = True
    print("reducing: {} looks, {} offers".format(*await burst()))
    watched.reducing = False
    core.taken_s = 1.0
    print("taken:", *[(await burst())[1] for _ in range(16)])
    core.taken_s = 0.0
    print("free:", *[(await burst())[1] for _ in range(20)])


asyncio.run(main())
