"""The near end of a process that calls a function: a socket, which the loop watches while an answer is awaited."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from actorflow.pipeline.processes.messages import Message, open_message, pack, reading, scattered
from actorflow.pipeline.processes.remote import Answer, serve

#: How many pieces of memory one call of the system may send.
_PIECES = 256
#: Bytes that may be under way each way, as far as the system allows, so that neither side often waits for the other.
_ROOM = 1 << 22


class TooLateError(TimeoutError):
    """A call has taken too long, and its process was killed."""


class Request:
    """Items that a process has got, or will get.

    Attributes:
        parts: The message with the items.
        done: Called on the loop with what became of them.
        timeout_s: How long the call may take.
        worker: Who has it.
        is_wanted: Whether anybody waits for it.
    """

    __slots__ = ("done", "is_wanted", "parts", "timeout_s", "worker")

    def __init__(self, items: list[Any], timeout_s: float | None, done: Callable[[Answer], None]) -> None:
        self.parts = pack(items)
        self.timeout_s = timeout_s
        self.done = done
        self.worker: WorkerProcess | None = None
        self.is_wanted = True


class WorkerProcess:
    """A process that calls one function, and what it has to do.

    It is forked from a clean server process where the system has that, else spawned: never from this process, whose
    threads may hold locks.

    Args:
        function: The message with the function.
        lost: Called with the worker and an error when a request takes too long or an answer cannot be read, and with
            None when the process has ended by itself.

    Attributes:
        requests: Requests without an answer, the running one first.
    """

    def __init__(self, function: list[memoryview], lost: Callable[[WorkerProcess, BaseException | None], None]) -> None:
        self.requests: deque[Request] = deque()
        self._lost = lost
        self._link, far = socket.socketpair()
        self._link.setblocking(False)
        with far:
            try:
                for end in (self._link, far):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
                self._process = _started(far)
            except BaseException:  # the system has no process to give
                self._link.close()
                raise
        self._unsent: deque[memoryview] = deque(function)
        self._is_ready = False  # it has the function
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._begin_message()

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return bool(self._process.is_alive())

    @property
    def exit_code(self) -> int | None:
        """What the process, whose end of the socket is closed, ends with; waits for that."""
        self._process.kill()  # nothing if it has ended, as it nearly always has
        self._process.join()
        code: int | None = self._process.exitcode
        return code

    def give(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        """Send a request's items. Only on the loop."""
        request.worker = self
        self.requests.append(request)
        self._unsent.extend(request.parts)
        self.watch(loop)
        self._write()
        if len(self.requests) == 1:
            self._begin_time()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop tell when an answer comes, or there is room to send."""
        if self._loop is not loop:
            self.leave()
            self._loop = loop
            loop.add_reader(self._link.fileno(), self._read)
            if self._is_writing:
                loop.add_writer(self._link.fileno(), self._write)

    def leave(self) -> None:
        """The loop shall look no more; what comes until it does again waits."""
        loop, self._loop = self._loop, None
        self._stop_time()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._link.fileno())
            if self._is_writing:
                loop.remove_writer(self._link.fileno())

    def close(self) -> None:
        """The process ends after the call that runs. Idempotent."""
        self.leave()
        if self._link.fileno() >= 0:
            with suppress(OSError):  # the other end may be gone
                self._link.shutdown(socket.SHUT_RDWR)
            self._link.close()

    def forget_parent(self) -> None:
        """This is the child of a fork: leave the process, and the loop that watches its socket, to the parent."""
        self._loop = None
        self._link.close()

    def kill(self) -> None:
        """End the process at once."""
        self.close()
        self._process.kill()

    def join(self) -> None:
        """Wait until the process has ended, and forget it."""
        self._process.join()
        self._process.close()

    # -- what is sent -------------------------------------------------------------------------------------------

    def _write(self) -> None:
        unsent, link = self._unsent, self._link
        try:
            while unsent:
                count = link.sendmsg([unsent[i] for i in range(min(len(unsent), _PIECES))])
                while unsent and count >= unsent[0].nbytes:
                    count -= unsent.popleft().nbytes
                if count:
                    unsent[0] = unsent[0][count:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            unsent.clear()  # the other end is gone: reading tells
        assert self._loop is not None
        if bool(unsent) is not self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(link.fileno(), self._write)
            else:
                self._loop.remove_writer(link.fileno())

    # -- what comes ---------------------------------------------------------------------------------------------

    def _begin_message(self) -> None:
        self._steps: Generator[memoryview, None, Message] = reading()
        self._memory = next(self._steps)

    def _read(self) -> None:
        try:
            if self._read_all():
                return
            error = None
        except BaseException as failure:  # noqa: BLE001  whoever waits would never be told
            error = failure
        self._lost(self, error)

    def _read_all(self) -> bool:
        """Take all that has come; whether the process is still there.

        All of it: where its end comes together with an answer, uvloop says so once only.
        """
        while self._loop is not None:  # an answer may have it look no more
            try:
                count = self._link.recv_into(self._memory)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not count:
                return False
            self._memory = self._memory[count:]
            try:
                if not self._memory:
                    self._memory = next(self._steps)
            except StopIteration as end:
                self._begin_message()
                self._answered(end.value)
        return True

    def _answered(self, message: Message) -> None:
        try:
            answer: Answer = open_message(message)
            answer = answer._replace(results=scattered(answer.results))
        except BaseException as error:  # noqa: BLE001  a result that cannot be made here; whoever waits gets it
            answer = Answer(0, [], {}, error)
        self._stop_time()
        if not self._is_ready:
            self._is_ready = True
            self._begin_time()
            return
        request = self.requests.popleft()
        self._begin_time()
        if request.is_wanted:
            request.done(answer)

    # -- time ---------------------------------------------------------------------------------------------------

    def _begin_time(self) -> None:
        """A call begins, as far as it is known here."""
        if self._is_ready and self.requests and self._loop is not None:
            timeout_s = self.requests[0].timeout_s
            if timeout_s is not None and self.requests[0].is_wanted:
                self._timer = self._loop.call_later(timeout_s, self._lost, self, TooLateError())

    def _stop_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _started(far: socket.socket) -> Any:
    """A process that serves at the other end of a socket.

    Raises:
        OSError: if the system has none to give.
    """
    methods = multiprocessing.get_all_start_methods()
    for method in ("forkserver", "spawn") if "forkserver" in methods else ("spawn",):
        context: Any = multiprocessing.get_context(method)
        process = context.Process(target=serve, args=(far,), name="actorflow-worker")
        try:
            process.start()
        except ChildProcessError:  # the server process is the parent's, from which this one was forked
            continue
        return process
    raise ChildProcessError("no process can be started from this one")
