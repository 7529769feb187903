"""``actorflow watch``: a graph that runs in another process, as lines and a table in the terminal."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from actorflow.cli.terminal import Name, count_text, output, run_until_interrupt
from actorflow.errors import visible
from actorflow.trace.counters import NodeState

if TYPE_CHECKING:
    from actorflow.web.client import Address, Picture

_STYLES = {
    NodeState.WAITING: "yellow",
    NodeState.QUEUED: "cyan",
    NodeState.RUNNING: "bold cyan",
    NodeState.DONE: "green",
    NodeState.FAILED: "bold red",
    NodeState.CANCELLED: "magenta",
}
#: Columns of figures, the ones first that are worth more where not all have room beside the names.
_WORTH = ["total", "failed", "calls", "share", "mean", "p99", "p50"]
#: Least characters of names, and characters of the longest state.
_NAME_WIDTH, _STATE_WIDTH = 28, 10
_SHOWN_FAILURES = 3
_SHOWN_CURVES = 6
_RATE_S = 3.0  # over how long rates are taken, by the server's clock


class Rates:
    """Frames and calls per second of late."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, int, int]] = deque()

    def update(self, picture: Picture) -> tuple[float, float] | None:
        """Frames finished and calls ended per second; None as long as there is nothing to compare with."""
        now = picture.time_s, picture.frames["finished"], int(picture.states.calls.sum(dtype=np.int64))
        if self._past and any(new < old for new, old in zip(now, self._past[-1], strict=True)):
            self._past.clear()  # another run of the program
        self._past.append(now)
        while len(self._past) > 2 and now[0] - self._past[1][0] >= _RATE_S:
            self._past.popleft()
        then = self._past[0]
        elapsed_s = now[0] - then[0]
        return ((now[1] - then[1]) / elapsed_s, (now[2] - then[2]) / elapsed_s) if elapsed_s > 0 else None


def render(
    picture: Picture,
    rates: tuple[float, float] | None,
    url: str,
    problem: str | None,
    rows: int,
    width: int,
    height: int | None,
) -> RenderableType:
    """A picture as rich shows it.

    Args:
        problem: Why the connection is lost; None while it is there.
        width: Characters of a line.
        height: Lines that all of it may take; None for any number.
    """
    lines: list[RenderableType] = [
        *_head(picture, rates, url, problem),
        *_process(picture),
        *_waits(picture),
        *_failures(picture),
        *_curves(picture),
    ]
    if height is not None:
        lines = lines[: max(height - 2, 0)]
        rows = min(rows, height - len(lines) - 3)
    return Group(*lines, Text(), _table(picture, rows, width, expand=height is not None)) if rows > 0 else Group(*lines)


def _head(picture: Picture, rates: tuple[float, float] | None, url: str, problem: str | None) -> Iterator[Text]:
    state = Text(" live", "green") if problem is None else Text(f" {visible(problem)}", "bold red")
    yield _line(Text(visible(picture.name), "bold"), f"  {count_text(len(picture.ops), 'op')} at {visible(url)}", state)
    frames = picture.frames
    in_flight = frames["started"] - frames["finished"] - frames["failed"] - frames["cancelled"]
    counts = [f"{frames[name]:,} {name}" for name in ("started", "finished", "failed", "cancelled")]
    speed = "" if rates is None else f"; {rates[0]:,.1f} frames/s, {rates[1]:,.0f} calls/s"
    yield _line(_title("frames"), ", ".join([*counts, f"{in_flight:,} in flight"]), speed)
    states = Counter(picture.states.state.tolist())
    yield _line(
        _title("ops"), ", ".join(f"{states[state]:,} {state.name.lower()}" for state in NodeState if states[state])
    )


def _process(picture: Picture) -> Iterator[Text]:
    for device in picture.vitals.get("memory", []):
        budget = "" if device["budget"] is None else f", budget {_size(device['budget'])}"
        used, held, peak = (_size(device[kind]) for kind in ("used", "held", "peak"))
        yield _line(_title("memory"), f"{visible(device['place'])}: {used} used, {held} held, peak {peak}{budget}")
    lag = picture.vitals.get("lag_ms")
    if lag is not None:
        yield _line(_title("loop late"), f"p50 {lag['p50']:.1f} ms, p99 {lag['p99']:.1f} ms, max {lag['max']:.1f} ms")
    for pipeline in picture.vitals.get("pipelines", []):
        widen = f"; {visible(pipeline['bottleneck'])}" if pipeline["bottleneck"] else ""
        yield _line(_title("pipeline"), f"{pipeline['delivered']:,} items delivered{widen}")


def _waits(picture: Picture) -> Iterator[Text]:
    if picture.paused is not None:
        why = f" ({visible(picture.paused)})" if picture.paused else ""
        yield _line(_title("paused"), Text(f"no frame starts{why}", "yellow"))
    stalled_s = picture.vitals.get("stalled_s")
    if stalled_s is not None:
        yield _line(_title("stalled"), Text(f"no call has ended for {stalled_s:.0f} s", "bold yellow"))
    for frame in picture.vitals.get("waiting", []):
        why = "; ".join(line.strip() for line in frame["waits"].splitlines())
        text = f"frame {frame['frame']} for {frame['seconds']:.0f} s: {visible(why)}"
        yield _line(_title("waits"), Text(text, "yellow"))


def _failures(picture: Picture) -> Iterator[Text]:
    for failure in list(picture.failures)[-_SHOWN_FAILURES:]:
        what = visible(failure["message"].partition("\n")[0])
        yield _line(_title("failed"), Text(f"frame {failure['frame']}: {what}", "red"))


def _curves(picture: Picture) -> Iterator[Text]:
    for name, (frame, value) in list(picture.curves.items())[:_SHOWN_CURVES]:
        shown = "not finite" if value is None else f"{value:.6g}"
        yield _line(_title("curve"), f"{visible(name)}  {shown}  (frame {frame:,})")
    if (more := len(picture.curves) - _SHOWN_CURVES) > 0:
        yield _line(_title("curve"), f"and {more:,} more")


def _table(picture: Picture, rows: int, width: int, *, expand: bool) -> Table:
    states = picture.states
    total_us = states.calls * states.mean_us.astype(np.float64)
    whole_us = max(float(total_us.sum()), 1e-9)
    # The costliest first; of equal ones in the graph's order, so that rows keep their places.
    chosen = np.argsort(-total_us, kind="stable")[:rows].tolist()
    figures = {
        "calls": [f"{calls:,}" for calls in states.calls[chosen].tolist()],
        "failed": [f"{failed:,}" if failed else "" for failed in picture.failed[chosen].tolist()],
        "total": [*map(_time, total_us[chosen])],
        "mean": [*map(_time, states.mean_us[chosen])],
        "p50": [*map(_time, states.p50_us[chosen])],
        "p99": [*map(_time, states.p99_us[chosen])],
        "share": [f"{us / whole_us:.1%}" for us in total_us[chosen]],
    }
    if not picture.failed.any():
        del figures["failed"]
    shown = _fitting(figures, width - _STATE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold", expand=expand)
    table.add_column("op", ratio=1)
    table.add_column("state", no_wrap=True)
    for header in shown:
        table.add_column(header, justify="right", no_wrap=True)
    for number, row in enumerate(chosen):
        state = NodeState(states.state[row])
        table.add_row(
            Name(picture.ops[row]),
            Text(state.name.lower(), _STYLES.get(state, "dim")),
            *[figures[header][number] for header in shown],
        )
    return table


def _fitting(figures: dict[str, list[str]], width: int) -> list[str]:
    """The columns that leave room for names, in their order."""
    widths = {header: 1 + max(map(len, [header, *texts])) for header, texts in figures.items()}
    shown, room = [], width
    for header in sorted(figures, key=_WORTH.index):
        if room - widths[header] < _NAME_WIDTH:
            break
        shown.append(header)
        room -= widths[header]
    return [header for header in figures if header in shown]


def _line(*parts: Text | str) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for part in parts:
        line.append(part)
    return line


def _title(text: str) -> Text:
    return Text(f"{text:<10}", "bold")


def _time(us: float) -> str:
    if us == 0:
        return "-"
    if us >= 1e6:
        return f"{us / 1e6:,.2f} s"
    return f"{us / 1e3:,.2f} ms" if us >= 1e3 else f"{us:.1f} us"


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


_REFRESH_S = 0.25  # between two pictures on a terminal
#: A frame is asked for the ops it waits for when it has been seen for a second, so the third message surely tells.
_PLAIN_VITALS = 3


def watch(address: Address, token: str | None, rows: int) -> int:
    """Show a graph until Ctrl-C; where the output is not a terminal, once."""
    address = address._replace(token=token or address.token or os.environ.get("ACTORFLOW_TOKEN"))
    console = output()
    show = _live if console.is_terminal else _once
    run_until_interrupt(show(address, console, rows))
    return 0


async def _once(address: Address, console: Console, rows: int) -> None:
    from actorflow.web.client import follow  # aiohttp is loaded when something is watched

    async with aclosing(follow(address, lost=_give_up)) as pictures:
        async for picture in pictures:
            if picture.is_complete and picture.vitals_count >= (_PLAIN_VITALS if _in_flight(picture) else 1):
                console.print(render(picture, None, address.url, None, rows, console.width, None))
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
        """Say that the picture is old, and why."""
        if self._picture is not None and self._picture.is_complete:
            self._draw(self._picture, problem)

    def _draw(self, picture: Picture, problem: str | None) -> None:
        rates, (width, height) = self._rates.update(picture), self._console.size
        shown = render(picture, rates, self._address.url, problem, self._rows, width, height)
        self._live.update(shown, refresh=True)
        self._due_s = time.monotonic() + _REFRESH_S


async def _live(address: Address, console: Console, rows: int) -> None:
    from actorflow.web.client import follow

    with Live(console=console, screen=True, auto_refresh=False) as live:
        screen = _Screen(address, console, live, rows)
        async with aclosing(follow(address, lost=screen.lost)) as pictures:
            async for picture in pictures:
                screen.show(picture)
