"""Every error that actorflow raises on purpose.

::

    ActorflowError
    ├── GraphError (ValueError)              the graph, or a request to it, is wrong
    │   ├── CycleError                       .cycle
    │   ├── ShapeError
    │   │   └── AxisError (IndexError)       an array has no such axis
    │   ├── DTypeError (TypeError)
    │   ├── PlaceError
    │   └── FeedError
    ├── KernelNotFoundError (LookupError)    lists the registered ones
    ├── DeviceError (RuntimeError)
    │   ├── DeviceUnavailableError
    │   ├── OutOfMemoryError (MemoryError)   a plan can never fit its budget; shows the largest values
    │   └── RaceError                        work on a simulated device is not ordered; names both ops
    ├── OpError (RuntimeError)               .op, .op_name, .frame, .updated, .replay(), .to_graph(), .__cause__
    │   ├── NotFiniteError                   .inputs, .results: an op made a NaN or an infinity of inputs without
    │   └── OpTimeoutError (TimeoutError)    one call took longer than its op's timeout
    ├── RunTimeoutError (TimeoutError)       a run took longer than its timeout; lists the ops it waited for
    ├── StallError (RuntimeError)            a run made no progress; lists the ops it waited for
    ├── RunCancelledError (RuntimeError)     .frame, .updated: `Graph.cancel` has ended a run
    ├── QueueFullError (RuntimeError)        .waiting_rows, .queue_rows: too many rows wait for batched runs
    ├── SessionsFullError (RuntimeError)     .sessions, .waiting: a session found no slot in time
    ├── CacheFullError (RuntimeError)        .needed, .free, .blocks, .waiting: a step found too few blocks in time
    ├── BatcherClosedError (RuntimeError)    a batcher takes no request any more, or was closed before a request's end
    │   └── SessionClosedError               a session takes no step any more, or was closed before a step's end
    ├── TransportError (RuntimeError)        messages between ranks
    │   ├── PeerLostError                    .rank: a rank has died, or does not answer
    │   └── PeerFailedError                  .rank: a frame cannot end, as that rank has given it up or left; says why
    ├── PipelineError (ValueError)           a data pipeline, or a request to it, is wrong
    ├── StageError (RuntimeError)            .stage, .number, .item, .__cause__: a call of a pipeline's stage failed
    │   └── StageTimeoutError (TimeoutError) one call took longer than its stage's timeout
    ├── DataError (ValueError)               a data file is missing or malformed
    ├── CheckpointError (RuntimeError)       a checkpoint is damaged, does not fit the graph, or cannot be written
    └── MissingExtraError (ImportError)      an optional dependency is not installed

All of them can be pickled, so that they come through pools of processes and services of several: with their message,
and with all attributes and the ``__cause__`` that can be pickled themselves. Others are None then.
"""

from __future__ import annotations

import importlib
import math
import operator
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Op

__all__ = [
    "ActorflowError",
    "AxisError",
    "BatcherClosedError",
    "CacheFullError",
    "CheckpointError",
    "CycleError",
    "DTypeError",
    "DataError",
    "DeviceError",
    "DeviceUnavailableError",
    "FeedError",
    "GraphError",
    "KernelNotFoundError",
    "MissingExtraError",
    "NotFiniteError",
    "OpError",
    "OpTimeoutError",
    "OutOfMemoryError",
    "PeerFailedError",
    "PeerLostError",
    "PipelineError",
    "PlaceError",
    "QueueFullError",
    "RaceError",
    "RunCancelledError",
    "RunTimeoutError",
    "SessionClosedError",
    "SessionsFullError",
    "ShapeError",
    "StageError",
    "StageTimeoutError",
    "StallError",
    "TransportError",
    "require",
]


_SHOWN = 10  # names at each end of a long cycle that the message shows
_MOST_SHOWN = 200  # characters of an item that a message shows
#: In place of an item that was to be made when its stage failed.
UNMADE: Any = object()
#: Names that a message suggests, and how much of such a name must be the same, from 0 to 1.
_MOST_NEAR, _NEAR = 3, 0.6
_FOREVER_S = 1e9  # some 30 years: a longer limit of time is none, as not every loop can wait for it


def listed(names: Sequence[str], most: int = _SHOWN) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """End of a message about a name that is not known: the nearest ones that are, or nothing.

    Capitals make no difference. ``conv`` is near to ``net/conv`` and to ``conv/out``, too: names of scopes were left
    out, or a blob's.
    """
    if not isinstance(name, str) or not name:
        return ""
    import difflib  # only when something is wrong

    wanted, folded = name.casefold(), {each.casefold(): each for each in known}
    parts = [each for each in folded if each.endswith("/" + wanted) or each.startswith(wanted + "/")]
    near = [*difflib.get_close_matches(wanted, folded, _MOST_NEAR, _NEAR), *sorted(parts, key=len)]
    names = [repr(folded[each]) for each in dict.fromkeys(near)][:_MOST_NEAR]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def text_of(value: object, describe: Callable[[Any], str] = str) -> str:
    """Text of a value of the user's for a message, which must be made whatever the value's methods raise."""
    try:
        return describe(value)
    except BaseException as error:  # noqa: BLE001  an object's own methods may raise anything
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def shown(item: object) -> str:
    """An item of a pipeline in a message."""
    text = text_of(item, _brief)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _brief(item: Any) -> str:
    shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{type(item).__name__} {dtype}{list(shape)}"
    return repr(item)


def visible(text: str, *, lines: bool = False) -> str:
    r"""A text in which nothing is hidden: unprintable characters are written as `repr` does, ``\u202e`` for example.

    Names of lanes and stages, messages of errors and the like come from anywhere. Shown as they are, they could turn
    the text around them, move a terminal's cursor, or look like other ones. The live page does the same in
    ``static/text.js``.

    Args:
        text: The text; one that is printable is returned as it is.
        lines: Whether it may have several lines: ends of lines are kept.
    """
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() or (lines and one == "\n") else repr(one)[1:-1] for one in text])


class ActorflowError(Exception):
    """Base of every error of actorflow.

    Class attributes:
        page: Name of the page about such errors, which a note at the end of tracebacks has: ``actorflow docs NAME``;
            empty if there is none.
    """

    page: ClassVar[str] = ""

    #: Attributes that mean nothing in another process.
    _local: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, page: str | None = None) -> None:
        super().__init_subclass__()
        if page is not None:
            cls.page = page

    def __init__(self, *args: Any, page: str | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        if page := page or self.page:
            self.add_note(f"More: actorflow docs {page}")

    def __reduce__(self) -> tuple[Callable[..., ActorflowError], tuple[Any, ...]]:
        builtin: tuple[Any, ...] = tuple(super().__reduce__())  # its class, its arguments, and attributes, if any
        kept = builtin[2] if len(builtin) > 2 else {}
        attributes = {name: value for name, value in kept.items() if name not in self._local}
        if self.__cause__ is not None:
            attributes["__cause__"] = self.__cause__
        return _restored, (type(self), builtin[1], {name: _packed(value) for name, value in attributes.items()})


_Error = TypeVar("_Error", bound=ActorflowError)


def _packed(value: object) -> bytes | None:
    """A pickle of its own, so that a part that cannot be pickled or read is missed alone."""
    try:
        return pickle.dumps(value)
    except BaseException:  # noqa: BLE001  an object's own methods may raise anything
        return None


def _restored(kind: type[_Error], args: tuple[Any, ...], attributes: Mapping[str, bytes | None]) -> _Error:
    """An error as it was, without its constructor, whose arguments are not kept."""
    builtin: type[BaseException] = kind
    while builtin.__module__ != "builtins":
        assert builtin.__base__ is not None
        builtin = builtin.__base__  # the one whose memory it has, which need not be the next in its order
    error: _Error = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)
    for name, packed in attributes.items():
        try:
            value = None if packed is None else pickle.loads(packed)  # noqa: S301  part of the pickle that is read
        except BaseException:  # noqa: BLE001  for instance a class that is not known here
            value = None
        setattr(error, name, value)
    return error


class GraphError(ActorflowError, ValueError):
    """The graph, or a request to it, is wrong; raised before anything runs."""


class CycleError(GraphError):
    """Operations wait for each other.

    Attributes:
        cycle: Names of the nodes on the cycle, in the direction of the data, the first repeated at the end.

    Args:
        cycle: As the attribute.
        sites: By an op's name, the line that created it.
    """

    def __init__(self, cycle: Sequence[str], sites: Mapping[str, object] | None = None) -> None:
        shown = list(cycle)
        if len(shown) > 2 * _SHOWN:
            shown[_SHOWN:-_SHOWN] = [f"... {len(shown) - 2 * _SHOWN} more ..."]
        lines = [
            f"\n  op {name!r} created at {sites[name]}" for name in dict.fromkeys(shown) if sites and name in sites
        ]
        super().__init__("the graph has a cycle: " + " -> ".join(shown) + "".join(lines))
        self.cycle = tuple(cycle)


class ShapeError(GraphError, page="shapes"):
    """Shapes do not fit."""


class AxisError(ShapeError, IndexError):
    """An array has no such axis; an IndexError too, as in NumPy and the array API standard."""


class DTypeError(GraphError, TypeError, page="shapes"):
    """Dtypes do not fit; a TypeError too, which array code expects."""


class PlaceError(GraphError, page="devices"):
    """Places do not fit, or a text is not a place."""


class FeedError(GraphError, page="running"):
    """A feed is missing, unknown or not allowed."""


class KernelNotFoundError(ActorflowError, LookupError, page="own-operations"):
    """No kernel is registered for a call that the plan needs."""


class DeviceError(ActorflowError, RuntimeError, page="devices"):
    """A device failed.

    Attributes:
        work: Name of the op whose work failed, where several were launched as one and the device knows; else None.
    """

    work: str | None = None


class DeviceUnavailableError(DeviceError):
    """A place names a device that this process does not have."""


class OutOfMemoryError(DeviceError, MemoryError, page="memory"):
    """A plan can never fit the memory budget, or a device has no room; the message shows the largest values."""


class RaceError(DeviceError, page="sim"):
    """Two pieces of work on a simulated device use one memory, and nothing orders them; the message names both."""


class FailedInput(Protocol):
    """An input of a failed call, as an error shows it: of an op, a blob."""

    name: str
    spec: Any
    place: Any


class FailedCall(Protocol):
    """A call that failed, as an error shows it: of an op of a graph, or of an operation on arrays."""

    name: str
    operation: Any
    site: Any

    @property
    def inputs(self) -> Sequence[FailedInput]:
        """Its arguments."""


class HeldValues(Protocol):
    """An array, as an error shows it; see `actorflow.trace.values.ValueStatistics`."""

    @property
    def nan(self) -> int:
        """Number of NaN."""

    @property
    def infinite(self) -> int:
        """Number of infinities."""

    @property
    def minimum(self) -> float:
        """The least of the elements that are finite."""

    @property
    def maximum(self) -> float:
        """The greatest of them."""


class OpError(ActorflowError, RuntimeError, page="errors"):
    """An operation failed while it ran; the cause is chained.

    Attributes:
        op_name: Name of the failed node.
        frame: Number of the frame; None where it failed before there was one.
        updated: Names of the variables that the frame had updated before; the others have their old values.
    """

    _local = ("_op", "_replay", "_alone")
    _op: Any = None
    _replay: Callable[[], Any] | None = None
    _alone: Callable[[], Graph] | None = None

    def __init__(self, op: FailedCall, what: str) -> None:
        inputs = ", ".join(f"{blob.name} {blob.spec} on {blob.place}" for blob in op.inputs) or "none"
        super().__init__(f"op {op.name!r} ({text_of(op.operation)}) {what}\n  inputs: {inputs}\n  created at {op.site}")
        self._op = op
        self.op_name = op.name
        self.frame: int | None = None
        self.updated: tuple[str, ...] = ()

    @property
    def op(self) -> Op:
        """The failed node.

        Raises:
            AttributeError: of an error that has come from another process; ``op_name`` is known there, too.
        """
        if self._op is None:
            raise AttributeError(f"op {self.op_name!r} is a node of a graph in another process: only its name is known")
        op: Op = self._op
        return op

    @classmethod
    def of(
        cls,
        op: FailedCall,
        cause: BaseException,
        replay: Callable[[], Any] | None = None,
        alone: Callable[[], Graph] | None = None,
    ) -> OpError:
        """The error of an op whose call raised ``cause``.

        Args:
            op: The op.
            cause: The exception it raised.
            replay: Runs the call again; None if its inputs are not there.
            alone: Makes a graph of the call; likewise.
        """
        if isinstance(cause, OpTimeoutError):
            return cause
        error = (
            NotFiniteError(op, cause)
            if isinstance(cause, NotFiniteResultError)
            else cls(op, f"failed with {type(cause).__name__}: {text_of(cause)}")
        )
        error.__cause__ = cause
        error._replay, error._alone = replay, alone
        return error

    def replay(self) -> Any:
        """Run the failed call again, alone, on the arrays that it had, for instance in a debugger.

        Returns:
            The result of the function or kernel; a coroutine for an async function.
        Raises:
            The exceptions of the function or kernel.
            GraphError: if the inputs are not there: after a timeout, which is not a failed call, or in another process.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [], "int64")
            >>> y = graph.function("invert", lambda x: 1 // int(x), x.spec)(x)
            >>> try:
            ...     graph.run_sync({x: 0})
            ... except af.OpError as error:
            ...     failure = error
            >>> failure.op_name, failure.frame
            ('invert', 0)
            >>> failure.replay()  # in a debugger, say
            Traceback (most recent call last):
                ...
            ZeroDivisionError: integer division or modulo by zero
        """
        if self._replay is None:
            raise GraphError(f"op {self.op_name!r} cannot be replayed: its inputs were not kept")
        return self._replay()

    def to_graph(self) -> Graph:
        """A graph of the failed call alone, to save (`Graph.save`) and to run elsewhere.

        The arrays that the call had are its variables; it counts frames from the one that failed, so that random
        streams are the same, and has the ``check_finite`` of the graph that it comes from.

        Raises:
            GraphError: if the inputs are not there, as for `replay`, or are Python objects.

        Example:
            >>> def invert(x):
            ...     return 1 // int(x)
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", [], "int64")
            >>> y = graph.function("invert", invert, x.spec)(x)
            >>> try:
            ...     graph.run_sync({x: 0})
            ... except af.OpError as error:
            ...     alone = error.to_graph()
            >>> alone.ops, alone.variables[0].value
            ((<Op 'invert' invert on cpu, lane None>,), array(0))
        """
        if self._alone is None:
            raise GraphError(f"op {self.op_name!r} cannot be made a graph: its inputs were not kept")
        return self._alone()


class NotFiniteResultError(FloatingPointError):
    """A NaN or an infinity found in the results of an op; becomes a `NotFiniteError`."""

    def __init__(
        self, what: str, inputs: Mapping[str, HeldValues] | None = None, results: Sequence[HeldValues] = ()
    ) -> None:
        super().__init__(what)
        self.inputs = inputs or {}  # by the names of their blobs
        self.results = tuple(results)


class NotFiniteError(OpError, page="nan"):
    """An op made a NaN or an infinity where its inputs have none; see `Graph`, ``check_finite``.

    Attributes:
        inputs: Statistics of the inputs, by the names of their blobs.
        results: Statistics of the results.
    """

    def __init__(self, op: FailedCall, finding: NotFiniteResultError) -> None:
        lines = [f"\n    {name!r} held {each}" for name, each in finding.inputs.items()]
        lines += [f"\n    the result is {each}" for each in finding.results]
        super().__init__(op, f"failed with FloatingPointError: {finding}" + "".join(lines))
        self.inputs = dict(finding.inputs)
        self.results = finding.results


class OpTimeoutError(OpError, TimeoutError, page="stalls"):
    """One call of an op took longer than the op's timeout.

    An async function has been cancelled. A thread cannot be stopped: it goes on, and its result is dropped.
    """

    def __init__(self, op: Op, timeout_s: float) -> None:
        super().__init__(op, f"timed out after {timeout_s:g} s")
        self.timeout_s = timeout_s


class RunTimeoutError(ActorflowError, TimeoutError, page="stalls"):
    """A run took longer than its ``timeout``; the message lists the ops it waited for."""


class StallError(ActorflowError, RuntimeError, page="stalls"):
    """A run made no progress for longer than the graph's limit; the message lists the ops it waited for."""


class RunCancelledError(ActorflowError, RuntimeError):
    """`Graph.cancel` has ended a run; no CancelledError, as the task that awaited it was not cancelled.

    Attributes:
        frame: Number of the run's frame.
        updated: Names of the variables that the frame had updated before; the others have their old values.
    """

    def __init__(self, graph: str, frame: int, reason: str, updated: Sequence[str]) -> None:
        names = ", ".join(updated) or "none"
        super().__init__(f"frame {frame} of graph {graph!r} was cancelled {reason}; variables updated before: {names}")
        self.frame = frame
        self.updated = tuple(updated)


class QueueFullError(ActorflowError, RuntimeError, page="batching"):
    """A request was refused as too many rows wait for batched runs; a service answers it with status 503.

    Attributes:
        waiting_rows: Rows that wait.
        queue_rows: Number of rows that may wait.
    """

    def __init__(self, graph: str, rows: int, waiting_rows: int, queue_rows: int) -> None:
        super().__init__(
            f"batched runs of graph {graph!r} are too many: {waiting_rows} rows wait, {rows} more would be more than "
            f"queue_rows={queue_rows}"
        )
        self.waiting_rows = waiting_rows
        self.queue_rows = queue_rows


class BatcherClosedError(ActorflowError, RuntimeError, page="batching"):
    """A batcher takes no request any more, or was closed before the request's end; services answer with status 503."""


class SessionClosedError(BatcherClosedError, page="sessions"):
    """A session takes no step any more: it was closed, before the end of a step perhaps, or had none for too long."""


class SessionsFullError(ActorflowError, RuntimeError, page="sessions"):
    """A session found no slot in time as too many are open; a service answers it with status 503.

    Attributes:
        sessions: Sessions that are open, as many as may be.
        waiting: Sessions that wait for a slot.
    """

    def __init__(self, graph: str, sessions: int, waiting: int) -> None:
        super().__init__(
            f"sessions of graph {graph!r} are too many: {sessions} are open, as many as max_sessions={sessions}, and "
            f"{waiting} wait for a slot"
        )
        self.sessions = sessions
        self.waiting = waiting


class CacheFullError(ActorflowError, RuntimeError, page="sessions"):
    """A step of a session found too few free blocks of a cache in time; a service answers it with status 503.

    Attributes:
        needed: Blocks that it needs.
        free: Blocks that are free.
        blocks: Number of all blocks.
        waiting: Sessions that wait for blocks.
    """

    def __init__(self, graph: str, needed: int, free: int, blocks: int, waiting: int) -> None:
        super().__init__(
            f"a step of a session of graph {graph!r} needs {needed} more blocks of its cache, of {blocks} {free} are "
            f"free, and {waiting} sessions wait for some"
        )
        self.needed, self.free, self.blocks, self.waiting = needed, free, blocks, waiting


class TransportError(ActorflowError, RuntimeError, page="mpi"):
    """Messages between ranks do not come through, or cannot."""


class PeerLostError(TransportError):
    """Another rank has died, or does not answer.

    Attributes:
        rank: Number of that rank.
    """

    def __init__(self, rank: int, message: str | None = None) -> None:
        super().__init__(message or f"rank {rank} is lost: its process has died or cannot be reached")
        self.rank = rank


class PeerFailedError(TransportError):
    """A frame cannot end on this rank, since another rank has given it up or has left; the message says why.

    Attributes:
        rank: Number of that rank.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class DataError(ActorflowError, ValueError, page="data"):
    """A data file is missing or malformed; the message names the file and the form expected."""


class PipelineError(ActorflowError, ValueError, page="pipelines"):
    """A data pipeline, or a request to it, is wrong."""


class StageError(ActorflowError, RuntimeError, page="pipelines"):
    """A call of a stage of a data pipeline failed; the cause is chained.

    Attributes:
        stage: Name of the stage.
        number: Number of the item in the stage, from 0 in this iteration, in a source from 0 in this epoch; None if
            no item is to blame.
        item: Argument of the stage's function; None if it failed before there was an item, as sources do.
    """

    def __init__(self, stage: str, kind: str, site: object, number: int | None, item: Any, what: str) -> None:
        lines = [f"stage {stage!r} ({kind}) {what}"]
        if number is not None:
            lines.append(f"item {number}" if item is UNMADE else f"item {number}: {shown(item)}")
        super().__init__("\n  ".join([*lines, f"created at {site}"]))
        self.stage = stage
        self.number = number
        self.item = None if item is UNMADE else item

    @classmethod
    def of(cls, stage: str, kind: str, site: object, number: int | None, item: Any, cause: BaseException) -> StageError:
        """The error of a stage whose call raised ``cause``."""
        error = cls(stage, kind, site, number, item, f"failed with {type(cause).__name__}: {text_of(cause)}")
        error.__cause__ = cause
        return error


class StageTimeoutError(StageError, TimeoutError):
    """One call of a stage took longer than the stage's timeout.

    An async function has been cancelled. A thread or another process goes on, and its result is dropped.
    """

    def __init__(self, stage: str, kind: str, site: object, number: int, item: Any, timeout_s: float) -> None:
        super().__init__(stage, kind, site, number, item, f"timed out after {timeout_s:g} s")
        self.timeout_s = timeout_s


class CheckpointError(ActorflowError, RuntimeError, page="training"):
    """A checkpoint is damaged, does not fit the graph, or cannot be written; the message names the file and why."""


class MissingExtraError(ActorflowError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency; raises MissingExtraError naming its user and the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        why = "" if error.name == package else f": {text_of(error)}"  # it is there, but something that it needs is not
        raise MissingExtraError(
            f"{purpose} needs {package!r}: pip install 'actorflow[{extra}]'{why}", name=module
        ) from error


# -- arguments ---------------------------------------------------------------------------------------------------------
#
# One function per kind. A public call has all its arguments checked before it takes or changes anything, and goes on
# with the plain numbers that it gets back: those of foreign types may raise whenever they are compared. ``name`` is the
# argument's, and ``error`` is made of the message if it is out of range; a value of another type is a TypeError.


def whole(
    name: str,
    value: object,
    least: int | None = None,
    most: int | None = None,
    *,
    error: Callable[[str], Exception] = GraphError,
) -> int:
    """A whole number that a caller has given: an int, one of NumPy, or another type with ``__index__``; no bool."""
    try:
        number = int(operator.index(value))  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  whatever an object's own method raises
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {shown(value)}")
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise error(f"{name} must be {bounds}, got {shown(number)}")
    return number


def real(
    name: str,
    value: object,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float | None = None,
    below: float | None = None,
    finite: bool = True,
    kind: str = "a number",
    error: Callable[[str], Exception] = GraphError,
) -> float:
    """A real number that a caller has given: an int, a float, one of NumPy, a fraction; no bool, no text, no NaN."""
    try:
        number = None if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except Exception:  # noqa: BLE001  whatever an object's own method raises, and ints beyond all floats
        number = None
    if number is None:
        raise TypeError(f"{name} must be {kind}, got {shown(value)}")
    is_above = number >= least if above is None else number > above
    is_below = number <= most if below is None else number < below
    if math.isnan(number):
        raise error(f"{name} must be {kind}, got nan")
    if finite and math.isinf(number):
        raise error(f"{name} must be finite, got {shown(value)}")
    if not (is_above and is_below):
        raise error(f"{name} must {_bounds(least, most, above, below)}, got {shown(value)}")
    return number


def _bounds(least: float, most: float, above: float | None, below: float | None) -> str:
    if below is None and most == math.inf:
        if not (least if above is None else above):
            return "not be negative" if above is None else "be positive"
        return f"be at least {least:g}" if above is None else f"be more than {above:g}"
    if above is None and below is None:
        return f"be from {least:g} to {most:g}"
    low = f"at least {least:g}" if above is None else f"more than {above:g}"
    return f"be {low} and {f'at most {most:g}' if below is None else f'less than {below:g}'}"


def seconds(
    name: str,
    value: object,
    *,
    positive: bool = False,
    finite: bool = True,
    error: Callable[[str], Exception] = GraphError,
) -> float:
    """A time in seconds that a caller has given, see `real`; it is not negative."""
    above = 0.0 if positive else None
    return real(name, value, 0.0, above=above, finite=finite, kind="a time in seconds", error=error)


def time_limit(name: str, value: object, *, positive: bool = False) -> float | None:
    """A limit of time in seconds that a caller has given; None for none, and for one that no program comes to."""
    if value is None:
        return None
    if (type(value) is float or type(value) is int) and 0 < value < _FOREVER_S:  # as requests have them
        return value
    limit_s = seconds(name, value, positive=positive, finite=False)
    return None if limit_s > _FOREVER_S else limit_s


def flag(name: str, value: object) -> bool:
    """A truth that a caller has given: True or False, or one of these of NumPy."""
    if isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's, which is not imported here
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {shown(value)}")


def mapping(name: str, value: object) -> None:
    """Check that a caller has given a mapping; raises TypeError if it is none."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, got {shown(value)}")


def text(name: str, value: object, *, error: Callable[[str], Exception] = TypeError) -> str:
    """A text that a caller has given."""
    if not isinstance(value, str):
        raise error(f"{name} must be a text, got {shown(value)}")
    return value
