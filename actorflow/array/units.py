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
    from actorflow.array.session import Session

__all__ = ["Unit"]

_alone = [np.empty(0)]
#: What ``getrefcount(values[i])`` says of an array that only the list refers to.
_IN_ONE_LIST = getrefcount(_alone[0])
#: Blocks that a thread computes at a time, so that another one can take a share.
_SHARE = 16


class Unit:
    """Records that are computed as one: a chain of elementwise operations and reductions, or one other operation.

    Args:
        nodes: The records, in order, all of one session.
        outputs: Those whose values are wanted outside.
        same: For records that repeat others, these.
        twins: For records that are repeated, the repetitions that the user holds.

    Attributes:
        number: Units with lower ones go first.
        forced: Whether somebody waits for it.
        queued: Whether it waits for a thread.
        ended: Whether it is over, well or not.
        waiting: How many units it waits for.
        sources: Units that it waited for when it was made.
        followers: Units that wait for it.
        callbacks: Called when it has ended, from any thread, with the session's lock held.
        work: Elements that it touches, about.
        operations: How many it computes.
        most_bytes: Bytes of its results.
        reserves: Bytes that its operation allocates while it runs.
        reserved_bytes: Those that have been set aside for it.
        name: Of its operations.
        elapsed_ns: Time it took so far, in all threads together.
        reads: Records and constants that it reads; empty once it has gathered them.
        outputs: See above.
    """

    def __init__(
        self,
        nodes: list[Node],
        outputs: list[Node],
        same: dict[Node, Node],
        twins: dict[Node, list[Node]],
    ) -> None:
        self.session: Session = nodes[0].session
        self.number = nodes[-1].number
        self.operations = len(nodes)
        self.most_bytes = sum(node.size_bytes for node in outputs)
        self.reserves = self.reserved_bytes = 0
        self.forced = self.queued = self.ended = False
        self.waiting = 0
        self.sources: list[Unit] = []
        self.followers: list[Unit] = []
        self.callbacks: list[Callable[[], None]] = []
        self.elapsed_ns = 0
        self.name = "+".join([node.name for node in nodes])
        self.reads, self._steps = _steps(nodes, same)
        self.work = sum(read.size for read in self.reads) + sum(node.size for node in nodes)
        self.outputs = outputs
        self._is_chain = any(node.op is not None and node.op.elementwise for node in nodes)
        self._twins = [(node, twin) for node in outputs for twin in twins.get(node, ())]
        self._nodes = nodes
        self._origins = [node.origin for node in nodes]
        self._produced = {i: node for i, node in enumerate(nodes) if node in set(outputs)}
        for node in [*outputs, *(twin for _, twin in self._twins)]:
            node.unit = self
        self._values: list[Value] = []
        self._specs: list[TensorSpec] = []
        self._reused: dict[int, int] = {}
        self._chain: Chain | None = None
        self._result: Any = None
        self._failed: tuple[int, BaseException] | None = None
        self._next = self._left = 0

    # -- with the session's lock held ---------------------------------------------------------------------------

    @property
    def failed_source(self) -> OpError | OutOfMemoryError | None:
        """Why a value that it reads is missing, if one is."""
        return next((read.error for read in self.reads if type(read) is Node and read.error is not None), None)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody can still ask for what it computes."""
        return self.forced or bool(self.followers) or any(node.is_held() for node in self._results())

    def gather(self) -> int:
        """Take the inputs' values, and let go of the records: those that nobody else refers to end here.

        Returns:
            Bytes that it will allocate for its results.
        """
        if self.reads:
            self._values = [read.value if type(read) is Node else read for read in self.reads]  # type: ignore[misc]
            self._specs = [TensorSpec(read.shape, read.dtype) for read in self.reads]
            self.reads, self._nodes = [], []
            for node in self._results():
                node.inputs = ()
            self.session.memory.sort_out(self._values)
            self._reused = self._reusable()
        needs = sum(node.size_bytes for i, node in self._produced.items() if i not in self._reused)
        self.reserves = 0 if self._is_chain or self._steps[0].op.into else needs
        return needs

    def begin(self) -> bool:
        """Allocate what it writes, and divide it into shares; False if that failed."""
        try:
            self._allocate()
        except Exception as error:  # noqa: BLE001  whoever asks for the value gets it
            self._failed = 0, error
            return False
        return True

    def _allocate(self) -> None:
        take = self.session.memory.take
        self._left = 1
        if self._is_chain:
            results = {}
            for i, node in self._produced.items():
                if self._steps[i].op.elementwise:
                    reused = self._reused.get(i)
                    results[i] = take(node.shape, node.dtype) if reused is None else self._values[reused]
            self._chain = Chain(self._steps, self._values, self._steps[0].shape, results)
            self._left = len(self._chain.blocks)
        elif self._steps[0].op.into:
            self._result = take(self._steps[0].shape, self._steps[0].dtype)

    @property
    def has_shares(self) -> bool:
        """Whether there is something to run that no thread has taken yet."""
        return self._failed is None and self._next < (1 if self._chain is None else len(self._chain.blocks))

    def take_share(self) -> tuple[int, int]:
        """The next part to run."""
        start = self._next
        stop = 1 if self._chain is None else min(start + _SHARE, len(self._chain.blocks))
        self._next = stop
        return start, stop

    def end_share(self, share: tuple[int, int]) -> bool:
        """A part has been run; whether it was the last one."""
        self._left -= share[1] - share[0]
        if self._failed is not None:  # what nobody has taken is not run any more
            self._left -= self._end_of_shares() - self._next
            self._next = self._end_of_shares()
        return self._left == 0

    def end(self) -> None:
        """Hand the results to the records."""
        if self._failed is None:
            try:
                self._hand_out()
            except Exception as error:  # noqa: BLE001  whoever asks for the value gets it
                self._failed = 0, error
        if self._failed is not None:
            step, cause = self._failed
            arguments = [self._spec(position) for position in self._steps[step].arguments]
            self.fail(failure(self._steps[step].op.name, self._origins[step], arguments, cause))
        else:
            self._finish()

    def fail(self, error: OpError | OutOfMemoryError) -> None:
        """There will be no results."""
        for node in self._results():
            node.error = error
            node.inputs = ()
        self._finish()

    def skip(self) -> None:
        """Nobody can ask for the results: leave the records as they were."""
        self._finish()

    def _results(self) -> list[Node]:
        return [*self.outputs, *(twin for _, twin in self._twins)]

    def _finish(self) -> None:
        self.ended = True
        for node in self._results():
            node.unit = None
        # Whoever still refers to the unit must not keep the records, or their memory, with it.
        self.outputs, self._twins, self._produced = [], [], {}
        values, self._values = self._values, []
        self.reads, self._nodes, self._chain, self._result = [], [], None, None
        while values:
            self.session.memory.reclaim(values.pop())
        self.sources = []

    def _hand_out(self) -> None:
        if self._chain is None:
            node, value = self._produced[0], self._result
            if not isinstance(value, tuple):
                value = np.asarray(value)
                if value.shape != node.shape:
                    raise ShapeError(f"{node.name}: recorded as shape {node.shape}, computed as {value.shape}")
                value = _compact(value.astype(node.dtype, copy=False))
            node.value = value
            if not self._reused and not self._steps[0].op.into:
                self.session.memory.count(value)
        else:
            self._chain.finish()
            for i, node in self._produced.items():
                node.value = self._chain.results[i]
                if self._steps[i].op.reduction:
                    self.session.memory.count(node.value)
        for node, twin in self._twins:
            twin.value = node.value

    def _reusable(self) -> dict[int, int]:
        """For outputs by step, the input that nobody else refers to and that they may be written into."""
        first = len(self._values)
        last = {position: i for i, step in enumerate(self._steps) for position in step.arguments if position < first}
        free = [
            position
            for position, i in last.items()
            if getrefcount(self._values[position]) == _IN_ONE_LIST and _is_own(self._values[position])
        ]
        found: dict[int, int] = {}
        for i in self._produced:
            step = self._steps[i]
            for position in free:
                value = self._values[position]
                aligned = isinstance(step.op, Elementwise) and step.op.aligned
                fits = (value.shape, value.dtype) == (step.shape, step.dtype)
                owned = step.op.owns and position == step.arguments[0]
                if fits and (
                    owned or (step.op.elementwise and (last[position] < i or (aligned and last[position] == i)))
                ):
                    found[i] = position
                    free.remove(position)
                    break
        return found

    def _spec(self, position: int) -> TensorSpec:
        first = len(self._specs)
        if position < first:
            return self._specs[position]
        step = self._steps[position - first]
        return TensorSpec(step.shape, step.dtype)

    def _end_of_shares(self) -> int:
        return 1 if self._chain is None else len(self._chain.blocks)

    # -- in any thread ------------------------------------------------------------------------------------------

    def run(self, share: tuple[int, int]) -> None:
        """Compute a part; what it raises is kept for those who ask for the results."""
        start = perf_counter_ns()
        try:
            with np.errstate(all="ignore"):
                if self._chain is not None:
                    self._chain.run(*share)
                else:
                    self._compute()
        except StepError as error:
            self._failed = error.step, error.__cause__ or error
        except BaseException as error:
            self._failed = 0, error
            if not isinstance(error, Exception):  # an interrupt is for this thread
                raise
        self.elapsed_ns += perf_counter_ns() - start

    def _compute(self) -> None:
        step = self._steps[0]
        values = [self._values[position] for position in step.arguments]
        if step.op.into:
            step.op.compute(*values, *step.params, out=self._result)
        elif step.op.owns:
            self._result = step.op.compute(*values, *step.params, owned=bool(self._reused))
        else:
            self._result = step.op.compute(*values, *step.params)


def _steps(nodes: list[Node], same: dict[Node, Node]) -> tuple[list[Input], list[Step]]:
    """What is read from outside, and the operations with the positions of their inputs."""
    inside = set(nodes)
    reads: list[Input] = []
    positions: dict[int, int] = {}
    inputs = [[same.get(each, each) if type(each) is Node else each for each in node.inputs] for node in nodes]
    for each in [each for row in inputs for each in row]:
        if id(each) not in positions and not (type(each) is Node and each in inside):
            positions[id(each)] = len(reads)
            reads.append(each)
    positions.update((id(node), len(reads) + i) for i, node in enumerate(nodes))
    steps = []
    for node, row in zip(nodes, inputs, strict=True):
        assert node.op is not None
        steps.append(Step(node.op, tuple([positions[id(each)] for each in row]), node.params, node.shape, node.dtype))
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
