"""Shows on rank 0 what the other ranks do: states and times of ops, the newest calls, messages that wait.

The other ranks report at a tick, and not per event.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Protocol

import numpy as np
import numpy.typing as npt

from actorflow.actors.frame import Frame
from actorflow.actors.under_way import UnderWay
from actorflow.graph.graph import Graph
from actorflow.ranks.edges import messages_under_way
from actorflow.ranks.peers import Peers
from actorflow.trace.counters import Changes, Monitor, OpProfile
from actorflow.trace.ring import Trace

_INTERVAL_S = 0.06  # seconds between two reports of a rank; the live page's own ticks are as long
#: One op in a report: its number on the rank that reports, and its state, calls and times there.
_RECORD = np.dtype(
    [("id", "<i4"), ("state", "u1"), ("calls", "<i8"), ("failed", "<i8"), ("total_ns", "<i8"), ("last_ns", "<i8")]
)
#: One call in a report: its node's number there, and its begin and end in Unix nanoseconds.
_CALL = np.dtype([("id", "<i4"), ("track", "<i4"), ("frame", "<i8"), ("start_ns", "<i8"), ("end_ns", "<i8")])
_MAX_CALLS = 500  # calls in one report; of more, the newest


class Watched(Protocol):
    """Measurements of a graph that are shown."""

    graph: Graph
    trace: Trace
    monitor: Monitor | None
    running: set[Frame]

    @property
    def profile(self) -> dict[int, OpProfile]:
        """Calls and times by `Node.id` of the op."""

    def watch(self) -> Monitor:
        """Keep states per op from the next frame on, until `unwatch`."""

    def unwatch(self) -> None:
        """One watcher less."""


class Watching:
    """Has the ranks report to rank 0 while it is watched.

    Nodes have the same names on all ranks, but not the same numbers: a rank that begins to report says which is which.
    """

    def __init__(self, shown: Watched, peers: Peers) -> None:
        self._shown = shown  # measurements of the graph on this rank
        self._peers = peers  # counterparts that its notes go to
        self._changes: Changes | None = None
        self._under_way = UnderWay({}, {})
        self._calls = 0  # up to which position of the trace they were reported
        self._messages: list[tuple[int, int, bool, int]] = []  # as they were reported
        self._timer: asyncio.TimerHandle | None = None
        self._numbers: dict[int, npt.NDArray[np.intp]] = {}  # on rank 0: here, by rank and number there
        peers.handlers |= {
            "watch": self._heard_watch,
            "nodes": self._heard_nodes,
            "states": self._heard_states,
            "calls": self._heard_calls,
            "messages": self._heard_messages,
        }

    def start(self) -> None:
        """Start watching this rank: if it is rank 0, all others report to it."""
        self._tell_others(True)

    def stop(self) -> None:
        """Stop watching."""
        self._tell_others(False)

    def close(self) -> None:
        """Stop reporting."""
        self._heard_watch(0, False)

    def _tell_others(self, on: bool) -> None:
        if self._peers.transport.rank == 0:
            for rank in range(1, self._peers.transport.size):
                self._peers.post(rank, "watch", on)

    def _heard_watch(self, _: int, on: bool) -> None:
        if on and self._changes is None:
            nodes = self._shown.graph.nodes
            self._peers.post(0, "nodes", [node.id for node in nodes], [node.name for node in nodes])
            monitor = self._shown.watch()
            self._changes = monitor.changes()
            self._calls = self._shown.trace.total
            self._report()
        elif not on and self._changes is not None:
            assert self._timer is not None
            self._timer.cancel()
            self._timer = self._changes = None
            self._report_messages([])
            self._shown.unwatch()

    def _report(self) -> None:
        shown, changes = self._shown, self._changes
        assert changes is not None
        assert shown.monitor is not None
        before, self._under_way = self._under_way, UnderWay.of(shown.running)
        moved = [node_id for node_id, _ in before.states.items() ^ self._under_way.states.items()]
        ids = np.union1d(changes.take(), np.array(moved, np.intp))
        if len(ids):
            records = np.zeros(len(ids), _RECORD)
            records["id"] = ids
            records["state"] = self._under_way.over(np.frombuffer(shown.monitor.states, np.uint8))[ids]
            for record, node_id in zip(records, ids.tolist(), strict=True):
                profile = shown.profile.get(node_id)
                if profile is not None:
                    record["calls"], record["failed"] = profile.calls, profile.failed
                    record["total_ns"], record["last_ns"] = profile.total_ns, profile.last_ns
            self._peers.post(0, "states", base64.b64encode(records.tobytes()).decode())
        self._report_calls()
        counts = messages_under_way(shown.running)
        self._report_messages([(*what, count) for what, count in counts.items()])
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._report)

    def _report_calls(self) -> None:
        trace = self._shown.trace
        if self._calls == trace.total:
            return
        calls = trace.since(max(self._calls, trace.total - _MAX_CALLS))
        self._calls = trace.total
        records = np.zeros(len(calls.node), _CALL)
        records["id"], records["track"], records["frame"] = calls.node, calls.track, calls.frame
        shift_ns = _shift_ns(trace)
        records["start_ns"], records["end_ns"] = calls.start_ns + shift_ns, calls.end_ns + shift_ns
        errors = list(calls.errors.items())
        self._peers.post(0, "calls", base64.b64encode(records.tobytes()).decode(), trace.tracks, errors)

    def _report_messages(self, messages: list[tuple[int, int, bool, int]]) -> None:
        # Again and again while there are any: those that stay matter most, and rank 0 may have forgotten them.
        if messages or self._messages:
            self._peers.post(0, "messages", messages)
        self._messages = messages

    def _heard_nodes(self, rank: int, ids: list[int], names: list[str]) -> None:
        graph = self._shown.graph
        numbers = self._numbers[rank] = np.full(max(ids, default=-1) + 1, -1, np.intp)
        for node_id, name in zip(ids, names, strict=True):
            if name in graph:
                numbers[node_id] = graph[name].id

    def _heard_states(self, rank: int, content: str) -> None:
        monitor = self._shown.monitor
        if monitor is None:
            return
        records = np.frombuffer(base64.b64decode(content), _RECORD)
        numbers = self._numbers[rank]
        for record in records[records["id"] < len(numbers)].tolist():
            node_id, state, calls, failed, total_ns, last_ns = record
            here = int(numbers[node_id])
            if 0 <= here < len(monitor.states):
                profile = self._shown.profile.setdefault(here, OpProfile())
                profile.calls, profile.failed = calls, failed
                profile.total_ns, profile.last_ns = total_ns, last_ns
                monitor.states[here] = state
                monitor.dirty[here] = 1

    def _heard_calls(self, rank: int, content: str, tracks: list[str], errors: list[tuple[int, str]]) -> None:
        trace, numbers = self._shown.trace, self._numbers[rank]
        shift_ns = _shift_ns(trace)
        records = np.frombuffer(base64.b64decode(content), _CALL)
        texts = dict(errors)
        for row, (node_id, track, frame, start_ns, end_ns) in enumerate(records.tolist()):
            here = int(numbers[node_id]) if node_id < len(numbers) else -1
            if here >= 0:
                key = trace.key(here, f"rank {rank}: {tracks[track]}")
                call = end_ns - shift_ns, end_ns - start_ns, key, frame
                if row in texts:
                    trace.add_failed(*call, texts[row])
                else:
                    trace.add(*call)

    def _heard_messages(self, rank: int, messages: list[tuple[int, int, bool, int]]) -> None:
        monitor, numbers = self._shown.monitor, self._numbers[rank]
        if monitor is not None:
            here = [(int(numbers[message[0]]) if message[0] < len(numbers) else -1, message) for message in messages]
            monitor.messages[rank] = [(node_id, *message[1:]) for node_id, message in here if node_id >= 0]


def _shift_ns(trace: Trace) -> int:
    """From a trace's clock to Unix nanoseconds, which all machines count alike, as far as their clocks agree."""
    return int(trace.origin_s * 1e9) - trace.origin_ns
