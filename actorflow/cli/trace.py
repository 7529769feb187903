"""``actorflow trace``: where the time of a saved trace went."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from actorflow.cli.terminal import count_text, output
from actorflow.errors import visible
from actorflow.show.tables import time_text
from actorflow.trace.analysis import Analysis, Frames, PathCall, analyse
from actorflow.trace.recording import Recording, read_trace

_FIGURES = "min", "max", "mean", "std", "nan", "infinite"  # figures of values that there are columns for


def show_trace(path: Path, *, frame: int | None = None, top: int = 20, as_json: bool = False) -> int:
    """Print where the time of a trace went: lanes, ops, frames, one frame's critical path, idle stretches."""
    recording = read_trace(path)
    analysis = analyse(recording, frame=frame)
    console = output()
    if as_json:
        print(json.dumps(_document(recording, analysis)))
        return 0
    for line in _headline(path, recording, analysis):
        console.print(_text(line))
    tables = [
        _lanes(analysis, top),
        _ops(analysis, top),
        _path(analysis, top),
        _gaps(analysis),
        _values(recording, top),
    ]
    if analysis.frames is not None:
        frames = analysis.frames
        latency = f"latency p50 {time_text(frames.p50_ns)}, p99 {time_text(frames.p99_ns)}"
        flight = f"{frames.overlap:.2f} in flight in the mean, {frames.most} at most"
        line = f"{count_text(frames.total, 'frame')}: {latency}, the slowest is frame {frames.slowest}; {flight}"
        console.print(_text(line))
    for title, table, rest in tables:
        if table.row_count:
            # Not as the table's own title and caption, which are broken into lines of its width.
            console.print()
            console.print(_text(title))
            console.print(table)
            if rest:
                console.print(_text(rest))
    return 0


def _document(recording: Recording, analysis: Analysis) -> dict[str, object]:
    """The analysis as it is, with names for the items of its tuples."""
    return {
        "graph": recording.graph,
        "started": recording.started_s,
        **{key: value for key, value in analysis._asdict().items() if not isinstance(value, list | Frames)},
        "lanes": [lane._asdict() for lane in analysis.lanes],
        "ops": [op._asdict() for op in analysis.ops],
        "gaps": [gap._asdict() for gap in analysis.gaps],
        "path": [step._asdict() for step in analysis.path],
        "frames": None if analysis.frames is None else analysis.frames._asdict(),
        "values": [value._asdict() for value in recording.values],
    }


def _text(line: str) -> Text:
    """Without markup, which names may look like."""
    return Text(visible(line))


def _headline(path: Path, recording: Recording, analysis: Analysis) -> tuple[str, str]:
    what = f"graph {recording.graph!r}" if recording.graph else "a trace"
    lost = f", {analysis.lost:,} before them are lost" if analysis.lost else ""
    failed = f" ({analysis.failed:,} failed)" if analysis.failed else ""
    busy = 1 - analysis.idle_ns / max(analysis.span_ns, 1)
    return (
        f"{path}: {what}, {count_text(analysis.calls, 'call')}{failed} in {time_text(analysis.span_ns)}{lost}",
        f"something ran for {busy:.1%} of that time, nothing for {time_text(analysis.idle_ns)}",
    )


class _Section(NamedTuple):
    """A table, the line above it, and the one below, if any."""

    title: str
    table: Table
    rest: str = ""


def _table(texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table()
    for header in texts:
        table.add_column(header, overflow="fold")
    for header in numbers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _lanes(analysis: Analysis, top: int) -> _Section:
    table = _table(["lane"], ["calls", "busy", "share", "idle", "longest idle"])
    for lane in analysis.lanes[:top]:
        idle = 1 - lane.share
        table.add_row(
            _text(lane.name),
            f"{lane.calls:,}",
            time_text(lane.busy_ns),
            f"{lane.share:.1%}",
            f"{idle:.1%}",
            time_text(lane.longest_idle_ns),
        )
    return _Section("lanes", table, _more(len(analysis.lanes) - top, "lane"))


def _ops(analysis: Analysis, top: int) -> _Section:
    failures = ["failed"] if analysis.failed else []
    table = _table(["op"], ["calls", *failures, "total", "mean", "p50", "p99", "share"])
    for op in analysis.ops[:top]:
        counts = [f"{op.calls:,}", f"{op.failed:,}" if op.failed else ""][: 1 + len(failures)]
        times = [time_text(value) for value in (op.total_ns, op.mean_ns, op.p50_ns, op.p99_ns)]
        table.add_row(_text(op.name), *counts, *times, f"{op.share:.1%}")
    return _Section("where the time went", table, _more(len(analysis.ops) - top, "op"))


def _path(analysis: Analysis, top: int) -> _Section:
    waited_ns = sum(step.waited_ns for step in analysis.path)
    elapsed_ns = sum(step.elapsed_ns for step in analysis.path)
    title = (
        f"critical path of frame {analysis.path_frame}: {time_text(elapsed_ns)} "
        f"in {count_text(len(analysis.path), 'call')}, {time_text(waited_ns)} between them"
    )
    table = _table(["op", "lane"], ["waited", "of that, lane busy", "took"])
    for entry in _shortened(analysis.path, top):
        if isinstance(entry, PathCall):
            waits = [time_text(value) if value else "" for value in (entry.waited_ns, entry.behind_ns)]
            name = f"{entry.name} (failed)" if entry.failed else entry.name
            table.add_row(_text(name), _text(entry.track), *waits, time_text(entry.elapsed_ns))
        else:
            waits = [time_text(sum(step.waited_ns for step in entry)), time_text(sum(step.behind_ns for step in entry))]
            table.add_row(f"... {len(entry):,} more", "", *waits, time_text(sum(step.elapsed_ns for step in entry)))
    return _Section(title, table)


def _shortened(path: Sequence[PathCall], top: int) -> Iterator[PathCall | list[PathCall]]:
    """The steps that took longest, wait included, in their order; the steps between two of them as one list."""
    longest = sorted(range(len(path)), key=lambda at: -(path[at].waited_ns + path[at].elapsed_ns))[:top]
    kept, others = set(longest), list[PathCall]()
    for at, step in enumerate(path):
        if at not in kept:
            others.append(step)
            continue
        if others:
            yield others
            others = []
        yield step
    if others:
        yield others


def _gaps(analysis: Analysis) -> _Section:
    table = _table(["between", "and"], ["length", "at"])
    for gap in analysis.gaps:
        if gap.length_ns:
            ends = [_text(name if frame < 0 else f"{name} (frame {frame})") for name, frame in (gap.before, gap.after)]
            table.add_row(*ends, time_text(gap.length_ns), time_text(gap.start_ns))
    return _Section("longest stretches in which nothing ran", table)


def _values(recording: Recording, top: int) -> _Section:
    samples = Counter(value.name for value in recording.values)
    last = {value.name: value for value in recording.values}
    table = _table(["value"], ["samples", "last frame", *_FIGURES])
    for name, count in [*samples.items()][:top]:
        figures = [last[name].figures.get(figure) for figure in _FIGURES]
        shown = ["" if figure is None else f"{figure:.4g}" for figure in figures]
        table.add_row(_text(name), f"{count:,}", str(last[name].frame), *shown)
    return _Section("values that were looked at", table, _more(len(samples) - top, "value"))


def _more(left: int, what: str) -> str:
    return f"and {count_text(left, f'more {what}')}" if left > 0 else ""
