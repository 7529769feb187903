"""Units that are sequences of operations, computed one after the other by one thread."""

from __future__ import annotations

from collections.abc import Collection, Container
from math import prod
from sys import getrefcount
from time import perf_counter_ns
from typing import Any

import numpy as np

from actorflow.array.engine.interrupts import interruptible
from actorflow.array.engine.structures import Description, Structure, name_of
from actorflow.array.engine.units import Error, Group, Unit, is_own
from actorflow.array.record.primitives import Primitive, Value, as_recorded
from actorflow.array.record.record import Record, StepError, bytes_of
from actorflow.spec import TensorSpec
from actorflow.trace.counters import OpProfile

_NONE: list[int] = []
#: Bytes of a value from which on reuse of its memory is worth a check.
_REUSED_BYTES = 4_096
#: Bytes of a part of an array up to which it is copied, so that it does not keep the whole.
_COPIED_BYTES = 65_536


def _calibrate() -> tuple[int, int]:
    """The reference counts of a value that only its slot refers to, and of one that a view refers to, too."""
    slots: list[Any] = [np.empty(2)]
    value = slots[0]
    in_slot = getrefcount(value)
    del value
    found = slots[0][:1]
    base = found.base
    return in_slot, getrefcount(base)


_IN_SLOT, _IN_VIEW = _calibrate()

#: An operation, its arguments' slots, those of them that are not read again, its further arguments, the shape and the
#: dtype of its result, whether that is wanted, whether it is written into a buffer, and the slots of values of its type
#: that are not read again: where it may be written.
_Planned = tuple[Primitive, list[int], list[int], tuple[Any, ...], tuple[int, ...], Any, bool, bool, list[int]]


def _planned(
    ops: Collection[tuple[Primitive, tuple[Any, ...], tuple[int, ...], Any]],
    rows: Collection[list[int]],
    types: list[Any],
    wanted: Container[int],
) -> list[_Planned]:
    """The steps of a sequence, from operations, their parameters and the types of their results."""
    count = len(ops)
    last = {slot: i for i, row in enumerate(rows) for slot in row}
    steps: list[_Planned] = []
    for i, ((op, params, shape, dtype), row) in enumerate(zip(ops, rows, strict=True)):
        dying = [slot for slot in row if last[slot] == i and slot not in wanted]
        over = _NONE
        if dying and op.elementwise and op.aligned and prod(shape) * dtype.itemsize >= _REUSED_BYTES:  # type: ignore[attr-defined]
            for slot in dying:
                if (types[slot - count] if slot >= count else steps[slot][4:6]) == (shape, dtype):
                    over = [*over, slot]
        steps.append((op, row, dying or _NONE, params, shape, dtype, i in wanted, op.elementwise or op.into, over))
    return steps


class Sequence(Unit):
    """Operations of any kind, in order. Slots of values are numbered: first the results, then what is read."""

    def __init__(self, group: Group) -> None:
        nodes = group.nodes
        reads, rows, _ = group.slots()
        ops: list[Any] = []
        for node in nodes:
            op = node.op
            assert op is not None
            ops.append((op, node.params, node.shape, node.dtype))
        types = [(read.shape, read.dtype) for read in reads]
        self._steps = _planned(ops, rows, types, group.produced)
        count = len(nodes)
        super().__init__(group, reads)
        if self.memory.is_limited:
            self.claimed_bytes = sum([*map(bytes_of, nodes)])
        self._types = types
        self._buffers: dict[int, Value] = {}
        self._foreign: set[int] = set()  # results in the memory of other values
        self._times = [0] * count
        self._next = 0
        self._spoiled = -1  # the step that writes over what it reads

    @property
    def name(self) -> str:
        """Name of its largest operation."""
        return max(self._steps, key=lambda step: TensorSpec(step[4], step[5]).size_bytes)[0].name

    @property
    def failed_source(self) -> Error | None:
        """None: operations that do not read the missing value are computed all the same."""
        return None

    def gather(self) -> None:
        for i, read in enumerate(self.reads, len(self._steps)):
            if type(read) is Record and read.error is not None:
                self._failed[i] = i, read.error
        super().gather()
        self._values = [None] * len(self._steps) + self._values

    def begin(self) -> int:
        if len(self._steps) == 1:
            op, arguments, dying, _, shape, dtype, _, _, over = self._steps[0]
            if op.owns:
                over = [slot for slot in dying if slot == arguments[0]]
            if any(self._is_free(slot, shape, dtype) for slot in over):
                return 0
        return self.claimed_bytes

    def allocate(self) -> bool:
        memory = self.evaluator.memory
        try:
            for i, node in self._produced.items():
                if self._steps[i][0].into and node.size_bytes >= memory.pooled_bytes:
                    self._buffers[i] = memory.take(node.shape, node.dtype)
        except MemoryError as error:
            self._failed.update({i: (i, error) for i in self._produced})
            return False
        return True

    def end(self) -> None:
        values, failed = self._values, self._failed
        count, profiles = self.evaluator.memory.count, self.evaluator.profiles
        for i in self._produced:
            if i not in self._foreign and i not in failed and i not in self._buffers:
                count(values[i])
        for i, (step, elapsed_ns) in enumerate(zip(self._steps, self._times, strict=True)):
            profile = profiles.get(step[0].name)
            if profile is None:
                profile = profiles[step[0].name] = OpProfile()
            if i not in failed:
                profile.add(elapsed_ns)
            elif failed[i][0] == i:  # not because of its inputs
                profile.failed += 1
        errors: dict[int, Error] = {}
        for i in self._produced if failed else ():
            if i in failed:
                at, cause = failed[i]
                errors[i] = errors[at] = errors.get(at) or self._error(at, cause)
        self.hand_over(values, errors)

    def finish(self) -> None:
        self._buffers = {}
        super().finish()

    def compute(self, share: tuple[int, int]) -> None:
        values, steps, times, failed = self._values, self._steps, self._times, self._failed
        clock = perf_counter_ns()
        for i in range(self._next, len(steps)):
            step = steps[i]
            known = next((slot for slot in step[1] if slot in failed), None) if failed else None
            if known is not None:
                failed[i] = failed[known]
            else:
                try:
                    values[i] = self._compute(i, step)
                except Exception as error:  # noqa: BLE001  raised to all who ask for the value
                    failed[i] = i, error
                except BaseException as error:  # an interrupt, for this thread
                    if i == self._spoiled:  # the value that was being written over may be lost
                        failed[i] = i, error
                        self._next = i + 1
                    raise
            self._next = i + 1
            for slot in step[2]:
                values[slot] = None
            now = perf_counter_ns()
            times[i], clock = now - clock, now

    def _compute(self, i: int, step: _Planned) -> Any:
        op, arguments, dying, params, shape, dtype, wanted, writes, over = step
        values = self._values
        if writes:
            out = self._buffers.get(i) if self._buffers else None
            if over and out is None:
                out = self._reused(i, over, shape, dtype)
            if out is None:
                out = np.empty(shape, dtype)
            op.compute(*[values[slot] for slot in arguments], *params, out=out)
            return out
        if op.owns:
            owned = arguments[0] in dying and self._reused(i, arguments[:1], shape, dtype) is not None
            return op.compute(*[values[slot] for slot in arguments], *params, owned=owned)
        found = interruptible(op.compute, [*[values[slot] for slot in arguments], *params])
        found = as_recorded(found, shape, dtype)
        if type(found) is tuple:
            return found
        if wanted:
            if found.base is not None and self._keeps_too_much(found):
                return found.copy()
            if op.view or any(values[slot] is found for slot in arguments):
                self._foreign.add(i)
        return found

    def _reused(self, i: int, slots: list[int], shape: tuple[int, ...], dtype: Any) -> Value | None:
        """The value of one of the slots, if the result of a step may be written over it."""
        steps = self._steps
        for slot in slots:
            value = self._values[slot]
            if slot < len(steps) and steps[slot][7]:  # it was written into a buffer of this type
                is_free = getrefcount(value) == _IN_SLOT
            else:
                del value
                is_free = self._is_free(slot, shape, dtype)
            if is_free:
                if slot >= len(steps) or slot in self._foreign:
                    self._foreign.add(i)
                self._spoiled = i
                reused: Value = self._values[slot]
                return reused
        return None

    def _is_free(self, slot: int, shape: tuple[int, ...], dtype: Any) -> bool:
        """Return whether nothing else refers to a value, and a result of this type may be written over it."""
        value = self._values[slot]
        return (
            type(value) is np.ndarray
            and value.shape == shape
            and value.dtype == dtype
            and getrefcount(value) == _IN_SLOT
            and is_own(value)
        )

    def _keeps_too_much(self, found: Value) -> bool:
        """Return whether a view keeps memory that would be free without it."""
        base = found.base
        if found.nbytes * 2 >= getattr(base, "nbytes", 0):
            return False
        return found.nbytes < _COPIED_BYTES or self.evaluator.memory.is_limited or getrefcount(base) <= _IN_VIEW

    def _error(self, step: int, cause: BaseException) -> Error:
        if step >= len(self._steps):
            assert isinstance(cause, Error)
            return cause
        op, arguments, *_ = self._steps[step]
        return self.explain(step, op.name, [self._spec(slot) for slot in arguments], cause)

    def _spec(self, slot: int) -> TensorSpec:
        count = len(self._steps)
        shape, dtype = self._types[slot - count] if slot >= count else self._steps[slot][4:6]
        return TensorSpec(shape, dtype)


class KnownSequence(Sequence):
    """A sequence whose structure was seen before: a program. If a step of it fails, the operations go one by one."""

    def __init__(self, nodes: list[Record], description: Description, structure: Structure) -> None:
        group = Group(nodes, description.produced, {}, {})
        Unit.__init__(self, group, description.given, structure.work)
        self.operations -= structure.repeats
        self._structure = structure
        self._rooms: list[Value] = []
        self._found: list[Any] = []
        self._is_program = True

    @property
    def name(self) -> str:
        return name_of(max(self._structure.entries, key=lambda entry: TensorSpec(*entry[2:4]).size_bytes))

    def gather(self) -> None:
        self._missing = {
            i: read.error for i, read in enumerate(self.reads) if type(read) is Record and read.error is not None
        }
        Unit.gather(self)

    def begin(self) -> int:
        return 0

    def allocate(self) -> bool:
        assert self._structure.program is not None
        memory = self.evaluator.memory
        try:
            self._rooms = [memory.take(*room) for room in self._structure.program.rooms]
        except MemoryError:
            self._go_one_by_one()
            return super().allocate()
        return True

    def run(self, share: tuple[int, int]) -> None:
        if self._is_program and not self._missing:
            try:
                start = perf_counter_ns()
                self._found = interruptible(self._structure.program, (self._values, self._rooms))  # type: ignore[arg-type]
                self.elapsed_ns += perf_counter_ns() - start
                return
            except StepError:  # operations that do not need what has failed are computed all the same
                pass
        if self._is_program:
            self._go_one_by_one()
        super().run(share)

    def end(self) -> None:
        if not self._is_program:
            super().end()
            return
        known = {id(each) for each in (*self._rooms, *self._values)}
        for value in self._found:
            if id(value) not in known:
                known.add(id(value))
                self.evaluator.memory.count(value)
        self.evaluator.owe(self._structure, self.elapsed_ns)
        self.hand_over(dict(zip(self._produced, self._found, strict=True)), {})

    def finish(self) -> None:
        self._values += self._rooms
        self._rooms, self._found = [], []
        if self._is_program:
            Unit.finish(self)
        else:
            super().finish()

    def _go_one_by_one(self) -> None:
        """Prepare to compute as a `Sequence` does."""
        self._is_program = False
        given, entries = self._values, self._structure.entries
        count = len(entries)
        ops, rows = [], []
        for op, params, shape, dtype, row in entries:
            slots = [count - 1 - slot if slot < 0 else slot for slot in row]
            known = given[slots.pop(0) - count] if type(op) is str else op
            ops.append((known, given[-1 - params] if type(params) is int else params, shape, dtype))
            rows.append(slots)
        types: list[Any] = [(getattr(each, "shape", ()), getattr(each, "dtype", None)) for each in given]
        self._types = types
        self._steps = _planned(ops, rows, types, self._produced)
        self._failed = {count + i: (count + i, error) for i, error in self._missing.items()}
        self._values = [None] * count + given
        self._buffers, self._foreign, self._spoiled, self._next = {}, set(), -1, 0
        self._times = [0] * count
