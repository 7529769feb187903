"""Checkpoints: what is in them, what is refused, and that training goes on as if nothing had been."""

import asyncio
import json
import os
import struct
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from actorflow.checkpoint import file
from actorflow.checkpoint.file import dtype_code, write_file
from tests.support.waiting import frames_begun

ml_dtypes = pytest.importorskip("ml_dtypes")
safetensors = pytest.importorskip("safetensors")
pytest.importorskip("safetensors.numpy")

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
]
SHAPES = [(), (3,), (2, 0, 4), (5, 7)]


def all_kinds(seed: int | None) -> af.Graph:
    """A graph with a variable of each dtype and shape, random or 0."""
    graph = af.Graph("kinds")
    random = np.random.default_rng(seed)
    for dtype in map(np.dtype, DTYPES):
        with graph.subgraph(dtype.name) as scope:
            for i, shape in enumerate(SHAPES):
                value = (4 * random.standard_normal(shape) * (seed is not None)).astype(dtype)
                scope.variable(f"v{i}", shape, dtype, value)
    return graph


def small(*shapes: tuple[str, tuple[int, ...], str]) -> af.Graph:
    graph = af.Graph("small")
    for name, shape, dtype in shapes:
        graph.variable(name, shape, dtype, 1)
    return graph


def values_of(graph: af.Graph) -> dict[str, np.ndarray]:
    return {variable.name: variable.value for variable in graph.variables}


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert (value.dtype, value.shape) == (b[name].dtype, b[name].shape)
        assert value.tobytes() == b[name].tobytes(), name


# -- what is in a file --------------------------------------------------------------------------------------------


def test_every_dtype_and_shape_comes_back(tmp_path: Path) -> None:
    graph, other = all_kinds(0), all_kinds(None)
    position = {"epoch": 3, "files": ["a", "b"], "share": 0.25, "none": None}
    af.save_checkpoint_sync(graph, tmp_path / "a.safetensors", position)
    found = af.load_checkpoint_sync(other, tmp_path / "a.safetensors")
    assert_same(values_of(other), values_of(graph))
    assert found == af.Checkpoint(tmp_path / "a.safetensors", 0, {0: position})
    assert (found.position, found.missing, found.unexpected, found.is_resharded) == (position, (), (), False)


def test_the_formats_own_library_reads_it(tmp_path: Path) -> None:
    graph = all_kinds(1)
    af.save_checkpoint_sync(graph, tmp_path / "a.safetensors")
    theirs = dict(safetensors.deserialize((tmp_path / "a.safetensors").read_bytes()))
    for name, found in theirs.items():
        assert bytes(found["data"]) == graph[name].value.tobytes(), name
        assert (tuple(found["shape"]), found["dtype"]) == (graph[name].shape, dtype_code(graph[name].dtype))
    assert theirs.keys() == values_of(graph).keys()


def test_files_of_the_formats_own_library_are_read(tmp_path: Path) -> None:
    graph = small(("w", (2, 3), "float32"), ("b", (), "int64"))
    arrays = {"w": np.arange(6, dtype="float32").reshape(2, 3), "b": np.array(7)}
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors", {"made": "elsewhere"})
    graph.engine.next_number = 5
    found = af.load_checkpoint_sync(graph, tmp_path / "a.safetensors")
    assert_same(values_of(graph), arrays)
    assert (found.frame, found.position, graph.engine.next_number) == (None, {}, 5)


async def test_a_variable_of_a_device_is_saved_and_loaded(tmp_path: Path) -> None:
    def build() -> tuple[af.Graph, af.Graph]:
        graph = af.Graph("g")
        with graph.at("sim:0"):
            w = graph.variable("w", (3,), "float64", [1.0, 2.0, 3.0])
            loss = ops.reshape(ops.inner(ops.reshape(w, (1, 3)), ops.reshape(w, (1, 3))), ())
        return graph, nn.SGD(0.1, momentum=0.9).minimize(loss)

    first, train = build()
    async with first:
        for _ in range(3):
            await first.run(fetch=[train])
        await af.save_checkpoint(first, tmp_path / "a")
        await first.run(fetch=[train])
    second, train = build()
    async with second:
        await af.load_checkpoint(second, tmp_path / "a")
        await second.run(fetch=[train])
    assert_same(values_of(second), values_of(first))


async def test_a_graph_without_variables_has_a_frame_to_go_on_from(tmp_path: Path) -> None:
    graph, other = af.Graph("g"), af.Graph("g")
    graph.function("nothing", lambda: None)
    async with graph:
        await graph.run()
        await af.save_checkpoint(graph, tmp_path / "f")
    assert (await af.load_checkpoint(other, tmp_path / "f")).frame == 1
    assert other.engine.next_number == 1


def test_what_cannot_be_stored_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(af.CheckpointError, match="variable 'z' cannot be saved: safetensors has no complex128"):
        af.save_checkpoint_sync(small(("z", (2,), "complex128")), tmp_path / "a")
    with pytest.raises(af.CheckpointError, match=r"what JSON can hold: position\['at'\] is of type object: <object"):
        af.save_checkpoint_sync(small(), tmp_path / "a", {"at": object()})
    assert not list(tmp_path.iterdir())


# -- what does not fit --------------------------------------------------------------------------------------------


@pytest.mark.together("strict", [True, False])
@pytest.mark.together(
    ("variable", "message"),
    [
        (("w", (3, 2), "float32"), r"variable 'w' is F32\[3, 2\], the file has F32\[2, 3\]"),
        (("w", (2, 3), "float64"), r"variable 'w' is F64\[2, 3\], the file has F32\[2, 3\]"),
        (("w", (2, 3), ml_dtypes.bfloat16), r"variable 'w' is BF16\[2, 3\], the file has F32\[2, 3\]"),
    ],
)
def test_another_shape_or_dtype_is_an_error_with_both(tmp_path: Path, variable, message, strict) -> None:
    af.save_checkpoint_sync(small(("w", (2, 3), "float32"), ("b", (1,), "float32")), tmp_path / "a")
    graph = small(variable, ("b", (1,), "float32"))
    graph["b"].value = [5.0]
    with pytest.raises(af.CheckpointError, match=message) as caught:
        af.load_checkpoint_sync(graph, tmp_path / "a", strict=strict)
    assert str(tmp_path / "a") in str(caught.value)
    assert "'b'" not in str(caught.value)
    assert graph["b"].value == 5.0  # nothing has been loaded


def test_other_names_are_errors_that_name_them_unless_they_are_allowed(tmp_path: Path) -> None:
    saved = small(("a", (), "float32"), ("b", (), "float32"))
    saved["a"].value = 7
    af.save_checkpoint_sync(saved, tmp_path / "f")
    graph = small(("a", (), "float32"), ("c", (), "float32"))
    with pytest.raises(af.CheckpointError, match="the file lacks 'c'; the graph has no variable 'b'"):
        af.load_checkpoint_sync(graph, tmp_path / "f")
    assert graph["a"].value == 1
    found = af.load_checkpoint_sync(graph, tmp_path / "f", strict=False)
    assert (found.missing, found.unexpected) == (("c",), ("b",))
    assert (graph["a"].value, graph["c"].value) == (7, 1)


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    af.save_checkpoint_sync(small(), tmp_path / "f")
    with pytest.raises(af.CheckpointError, match=r"(?m)'v8', 'v9' and 30 more$"):
        af.load_checkpoint_sync(small(*((f"v{i}", (), "float32") for i in range(40))), tmp_path / "f")


def test_files_that_cannot_be_read_or_written_are_errors_that_name_them(tmp_path: Path) -> None:
    graph = small(("w", (), "float32"))
    with pytest.raises(af.CheckpointError, match=r"none: the checkpoint cannot be read: .*No such file"):
        af.load_checkpoint_sync(graph, tmp_path / "none")
    with pytest.raises(af.CheckpointError, match=r"file: the checkpoint cannot be written: .*No such file"):
        af.save_checkpoint_sync(graph, tmp_path / "nowhere" / "file")


# -- damage -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a"
    af.save_checkpoint_sync(all_kinds(2), path, {"epoch": 1})
    return path.read_bytes()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[af.Graph, Path]:
    return all_kinds(None), tmp_path_factory.mktemp("damaged") / "name-of-file"


@settings(deadline=None)
@given(data=st.data())
def test_a_file_that_is_cut_off_is_recognized(content: bytes, target: tuple[af.Graph, Path], data) -> None:
    graph, path = target
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(af.CheckpointError, match="name-of-file"):
        af.load_checkpoint_sync(graph, path)
    assert not any(value.any() for value in values_of(graph).values())


@settings(deadline=None)
@given(data=st.data())
def test_a_byte_that_has_changed_is_recognized(content: bytes, target: tuple[af.Graph, Path], data) -> None:
    graph, path = target
    header = 8 + int.from_bytes(content[:8], "little")
    padding = range(len(content[:header].rstrip()), header)  # of the header: it says nothing, so it may be other blanks
    at = data.draw((st.integers(0, len(content) - 1) | st.integers(0, header)).filter(lambda at: at not in padding))
    path.write_bytes(content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :])
    with pytest.raises(af.CheckpointError, match="name-of-file"):
        af.load_checkpoint_sync(graph, path)
    assert not any(value.any() for value in values_of(graph).values())


@settings(deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda text: len(text).to_bytes(8, "little") + text))
def test_what_is_no_checkpoint_is_recognized(target: tuple[af.Graph, Path], text: bytes) -> None:
    graph, path = target
    path.write_bytes(text)
    with pytest.raises(af.CheckpointError, match="name-of-file"):
        af.load_checkpoint_sync(graph, path)


@pytest.mark.together(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [2**63, 2], "data_offsets": [0, 4]},
        {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},  # but there are 8 bytes
        [],
    ],
)
def test_headers_that_lie_are_recognized(target: tuple[af.Graph, Path], entry) -> None:
    graph, path = target
    text = json.dumps({"w": entry}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(af.CheckpointError, match="name-of-file: the file is cut off, damaged or no checkpoint"):
        af.load_checkpoint_sync(graph, path, strict=False)


def test_damage_names_the_variable(tmp_path: Path) -> None:
    graph = small(("a", (2,), "int32"), ("b", (2,), "int32"))
    graph["b"].value = [7, 7]
    af.save_checkpoint_sync(graph, tmp_path / "f")
    content = (tmp_path / "f").read_bytes()
    (tmp_path / "f").write_bytes(content.replace(np.int32(7).tobytes(), np.int32(8).tobytes(), 1))
    with pytest.raises(af.CheckpointError, match="'b' is damaged: its checksum is"):
        af.load_checkpoint_sync(graph, tmp_path / "f")


def test_a_format_of_the_future_is_an_error(tmp_path: Path) -> None:
    write_file(tmp_path / "f", {}, {"actorflow": "2"})
    with pytest.raises(af.CheckpointError, match="expected a checkpoint of format 1, got '2'"):
        af.load_checkpoint_sync(small(), tmp_path / "f")


@pytest.mark.parametrize("unit", ["[],", "{},", "[[[]]],", "[", '{"":'])
@pytest.mark.parametrize("name", [file._CRCS, "position", "replicas", "states", "header"])
def test_nothing_in_great_number_is_refused(tmp_path: Path, name: str, unit: str) -> None:
    """Texts in a file's metadata, whose own checksum is right, take memory in proportion to the file at most."""
    text = f'["", {unit * ((4 << 20) // len(unit))}{"[]]" if unit.endswith(",") else ""}'
    metadata = {"actorflow": file.FORMAT, file._CRCS: "{}"} | {name: text}
    metadata[file._OWN_CRC] = file._metadata_crc({key: value for key, value in metadata.items() if key != file._CRCS})
    header = text.encode() if name == "header" else json.dumps({"__metadata__": metadata}).encode()
    path = tmp_path / "many"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    graph = af.Graph("g")
    graph.variable("v", (1,))
    tracemalloc.start()
    try:
        with pytest.raises(af.CheckpointError, match="many: "):
            af.load_checkpoint_sync(graph, path)
        with pytest.raises(af.CheckpointError, match="many: "):
            file.read_file(path)
            file._part(path, file.read_outline(path))
        assert tracemalloc.get_traced_memory()[1] < 16 * len(header)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("without", ["crc32", "metadata_crc32"])
def test_a_checkpoint_without_its_checksums_is_damaged(tmp_path: Path, without: str) -> None:
    af.save_checkpoint_sync(small(), tmp_path / "f")
    with safetensors.safe_open(tmp_path / "f", "np") as file:
        metadata = file.metadata()
    del metadata[without]
    safetensors.numpy.save_file({}, tmp_path / "f", metadata)
    with pytest.raises(af.CheckpointError, match="damaged"):
        af.load_checkpoint_sync(small(), tmp_path / "f")


# -- writing ------------------------------------------------------------------------------------------------------

CALLS = ["mkdir", "write", "fsync", "replace", "fsync of the folder"]


@pytest.mark.parametrize("failing", CALLS)
def test_a_failure_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch, failing) -> None:
    graph = small(("w", (1000,), "float64"))
    af.save_checkpoint_sync(graph, tmp_path / "f")
    graph["w"].value = np.full(1000, 2.0)
    with monkeypatch.context() as patch:
        steps = _fail_at(patch, failing)
        with pytest.raises((af.CheckpointError, OSError), match=r"it fails|cannot be written"):
            af.save_checkpoint_sync(graph, tmp_path / "f")
    assert steps == CALLS[: CALLS.index(failing) + 1]
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    other = small(("w", (1000,), "float64"))
    af.load_checkpoint_sync(other, tmp_path / "f")
    assert set(other["w"].value) == ({2.0} if failing == CALLS[-1] else {1.0})


def _fail_at(patch: pytest.MonkeyPatch, failing: str) -> list[str]:
    """Make one step of writing a file fail; returns the steps as they are made."""
    steps: list[str] = []

    def watched(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            what = name
            if name == "fsync" and "replace" in steps:
                what = "fsync of the folder"
            steps.append(what)
            if what == failing:
                raise OSError("it fails")
            return function(*args, **kwargs)

        return call

    patch.setattr(file.Path, "mkdir", watched("mkdir", file.Path.mkdir))
    patch.setattr("actorflow.checkpoint.checkpoint.write_file", watched("write", write_file))
    patch.setattr(file.os, "fsync", watched("fsync", file.os.fsync))
    patch.setattr(file.os, "replace", watched("replace", file.os.replace))
    return steps


def test_an_error_of_the_formats_library_is_ours_and_names_the_file(tmp_path: Path, monkeypatch) -> None:
    def fail(*args: Any) -> None:
        raise safetensors.SafetensorError("no space left")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(af.CheckpointError, match="/f: the checkpoint cannot be written: no space left"):
        af.save_checkpoint_sync(small(("w", (), "float32")), tmp_path / "f")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_file_has_the_mode_of_other_new_files(tmp_path: Path) -> None:
    af.save_checkpoint_sync(small(("w", (), "float32")), tmp_path / "f")
    (tmp_path / "other").touch()
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_arrays_are_saved_as_they_are_read_however_they_lie_in_memory(tmp_path: Path) -> None:
    graph = small(("a", (3, 2), "float32"), ("b", (3,), "int64"), ("c", (2,), "bool"))
    values = {
        "a": np.arange(6, dtype="float32").reshape(2, 3).T,
        "b": np.arange(9)[::-3],
        "c": np.broadcast_to(np.True_, 2),
    }
    for name, value in values.items():
        graph[name].commit(value)
    af.save_checkpoint_sync(graph, tmp_path / "f")
    other = small(("a", (3, 2), "float32"), ("b", (3,), "int64"), ("c", (2,), "bool"))
    af.load_checkpoint_sync(other, tmp_path / "f")
    assert_same(values_of(other), values)


async def test_without_the_formats_library_the_error_names_the_extra(tmp_path: Path, monkeypatch) -> None:
    graph = small(("w", (), "float32"))
    await af.save_checkpoint(graph, tmp_path / "f")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    message = r"a checkpoint needs 'safetensors': pip install 'actorflow\[checkpoint\]'"
    with pytest.raises(af.MissingExtraError, match=message):
        await af.save_checkpoint(graph, tmp_path / "g")
    with pytest.raises(af.MissingExtraError, match=message):
        await af.load_checkpoint(graph, tmp_path / "f")
    with pytest.raises(af.MissingExtraError, match=message):
        af.Checkpoints(graph, tmp_path)


# -- between frames -----------------------------------------------------------------------------------------------


class Counting:
    """A graph whose frames add 1 to each of its variables, at different times of the frame."""

    def __init__(self, slow: asyncio.Event | None = None) -> None:
        self.graph = graph = af.Graph("counting")
        self.a, self.b, self.c = (graph.variable(name, (), "int64") for name in "abc")
        middle, end = graph.blob("middle", (), "int64"), graph.blob("end", (), "int64")

        async def wait(a: Any) -> Any:
            if slow is not None:
                await slow.wait()
            return a

        [self.a] >> graph.function("first", lambda a: a + 1) >> [self.a]
        [self.a] >> graph.function("wait", wait) >> [middle]
        [self.b, middle] >> graph.function("second", lambda b, _: b + 1) >> [self.b]
        [middle] >> graph.function("later", lambda m: m) >> [end]
        [self.c, end] >> graph.function("third", lambda c, _: c + 1) >> [self.c]

    def values(self) -> list[int]:
        return [int(variable.value) for variable in (self.a, self.b, self.c)]


async def test_a_snapshot_is_of_one_moment_while_frames_go_on(tmp_path: Path) -> None:
    counting = Counting()
    async with counting.graph as graph:
        saves = []

        def feeds() -> Iterator[dict[Any, Any]]:
            for step in range(12):
                yield {}
                if step % 3 == 2:
                    name = tmp_path / f"{step + 1}"
                    saves.append(asyncio.ensure_future(af.save_checkpoint(graph, name, {"step": step + 1})))

        async for _ in graph.stream(feeds(), in_flight=4):
            pass
        await asyncio.gather(*saves)
    for path in tmp_path.iterdir():
        other = Counting()
        found = await af.load_checkpoint(other.graph, path)
        assert len(set(other.values())) == 1, (path, other.values())
        assert other.values()[0] == found.frame
    assert len(list(tmp_path.iterdir())) == 4


async def test_frames_do_not_wait_for_a_snapshot_and_have_the_same_numbers(tmp_path: Path) -> None:
    gate = asyncio.Event()
    counting = Counting(gate)
    async with counting.graph as graph:
        first = asyncio.ensure_future(graph.run())
        while not graph.engine.next_number:  # its plan is being made
            await asyncio.sleep(0)
        checkpoints = af.Checkpoints(graph, tmp_path)
        saving = checkpoints.save(1)
        second = asyncio.ensure_future(graph.run())
        await asyncio.sleep(0)
        assert graph.engine.next_number == 2
        assert not saving.done()
        gate.set()
        await asyncio.gather(first, second)
        path = await saving
    assert counting.values() == [2, 2, 2]
    assert not graph.engine.scalars.series  # a snapshot is nobody's measurement
    assert graph.statistics().frames[:3] == (2, 0, 2), "nor a frame of anybody"
    other = Counting()
    assert (await af.load_checkpoint(other.graph, path)).frame == 1
    assert other.values() == [1, 1, 1]


async def test_updates_of_a_frame_that_failed_are_not_saved(tmp_path: Path) -> None:
    graph = af.Graph("failing")
    a, b = graph.variable("a", (), "int64"), graph.variable("b", (), "int64")
    gate = asyncio.Event()

    async def fail(b: Any) -> Any:
        await gate.wait()
        raise ValueError("no")

    [a] >> graph.function("add", lambda a: a + 1) >> [a]
    [b] >> graph.function("fail", fail) >> [b]
    async with graph:
        running = asyncio.ensure_future(graph.run())
        await frames_begun(graph)
        saving = asyncio.ensure_future(af.save_checkpoint(graph, tmp_path / "f"))
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(af.OpError):
            await running
        with pytest.raises(af.GraphError, match="frame 0 of graph 'failing' ended as FAILED: some of its updates"):
            await saving
    assert not list(tmp_path.iterdir())


async def test_loading_and_the_forms_for_scripts_want_a_graph_at_rest(tmp_path: Path) -> None:
    gate = asyncio.Event()
    counting = Counting(gate)
    async with counting.graph as graph:
        await af.save_checkpoint(graph, tmp_path / "f")
        running = asyncio.ensure_future(graph.run())
        await asyncio.sleep(0)
        for load in (af.load_checkpoint(graph, tmp_path / "f"), af.Checkpoints(graph, tmp_path).load()):
            with pytest.raises(af.GraphError, match="cannot be loaded with frames in flight, it has 1"):
                await load
        for function in (af.save_checkpoint_sync, af.load_checkpoint_sync):
            with pytest.raises(RuntimeError, match="inside a running event loop would block it"):
                function(graph, tmp_path / "f")
        gate.set()
        await running


async def test_a_cancelled_save_ends_first(tmp_path: Path, monkeypatch) -> None:
    graph = small(("w", (), "float32"))
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    replace = file.os.replace

    def tell(*args: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        replace(*args)

    monkeypatch.setattr(file.os, "replace", tell)
    async with graph:
        saving = asyncio.ensure_future(af.save_checkpoint(graph, tmp_path / "f"))
        await begun.wait()
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
