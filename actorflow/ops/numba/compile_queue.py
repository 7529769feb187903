"""Where routines are made: looked up on disk, or compiled by another process, on a thread that lives meanwhile.

numba is never imported here: its import takes half a second and each routine some tenths, in Python, which would keep
the application from its own work whatever thread they ran on.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from actorflow.errors import DeviceError
from actorflow.ops.numba import cache, machine
from actorflow.ops.numba.compiler import receive, send
from actorflow.threads import forget_in_child, held_at_fork, start_thread

if TYPE_CHECKING:
    from actorflow.ops.numba.routine import Routine

_logger = logging.getLogger(__name__)

#: The other process and the thread end when nothing was asked for so long.
LINGER_S = 2.0

_WINDOWS_FLAGS = 0
if sys.platform == "win32":
    _WINDOWS_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW


class Compiler:
    """A process that compiles; see `actorflow.ops.numba.compiler`. It ends when its input does."""

    def __init__(self) -> None:
        # A program's settings of numba must not change what routines compute, nor those of Python what is imported.
        own = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        program = str(Path(__file__).with_name("compiler.py"))
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # no lock of a stream that a fork could find held
            env={**own, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is the application's
            creationflags=_WINDOWS_FLAGS,
        )

    def compile(self, routine: Routine) -> bytes:
        """Machine code, as `machine.load` takes it.

        Raises:
            DeviceError: if there is none, or the process has ended.
        """
        request: dict[str, object] = {"source": routine.source, "name": routine.name}
        if routine.is_python:
            request |= {"arguments": routine.arguments, "address": machine.address_index()}
        to, back = cast("tuple[IO[bytes], IO[bytes]]", (self._process.stdin, self._process.stdout))
        try:
            send(to, json.dumps(request).encode())  # type: ignore[arg-type]
            answer = receive(back)  # type: ignore[arg-type]
        except OSError as error:
            raise DeviceError(f"the compiler's process has ended: {error}") from error
        if not answer:
            raise DeviceError("the compiler's process has ended")
        if answer[0]:
            raise DeviceError(answer[1:].decode())
        return answer[1:]

    def close(self) -> None:
        """Have it end, and wait for that."""
        self._close_pipes()
        self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def forget(self) -> None:
        """In the child of a fork: it is the parent's."""
        self._process.returncode = 0
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                cast("IO[bytes]", pipe).close()


class CompileQueue:
    """The routines that were asked for, and the thread that makes them."""

    def __init__(self) -> None:
        self._changed = held_at_fork(threading.Condition())
        self._pending: dict[Routine, None] = {}
        self._compilers: list[Compiler] = []
        self._leaving = False
        self._begin()
        forget_in_child(self)
        atexit.register(self._leave)

    def _leave(self) -> None:
        """The program ends: nobody waits for what is being compiled."""
        self._leaving = True
        for compiler in [*self._compilers]:
            compiler.kill()

    def _begin(self) -> None:
        self._queue: deque[Routine] = deque()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def forget_parent(self) -> None:
        """In the child of a fork: what is being made is the parent's, and asked for again here."""
        for routine in self._pending:
            routine.asked = False
        self._pending.clear()
        for compiler in self._compilers:
            compiler.forget()
        self._compilers.clear()
        self._begin()

    def ask(self, routine: Routine) -> None:
        """Have a routine made. From the thread of an event loop this only takes note of it; else what is on disk is
        there when this returns.
        """
        with self._changed:
            if routine.asked:
                return
            routine.asked = True
            self._pending[routine] = None
        try:
            if not _on_loop() and self._load(routine):
                self._end(routine)
                return
            with self._changed:
                self._queue.append(routine)
                self._changed.notify_all()
                if self._thread is None:
                    self._thread = start_thread(self._work, "actorflow-compiler")
        except Exception as error:  # noqa: BLE001  no thread to be had, or whatever llvmlite raises: NumPy computes
            with self._changed, suppress(ValueError):
                self._queue.remove(routine)
            self._end(routine, error)

    def wait(self, routines: Sequence[Routine] = ()) -> None:
        """Wait until these routines, or all that are being made now, are made.

        Raises:
            DeviceError: if one of them fails, or has failed.
        """
        with self._changed:
            for routine in routines:
                if routine in self._queue:  # somebody waits for it, and for nothing else
                    self._queue.remove(routine)
                    self._queue.appendleft(routine)
            wanted = dict.fromkeys(routines or self._pending)
            self._changed.wait_for(lambda: wanted.keys().isdisjoint(self._pending))
        for routine in wanted:
            if routine.error is not None:
                raise routine.error

    def settled(self, timeout_s: float) -> bool:
        """Wait until all that was asked for is made, or has failed; returns whether it is by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def _work(self) -> None:
        while (routine := self._next()) is not None:
            try:
                self._make(routine)
            except Exception as error:  # noqa: BLE001  whatever went wrong: NumPy computes
                self._end(routine, error)
            else:
                self._end(routine)
            del routine

    def _next(self) -> Routine | None:
        """The next routine to make, or None: then this thread ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue, LINGER_S if self._compilers else 0.0)
            if self._queue and not self._leaving:
                return self._queue.popleft()
            self._thread = None
            compilers, self._compilers = self._compilers, []
        for compiler in compilers:
            compiler.close()
        return None

    def _make(self, routine: Routine) -> None:
        if self._load(routine):  # another process may have written it by now
            return
        if not self._compilers or not self._compilers[-1].is_alive:
            self._compilers.append(Compiler())
        code = self._compilers[-1].compile(routine)
        routine.function = machine.load(code, routine.arguments)
        cache.write(_file(routine), code)

    def _load(self, routine: Routine) -> bool:
        """Take a routine from the disk; False if it is not there."""
        code = cache.read(_file(routine))
        if code is None:
            return False
        routine.function = machine.load(code, routine.arguments)
        return True

    def _end(self, routine: Routine, error: BaseException | None = None) -> None:
        if error is not None:
            routine.error = DeviceError(f"routine {routine.name!r} could not be compiled: {error}")
            routine.error.__cause__ = error
            if not self._leaving and str(error) not in self._told:  # before those that wait for it go on
                self._told.add(str(error))
                _logger.warning("%s; NumPy computes instead (more: actorflow docs slow)", routine.error)
        with self._changed:
            self._pending.pop(routine, None)
            self._changed.notify_all()


def _file(routine: Routine) -> Path:
    return cache.path(routine.source, routine.name, routine.arguments)


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


compile_queue = CompileQueue()
