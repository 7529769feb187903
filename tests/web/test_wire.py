"""Messages can be read by the documented format."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.trace.counters import FailureRecord, NodeNote, NotFiniteRecord
from actorflow.trace.values import statistics_of
from actorflow.web.wire import HEADER, OpStates, encode_heartbeat, encode_states, encode_status

_U32 = st.integers(0, 2**32 - 1)
_F32 = st.floats(0, 2.0**100, width=32)


@given(
    rows=st.lists(st.tuples(_U32, _U32, *[_F32] * 5, st.integers(0, 7), st.integers(0, 255)), max_size=20),
    base=_U32,
    seq=_U32,
    revision=_U32,
    full=st.booleans(),
    time_s=st.floats(0, 1e10),
    failed=st.dictionaries(_U32, _U32, max_size=5),
)
def test_states_round_trip(decode_message, rows, base, seq, revision, full, time_s, failed) -> None:
    columns = list(zip(*rows, strict=True)) or [()] * 9
    dtypes = (np.uint32, np.uint32, *[np.float32] * 5, np.uint8, np.uint8)
    states = OpStates(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)))
    failures = np.array([[*failed], [*failed.values()]], np.uint32)
    data = encode_states(states, failures, base=base, seq=seq, time_s=time_s, revision=revision, full=full)
    read = decode_message(data)
    assert (read.base, read.seq, read.revision, read.full, read.time) == (base, seq, revision, full, time_s)
    times = [read.mean_us, read.last_us, read.p50_us, read.p99_us, read.max_us]
    shown = [read.index, read.calls, *times, read.state, read.track]
    assert shown == [tuple(column) for column in columns]
    assert read.failed == failed


def test_columns_are_aligned_for_typed_arrays() -> None:
    assert HEADER.size % 8 == 0
    states = OpStates.zeros(np.arange(3, dtype=np.uint32))
    assert [column.itemsize for column in states] == [4, 4, 4, 4, 4, 4, 4, 1, 1], (
        "bytes come last, or the rest is misaligned"
    )


def test_take_picks_rows() -> None:
    states = OpStates.zeros(np.array([5, 7, 9], np.uint32))
    states.calls[:] = [1, 2, 3]
    taken = states.take(np.array([2, 0]))
    assert taken.node.tolist() == [9, 5]
    assert taken.calls.tolist() == [3, 1]


def test_status_has_everything() -> None:
    now = {
        "frames": {"started": 9, "finished": 5, "failed": 2, "cancelled": 1},
        "tracks": [["cpu lane0", [7], 2]],
        "functions": [[7, 1, 2, 0]],
        "streams": [{"number": 0, "held": 1, "in_flight": 2}],
    }
    failure = FailureRecord(1.5, 3, 7, "it <b>broke</b>")
    curves = {"loss": [(1, 0.5), (2, 0.25)]}
    notes = [NodeNote(8, "copied cpu -> sim:0")]
    text = encode_status(now, curves, [failure], notes, base=3, seq=4, time_s=2.5, full=False)
    assert json.loads(text) == {
        "type": "status",
        "full": False,
        "base": 3,
        "seq": 4,
        "time": 2.5,
        **now,
        "curves": {"loss": [[1, 2], [0.5, 0.25]]},
        "failures": [{"time": 1.5, "frame": 3, "op_id": 7, "message": "it <b>broke</b>"}],
        "notes": [{"id": 8, "text": "copied cpu -> sim:0"}],
    }


def test_what_is_not_finite_has_its_statistics() -> None:
    read, made = statistics_of(np.array([1.0, -1.0], "f")), statistics_of(np.array([0.0, np.nan], "f"))
    nothing = statistics_of(np.array([np.inf]))
    found = FailureRecord(1.5, 3, 7, "it", NotFiniteRecord({"x": read}, (made, nothing), paused=True))
    [failure] = json.loads(encode_status({}, {}, [found], [], base=0, seq=1, time_s=0.0, full=True))["failures"]
    same = {"shape": [2], "dtype": "float32", "nan": 0, "infinite": 0}
    assert failure["not_finite"] == {
        "inputs": [{"name": "x", **same, "minimum": -1, "maximum": 1, "mean": 0, "std": 1}],
        "results": [
            {**same, "nan": 1, "minimum": 0, "maximum": 0, "mean": 0, "std": 0},
            {**same, "shape": [1], "dtype": "float64", "infinite": 1}
            | dict.fromkeys(("minimum", "maximum", "mean", "std")),
        ],
        "paused": True,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_diverged_loss_is_still_json(value: float) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    text = encode_status({}, {"loss": [(0, value)]}, [], [], base=0, seq=1, time_s=0.0, full=True)
    assert json.loads(text, parse_constant=refuse)["curves"] == {"loss": [[0], [None]]}


def test_heartbeat(decode_message) -> None:
    assert decode_message(encode_heartbeat(3, 5)) == SimpleNamespace(type="heartbeat", states=3, status=5)
