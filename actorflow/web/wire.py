"""The messages of the live page's WebSocket; pure encoding. docs/how-to/watching.md describes them for other clients.

From the server, in the order of a snapshot:

- ``graph`` (text, `capture`): name, revision, nodes, edges, and the op that each is made for; the page places them.
- states (binary, `encode_states`): all ops (a full message) or the changed ones (a delta).
- ``status`` (text, `encode_status`): frames, those under way, curves, failures, notes; all of them (full) or those
  new. Behind states there is always one, of the same moment.
- ``control`` (text, `encode_control`): who has paused the graph, how many frames of its streams may overlap, and what
  was commanded last; when it changes.
- ``heartbeat`` (text): nothing happened for a while.
- ``vitals`` (text, `encode_vitals`): memory, lateness of the loop, ops that old frames wait for, fullness, data
  pipelines; about once a second.
- ``values``, ``sample`` and ``norms`` (text, `actorflow.web.values`): to clients that have asked for values, in any
  place behind the ``graph``.
- ``tracks`` (text) and calls (binary), both by `encode_calls`: to clients that have asked for the timeline. The
  former has the lengths of frames' open axes in words, too.

States and status messages carry ``base`` and ``seq``: a client whose latest message of that kind had number ``base``
or a later one, and which applies this one, is at ``seq``. A full message has base 0 and always applies. One whose base
is above what the client has leaves a gap, as does a heartbeat whose ``states`` or ``status`` is; the client then sends
``{"type": "resync"}`` and gets a snapshot.

A binary message is little-endian. After a header of 32 bytes come arrays, one element per op or call, aligned for a
browser's typed arrays. Of states:

====== ======= ========================================================================
offset type    meaning
====== ======= ========================================================================
0      u32     1 = full, 2 = delta
4      u32     n, number of ops
8      u32     base
12     u32     seq
16     f64     time of the server, Unix seconds
24     u32     revision of the graph
28     u32     m, number of these ops of which calls have failed
32     u32[n]  index of the op in the ``nodes`` of the ``graph`` message
...    u32[n]  calls that have ended well
...    f32[n]  mean time of a call, microseconds
...    f32[n]  time of the latest call, microseconds
...    f32[n]  median time of a call, microseconds, estimated; 0 if unknown
...    f32[n]  99th percentile, likewise
...    f32[n]  longest call of those that were looked at, microseconds
...    u8[n]   `actorflow.trace.counters.NodeState`
...    u8[n]   index in the ``tracks`` of the ``vitals`` message of the latest call; 255 if unknown
...    u32[m]  from the next multiple of 4 on: index of each op of which calls have failed
...    u32[m]  how many of its calls have failed, repeated or not
====== ======= ========================================================================

Of calls, where the header's first number is 3, its ``base`` the number of calls left out, its ``seq`` and last 0:

====== ======= ========================================================================
offset type    meaning
====== ======= ========================================================================
32     f64[n]  begin, seconds since the ``origin`` of the ``tracks`` message
...    u32[n]  index of the node in the ``nodes`` of the ``graph`` message
...    u32[n]  number of the frame
...    f32[n]  length, microseconds
...    u16[n]  index in the ``names`` of the ``tracks`` message
...    u8[n]   1 = the call has failed; the ``errors`` of the ``tracks`` message say how
====== ======= ========================================================================
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import text_of
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Node, Op, Variable
from actorflow.runtime.call import GraphCall
from actorflow.spec import Length, said
from actorflow.trace.counters import FailureRecord, NodeNote
from actorflow.trace.ring import Calls, EndedRequest, Trace
from actorflow.trace.values import ValueStatistics
from actorflow.web.http import to_json
from actorflow.web.pictures import finite

#: Header of a binary message: type, count, base, seq, time, revision, count of ops of which calls have failed.
HEADER = struct.Struct("<IIIIdII")

_FULL, _DELTA, _CALLS = 1, 2, 3


class OpStates(NamedTuple):
    """State and profile of some ops, as parallel arrays."""

    node: npt.NDArray[np.uint32]  # uint32, index of each op among the graph's nodes
    calls: npt.NDArray[np.uint32]  # uint32
    mean_us: npt.NDArray[np.float32]  # float32
    last_us: npt.NDArray[np.float32]  # float32
    p50_us: npt.NDArray[np.float32]  # float32, estimated; 0 if unknown
    p99_us: npt.NDArray[np.float32]  # float32
    max_us: npt.NDArray[np.float32]  # float32, of the calls that were looked at
    state: npt.NDArray[np.uint8]  # uint8, `NodeState`
    track: npt.NDArray[np.uint8]  # uint8, index in `actorflow.trace.ring.Trace.tracks`; 255 if unknown

    @classmethod
    def zeros(cls, node: npt.NDArray[np.uint32]) -> OpStates:
        """Idle ops without calls."""
        count = len(node)
        mean, last, p50, p99, longest = np.zeros((5, count), np.float32)
        state, track = np.zeros(count, np.uint8), np.full(count, 255, np.uint8)
        return cls(node, np.zeros(count, np.uint32), mean, last, p50, p99, longest, state, track)

    def take(self, rows: npt.NDArray[np.intp]) -> OpStates:
        """Some of the ops."""
        return OpStates._make(column[rows] for column in self)


def encode_states(
    states: OpStates, failed: npt.NDArray[np.uint32], *, base: int, seq: int, time_s: float, revision: int, full: bool
) -> bytes:
    """A binary message; see the module's description.

    Args:
        failed: Ops with failed calls: index among the graph's nodes, number of failed calls;
            shape (2, ops). They are few, as a rule, so this is not a column of the states.
        base: First sequence number that it applies to.
    """
    kind = _FULL if full else _DELTA
    header = HEADER.pack(kind, len(states.node), base, seq, time_s, revision, failed.shape[1])
    columns = [_bytes(column) for column in states]
    return b"".join([header, *columns, bytes(-sum(map(len, columns)) % 4), _bytes(failed)])


def _bytes(column: npt.NDArray[Any]) -> bytes:
    return column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()


def encode_calls(
    trace: Trace,
    calls: Calls,
    requests: Iterable[EndedRequest],
    index_of: npt.NDArray[np.int64],
    *,
    time_s: float,
    revision: int,
    most: int,
) -> list[str | bytes]:
    """The newest calls: the ``tracks`` message and the binary one; see the module's description.

    Args:
        index_of: Index of a node in the ``graph`` message by its id; calls of nodes with -1 are left out.
    """
    keep = np.flatnonzero(calls.node < len(index_of))
    keep = keep[index_of[calls.node[keep]] >= 0][-most:]
    start_ns = calls.start_ns[keep]
    failed = calls.failed[keep]
    columns = (
        (start_ns - trace.origin_ns) / 1e9,
        index_of[calls.node[keep]].astype(np.uint32),
        calls.frame[keep].astype(np.uint32),
        ((calls.end_ns[keep] - start_ns) / 1e3).astype(np.float32),
        calls.track[keep].astype(np.uint16),
        failed.astype(np.uint8),
    )
    lost = calls.lost + len(calls.node) - len(keep)
    header = HEADER.pack(_CALLS, len(keep), min(lost, 0xFFFFFFFF), 0, time_s, revision, 0)
    errors = [[at, calls.errors[int(keep[at])]] for at in np.flatnonzero(failed).tolist()]
    frames = set(calls.frame[keep].tolist()) if calls.lengths else ()
    lengths = [[frame, said(lengths)] for frame, lengths in calls.lengths.items() if frame in frames]
    asked = [
        [(each.start_ns - trace.origin_ns) / 1e9, (each.end_ns - trace.origin_ns) / 1e9, [*each.frames], each.outcome]
        for each in requests
    ]
    tracks = {
        "type": "tracks",
        "names": trace.tracks,
        "origin": trace.origin_s,
        "errors": errors,
        "lengths": lengths,
        "requests": asked,
    }
    return [json.dumps(tracks), b"".join([header, *[_bytes(column) for column in columns]])]


def encode_vitals(report: Mapping[str, Any], time_s: float) -> str:
    """The ``vitals`` message: `actorflow.web.vitals.Vitals.report`, of now."""
    return to_json({"type": "vitals", "time": time_s, **report})


def encode_status(
    now: Mapping[str, Any],
    curves: Mapping[str, Sequence[tuple[int, float]]],
    failures: Iterable[FailureRecord],
    notes: Iterable[NodeNote],
    *,
    base: int,
    seq: int,
    time_s: float,
    full: bool,
) -> str:
    """The ``status`` message.

    Args:
        now: Values that replace the client's: ``frames``, counts since the graph's engine was made, and what is under
            way, ``tracks``, ``functions``, ``streams``.
        curves: (frame, value) points to append, by name; a value that is not finite becomes null, as JSON has none.
        notes: Texts to append to the notes of nodes.
        base: First sequence number that it applies to.
        full: Whether points, failures and notes replace the client's.
    """
    message: dict[str, Any] = {
        "type": "status",
        "full": full,
        "base": base,
        "seq": seq,
        "time": time_s,
        **now,
        "curves": {name: columns(points) for name, points in curves.items()},
        "failures": [_failure(failure) for failure in failures],
        "notes": [{"id": note.node_id, "text": note.text} for note in notes],
    }
    return to_json(message)


def _failure(failure: FailureRecord) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "time": failure.time_s,
        "frame": failure.frame,
        "op_id": failure.op_id,
        "message": failure.message,
    }
    found = failure.not_finite
    if found is not None:
        entry["not_finite"] = {
            "inputs": [{"name": name, **_held(values)} for name, values in found.inputs.items()],
            "results": [_held(values) for values in found.results],
            "paused": found.paused,
        }
    return entry


def _held(values: ValueStatistics) -> dict[str, Any]:
    figures = {name: finite(getattr(values, name)) for name in ("minimum", "maximum", "mean", "std")}
    return {
        "shape": values.shape,
        "dtype": str(values.dtype),
        "nan": values.nan,
        "infinite": values.infinite,
        **figures,
    }


def columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float | None]]:
    """Frames and values of a curve; a value that is not finite becomes None, as JSON has none."""
    return [frame for frame, _ in points], [finite(value) for _, value in points]


def encode_control(state: Mapping[str, Any], command: Mapping[str, Any] | None) -> str:
    """The ``control`` message: `actorflow.web.control.control_state`, and the last command, if there was one."""
    return to_json({"type": "control", **state, "command": command})


def encode_heartbeat(states: int, status: int) -> str:
    """The ``heartbeat`` message: the numbers of the latest states and status messages."""
    return json.dumps({"type": "heartbeat", "states": states, "status": status})


class EncodedGraph(NamedTuple):
    """A graph at one revision, encoded."""

    revision: int  # `Graph.revision` at the time
    message: str  # the ``graph`` message of `actorflow.web.wire`, ready to send
    names: Sequence[str]  # name of each node, in the message's order
    op_ids: npt.NDArray[np.int64]  # `Node.id` of each op, ascending
    op_index: npt.NDArray[np.uint32]  # index in the message's ``nodes`` of each op
    index_of: npt.NDArray[np.int64]  # index in the message's ``nodes`` by `Node.id`; -1 for ids that no node has


def capture(name: str, revision: int, nodes: Sequence[Node], paths: Mapping[Graph, str] | None = None) -> EncodedGraph:
    """Describe a graph; safe in a thread, as it reads only objects that are replaced, never changed.

    Args:
        revision: The graph's revision when ``nodes`` was taken.
        paths: Where the pages of graphs are that are served beside this one's; of ops that call these it is told.
    """
    paths = paths or {}
    index = {node: i for i, node in enumerate(nodes)}
    edges: list[tuple[int, int, int]] = []
    for at, op in enumerate(nodes):
        if isinstance(op, Op):
            # A blob that was made or deleted meanwhile is not in `nodes`; the next revision brings it.
            edges += [(index[blob], at, 0) for blob in op.inputs if blob in index]
            edges += [(at, index[blob], int(isinstance(blob, Variable))) for blob in op.outputs if blob in index]
    ids = np.fromiter((node.id for node in nodes), np.int64, len(nodes))
    is_op = np.fromiter((isinstance(node, Op) for node in nodes), np.bool_, len(nodes))
    index_of = np.full(int(ids.max(initial=-1)) + 1, -1, np.int64)
    index_of[ids] = np.arange(len(nodes))
    # One call per node: a single call for all of them would hold the GIL, and with it the loop, for its whole length.
    encoded = ", ".join([to_json(_describe(node, paths)) for node in nodes])
    folded = [
        (at, index[of], int(is_update))
        for at, node in enumerate(nodes)
        for of, is_update in _made_for(node)
        if of in index
    ]
    head = json.dumps(
        {"type": "graph", "name": name, "revision": revision, "edges": edges, "folded": folded, "others": bool(paths)}
    )
    message = f'{head[:-1]}, "nodes": [{encoded}]}}'
    op_index = np.flatnonzero(is_op).astype(np.uint32)
    return EncodedGraph(revision, message, [node.name for node in nodes], ids[is_op], op_index, index_of)


def _made_for(node: Node) -> list[tuple[Node, bool]]:
    """The node that a node is made for (`Op.of`), and whether it is its update; empty for other nodes."""
    if isinstance(node, Op):
        return [] if node.of is None else [(node.of, any(isinstance(blob, Variable) for blob in node.outputs))]
    assert isinstance(node, Blob)
    made = [_made_for(op) for op in node.producers]
    # A weight is updated, but is not a part of its update, as the optimizer's state is.
    is_own = isinstance(node, Variable) and not node.is_state
    return made[0] if made and all(made) and not is_own else []


def called_by(op: Op) -> Graph | None:
    """The graph that an op runs, if it was made by `Graph.call`."""
    return op.operation.fn.graph if isinstance(op.operation, GraphCall) else None


def _describe(node: Node, paths: Mapping[Graph, str]) -> dict[str, Any]:
    described = {
        "id": node.id,
        "name": node.name,
        "label": node.name.rpartition("/")[2],
        "rank": node.place.rank,
        "device": str(node.place).rpartition("/")[2],
        "site": str(node.site),
    }
    if isinstance(node, Op):
        described |= {
            "kind": "op",
            "operation": text_of(node.operation),
            "operation_kind": node.operation.kind,
            "lane": node.lane or "auto",
            "flops": _flops(node),
        }
        called = called_by(node)
        if called is not None and called in paths:
            described["calls"] = {"graph": called.name, "path": paths[called]}
    elif isinstance(node, Blob):
        shape: tuple[Any, ...] = node.shape
        described |= {
            "kind": "variable" if isinstance(node, Variable) else "blob",
            "shape": [_said(length) for length in shape],
            "dtype": str(node.dtype),
            "bytes": None if node.spec.axes else node.spec.size_bytes,
        }
    return described


def _flops(op: Op) -> int | str | None:
    cost = op.operation.cost([x.spec for x in op.inputs], [y.spec for y in op.outputs]) if op.outputs else None
    return None if cost is None else _said(cost.flops)


def _said(length: Any) -> int | str:
    return str(length) if isinstance(length, Length) else int(length)
