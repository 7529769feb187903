"""The messages of the live page's WebSocket; pure encoding. docs/watching.md describes them for other clients.

From the server, in the order of a snapshot:

- ``graph`` (text, `actorflow.web.structure`): name, revision, nodes and edges with their places.
- states (binary, `encode_states`): all ops (a full message) or those that changed (a delta).
- ``status`` (text, `encode_status`): frames, curves, failures, notes; all of them (full) or what is new.
- ``heartbeat`` (text): nothing happened for a while.

States and status messages carry ``base`` and ``seq``: a client whose latest message of that kind had number ``base``
or a later one, and which applies this one, is at ``seq``. A full message has base 0 and always applies. One whose base
is above what the client has leaves a gap, as does a heartbeat whose ``states`` or ``status`` is; the client then sends
``{"type": "resync"}`` and gets a snapshot.

A binary message is little-endian. After a header of 32 bytes come five arrays, one element per op, aligned for a
browser's typed arrays:

====== ======= ========================================================================
offset type    meaning
====== ======= ========================================================================
0      u32     1 = full, 2 = delta
4      u32     n, number of ops
8      u32     base
12     u32     seq
16     f64     time of the server, Unix seconds
24     u32     revision of the graph
28     u32     0
32     u32[n]  index of the op in the ``nodes`` of the ``graph`` message
...    u32[n]  finished calls
...    f32[n]  mean time of a call, microseconds
...    f32[n]  time of the latest call, microseconds
...    u8[n]   `actorflow.trace.NodeState`
====== ======= ========================================================================
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from actorflow.trace import Note

__all__ = ["HEADER", "OpStates", "encode_heartbeat", "encode_states", "encode_status"]

#: Header of a binary message: type, count, base, seq, time, revision, reserved.
HEADER = struct.Struct("<IIIIdII")

_FULL, _DELTA = 1, 2


class OpStates(NamedTuple):
    """State and profile of some ops, as parallel arrays.

    Attributes:
        node: uint32, index of each op among the graph's nodes.
        calls: uint32.
        mean_us: float32.
        last_us: float32.
        state: uint8, `NodeState`.
    """

    node: npt.NDArray[np.uint32]
    calls: npt.NDArray[np.uint32]
    mean_us: npt.NDArray[np.float32]
    last_us: npt.NDArray[np.float32]
    state: npt.NDArray[np.uint8]

    @classmethod
    def zeros(cls, node: npt.NDArray[np.uint32]) -> OpStates:
        """Idle ops without calls."""
        count = len(node)
        floats = np.zeros(count, np.float32), np.zeros(count, np.float32)
        return cls(node, np.zeros(count, np.uint32), *floats, np.zeros(count, np.uint8))

    def take(self, rows: npt.NDArray[np.intp]) -> OpStates:
        """Some of the ops."""
        return OpStates(self.node[rows], self.calls[rows], self.mean_us[rows], self.last_us[rows], self.state[rows])


class FrameNumbers(Protocol):
    """What is sent of `actorflow.trace.FrameCounts`."""

    started: int
    finished: int
    failed: int
    cancelled: int


class Failure(Protocol):
    """What is sent of a failed frame: ``engine.errors`` holds these."""

    @property
    def time_s(self) -> float: ...
    @property
    def frame(self) -> int: ...
    @property
    def op_id(self) -> int | None: ...
    @property
    def message(self) -> str: ...


def encode_states(states: OpStates, *, base: int, seq: int, time_s: float, revision: int, full: bool) -> bytes:
    """A binary message; see the module's description."""
    kind = _FULL if full else _DELTA
    header = HEADER.pack(kind, len(states.node), base, seq, time_s, revision, 0)
    columns = (column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes() for column in states)
    return b"".join((header, *columns))


def encode_status(
    frames: FrameNumbers,
    curves: Mapping[str, Sequence[tuple[int, float]]],
    failures: Iterable[Failure],
    notes: Iterable[Note],
    *,
    base: int,
    seq: int,
    time_s: float,
    full: bool,
) -> str:
    """The ``status`` message.

    Args:
        frames: Counts since the graph's engine was made.
        curves: (frame, value) points to append, by name; a value that is not finite becomes null, as JSON has none.
        failures: Failed frames to append.
        notes: What to append to what is said of nodes.
        base: First sequence number that it applies to.
        seq: Sequence number after it.
        time_s: Unix seconds.
        full: Whether points, failures and notes replace what the client has.
    """
    message: dict[str, Any] = {
        "type": "status",
        "full": full,
        "base": base,
        "seq": seq,
        "time": time_s,
        "frames": {
            "started": frames.started,
            "finished": frames.finished,
            "failed": frames.failed,
            "cancelled": frames.cancelled,
        },
        "curves": {
            name: [[frame for frame, _ in points], [_finite(value) for _, value in points]]
            for name, points in curves.items()
        },
        "failures": [{"time": f.time_s, "frame": f.frame, "op_id": f.op_id, "message": f.message} for f in failures],
        "notes": [{"id": note.node_id, "text": note.text} for note in notes],
    }
    return json.dumps(message, allow_nan=False)


def encode_heartbeat(states: int, status: int) -> str:
    """The ``heartbeat`` message: the numbers of the latest states and status messages."""
    return json.dumps({"type": "heartbeat", "states": states, "status": status})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
