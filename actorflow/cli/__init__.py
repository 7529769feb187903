"""The command line: ``actorflow demo``, ``actorflow docs``, ``actorflow doctor``, ``actorflow serve``,
``actorflow show``, ``actorflow trace``, ``actorflow watch``.

This module imports next to nothing, so that Ctrl-C is handled from the first moment on; the commands are imported
when one is chosen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

__all__ = ["INTERRUPTED", "main", "script"]

#: Exit code after Ctrl-C: 128 + SIGINT, as shells report it.
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; for programs that call it, it installs no signal handler.

    Args:
        argv: Arguments without the program's name; the default is the process's.
    Returns:
        0 if all went well, 1 after an error that was reported, 2 for wrong arguments, 130 after Ctrl-C.
    """
    from actorflow.cli.app import dispatch

    try:
        return dispatch(argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def script() -> NoReturn:
    """The console script: `main`, made safe against Ctrl-C at any moment."""
    # Nothing needs cleaning up while modules and data are loaded, and a KeyboardInterrupt inside an import can be
    # swallowed or wrapped by the imported module; so until a command says otherwise, Ctrl-C ends the process at once.
    signal.signal(signal.SIGINT, _quit)
    code = main()
    if code == INTERRUPTED:
        _leave(code)  # a second Ctrl-C may have left threads behind, which a normal exit would wait for
    sys.exit(code)


def _quit(_signum: int, _frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    _leave(INTERRUPTED)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        # The handler may have interrupted a write to the very stream, or its reader may be gone.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            stream.flush()
    os._exit(code)
