"""Small ONNX files that are made to take much memory or time, read by a process that counts both.

``python -m tests.support.onnx_bombs [NAME ...]`` loads them, or random ones by their numbers, each under limits, and
prints what is wrong: other errors than those for files, seconds and megabytes past the limits. With ``-v`` it prints
what each one took, with ``-o`` they are loaded for ONNX Runtime, which then reads them when they first run.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

import actorflow as af
from tests.support.broken_files import MOST_MEGABYTES, MOST_SECONDS

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
OPEN = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node; ``-`` stands for an input that is left out."""
    given = ["" if each == "-" else each for each in inputs.split()]
    return helper.make_node(operator, given, outputs.split(), f"the_{operator}", **attributes)


def file(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Any] = (X,),
    functions: Sequence[Any] = (),
    opset: int = 17,
    **constants: Any,
) -> bytes:
    """A file whose output is the sum of what the last node gives: its type says nothing of how large that is."""
    last = nodes[-1].output[0]
    graph = helper.make_graph(
        [*nodes, helper.make_node("Cast", [last], ["as_float"], to=1), _sum(opset)],
        "bomb",
        list(inputs),
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8).SerializeToString()


def _sum(opset: int) -> NodeProto:
    return helper.make_node("ReduceSum", ["as_float"], ["y"], keepdims=0)


def chain(operator: str, copies: int, times: int, **attributes: Any) -> list[NodeProto]:
    """Nodes each of which reads the one before it several times."""
    return [node(operator, " ".join([f"a{i}"] * copies), f"a{i + 1}", **attributes) for i in range(times)]


def calls(depth: int, width: int) -> bytes:
    """Functions each of which calls the one before it several times."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "F0", ["t0"], ["t1"], [node("Relu", "t0", "t1")], opsets)]
    for i in range(1, depth):
        body = [helper.make_node(f"F{i - 1}", [f"t{k}"], [f"t{k + 1}"], domain="own") for k in range(width)]
        functions.append(helper.make_function("own", f"F{i}", ["t0"], [f"t{width}"], body, opsets))
    return file([helper.make_node(f"F{depth - 1}", ["x"], ["a"], "the_call", domain="own")], functions=functions)


def branches(depth: int) -> bytes:
    """Branches inside of each other."""
    inner = helper.make_graph([node("Identity", "x", "o0")], "b", [], [helper.make_tensor_value_info("o0", 1, [2, 3])])
    for i in range(1, depth):
        other = helper.make_graph(
            [node("Neg", "x", f"e{i}")], "e", [], [helper.make_tensor_value_info(f"e{i}", 1, [2, 3])]
        )
        outer = [node("If", "c", f"o{i}", then_branch=inner, else_branch=other)]
        inner = helper.make_graph(outer, "b", [], [helper.make_tensor_value_info(f"o{i}", 1, [2, 3])])
    return file([node("If", "c", "a", then_branch=inner, else_branch=inner)], c=np.array(True))


def nested(depth: int) -> bytes:
    """Graphs in attributes of nodes, deeper than can be made of objects."""
    inner = b""
    for _ in range(depth):
        for field in (6, 5, 1):  # of an attribute, of a node, of a graph
            inner = bytes([field << 3 | 2]) + _varint(len(inner)) + inner
    return bytes([7 << 3 | 2]) + _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    return (bytes([number & 127 | 128]) + _varint(number >> 7)) if number > 127 else bytes([number])


def of_length(*nodes: NodeProto, **constants: Any) -> bytes:
    """Arithmetic on the lengths of an open axis."""
    return file([node("Shape", "x", "a0"), *nodes], [OPEN], **constants)


def whole(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def claims(dims: Sequence[int]) -> bytes:
    """A tensor that claims to be larger than its bytes."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(24))
    return file([node("Constant", "", "a", value=tensor)])


def scopes(count: int) -> bytes:
    """Nodes whose names are paths of their own."""
    nodes = [node("Relu", "x" if not i else f"a{i}", f"a{i + 1}") for i in range(count)]
    for i, each in enumerate(nodes):
        each.name = f"n{i}/" + "s/" * 900 + "x"
    return file(nodes)


def image(operator: str, inputs: str, shape: Sequence[int], outputs: str = "a", **given: Any) -> bytes:
    """A node on images of a size that costs nothing to claim."""
    attributes = {key: value for key, value in given.items() if not isinstance(value, np.ndarray)}
    constants = {key: value for key, value in given.items() if isinstance(value, np.ndarray)}
    opset = attributes.pop("opset", 19)
    size = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    return file([node(operator, inputs, outputs, **attributes)], [size], opset=opset, **constants)


BYTES = {"b": np.array([1], np.int8), "i": np.array([0], np.int32), "s": whole(1 << 20)}


def doubled(name: str, of: str) -> list[NodeProto]:
    """Nodes that make four million numbers of one."""
    return [
        node("Expand", f"{of} s", f"{name}0"),
        node("Concat", f"{name}0 {name}0", f"{name}1", axis=0),
        node("Concat", f"{name}1 {name}1", name, axis=0),
    ]


SHAPE, ONE = whole(1 << 35), np.ones(1, np.float32)
LINE, COLUMN = np.ones((1, 20_000), np.float32), np.ones((20_000, 1), np.float32)
SQUARE = np.ones((300, 300), np.float32)

BOMBS: dict[str, Callable[[], bytes]] = {
    # what gives more than it reads
    "ConstantOfShape": lambda: file([node("ConstantOfShape", "s", "a")], s=SHAPE),
    "ConstantOfShape that overflows": lambda: file([node("ConstantOfShape", "s", "a")], s=whole(1 << 62, 1 << 62)),
    "ConstantOfShape of less than nothing": lambda: file([node("ConstantOfShape", "s", "a")], s=whole(-3)),
    "Expand": lambda: file([node("Expand", "v s", "a")], s=SHAPE, v=ONE),
    "Tile": lambda: file([node("Tile", "v s", "a")], s=SHAPE, v=ONE),
    "Range": lambda: file([node("Range", "o s i", "a")], o=np.array(0), s=np.array(1 << 35), i=np.array(1)),
    "Range of 50 MB": lambda: file(
        [node("Range", "o s i", f"a{k}") for k in range(20)], o=np.array(0), s=np.array(6_000_000), i=np.array(1)
    ),
    "OneHot": lambda: file([node("OneHot", "v d z", "a")], v=whole(1, 2), d=np.array(1 << 33), z=ONE.repeat(2)),
    "OneHot of many": lambda: file(
        [node("OneHot", "v d z", "a")], v=np.arange(20_000), d=np.array(20_000), z=ONE.repeat(2)
    ),
    "Pad": lambda: file([node("Pad", "v s", "a")], s=whole(0, 1 << 35), v=ONE),
    "EyeLike": lambda: image("EyeLike", "x", [30_000, 30_000]),
    "EyeLike of a constant": lambda: file(
        [node("Expand", "v s", "b"), node("EyeLike", "b", "a")], s=whole(9_000, 9_000), v=ONE
    ),
    "Trilu": lambda: file(
        [node("Trilu", "x k", "a")],
        [helper.make_tensor_value_info("x", 1, [30_000, 30_000]), helper.make_tensor_value_info("k", 7, [])],
    ),
    # what gives the product of what it reads
    **{
        operator: lambda operator=operator: file([node(operator, "v w", "a")], v=LINE, w=COLUMN)
        for operator in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Equal", "Less", "MatMul")
    },
    "MatMul of columns": lambda: file([node("MatMul", "w v", "a")], v=LINE, w=COLUMN),
    "And": lambda: file([node("And", "v w", "a")], v=LINE > 0, w=COLUMN > 0),
    "Where": lambda: file([node("Where", "c v w", "a")], c=LINE > 0, v=LINE, w=COLUMN),
    "Gather": lambda: file([node("Gather", "v i", "a")], v=LINE, i=np.zeros(20_000, np.int64)),
    "GatherND": lambda: file([node("GatherND", "v i", "a")], v=LINE, i=np.zeros((20_000, 1), np.int64)),
    "NonZero": lambda: file([node("NonZero", "v", "a")], v=np.ones([1] * 60 + [400_000], bool)),
    "Concat": lambda: file(chain("Concat", 16, 8, axis=0), a0=ONE),
    "Concat of integers": lambda: file(chain("Concat", 16, 8, axis=0), a0=whole(1)),
    "Concat of few": lambda: file(chain("Concat", 2, 40, axis=0), a0=whole(1)),
    "Gather of itself": lambda: file(chain("Gather", 2, 40), a0=whole(0, 0)),
    "Gather of axes": lambda: file(chain("Gather", 2, 12), a0=np.zeros([1, 1, 1], np.int64)),
    "Tile of itself": lambda: file([node("Tile", f"a{i} s", f"a{i + 1}") for i in range(40)], a0=ONE, s=whole(2)),
    "Resize": lambda: file(
        [node("Resize", "v - s", "a")], v=np.ones((1, 1, 2, 2), np.float32), s=np.array([1, 1, 1e5, 1e5], np.float32)
    ),
    "CumSum of many": lambda: file(
        [node("CumSum", "v i", f"a{k}") for k in range(1_000)], v=np.ones(50_000, np.float32), i=np.array(0)
    ),
    "GatherElements of bytes": lambda: file(
        [*doubled("v", "b"), *doubled("e", "i"), node("GatherElements", "v e", "a", axis=0)], **BYTES
    ),
    "ScatterElements of bytes": lambda: file(
        [*doubled("v", "b"), *doubled("e", "i"), node("ScatterElements", "v e v", "a", axis=0)], **BYTES
    ),
    # ranks
    "Unsqueeze": lambda: file([node("Unsqueeze", "x i", "a")], i=np.arange(100_000)),
    "Reshape": lambda: file([node("Reshape", "x i", "a")], i=np.ones(100_000, np.int64)),
    "Reshape, and many after it": lambda: file(
        [node("Reshape", "x i", "a0"), *[node("Identity", f"a{i}", f"a{i + 1}") for i in range(2_000)]],
        i=np.ones(10_000, np.int64),
    ),
    "Identity of a long name": lambda: file(
        [node("Identity", "x" if not i else f"a{i}", f"a{i + 1}") for i in range(2_000)],
        [helper.make_tensor_value_info("x", 1, ["n" * 300_000, 3])],
    ),
    # weights that many nodes want otherwise
    "weights of products": lambda: file(
        [node("MatMul", f"a{i} w", f"a{i + 1}") for i in range(1_500)],
        [helper.make_tensor_value_info("a0", 1, [2, 300])],
        w=SQUARE,
    ),
    "weights times numbers": lambda: file(
        [node("Gemm", "a0 w", f"a{i + 1}", alpha=1.5 + i) for i in range(1_500)],
        [helper.make_tensor_value_info("a0", 1, [2, 300])],
        w=SQUARE,
    ),
    "weights with scales": lambda: file(
        [
            each
            for i in range(1_500)
            for each in (node("MatMul", f"a{i} w", f"b{i}"), node("Mul", f"b{i} k", f"a{i + 1}"))
        ],
        [helper.make_tensor_value_info("a0", 1, [2, 300])],
        w=SQUARE,
        k=np.array(0.5, np.float32),
    ),
    "transposed weights": lambda: file(
        [node("Transpose", f"a{i}", f"a{i + 1}", perm=[1, 0]) for i in range(2_000)], a0=SQUARE
    ),
    # lowerings that make constants
    "ReverseSequence": lambda: image("ReverseSequence", "x s", [1 << 35, 2], s=whole(1, 1)),
    "MaxPool": lambda: image("MaxPool", "x", [1 << 20, 1 << 15, 8], "b a", kernel_shape=[2]),
    "Resize with a filter": lambda: image(
        "Resize", "x - - s", [1, 1, 1 << 20, 4], s=whole(1, 1, 1 << 20, 4), antialias=1, mode="linear"
    ),
    "Resize with a wide filter": lambda: image(
        "Resize",
        "x r s",
        [1, 1, 1000, 4],
        r=np.array([0, 0, 0, 0, 1, 1, 1e7, 1], np.float32),
        s=np.array([1, 1, 1e-7, 1], np.float32),
        antialias=1,
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    "Resize of a corner": lambda: image(
        "Resize",
        "x r - s",
        [1, 1, 4, 4],
        r=np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32),
        s=whole(1, 1, 30_000, 30_000),
        coordinate_transformation_mode="tf_crop_and_resize",
        mode="linear",
    ),
    "DFT": lambda: image("DFT", "x", [1, 4, 1 << 30], opset=17),
    "STFT": lambda: image("STFT", "x s - l", [1, 1 << 35, 1], s=np.array(1), l=np.array(1 << 15), opset=17),
    "Col2Im": lambda: image(
        "Col2Im", "x s k", [1, 1 << 20, 1 << 20], s=whole(1 << 20, 1), k=whole(1 << 10, 1), opset=18
    ),
    "DeformConv": lambda: file(
        [node("DeformConv", "x w o", "a", offset_group=1 << 20)],
        [
            helper.make_tensor_value_info("x", 1, [1, 1 << 20, 4, 4]),
            helper.make_tensor_value_info("w", 1, [1, 1 << 20, 1, 1]),
            helper.make_tensor_value_info("o", 1, [1, 2 << 20, 4, 4]),
        ],
        opset=19,
    ),
    "HannWindow": lambda: file([node("HannWindow", "s", "a")], s=np.array(1 << 35)),
    "Split": lambda: file([node("Split", "x i", " ".join(f"a{k}" for k in range(9_000)))], i=np.zeros(9_000, np.int64)),
    "Split of nothing": lambda: image("Split", "x", [2, 3], num_outputs=1 << 21),
    # lengths
    "squares of lengths": lambda: of_length(*chain("Mul", 2, 30)),
    "sums and squares of lengths": lambda: of_length(
        *[node("Mul" if i % 2 else "Add", f"a{i} a{i}", f"a{i + 1}") for i in range(30)]
    ),
    "lengths with each other": lambda: of_length(
        node("Concat", " ".join(["a0"] * 510), "b", axis=0),
        node("Unsqueeze", "b i", "c"),
        node("Add", "b c", "d"),
        node("Mul", "d d", "e"),
        i=whole(1),
    ),
    "long lengths": lambda: of_length(
        node("Concat", " ".join(["a0"] * 500), "b0", axis=0),
        *[each for i in range(300) for each in (node("Add", f"b{i} k", f"c{i}"), node("Mul", f"b0 c{i}", f"b{i + 1}"))],
        k=whole(1),
    ),
    "Gather of lengths": lambda: of_length(*[node("Concat", f"a{i} a{i}", f"a{i + 1}", axis=0) for i in range(30)]),
    # structure
    "functions": lambda: calls(30, 2),
    "wide functions": lambda: calls(6, 30),
    "deep functions": lambda: calls(5_000, 1),
    "branches": lambda: branches(18),
    "deep branches": lambda: nested(10_000),
    "dims": lambda: claims([1 << 40]),
    "dims that overflow": lambda: claims([1 << 32, 1 << 32, 1 << 32]),
    "dims with none": lambda: claims([0, 1 << 62, 1 << 62]),
    "negative dims": lambda: claims([-2, -3]),
    "many dims": lambda: claims([1] * 200_000 + [6]),
    "names that are paths": lambda: scopes(500),
    "a name of slashes": lambda: file([helper.make_node("Relu", ["x"], ["a"], "/".join("a" * 50_000))]),
}


#: Nodes that give more than they read, of (inputs, attributes): "v" is a value before it, the others are constants.
GROWING: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Concat", "v v v v", {"axis": 0}),
    ("Concat", "v v", {"axis": -1}),
    ("Tile", "v lengths", {}),
    ("Expand", "v lengths", {}),
    ("Gather", "v indices", {"axis": 0}),
    ("Gather", "v v", {"axis": 0}),
    ("GatherElements", "v v", {"axis": 0}),
    ("GatherND", "v indices", {}),
    ("OneHot", "v depth pair", {}),
    ("ConstantOfShape", "v", {}),
    ("Reshape", "v column", {}),
    ("Reshape", "v row", {}),
    ("Unsqueeze", "v zero", {}),
    ("Add", "v v", {}),
    ("Mul", "v column_of_many", {}),
    ("Where", "flags v column_of_many", {}),
    ("Pow", "v depth", {}),
    ("NonZero", "v", {}),
    ("Range", "zero_d depth one_d", {}),
    ("CumSum", "v zero", {}),
    ("ScatterND", "v indices v", {}),
    ("Pad", "v lengths", {}),
    ("Transpose", "v", {}),
    ("Shape", "v", {}),
    ("MatMul", "v v", {}),
    ("EyeLike", "v", {}),
    ("Trilu", "v", {}),
    ("Cast", "v", {"to": 7}),
    ("Cast", "v", {"to": 1}),
    ("Split", "v", {}),
)
CONSTANTS: dict[str, Any] = {
    "lengths": whole(64),
    "indices": np.zeros((64, 1), np.int64),
    "depth": np.array(50),
    "pair": whole(1, 2),
    "column": whole(-1, 1),
    "row": whole(1, -1),
    "zero": whole(0),
    "column_of_many": np.arange(500).reshape(-1, 1),
    "flags": np.ones((500, 1), bool),
    "zero_d": np.array(0),
    "one_d": np.array(1),
}


def random_file(seed: int) -> bytes:
    """Nodes in random order that make more and more of some numbers, or of the lengths of an input."""
    draw = random.Random(seed)
    names = ["first"] if draw.random() < 0.7 else ["shape"]
    nodes = [] if names == ["first"] else [node("Shape", "x", "shape")]
    for i in range(draw.randint(4, 40)):
        operator, inputs, attributes = draw.choice(GROWING)
        recent = names[-1] if draw.random() < 0.8 else draw.choice(names)
        nodes.append(node(operator, " ".join(recent if each == "v" else each for each in inputs.split()), f"v{i}"))
        for key, value in attributes.items():
            nodes[-1].attribute.append(helper.make_attribute(key, value))
        if draw.random() < 0.9:
            names.append(f"v{i}")
    return file(nodes, [OPEN], first=whole(0, 1, 2, 3), **CONSTANTS)


def status(field: str) -> float:
    """Megabytes, by Linux' name for them."""
    return int(Path("/proc/self/status").read_text().partition(field + ":")[2].split()[0]) / 1024


def tried(content: bytes, backend: Any = "actorflow") -> tuple[str, float, float]:
    """What loading a file gives, and the seconds and megabytes that it takes."""
    Path("/proc/self/clear_refs").write_text("5")  # begins to count the most anew
    before, started = status("VmRSS"), time.process_time()
    try:
        loaded = af.onnx.load(content, backend=backend)
        said = f"loaded {[str(blob.spec) for blob in loaded.outputs.values()]}"
    except af.GraphError as error:
        said = f"refused: {error}" if str(error).startswith("<bytes>: ") else f"WRONG: {error!r}"
    except BaseException as error:  # noqa: BLE001  which is what is looked for
        said = f"WRONG: {type(error).__name__}: {error}"
    return said, time.process_time() - started, status("VmHWM") - before


def main(arguments: Sequence[str]) -> None:
    names = [each for each in arguments if each not in ("-v", "-o")] or [*BOMBS, *map(str, range(200))]
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    af.onnx.load(file([node("Relu", "x", "a")]))  # what is imported only now is not the files'
    for name in names:
        content = random_file(int(name)) if name.isdigit() else BOMBS[name]()
        print(f"# {name}, {len(content)} bytes", file=sys.stderr, flush=True)
        said, seconds, megabytes = tried(content, "onnxruntime" if "-o" in arguments else "actorflow")
        line = f"{name} ({len(content)} bytes): {seconds:.1f} s, {megabytes:.0f} MB, {said:.200}".replace("\n", " ")
        if "-v" in arguments or "WRONG" in said or seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES:
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
