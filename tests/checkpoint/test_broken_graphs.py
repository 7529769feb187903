"""Files of graphs with something wrong in them: an error that names it, within bounded memory, and no hang."""

import asyncio
import json
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from tests.support.broken_files import MOST_MEGABYTES, STRUCTURE, TENSORS, members, zipped
from tests.support.effort import FULL, slow
from tests.support.graph_files import half
from tests.support.large_files import LARGE
from tests.support.random_graphs import OpenGraphs, RandomGraph

pytest.importorskip("safetensors")
pytest.importorskip("safetensors.numpy")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A graph with a loss, a constant, a copy of a variable, a sum of several producers and an open axis."""
    graph = af.Graph("good", devices={"sim:0": af.devices.SimOptions(latency_s=0.5)})
    x = graph.blob("x", ("batch", 4))
    with graph.subgraph("part"):
        y = nn.InnerProduct(3, name="front")(x)
    graph.replica("copy", graph["part/front/weight"])
    z = graph.blob("z", y.shape)
    for i, operation in enumerate((ops.Tanh(), ops.Relu())):
        [y] >> graph.op(f"term{i}", operation, timeout=1.0, libraries=["numpy"]) >> [z]
    ops.add(z, graph.constant(np.arange(3, dtype="f"), name="three"), name="last")
    path = tmp_path_factory.mktemp("good") / "good.af"
    graph.save_sync(path)
    return path.read_bytes()


def node(structure: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in structure["nodes"] if each["name"] == name]
    return found


def edited(good: bytes, edit: Callable[[dict[str, Any]], Any]) -> bytes:
    structure, tensors = members(good)
    value = json.loads(structure)
    edit(value)
    return zipped(json.dumps(value).encode(), tensors)


def check_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(af.CheckpointError, match=message) as refused:
        af.load_sync(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert not isinstance(refused.value.__cause__, MemoryError)


def nested(levels: int) -> Any:
    """A formula of a division in a division, and so on."""
    return json.loads('[[1,["//",' * levels + '[[1,"n"]]' + ",3]],[1]]" * levels)


def cut(formula: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda s: node(s, "x").update(shape=[{"length": formula}, 4])


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (
        lambda s: s.update(format="x"),
        "graph.json: expected an object of the format 'actorflow graph'",
    ),
    "a later version": (lambda s: s.update(version=2), "expected 'actorflow graph', version 1, got .*version 2"),
    "an unknown field": (lambda s: s.update(nodez=[]), "graph.json: unknown field 'nodez'; did you mean 'nodes'"),
    "no nodes": (lambda s: s.pop("nodes"), "graph.json: expected the field 'nodes', there is none"),
    "an illegal name": (lambda s: s.update(name="a/b"), "'a/b' cannot name a graph"),
    "a hidden name": (lambda s: node(s, "x").update(name="x\u202e"), "node 0: 'x.u202e' is no name"),
    "an empty part": (lambda s: node(s, "x").update(name="x//y"), "node 0: 'x//y' is no name"),
    "a name of two nodes": (lambda s: node(s, "z").update(name="x"), "node .*: the name 'x' is taken"),
    "a name outside": (lambda s: node(s, "x").update(scope="part"), "expected a name in scope 'part', got 'x'"),
    "an unknown scope": (lambda s: node(s, "x").update(scope="no"), "node 0: there is no 'no'"),
    "a scope twice": (lambda s: s["scopes"].append("part"), "scope 'part': the name 'part' is taken"),
    "a scope nowhere": (lambda s: s["scopes"].append("a/b"), "scope 'a/b': there is no 'a'"),
    "a scope of no name": (lambda s: s["scopes"].append(3), "scope 3: expected a name, got 3"),
    "too many scopes": (lambda s: s["scopes"].extend(map(str, range(5_000))), "expected fewer scopes for"),
    "a negative id": (lambda s: node(s, "x").update(id=-1), "node 0: expected an id after -1, got -1"),
    "an id twice": (lambda s: s["nodes"][1].update(id=0), "node 1: expected an id after 0, got 0"),
    "ids past the end": (lambda s: s.update(ids=2), "expected ids less than 2"),
    "too many ids": (lambda s: s.update(ids=1 << 40), "expected frame and ids in range, got 0 and 1099511627776"),
    "a negative frame": (lambda s: s.update(frame=-1), "expected frame and ids in range, got -1"),
    "a huge integer": (lambda s: s.update(frame=1 << 70), "frame: expected an integer of 64 bits"),
    "a fractional id": (lambda s: node(s, "x").update(id=0.0), "node 0: id: expected int, got 0.0"),
    "a bool as id": (lambda s: node(s, "x").update(id=False), "node 0: id: expected int, got False"),
    "an unknown kind": (
        lambda s: node(s, "x").update(kind="x"),
        "node 0: expected a node, of kind blob, variable, state, op",
    ),
    "no node": (lambda s: s["nodes"].insert(0, 3), "node 0: expected a node, .* got 3"),
    "a place": (lambda s: node(s, "x").update(place="gpu 0"), "node 0: 'gpu 0' is not a place"),
    "an unknown device": (
        lambda s: s["options"].update(devices={"xpu:0": {"type": "DeviceOptions", "options": {}}}),
        "no device of kind 'xpu'",
    ),
    "options of another device": (
        lambda s: s["options"]["devices"]["sim:0"].update(type="CudaOptions"),
        "expected options of sim:0, DeviceOptions or SimOptions, got 'CudaOptions'",
    ),
    "an unknown option": (
        lambda s: s["options"]["devices"]["sim:0"]["options"].update(speed=1),
        "unknown field 'speed'",
    ),
    "a wrong option": (
        lambda s: s["options"]["devices"]["sim:0"]["options"].update(latency_s="x"),
        "latency_s: expected float, got 'x'",
    ),
    "an option out of range": (lambda s: s["options"].update(max_plans=0), "max_plans must be at least 1, got 0"),
    "an option of another type": (lambda s: s["options"].update(memory_budget="x"), "memory_budget: expected int"),
    "a huge shape": (lambda s: node(s, "x").update(shape=[1 << 63, 4]), "node 0: expected the length of an axis"),
    "a negative length": (lambda s: node(s, "x").update(shape=[-1, 4]), "expected the length of an axis.*got -1"),
    "a fractional length": (lambda s: node(s, "x").update(shape=[2.5, 4]), "expected the length of an axis.*got 2.5"),
    "many axes": (lambda s: node(s, "x").update(shape=[1] * 65), "expected a shape of at most 64 axes"),
    "an axis of no name": (lambda s: node(s, "x").update(shape=["a b", 4]), "'a b' cannot name an axis"),
    "a formula of nothing": (cut([]), "node 0: expected the formula of a length"),
    "a division by zero": (cut([[1, ["//", [[1, "n"]], 0]]]), "'//' of 0 is no part of a length"),
    "a long formula": (cut([[1] + ["n"] * 2_000]), "at most 1000 are allowed"),
    "a deep formula": (cut(nested(51)), "node 0: .*50 deep at most"),
    "a formula without end": (cut(nested(200)), "node 0: "),
    "a dtype": (lambda s: node(s, "x").update(dtype="float31"), "node 0: expected a dtype, got 'float31'"),
    "a dtype of records": (lambda s: node(s, "x").update(dtype="f4,f4"), "node 0: expected a dtype, got 'f4,f4'"),
    "any objects in an array": (lambda s: node(s, "x").update(dtype="object"), r"node 0: expected shape \[\] for any"),
    "an open variable": (
        lambda s: node(s, "copy").update(shape=["n", 4]),
        "expected numbers in a shape without open axes for a variable",
    ),
    "a variable of another shape": (
        lambda s: node(s, "copy").update(shape=[4, 3]),
        r"tensor 'copy': expected float32\[4, 3\], got F32\[3, 4\]",
    ),
    "a variable of another dtype": (
        lambda s: node(s, "copy").update(dtype="int32"),
        r"tensor 'copy': expected int32\[3, 4\], got F32\[3, 4\]",
    ),
    "a huge variable": (
        lambda s: node(s, "copy").update(shape=[1 << 40, 1 << 20]),
        r"tensor 'copy': expected float32\[1099511627776, 1048576\], got F32\[3, 4\]",
    ),
    "a variable without a value": (
        lambda s: (
            s["nodes"].append({**node(s, "copy"), "name": "new", "id": s["ids"] - 1, "replica_of": None})
            or s.update(ids=s["ids"] + 1)
            or s["nodes"][-1].update(id=s["ids"] - 1)
        ),
        r"expected a tensor 'new' of float32\[3, 4\], the file has none",
    ),
    "a value without a variable": (
        lambda s: s["nodes"].remove(node(s, "copy")),
        r"expected no further tensors, got \['copy'\]",
    ),
    "a copy of nothing": (lambda s: node(s, "copy").update(replica_of="no"), "variable 'copy': there is no 'no'"),
    "a copy of a blob": (lambda s: node(s, "copy").update(replica_of="x"), "expected a copy of a variable of"),
    "a copy of itself": (lambda s: node(s, "copy").update(replica_of="copy"), "expected a copy of a variable of"),
    "a circle of copies": (
        lambda s: node(s, "part/front/weight").update(replica_of="copy"),
        "expected a copy of what is no copy itself",
    ),
    "an unknown operation": (
        lambda s: node(s, "term0").update(operation={"new": ["Tanhh", {}]}),
        "op 'term0': unknown operation 'Tanhh'; did you mean 'Tanh'",
    ),
    "an operation of a plan": (
        lambda s: node(s, "term0").update(operation={"new": ["Receive", {}]}),
        "unknown operation 'Receive'",
    ),
    "no operation": (
        lambda s: node(s, "term0").update(operation={"new": ["Place", {}]}),
        "expected an operation, got Place",
    ),
    "an unknown parameter": (
        lambda s: node(s, "term0").update(operation={"new": ["Tanh", {"x": 1}]}),
        r"node .*: Tanh: expected the fields none, the file has \['x'\]",
    ),
    "a missing parameter": (
        lambda s: node(s, "term0").update(operation={"new": ["Pad", {}]}),
        "Pad: expected the fields widths, mode, value, the file lacks widths",
    ),
    "a parameter of another type": (
        lambda s: node(s, "term0").update(operation={"new": ["Softmax", {"axis": "last"}]}),
        "node .*: Softmax: field axis: expected int, got 'last'",
    ),
    "a parameter out of range": (
        lambda s: node(s, "term0").update(operation={"new": ["Softmax", {"axis": 1 << 60}]}),
        "op 'term0': ",
    ),
    "a form that is none": (
        lambda s: node(s, "term0").update(operation={"new": ["Softmax", {"axis": {"int": 3}}]}),
        "expected a value, one of body, bytes, .*got {'int': 3}",
    ),
    "deep values": (
        lambda s: node(s, "term0").update(operation={"list": json.loads("[" * 80 + "]" * 80)}),
        "values are nested deeper than 50",
    ),
    "an infinite number": (
        lambda s: node(s, "term0").update(operation={"new": ["Scale", {"factor": float("inf")}]}),
        "graph.json: expected a number, got Infinity",
    ),
    "an unknown input": (lambda s: node(s, "term0").update(inputs=["no"]), "op 'term0': there is no 'no'"),
    "an input that is an op": (lambda s: node(s, "term0").update(inputs=["term1"]), "op 'term0' .* connects blobs"),
    "too many inputs": (lambda s: node(s, "term0").update(inputs=["x", "x"]), "op 'term0': Tanh takes 1"),
    "an output twice": (lambda s: node(s, "term0").update(outputs=["z", "z"]), "has 1 outputs, got 2|cannot write one"),
    "an output of another type": (lambda s: node(s, "z").update(dtype="float64"), "op 'term0' .*gives float32"),
    "an output of another shape": (
        lambda s: node(s, "z").update(shape=["batch", 5]),
        r"op 'term0' .*gives float32\[batch, 3\], blob 'z' is declared as float32\[batch, 5\]",
    ),
    "no inputs": (lambda s: node(s, "term0").update(inputs=[]), "op 'term0': Tanh takes 1"),
    "no outputs": (lambda s: node(s, "term0").update(outputs=[]), "op 'term0' .*is missing its output blobs"),
    "a cycle": (lambda s: node(s, "term0").update(inputs=["z"]), "cycle.*term0 -> z -> term0"),
    "wrong attempts": (lambda s: node(s, "term0").update(attempts=["x", 0, 0.0]), "node .*attempts: expected float"),
    "attempts out of range": (lambda s: node(s, "term0").update(attempts=[-1.0, 0, 0.0]), "timeout must be positive"),
    "wrong hints": (lambda s: node(s, "term0").update(hints=["numpy", False]), "hints: expected tuple"),
    "producers of others": (lambda s: node(s, "z").update(producers=["term0"]), "blob 'z': producers: expected 2 ops"),
    "consumers that are none": (lambda s: node(s, "z").update(consumers=["term0"]), "consumers: expected 1 ops"),
    "an output that is no blob": (lambda s: s.update(inputs={}, outputs={"y": "term0"}), "outputs: expected blobs"),
    "an output that is not there": (lambda s: s.update(inputs={}, outputs={"y": "no"}), "outputs: there is no 'no'"),
    "another rank": (lambda s: s.update(rank=1), "its value is on rank 0, rank 1 has saved the file"),
}


@pytest.mark.together("name", EDITS, at_once=40)
def test_it_says_what_is_wrong(tmp_path: Path, good: bytes, name: str) -> None:
    edit, message = EDITS[name]
    check_refused(tmp_path / "g.af", edited(good, edit), message)


def test_the_good_file_is_good(tmp_path: Path, good: bytes) -> None:
    (tmp_path / "g.af").write_bytes(edited(good, lambda s: None))
    assert len(af.load_sync(tmp_path / "g.af").ops) == 6


def of_lengths() -> af.Graph:
    """A graph with a mask and a number that follow from the length of an open axis."""
    graph = af.Graph("g")
    w = graph.variable("w", (3,), init=1.0)
    x = graph.blob("x", ("n", "n"))
    ops.tril(x)
    nn.SGD(0.1).minimize(ops.mean(ops.multiply(ops.sum(x), w)))
    ops.global_average(graph.blob("images", ("n", "n", "n", 2)))
    return graph


def given(*arguments: Any) -> dict[str, Any]:
    """A mask of a file, of these arguments."""
    return {
        "new": [
            "Numbers",
            {
                "function": {"function": "actorflow.ops.indexing:_kept"},
                "given": list(arguments),
                "spec": {"spec": [["n", "n"], "bool"]},
            },
        ]
    }


N: Any = {"length": [[1, "n"]]}
KEPT: tuple[Any, ...] = ("tril", [N, N], {"dtype": "float32"}, 0)


class TestFunctionsOfLengths:
    @pytest.mark.together(
        ("arguments", "message"),
        [
            (KEPT[:-1], "op 'numbers': Numbers: kept .*: missing a required argument: 'k'"),
            ((*KEPT, 1), "op 'numbers': Numbers: kept .*: too many positional arguments"),
            ((*KEPT[:-1], "x"), "op 'numbers': Numbers: argument k of kept: expected int, got 'x'"),
            ((KEPT[0], [N, "n"], *KEPT[2:]), "argument shape of kept: expected tuple"),
            ((*KEPT[:2], None, 0), "argument dtype of kept: expected .*dtype.*got None"),
        ],
    )
    def test_wrong_arguments_are_named_at_load(self, tmp_path: Path, arguments: Any, message: str) -> None:
        path = tmp_path / "g.af"
        of_lengths().save_sync(path)
        content = edited(path.read_bytes(), lambda s: node(s, "numbers").update(operation=given(*arguments)))
        check_refused(path, content, message)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((KEPT[0], [N], *KEPT[2:]), "x must have shape"),
            ((*KEPT[:-1], 1 << 100), "op 'numbers', with n = 3: Numbers.*: "),
            ((KEPT[0], [(1 << 62), N], *KEPT[2:]), "op 'numbers', with n = 3: "),
            ((KEPT[0], [N, {"length": [[1, "n"], [1]]}], *KEPT[2:]), r"gives shape \(3, 4\)"),
        ],
    )
    def test_arguments_that_do_not_fit_to_the_lengths(self, tmp_path: Path, arguments: Any, message: str) -> None:
        path = tmp_path / "g.af"
        of_lengths().save_sync(path)
        path.write_bytes(edited(path.read_bytes(), lambda s: node(s, "numbers").update(operation=given(*arguments))))
        with pytest.raises(af.GraphError, match=message):
            af.load_sync(path).compile(axes={"n": 3})

    def test_numbers_of_another_dtype(self, tmp_path: Path) -> None:
        path = tmp_path / "g.af"
        graph = af.Graph("g")
        ops.linalg.slogdet(graph.blob("x", ("n", "n")))
        x = graph.blob("y", ("n", 2))
        ops.repeat(x, 2, 0)
        graph.save_sync(path)
        place = next(n for n in json.loads(members(path.read_bytes())[0])["nodes"] if n["name"].startswith("numbers"))

        def edit(structure: dict[str, Any]) -> None:
            found = node(structure, place["name"])
            found["operation"]["new"][1]["function"] = {"function": "actorflow.ops.nn.attention:_counted"}
            found["operation"]["new"][1]["given"] = [{"length": [[2, "n"]]}, 1]

        path.write_bytes(edited(path.read_bytes(), edit))
        with pytest.raises(af.DTypeError, match=r"gives float32\[6\], but .* is of int64"):
            af.load_sync(path).compile(axes={"n": 3})

    def test_the_good_graph(self, tmp_path: Path) -> None:
        path = tmp_path / "g.af"
        of_lengths().save_sync(path)
        af.load_sync(path).compile(axes={"n": 3})


def test_cycles(tmp_path: Path) -> None:
    graph = af.Graph("g")
    y = ops.tanh(graph.blob("x", (2,)))
    ops.tanh(y, name="second")
    graph.save_sync(tmp_path / "g.af")
    content = edited((tmp_path / "g.af").read_bytes(), lambda s: node(s, "tanh").update(inputs=["second/out"]))
    check_refused(tmp_path / "g.af", content, "cycle.*tanh -> tanh/out -> second")


def zip_of(*given: tuple[str, bytes], **options: Any) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", **options) as file:
        for name, content in given:
            file.writestr(name, content)
    return out.getvalue()


class TestArchives:
    @pytest.mark.filterwarnings("ignore:Duplicate name")
    @pytest.mark.together(
        ("make", "message"),
        [
            (lambda s, t: b"", "no graph: File is not a zip file"),
            (lambda s, t: b"PK" + bytes(10_000), "no graph: File is not a zip file"),
            (
                lambda s, t: zip_of((STRUCTURE, s)),
                r"expected the members graph.json and weights.safetensors, got graph",
            ),
            (lambda s, t: zip_of((STRUCTURE, s), (TENSORS, t), (STRUCTURE, s)), "got graph.json, graph.json, weights"),
            (lambda s, t: zip_of((STRUCTURE, s), ("../" + TENSORS, t)), r"got \.\./weights"),
            (lambda s, t: zip_of((STRUCTURE, s), ("/etc/passwd", t)), "got /etc/passwd"),
            (lambda s, t: zip_of((STRUCTURE, s), (TENSORS, t), ("x", b"")), "got graph.json, weights.safetensors, x"),
            (
                lambda s, t: zip_of((STRUCTURE, b"[" * 100_000_000), (TENSORS, t), compression=zipfile.ZIP_DEFLATED),
                "expected one that is neither compressed nor encrypted",
            ),
            (lambda s, t: zip_of((STRUCTURE, b"[" * 10_000), (TENSORS, t)), "graph.json: RecursionError"),
            (lambda s, t: zip_of((STRUCTURE, b"[]"), (TENSORS, t)), "graph.json: expected an object"),
            (lambda s, t: zip_of((STRUCTURE, b"[" + b"[]," * 200_000 + b"[]]"), (TENSORS, t)), "one value in 4 bytes"),
            (lambda s, t: zip_of((STRUCTURE, b"\xff"), (TENSORS, t)), "graph.json: 'utf-8' codec"),
            (lambda s, t: zip_of((STRUCTURE, s[:-5]), (TENSORS, t)), "graph.json: Expecting"),
            (lambda s, t: zip_of((STRUCTURE, b"9" * 5_000), (TENSORS, t)), "graph.json: Exceeds the limit"),
            (lambda s, t: zip_of((STRUCTURE, s), (TENSORS, t[:-1])), "no checkpoint: "),
            (lambda s, t: zip_of((STRUCTURE, s), (TENSORS, b"")), "no checkpoint: "),
            (lambda s, t: zip_of((STRUCTURE, s), (TENSORS, struct.pack("<Q", 1 << 60) + t[8:])), "no checkpoint: "),
            (lambda s, t: zipped(s, t)[:-30], "no graph: File is not a zip file"),
            (lambda s, t: zipped(s, t).replace(b"Tanh", b"Sinh", 1), "no graph: Bad CRC-32 for file 'graph.json'"),
        ],
        at_once=40,
    )
    def test_it_says_what_is_wrong(self, tmp_path: Path, good: bytes, make: Callable[..., bytes], message: str) -> None:
        check_refused(tmp_path / "g.af", make(*members(good)), message)

    def test_members_that_claim_more_than_there_is(self, tmp_path: Path, good: bytes) -> None:
        structure, tensors = members(good)
        content = zipped(structure, tensors)
        for claim in (len(content) + 1, 1 << 31):
            size = struct.pack("<II", len(structure), len(structure))
            assert content.count(size) == 2
            check_refused(
                tmp_path / "g.af", content.replace(size, struct.pack("<II", claim, claim)), "members that fit"
            )

    def test_tensors_that_were_changed(self, tmp_path: Path, good: bytes) -> None:
        structure, tensors = members(good)
        check_refused(
            tmp_path / "g.af", zipped(structure, tensors[:-1] + bytes([tensors[-1] ^ 1])), "is damaged: its chec"
        )

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(af.CheckpointError, match=re.escape(f"{tmp_path / 'no.af'}: the checkpoint cannot be read")):
            af.load_sync(tmp_path / "no.af")

    def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(af.CheckpointError, match=r"no.g\.af: the graph cannot be written"):
            af.Graph("g").save_sync(tmp_path / "no" / "g.af")
        path = tmp_path / "g.af"
        path.write_bytes(b"old")
        graph = af.Graph("g")
        graph.function("f", lambda: 1, af.TensorSpec.of(()))()
        with pytest.raises(af.CheckpointError):
            graph.save_sync(path)
        assert path.read_bytes() == b"old"
        assert [*tmp_path.iterdir()] == [path]


async def said_by(*arguments: str) -> tuple[str, str]:
    """What a process prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", *arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 280)
    assert process.returncode == 0, err.decode()
    return out.decode(), err.decode()


@pytest.mark.parametrize(
    "name",
    slow(LARGE if FULL else ["padded lists", "scopes of nodes", "ops", "tensors of a byte"], but=["scopes of nodes"]),
)
async def test_large_files_take_little_memory(tmp_path: Path, name: str) -> None:
    """Files of 4 megabytes that are made to take as much as can be, each in a process of its own."""
    path = tmp_path / "large.af"
    path.write_bytes(LARGE[name]())
    assert path.stat().st_size > 100_000
    said, _ = await said_by("tests.support.large_files", str(path))
    assert float(said) < MOST_MEGABYTES


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10 if FULL else 1))
async def test_changed_files(tmp_path: Path, part: int) -> None:
    for i in range(3):
        graph = RandomGraph(i).graph
        await graph.save(tmp_path / f"good{i}.af")
        await OpenGraphs(i).graphs[0].save(tmp_path / f"good-open{i}.af")
    graph = af.Graph("net")
    x = graph.blob("x", ("batch", 8, 8, 2))
    scores = nn.ResNet(3, width=2, small_images=True)(x)
    nn.SGD(nn.rates.Warmup(nn.rates.Cosine(0.1, 10), 2), momentum=0.9).minimize(ops.sum(scores))
    graph.function("half", half, x.spec)(x)
    await graph.save(tmp_path / "good-net.af")
    await of_lengths().save(tmp_path / "good-lengths.af")
    count = 500 if FULL else 120
    said, how = await said_by("tests.support.broken_files", str(tmp_path), str(part * count), str(count))
    assert said == "", how
    assert how.startswith(f"{count} files")
