"""Work of a simulated accelerator: launches, marks, failures, and the thread that does it at the time of the model."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.core import clock_ns
from actorflow.devices.sim.memory import SimArray
from actorflow.errors import DeviceError
from actorflow.threads import held_at_fork, simulation, start_thread

if TYPE_CHECKING:
    from actorflow.devices.sim.memory import Block
    from actorflow.devices.sim.races import HostSource, Use
    from actorflow.devices.sim.stream import SimEvent, SimStream

#: Counts the work of all timelines together: work that waits for other work is always the newer one.
_order = count()


class Work(ABC):
    """Something that ends at a moment of the model."""

    __slots__ = ("finish_ns", "start_ns")

    def __init__(self, start_ns: int, finish_ns: int) -> None:
        self.start_ns = start_ns  # when it begins, on the model's clock
        self.finish_ns = finish_ns

    @abstractmethod
    def run(self) -> None:
        """Do it. Called by the timeline's thread; raises nothing."""

    @abstractmethod
    def end(self, elapsed_ns: int) -> None:
        """Note that it was done, in this real time. Called with the timeline's lock held."""


class Timeline:
    """Does work in the order in which the model says that it ends.

    When a piece of work ends is settled when it is launched, from what it comes behind; so a thread that is late does
    not make the model late. Work that comes behind other work never ends before it and is launched later, so the order
    of the ends, and among equals that of launching, keeps every order that streams and events ask for.

    Args:
        clock: Where the time comes from, in nanoseconds.
    """

    def __init__(self, name: str, clock: Callable[[], int]) -> None:
        self.clock = clock
        # Its lock is one that the garbage collector may take again.
        self.changed = held_at_fork(threading.Condition())  # told whenever work was launched or has ended
        self._name = name
        self._heap: list[tuple[int, int, Work]] = []
        self._thread: threading.Thread | None = None
        self.is_closing = False  # nothing may be launched any more

    def push(self, work: Work) -> None:
        """Launch work. The caller holds the lock of ``changed``.

        Raises:
            DeviceError: if the thread cannot be started; the work was not launched then.
        """
        if simulation.call_at is not None:
            simulation.call_at(work.finish_ns, self._do_due)
        elif self._thread is None:
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
            self.is_closing = True
            self.changed.notify_all()

    def join(self) -> None:
        """After `close`: block until the thread has stopped."""
        if self._thread is not None:
            self._thread.join()
        while simulation.call_at is not None and self._heap:
            self.do_next()

    def forget_parent(self) -> None:
        """This is the child of a fork, which does not have the thread: nothing that was launched is done."""
        self.is_closing = True
        self._thread = None
        self._heap.clear()

    def do_next(self) -> None:
        """In a simulation: do the work that ends next, whatever the time."""
        self._do(heappop(self._heap)[2])

    def _do_due(self) -> None:
        while self._heap and self._heap[0][0] <= self.clock():
            self.do_next()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            self._do(work)
            del work  # while there is none, nothing of the last run may be kept alive

    def _do(self, work: Work) -> None:
        begin_ns = clock_ns()
        work.run()
        with self.changed:
            work.end(clock_ns() - begin_ns)
            self.changed.notify_all()

    def _next(self) -> Work | None:
        """The next work, when it is due; None at the end."""
        with self.changed:
            while True:
                if not self._heap:
                    if self.is_closing:
                        return None
                    self.changed.wait()
                    continue
                left_ns = self._heap[0][0] - self.clock()
                if left_ns <= 0 or self.is_closing:
                    return heappop(self._heap)[2]
                self.changed.wait(left_ns / 1e9)


Array = npt.NDArray[Any]
Arrays = Sequence[SimArray | Array]
#: Called by a launch with the contents of what it reads and of what it writes.
Function = Callable[[list[Array], list[Array]], object]


class WorkFailure:
    """Why work on the device did not do what it should.

    Attributes:
        root: The failure for whose sake the work was skipped; itself if it was not skipped.
    """

    __slots__ = ("by", "error", "is_marked", "is_raised", "is_told", "number", "root", "stream")

    def __init__(
        self, stream: SimStream, by: str, error: DeviceError, root: WorkFailure | None = None, is_raised: bool = False
    ) -> None:
        self.stream = stream
        self.by = by
        self.error = error
        self.root = self if root is None else root
        self.number = 0  # of its launch
        self.is_raised = is_raised  # whether it was raised when the work was launched, so that no event needs to
        self.is_marked = False  # whether an event carries it to the host
        self.is_told = False  # whether that event has been asked


class Launch(Work):
    """Work on a stream."""

    def __init__(
        self, stream: SimStream, by: str, cost_ns: int, awaited: list[SimEvent], failure: WorkFailure | None
    ) -> None:
        start_ns = max(stream.free_ns, stream.timeline.clock())
        super().__init__(start_ns, start_ns + cost_ns)
        self._number = next(_order)  # among all launches
        self._stream = stream
        self._label = stream.label
        self._by = by
        self._awaited = awaited
        self._failure = failure
        self._function: Function | None = None
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []
        self._reads: list[Block] = []
        self._writes: list[Block] = []
        self._sources: list[HostSource] = []

    def prepare(self, function: Function, reads: Arrays, writes: Arrays, uses: Iterable[Use]) -> None:
        """Keep what `run` needs: the contents, not the arrays, which may be given back to a pool before."""
        self._function = function
        self._reads = [array.block for array in reads if isinstance(array, SimArray)]
        self._writes = [array.block for array in writes if isinstance(array, SimArray)]
        self._inputs = [array.contents if isinstance(array, SimArray) else array for array in reads]
        self._outputs = [array.contents if isinstance(array, SimArray) else array for array in writes]
        self._sources = [use.source for use in uses if use.source is not None]

    def run(self) -> None:
        for event in self._awaited:
            event.wait_until_passed()
        if self._failure is None:
            self._failure = self._skip() or self._call()
        if self._failure is not None:
            self._failure.number = self._number
        for block in self._writes:
            block.failure = self._failure
        # Before an event can pass: then the host may use its memory again.
        self._function = None
        self._awaited, self._reads, self._writes = [], [], []
        self._inputs, self._outputs, self._sources = [], [], []

    def end(self, elapsed_ns: int) -> None:
        stream = self._stream
        stream.unfinished -= 1
        stream.busy_ns += self.finish_ns - self.start_ns if stream.options.is_timed else elapsed_ns
        if self._failure is not None:
            stream.failures.append(self._failure)

    def _skip(self) -> WorkFailure | None:
        # What was launched later and failed at once, as a race, has not changed what this work reads.
        failures = [block.failure for block in self._reads if block.failure is not None]
        blamed = next((failure for failure in failures if failure.number < self._number), None)
        if blamed is None:
            return None
        root = blamed.root
        error = DeviceError(f"{self._by} was skipped: it needs the result of {root.by}, which failed")
        error.__cause__ = root.error
        error.work = self._label
        return WorkFailure(self._stream, self._by, error, root)

    def _call(self) -> WorkFailure | None:
        assert self._function is not None
        try:
            for source in self._sources:
                if not source.is_whole():
                    raise source.error()
            with np.errstate(all="ignore"):  # devices do not warn
                self._function(self._inputs, self._outputs)
        except DeviceError as error:
            return WorkFailure(self._stream, self._by, error)
        except BaseException as error:  # noqa: BLE001  an event carries it to the host
            failed = DeviceError(f"{self._by} failed with {type(error).__name__}: {error}")
            failed.__cause__ = error
            failed.work = self._label
            return WorkFailure(self._stream, self._by, failed)
        return None


class Mark(Work):
    """The place in a stream where an event passes."""

    __slots__ = ("awaited", "event")

    def __init__(self, event: SimEvent, awaited: list[SimEvent]) -> None:
        super().__init__(event.finish_ns, event.finish_ns)
        self.event = event
        self.awaited = awaited

    def run(self) -> None:
        for event in self.awaited:
            event.wait_until_passed()

    def end(self, elapsed_ns: int) -> None:
        self.event.stream.unfinished -= 1
        self.event.arrive()
