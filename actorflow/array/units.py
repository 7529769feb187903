"""Units: records that are computed as one, and how far that is."""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.array.blocks import Chain, Step, StepError
from actorflow.array.primitives import Elementwise, Value
from actorflow.array.records import Input, Node, failure
from actorflow.errors import OpError, OutOfMemoryError, ShapeError
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.memory import Memory
    from actorflow.array.session import Session

__all__ = ["Error", "Unit"]

#: Why there is no value.
Error = OpError | OutOfMemoryError

_alone = [np.empty(0)]
#: What ``getrefcount(values[i])`` says of an array that only the list refers to.
_IN_ONE_LIST = getrefcount(_alone[0])
#: Blocks that a thread computes at a time, so that another one can take a share.
_SHARE = 16


class Unit:
    """Records that are computed as one: a chain of elementwise operations and reductions, or a sequence of others.

    A chain is computed block by block, by several threads if it is long; a sequence one operation after the other.

    Args:
        nodes: The records, in order, all of one session.
        produced: Those whose values are wanted outside, by their positions.
        same: For records that repeat others, these.
        twins: For records that are repeated, the repetitions that the user holds.
        is_chain: Whether they are a chain.

    Attributes:
        session: Whose unit it is.
        number: Units with lower ones go first.
        forced: Whether somebody waits for it.
        queued: Whether it waits for a thread.
        ended: Whether it is over, well or not.
        waiting: How many units it waits for.
        sources: Units that it waited for when it was made.
        followers: Units that wait for it.
        callbacks: Called when it has ended, from any thread, with the session's lock held.
        reads: Records and constants that it reads; empty once it has gathered them.
        work: Elements that it touches, about.
        operations: How many it computes.
        reserved_bytes: What has been set aside for it.
        elapsed_ns: Time it took so far, in all threads together.
    """

    def __init__(
        self,
        nodes: list[Node],
        produced: dict[int, Node],
        same: dict[Node, Node],
        twins: dict[Node, list[Node]],
        is_chain: bool,
    ) -> None:
        self.session: Session = nodes[0].session
        self.number = nodes[-1].number
        self.forced = self.queued = self.ended = False
        self.waiting = self.reserved_bytes = self.elapsed_ns = 0
        self.sources: list[Unit] = []
        self.followers: list[Unit] = []
        self.callbacks: list[Callable[[], None]] = []
        self.operations = len(nodes)
        self.reads, self._steps = _steps(nodes, same)
        self.work = sum([read.size for read in self.reads]) + sum([node.size for node in nodes])
        self._is_chain = is_chain
        self._produced = produced
        self._twins = [(node, twin) for node in produced.values() for twin in twins[node]] if twins else []
        for node in produced.values():
            node.unit = self
        for _, twin in self._twins:
            twin.unit = self
        self._values: list[Any] = []
        self._reused: dict[int, int] = {}
        self._chain: Chain | None = None
        self._results: dict[int, Any] = {}
        self._failed: dict[int, BaseException] = {}
        self._next = self._left = 0
        self._returned: list[tuple[int, int]] = []

    @property
    def name(self) -> str:
        """Names of its operations, for the profile."""
        names = [step.op.name for step in self._steps]
        shown = "+".join(names[:_SHARE])
        return shown if len(names) <= _SHARE else f"{shown}+..."

    @property
    def memory(self) -> Memory:
        """The memory of its results."""
        return self.session.memory

    # -- with the session's lock held ---------------------------------------------------------------------------

    @property
    def failed_source(self) -> Error | None:
        """Why a value that it reads is missing, if one is."""
        for read in self.reads:
            if type(read) is Node and read.error is not None:
                return read.error
        return None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody can still ask for what it computes."""
        return self.forced or bool(self.followers) or any(node.is_held() for node in self._nodes())

    @property
    def most_bytes(self) -> int:
        """Bytes of its results."""
        return sum([node.size_bytes for node in self._produced.values()])

    def gather(self) -> int:
        """Take the inputs' values, and let go of the records: those that nobody else refers to end here.

        Returns:
            Bytes that it will allocate for its results.
        """
        if self.reads:
            self._values = [read.value if type(read) is Node else read for read in self.reads]
            self.reads = []
            for node in self._nodes():
                node.inputs = ()
            self.session.memory.sort_out(self._values)
            self._reused = self._reusable()
        return sum([node.size_bytes for i, node in self._produced.items() if i not in self._reused])

    @property
    def allocates(self) -> bool:
        """Whether its results are made by the operations themselves."""
        return not self._is_chain and not self._steps[-1].op.into

    def begin(self) -> bool:
        """Allocate what it writes, and divide it into shares; False if that failed."""
        try:
            self._allocate()
        except Exception as error:  # noqa: BLE001  whoever asks for the value gets it
            self._failed = dict.fromkeys(self._produced, error)
            return False
        return True

    def _allocate(self) -> None:
        self._left = 1
        buffers: dict[int, Value] = {}
        for i, node in self._produced.items():
            op = self._steps[i].op
            if op.into or op.elementwise:
                reused = self._reused.get(i)
                take = self.session.memory.take
                buffers[i] = take(node.shape, node.dtype) if reused is None else self._values[reused]
        self._results = buffers
        if self._is_chain:
            self._chain = Chain(self._steps, self._values, self._steps[0].shape, buffers)
            self._left = len(self._chain.blocks)

    @property
    def has_shares(self) -> bool:
        """Whether there is something to run that no thread has taken yet."""
        return not self._failed and (bool(self._returned) or self._next < self._shares)

    @property
    def _shares(self) -> int:
        return 1 if self._chain is None else len(self._chain.blocks)

    def take_share(self) -> tuple[int, int]:
        """The next part to run."""
        if self._returned:
            return self._returned.pop()
        start = self._next
        self._next = min(start + _SHARE, self._shares)
        return start, self._next

    def return_share(self, share: tuple[int, int]) -> bool:
        """A part was interrupted: let another thread run it; False if that is not possible any more."""
        if self._reused:
            return False
        if not self._is_chain:
            self._failed = {}
        self._returned.append(share)
        return True

    def end_share(self, share: tuple[int, int]) -> bool:
        """A part has been run; whether it was the last one."""
        self._left -= share[1] - share[0]
        if self._failed and self._is_chain:  # what nobody has taken is not run any more
            self._left -= self._shares - self._next + sum([stop - start for start, stop in self._returned])
            self._next, self._returned = self._shares, []
        return self._left == 0

    def end(self) -> None:
        """Hand the results, or what failed, to the records."""
        if self._chain is not None and not self._failed:
            self._chain.finish()
        if self._failed and self._is_chain:
            [(step, cause)] = list(self._failed.items())[:1]
            self.fail(self._error(step, cause))
            return
        errors: dict[int, Error] = {}
        for i, node in self._produced.items():
            if i in self._failed:
                node.error = errors.setdefault(id(self._failed[i]), self._error(i, self._failed[i]))
            else:
                node.value = self._results[i]
                if not (self._is_chain and node.op is not None and node.op.elementwise):
                    self._count(i, node.value)
        for node, twin in self._twins:
            twin.value, twin.error = node.value, node.error
        self.finish()

    def _count(self, i: int, value: Any) -> None:
        if i not in self._reused and not (self._steps[i].op.into or self._steps[i].op.elementwise):
            self.session.memory.count(value)

    def _error(self, step: int, cause: BaseException) -> Error:
        """The error of a step, which may have been another one's before."""
        if isinstance(cause, OpError | OutOfMemoryError):
            return cause
        inputs = [self._spec(position) for position in self._steps[step].arguments]
        return failure(self._steps[step].op.name, self._steps[step].origin, inputs, cause)

    def fail(self, error: Error) -> None:
        """There will be no results."""
        for node in self._nodes():
            node.error = error
            node.inputs = ()
        self.finish()

    def finish(self) -> None:
        """Let go of everything: whoever still refers to the unit must not keep records, or their memory, with it."""
        self.ended = True
        for node in self._nodes():
            node.unit = None
        values, self._values = self._values, []
        self._twins, self._produced, self.reads, self.sources = [], {}, [], []
        self._chain, self._results = None, {}
        while values:
            self.session.memory.reclaim(values.pop())

    def _nodes(self) -> list[Node]:
        """The records that it has results for."""
        return [*self._produced.values(), *[twin for _, twin in self._twins]]

    def _reusable(self) -> dict[int, int]:
        """For results by step, the input that nobody else refers to and that they may be written into."""
        if not self._is_chain and (len(self._steps) > 1 or not self._steps[0].op.owns):
            return {}
        free = [
            position
            for position in range(len(self._values))
            if getrefcount(self._values[position]) == _IN_ONE_LIST and _is_own(self._values[position])
        ]
        if not free:
            return {}
        last = {position: i for i, step in enumerate(self._steps) for position in step.arguments}
        found: dict[int, int] = {}
        for i in self._produced:
            for position in free:
                if self._may_reuse(i, position, last[position]):
                    found[i] = position
                    free.remove(position)
                    break
        return found

    def _may_reuse(self, i: int, position: int, last: int) -> bool:
        step, value = self._steps[i], self._values[position]
        if value.shape != step.shape or value.dtype != step.dtype:
            return False
        if step.op.owns:
            return position == step.arguments[0]
        return isinstance(step.op, Elementwise) and (last < i or (last == i and step.op.aligned))

    def _spec(self, position: int) -> TensorSpec:
        first = len(self._values)
        if position >= first:
            step = self._steps[position - first]
            return TensorSpec(step.shape, step.dtype)
        value = self._values[position]
        return TensorSpec((), np.dtype(object)) if isinstance(value, tuple) else TensorSpec(value.shape, value.dtype)

    # -- in any thread ------------------------------------------------------------------------------------------

    def run(self, share: tuple[int, int]) -> None:
        """Compute a part; what it raises is kept for those who ask for the results."""
        start = perf_counter_ns()
        try:
            with np.errstate(all="ignore"):
                if self._chain is not None:
                    self._chain.run(*share)
                else:
                    self._run_sequence()
        except StepError as error:
            self._failed = {error.step: error.__cause__ or error}
        except BaseException as error:  # an interrupt, for this thread
            if self._reused:  # what was being written over is lost
                self._failed = dict.fromkeys(self._produced, error)
            raise
        finally:
            self.elapsed_ns += perf_counter_ns() - start

    def _run_sequence(self) -> None:
        slots: list[Any] = self._values[:]
        last = len(self._steps) > 1 and {p: i for i, step in enumerate(self._steps) for p in step.arguments}
        first = len(slots)
        for i, step in enumerate(self._steps):
            failed = next((p - first for p in step.arguments if p - first in self._failed), None)
            if failed is not None:
                self._failed[i] = self._failed[failed]
                slots.append(None)
                continue
            try:
                value = self._compute(i, step, [slots[position] for position in step.arguments])
            except Exception as error:  # noqa: BLE001  whoever asks for the value gets it
                self._failed[i] = self._error(i, error)
                value = None
            slots.append(value)
            if i in self._produced:
                self._results[i] = value
            if last:
                for position in step.arguments:
                    if last[position] == i:
                        slots[position] = None

    def _compute(self, i: int, step: Step, values: list[Any]) -> Any:
        op = step.op
        if op.elementwise or op.into:
            out = self._results.get(i)
            out = np.empty(step.shape, step.dtype) if out is None else out
            op.compute(*values, *step.params, out=out)
            return out
        if op.owns:
            found = op.compute(*values, *step.params, owned=bool(self._reused))
        else:
            found = op.compute(*values, *step.params)
        if type(found) is tuple:
            return found
        found = np.asarray(found)
        if found.shape != step.shape:
            raise ShapeError(f"{op.name}: recorded as shape {step.shape}, computed as {found.shape}")
        return _compact(found.astype(step.dtype, copy=False))


def _steps(nodes: list[Node], same: dict[Node, Node]) -> tuple[list[Input], list[Step]]:
    """What is read from outside, and the operations with the positions of their inputs."""
    reads: list[Input] = []
    positions: dict[int, int] = {}
    rows: list[list[int]] = []
    inside = {id(node): i for i, node in enumerate(nodes)}
    for node in nodes:
        row = []
        for each in node.inputs:
            key = id(same.get(each, each)) if same and type(each) is Node else id(each)
            if key not in positions and key not in inside:
                positions[key] = len(reads)
                reads.append(same.get(each, each) if type(each) is Node else each)
            row.append(key)
        rows.append(row)
    first = len(reads)
    positions.update({key: first + i for key, i in inside.items()})
    steps = []
    for node, row in zip(nodes, rows, strict=True):
        assert node.op is not None
        arguments = tuple([positions[key] for key in row])
        steps.append(Step(node.op, arguments, node.params, node.shape, node.dtype, node.origin))
    return reads, steps


def _is_own(value: Any) -> bool:
    """Whether a value has memory of its own that may be written."""
    return type(value) is np.ndarray and value.base is None and value.flags.writeable and value.flags.c_contiguous


def _compact(value: Value) -> Value:
    """A value that does not keep much more memory than it needs."""
    base = value.base
    if base is not None and value.nbytes * 2 < getattr(base, "nbytes", 0):
        return value.copy()
    return value
