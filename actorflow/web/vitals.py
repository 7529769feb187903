"""How the process is: memory, how late the loop is, what is how full, and what old frames wait for."""

from __future__ import annotations

from collections import deque
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from actorflow.actors.frame import what_it_waits_for
from actorflow.web.occupancy import Occupancy
from actorflow.web.pipelines import pipelines

if TYPE_CHECKING:
    from actorflow.runtime.engine import Engine

#: A frame that has been seen for so long is asked what it waits for.
_OLD_S = 1.0
_MAX_FRAMES = 3
#: That question, and the one how full everything is, go through the whole graph: they may take this share of the time.
_MAX_SHARE = 0.01
#: A pause in which no call ends while frames are in flight is worth a word when it is so long.
_QUIET_S = 5.0
#: Ticks that the loop's lateness is told of; about a minute.
_SAMPLES = 1000


class Vitals:
    """Keeps what must be seen over time.

    Args:
        engine: Whose.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lags_ms: deque[float] = deque(maxlen=_SAMPLES)
        self._seen_s: dict[int, float] = {}
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
            "occupancy": self._occupancies(now_s),
            "calls": self._engine.trace.total,
            "tracks": self._engine.trace.tracks,
            "pipelines": pipelines(self._engine.graph),
        }

    def _stalled(self, now_s: float) -> float | None:
        """For how long no call has ended, once that is long; never while somebody holds the frames."""
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
        running = self._engine.running
        self._seen_s = {frame.number: self._seen_s.get(frame.number, now_s) for frame in running}
        old = [frame for frame in running if now_s - self._seen_s[frame.number] >= _OLD_S][:_MAX_FRAMES]
        if not old:
            self._frames = []
        elif now_s >= self._next_look_s:
            start = perf_counter()
            self._frames = [{"frame": frame.number, "waits": what_it_waits_for(frame)} for frame in old]
            self._next_look_s = now_s + (perf_counter() - start) / _MAX_SHARE
        return [
            {**frame, "seconds": round(now_s - self._seen_s[frame["frame"]], 1)}
            for frame in self._frames
            if frame["frame"] in self._seen_s
        ]


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
        for place, device in engine.devices.items()
    ]
