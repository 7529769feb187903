"""Timeouts and retries of single ops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from actorflow.actors.dispatcher import ENDS_PROGRAM
from actorflow.errors import OpTimeoutError
from actorflow.graph.options import Attempts
from actorflow.loop import end

if TYPE_CHECKING:
    from actorflow.actors.frame import Frame
    from actorflow.actors.op import OpActor
    from actorflow.devices.base import Fence

#: The policy of an op that is tried once, in its own time.
ONCE = Attempts(None, 0, 0.0)


class OpAttempts:
    """Watches the calls of one op. Such an op announces its outputs only when they are there."""

    __slots__ = ("_actor", "_expired", "_failures", "_timers", "policy")

    def __init__(self, actor: OpActor, policy: Attempts) -> None:
        self._actor = actor
        self.policy = policy
        self._failures: dict[Frame, int] = {}
        self._timers: dict[Frame, asyncio.TimerHandle] = {}
        self._expired: set[Frame] = set()

    def begin(self, frame: Frame, running: Fence | asyncio.Task[object]) -> None:
        """A call has been submitted or started."""
        if self.policy.timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[frame] = loop.call_later(self.policy.timeout_s, frame.guarded, self._expire, frame, running)

    def end(self, frame: Frame, error: BaseException | None) -> BaseException | None:
        """A call has ended. Returns its error: `OpTimeoutError` if it took too long, unless that ends the program."""
        timer = self._timers.pop(frame, None)
        if timer is not None:
            timer.cancel()
        if frame in self._expired:
            self._expired.discard(frame)
            # An async function may have ended well in spite of it all; a thread was given up.
            is_given_up = error is not None or not isinstance(frame.outstanding[self._actor], asyncio.Task)
            if is_given_up and not isinstance(error, ENDS_PROGRAM):
                error = self._timeout_error()
        if frame.halted or error is None:
            self._failures.pop(frame, None)  # it will not be tried again
        return error

    def retry(self, frame: Frame, error: BaseException) -> bool:
        """Return whether a failed call will be tried again; the wait before it doubles with each failure.

        A call that raised an error that ends programs is not repeated: the error leaves the loop.
        """
        failures = self._failures.pop(frame, 0)
        if failures >= self.policy.retries or frame.halted or isinstance(error, ENDS_PROGRAM):
            return False
        self._failures[frame] = failures + 1
        loop = asyncio.get_running_loop()
        if not frame.resting:
            frame.resting = {}
        frame.resting[self._actor] = loop.call_later(self.policy.wait_s(failures), frame.guarded, self._again, frame)
        return True

    def give_up(self, frame: Frame) -> None:
        """Forget a call that waited to be tried again: its frame has stopped."""
        del self._failures[frame]
        self._actor.leave()

    def _again(self, frame: Frame) -> None:
        del frame.resting[self._actor]
        if not frame.halted:
            self._actor.begin(frame)
            return
        self.give_up(frame)

    def _expire(self, frame: Frame, running: Fence | asyncio.Task[object]) -> None:
        del self._timers[frame]
        if isinstance(running, asyncio.Task):
            self._expired.add(frame)
            end(running)
        elif not running.done:
            self._expired.add(frame)
            if frame.failures is None:
                frame.stop_with(self._timeout_error(), at_once=True)

    def _timeout_error(self) -> OpTimeoutError:
        assert self.policy.timeout_s is not None
        return OpTimeoutError(self._actor.node, self.policy.timeout_s)
