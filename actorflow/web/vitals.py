"""State of the process: memory, lateness of the loop, fullness, and reasons why old frames wait."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.actors.frame import Frame, what_it_waits_for
from actorflow.actors.op import OpActor, parts_of
from actorflow.core import clock_ns
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Variable
from actorflow.pipeline import live_loaders
from actorflow.pipeline.stages.stage import Stage
from actorflow.ranks.edges import messages_under_way
from actorflow.runtime.engine import Engine
from actorflow.spec import said
from actorflow.trace.batches import HistogramStatistics


def pipelines(graph: Graph) -> list[dict[str, Any]]:
    """One entry for each loader: how long the application waited, which stage to widen, its stages in order.

    Args:
        graph: ``feeds`` are the ids of its blobs that the loader feeds.
    """
    described = []
    for loader in live_loaders():
        stats, behind = loader.stats(), _behind(loader.stages)
        stages = [
            {
                "name": stage.name,
                "kind": stage.kind,
                "items": stage.items_out,
                "per_s": round(stage.items_per_s, 3),
                "running": stage.running,
                "concurrency": stage.concurrency,
                "held": stage.held,
                "queued": stage.queued,
                "room": stage.room,
                "busy": round(stage.utilization, 4),
                "p50_us": round(stage.p50_s * 1e6, 3),
                "p99_us": round(stage.p99_s * 1e6, 3),
                "skipped": stage.skipped,
                "behind": behind[number],
            }
            for number, stage in enumerate(stats.stages)
        ]
        described.append(
            {
                "delivered": stats.delivered,
                "elapsed_s": round(stats.elapsed_s, 3),
                "wait_s": round(stats.wait_s, 3),
                "queued": stats.queued,
                "room": stats.room,
                "bottleneck": loader.bottleneck(),
                "stages": stages,
                "feeds": _ids(graph, loader.fed),
            }
        )
    return described


def _behind(stages: list[Stage]) -> list[list[int]]:
    numbers = {stage: number for number, stage in enumerate(stages)}

    def sources(stage: Stage) -> list[int]:
        # A branch begins at a node that has no number of its own.
        return [n for up in stage.upstream for n in ([numbers[up]] if up in numbers else sources(up))]

    return [sources(stage) for stage in stages]


def _ids(graph: Graph, blobs: Iterable[Blob | str]) -> list[int]:
    nodes = [graph.resolve(blob) for blob in blobs if blob in graph]
    return [node.id for node in nodes if isinstance(node, Blob)]


def batches(engine: Engine) -> list[dict[str, Any]]:
    """One entry for each open batcher: its queue, outcomes of requests, and histograms; times in seconds."""
    return [
        {"number": number, **_plain(batcher.statistics()._asdict())}
        for number, batcher in sorted(engine.batchers.items())
    ]


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [each._asdict() for each in value]
        if name == "longest"
        else value
        if not isinstance(value, HistogramStatistics)
        else {
            "limits": value.limits,
            "counts": value.counts,
            "mean": value.mean,
            "p50": value.quantile(0.5),
            "p99": value.quantile(0.99),
        }
        for name, value in figures.items()
    }


#: Programs that are known at a time.
_MAX_PROGRAMS = 64
#: Blobs that are told of: a message must not grow with the graph.
_MAX_BLOBS = 4096


class _Parts:
    """Blobs of one program.

    Attributes:
        blobs: Ids of the blobs; not of variables, whose values outlive frames.
    """

    def __init__(self, ops: Sequence[OpActor]) -> None:
        self.ops = ops  # the program's ops, which its frames have as well
        slots: list[int] = []
        blobs: list[int] = []
        for actor in chain.from_iterable(map(parts_of, ops)):
            if actor.node_id != actor.node.id:
                continue  # it copies, sums or sends for the op
            for blob, written in zip(actor.node.outputs, actor.outputs, strict=False):
                if not isinstance(blob, Variable):
                    slots.append(written.slot)
                    blobs.append(blob.id)
        self.blobs, self._blob_of = np.unique(np.array(blobs, np.int64), return_inverse=True)
        self._slots = slots

    def held(self, values: list[Any]) -> npt.NDArray[np.int64]:
        """1 for each blob of which a frame has a value."""
        there = np.fromiter((values[slot] is not None for slot in self._slots), np.bool_, len(self._slots))
        held = np.zeros(len(self.blobs), np.int64)
        held[self._blob_of[there]] = 1  # one that is summed has several slots
        return held


def _fullest(held: Mapping[_Parts, npt.NDArray[np.int64]]) -> list[list[int]]:
    if not held:
        return []
    blobs, blob_of = np.unique(np.concatenate([parts.blobs for parts in held]), return_inverse=True)
    counts = np.bincount(blob_of, np.concatenate([*held.values()]), len(blobs)).astype(np.int64)
    order = np.argsort(-counts, kind="stable")[: min(_MAX_BLOBS, np.count_nonzero(counts))]
    return np.column_stack([blobs[order], counts[order]]).tolist()  # type: ignore[no-any-return]


def functions(engine: Engine) -> list[list[int]]:
    """Functions with calls that take a bounded number of frames at once: id, calls, that number, frames that wait."""
    turnstiles = {
        part.node_id: part.turnstile
        for frame in engine.resources.running
        for actor in chain((actor for actor, _ in frame.at_work), frame.resting)
        for part in parts_of(actor)
        if part.turnstile is not None and part.turnstile.limit < sys.maxsize
    }
    return [
        [node_id, turnstile.running, turnstile.limit, len(turnstile.parked or ())]
        for node_id, turnstile in sorted(turnstiles.items())
    ]


def streams(engine: Engine) -> list[dict[str, int]]:
    """Streams that run, and how many frames of each are in flight."""
    return [{"number": s.number, "held": s.held, "in_flight": s.in_flight} for s in engine.streams]


class Occupancy:
    """Counts the values that frames in flight hold, only when asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._programs: dict[int, _Parts] = {}

    def report(self) -> dict[str, Any]:
        """The content of ``occupancy`` in the ``vitals`` message, of now. It takes about 0.05 us per value."""
        frames = self._engine.running
        held: dict[_Parts, npt.NDArray[np.int64]] = {}
        for frame in frames:
            parts = self._parts_of(frame.ops)
            if frame.values:
                held[parts] = held.get(parts, 0) + parts.held(frame.values)
        return {
            "frames": len(frames),
            "blobs": _fullest(held),
            "channels": self._channels(frames),
        }

    def _channels(self, frames: Iterable[Frame]) -> list[list[int]]:
        """Blob, sender, receiver; in how many frames its message is not taken, and in how many it is awaited.

        Each end counts for itself: this rank's here, other ranks' as they were reported last.
        """
        ends = {rank: [*messages] for rank, messages in self._elsewhere().items()}
        own = messages_under_way(frames)
        if own:
            ends[self._engine.graph.world.rank] = [(*what, count) for what, count in own.items()]
        channels: dict[tuple[int, int, int], list[int]] = {}
        for rank, messages in ends.items():
            for node_id, peer, sends, count in messages:
                edge = (node_id, rank, peer) if sends else (node_id, peer, rank)
                channels.setdefault(edge, [0, 0])[0 if sends else 1] += count
        return [[*edge, *counts] for edge, counts in channels.items()]

    def _elsewhere(self) -> Mapping[int, list[tuple[int, int, bool, int]]]:
        monitor = self._engine.monitor
        return {} if monitor is None else monitor.messages

    def _parts_of(self, ops: Sequence[OpActor]) -> _Parts:
        parts = self._programs.get(id(ops))
        if parts is None:
            if len(self._programs) >= _MAX_PROGRAMS:
                self._programs.clear()
            parts = self._programs[id(ops)] = _Parts(ops)  # it keeps the list, so that its id stays its own
        return parts


#: A frame in which nothing has moved for so long is asked for the ops it waits for.
_OLD_S = 1.0
_MAX_FRAMES = 3
#: Frames that are looked at for that, the oldest.
_MAX_FOLLOWED = 16
#: That question, and the one how full everything is, go through the whole graph: they may take this share of the time.
_MAX_SHARE = 0.01
#: A pause in which no call ends while frames are in flight is worth a word when it is so long.
_QUIET_S = 5.0
#: Ticks that the loop's lateness is told of; about a minute.
_SAMPLES = 1000


def idle(engine: Engine) -> dict[str, Any] | None:
    """Since when no call has run, in seconds, and whether there was a stream; None while a frame or stream runs."""
    if engine.frames.in_flight or engine.streams:
        return None
    newest = engine.trace.since(engine.trace.total - 1).end_ns
    since_s = (clock_ns() - int(newest[0])) / 1e9 if len(newest) else None
    return {"since_s": since_s, "streamed": engine.stream_count > 0}


class Vitals:
    """Measures that need a history: lateness, frames that stand still."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lags_ms: deque[float] = deque(maxlen=_SAMPLES)
        self._seen: dict[int, _Still] = {}
        self._frames: list[dict[str, Any]] = []
        self._next_look_s = 0.0
        self._occupancy = Occupancy(engine)
        self._occupied: dict[str, Any] = {}
        self._next_count_s = 0.0
        self._calls = 0
        self._quiet_since_s = monotonic()

    def late(self, seconds: float) -> None:
        """A timer of the loop was late by so much."""
        self._lags_ms.append(seconds * 1e3)

    def report(self) -> dict[str, Any]:
        """The content of the ``vitals`` message, of now."""
        now_s = monotonic()
        return {
            "memory": memory_of(self._engine),
            "lag_ms": self._lag(),
            "waiting": self._waiting(now_s),
            "stalled_s": self._stalled(now_s),
            "idle": idle(self._engine),
            "occupancy": self._occupancies(now_s),
            "calls": self._engine.trace.total,
            "tracks": self._engine.trace.tracks,
            "pipelines": pipelines(self._engine.graph),
            "batchers": batches(self._engine),
        }

    def _stalled(self, now_s: float) -> float | None:
        """For how long no call has ended, once that is long; never while the graph is paused."""
        engine = self._engine
        if engine.trace.total != self._calls or not engine.running or engine.queue.is_held:
            self._calls, self._quiet_since_s = engine.trace.total, now_s
        quiet_s = now_s - self._quiet_since_s
        return round(quiet_s, 1) if quiet_s >= _QUIET_S else None

    def _occupancies(self, now_s: float) -> dict[str, Any]:
        if now_s >= self._next_count_s:
            start = perf_counter()
            self._occupied = self._occupancy.report()
            self._next_count_s = now_s + (perf_counter() - start) / _MAX_SHARE
        return self._occupied

    def _lag(self) -> dict[str, float] | None:
        if not self._lags_ms:
            return None
        ordered = sorted(self._lags_ms)
        count = len(ordered)
        return {
            "p50": round(ordered[count // 2], 3),
            "p99": round(ordered[count * 99 // 100], 3),
            "max": round(ordered[-1], 3),
            "now": round(self._lags_ms[-1], 3),
        }

    def _waiting(self, now_s: float) -> list[dict[str, Any]]:
        running, seen = self._engine.running[:_MAX_FOLLOWED], self._seen
        still = {frame.number: _Still(now_s, *_place_of(frame)) for frame in running}
        # A long frame in which calls end does not wait.
        self._seen = {
            number: seen[number] if number in seen and seen[number][1:] == now[1:] else now
            for number, now in still.items()
        }
        old = [frame for frame in running if now_s - self._seen[frame.number].since_s >= _OLD_S][:_MAX_FRAMES]
        if not old:
            self._frames = []
        elif now_s >= self._next_look_s:
            start = perf_counter()
            self._frames = [
                {"frame": frame.number, "lengths": said(frame.lengths), "waits": what_it_waits_for(frame)}
                for frame in old
            ]
            self._next_look_s = now_s + (perf_counter() - start) / _MAX_SHARE
        return [
            {**frame, "seconds": round(now_s - self._seen[frame["frame"]].since_s, 1)}
            for frame in self._frames
            if frame["frame"] in {each.number for each in old}
        ]


class _Still(NamedTuple):
    """Where a frame is, and since when it has not come further."""

    since_s: float
    position: tuple[Any, ...]
    under_way: frozenset[int]


def _place_of(frame: Frame) -> tuple[tuple[Any, ...], frozenset[int]]:
    return frame.position, frozenset(map(id, [*frame.outstanding.values()]))


def memory_of(engine: Engine) -> list[dict[str, Any]]:
    """Memory of each open device, in bytes; ``budget`` is None without a limit."""
    return [
        {
            "place": str(place),
            "held": device.memory.held_bytes,
            "used": device.memory.used_bytes,
            "peak": device.memory.peak_bytes,
            "budget": device.memory.budget_bytes,
            "allocations": device.memory.allocations,
        }
        for place, device in engine.resources.devices.items()
    ]
