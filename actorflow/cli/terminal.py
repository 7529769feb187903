"""Terminal of the commands, Ctrl-C while an event loop runs, counts in words; and the live page beside a command."""

from __future__ import annotations

import asyncio
import errno
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from types import FrameType
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from actorflow.cli.app import DEFAULT_PORT
from actorflow.errors import visible
from actorflow.graph.graph import Graph
from actorflow.loop import run


@contextmanager
def cancel_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C cancel the current task inside the ``with`` block, each time it is pressed.

    The loop is never left in the middle of a callback, as it would be by a KeyboardInterrupt. Whatever handled Ctrl-C
    before is put back at the end. Outside the main thread, which gets no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel(_signum: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


def run_until_interrupt(main: Coroutine[Any, Any, None]) -> None:
    """Run something on a loop of its own; Ctrl-C cancels it, and is raised as KeyboardInterrupt at its end."""

    async def cancellable() -> None:
        with cancel_on_interrupt():
            await main

    try:
        run(cancellable())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # nothing but Ctrl-C cancels it


_LEAST = 8  # cells of a name that are shown, however narrow the terminal is
_PLAIN_WIDTH = 240  # width of output that is not a terminal: nothing is cut off or broken there


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704  rich calls this while it handles the error, which is the command line's to report


def output() -> Console:
    """Standard output: as wide as the terminal is, and wide enough for anything where there is none."""
    console = _Output(highlight=False)
    return console if console.is_terminal else _Output(highlight=False, width=_PLAIN_WIDTH)


class Name:
    """A text of one line that loses its middle where there is no room for all of it, as names differ at their ends."""

    def __init__(self, text: str) -> None:
        self._text = visible(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shortened(self._text, options.max_width), no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self._text)
        return Measurement(min(width, _LEAST), width)


def shortened(text: str, width: int) -> str:
    """A text of at most so many cells of a terminal, without its middle if need be."""
    if cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    start = set_cell_size(text, (width - 1) // 2).rstrip(" ")
    room = width - 1 - cell_len(start)
    end = text[max(len(text) - room, 0) :] if room else ""
    while cell_len(end) > room:  # characters of two cells
        end = end[1:]
    return f"{start}\N{HORIZONTAL ELLIPSIS}{end}"


def count_text(count: int, what: str) -> str:
    """A number of things: ``1 call``, ``2,000 calls``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


async def serve_page(stack: AsyncExitStack, graph: Graph, port: int | None, *, values: bool = False) -> str:
    """Serve the page of a graph until the stack is closed; returns its address.

    Args:
        port: 0 for any; None for the usual one if it is free and any other if not.
        values: Whether it can show values.
    Raises:
        OSError: if the port cannot be bound.
    """
    from actorflow.web import serve  # aiohttp is not loaded where no page is wanted

    try:
        view = await stack.enter_async_context(serve(graph, port=DEFAULT_PORT if port is None else port, values=values))
    except OSError as error:
        if port is not None or error.errno != errno.EADDRINUSE:
            raise
        view = await stack.enter_async_context(serve(graph, port=0, values=values))
    return view.url
