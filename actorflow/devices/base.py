"""What a device offers the engine: lanes of work, fences that prove its end, memory.

A lane is a FIFO. Submitting to it returns at once with a fence; the engine hands the fence to whoever uses the result.
A consumer on the same lane needs nothing more, since the order of the FIFO is the proof. A consumer on another lane of
the same accelerator asks its lane to wait on the device (`Lane.wait`). Everybody else lets the loop see the fence
pass (`Fence.add_waiter`). CPU worker threads and CUDA streams with events both have this form.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from actorflow.devices.memory import Pool
from actorflow.place import Place

__all__ = ["Device", "Fence", "Lane"]


class Fence(ABC):
    """Proof that work on a lane is done or will be.

    Attributes:
        lane: Where the work was submitted.
        begun: Whether it has begun; may turn True before the loop is told.
        done: Whether it has ended, well or not; may turn True before the loop is told.
        error: What it raised, once done.
        elapsed_ns: How long it ran, in nanoseconds, once done.
    """

    __slots__ = ("argument", "begun", "done", "elapsed_ns", "error", "lane")

    def __init__(self, lane: Lane, argument: Any) -> None:
        self.lane = lane
        self.argument = argument
        self.begun = False
        self.done = False
        self.error: BaseException | None = None
        self.elapsed_ns = 0

    @abstractmethod
    def add_waiter(self, waiter: Callable[[], None]) -> None:
        """Call ``waiter()`` on the loop, soon after the work has ended. Only from the loop's thread."""


class Lane(ABC):
    """A named FIFO of work on one device."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def submit(
        self, work: Callable[[Any], None], argument: Any, passed: Callable[[Fence], None], urgent: bool
    ) -> Fence:
        """Enqueue ``work(argument)`` behind all work submitted before; returns at once.

        Args:
            work: What to do; what it raises becomes the fence's ``error``.
            argument: Its argument, also the fence's.
            passed: Called on the loop with the fence, after its waiters, in the order of the FIFO. Unless it is urgent
                or has a waiter, the loop may be told late, together with later work, to save wake-ups.
            urgent: Whether the loop must be told without delay.
        Raises:
            DeviceError: if the lane is closed.
        """

    @abstractmethod
    def wait(self, fence: Fence) -> bool:
        """Make all later work of this lane wait for ``fence`` without the host; False if this lane cannot."""

    @abstractmethod
    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that is told of passed fences. Only while no work is pending."""

    @abstractmethod
    def close(self) -> None:
        """Stop after the work that is queued; does not wait for it. Idempotent."""

    @abstractmethod
    def join(self) -> None:
        """After `close`: block until the lane has stopped."""


class Device(ABC):
    """Lanes and memory of one place.

    Attributes:
        place: Whose device it is.
        memory: The pool that buffers come from.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.memory = Pool()
        self._lanes: dict[str, Lane] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @abstractmethod
    def _make_lane(self, name: str) -> Lane:
        """A new lane of this name."""

    def lane(self, name: str) -> Lane:
        """The lane of this name, made on first use."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = self._make_lane(name)
            if self._loop is not None:
                lane.bind(self._loop)
        return lane

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that is told of passed fences."""
        self._loop = loop
        for lane in self._lanes.values():
            lane.bind(loop)

    def close(self) -> None:
        """Stop all lanes; does not wait for them. Idempotent."""
        for lane in self._lanes.values():
            lane.close()

    def join(self) -> None:
        """After `close`: block until all lanes have stopped."""
        for lane in self._lanes.values():
            lane.join()
