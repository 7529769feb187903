"""``actorflow measure``: cost of rows by the size of a batch, and whether batching pays."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from actorflow.cli.source import SourceOptions, kind_of, open_model
from actorflow.cli.terminal import count_text, output
from actorflow.errors import GraphError, visible
from actorflow.loop import run
from actorflow.runtime.model import Model
from actorflow.show.tables import time_text
from actorflow.spec import Length, TensorSpec, at
from actorflow.threads import cores
from actorflow.trace.analysis import analyse

_TASKS = Path("/proc/self/task")  # where Linux lists the threads of this process
#: Runs before those that count, and the least and most of these.
_BEFORE, _LEAST, _MOST = 2, 3, 1000
#: Least gain of rows by sharing a run before it is worth waiting for each other.
PAYS = 1.25
_ENOUGH = 0.9  # as much as this of the largest gain is enough


class Timing(NamedTuple):
    """Time of the fastest run."""

    backend: str  # "actorflow" or "onnxruntime"
    cores: int  # number of cores that it may use
    rows: int
    run_ns: int  # time of a run


def measure(
    source: str,
    options: SourceOptions,
    *,
    rows: Sequence[int] = (1, 8, 32),
    against: str | None = None,
    seconds: float = 1.0,
    as_json: bool = False,
) -> int:
    """Print the cost of rows by the size of a batch, the time by operation, and the options to serve the model with.

    The feeds are random numbers, and zeros where integers are wanted.
    """
    if against is not None and kind_of(source) != ".onnx":
        raise GraphError(f"{source}: only files .onnx have another backend")
    own = options.backend or "actorflow"
    model = open_model(source, options)
    sizes = sorted({*rows}) if row_axis(model) else [1]
    timings = [*_timed(model, own, sizes, seconds)]
    shares = shares_of(model)
    if against is not None and against != own:
        timings += _timed(open_model(source, options._replace(backend=against)), against, sizes, seconds)
    said = advice([each for each in timings if each.backend == own])
    if as_json:
        print(json.dumps({"timings": [each._asdict() for each in timings], "operations": shares, "advice": said}))
        return 0
    console = output()
    console.print(_table(timings))
    console.print()
    console.print(Text(f"where the time of {count_text(sizes[-1], 'row')} goes, by operation:"))
    for name, share in [*shares.items()][:10]:
        console.print(Text(f"  {share:6.1%}  {visible(name)}"))
    console.print()
    console.print(Text(said))
    return 0


def row_axis(model: Model) -> str | None:
    """The open axis that all inputs begin with; raises GraphError if another axis is open."""
    firsts = {str(blob.shape[0]) if blob.shape else "" for blob in model.inputs.values()}
    axes = {axis for blob in model.inputs.values() for axis in blob.spec.axes}
    found = next(iter(firsts)) if len(firsts) == 1 and firsts <= axes else None
    others = sorted(axes - {found})
    if others:
        raise GraphError(f"open axes besides that of rows: {', '.join(others)}; fix them by --axes {others[0]}=N")
    return found


def _timed(model: Model, backend: str, sizes: Sequence[int], seconds: float) -> Iterator[Timing]:
    counts = sorted({1, cores()}) if _TASKS.is_dir() else [cores()]
    axis = row_axis(model)
    for count in counts:
        for size in sizes:
            feeds = {name: fed(blob.spec, {axis: size} if axis else {}) for name, blob in model.inputs.items()}
            with _on_cores(count):
                yield Timing(backend, count, size, run(_fastest(model, feeds, seconds)))


@contextmanager
def _on_cores(count: int) -> Iterator[None]:
    """Have all threads, and those that they start, on some cores alone, where the system can do that."""
    if count == cores():
        yield
        return
    before = os.sched_getaffinity(0)
    _move(sorted(before)[:count])
    try:
        yield
    finally:
        _move(before)


def _move(cores: Iterable[int]) -> None:
    for task in _TASKS.iterdir():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(task.name), cores)


async def _fastest(model: Model, feeds: Mapping[str, Any], seconds: float) -> int:
    async with model.graph:
        for _ in range(_BEFORE):
            await model.run(feeds)
        best, count, begin = 0, 0, perf_counter_ns()
        while count < _LEAST or (count < _MOST and perf_counter_ns() - begin < 1e9 * seconds):
            start = perf_counter_ns()
            await model.run(feeds)
            took = perf_counter_ns() - start
            best, count = min(best or took, took), count + 1
    return best


def fed(spec: TensorSpec, lengths: Mapping[str, int]) -> Any:
    """An array to feed."""
    given: tuple[Any, ...] = spec.shape
    shape = [at(length, lengths) if isinstance(length, Length) else length for length in given]
    if spec.dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(shape).astype(spec.dtype)
    return np.zeros(shape, spec.dtype)


def shares_of(model: Model) -> dict[str, float]:
    """Shares of the time of the newest runs, by kind of operation, the largest first."""
    times: Counter[str] = Counter()
    kinds = {op.name: op.operation.kind for op in model.graph.ops}
    for op in analyse(model.graph.recording()).ops:
        times[kinds.get(op.name, op.name)] += op.total_ns
    total = sum(times.values()) or 1
    return {name: time / total for name, time in times.most_common()}


def advice(timings: Sequence[Timing]) -> str:
    """Advice on options of `serve`, by the times on all cores."""
    most = max(each.cores for each in timings)
    per_second = {each.rows: 1e9 * each.rows / each.run_ns for each in timings if each.cores == most}
    least, best = per_second[min(per_second)], max(per_second.values())
    if len(per_second) == 1:
        return "It has no open first axis, so requests cannot share a run: actorflow serve --max-rows 0"
    gain = best / least
    if gain < PAYS:
        return f"Rows gain nothing by sharing a run ({gain:.2f} times as many a second): actorflow serve --max-rows 0"
    rows = min(size for size, each in per_second.items() if each >= _ENOUGH * best)
    return f"Rows that share a run are computed {gain:.1f} times as fast: actorflow serve --max-rows {rows}"


def _table(timings: Sequence[Timing]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in ("backend", "cores", "rows", "a run", "a row", "rows a second"):
        table.add_column(name, justify="left" if name == "backend" else "right")
    for each in timings:
        row_ns = each.run_ns / each.rows
        table.add_row(
            each.backend,
            str(each.cores),
            str(each.rows),
            time_text(each.run_ns),
            time_text(row_ns),
            f"{1e9 / row_ns:,.0f}",
        )
    return table
