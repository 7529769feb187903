"""Sessions: who computes what was recorded, when, and within which memory."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from actorflow.array.devices import Devices
from actorflow.array.memory import Memory
from actorflow.array.placement import place_of
from actorflow.array.planning import collect, make_units
from actorflow.array.primitives import DType, Value
from actorflow.array.records import Node
from actorflow.array.units import Unit
from actorflow.devices import DeviceOptions
from actorflow.devices.blas import cores
from actorflow.errors import GraphError
from actorflow.history import OpProfile
from actorflow.place import Place
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.arrays import Array
    from actorflow.array.placed import PlacedUnit

__all__ = ["Session", "current", "session"]

#: Elements to be computed from which on a worker looks at what was recorded; what is less is not worth a thread.
_WORTH_A_LOOK = 65_536
#: Elements to be computed from which on a worker does not wait for a pause of the recording.
_PLENTY = 16 * 1024 * 1024
#: Records that wait for the engine; from here on the recording thread computes, too.
_MOST_PENDING = 20_000
#: A recording that makes nothing for so long has paused.
_PAUSE_S = 1e-3
#: A worker without work ends after this time.
_LINGER_S = 1.0


class Session:
    """Who computes what was recorded: in the threads that wait, and in workers of its own.

    Args:
        memory_budget: Most bytes that values may take. Work that nobody waits for starts only where it fits, and
            `from_numpy` waits until there is room.
        sequential: Compute each operation in the line that records it, in order.
        dry_run: Record and check, but compute nothing.
        run_ahead: Whether workers compute what was recorded before somebody asks for it.
        devices: How accelerators are used, by place; for `actorflow.Graph`.
        capture: Whether kernels that follow each other on one are captured and replayed; for `actorflow.Graph`.

    Attributes:
        profile: Calls and times by operation; those computed as one share an entry, their names joined by ``+``.
        computed: Operations computed.
        shared: Operations that were not computed since an equal one was.
        memory: Its values' memory on the CPU.
        devices: What computes on accelerators.
    """

    def __init__(
        self,
        *,
        memory_budget: int | None = None,
        sequential: bool = False,
        dry_run: bool = False,
        run_ahead: bool = True,
        devices: Mapping[Place | str, DeviceOptions] | None = None,
        capture: bool = False,
    ) -> None:
        if sequential and dry_run:
            raise GraphError("a session is sequential or a dry run, not both")
        self.memory = Memory(memory_budget)
        self.devices = Devices(memory_budget, {place_of(place): own for place, own in (devices or {}).items()}, capture)
        self.sequential = sequential
        self.dry_run = dry_run
        self.run_ahead = run_ahead
        if dry_run:
            Node.dry_runs += 1
            weakref.finalize(self, _end_dry_run)
        self.profile: dict[str, OpProfile] = {}
        self.computed = self.shared = 0
        # The recording's side: no locks there.
        self.pending: deque[weakref.ref[Array]] = deque()
        self.load = 0
        self.threshold: float = -1 if sequential else _WORTH_A_LOOK if run_ahead and not dry_run else float("inf")
        # The engine's side, under the lock.
        self._changed = threading.Condition()
        self._ready: list[tuple[bool, int, int, Unit]] = []
        self._parked: list[Unit] = []
        self._open: list[Unit] = []
        self._running = self._awaited = 0
        self._workers = 0
        self._idle = 0
        self._pushes = count()
        self._watching = False
        self._closed = False

    # -- recording ----------------------------------------------------------------------------------------------

    def notice(self, node: Node) -> None:
        """Much has been recorded: have a worker look at it. Called while recording."""
        if self.sequential:
            self.force([node])
            if node.error is not None:
                raise node.error
        elif len(self.pending) > _MOST_PENDING:
            self.flush()
        elif not self._watching and not self._closed:
            with self._changed:
                self._watching = True
                self._call_workers(1)

    def buffer(self, shape: tuple[int, ...], dtype: DType) -> Value:
        """Memory for a new array. Waits for room: computes what was recorded, so that it lets go of what it reads.

        Raises:
            OutOfMemoryError: if there is no room even then.
        """
        size_bytes = TensorSpec(shape, dtype).size_bytes
        # What is recorded needs room to be computed in: new arrays alone do not fill more than half.
        for share in (0.5, 1.0):
            with self._changed:
                if self.memory.fits(size_bytes, share):
                    return self.memory.take(shape, dtype)
            if share < 1:
                self.flush()
        raise self.memory.no_room("a new array", size_bytes)

    # -- asking -------------------------------------------------------------------------------------------------

    def force(self, nodes: Iterable[Node]) -> None:
        """Compute records, in this thread too; returns when they are done, well or not.

        Raises:
            GraphError: in a dry run.
        """
        wanted = [node for node in nodes if not node.done]
        if not wanted:
            return
        self._check_runs()
        with self._changed:
            while wanted:
                self._prepare([node for node in wanted if node.unit is None or not node.unit.forced], forced=True)
                worked = self._work_once(forced=True) or self._squeeze()
                wanted = [node for node in wanted if not node.done]
                if wanted and not worked:
                    self._changed.wait()
                    wanted = [node for node in wanted if not node.done]

    def when_done(self, node: Node, callback: Callable[[], None]) -> None:
        """Have the workers compute a record, and call ``callback`` when it is done, from any thread.

        Raises:
            GraphError: in a dry run.
        """
        if not node.done:
            self._check_runs()
            with self._changed:
                self._prepare([node], forced=True)
                if node.unit is not None:
                    node.unit.callbacks.append(callback)
                    self._awaited += 1
                    self._call_workers(cores())
                    return
        callback()

    def flush(self, forced: bool = False) -> None:
        """Compute all that was recorded and that somebody can still ask for, where it fits; returns when that is done.

        Args:
            forced: Whether what does not fit is given up.
        """
        if self.dry_run:
            return
        with self._changed:
            self._prepare(self._take_pending(), forced)
            if forced:
                self._put_first(self._parked[:])
            while self._ready or self._open or self._running:
                if not self._work_once(forced=False) and not (forced and self._squeeze()):
                    if not (self._ready or self._open or self._running):
                        break
                    self._changed.wait()

    def close(self) -> None:
        """End the workers after what they are at. What is not computed then is computed by those who ask for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.devices.close()

    def _check_runs(self) -> None:
        if self.dry_run:
            raise GraphError("this session is a dry run: its arrays have no values")

    # -- planning: with the lock held ---------------------------------------------------------------------------

    def _take_pending(self) -> list[Node]:
        self.load = 0
        pending = self.pending
        arrays = (pending.popleft()() for _ in range(len(pending)))
        return [array._node for array in arrays if array is not None]

    def _prepare(self, roots: list[Node], forced: bool) -> None:
        """Make units of what must be computed for records; put them first if somebody waits for them."""
        if not roots:
            return
        new, under_way, foreign = collect(roots, self)
        while foreign:
            self._changed.release()
            try:
                for node in foreign:
                    node.session.force([node])
            finally:
                self._changed.acquire()
            new, under_way, foreign = collect(roots, self)
        units, shared = make_units(new, set(roots))
        self.shared += shared
        for unit in units:
            sources = {read.unit for read in unit.reads if type(read) is Node and read.unit is not None}
            for source in sources:
                source.followers.append(unit)
            unit.sources = list(sources)
            unit.waiting = len(sources)
        if forced:
            self._put_first([*units, *(node.unit for node in under_way if node.unit is not None)])
        for unit in units:
            if unit.waiting == 0 and not unit.queued:
                self._push(unit)
        self._unpark()

    def _put_first(self, units: list[Unit]) -> None:
        while units:
            unit = units.pop()
            if not unit.forced and not unit.ended:
                unit.forced = True
                units.extend(unit.sources)
                if unit.waiting == 0 and unit.queued:
                    self._push(unit)

    def _push(self, unit: Unit) -> None:
        unit.queued = True
        heappush(self._ready, (not unit.forced, unit.number, next(self._pushes), unit))

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        for unit in parked:
            self._push(unit)

    # -- computing: with the lock held, but for the computation itself ------------------------------------------

    def _work_once(self, forced: bool) -> bool:
        """Run a part of a unit, if there is one to run."""
        taken = self._take(forced)
        if taken is None:
            return False
        unit, share = taken
        self._running += 1
        self._changed.release()
        interrupted = True
        try:
            unit.run(share)
            interrupted = False
        finally:
            self._changed.acquire()
            self._running -= 1
            if interrupted and unit.return_share(share):
                if unit not in self._open:
                    self._open.append(unit)
                self._changed.notify_all()
            elif unit.end_share(share):
                self._end(unit)
        return True

    def _take(self, forced: bool) -> tuple[Unit, tuple[int, int]] | None:
        unit = next((unit for unit in self._open if unit.forced or not forced), None)
        if unit is None:
            unit = self._next_unit(forced)
            if unit is None:
                return None
            self._open.append(unit)
        share = unit.take_share()
        if not unit.has_shares:
            self._open.remove(unit)
        if self._open or (self._ready and self._ready[0][-1].work > _WORTH_A_LOOK):
            self._call_workers(cores() - 1 if forced else cores())
        return unit, share

    def _next_unit(self, forced: bool) -> Unit | None:
        """The next unit that is ready, wanted, and fits."""
        while self._ready:
            unit = self._ready[0][-1]
            if unit.queued and forced and not unit.forced:
                return None
            heappop(self._ready)
            if not unit.queued:  # it was put first, and is over
                continue
            unit.queued = False
            error = unit.failed_source
            if error is not None:
                unit.fail(error)
                self._end(unit)
            elif not unit.is_wanted:
                unit.finish()
                self._end(unit)
            else:
                memory = unit.memory
                if memory.fits(unit.most_bytes):
                    unit.gather()
                elif self._running or not unit.forced or not memory.fits(unit.gather()):
                    self._parked.append(unit)
                    continue
                if memory.is_limited and unit.allocates:
                    unit.reserved_bytes = unit.most_bytes
                    memory.reserved_bytes += unit.reserved_bytes
                if unit.begin():
                    return unit
                self._end(unit)
        return None

    def _squeeze(self) -> bool:
        """Nothing that fits is left for those who wait: make room, or give the oldest up; False if there is hope."""
        if self._running or self._open or not any(unit.forced for unit in self._parked):
            return False
        self._prepare(self._take_pending(), forced=False)
        if not self._work_once(forced=False):
            self._give_up_oldest()
        return True

    def _give_up_oldest(self) -> None:
        unit = min((unit for unit in self._parked if unit.forced), key=lambda unit: unit.number, default=None)
        if unit is not None:
            self._parked.remove(unit)
            unit.fail(unit.memory.no_room(unit.name, unit.most_bytes))
            self._end(unit)

    def _end(self, unit: Unit) -> None:
        unit.memory.reserved_bytes -= unit.reserved_bytes
        if not unit.ended:
            unit.end()
            profile = self.profile.setdefault(unit.name, OpProfile())
            profile.calls += 1
            profile.last_ns = unit.elapsed_ns
            profile.total_ns += unit.elapsed_ns
            self.computed += unit.operations
        for follower in unit.followers:
            follower.waiting -= 1
            if follower.waiting == 0:
                self._push(follower)
        for callback in unit.callbacks:
            callback()
        self._awaited -= len(unit.callbacks)
        if self._awaited and self._ready:  # the threads that compute now may only care for what they wait for
            self._call_workers(cores())
        if self._parked:
            self._unpark()
        self._changed.notify_all()

    def hand_over(self, unit: PlacedUnit) -> None:
        """The devices compute a unit from now on. Without the lock."""
        with self._changed:
            self._running += 1
        self.devices.submit(unit.compute)

    def take_back(self, unit: PlacedUnit) -> None:
        """The devices have computed a unit. Without the lock, on their thread."""
        with self._changed:
            self._running -= 1
            self._end(unit)
            if self._ready:
                self._call_workers(cores())
            is_closed = self._closed
        if is_closed:
            self.devices.close()

    # -- workers ------------------------------------------------------------------------------------------------

    def _call_workers(self, most: int) -> None:
        if self._workers < most and not self._idle:
            self._workers += 1
            threading.Thread(target=self._work, name=f"actorflow-array-{self._workers}", daemon=True).start()
        else:
            self._changed.notify_all()

    def _work(self) -> None:
        with self._changed:
            try:
                while True:
                    if self._work_once(forced=False) or self._squeeze():
                        continue
                    if self._closed:
                        return
                    if self._watching:
                        self._watch()
                        continue
                    self._idle += 1
                    woken = self._changed.wait(_LINGER_S)
                    self._idle -= 1
                    if not woken and not self._ready and not self._open and not self._watching:
                        return
            finally:
                self._workers -= 1

    def _watch(self) -> None:
        """Compute what was recorded once the recording pauses, or plenty has been recorded."""
        before = self.load, len(self.pending)
        self._changed.wait(_PAUSE_S)
        if self.load > _PLENTY or (self.load, len(self.pending)) == before:
            self._watching = False
            if self.load > self.threshold:
                self._prepare(self._take_pending(), forced=False)


def _end_dry_run() -> None:
    Node.dry_runs -= 1


_current: ContextVar[Session | None] = ContextVar("actorflow-array-session", default=None)
_default = Session()


def current() -> Session:
    """The session that new arrays belong to: that of the `session` block around, else one for the process."""
    return _current.get() or _default


@contextmanager
def session(
    *,
    memory_budget: int | None = None,
    sequential: bool = False,
    dry_run: bool = False,
    run_ahead: bool = True,
    devices: Mapping[Place | str, DeviceOptions] | None = None,
    capture: bool = False,
) -> Iterator[Session]:
    """Arrays that are made inside belong to a session of their own, and so does all that is computed from them.

    Args: see `Session`.
    """
    made = Session(
        memory_budget=memory_budget,
        sequential=sequential,
        dry_run=dry_run,
        run_ahead=run_ahead,
        devices=devices,
        capture=capture,
    )
    token = _current.set(made)
    try:
        yield made
    finally:
        _current.reset(token)
        made.close()
