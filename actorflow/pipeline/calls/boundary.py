"""The boundary between the stages and their user's code.

That code may raise anything wherever it is called: an Exception, a `StopIteration` that would end a stream, a
`CancelledError` or `GeneratorExit` that is not the task's own, a `KeyboardInterrupt`. So it is caught where it is
called, as BaseException, and becomes the stage's `StageError`. KeyboardInterrupt and SystemExit leave the loop besides,
as they do where a task raises them.

What else goes wrong in a stage, in code of this package, ends the run as well (`guarded`, `StageActor.fire`):
otherwise it would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from actorflow.actors.dispatcher import leave_loop
from actorflow.errors import UNMADE, StageError

if TYPE_CHECKING:
    from actorflow.graph.nodes import Site
    from actorflow.pipeline.stages.actor import StageActor

_Actor = TypeVar("_Actor", bound="StageActor")
_Arguments = ParamSpec("_Arguments")


class Named(Protocol):
    """A stage as errors name it."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def site(self) -> Site: ...


def stage_error(stage: Named, error: BaseException, number: int | None = None, item: Any = UNMADE) -> StageError:
    """The error of a stage for what has been raised in it."""
    return StageError.of(stage.name, stage.kind, stage.site, number, item, error)


def caught(stage: Named, error: BaseException, number: int | None = None, item: Any = UNMADE) -> StageError:
    """The stage's error for an exception of the user's code; one that ends programs leaves the loop.

    Args:
        stage: The stage that called the code.
        error: The exception.
        number: Number of the item that the code was called for.
        item: The item, if it is there.
    """
    leave_loop(error)
    return stage_error(stage, error, number, item)


def ends_task(error: BaseException, task: asyncio.Task[Any]) -> bool:
    """Return whether an error in a task means the task itself, rather than a call that it awaits.

    It does if the task has been cancelled, or its coroutine is being closed: then the task does not run.
    """
    if isinstance(error, asyncio.CancelledError):
        return task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        try:
            return asyncio.current_task() is not task
        except RuntimeError:  # no loop runs
            return True
    return False


def guarded(
    method: Callable[Concatenate[_Actor, _Arguments], None],
) -> Callable[Concatenate[_Actor, _Arguments], None]:
    """A method that is not called by `StageActor.step`, but by the loop, or for a thread or process.

    What goes wrong in it ends the run.
    """

    @wraps(method)
    def call(actor: _Actor, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        try:
            method(actor, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001  see above
            actor.crash(error)

    return call
