"""Processes that call one function, for work that holds the GIL.

The loop itself sends and receives, through a socket for each process: there is no thread in between that would compete
for the GIL with the application. A process has the function from its start; a message then holds items alone.
"""

from __future__ import annotations

import asyncio
import atexit
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from actorflow.errors import PipelineError, shown, text_of
from actorflow.pipeline.processes.messages import pack
from actorflow.pipeline.processes.process import Request, WorkerProcess
from actorflow.pipeline.processes.remote import Answer
from actorflow.threads import forget_in_child


class ProcessPool:
    """Processes for one stage, started as calls need them and kept from run to run.

    Args:
        fn: The function, which pickle can find or hold.
        count: How many, at most.
    """

    def __init__(self, fn: Callable[[Any], Any], count: int) -> None:
        self._fn = fn
        self._count = count
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
        """Call for some items, in the process that has the least to do. Only on the loop.

        Args:
            items: They are sent together.
            timeout_s: The process is killed if they take longer; the error is a `TooLateError` then.
            loop: Where ``done`` is called with what became of them.
        Raises:
            Exception: whatever pickle raises if the items cannot be sent.
        """
        request = Request(items, timeout_s, done)
        self._loop = loop
        for worker in self._workers:
            if worker.requests:
                worker.watch(loop)
        self._assign(request)
        return request

    def forget(self, requests: Iterable[Request]) -> None:
        """Nobody waits for these any more: calls that run go on, and what they give is dropped."""
        for request in requests:
            request.is_wanted = False
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
            worker = WorkerProcess(pack(self._fn), self._lost)
            workers.append(worker)
            # Before the end of the program multiprocessing waits for processes that it has started.
            atexit.unregister(self.close)
            atexit.register(self.close)
        worker.give(request, self._loop)

    def _lost(self, worker: WorkerProcess, error: BaseException | None) -> None:
        """A process has ended, or is to be since its call takes too long, say: others do what it has not begun."""
        requests = list(worker.requests)
        try:
            self._workers.remove(worker)
            self._ended.append(worker)
            if error is not None:
                worker.kill()
            else:
                worker.close()
                code = worker.exit_code
                error = BrokenProcessPool(f"the process ended in the middle of a call, with exit code {code}")
        except BaseException as failure:  # noqa: BLE001  whoever waits would never be told
            error = failure
        wanted = [request for request in requests if request.is_wanted]
        running = requests[0] if requests else None
        for request in wanted:
            if request is not running:
                self._assign_again(request)
        if running is not None and running.is_wanted:
            running.done(Answer(0, [], {}, error))

    def _assign_again(self, request: Request) -> None:
        try:
            self._assign(request)
        except BaseException as error:  # noqa: BLE001  no process can be started, say
            request.done(Answer(0, [], {}, error))


def check_picklable(fn: Callable[..., Any]) -> None:
    """Check that a function can be sent to another process.

    Raises:
        PipelineError: if it cannot.
    """
    try:
        pickle.dumps(fn)
    except Exception as error:  # pickle raises whatever an object's own methods raise
        raise PipelineError(
            f"executor='process' needs a function that pickle can send, at the top level of a module; "
            f"{shown(fn)}: {text_of(error)}"
        ) from error
