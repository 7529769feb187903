"""Sessions, which compute the arrays that belong to them, within memory of their own."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Token
from functools import partial
from math import prod
from operator import attrgetter
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

from actorflow.array.jobs import Job, Run
from actorflow.array.record.placement import place_of
from actorflow.array.record.primitives import LARGE, DType, Value
from actorflow.array.record.record import HOST, WORTH_A_LOOK, Error, Evaluator, Record, context_evaluator
from actorflow.core import desk
from actorflow.devices import DeviceOptions
from actorflow.devices.memory import POOLED_BYTES, BufferPool
from actorflow.errors import DeviceError, GraphError, OutOfMemoryError
from actorflow.place import Place
from actorflow.runtime.interrupts import Guard, check_interrupt
from actorflow.threads import forget_in_child, new_condition, simulation
from actorflow.trace.counters import OpProfile

if TYPE_CHECKING:
    from actorflow.array.array import Array
    from actorflow.runtime.service import Service

#: Records that wait to be computed; from here on the recording thread computes, too.
_MOST_PENDING = 20_000
#: The same under a budget, where all of them are looked through again and again.
_MOST_PENDING_IN_BUDGET = 1_000
#: Elements to be computed that are computed at once with what is asked for, as they would be ahead.
_MOST_WORK = 1 << 23
#: Elements to be computed from which on the service does not wait for a pause of the recording.
_PLENTY = 16 * 1024 * 1024
#: A service without work, and without accelerators, ends after this time.
_LINGER_S = 1.0
#: A recording that makes nothing for this time has paused.
_PAUSE_S = 1e-3
_number = attrgetter("number")


class Memory:
    """Counts the values of a session; any thread may call it.

    Attributes:
        pool: Counts them: under a budget all values, otherwise large ones.
    """

    def __init__(self, budget_bytes: int | None) -> None:
        if budget_bytes is not None and budget_bytes <= 0:
            raise GraphError(f"memory_budget must be positive, got {budget_bytes} bytes")
        self.pool = BufferPool()
        self.pool.budget_bytes = budget_bytes
        self._counted_bytes = POOLED_BYTES if budget_bytes is None else 1

    def count(self, value: Any) -> None:
        """Count a value from now on."""
        if type(value) is np.ndarray:
            if value.nbytes >= self._counted_bytes and value.base is None:
                self.pool.adopt(value)
        elif type(value) is tuple:
            for each in value:
                self.count(each)

    def fits(self, size_bytes: int) -> bool:
        """Return whether n more bytes fit the budget."""
        budget_bytes = self.pool.budget_bytes
        return budget_bytes is None or self.pool.held_bytes + size_bytes <= budget_bytes

    def no_room(self, what: str, size_bytes: int) -> OutOfMemoryError:
        """The error of an array or a unit that does not fit."""
        return OutOfMemoryError(
            f"{what} needs {size_bytes:,} bytes, and {self.pool.held_bytes:,} of the budget of "
            f"{self.pool.budget_bytes:,} bytes are taken by arrays that the program still refers to"
        )


class DeviceMemory(Memory):
    """The memory that a session's values take on one device."""

    def __init__(self, budget_bytes: int | None, place: Place) -> None:
        super().__init__(budget_bytes)
        self._place = place
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def count(self, value: Any) -> None:
        for each in value if type(value) is tuple else (value,):
            buffer = each if each.base is None else each.base
            if self._known.get(id(buffer)) is not buffer:
                self._known[id(buffer)] = buffer
                self.pool.adopt(buffer)

    def no_room(self, what: str, size_bytes: int) -> OutOfMemoryError:
        return OutOfMemoryError(f"on {self._place}: {super().no_room(what, size_bytes)}")


class Found(NamedTuple):
    """The records that must be computed: new ones, in order, and those of other sessions.

    Attributes:
        is_under_way: Whether some are being computed.
        shared: Of the new ones, those that others than these read: worth keeping.
    """

    new: list[Record]
    is_under_way: bool
    foreign: list[Record]
    shared: set[Record]


class Session(Evaluator):
    """Arrays that are computed together, by the threads that ask for them and by a service with lanes.

    In a ``with`` block, the arrays that are made inside belong to it, and so does all that is computed from them.

    Args:
        memory_budget: Most bytes that values may take. They are computed in the order in which they were recorded, and
            `from_numpy` waits until there is room.
        sequential: Compute each operation in the line that records it, in order.
        dry_run: Record and check, but compute nothing.
        run_ahead: Whether what was recorded is computed before it is asked for.
        devices: Options of accelerators, by place, as for `actorflow.Graph`.
        capture: Whether kernels that follow each other on one are captured and replayed, as for `actorflow.Graph`.
    Raises:
        GraphError: if options exclude each other, or the budget is not positive.

    Attributes:
        profile: Calls and times by operation; those computed as one have their shares of the time.
        computed: Operations computed.
        shared: Operations that were not computed since an equal one was.
        memory: Memory of values on the CPU.
        service: Computes what is large, on accelerators, awaited or not asked for yet; None before the first of these.
    Example:
        >>> with xp.session(run_ahead=False) as session:
        ...     x = xp.asarray([1.0, 4.0])
        ...     print((xp.sqrt(x) * 2.0).to_numpy(), list(session.profile))
        [2. 4.] ['sqrt', 'multiply']
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
        super().__init__(dry_run)
        self._options = {place_of(place): own for place, own in (devices or {}).items()}
        self.memory = Memory(memory_budget)
        self._memories: dict[Place, DeviceMemory] = {}
        self.capture = capture
        self.count = self.memory.count
        self.is_limited = memory_budget is not None or any(own.memory_budget for own in self._options.values())
        self.sequential = sequential
        self.threshold = -1 if sequential else WORTH_A_LOOK
        self._profile: dict[str, OpProfile] = {}
        self._owed: dict[Any, list[Any]] = {}  # by program: its operations, calls and times that the profile lacks
        self.computed = self.shared = 0
        self._runs_ahead = run_ahead
        self.takes_programs = not (dry_run or sequential or self.is_limited)
        if run_ahead and self.takes_programs:
            self.at_once = LARGE
        self._most_pending = _MOST_PENDING
        # All below is used under the lock.
        self._changed = new_condition()
        self._jobs: set[Job] = set()
        self._late: list[weakref.ref[Array]] = []  # under a budget, what the program can ask for
        self._callbacks: dict[Record, list[Callable[[], None]]] = {}
        self._running: list[Service] = []  # at most one
        self._uses = 0  # how often the service was given something
        self._refusal: BaseException | None = None  # why there is none
        self._is_watching = self._is_ahead = self._closed = False
        self._token: Token[Evaluator | None] | None = None
        self._end_of_service = weakref.finalize(self, _close, self._running)
        forget_in_child(self)

    def __enter__(self) -> Self:
        self._token = context_evaluator.set(self)
        return self

    def __exit__(self, *failure: object) -> None:
        token, self._token = self._token, None
        try:
            if token is not None:
                context_evaluator.reset(token)
        finally:  # a generator may be ended in another context
            self.close()

    @property
    def profile(self) -> dict[str, OpProfile]:
        """Calls and times by operation."""
        with Guard(self._changed):
            owed, self._owed = self._owed, {}
            for form, (steps, calls, total_ns) in owed.items():
                # Each operation has the share of the program's time that it has of that of all.
                profiles = form.profiles
                spent = {i: sum([each.total_ns for each in own]) for i, own in profiles.items()}
                whole_ns = max(1, sum(spent.values()))
                for i, own_ns in spent.items():
                    profile = self._profile.setdefault(steps[i].op.name, OpProfile())
                    profile.calls += calls
                    profile.total_ns += total_ns * own_ns // whole_ns
                    profile.last_ns = sum([each.last_ns for each in profiles[i]])
        return self._profile

    @property
    def service(self) -> Service | None:
        """The service that computes for it beside the threads that ask, if there is one now."""
        return self._running[0] if self._running else None

    @property
    def held_bytes(self) -> int:
        """Bytes of values on the CPU, now: of all values under a budget, else of large ones."""
        return self.memory.pool.held_bytes

    @property
    def peak_bytes(self) -> int:
        """Highest `held_bytes` so far."""
        return self.memory.pool.peak_bytes

    def wait_for_all(self) -> None:
        """Compute all that was recorded and that the program can still ask for.

        A failure is reported where the value is asked for.
        """
        if self.dry_run:
            return
        with Guard(self._changed) as guard:
            self._compute(self._take_pending(), guard)
            self._drain(guard)

    # -- recording ----------------------------------------------------------------------------------------------

    def notice(self, node: Record) -> None:
        """Have the service look at the records, of which there are many."""
        if self.dry_run:
            super().notice(node)
        elif self.sequential:
            self.force([node])
            self._forget()
            if node.error is not None:
                raise node.error
        elif not self._runs_ahead:
            self.load = 0
            if len(self.pending) > self._most_pending:
                self._forget()
                self._most_pending = max(_MOST_PENDING, 2 * len(self.pending))
        elif len(self.pending) > (_MOST_PENDING_IN_BUDGET if self.is_limited else _MOST_PENDING):
            with Guard(self._changed) as guard:
                self._drain(guard)
        elif not self._is_watching and not self._closed:
            with Guard(self._changed):
                service = self._serving()
                if service is not None:
                    self._is_watching = True
                    service.submit(self._watch)

    def _forget(self) -> None:
        """Drop the records that need not be computed any more."""
        with Guard(self._changed):
            pending = self.pending
            for _ in range(len(pending)):
                ref = pending.popleft()
                if _node_to_compute(ref) is not None:
                    pending.append(ref)

    def buffer(self, shape: tuple[int, ...], dtype: DType) -> Value:
        """Memory for a new array. Waits for room: computes what was recorded, so that it lets go of what it reads."""
        memory = self.memory
        size_bytes = prod(shape) * dtype.itemsize
        if size_bytes < POOLED_BYTES and not self.is_limited:
            return np.empty(shape, dtype)
        with Guard(self._changed) as guard:
            if self.is_limited:
                self._drain(guard)  # records need room for their values, too
                if not memory.fits(size_bytes):
                    gc.collect()
                    self._drain(guard)
                if not memory.fits(size_bytes):
                    raise memory.no_room("a new array", size_bytes)
            value = np.empty(shape, dtype)
            memory.count(value)
            return value

    # -- asking -------------------------------------------------------------------------------------------------

    def force(self, nodes: Iterable[Record]) -> None:
        wanted = [node for node in nodes if not node.done]
        if not wanted:
            return
        if self.dry_run:
            super().force(wanted)
        with Guard(self._changed) as guard:
            self._compute(wanted, guard)

    def _compute(self, wanted: list[Record], guard: Guard) -> None:
        """Compute records, with the lock held; returns when they are done, well or not."""
        is_ahead = self._runs_ahead and self.takes_programs and desk.placing is None and self.load <= _MOST_WORK
        # One program has all that would be computed ahead anyway: values are asked for one after the other.
        roots = [*wanted, *self._take_pending()] if is_ahead else wanted
        served: Job | None = None  # what the service computes for this thread
        while wanted := [node for node in wanted if not node.done]:
            job = self._begin(roots, wanted)
            if job is not None:
                self._run(job)
                served = job if job.is_served else None
            # Others may have computed them while this thread computed what another session has.
            if served is not None or (job is None and not all(node.done for node in wanted)):
                self._wait(guard)
            if served is not None and served.interrupt is not None:
                raise served.interrupt
            check_interrupt()
            roots = wanted

    def when_done(self, node: Record, callback: Callable[[], None]) -> None:
        if not node.done:
            if self.dry_run:
                super().force((node,))
            with Guard(self._changed):
                if is_waiting := not node.done:
                    self._callbacks.setdefault(node, []).append(callback)
                    self._go_on()
            if is_waiting:
                return
        callback()

    def close(self) -> None:
        """End the service after its present work. What is not computed then is computed by those who ask for it."""
        with Guard(self._changed):
            self._closed = True
            is_at_work = any(job.is_served for job in self._jobs)
            ending, self._running[:] = self._running[:], []
        for service in ending:
            service.close()
            if not is_at_work:
                service.join()

    def _drain(self, guard: Guard) -> None:
        """Compute all that was recorded and can still be asked for, where it fits, with the lock held."""
        nodes = self._take_pending()
        last: Job | None = None
        while last is None or last in self._jobs or not last.is_full:
            job = self._begin(nodes, [])
            if job is not None:
                last = job
                self._run(job)
            if self._jobs:
                self._wait(guard)
            elif job is None:
                return
            check_interrupt()
            nodes = [node for node in nodes if not node.done]

    # -- with the lock held -------------------------------------------------------------------------------------

    def _wait(self, guard: Guard) -> None:
        """Wait until something has changed."""
        if simulation.loop is not None:  # this thread is the only one
            raise DeviceError("the loop computes this array: in a simulation, await it")
        self._changed.wait(guard.wait_s)

    def _take_pending(self) -> list[Record]:
        """The records that can be asked for; under a budget also those recorded earlier."""
        self.load = 0
        pending = self.pending
        refs = [each for _ in range(len(pending)) if (each := pending.popleft())() is not None]
        if self.is_limited:
            refs = self._late = [each for each in self._late + refs if _node_to_compute(each) is not None]
        return [node for each in refs if (node := _node_to_compute(each)) is not None]

    def memory_of(self, node: Record) -> Memory:
        """The memory that a record's value takes."""
        place = node.place
        if place is HOST:
            return self.memory
        if place not in self._memories:
            own = self._options[place].memory_budget if place in self._options else None
            self._memories[place] = DeviceMemory(own or self.memory.pool.budget_bytes, place)
        return self._memories[place]

    def admit(self, node: Record, need_bytes: int) -> Error | None:
        """Make room for a record's value; the error where there is none.

        A record that nobody asks for is left, as if nothing had been recorded.
        """
        job: Job = node.unit
        is_asked = node.number in job.asked
        if is_asked or not job.is_full:
            for collects in (False, True):
                if collects:
                    gc.collect()
                with self._changed:
                    memory = self.memory_of(node)
                    if memory.fits(need_bytes):
                        return None
            job.is_full = True
        node.unit = None
        return memory.no_room(node.name, need_bytes) if is_asked else None

    def _begin(self, roots: Sequence[Record], asked: Sequence[Record]) -> Job | None:
        """The job that computes records; None if what they need is being computed, or nothing is to do."""
        if self.is_limited:
            if self._jobs:  # the next one needs to know what room that leaves
                return None
            if asked:  # in the order of recording there is room whenever there can be
                roots = [*self._take_pending(), *asked]
        while (found := collect(roots, self)).foreign:
            self._changed.release()
            try:
                for node in between_sessions(found.foreign):
                    node.evaluator.force([node])
            finally:
                self._changed.acquire()
        if found.is_under_way or not found.new:
            return None
        needed = {node.number for node in collect(asked, self).new} if self.is_limited else set()
        wanted = found.shared.union(roots)
        del roots, asked
        job = Job(self, found.new, wanted, needed)
        self._jobs.add(job)
        return job

    def _run(self, job: Job, is_ahead: bool = False) -> None:
        """Compute a job, or have the service do so, which then tells; what interrupts this thread is raised."""
        if is_ahead or (job.needs_service and simulation.loop is None):
            service = self._serving()
            if service is not None:
                job.is_served = True
                service.submit(partial(self._serve, job))
                return
        interrupt: BaseException | None = None
        self._changed.release()
        try:
            job.compute(self._refusal)
        except BaseException as error:  # noqa: BLE001  for this thread, once the records are in order again
            interrupt = error
        while True:
            try:
                self._changed.acquire()
                break
            except KeyboardInterrupt as error:
                interrupt = error
        self._end(job)
        if interrupt is not None:
            raise interrupt

    def _serving(self) -> Service | None:
        """The service, for another use, started if there is none; None if that is impossible."""
        self._uses += 1
        if not self._running:
            from actorflow.runtime.service import Service

            try:
                self._running.append(Service("actorflow-arrays", self.memory.pool.budget_bytes, self._options))
            except (DeviceError, OSError) as error:
                self._refusal = error
        return self.service

    def _end(self, job: Job) -> None:
        """Hand on the results of a job, and begin what waited for it."""
        self._jobs.discard(job)
        # Records that it has left are computed by the next one who asks.
        self.pending.extend([node.handle for node in job.end() if node.handle is not None])
        for part in job.parts:
            for name, elapsed_ns, has_failed in part.calls:
                profile = self._profile.setdefault(name, OpProfile())
                if has_failed:
                    profile.failed += 1
                else:
                    profile.add(elapsed_ns)
            self.computed += len(part.calls)
            self.shared += part.shared
            if isinstance(part, Run) and part.is_program:
                owed = self._owed.setdefault(part.form, [part.steps, 0, 0])
                owed[1] += 1
                owed[2] += part.elapsed_ns
                self.computed += len(part.steps) - part.shared
        for node in [node for node in self._callbacks if node.done]:
            for callback in self._callbacks.pop(node):
                callback()
        self._go_on()
        self._changed.notify_all()

    def _go_on(self) -> None:
        """Begin what is awaited, and what was recorded before, where that waits for nothing."""
        roots = [node for node in self._callbacks if not node.done]
        asked = roots
        if self._is_ahead and not self._jobs:
            self._is_ahead = False
            roots = [*roots, *self._take_pending()]
        job = self._begin(roots, asked) if roots else None
        if job is not None:
            self._run(job, is_ahead=True)

    # -- on the service's loop ----------------------------------------------------------------------------------

    async def _serve(self, job: Job, service: Service) -> None:
        await job.serve(service)
        with self._changed:
            self._end(job)
            ending = self._running[:] if self._closed and not self._jobs else []
            if ending:
                self._running.clear()
        for each in ending:
            each.close()
        self._linger(service)

    def _linger(self, service: Service) -> None:
        """End a service that is given nothing for a while."""
        uses = self._uses

        def look() -> None:
            with self._changed:
                if uses != self._uses or self._running != [service] or not service.is_of_host:
                    return
                if is_idle := not (self._jobs or self._is_watching):
                    self._running.clear()
            if is_idle:
                service.close()
            else:  # by a job that a thread computes itself, say, which tells nobody of its end
                service.later(_LINGER_S, look)

        if not self._closed and service.is_of_host:
            service.later(_LINGER_S, look)

    async def _watch(self, service: Service) -> None:
        """Compute what was recorded once the recording pauses, or plenty has been recorded."""
        before = self.load, len(self.pending)
        await asyncio.sleep(_PAUSE_S)
        if self.load <= _PLENTY and (self.load, len(self.pending)) != before:
            service.submit(self._watch)
            return
        with self._changed:
            self._is_watching = False
            self._is_ahead = self.is_limited or self.load > self.threshold
            self._go_on()
        self._linger(service)

    # -- forks --------------------------------------------------------------------------------------------------

    def forget_parent(self) -> None:
        """Forget the service and what threads were at, which the child of a fork does not have."""
        self._end_of_service.detach()
        self._running = []
        self._end_of_service = weakref.finalize(self, _close, self._running)
        self._is_watching = self._is_ahead = False
        self._callbacks.clear()
        while self._jobs:
            self.pending.extend([node.handle for node in self._jobs.pop().end() if node.handle is not None])


def collect(roots: Iterable[Record], evaluator: Evaluator) -> Found:
    """Find the records that must be computed for ``roots``."""
    readers: dict[Record, int] = {}
    new: list[Record] = []
    foreign: list[Record] = []
    is_under_way = False
    stack = [*roots]
    while stack:
        node = stack.pop()
        if node in readers:
            readers[node] += 1
            continue
        if node.value is not None or node.error is not None:
            continue
        readers[node] = 1
        if node.evaluator is not evaluator:
            foreign.append(node)
        elif node.unit is not None:
            is_under_way = True
        else:
            new.append(node)
            for each in node.inputs:
                if type(each) is Record and each.value is None:
                    stack.append(each)  # noqa: PERF401  a comprehension is a call
    node = each = None  # type: ignore[assignment]  # they would count as references
    new.sort(key=_number)
    shared = {new[i] for i, others in enumerate(_references(new)) if others > readers[new[i]] + _UNREFERRED}
    return Found(new, is_under_way, foreign, shared)


def between_sessions(roots: Iterable[Record]) -> list[Record]:
    """The records, and those that they need from other sessions, in the order in which they were made.

    Computed one after the other, none of them waits for another session's computation within its own.
    """
    found = dict.fromkeys(roots)
    seen: set[Record] = set()
    stack = [*found]
    while stack:
        node = stack.pop()
        if node in seen or node.done:
            continue
        seen.add(node)
        for each in node.inputs:
            if type(each) is Record:
                if each.evaluator is not node.evaluator:
                    found[each] = None
                stack.append(each)
    return sorted(found, key=_number)


def _node_to_compute(ref: weakref.ref[Array]) -> Record | None:
    """The record that an array shows, if there is something to compute."""
    array = ref()
    return None if array is None or array._node.done else array._node


def _references(nodes: list[Any]) -> list[int]:
    return [*map(getrefcount, nodes)]


def _calibrate() -> int:
    nodes = [object()]
    held = dict.fromkeys(nodes, 1)
    return _references(nodes)[0] * len(held)


#: Reference count, as `_references` gives it, of a record that only a list and a dictionary refer to.
_UNREFERRED = _calibrate()


def _close(running: list[Service]) -> None:
    for service in running:
        service.close()


#: The name for blocks: ``with session(memory_budget=...):``.
session = Session
Evaluator.default = Session()


def current() -> Session:
    """The session that new arrays belong to: that of the `session` block around, else one for the process.

    Example:
        >>> with xp.session(memory_budget=2**20) as session:
        ...     print(xp.current() is session)
        True
    """
    return cast("Session", context_evaluator.get() or Evaluator.default)
