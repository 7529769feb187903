"""Processes that call one function, for work that holds the GIL.

The loop itself sends and receives, through a socket for each process: there is no thread in between that would compete
for the GIL with the application. A process has the function from its start; a message then holds items alone.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import multiprocessing
import pickle
import socket
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

import numpy as np

from actorflow.errors import PipelineError, shown, text_of
from actorflow.pipeline.processes.remote import Answer, Message, Task, open_message, pack, reading, scattered, serve
from actorflow.threads import forget_in_child

_PIECES = 256  # how many pieces of memory one call of the system may send
#: Bytes that may be under way each way, as far as the system allows, so that neither side often waits for the other.
_ROOM = 1 << 22


class TooLateError(TimeoutError):
    """A call has taken too long, and its process was killed."""


class Request:
    """Items that a process has got, or will get."""

    def __init__(self, items: list[Any], timeout_s: float | None, done: Callable[[Answer], None]) -> None:
        self.parts = pack(items)  # the message
        self.timeout_s = timeout_s
        self.done: Callable[[Answer], None] | None = done  # called on the loop; None when nobody waits any more

    @property
    def is_wanted(self) -> bool:
        return self.done is not None


class WorkerProcess:
    """A process that calls one function, and its work.

    It is forked from a clean server process where the system has that, else spawned: never from this process, whose
    threads may hold locks.

    Args:
        function: The message with the function.
        lost: Called with the worker and an error when a request takes too long or an answer cannot be read, and with
            None when the process has ended by itself.
    """

    def __init__(self, function: list[memoryview], lost: Callable[[WorkerProcess, BaseException | None], None]) -> None:
        self.requests: deque[Request] = deque()  # requests without an answer, the running one first
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
        self.is_ready = False  # whether it has the function
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._begin_message()

    @property
    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, whose end of the socket is closed; waits for its end."""
        self._process.kill()  # nothing if it has ended, as it nearly always has
        self._process.join()
        code: int | None = self._process.exitcode
        return code

    def give(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        """Send a request's items. Only on the loop."""
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
        """Have the loop watch no more; answers that come meanwhile wait."""
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
        """Leave the process, and the loop that watches its socket, to the parent, in the child of a fork."""
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

    def _begin_message(self) -> None:
        self._steps: Generator[memoryview, None, Message] = reading()
        self._memory = next(self._steps)

    def _read(self) -> None:
        try:
            if self._read_all():
                return
            error = None
        except BaseException as failure:  # noqa: BLE001  waiting calls would never be told
            error = failure
        self._lost(self, error)
        del error  # whose traceback refers to this call

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
        except BaseException as error:  # noqa: BLE001  a result that cannot be made here; raised where it is waited for
            answer = Answer(0, [], {}, error)
        self._stop_time()
        if not self.is_ready:
            self.is_ready = True
            self._begin_time()
            return
        request = self.requests.popleft()
        self._begin_time()
        if request.done is not None:
            request.done(answer)

    def _begin_time(self) -> None:
        if self.is_ready and self.requests and self._loop is not None:
            timeout_s = self.requests[0].timeout_s
            if timeout_s is not None and self.requests[0].is_wanted:
                self._timer = self._loop.call_later(timeout_s, self._lost, self, TooLateError())

    def _stop_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _started(far: socket.socket) -> Any:
    """A process that serves at the other end of a socket; raises OSError if the system has none to give."""
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


class ProcessPool:
    """Processes for one stage, started as calls need them and kept from run to run.

    Args:
        seed: Seeds of the pipeline. The global generators of Python and NumPy in each process follow from them, and
            from how many processes were started before it.
    """

    def __init__(self, fn: Callable[[Any], Any], count: int, seed: Sequence[int]) -> None:
        self._fn = fn  # the function, which pickle can find or hold
        self._count = count  # how many, at most
        self._seeds = np.random.SeedSequence(seed)
        self._workers: list[WorkerProcess] = []
        self._ended: list[WorkerProcess] = []  # those that were killed, and are to be waited for
        self._loop: asyncio.AbstractEventLoop | None = None
        forget_in_child(self)

    def forget_parent(self) -> None:
        """This is the child of a fork: the processes are its parent's, which must not notice."""
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.forget_parent()
        self._workers, self._ended, self._loop = [], [], None

    def submit(
        self,
        items: list[Any],
        timeout_s: float | None,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[Answer], None],
    ) -> Request:
        """Call for some items, in the process that has the least to do; raises the errors of pickle. Only on the loop.

        If they take longer than ``timeout_s``, the process is killed, and the error is a `TooLateError`.
        """
        request = Request(items, timeout_s, done)
        self._loop = loop
        for worker in self._workers:
            if worker.requests:
                worker.watch(loop)
        self._assign(request)
        return request

    def forget(self, requests: Iterable[Request]) -> None:
        """Drop the results of requests: calls that run go on."""
        for request in requests:
            request.done = None
        if not any(request.is_wanted for worker in self._workers for request in worker.requests):
            for worker in self._workers:
                worker.leave()

    def close(self) -> None:
        """Block until the processes have ended, after the calls that run. Idempotent."""
        atexit.unregister(self.close)
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
        ended, self._ended = [*self._ended, *workers], []
        for worker in ended:
            worker.join()

    def _assign(self, request: Request) -> None:
        assert self._loop is not None
        workers = self._workers
        worker = min(workers, key=lambda one: len(one.requests), default=None)
        if worker is not None and not worker.requests and not worker.is_alive:
            self._lost(worker, None)
            worker = None
        if worker is None or (worker.requests and len(workers) < self._count):
            (seed,) = self._seeds.spawn(1)[0].generate_state(1).tolist()
            worker = WorkerProcess(pack(Task(self._fn, seed)), self._lost)
            workers.append(worker)
            # Before the end of the program multiprocessing waits for processes that it has started.
            atexit.unregister(self.close)
            atexit.register(self.close)
        worker.give(request, self._loop)

    def _lost(self, worker: WorkerProcess, error: BaseException | None) -> None:
        """A process has ended, or must end, as where its call takes too long: others do the work it has not begun."""
        requests = list(worker.requests)
        try:
            self._workers.remove(worker)
            self._ended.append(worker)
            if error is not None:
                worker.kill()
            else:
                worker.close()
                code = worker.exit_code
                when, advice = "in the middle of a call", ""
                if not worker.is_ready:
                    when = "before its first call"
                    advice = ": a program that starts processes needs `if __name__ == '__main__':` around what it runs"
                error = BrokenProcessPool(f"the process ended {when}, with exit code {code}{advice}")
        except BaseException as failure:  # noqa: BLE001  waiting calls would never be told
            error = failure
        wanted = [request for request in requests if request.is_wanted]
        running = requests[0] if requests else None
        for request in wanted:
            if request is not running:
                self._assign_again(request)
        if running is not None and running.done is not None:
            running.done(Answer(0, [], {}, error))

    def _assign_again(self, request: Request) -> None:
        try:
            self._assign(request)
        except BaseException as error:  # noqa: BLE001  for instance no process can be started
            if request.done is not None:
                request.done(Answer(0, [], {}, error))


def check_picklable(fn: Callable[..., Any]) -> None:
    """Check that a function can be sent to another process; raises PipelineError if it cannot."""
    try:
        parts = pickle.dumps(fn)
        if not hasattr(sys.modules["__main__"], "__file__"):
            _Opening(io.BytesIO(parts)).load()
    except PipelineError:
        raise
    except Exception as error:  # pickle raises whatever an object's own methods raise
        raise PipelineError(
            f"executor='process' needs a function that pickle can send, at the top level of a module; "
            f"{shown(fn)}: {text_of(error)}"
        ) from error


class _Opening(pickle.Unpickler):
    """Opens a pickle as another process would in which there is no program that could be imported."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            raise PipelineError(
                f"executor='process' needs functions and classes that another process can import, but {name!r} was "
                "made by `python -c`, at a prompt or in a notebook: put it into a file, and import it from there"
            )
        return super().find_class(module, name)
