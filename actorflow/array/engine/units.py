"""Units: records that are computed as one, and the state of that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import perf_counter_ns
from traceback import clear_frames
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from actorflow.array.engine.devices import Devices
from actorflow.array.engine.memory import Memory
from actorflow.array.engine.structures import Structure
from actorflow.array.record.record import HOST, Input, OpStep, Record, failure
from actorflow.errors import DeviceError, OpError, OutOfMemoryError
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.trace.counters import OpProfile

#: Operations of a unit that are named.
_MOST_NAMES = 16
#: The reason why a record has no value.
Error = OpError | OutOfMemoryError


class Group(NamedTuple):
    """Records that a unit is made for.

    Attributes:
        nodes: The records, in order, all of one evaluator.
        produced: Those whose values are wanted outside, by their positions.
        same: For records that are repetitions, those that are computed.
        twins: For records that are repeated, the repetitions that the user holds.
    """

    nodes: list[Record]
    produced: dict[int, Record]
    same: dict[Record, Record]
    twins: dict[Record, list[Record]]

    def slots(self) -> tuple[list[Input], list[list[int]], dict[int, int]]:
        """What is read from outside, the slots of each record's inputs, and the last record that reads each slot.

        Slots of values are numbered: first the results, then what is read.
        """
        nodes, same = self.nodes, self.same
        count = len(nodes)
        slots: dict[int, int] = {}
        reads: list[Input] = []
        last: dict[int, int] = {}
        rows: list[list[int]] = []
        for i, node in enumerate(nodes):
            row = []
            for each in node.inputs:
                read = same.get(each, each) if same and type(each) is Record else each
                key = id(read)
                slot = slots.get(key)
                if slot is None:
                    slot = slots[key] = count + len(reads)
                    reads.append(read)
                last[slot] = i
                row.append(slot)
            slots[id(node)] = i
            rows.append(row)
        return reads, rows, last


class UnitSession(Protocol):
    """The session of a unit."""

    memory: Memory
    devices: Devices
    profiles: dict[str, OpProfile]

    def owe(self, structure: Structure, elapsed_ns: int) -> None:
        """Note a call of a program later."""

    def take_back(self, unit: Unit) -> None:
        """End a unit that the devices have computed. Without the lock, on their thread."""


class Unit(ABC):
    """Records that are computed as one.

    Args:
        group: The records.
        reads: What it reads from outside: records and constants.

    Attributes:
        evaluator: The session that it belongs to.
        number: Units with lower ones go first.
        forced: Whether it is waited for.
        is_needed: Whether records that have no units yet read what it computes.
        is_last_resort: Whether it is planned though it does not fit, unless it can write over what it reads.
        queued: Whether it waits for a thread.
        ended: Whether it is over, well or not.
        sources: Units that it waits for.
        followers: Units that wait for it.
        reads: Records and constants that it reads; empty once it has gathered them.
        work: Elements that it touches, about.
        operations: Number of operations.
        claimed_bytes: What it may allocate at most.
        elapsed_ns: Time it took so far, in all threads together.
    """

    def __init__(self, group: Group, reads: list[Input], work: int | None = None) -> None:
        nodes, produced, _, twins = group
        self.evaluator = cast("UnitSession", nodes[0].evaluator)
        self.number = nodes[-1].number
        self.forced = self.is_needed = self.is_last_resort = self.queued = self.ended = self._is_taken = False
        self.elapsed_ns = self.claimed_bytes = 0
        self.sources: set[Unit] = set()
        self.followers: list[Unit] = []
        self.operations = len(nodes)
        self.reads = reads
        self.work = sum([each.size for each in (*reads, *nodes)]) if work is None else work
        self._codes = [node._code for node in nodes]
        self._instructions = [node._instruction for node in nodes]
        self._produced = produced
        self._twins = [(node, twin) for node in produced.values() for twin in twins.get(node, ())] if twins else []
        for node in produced.values():
            node.unit = self
        for _, twin in self._twins:
            twin.unit = self
        self._values: list[Any] = []
        self._failed: dict[int, tuple[int, BaseException]] = {}  # by slot: the step that failed, and why

    # -- with the session's lock held ---------------------------------------------------------------------------

    @property
    def failed_source(self) -> Error | None:
        """The reason why a value that it reads is missing, if one is."""
        for read in self.reads:
            if type(read) is Record and read.error is not None:
                return read.error
        return None

    @property
    def is_wanted(self) -> bool:
        """Return whether what it computes can still be asked for."""
        return self.forced or self.is_needed or bool(self.followers) or any(node.is_held() for node in self.nodes)

    @property
    def memory(self) -> Memory:
        """The memory of its results."""
        return self.evaluator.memory

    @property
    def nodes(self) -> list[Record]:
        """The records that it has results for."""
        nodes = [*self._produced.values()]
        return [*nodes, *[twin for _, twin in self._twins]] if self._twins else nodes

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of what it computes."""

    def gather(self) -> None:
        """Take the inputs' values and let go of the records; those without other references end here."""
        self._values = [read.value if type(read) is Record else read for read in self.reads]
        self.reads = []
        for node in self.nodes:
            node.inputs = ()

    @abstractmethod
    def begin(self) -> int:
        """Find the inputs that results may be written into.

        Returns:
            Bytes that it will allocate for its results.
        """

    @abstractmethod
    def allocate(self) -> bool:
        """Allocate what it writes, and divide it into shares; False if that failed."""

    # A unit is one share that one thread takes, unless its class says otherwise.

    @property
    def has_shares(self) -> bool:
        """Return whether there is something to run that no thread has taken yet."""
        return not self._is_taken

    def take_share(self) -> tuple[int, int]:
        """The next part to run."""
        self._is_taken = True
        return 0, 1

    def return_share(self, share: tuple[int, int]) -> bool:
        """Have another thread run an interrupted part; False if that is no longer possible."""
        self._is_taken = False
        return True

    def end_share(self, share: tuple[int, int]) -> bool:
        """Note that a part has been run; return whether it was the last one."""
        return True

    @abstractmethod
    def end(self) -> None:
        """Hand the results, or what failed, to the records, and note the times."""

    def note(self, failed: bool) -> None:
        """Note a call in the profile, under the unit's name."""
        profile = self.evaluator.profiles.setdefault(self.name, OpProfile())
        if failed:
            profile.failed += 1
        else:
            profile.add(self.elapsed_ns)

    def hand_over(self, results: Any, errors: dict[int, Error]) -> None:
        """Give the records their values."""
        lease = self.evaluator.memory.lease
        for i, node in self._produced.items():
            if errors and i in errors:
                node.error = errors[i]
            else:
                node.value = value = results[i]
                node.lease = lease(value)
        for node, twin in self._twins:
            twin.value, twin.error = node.value, node.error
        self.finish()

    def fail(self, error: Error) -> None:
        """End with an error instead of results."""
        for node in self.nodes:
            node.error = error
            node.inputs = ()
        self.finish()

    def finish(self) -> None:
        """Let go of everything: a reference to the unit must not keep records, or their memory."""
        self.ended = True
        for node in self.nodes:
            node.unit = None
        self._twins, self._produced, self.reads, self.sources = [], {}, [], set()
        values, self._values = self._values, []
        self.evaluator.memory.reclaim_all(values)

    def explain(
        self, step: int, name: str, inputs: list[TensorSpec], cause: BaseException, place: Place = HOST
    ) -> Error:
        """The error of a step; a step before may have handed it on."""
        if cause.__traceback__ is not None:
            clear_frames(cause.__traceback__)  # frames refer to values
        if isinstance(cause, OpError | OutOfMemoryError):
            return cause
        return failure(name, (self._codes[step], self._instructions[step]), inputs, cause, place)

    def lost(self, why: str) -> Error:
        """The error of a unit that will never be computed."""
        return failure(self.name, (self._codes[-1], self._instructions[-1]), [], DeviceError(why), HOST)

    # -- in any thread ------------------------------------------------------------------------------------------

    def run(self, share: tuple[int, int]) -> None:
        """Compute a part; what it raises is kept for those who ask for the results."""
        start = perf_counter_ns()
        try:
            with np.errstate(all="ignore"):
                self.compute(share)
        finally:
            self.elapsed_ns += perf_counter_ns() - start

    @abstractmethod
    def compute(self, share: tuple[int, int]) -> None:
        """Compute a part."""


class StepUnit(Unit):
    """A unit whose operations are computed together: it is named after all of them."""

    def __init__(self, group: Group) -> None:
        reads, rows, _ = group.slots()
        super().__init__(group, reads)
        count, first = len(rows), len(reads)  # among a step's arguments, what is read comes first
        self._steps: list[OpStep] = []
        for node, row in zip(group.nodes, rows, strict=True):
            assert node.op is not None
            arguments = tuple([slot - count if slot >= count else first + slot for slot in row])
            self._steps.append(OpStep(node.op, arguments, node.params, node.shape, node.dtype, node.origin))
        self._results: dict[int, Any] = {}

    @property
    def name(self) -> str:
        shown = "+".join([step.name for step in self._steps[:_MOST_NAMES]])
        return shown if len(self._steps) <= _MOST_NAMES else f"{shown}+..."

    def finish(self) -> None:
        self._results = {}
        super().finish()

    def _error(self, step: int, cause: BaseException, place: Place = HOST) -> Error:
        inputs = [self._spec(position) for position in self._steps[step].arguments]
        return self.explain(step, self._steps[step].name, inputs, cause, place)

    def _spec(self, position: int) -> TensorSpec:
        first = len(self._values)
        found = self._steps[position - first] if position >= first else self._values[position]
        return TensorSpec((), np.dtype(object)) if type(found) is tuple else TensorSpec(found.shape, found.dtype)


def is_own(value: Any) -> bool:
    """Return whether a value has memory of its own that may be written."""
    return type(value) is np.ndarray and value.base is None and value.flags.writeable and value.flags.c_contiguous
