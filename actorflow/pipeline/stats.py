"""Statistics of each stage, and the stage that holds up the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from actorflow.core import clock_ns
from actorflow.errors import visible
from actorflow.graph.nodes import Site
from actorflow.pipeline.stages.stage import StageActor, Wait

_RECENT = 1024  # calls whose times the percentiles are taken from
_LITTLE = 0.05  # share of time spent waiting, below which it does not count


@dataclass(frozen=True)
class StageSnapshot:
    """Statistics of one stage, over all iterations of its loader.

    Attributes:
        name: Name of the stage; unique in its loader.
        kind: Name of the method that added it.
        site: The line of user code that added it.
        concurrency: Calls that may run at once.
        running: Calls that run now.
        held: Items that it holds now, waiting ones and those in calls.
        peak_held: Most items that it has held.
        queued: Items that wait for it.
        room: Most items that may wait; the stage in front stops then. 0 in front of a source, for instance.
        held_bytes: Bytes that it holds, where it bounds them.
        peak_bytes: Most bytes that it has held, where it bounds them.
        items_in: Items taken.
        items_out: Items given.
        calls: Calls of the user's function.
        skipped: Items left out, since their calls failed, or newer ones came (`Pipeline.newest`).
        retried: Calls repeated.
        timed_out: Calls that took too long.
        busy_s: Time in calls, of all of them together.
        wait_get_s: Time without anything to do, since no item was there.
        wait_put_s: Time with an item done, and no room for it.
        elapsed_s: Time that the loader was iterated.
        p50_s: Half of the recent calls took less.
        p99_s: Of 100 recent calls 99 took less.

    Example:
        >>> loader = af.pipeline.source(["1", "two", "3"]).map(int, name="parse", on_error="skip")
        >>> _ = list(loader.iter_sync())
        >>> parse = loader.stats()["parse"]
        >>> parse.kind, parse.items_in, parse.items_out, parse.skipped
        ('map', 3, 2, 1)
    """

    name: str
    kind: str
    site: Site
    concurrency: int
    running: int
    held: int
    peak_held: int
    queued: int
    room: int
    held_bytes: int
    peak_bytes: int
    items_in: int
    items_out: int
    calls: int
    skipped: int
    retried: int
    timed_out: int
    busy_s: float
    wait_get_s: float
    wait_put_s: float
    elapsed_s: float
    p50_s: float
    p99_s: float

    @property
    def items_per_s(self) -> float:
        """Items given per second of iterating."""
        return self.items_out / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def utilization(self) -> float:
        """Share of the calls that it may run at once that ran, from 0 to 1."""
        return min(1.0, self.busy_s / (self.elapsed_s * self.concurrency)) if self.elapsed_s else 0.0


@dataclass(frozen=True)
class LoaderStats:
    """Statistics of a loader.

    Attributes:
        stages: In the order of the data.
        delivered: Items that the application has got.
        elapsed_s: Time that it was iterated.
        wait_s: Time of that in which the application waited for an item.
        queued: Items that wait for the application.
        room: Most items that may wait; the last stage stops then.

    Example:
        >>> loader = af.pipeline.source(range(6)).map(str, name="text").batch(4, collate=list)
        >>> _ = list(loader.iter_sync())
        >>> stats = loader.stats()
        >>> [stage.name for stage in stats.stages], stats.delivered
        (['source', 'text', 'batch'], 2)
    """

    stages: tuple[StageSnapshot, ...]
    delivered: int
    elapsed_s: float
    wait_s: float
    queued: int = 0
    room: int = 0

    def __getitem__(self, name: str) -> StageSnapshot:
        """The stage of a name."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"no stage {name!r}; there are {', '.join(stage.name for stage in self.stages)}")

    def __str__(self) -> str:
        lines = [
            f"{'stage':20} {'kind':12} {'items':>9} {'items/s':>9} {'calls':>10} {'busy':>5} {'wait get':>9} "
            f"{'wait put':>9} {'held':>5} {'p50 ms':>8} {'p99 ms':>8}"
        ]
        lines += [
            f"{visible(stage.name):20} {stage.kind:12} {stage.items_out:9} {stage.items_per_s:9.0f} "
            f"{f'{stage.running}/{stage.concurrency}':>10} {stage.utilization:5.0%} {stage.wait_get_s:8.2f}s "
            f"{stage.wait_put_s:8.2f}s {stage.held:5} {stage.p50_s * 1e3:8.2f} {stage.p99_s * 1e3:8.2f}"
            for stage in self.stages
        ]
        share = self.wait_s / self.elapsed_s if self.elapsed_s else 0.0
        lines.append(f"{self.delivered} items delivered in {self.elapsed_s:.2f} s; waited for {share:.0%} of that")
        return "\n".join(lines)


class StageStats:
    """Counts of one stage; kept by its loader, since a stage has another actor in each run."""

    def __init__(self, name: str, kind: str, site: Site, concurrency: int) -> None:
        self.name = name
        self.kind = kind
        self.site = site
        self.concurrency = concurrency
        self.actor: StageActor | None = None
        self.items_in = self.items_out = self.calls = self.skipped = self.retried = self.timed_out = 0
        self.running = self.peak_held = self.held_bytes = self.peak_bytes = 0
        self.busy_ns = self.wait_get_ns = self.wait_put_ns = 0
        self.durations: deque[int] = deque(maxlen=_RECENT)
        self._wait = Wait.NOTHING
        self._paused_ns = 0

    def resume(self, now: int) -> None:
        """The stage is fired."""
        wait = self._wait
        if wait is Wait.GET:
            self.wait_get_ns += now - self._paused_ns
        elif wait is Wait.PUT:
            self.wait_put_ns += now - self._paused_ns

    def pause(self, wait: Wait, now: int) -> None:
        """Wait from now on, having done all that could be done."""
        self._wait = wait
        self._paused_ns = now

    def called(self, each_ns: int, count: int) -> None:
        """Calls have ended."""
        self.calls += count
        self.busy_ns += each_ns * count
        self.durations.extend(repeat(each_ns, count))

    def holds(self, count: int) -> None:
        self.peak_held = max(self.peak_held, count)

    def holds_bytes(self, count: int) -> None:
        self.held_bytes = count
        self.peak_bytes = max(self.peak_bytes, count)

    def left(self, actor: StageActor) -> None:
        """An actor of the stage is over."""
        if self.actor is actor:
            self.resume(clock_ns())
            self._wait = Wait.NOTHING
            self.actor = None
            self.held_bytes = 0

    def snapshot(self, elapsed_ns: int) -> StageSnapshot:
        times = sorted(self.durations)
        actor = self.actor
        held, queued, room = (0, 0, 0) if actor is None else (actor.held, actor.queued, actor.room)
        return StageSnapshot(
            **{name: getattr(self, name) for name in _COPIED},
            held=held,
            peak_held=max(self.peak_held, held),
            queued=queued,
            room=room,
            busy_s=self.busy_ns * 1e-9,
            wait_get_s=self.wait_get_ns * 1e-9,
            wait_put_s=self.wait_put_ns * 1e-9,
            elapsed_s=elapsed_ns * 1e-9,
            p50_s=times[len(times) // 2] * 1e-9 if times else 0.0,
            p99_s=times[min(len(times) - 1, len(times) * 99 // 100)] * 1e-9 if times else 0.0,
        )


#: Fields of a snapshot that are those of `StageStats` as they are.
_COPIED = (
    *("name", "kind", "site", "concurrency", "running", "held_bytes", "peak_bytes", "items_in", "items_out"),
    *("calls", "skipped", "retried", "timed_out"),
)


def bottleneck(stats: LoaderStats, executors: Sequence[str]) -> str:
    """The stage to widen, in words; ``executors`` say where each stage's calls run, "" for one without calls."""
    if not stats.delivered:
        return "nothing has been delivered yet"
    waited = stats.wait_s / stats.elapsed_s if stats.elapsed_s else 0.0
    if waited < _LITTLE:
        return f"the application: it waited for items {waited:.0%} of the time, so no stage needs to be wider"
    called = [(stage, where) for stage, where in zip(stats.stages, executors, strict=True) if stage.calls]
    if not called:
        return f"no stage calls anything; the application waited for items {waited:.0%} of the time"
    stage, where = max(called, key=lambda pair: pair[0].utilization)
    found = (
        f"stage {stage.name!r} ({stage.kind}): with up to {stage.concurrency} calls at once it was "
        f"busy {stage.utilization:.0%} of the time, {stage.p50_s * 1e3:.3g} ms a call; the application waited for "
        f"items {waited:.0%} of the time"
    )
    if where in ("loop", "thread"):
        wider = f"concurrency={2 * stage.concurrency}, or executor='process' if it holds the GIL"
    else:
        wider = f"concurrency={2 * stage.concurrency}"
    if stage.utilization < 0.5:
        return f"{found}. No stage is busy: deepen prefetch, or look at what else the loop does"
    return f"{found}. Try {wider}"
