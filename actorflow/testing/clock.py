"""A loop whose clock jumps: tests of delays, timeouts and backoff take no time and are exact."""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Callable
from typing import Any, TypeVarTuple
from weakref import WeakSet

from actorflow.devices import Lane
from actorflow.runtime.resources import Resources

_Ts = TypeVarTuple("_Ts")

#: A call that sleeps in a thread looks this often whether its loop was closed, which would never wake it.
_LOOK_S = 0.1

#: Some 11 days: up to here a float tells nanoseconds apart.
_EXACT_S = 1e6


def virtual_time_loop() -> VirtualTimeLoop:
    """Make an event loop whose clock starts at 0 and jumps to the next timer whenever nothing else can happen.

    For ``asyncio.Runner(loop_factory=virtual_time_loop)``, pytest-asyncio's ``pytest_asyncio_loop_factories`` and the
    like.

    Time passes only while all is at rest: no callback is ready, no file or socket has news, no lane of a graph that
    runs on the loop has work, and no call of ``run_in_executor`` or ``asyncio.to_thread`` is under way. While a thread
    works, the clock stands still, so its work takes no virtual time, however slow the machine is. A delay of
    `actorflow.testing.inject` does take its time on this clock, in threads too.

    Work unknown to the loop counts as rest: threads that the application started itself, another process, the far
    end of a connection, and an executor's call whose future was cancelled.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     start = asyncio.get_running_loop().time()
        ...     await asyncio.sleep(3600)  # takes no time
        ...     return asyncio.get_running_loop().time() - start
        >>> with asyncio.Runner(loop_factory=af.testing.virtual_time_loop) as runner:
        ...     runner.run(main())
        3600.0
    """
    return VirtualTimeLoop()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's selector loop with a clock of its own; see `virtual_time_loop`."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._calls_in_threads = 0
        self._graphs: WeakSet[Resources] = WeakSet()
        self._sleeping: set[Lane] = set()
        super().__init__(_ClockSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def advance(self, delay_s: float) -> None:
        """Let time pass; timers that are due run in the loop's next turn."""
        now_s = self._now_s + delay_s
        # To whole nanoseconds, asyncio's tolerance: sums of decimal delays stay what one reads. Where a float has no
        # room for that, it must be past the timer, or that is never due.
        self._now_s = round(now_s, 9) if now_s < _EXACT_S else now_s + 2 * math.ulp(now_s)

    def adopt(self, resources: Resources) -> None:
        """Let time stand still while the lanes of a graph work; they ask for that."""
        self._graphs.add(resources)

    @property
    def is_at_work(self) -> bool:
        """True if a thread works for the loop and does not wait for the loop's clock."""
        if self._calls_in_threads:
            return True
        return any(resources.lanes_at_work() - self._sleeping for resources in self._graphs)

    def rests(self) -> None:
        """Nothing is ready, and no timer is left: only a thread, a file or a socket can have anything happen."""

    def run_in_executor(self, executor: Any, func: Callable[[*_Ts], Any], *args: *_Ts) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._calls_in_threads += 1
        future.add_done_callback(self._call_ended)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait until the threads of the executor have ended; the clock stands still, so no ``timeout`` passes."""
        self._calls_in_threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._calls_in_threads -= 1

    def sleep_on_lane(self, lane: Lane, delay_s: float, wake: Callable[[], None]) -> None:
        """The call that a lane runs now waits for the clock."""
        self._sleeping.add(lane)
        self.call_later(delay_s, self._wake_lane, lane, wake)

    def _wake_lane(self, lane: Lane, wake: Callable[[], None]) -> None:
        self._sleeping.discard(lane)
        wake()

    def _call_ended(self, _: asyncio.Future[Any]) -> None:
        self._calls_in_threads -= 1


class _ClockSelector(selectors.DefaultSelector):
    """The system's selector, except that waiting for a time lets the loop's clock jump there."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            self._loop.rests()
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self._loop.is_at_work:
            return super().select(None)  # whatever its end leads to comes before the next timer
        events = super().select(0)
        if not events:
            self._loop.advance(timeout)
        return events


def sleep_in_thread(loop: asyncio.AbstractEventLoop, lane: Lane, delay_s: float) -> None:
    """Block the thread of a lane for a time on the loop's clock; returns early if the loop is closed."""
    over = threading.Event()

    def start() -> None:
        if isinstance(loop, VirtualTimeLoop):
            loop.sleep_on_lane(lane, delay_s, over.set)
        else:
            loop.call_later(delay_s, over.set)

    try:
        loop.call_soon_threadsafe(start)
    except RuntimeError:
        return
    while not over.wait(_LOOK_S) and not loop.is_closed():
        pass
