"""Programs of tests without a start of Python each: copies of a process that has imported what most of them do.

`make test-exhaustive`, and a system without fork, start each program by itself.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.support.effort import FULL

ROOT = Path(__file__).parents[2]
Completed = subprocess.CompletedProcess[str]

#: Reads one program a line and forks; the child falls out of the loop and becomes that program, with an end like any.
SERVER = """
import actorflow as af
import asyncio, gc, json, os, sys, types
for _name in af.__all__:
    getattr(af, _name)
import actorflow.ops.cpu, actorflow.transport, aiohttp, multiprocessing, numpy.random, threadpoolctl, uvloop
gc.collect()
gc.freeze()
_job = None
for _line in sys.stdin:
    _child = os.fork()
    if not _child:
        _job = json.loads(_line)
        break
    print(_child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(_child, 0)[1]), flush=True)
if _job is not None:
    os.setsid()
    for _number, _path in enumerate((os.devnull, _job["out"], _job["err"])):
        _file = os.open(_path, os.O_RDWR | os.O_CREAT)
        os.dup2(_file, _number)
        os.close(_file)
    os.environ.clear()
    os.environ.update(_job["environment"])
    os.chdir(_job["folder"])
    sys.argv = _job["arguments"]
    sys.path[0] = ""
    if sys.argv[0] == "-m":
        import runpy
        sys.argv.pop(0)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    _main = sys.modules["__main__"] = types.ModuleType("__main__")
    _main.__builtins__ = __builtins__
    if sys.argv[0] == "-c":
        _code = sys.argv.pop(1)
    else:
        _main.__file__ = sys.argv[0]
        sys.path[0] = os.path.dirname(sys.argv[0])
        with open(sys.argv[0], encoding="utf-8") as _file:
            _code = _file.read()
    exec(compile(_code, sys.argv[0], "exec"), vars(_main))
"""


class WarmPython:
    """The process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def run(self, arguments: list[str], *, environment: Mapping[str, str], folder: Path, timeout_s: float) -> Completed:
        """Run a program to its end, and kill what it leaves behind then."""
        with tempfile.TemporaryDirectory() as written:
            out, err = Path(written, "out"), Path(written, "err")
            job = {
                "arguments": arguments,
                "environment": dict(environment),
                "folder": str(folder),
                "out": str(out),
                "err": str(err),
            }
            self._say(json.dumps(job))
            child = int(self._answer(timeout_s))
            try:
                status = int(self._answer(timeout_s))
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            return Completed(arguments, status, out.read_text(), err.read_text())

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.poll() is None, "the process that programs are copies of has ended: see what it said"
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise subprocess.TimeoutExpired("a program", timeout_s)
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate(timeout=240)


@cache
def _warm() -> WarmPython:
    process = WarmPython()
    atexit.register(process.close)
    return process


def run_program(
    *arguments: object,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 240.0,
) -> Completed:
    """Run a program in Python, with warnings as errors: a file, ``"-c"`` and code or ``"-m"`` and a module.

    The program's own arguments follow.
    """
    words, variables = [*map(str, arguments)], {**os.environ, **(environment or {})}
    if FULL or not hasattr(os, "fork"):
        return _run_cold(words, variables, folder, timeout_s)
    return _warm().run(words, environment=variables, folder=folder or Path.cwd(), timeout_s=timeout_s)


def _run_cold(arguments: list[str], environment: Mapping[str, str], folder: Path | None, timeout_s: float) -> Completed:
    job = subprocess.Popen(
        [sys.executable, "-W", "error", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = job.communicate(timeout=timeout_s)
    finally:
        with suppress(ProcessLookupError):  # its children, if one hangs
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return Completed(arguments, job.returncode, out, err)
