"""``actorflow watch``: a graph that runs in another process, as a table in the terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, NoReturn

from rich.live import Live

from actorflow.cli.interrupts import cancel_on_interrupt
from actorflow.cli.output import output
from actorflow.cli.screen import Rates, render
from actorflow.loop import run

if TYPE_CHECKING:
    from rich.console import Console

    from actorflow.web.client import Address, Picture

#: Between two pictures on a terminal.
_REFRESH_S = 0.25
#: A frame is asked what it waits for when it has been seen for a second, so the third message surely tells.
_PLAIN_VITALS = 3


def watch(address: Address, *, rows: int) -> int:
    """Show a graph until Ctrl-C; to what is no terminal, once.

    Args:
        address: Where its live page is.
        rows: Ops that are shown, at most.
    Returns:
        0.
    Raises:
        ConnectionError: if there is no live page, or it lets nobody in without another token or name.
        KeyboardInterrupt: after Ctrl-C.
    """
    console = output()
    show = _live if console.is_terminal else _once
    try:
        run(_interruptible(show(address, console, rows)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # nothing but Ctrl-C cancels it
    return 0


async def _interruptible(showing: Coroutine[None, None, None]) -> None:
    with cancel_on_interrupt():
        await showing


async def _once(address: Address, console: Console, rows: int) -> None:
    from actorflow.web.client import follow  # aiohttp is loaded when something is watched

    async with aclosing(follow(address, lost=_give_up)) as pictures:
        async for picture in pictures:
            if picture.is_complete and picture.vitals_count >= (_PLAIN_VITALS if _in_flight(picture) else 1):
                console.print(render(picture, None, address.url, None, rows, None))
                return


def _give_up(problem: str) -> NoReturn:
    raise ConnectionError(problem)


def _in_flight(picture: Picture) -> bool:
    frames = picture.frames
    return frames["started"] > frames["finished"] + frames["failed"] + frames["cancelled"]


class _Screen:
    """Draws on a terminal, not more often than anyone can read."""

    def __init__(self, address: Address, console: Console, live: Live, rows: int) -> None:
        self._address = address
        self._console = console
        self._live = live
        self._rows = rows
        self._rates = Rates()
        self._picture: Picture | None = None
        self._due_s = 0.0

    def show(self, picture: Picture) -> None:
        """Take a picture in, and draw it if it is time."""
        self._picture = picture
        if picture.is_complete and time.monotonic() >= self._due_s:
            self._draw(picture, None)

    def lost(self, problem: str) -> None:
        """Say that what is shown is of the past, and why."""
        if self._picture is not None and self._picture.is_complete:
            self._draw(self._picture, problem)

    def _draw(self, picture: Picture, problem: str | None) -> None:
        rates, height = self._rates.update(picture), self._console.height
        shown = render(picture, rates, self._address.url, problem, self._rows, height)
        self._live.update(shown, refresh=True)
        self._due_s = time.monotonic() + _REFRESH_S


async def _live(address: Address, console: Console, rows: int) -> None:
    from actorflow.web.client import follow

    with Live(console=console, screen=True, auto_refresh=False) as live:
        screen = _Screen(address, console, live, rows)
        async with aclosing(follow(address, lost=screen.lost)) as pictures:
            async for picture in pictures:
                screen.show(picture)
