"""The time of a simulated accelerator, and the thread that does its work when the model says that it ends."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import perf_counter_ns

from actorflow.threads import held_at_fork, start_thread

#: Of all timelines together: work that waits for other work is always the newer one.
_order = count()


class Work(ABC):
    """Something that ends at a moment of the model.

    Attributes:
        start_ns: When it begins, on the model's clock.
        finish_ns: When it ends.
    """

    __slots__ = ("finish_ns", "start_ns")

    def __init__(self, start_ns: int, finish_ns: int) -> None:
        self.start_ns = start_ns
        self.finish_ns = finish_ns

    @abstractmethod
    def run(self) -> None:
        """Do it. Called by the timeline's thread; raises nothing."""

    @abstractmethod
    def end(self, elapsed_ns: int) -> None:
        """It was done, in this real time. Called with the timeline's lock held."""


class Timeline:
    """Does work in the order in which the model says that it ends.

    When a piece of work ends is settled when it is launched, from what it comes behind; so a thread that is late does
    not make the model late. Work that comes behind other work never ends before it and is launched later, so the order
    of the ends, and among equals that of launching, keeps every order that streams and events ask for.

    Args:
        name: Of the thread.
        clock: Where the time comes from, in nanoseconds.

    Attributes:
        changed: Told whenever work was launched or has ended.
    """

    def __init__(self, name: str, clock: Callable[[], int]) -> None:
        self.clock = clock
        # Its lock is one that the garbage collector may take again.
        self.changed = held_at_fork(threading.Condition())
        self._name = name
        self._heap: list[tuple[int, int, Work]] = []
        self._thread: threading.Thread | None = None
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether nothing may be launched any more."""
        return self._is_closing

    def push(self, work: Work) -> None:
        """Launch work. The caller holds the lock of ``changed``.

        Raises:
            DeviceError: if the thread cannot be started; the work was not launched then.
        """
        if self._thread is None:
            self._thread = start_thread(self._work, self._name)
        heappush(self._heap, (work.finish_ns, next(_order), work))
        self.changed.notify_all()

    def wake(self) -> None:
        """Have the thread look at the clock again."""
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """Stop after the work that was launched, which takes no modelled time any more. Idempotent."""
        with self.changed:
            self._is_closing = True
            self.changed.notify_all()

    def join(self) -> None:
        """After `close`: block until the thread has stopped."""
        if self._thread is not None:
            self._thread.join()

    def forget_parent(self) -> None:
        """This is the child of a fork, which does not have the thread: nothing that was launched is done."""
        self._is_closing = True
        self._thread = None
        self._heap.clear()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            begin_ns = perf_counter_ns()
            work.run()
            with self.changed:
                work.end(perf_counter_ns() - begin_ns)
                self.changed.notify_all()
            del work  # while there is none, nothing of the last run may be kept alive

    def _next(self) -> Work | None:
        """The next work, when it is due; None at the end."""
        with self.changed:
            while True:
                if not self._heap:
                    if self._is_closing:
                        return None
                    self.changed.wait()
                    continue
                left_ns = self._heap[0][0] - self.clock()
                if left_ns <= 0 or self._is_closing:
                    return heappop(self._heap)[2]
                self.changed.wait(left_ns / 1e9)
