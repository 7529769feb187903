"""Sessions: arrays that are computed together, within one budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from actorflow.array.engine.evaluator import Evaluator, evaluating
from actorflow.array.engine.evaluator import current as current_evaluator
from actorflow.devices import DeviceOptions
from actorflow.place import Place
from actorflow.trace.ring import OpProfile


class Session:
    """Arrays that are computed together, and how they have been computed so far; see `session`."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    @property
    def profile(self) -> dict[str, OpProfile]:
        """Calls and times by operation; those computed as one share an entry, their names joined by ``+``."""
        return self._evaluator.profile

    @property
    def computed(self) -> int:
        """Operations computed."""
        return self._evaluator.computed

    @property
    def shared(self) -> int:
        """Operations that were not computed since an equal one was."""
        return self._evaluator.shared

    @property
    def held_bytes(self) -> int:
        """Bytes of values on the CPU and of free buffers, now: of all values under a budget, else of large ones."""
        return self._evaluator.memory.pool.held_bytes

    @property
    def peak_bytes(self) -> int:
        """Highest `held_bytes` so far."""
        return self._evaluator.memory.pool.peak_bytes

    def wait_for_all(self) -> None:
        """Compute all that was recorded and that the program can still ask for.

        What fails is reported where its value is asked for.
        """
        self._evaluator.flush(forced=True)


def current() -> Session:
    """The session that new arrays belong to: that of the `session` block around, else one for the process."""
    return Session(current_evaluator())


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

    Args:
        memory_budget: Most bytes that values may take. What does not fit together is computed in the order in which
            it was recorded, and `from_numpy` waits until there is room.
        sequential: Compute each operation in the line that records it, in order.
        dry_run: Record and check, but compute nothing.
        run_ahead: Whether workers compute what was recorded before somebody asks for it.
        devices: How accelerators are used, by place; for `actorflow.Graph`.
        capture: Whether kernels that follow each other on one are captured and replayed; for `actorflow.Graph`.
    Raises:
        GraphError: if options exclude each other, or the budget is not positive.
    """
    evaluator = Evaluator(
        memory_budget=memory_budget,
        sequential=sequential,
        dry_run=dry_run,
        run_ahead=run_ahead,
        devices=devices,
        capture=capture,
    )
    with evaluating(evaluator):
        yield Session(evaluator)
