"""Sessions, which compute the arrays that belong to them, in threads and within memory of their own."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from heapq import heappop, heappush
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from actorflow.array.engine.devices import Devices
from actorflow.array.engine.interrupts import Guard, check_interrupt
from actorflow.array.engine.memory import Memory
from actorflow.array.engine.planning import between_sessions, collect, common, make_units, node_to_compute, window
from actorflow.array.engine.structures import Structure
from actorflow.array.engine.units import Unit
from actorflow.array.record.placement import accelerator_of, place_of
from actorflow.array.record.primitives import DType, Value, as_recorded
from actorflow.array.record.record import (
    HOST,
    WORTH_A_LOOK,
    Evaluator,
    Record,
    bytes_of,
    context_evaluator,
    current_evaluator,
)
from actorflow.array.record.work import MOST_WORK
from actorflow.devices import DeviceOptions
from actorflow.errors import DeviceError, GraphError
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.threads import cores, forget_in_child, held_at_fork, start_thread
from actorflow.trace.counters import OpProfile

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: Records that wait for the engine; from here on the recording thread computes, too.
_MOST_PENDING = 20_000
#: The same under a budget, where all of them are looked through again and again.
_MOST_PENDING_IN_BUDGET = 1_000
#: Most operations, and most elements of their results and inputs, that the thread that asks computes without units. To
#: plan and hand over so few takes several times as long as to compute them.
_FEW, _SMALL = 8, 1 << 14
#: Most elements that an operation touches to be computed in its line: to hand it to another thread takes as long.
_BRIEF = 1 << 18
#: Elements to be computed from which on a worker does not wait for a pause of the recording.
_PLENTY = 16 * 1024 * 1024
#: A recording that makes nothing for this time has paused.
_PAUSE_S = 1e-3
#: A worker without work ends after this time.
_LINGER_S = 1.0


class Session(Evaluator):
    """Arrays that are computed together, by the threads that ask for them and by workers.

    In a ``with`` block, the arrays that are made inside belong to it, and so does all that is computed from them.

    Args:
        memory_budget: Most bytes that values may take. What does not fit together is computed in the order in which
            it was recorded, and `from_numpy` waits until there is room.
        sequential: Compute each operation in the line that records it, in order.
        dry_run: Record and check, but compute nothing.
        run_ahead: Whether workers compute what was recorded before it is asked for.
        devices: Options of accelerators, by place, as for `actorflow.Graph`.
        capture: Whether kernels that follow each other on one are captured and replayed, as for `actorflow.Graph`.
    Raises:
        GraphError: if options exclude each other, or the budget is not positive.

    Attributes:
        profile: Calls and times by operation; those computed as one share an entry, their names joined by ``+``.
        computed: Operations computed.
        shared: Operations that were not computed since an equal one was.
        memory: Memory of values on the CPU.
        devices: Accelerators, their memory and their service.
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
        options = {place_of(place): own for place, own in (devices or {}).items()}
        self.memory = Memory(memory_budget)
        self.devices = Devices(memory_budget, options, capture)
        self.count, self.lease = self.memory.count, self.memory.lease
        self.is_limited = memory_budget is not None or any(own.memory_budget for own in options.values())
        self.sequential = sequential
        self.threshold = -1 if sequential else WORTH_A_LOOK
        self.profiles: dict[str, OpProfile] = {}
        self._owed: dict[Structure, list[int]] = {}  # calls and times of programs that the profile lacks
        self.computed = self.shared = 0
        self._runs_ahead = run_ahead
        self.takes_programs = not (dry_run or sequential or self.is_limited)
        if run_ahead and self.takes_programs:
            self.at_once = _BRIEF
        self._most_pending = _MOST_PENDING
        # All below is used under the lock. Units are ready, open, running, over, or wait for others of these.
        lock = held_at_fork(threading.RLock(), is_outer=True)
        self._changed = held_at_fork(threading.Condition(lock), is_outer=True)
        #: Workers wait here alone: each value that is there would wake them, and take a core from the next product.
        self._called = held_at_fork(threading.Condition(lock), is_outer=True)
        self._ready: list[tuple[bool, int, int, Unit]] = []
        self._open: list[Unit] = []
        self._over: list[Unit] = []
        self._begun: set[Unit] = set()  # open, or run by threads or devices
        self._planned = 0
        # Under a budget, what has no unit yet: what the program can ask for, and what it does ask for.
        self._late: list[weakref.ref[Array]] = []
        self._late_bytes = 0
        self._asked: dict[Record, None] = {}
        self._eager = False
        self._callbacks: dict[Record, list[Callable[[], None]]] = {}
        self._workers = 0
        self._idle = 0
        self._pushes = count()
        self._watching = False
        self._closed = False
        self._token: Token[Evaluator | None] | None = None
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
            for structure, (calls, total_ns) in owed.items():
                structure.note(calls, total_ns, self.profiles)
        return self.profiles

    def owe(self, structure: Structure, elapsed_ns: int) -> None:
        """Note a call of a program, with the lock held: in the profile when that is looked at."""
        owed = self._owed.setdefault(structure, [0, 0])
        owed[0] += 1
        owed[1] += elapsed_ns

    @property
    def held_bytes(self) -> int:
        """Bytes of values on the CPU and of free buffers, now: of all values under a budget, else of large ones."""
        return self.memory.pool.held_bytes

    @property
    def peak_bytes(self) -> int:
        """Highest `held_bytes` so far."""
        return self.memory.pool.peak_bytes

    def wait_for_all(self) -> None:
        """Compute all that was recorded and that the program can still ask for.

        What fails is reported where its value is asked for.
        """
        self.flush(forced=True)

    # -- recording ----------------------------------------------------------------------------------------------

    def notice(self, node: Record) -> None:
        """Have a worker look at the records, of which there are many. Called while recording."""
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
            self.flush()
        elif not self._watching and not self._closed:
            with Guard(self._changed):
                self._call_workers(1)
                self._watching = self._workers > 0

    def _forget(self) -> None:
        """Drop the records that need not be computed any more."""
        with Guard(self._changed):
            self._count_recorded()
            pending = self.pending
            for _ in range(len(pending)):
                ref = pending.popleft()
                if node_to_compute(ref) is not None:
                    pending.append(ref)

    def buffer(self, shape: tuple[int, ...], dtype: DType) -> Value:
        """Memory for a new array. Waits for room: computes what was recorded, so that it lets go of what it reads.

        Raises:
            OutOfMemoryError: if there is no room even then.
        """
        memory = self.memory
        with Guard(self._changed) as guard:
            if not self.is_limited:
                return memory.take(shape, dtype)
            size_bytes = TensorSpec(shape, dtype).size_bytes
            # Records need room for their values, too.
            if self._has_room(size_bytes) or (Record.placing is not None and self._fit((), size_bytes)):
                return memory.take(shape, dtype)
            self._drain(guard)
            if not memory.fits(size_bytes):
                gc.collect()
                self._drain(guard)
            if memory.fits(size_bytes):
                return memory.take(shape, dtype)
        raise memory.no_room("a new array", size_bytes)

    # -- asking -------------------------------------------------------------------------------------------------

    def force(self, nodes: Iterable[Record]) -> None:
        wanted = [node for node in nodes if not node.done]
        if not wanted:
            return
        if self.dry_run:
            super().force(wanted)
        with Guard(self._changed) as guard:
            if not self.is_limited and self._compute_few(wanted):
                return
            if self._runs_ahead and self.takes_programs and Record.placing is None and self.load <= MOST_WORK:
                # What would be computed ahead anyway is one program with it: values are asked for one after the other.
                self._prepare([*wanted, *self._take_pending()], forced=True)
            while wanted:
                self._ask(wanted)
                worked = self._work_once(forced=True)
                wanted = [node for node in wanted if not node.done]
                if wanted and not worked:
                    self._changed.wait(guard.wait_s)
                    wanted = [node for node in wanted if not node.done]
                check_interrupt()
            self._stand_in()
            self._recall_workers()

    def _compute_few(self, roots: list[Record]) -> bool:
        """Compute a few small records that are NumPy's loops, with the lock held; return whether that was done."""
        order: list[Record] = []
        stack = [*roots]
        while stack:
            node = stack.pop()
            if node.value is not None or node in order:
                continue
            if len(order) == _FEW or not _is_small(node) or node.evaluator is not self:
                return False
            order.append(node)
            stack += [each for each in node.inputs if type(each) is Record]
        order.sort(key=lambda node: node.number)
        if len(order) > 1 and common(order):
            return False
        with np.errstate(all="ignore"):
            return all(self._compute_small(node) for node in order)

    def _compute_small(self, node: Record) -> bool:
        op: Any = node.op
        values = [each.value if type(each) is Record else each for each in node.inputs]
        if not all(type(value) is np.ndarray for value in values):  # one before has failed, or lives on a device
            return False
        start = perf_counter_ns()
        try:
            if op.elementwise:
                found = np.empty(node.shape, node.dtype)
                op.compute(*values, *node.params, out=found)
            else:
                found = as_recorded(op.compute(*values, *node.params), node.shape, node.dtype)
        except Exception:  # noqa: BLE001  it is raised again on the usual way, which explains it
            return False
        elapsed_ns = perf_counter_ns() - start
        node.value = found
        node.inputs = ()
        self.profiles.setdefault(op.name, OpProfile()).add(elapsed_ns)
        self.computed += 1
        return True

    def when_done(self, node: Record, callback: Callable[[], None]) -> None:
        if not node.done:
            if self.dry_run:
                super().force((node,))
            with Guard(self._changed):
                self._ask([node])
                is_waiting, has_workers = not node.done, True
                if is_waiting:
                    self._callbacks.setdefault(node, []).append(callback)
                    self._call_workers(cores())
                    has_workers = self._workers > 0
            if is_waiting:
                if not has_workers:  # no thread could be started
                    self.force([node])
                return
        callback()

    def flush(self, forced: bool = False) -> None:
        """Compute all that was recorded and can still be asked for, where it fits; returns when that is done.

        Args:
            forced: Whether what does not fit is given up.
        """
        if self.dry_run:
            return
        with Guard(self._changed) as guard:
            nodes = self._take_pending()
            if forced:
                self._ask(nodes)
            elif not self.is_limited:
                self._prepare(nodes, forced=False)
            self._drain(guard)

    def close(self) -> None:
        """End the workers after their present work. What is not computed then is computed by those who ask for it."""
        with Guard(self._changed):
            self._closed = True
            self._called.notify_all()
        self.devices.close()

    def _drain(self, guard: Guard) -> None:
        """Compute all that is planned, and under a budget all that was recorded, where it fits."""
        while self._work_once(forced=False) or self._advance(everything=True) or self._planned:
            if self._planned and not (self._ready or self._open or self._over):
                self._changed.wait(guard.wait_s)
            check_interrupt()

    # -- planning: with the lock held ---------------------------------------------------------------------------

    def _take_pending(self) -> list[Record]:
        """The records that can be asked for; under a budget also those recorded earlier."""
        self.load = 0
        self._count_recorded()
        pending = self.pending
        refs = [each for _ in range(len(pending)) if (each := pending.popleft())() is not None]
        if self.is_limited:
            refs = self._late = [each for each in self._late + refs if node_to_compute(each) is not None]
        return [node for each in refs if (node := node_to_compute(each)) is not None]

    def _count_recorded(self) -> None:
        recorded = self.recorded_bytes
        self._late_bytes += sum([recorded.popleft() for _ in range(len(recorded))])

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether these bytes fit, and all beside it that was recorded, even if all of it is needed.

        To find out what is needed takes a look at each record.
        """
        self._count_recorded()
        return Record.placing is None and self.memory.fits(size_bytes + self._late_bytes)

    def _fit(self, nodes: Iterable[Record], size_bytes: int = 0) -> bool:
        """Return whether these bytes fit beside all that was recorded or is asked for: then any order will do."""
        # Recent records count twice if they are asked for; but other sessions may read records that no array shows.
        if self._has_room(size_bytes + sum([bytes_of(node) for node in collect(nodes, self).new])):
            return True
        needs = {self.memory: size_bytes}
        for node in collect([*nodes, *self._take_pending(), *self._asked], self).new:
            memory = self.memory_of(node)
            needs[memory] = needs.get(memory, 0) + bytes_of(node)
        self._late_bytes = sum(needs.values()) - size_bytes
        return all(memory.fits(need_bytes) for memory, need_bytes in needs.items())

    def memory_of(self, node: Record) -> Memory:
        """The memory that a record's value will take."""
        place = None if Record.placing is None else accelerator_of(node)
        return self.memory if place is None else self.devices.memory(place)

    def _ask(self, nodes: list[Record]) -> None:
        """Plan records that are waited for, or note them where they do not fit beside the rest."""
        nodes = [node for node in nodes if not (node.unit.forced if node.unit is not None else node in self._asked)]
        if nodes and self.is_limited and not self._fit(nodes):
            self._asked.update(dict.fromkeys(nodes))
        elif nodes:
            self._prepare(nodes, forced=True)

    def _advance(self, everything: bool = False) -> bool:
        """Plan the first of the records that did not fit together, as many as fit; return whether there were any.

        In the order of recording each part leaves nothing in memory but what the program shows or what later parts
        read, as if each operation had been computed in its line.
        """
        if self._planned or not self.is_limited:
            return False
        self._asked = {node: None for node in self._asked if not node.done}
        if not self._asked and not everything:
            return False
        found = collect([*self._take_pending(), *self._asked], self)
        if found.foreign:
            self._force_elsewhere(found.foreign)
            return True
        chosen = window(found.new, self.memory_of)
        later = set(found.new).difference(chosen)
        self._late_bytes = sum([bytes_of(node) for node in later])
        if chosen:
            needed = {each for node in later for each in node.inputs if type(each) is Record}
            self._plan(chosen, needed.union(self._asked, found.shared), needed, forced=bool(self._asked))
            return True
        first = collect(self._asked, self).new[:1]
        if first:
            self._plan(first, set(first), set(first), forced=True)
            self._ready[0][-1].is_last_resort = True
        return bool(first)

    def _prepare(self, roots: list[Record], forced: bool) -> None:
        """Make units of all that records need; put them first if they are waited for."""
        if not roots:
            return
        found = collect(roots, self)
        while found.foreign:
            self._force_elsewhere(found.foreign)
            found = collect(roots, self)
        if forced:
            self._put_first([node.unit for node in found.under_way if node.unit is not None])
        if found.new:
            self._plan(found.new, found.shared.union(roots), set(), forced)

    def _force_elsewhere(self, nodes: list[Record]) -> None:
        self._changed.release()
        try:
            for node in between_sessions(nodes):
                node.evaluator.force([node])
        finally:
            self._changed.acquire()

    def _plan(self, nodes: list[Record], roots: set[Record], needed: set[Record], forced: bool) -> None:
        """Make units of records; ``needed`` are those that records without units read."""
        units: list[Unit] = []
        try:
            shared = make_units(nodes, roots, units)
            for unit in units:
                unit.forced = forced
                unit.is_needed = bool(needed) and not needed.isdisjoint(unit.nodes)
                unit.sources = {read.unit for read in unit.reads if type(read) is Record and read.unit is not None}
                for source in unit.sources:
                    source.followers.append(unit)
                    if forced and not source.forced:
                        self._put_first([source])
        except BaseException:  # an interrupt: undo it
            for unit in units:
                unit.finish()
            raise
        self.shared += shared
        self._planned += len(units)
        for unit in units:
            unit.memory.claimed_bytes += unit.claimed_bytes
            if not unit.sources:
                self._push(unit)

    def _put_first(self, units: list[Unit]) -> None:
        while units:
            unit = units.pop()
            if not unit.forced and not unit.ended:
                unit.forced = True
                units.extend(unit.sources)
                if unit.queued:
                    self._push(unit)

    def _push(self, unit: Unit) -> None:
        unit.queued = True
        heappush(self._ready, (not unit.forced, unit.number, next(self._pushes), unit))

    # -- computing: with the lock held, but for the computation itself ------------------------------------------

    def _work_once(self, forced: bool) -> bool:
        """Run a part of a unit, or plan more, if there is something to do."""
        if self._over:  # the end of a unit was interrupted
            self._settle()
            return True
        taken = self._take(forced and not self._asked)
        if taken is None:
            return self._advance()
        unit, share = taken
        self._changed.release()
        interrupt: BaseException | None = None
        try:
            unit.run(share)
        except BaseException as error:  # noqa: BLE001  for this thread, once the unit is in order again
            interrupt = error
        while True:
            try:
                self._changed.acquire()
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None and unit.return_share(share):
            if unit not in self._open:
                self._open.append(unit)
            self._changed.notify_all()
            self._called.notify_all()
        elif unit.end_share(share):
            self._end(unit)
        if interrupt is not None:
            raise interrupt
        return True

    def _take(self, forced: bool) -> tuple[Unit, tuple[int, int]] | None:
        unit = next((unit for unit in self._open if unit.forced or not forced), None)
        if unit is None:
            unit = self._next_unit(forced)
            if unit is None:
                return None
            self._open.append(unit)
            self._begun.add(unit)
        share = unit.take_share()
        if not unit.has_shares:
            self._open.remove(unit)
        if self._open or (self._ready and self._ready[0][-1].work > WORTH_A_LOOK):
            self._call_workers(cores() - 1 if forced else cores())
        return unit, share

    def _next_unit(self, forced: bool) -> Unit | None:
        while self._ready:
            unit = self._ready[0][-1]
            if unit.queued and forced and not unit.forced:
                return None
            heappop(self._ready)
            if not unit.queued:  # it was pushed twice, and has been taken
                continue
            unit.queued = False
            try:
                error = unit.failed_source
                if error is not None:
                    unit.fail(error)
                elif not unit.is_wanted:
                    unit.finish()
                elif self._begin(unit):
                    return unit
            except BaseException as error:  # nobody may wait for what nobody will compute
                unit.fail(unit.lost(f"it could not be begun: {error!r}"))
                self._end(unit)
                raise
            self._end(unit)
        return None

    def _begin(self, unit: Unit) -> bool:
        """Allocate what a unit writes; False if it has failed."""
        unit.gather()
        need_bytes = unit.begin()
        if unit.is_last_resort:
            unit.memory.claimed_bytes -= unit.claimed_bytes
            unit.claimed_bytes = 0
            if not unit.memory.fits(need_bytes):
                gc.collect()
                if not unit.memory.fits(need_bytes):
                    unit.fail(unit.memory.no_room(unit.name, need_bytes))
                    return False
        return unit.allocate()

    def _end(self, unit: Unit) -> None:
        self._begun.discard(unit)
        self._over.append(unit)
        self._settle()

    def _settle(self) -> None:
        """Hand on the results of units that are over; after an interrupt, the next caller goes on."""
        while self._over:
            unit = self._over[-1]
            if not unit.ended:
                unit.end()
            for follower in unit.followers:
                follower.sources.discard(unit)
                if not follower.sources and not follower.queued and not follower.ended:
                    self._push(follower)
            unit.followers = []
            self._over.pop()
            self._planned -= 1
            unit.memory.claimed_bytes -= unit.claimed_bytes
            self.computed += unit.operations
        if self._callbacks:
            for node in [node for node in self._callbacks if node.done]:
                for callback in self._callbacks.pop(node):
                    callback()
            if self._callbacks:  # threads that compute now may stop once they have what they wait for
                self._call_workers(cores())
        self._changed.notify_all()

    def take_back(self, unit: Unit) -> None:
        """End a unit that the devices have computed. Without the lock, on their thread."""
        with self._changed:
            self._end(unit)
            if self._ready:
                self._call_workers(cores())
            else:
                self._recall_workers()
            self._stand_in()
            is_closed = self._closed
        if is_closed:
            self.devices.close()

    # -- forks --------------------------------------------------------------------------------------------------

    def forget_parent(self) -> None:
        """Forget the threads, which the child of a fork does not have: what they computed has no value here."""
        self._workers = self._idle = 0
        self._watching = False
        self._callbacks.clear()
        self._open.clear()
        self.devices.forget_parent()
        with self._changed:
            while self._begun:
                unit = self._begun.pop()
                if not unit.ended:
                    unit.fail(unit.lost("it was being computed in the parent process when this one was forked from it"))
                self._over.append(unit)
            self._settle()

    # -- workers ------------------------------------------------------------------------------------------------

    def _call_workers(self, most: int) -> None:
        if self._workers < most and not self._idle:
            self._workers += 1
            try:
                start_thread(self._work, f"actorflow-array-{self._workers}")
            except DeviceError:  # those who ask compute
                self._workers -= 1
        else:
            self._called.notify_all()

    def _recall_workers(self) -> None:
        """Have idle workers go on with what is left, if anything is, by a thread that does not."""
        if self._idle and self._has_more:
            self._called.notify_all()

    def _stand_in(self) -> None:
        """Compute what is awaited where no thread can be started for a worker."""
        while self._callbacks and not self._workers and self._work_once(forced=True):
            pass

    def _work(self) -> None:
        with self._changed:
            try:
                while True:
                    if self._work_once(forced=False) or (self._eager and self._advance(everything=True)):
                        continue
                    self._eager = self._eager and self._planned > 0
                    if self._closed:
                        return
                    if self._watching:
                        self._watch()
                        continue
                    self._idle += 1
                    woken = self._called.wait(_LINGER_S)
                    self._idle -= 1
                    if not woken and not self._has_more:
                        return
            finally:
                self._workers -= 1

    @property
    def _has_more(self) -> bool:
        return bool(self._ready or self._open or self._asked) or self._watching or self._eager

    def _watch(self) -> None:
        """Compute what was recorded once the recording pauses, or plenty has been recorded."""
        before = self.load, len(self.pending)
        self._called.wait(_PAUSE_S)
        if self.load > _PLENTY or (self.load, len(self.pending)) == before:
            self._watching = False
            if self.is_limited:
                self._eager = True
            elif self.load > self.threshold:
                self._prepare(self._take_pending(), forced=False)


def _is_small(node: Record) -> bool:
    op = node.op
    return (
        op is not None
        and (op.elementwise or op.reduction)
        and node.unit is None
        and node.error is None
        and node.place is HOST
        and node.size <= _SMALL
        and all(each.size <= _SMALL for each in node.inputs)
    )


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
    return cast("Session", current_evaluator())
