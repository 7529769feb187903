"""Traces taken away: as arrays, as files of the trace viewers' format and back, of ours and of other programs."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.trace.recording import GONE, Recording, TraceCopy, read_trace
from actorflow.trace.ring import Trace

SQUARE = af.TensorSpec.of((4, 4))
FEED = {"x": np.ones((4, 4), "float32")}


def recorded(calls: list[tuple[int, int, str]], names: list[str]) -> Recording:
    """One call of each node on the track that it names; the nodes without a name are gone."""
    graph, trace = af.Graph("<graph>"), Trace(64)
    nodes = [graph.blob(name, ()) for name in names]
    for number, (start, end, track) in enumerate(calls):
        trace.add(trace.origin_ns + end, end - start, trace.key(number, track), number)
    return TraceCopy("<graph>", nodes, trace.since(0), trace.tracks, trace.origin_ns, trace.origin_s).recording()


def events(calls: list[tuple[int, int, str]], names: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(recorded(calls, names).to_json())["traceEvents"]
    return found


class TestEvents:
    """Events that Perfetto would drop without a word: overlapping slices of one track, ids of 0."""

    def test_what_does_not_overlap_is_complete(self) -> None:
        found = events([(0, 1000, "lane"), (1000, 1500, "lane"), (200, 300, "loop")], ["a", "b", 'c"<'])
        complete = [(e["name"], e["ts"], e["dur"], e["args"]["frame"]) for e in found if e["ph"] == "X"]
        assert sorted(complete) == [("a", 0.0, 1.0, 0), ("b", 1.0, 0.5, 1), ('c"<', 0.2, 0.1, 2)]
        tracks = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
        assert set(tracks.values()) == {"frames", "loop", "lane"}
        assert all(e["pid"] >= 1 and e["tid"] >= 1 for e in found)

    def test_what_overlaps_is_asynchronous(self) -> None:
        found = events([(0, 1000, "lane"), (500, 1500, "lane"), (600, 700, "lane")], ["a", "b"])
        assert not [e for e in found if e["ph"] == "X"]
        pairs: dict[str, list[dict[str, Any]]] = {}
        for event in found:
            if event.get("cat") == "call":
                assert int(event["id"], 16) >= 1
                pairs.setdefault(event["id"], []).append(event)
        shown = sorted((b["name"], b["ts"], e["ts"]) for b, e in pairs.values())
        assert shown == [("a", 0.0, 1.0), (GONE, 0.6, 0.7), ("b", 0.5, 1.5)]
        assert all((b["ph"], e["ph"]) == ("b", "e") for b, e in pairs.values())

    @pytest.mark.parametrize("overlap", [False, True])
    def test_what_failed_says_so(self, overlap: bool) -> None:
        graph, trace = af.Graph("<graph>"), Trace(64)
        nodes = [graph.blob(name, ()) for name in "ab"]
        for number, (start, end) in enumerate([(0, 1000), (500 if overlap else 1000, 1500)]):
            text = 'ValueError: "no" </script>' if number else None
            call = trace.origin_ns + end, end - start, trace.key(number, "lane"), number
            trace.add(*call) if text is None else trace.add_failed(*call, text)
        taken = TraceCopy("<graph>", nodes, trace.since(0), trace.tracks, trace.origin_ns, trace.origin_s).recording()
        assert taken.failed.tolist() == [False, True]
        found = [e for e in json.loads(taken.to_json())["traceEvents"] if e.get("cat", "").startswith("call")]
        begun = {e["name"]: e for e in found if e["ph"] in "Xb"}
        assert begun["a"]["args"] == {"frame": 0}
        assert begun["b"]["args"] == {"frame": 1, "error": 'ValueError: "no" </script>'}
        assert {e["cat"] for e in found if e["name"] == "b"} == {"call,failed"}
        assert {e["cat"] for e in found if e["name"] == "a"} == {"call"}
        assert [e.get("cname") for e in begun.values()] == [None, None if overlap else "terrible"]

    def test_nothing(self) -> None:
        assert {e["ph"] for e in events([], [])} == {"M"}


@pytest.fixture
def diamond() -> af.Graph:
    """A copy, two ways apart, and their sum; a variable that an update follows."""
    graph = af.Graph("diamond")
    x = graph.blob("x", (4, 4))
    first = graph.function("first", lambda x: x, SQUARE)(x)
    left = graph.function("left", lambda x: x, SQUARE, lane="left")(first)

    async def wait(x: Any) -> Any:
        await asyncio.sleep(0)
        return x

    right = graph.function("right", wait, SQUARE, concurrency=4)(first)
    total = graph.variable("total", (4, 4))
    added = graph.function("add", lambda *xs: sum(xs), SQUARE)(left, right, total)
    [added] >> graph.op("update", af.ops.Copy()) >> [total]
    return graph


def rows(recording: Recording) -> list[tuple[Any, ...]]:
    columns = (recording.start_ns, recording.end_ns, recording.track, recording.node, recording.frame)
    return [
        (start, end, recording.tracks[track], recording.names[node], frame, recording.errors.get(row, ""))
        for row, (start, end, track, node, frame) in enumerate(
            zip(*[column.tolist() for column in columns], strict=True)
        )
    ]


class TestTakenAway:
    @pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
    async def test_a_file_has_all_that_the_recording_has(self, diamond: af.Graph, tmp_path: Path, name: str) -> None:
        async with diamond:
            await asyncio.gather(*[diamond.run(FEED, fetch=["add/out", "update"]) for _ in range(6)])
            await diamond.save_trace(tmp_path / name)
            recording = diamond.recording()
        read = read_trace(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
        assert len(read) == len(recording) == 6 * 5
        # What ended at the same moment may change places.
        assert sorted(rows(read)) == sorted(rows(recording))
        assert (read.graph, read.lost, read.started_s) == ("diamond", 0, diamond.engine.trace.origin_s)
        assert recording.follows is not None
        assert read.follows is not None
        for taken in (recording, read):
            follows = {
                name: {taken.names[before] for before in befores}
                for name, befores in zip(taken.names, taken.follows, strict=True)
            }
            assert follows == {
                "first": set(),
                "left": {"first"},
                "right": {"first"},
                "add": {"left", "right", "update"},
                "update": {"add"},
            }

    async def test_failed_calls_are_in_the_file(self, tmp_path: Path) -> None:
        graph, calls = af.Graph("failing"), 0

        def fail(x: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:
                return x
            raise ValueError(f"call {calls}")

        graph.function("fail", fail, SQUARE, retries=1, backoff=0)(graph.blob("x", (4, 4)))
        async with graph:
            await graph.run(FEED)
            with pytest.raises(af.OpError):
                await graph.run(FEED)
            await graph.save_trace(tmp_path / "trace.json")
            recording = graph.recording()
        assert [row[4:] for row in rows(recording)] == [
            (0, "ValueError: call 1"),
            (0, ""),
            (1, "ValueError: call 3"),
            (1, "ValueError: call 4"),
        ]
        assert recording.failed.tolist() == [True, False, True, True]
        assert rows(read_trace(tmp_path / "trace.json")) == rows(recording)

    def test_in_a_script(self, diamond: af.Graph, tmp_path: Path) -> None:
        diamond.run_sync(FEED)
        asyncio.run(diamond.aclose())
        diamond.save_trace_sync(str(tmp_path / "trace.json"))
        assert len(read_trace(tmp_path / "trace.json")) == len(diamond.recording()) == 5

    def test_nothing_has_run(self, diamond: af.Graph, tmp_path: Path) -> None:
        assert len(diamond.recording()) == 0
        diamond.save_trace_sync(tmp_path / "trace.json")
        with pytest.raises(af.DataError, match="'diamond' before its first call"):
            read_trace(tmp_path / "trace.json")

    def test_a_sub_graph_gives_the_roots(self) -> None:
        graph = af.Graph("root")
        with graph.subgraph("inside") as inside:
            af.ops.relu(graph.blob("x", 3))
        graph.run_sync({"inside/x": [1, 2, 3]})
        assert inside.recording().graph == "root"
        assert list(inside.recording().names) == ["inside/relu"]

    async def test_what_the_ring_lost_is_counted(self, tmp_path: Path) -> None:
        graph = af.Graph("long", trace_capacity=4)
        graph.function("quick", lambda x: x, SQUARE)(graph.blob("x", (4, 4)))
        async with graph:
            for _ in range(7):
                await graph.run(FEED)
            await graph.save_trace(tmp_path / "trace.json")
        read = read_trace(tmp_path / "trace.json")
        assert (len(read), read.lost, read.frame.tolist()) == (4, 3, [3, 4, 5, 6])

    async def test_a_deleted_node(self) -> None:
        graph = af.Graph("shrinking")
        graph.function("quick", lambda x: x, SQUARE)(graph.blob("x", (4, 4)))
        async with graph:
            await graph.run(FEED)
            graph.prune([])
            assert list(graph.recording().names) == [GONE]

    async def test_a_folder_that_is_not_there(self, diamond: af.Graph, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            await diamond.save_trace(tmp_path / "nowhere" / "trace.json")


_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
_CALLS = st.lists(
    st.tuples(st.integers(0, 2**50), st.integers(0, 2**40), st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)),
    min_size=1,
    max_size=30,
)
_ERRORS = st.dictionaries(st.integers(0, 29), st.text(st.characters(codec="utf-8"), max_size=8))


@given(
    _CALLS,
    st.lists(_NAMES, min_size=4, max_size=4, unique=True),
    st.lists(_NAMES, min_size=3, max_size=3, unique=True),
    _ERRORS,
)
def test_any_recording_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[tuple[int, ...]],
    names: list[str],
    tracks: list[str],
    errors: dict[int, str],
) -> None:
    calls = sorted(calls, key=lambda call: call[0] + call[1])
    start, elapsed, node, track, frame = (np.array(column, np.int64) for column in zip(*calls, strict=True))
    follows = [(), (0,), (0, 1), (2,)]
    errors = {row: error for row, error in errors.items() if row < len(calls)}
    arrays = (start, start + elapsed, track, node, frame)
    recording = Recording(*arrays, errors=errors, graph="any", names=names, tracks=tracks, follows=follows)
    path = tmp_path_factory.getbasetemp() / "any.json"
    recording.save(path)
    read = read_trace(path)
    assert repr(recording) == f"<Recording of graph 'any': {len(calls)} calls of 4 nodes>"
    assert sorted(rows(read)) == sorted(rows(recording))
    assert read.failed.sum() == len(errors)
    assert (np.diff(read.end_ns) >= 0).all()


class TestOtherPrograms:
    def read(self, tmp_path: Path, content: Any) -> Recording:
        path = tmp_path / "trace"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return read_trace(path)

    def test_all_that_has_a_length_is_a_call(self, tmp_path: Path) -> None:
        recording = self.read(
            tmp_path,
            [
                {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "server"}},
                {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "main"}},
                {"ph": "X", "name": "complete", "pid": 7, "tid": 1, "ts": 1000.5, "dur": 2, "args": {"error": "?"}},
                {"ph": "B", "name": "outer", "pid": 7, "tid": 2, "ts": 1001},
                {"ph": "B", "name": "inner", "pid": 7, "tid": 2, "ts": 1002},
                {"ph": "E", "pid": 7, "tid": 2, "ts": 1003},
                {"ph": "E", "pid": 7, "tid": 2, "ts": 1005},
                {"ph": "E", "pid": 7, "tid": 2, "ts": 1006},
                {"ph": "b", "cat": "net", "id": 1, "name": "get", "pid": 7, "tid": 1, "ts": 1000},
                {"ph": "b", "cat": "net", "id2": {"local": "0x2"}, "name": "get", "pid": 7, "tid": 1, "ts": 1001},
                {"ph": "e", "cat": "net", "id": 1, "name": "get", "pid": 7, "tid": 1, "ts": 1009},
                {"ph": "e", "cat": "net", "id2": {"local": "0x2"}, "name": "get", "pid": 7, "tid": 1, "ts": 1008},
                {"ph": "i", "name": "an instant", "pid": 7, "tid": 1, "ts": 1004},
                {"ph": "B", "name": "never ended", "pid": 7, "tid": 3, "ts": 1004},
            ],
        )
        assert rows(recording) == [
            (500, 2500, "main", "complete", -1, ""),  # what an argument "error" means is not known
            (2000, 3000, "thread 2", "inner", -1, ""),
            (1000, 5000, "thread 2", "outer", -1, ""),
            (1000, 8000, "main", "get", -1, ""),
            (0, 9000, "main", "get", -1, ""),
        ]
        assert (recording.graph, recording.follows, recording.started_s) == ("server", None, None)

    def test_several_processes(self, tmp_path: Path) -> None:
        recording = self.read(
            tmp_path, [{"ph": "X", "name": "call", "pid": pid, "tid": 1, "ts": pid, "dur": 1} for pid in (1, 2)]
        )
        assert recording.tracks == ["process 1: thread 1", "process 2: thread 1"]

    @pytest.mark.parametrize("end", ["", ",", ",\n"])
    def test_a_list_need_not_be_closed(self, tmp_path: Path, end: str) -> None:
        text = '[{"ph": "X", "name": "call", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
        assert len(self.read(tmp_path, text + end)) == 1

    async def test_a_real_one(self, tmp_path: Path) -> None:
        viztracer = pytest.importorskip("viztracer")
        path = tmp_path / "trace.json"
        with viztracer.VizTracer(output_file=str(path), verbose=0):
            sorted(range(10), key=lambda number: -number)
        recording = read_trace(path)
        assert any("lambda" in name for name in recording.names)
        assert (recording.start_ns <= recording.end_ns).all()

    @pytest.mark.together(
        ("content", "what"),
        [
            ("", "is empty"),
            (" \n", "is empty"),
            ("no trace", "is not JSON"),
            ("<html></html>", "is not JSON"),
            ("3", "is JSON, but not a trace"),
            ("{}", "is JSON, but not a trace"),
            ('{"traceEvents": 3}', "is JSON, but not a trace"),
            ("[]", "none of its 0 events has a length"),
            ('[{"ph": "i", "ts": 1}, 3]', "none of its 2 events has a length"),
            ('[{"ph": "X", "name": "call"}]', "is not a trace: event .* has no 'ts'"),
            ('[{"ph": "X", "name": "call", "ts": "soon"}]', "is not a trace: event .*soon"),
            ('{"traceEvents": [{"ph": "X", "name"', "is cut off after 35 characters"),
            ('{"traceEvents": [{"ph": "X", "name": "ca', "is cut off after 40 characters"),
            ('{"traceEvents": [{"ph": "X"}, oops]}', "is not JSON"),
            (f'[{{"ph": "X", "ts": {"9" * 5000}}}]', "is not JSON"),
            (f'[{{"ph": "X", "ts": {"9" * 400}}}]', "event .* cannot be read"),
            ('[{"ph": "X", "ts": NaN}]', "event .* expected a number, got nan"),
            ('[{"ph": "X", "ts": 1, "dur": Infinity}]', "event .* expected a number, got inf"),
            ('[{"ph": "X", "ts": 1, "dur": null}]', "event .* cannot be read"),
            ('[{"ph": "X", "ts": -1e300}, {"ph": "X", "ts": 1}]', "is damaged: its times are not within"),
            ('[{"ph": "X", "ts": 1, "args": [1]}]', "event .* cannot be read"),
            ('[{"ph": "M", "name": "thread_name", "args": [1]}]', "event .* cannot be read"),
            ('[{"ph": "b", "ts": 1, "id2": [1]}]', "event .* cannot be read"),
            ('{"traceEvents": [], "otherData": {"actorflow": "x"}}', "none of its 0 events has a length"),
            *[
                (f'{{"traceEvents": [{{"ph": "X", "ts": 1}}], "otherData": {{"actorflow": {{{said}}}}}}}', "is damaged")
                for said in (
                    '"lost": "many"',
                    '"lost": Infinity',
                    '"started": NaN',
                    '"started": "soon"',
                    '"follows": [1]',
                    '"follows": {"without a name": 3}',
                    '"follows": {"without a name": [[1]]}',
                )
            ],
        ],
    )
    def test_no_trace(self, tmp_path: Path, content: str, what: str) -> None:
        with pytest.raises(af.DataError, match=what) as caught:
            self.read(tmp_path, content)
        assert str(tmp_path / "trace") in str(caught.value)

    @pytest.mark.together("number", ["9223372036854775808", f"1{'0' * 30}", "-5", "true", "1.5", "null"])
    def test_a_frame_that_cannot_be_one(self, tmp_path: Path, number: str) -> None:
        recording = self.read(tmp_path, f'[{{"ph": "X", "ts": 1, "args": {{"frame": {number}}}}}]')
        assert (recording.frame.dtype, recording.frame.tolist()) == (np.int64, [-1])

    def test_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00\x01")
        with pytest.raises(af.DataError, match="is not JSON"):
            read_trace(tmp_path / "bytes")

    def test_cut_off(self, diamond: af.Graph, tmp_path: Path) -> None:
        """Wherever a file of ours ends too early, that is said."""
        diamond.run_sync(FEED)
        asyncio.run(diamond.aclose())
        diamond.save_trace_sync(tmp_path / "whole.json")
        whole = (tmp_path / "whole.json").read_bytes()
        cut = tmp_path / "cut.json"
        for length in range(1, len(whole.rstrip())):
            cut.write_bytes(whole[:length])
            with pytest.raises(af.DataError, match="cut off"):
                read_trace(cut)
        zipped = gzip.compress(whole)
        for length in (2, 10, len(zipped) // 2, len(zipped) - 1):
            cut.write_bytes(zipped[:length])
            with pytest.raises(af.DataError, match="damaged or cut off"):
                read_trace(cut)
        cut.write_bytes(zipped[:20] + b"\xff" * 20 + zipped[40:])
        with pytest.raises(af.DataError, match="damaged or cut off"):
            read_trace(cut)
