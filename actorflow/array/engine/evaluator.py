"""Who computes what was recorded: when, and within which memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from actorflow.array.engine.devices import Devices
from actorflow.array.engine.direct import compute_directly
from actorflow.array.engine.interrupts import Guard, check_interrupt
from actorflow.array.engine.memory import Memory
from actorflow.array.engine.planning import node_to_compute
from actorflow.array.engine.runner import WORTH_A_LOOK, Runner
from actorflow.array.record.node import Node
from actorflow.array.record.placement import place_of
from actorflow.array.record.primitives import DType, Value
from actorflow.devices import DeviceOptions
from actorflow.devices.blas import cores
from actorflow.errors import GraphError
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.threads import forget_in_child

#: Records that wait for the engine; from here on the recording thread computes, too.
_MOST_PENDING = 20_000
#: The same under a budget, where all of them are looked through again and again.
_MOST_PENDING_IN_BUDGET = 1_000


class Evaluator(Runner):
    """Takes what is recorded, and what is asked for; computes it in the threads that wait, and in workers of its own.

    Args: those of `actorflow.array.engine.session`.
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
        options = {place_of(place): own for place, own in (devices or {}).items()}
        is_limited = memory_budget is not None or any(own.memory_budget for own in options.values())
        super().__init__(Memory(memory_budget), Devices(memory_budget, options, capture), is_limited)
        self.sequential = sequential
        self.dry_run = dry_run
        if dry_run:
            Node.dry_runs += 1
            weakref.finalize(self, _end_dry_run)
        self._runs_ahead = run_ahead and not dry_run
        self._most_pending = _MOST_PENDING
        self.threshold = -1 if sequential else WORTH_A_LOOK
        forget_in_child(self)

    # -- recording ----------------------------------------------------------------------------------------------

    def notice(self, node: Node) -> None:
        """Much has been recorded: have a worker look at it. Called while recording."""
        if self.sequential:
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
        """Drop what was recorded and is not to be computed any more."""
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
            # What is recorded needs room to be computed in, too.
            if self._has_room(size_bytes) or (Node.placing is not None and self._fit((), size_bytes)):
                return memory.take(shape, dtype)
            self._drain(guard)
            if not memory.fits(size_bytes):
                gc.collect()
                self._drain(guard)
            if memory.fits(size_bytes):
                return memory.take(shape, dtype)
        raise memory.no_room("a new array", size_bytes)

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
        with Guard(self._changed) as guard:
            if not self.is_limited and compute_directly(wanted, self):
                return
            while wanted:
                self._ask(wanted)
                worked = self._work_once(forced=True)
                wanted = [node for node in wanted if not node.done]
                if wanted and not worked:
                    self._changed.wait(guard.wait_s)
                    wanted = [node for node in wanted if not node.done]
                check_interrupt()
            self._stand_in()

    def when_done(self, node: Node, callback: Callable[[], None]) -> None:
        """Have the workers compute a record, and call ``callback`` when it is done, from any thread.

        Raises:
            GraphError: in a dry run.
        """
        if not node.done:
            self._check_runs()
            with Guard(self._changed):
                self._ask([node])
                is_waiting, has_workers = not node.done, True
                if is_waiting:
                    self._callbacks.setdefault(node, []).append(callback)
                    self._call_workers(cores())
                    has_workers = self._workers > 0
            if is_waiting:
                if not has_workers:  # there are no threads to be had
                    self.force([node])
                return
        callback()

    def flush(self, forced: bool = False) -> None:
        """Compute all that was recorded and that somebody can still ask for, where it fits; returns when that is done.

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
        """End the workers after what they are at. What is not computed then is computed by those who ask for it."""
        with Guard(self._changed):
            self._closed = True
            self._changed.notify_all()
        self.devices.close()

    def _check_runs(self) -> None:
        if self.dry_run:
            raise GraphError("an array without values, of a traced function or a dry run: use where(condition, x1, x2)")


def _end_dry_run() -> None:
    Node.dry_runs -= 1


_current: ContextVar[Evaluator | None] = ContextVar("actorflow-array", default=None)
_default = Evaluator()


def current() -> Evaluator:
    """Who computes what is made of new arrays: the evaluator of the session around, else one for the process."""
    return _current.get() or _default


@contextmanager
def evaluating(evaluator: Evaluator) -> Iterator[None]:
    """What is made of arrays that are made inside is computed by this one; it ends after that."""
    token = _current.set(evaluator)
    try:
        yield
    finally:
        try:
            _current.reset(token)
        finally:  # a generator may be ended in another context
            evaluator.close()
