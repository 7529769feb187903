"""Records, which operations on arrays leave behind until their values are wanted.

A record is light, since one is made for each operation of array code: the operation, its inputs by reference, the
type of its result, and where the user's code stood. The array that the user holds is known by a weak reference alone,
so a record that can no longer be asked for goes away by itself, together with what it would have read.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import cache
from math import prod
from operator import methodcaller
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from actorflow.array.record.primitives import PART, DType, Primitive, Value
from actorflow.core import Holder, Node, desk
from actorflow.errors import GraphError, OpError, OutOfMemoryError
from actorflow.graph.nodes import Site
from actorflow.place import Place
from actorflow.runtime.quiet import quiet
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: Whether a file of code, of which there is the name, belongs to this package.
_is_own = cache(methodcaller("startswith", str(Path(__file__).parents[2])))
#: The CPU, compared by identity.
HOST = Place()
desk.place = HOST
#: Elements to be computed from which on a worker looks at the records; fewer are not worth a thread.
WORTH_A_LOOK = 65_536
#: Dtype of the record of an operation with several results, whose value is a tuple.
SEVERAL = np.dtype(object)
_tracing: ContextVar[Tracing | None] = ContextVar("actorflow-array-tracing", default=None)


class Record(Node):
    """The record of one operation, or of a value that was given.

    Attributes:
        op: The operation; None for a value that was given.
        inputs: Records, and NumPy arrays that are constants; empty once the value is there.
        params: Further arguments of ``op``; hashable for pure operations.
        shape, dtype, size, place: Type, number of elements, and device of the result.
        evaluator: Computes it.
        number: Later records have higher ones.
        value: The result, once it is there; never written again while it can be seen.
        error: The reason why there will be no result.
        unit: The job that computes it now.
        handle: The array that shows it; dead or showing another record once the user has let go of this one. None if it
            was never shown, or its value was there before.
    """

    __slots__ = ()

    #: `Array`; set where it is defined, since it is built on records.
    array_type: ClassVar[type[Array]]
    op: Primitive | None
    inputs: tuple[Input, ...]
    dtype: DType
    place: Place
    evaluator: Evaluator
    value: Value | None
    error: Error | None
    handle: weakref.ref[Any] | None
    _code: CodeType
    _instruction: int

    def __init__(
        self,
        op: Primitive | None,
        inputs: tuple[Input, ...],
        shape: tuple[int, ...],
        dtype: DType,
        params: tuple[Any, ...],
        evaluator: Evaluator,
        place: Place = HOST,
        origin: Origin | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.params = params
        self.shape = shape
        self.dtype = dtype
        self.size = prod(shape) if shape else 1
        self.place = place
        self.evaluator = evaluator
        if op is None:  # a given value cannot fail, so its line is never needed
            return
        if origin is None:
            # Three frames are always those of this package.
            frame = sys._getframe(3)
            code = frame.f_code
            while _is_own(code.co_filename) and frame.f_back is not None:
                frame = frame.f_back
                code = frame.f_code
            self._code, self._instruction = code, frame.f_lasti  # the line is looked up where it is asked for
        else:
            self._code, self._instruction = origin

    @property
    def done(self) -> bool:
        """Return whether the value is there, or it is known that there will be none."""
        return self.value is not None or self.error is not None

    @property
    def size_bytes(self) -> int:
        """Bytes of the value."""
        return self.size * self.dtype.itemsize

    @property
    def name(self) -> str:
        """Name of the operation."""
        return "value" if self.op is None else self.op.name

    @property
    def origin(self) -> Origin:
        """Line that recorded it, as the interpreter knows it."""
        return self._code, self._instruction

    def is_held(self) -> bool:
        """Return whether an array of the user shows it."""
        array = self.handle() if self.handle is not None else None
        return array is not None and array._node is self

    def show(self) -> Array:
        """A new array for the user, the first that shows this record."""
        array = self.unheld()
        self.handle = weakref.ref(array)
        return array

    def unheld(self) -> Array:
        """An array that reads this record, and is not the user's."""
        array: Array = Holder.__new__(self.array_type)
        array._node = self
        return array


desk.node_type = Record
Input = Record | Value
#: The reason why a record has no value.
Error = OpError | OutOfMemoryError
#: A code object and the offset of an instruction in it.
Origin = tuple[CodeType, int]


class Evaluator:
    """Keeper of records. This class is a dry run, which computes nothing; `Session` computes.

    Attributes:
        sequential: Whether each operation is computed in the line that records it.
        is_limited: Whether there is a memory budget.
        pending: The arrays for which something was recorded, since that was planned.
        load: Elements that have to be computed for them, at most.
        threshold: The load from which on `notice` is called.
        seeds: Number of random operations recorded in a dry run, which names their streams.
        takes_programs: Whether operations may be computed by programs.
        at_once: Most elements that an operation touches to be computed in the line that would record it.
        count: Called with each value that was given.
    """

    # Slots, since these are read for each record, and a session has too many attributes for shared keys.
    __slots__ = (
        *("__weakref__", "at_once", "count", "dry_run", "is_limited", "load", "pending"),
        *("seeds", "sequential", "takes_programs", "threshold"),
    )

    #: The evaluator of new arrays outside of all sessions; set where sessions are defined.
    default: ClassVar[Evaluator]

    def __init__(self, dry_run: bool = True) -> None:
        self.dry_run = dry_run
        self.sequential = self.is_limited = self.takes_programs = False
        if dry_run:
            desk.dry_runs += 1
            weakref.finalize(self, _end_dry_run)
        # No locks here: these are used while recording.
        self.pending: deque[weakref.ref[Array]] = deque()
        self.load = self.seeds = self.at_once = 0
        self.threshold: float = WORTH_A_LOOK
        self.count: Callable[[Any], None] = _ignore

    def notice(self, node: Record) -> None:
        """Drop the records. Called while recording, when there are many."""
        self.pending.clear()
        self.load = 0

    def buffer(self, shape: tuple[int, ...], dtype: DType) -> Value:
        """Memory for a new array."""
        return np.empty(shape, dtype)

    def force(self, nodes: Iterable[Record]) -> None:
        """Compute records; returns when they are done, well or not."""
        if not all(node.done for node in nodes):
            raise GraphError("an array without values, of a traced function or a dry run: use where(condition, x1, x2)")

    def when_done(self, node: Record, callback: Callable[[], None]) -> None:
        """Have a record computed, and call ``callback`` when it is done, from any thread."""
        self.force([node])
        callback()


def _end_dry_run() -> None:
    desk.dry_runs -= 1


def _ignore(value: Any) -> None:
    """Neither count nor keep the value: a dry run has no memory."""


#: The evaluator of new arrays, where there is a session around.
context_evaluator: ContextVar[Evaluator | None] = ContextVar("actorflow-array", default=None)


def current_evaluator() -> Evaluator:
    """The evaluator of new arrays: that of the session around, else one for the process."""
    return context_evaluator.get() or Evaluator.default


def record(
    op: Primitive,
    inputs: tuple[Input, ...],
    shape: tuple[int, ...],
    dtype: DType,
    params: tuple[Any, ...] = (),
    evaluator: Evaluator | None = None,
    work: int = 0,
    place: Place | None = None,
) -> Array:
    """Record an operation and return at once.

    Args:
        op, inputs, shape, dtype, params: As for `Record`.
        evaluator: Computes it; that of the first input if left out.
        work: Elements that it touches beyond those of its result.
        place: Where its result lives; where its inputs live if left out, see `actorflow.array.record.placement`.
    Raises:
        PlaceError: if its inputs live on several devices.
    """
    if place is None:
        place = HOST
        if desk.placing is not None and _tracing.get() is None:
            inputs, place = desk.placing(op, inputs, False)
    if evaluator is None:
        evaluator = next(each for each in inputs if type(each) is Record).evaluator
    if desk.dry_runs:  # a result of an array without a value has none either
        dry = next((each.evaluator for each in inputs if type(each) is Record and each.evaluator.dry_run), None)
        traced = _tracing.get()
        evaluator = dry or (evaluator if traced is None else traced.evaluator)
    if op.prompt and evaluator.at_once and place is HOST and (op.view or prod(shape) + work <= evaluator.at_once):
        found = computed(op, inputs, params, shape, dtype, evaluator)
        if found is not None:
            return found
    node = Record(op, inputs, shape, dtype, params, evaluator, place)
    array: Array = Holder.__new__(Record.array_type)
    array._node = node
    node.handle = handle = weakref.ref(array)
    evaluator.pending.append(handle)
    evaluator.load += node.size + work
    if evaluator.load > evaluator.threshold:
        evaluator.notice(node)
    return array


def computed(
    op: Primitive,
    inputs: Sequence[Any],
    params: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: DType,
    evaluator: Evaluator,
) -> Array | None:
    """The result of an operation on records and constants, if what it reads is there."""
    values = [each.value if type(each) is Record else each for each in inputs]
    if any(type(value) is not np.ndarray for value in values):
        return None
    try:
        out = quiet.run(op.called(params, shape, dtype), *values)
    except Exception:  # noqa: BLE001  it is raised where the value is asked for, as always
        return None
    if type(out) is not np.ndarray:  # several results
        return None
    shown: Array = desk.hand(out, evaluator)
    return shown


def parts_of(whole: Record, specs: Iterable[TensorSpec]) -> list[Array]:
    """The results of an operation with several, of these types."""
    return [record(PART, (whole,), *spec, (i,), whole.evaluator) for i, spec in enumerate(specs)]


def bytes_of(node: Record) -> int:
    """Bytes that a record's value takes, or somewhat more; of several values, a guess."""
    op = node.op
    if op is not None and op.view and len(node.inputs) == 1:
        # A view of most of the memory of another value stays a view.
        read = node.inputs[0]
        if type(read) is Record and node.size * 2 >= read.size and _has_own_memory(read):
            return 0
    if node.dtype.kind == "O":
        return 2 * sum([each.size * each.dtype.itemsize for each in node.inputs])
    return node.size * node.dtype.itemsize


def _has_own_memory(node: Record) -> bool:
    if node.value is not None:
        return getattr(node.value, "base", None) is None and not isinstance(node.value, tuple)
    return node.op is not None and node.op.into


class Tracing:
    """Call of a function in a dry run, with arrays without values: within it all is recorded there, in this context.

    Attributes:
        evaluator: The dry run.
        nodes: Records of the arrays without values; they stay, whatever the function assigns to the arrays.
        asked: The records whose values are asked for inside; what is recorded depends on these values.
        first: Records with lower numbers were there before; their arrays may not be changed inside.
    """

    def __init__(self) -> None:
        self.evaluator = Evaluator()
        self.nodes: list[Record] = []
        self.asked: list[Record] = []
        self.first = self.stand_in(TensorSpec((), np.dtype(np.bool_)))._node.number
        self.nodes.clear()

    def stand_in(self, like: Any) -> Array:
        """An array without a value, of the type of an array or a `TensorSpec`."""
        node = Record(None, (), like.shape, like.dtype, (), self.evaluator)
        self.nodes.append(node)
        return node.show()

    def __enter__(self) -> None:
        self._token = _tracing.set(self)

    def __exit__(self, *failure: object) -> None:
        _tracing.reset(self._token)


def note_asked(node: Record) -> None:
    """Note that a record's value is asked for."""
    traced = _tracing.get()
    if traced is not None:
        traced.asked.append(node)


def replace(array: Array, by: Array) -> None:
    """Let an array show another record: what assignment and operators like ``+=`` do. It stays on its device.

    Raises:
        GraphError: if the array would lose its value to a dry run, which has none.
    """
    node, before, traced = by._node, array._node, _tracing.get()
    if before.number < traced.first if traced is not None else node.evaluator.dry_run > before.evaluator.dry_run:
        raise GraphError(
            f"{'a traced function' if traced is not None else 'a dry run'} changes an array in place that was made "
            f"outside of it, {before.dtype}{list(before.shape)}, and computes no value for it: make a new array, and "
            "return that, or change a copy: asarray(x, copy=True)"
        )
    if node.place is not before.place:
        node = by.to_device(before.place)._node
    array._node = node
    node.handle = handle = weakref.ref(array)
    if not node.done:
        node.evaluator.pending.append(handle)


def given(value: Value, evaluator: Evaluator, counted: bool = False, place: Place = HOST) -> Array:
    """An array whose value is there already, and is never written, or its copy on another device.

    Args:
        counted: Whether the evaluator made the value.
    """
    array: Array = desk.show(value, evaluator)
    if not counted:
        evaluator.count(value)
    return array if place is HOST else array.to_device(place)


class InterruptedStepError(Exception):
    """Raised in the place of what is no error of a step: it is for the thread that waits, and not for loops."""


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; raises InterruptedStepError from what it raises that is no error."""
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise InterruptedStepError from error


def site_of(origin: Origin) -> Site:
    """The line of an origin."""
    code, instruction = origin
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
    return Site(code.co_filename, line or code.co_firstlineno, code.co_name)
