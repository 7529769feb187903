"""Helpers of programs that fork: loops of the kind that is tried, and children that end in time."""

import asyncio
import atexit
import faulthandler
import multiprocessing.process
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

#: Python 3.12 says so at each fork of a process that has threads; this is about what happens then.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

#: A child that hangs is killed after this time, in seconds.
PATIENCE_S = 40
#: What ``async def`` functions run on.
LOOP = os.environ.get("FORKING_LOOP", "asyncio")


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a new loop of the kind that is tried."""
    factory = None
    if LOOP == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


def begin(work: Callable[[], object], *, leaves: bool = False) -> int:
    """Fork, and return the number of the child, which calls something and ends.

    Args:
        work: What it calls; it ends with 1 if that raises.
        leaves: Whether it does first what is registered for the end of programs. It does not go on to drop what it has:
            asyncio's loops, closed as they are dropped, would take their sockets out of what the parent waits for.
    """
    child = os.fork()
    if child:
        return child
    faulthandler.unregister(signal.SIGALRM)  # its parent may be a child of a fork, too
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)  # says where it hangs, and lets the signal kill it
    signal.alarm(PATIENCE_S)
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  it must not go on as its parent
        traceback.print_exc()
    finally:
        if leaves:
            multiprocessing.process._children.clear()  # as in children that it starts itself: they are the parent's
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end(child: int) -> None:
    """Wait for a child, and check that it has ended well."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the child has ended with {code}" + (" as it hung" if code == -signal.SIGALRM else "")


def fork(work: Callable[[], object], *, leaves: bool = False) -> None:
    """`begin` and `end`."""
    end(begin(work, leaves=leaves))


def raises(kind: type[BaseException], words: str, work: Callable[[], object]) -> None:
    """Check that something raises an error that says some words."""
    error: BaseException | None = None
    try:
        work()
    except kind as raised:
        error = raised
    assert words in str(error), f"expected a {kind.__name__} that says {words!r}, got {error!r}"
