"""What ``actorflow watch`` shows of a graph: lines about the whole, and a table of the costliest ops."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from actorflow.cli.output import count_text
from actorflow.errors import visible
from actorflow.trace.ring import NodeState

if TYPE_CHECKING:
    from actorflow.web.client import Picture

_STYLES = {
    NodeState.WAITING: "yellow",
    NodeState.RUNNING: "bold cyan",
    NodeState.DONE: "green",
    NodeState.FAILED: "bold red",
    NodeState.CANCELLED: "magenta",
}
_SHOWN_FAILURES = 3
_SHOWN_CURVES = 6
#: Over how long rates are taken, by the server's clock.
_RATE_S = 3.0


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
    picture: Picture, rates: tuple[float, float] | None, url: str, problem: str | None, rows: int, height: int | None
) -> RenderableType:
    """A picture as rich shows it.

    Args:
        picture: The graph; complete.
        rates: Of `Rates`.
        url: Where it is.
        problem: Why the connection is lost; None while it is there.
        rows: Of the table, at most.
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
    return Group(*lines, Text(), _table(picture, rows, expand=height is not None)) if rows > 0 else Group(*lines)


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


def _table(picture: Picture, rows: int, *, expand: bool) -> Table:
    states = picture.states
    total_us = states.calls * states.mean_us.astype(np.float64)
    whole_us = max(float(total_us.sum()), 1e-9)
    table = Table(box=None, pad_edge=False, header_style="bold", expand=expand)
    table.add_column("op", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("state")
    failures = ["failed"] if picture.failed.any() else []
    for header in ("calls", *failures, "total", "mean", "p50", "p99", "share"):
        table.add_column(header, justify="right", no_wrap=True)
    # The costliest first; of equal ones in the graph's order, so that rows keep their places.
    for row in np.argsort(-total_us, kind="stable")[:rows].tolist():
        state = NodeState(states.state[row])
        table.add_row(
            Text(visible(picture.ops[row])),
            Text(state.name.lower(), _STYLES.get(state, "dim")),
            f"{states.calls[row]:,}",
            *[f"{picture.failed[row]:,}" if picture.failed[row] else "" for _ in failures],
            _time(total_us[row]),
            *[_time(column[row]) for column in (states.mean_us, states.p50_us, states.p99_us)],
            f"{total_us[row] / whole_us:.1%}",
        )
    return table


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
    for size_us, unit, digits in ((1e6, "s", 2), (1e3, "ms", 2)):
        if us >= size_us:
            return f"{us / size_us:,.{digits}f} {unit}"
    return f"{us:.1f} us"


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
