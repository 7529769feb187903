"""Every error that actorflow raises on purpose.

::

    ActorflowError
    ├── GraphError (ValueError)              the graph, or what is asked of it, is wrong
    │   ├── CycleError                       .cycle
    │   ├── ShapeError
    │   ├── DTypeError
    │   ├── PlaceError
    │   └── FeedError
    ├── KernelNotFoundError (LookupError)    lists what is registered
    ├── DeviceError (RuntimeError)
    │   ├── DeviceUnavailableError
    │   ├── OutOfMemoryError (MemoryError)   a plan can never fit its budget; shows what takes how much
    │   └── RaceError                        work on a simulated device is not ordered; names both ops
    ├── OpError (RuntimeError)               .op, .updated, .replay(), .__cause__: an operation failed while running
    │   └── OpTimeoutError (TimeoutError)    one call took longer than its op's timeout
    ├── RunTimeoutError (TimeoutError)       a run took longer than its timeout; lists what it waited for
    ├── StallError (RuntimeError)            a run made no progress; lists what it waited for
    ├── DataError (ValueError)               a data file is missing or malformed
    ├── CheckpointError (RuntimeError)       a checkpoint is damaged, does not fit the graph, or cannot be written
    └── MissingExtraError (ImportError)      an optional dependency is not installed
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorflow.node import Op

__all__ = [
    "ActorflowError",
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
    "OpError",
    "OpTimeoutError",
    "OutOfMemoryError",
    "PlaceError",
    "RaceError",
    "RunTimeoutError",
    "ShapeError",
    "StallError",
    "require",
]


#: Names at each end of a long cycle that the message shows.
_SHOWN = 10


class ActorflowError(Exception):
    """Base of every error of actorflow."""


class GraphError(ActorflowError, ValueError):
    """The graph, or what is asked of it, is wrong; raised before anything runs."""


class CycleError(GraphError):
    """Operations wait for each other.

    Attributes:
        cycle: Names of the nodes on the cycle, in the direction of the data, the first repeated at the end.
    """

    def __init__(self, cycle: Sequence[str]) -> None:
        shown = list(cycle)
        if len(shown) > 2 * _SHOWN:
            shown[_SHOWN:-_SHOWN] = [f"... {len(shown) - 2 * _SHOWN} more ..."]
        super().__init__("the graph has a cycle: " + " -> ".join(shown))
        self.cycle = tuple(cycle)


class ShapeError(GraphError):
    """Shapes do not fit."""


class DTypeError(GraphError):
    """Dtypes do not fit."""


class PlaceError(GraphError):
    """Places do not fit, or a text is no place."""


class FeedError(GraphError):
    """A feed is missing, unknown or not allowed."""


class KernelNotFoundError(ActorflowError, LookupError):
    """No kernel is registered for what the plan needs."""


class DeviceError(ActorflowError, RuntimeError):
    """A device failed.

    Attributes:
        work: Name of the op whose work failed, where several were launched as one and the device knows; else None.
    """

    work: str | None = None


class DeviceUnavailableError(DeviceError):
    """A place names a device that this process does not have."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A plan can never fit the memory budget; the message shows what takes how much."""


class RaceError(DeviceError):
    """Two pieces of work on a simulated device use one memory, and nothing orders them; the message names both."""


class OpError(ActorflowError, RuntimeError):
    """An operation failed while it ran; the cause is chained.

    Attributes:
        op: The failed node.
        updated: Names of the variables that the frame had updated before; the others have their old values.
    """

    def __init__(self, op: Op, what: str) -> None:
        inputs = ", ".join(f"{blob.name} {blob.spec} on {blob.place}" for blob in op.inputs) or "none"
        super().__init__(f"op {op.name!r} ({op.operation}) {what}\n  inputs: {inputs}\n  created at {op.site}")
        self.op = op
        self.updated: tuple[str, ...] = ()
        self._replay: Callable[[], Any] | None = None

    @classmethod
    def of(cls, op: Op, cause: BaseException, replay: Callable[[], Any] | None = None) -> OpError:
        """The error of an op whose call raised ``cause``."""
        if isinstance(cause, OpTimeoutError):
            return cause
        error = cls(op, f"failed with {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        error._replay = replay
        return error

    def replay(self) -> Any:
        """Run the failed call again, alone, on the arrays that it had: in a debugger, say.

        Returns:
            What the function or kernel returns; a coroutine for an async function.
        Raises:
            What it raises.
            GraphError: if the inputs are not there any more (a timeout, say, is no failed call).
        """
        if self._replay is None:
            raise GraphError(f"op {self.op.name!r} cannot be replayed: its inputs were not kept")
        return self._replay()


class OpTimeoutError(OpError, TimeoutError):
    """One call of an op took longer than the op's timeout.

    An async function has been cancelled. A thread cannot be stopped: it goes on, and what it computes is dropped.
    """

    def __init__(self, op: Op, timeout_s: float) -> None:
        super().__init__(op, f"timed out after {timeout_s:g} s")
        self.timeout_s = timeout_s


class RunTimeoutError(ActorflowError, TimeoutError):
    """A run took longer than its ``timeout``; the message lists what it waited for."""


class StallError(ActorflowError, RuntimeError):
    """A run made no progress for longer than the graph's limit; the message lists what it waited for."""


class DataError(ActorflowError, ValueError):
    """A data file is missing or malformed; the message names the file and what was expected."""


class CheckpointError(ActorflowError, RuntimeError):
    """A checkpoint is damaged, does not fit the graph, or cannot be written; the message names the file and why."""


class MissingExtraError(ActorflowError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency.

    Raises:
        MissingExtraError: if it is not installed; the message says what needs it and how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs {module.partition('.')[0]!r}: pip install 'actorflow[{extra}]'", name=module
        ) from error
