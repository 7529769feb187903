"""Files with anything in them: an error that names the file, or a model, and never anything else."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper

import actorflow as af
from actorflow.onnx import constants
from tests.onnx.test_layouts import detector, node, weights
from tests.support.onnx_files import model, results


def others():
    """A network of other operators than the detector's."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i", "n"),
        node("Unsqueeze", "n i", "n1"),
        node("Concat", "n1 rest", "shape", axis=0),
        node("Reshape", "x shape", "a"),
        node("Transpose", "a", "b", perm=[1, 0]),
        node("MatMul", "a b", "c"),
        node("Softmax", "c", "d", axis=1),
        node("TopK", "d k", "e f", axis=-1),
        node("ReduceSum", "e i", "g", keepdims=0),
        node("Tile", "g k", "h"),
        node("Split", "h", "l r", axis=0),
        node("Gemm", "d w", "m", alpha=0.5),
        node("LSTM", "q u v", "y"),
    ]
    constants = {
        "i": np.array([0]), "rest": np.array([-1]), "k": np.array([2]), "w": weights(2, 3), "u": weights(1, 8, 3),
        "v": weights(1, 8, 2),
    }  # fmt: skip
    nodes[1] = helper.make_node("Gather", ["s", "zero"], ["n"])
    constants["zero"] = np.array(0)
    return model(nodes, [("x", (2, 6)), ("q", (3, 1, 3))], [("y", None), ("m", None), ("l", None)], constants)


FILES = [detector().SerializeToString(), others().SerializeToString()]


def test_the_files_are_loaded_as_they_are() -> None:
    for each in FILES:
        af.onnx.load(each)


def tried(content: bytes) -> None:
    try:
        af.onnx.load(content)
    except af.GraphError as error:
        assert "<bytes>" in str(error)  # noqa: PT017


SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


@SLOW
@given(st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_bytes_that_were_changed(content: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(content)
    for place, byte in changes:
        data[place % len(data)] = byte
    tried(bytes(data))


@SLOW
@given(st.sampled_from(FILES), st.data())
def test_attributes_and_connections_that_were_changed(content: bytes, data: st.DataObject) -> None:
    proto = onnx.ModelProto.FromString(content)
    chosen = data.draw(st.sampled_from(list(proto.graph.node)))
    names = sorted({name for each in proto.graph.node for name in (*each.input, *each.output)})
    number = st.sampled_from([-(2**62), -3, -1, 0, 1, 2, 5, 10**6, 2**62])
    for attribute in chosen.attribute:
        if attribute.type == AttributeProto.INT:
            attribute.i = data.draw(number)
        elif attribute.type == AttributeProto.INTS:
            del attribute.ints[:]
            attribute.ints.extend(data.draw(st.lists(number, max_size=5)))
    if chosen.input and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(chosen.input) - 1))
        chosen.input[place] = data.draw(st.sampled_from(names))
    tried(proto.SerializeToString())


@SLOW
@given(st.sampled_from(FILES), st.data())
def test_constants_that_were_changed(content: bytes, data: st.DataObject) -> None:
    proto = onnx.ModelProto.FromString(content)
    integers = [each for each in proto.graph.initializer if each.data_type == TensorProto.INT64]
    chosen = data.draw(st.sampled_from(integers))
    values = data.draw(st.lists(st.sampled_from([-(2**62), -2, -1, 0, 1, 3, 7, 2**31, 2**62]), max_size=4))
    chosen.CopyFrom(onnx.numpy_helper.from_array(np.array(values, np.int64), chosen.name))
    tried(proto.SerializeToString())


def test_a_function_that_calls_itself() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Loop1", ["a"], ["b"], domain="own")]
    function = helper.make_function("own", "Loop1", ["a"], ["b"], body, opsets)
    graph = helper.make_graph(
        [helper.make_node("Loop1", ["x"], ["y"], "call", domain="own")],
        "recursive",
        [helper.make_tensor_value_info("x", 1, [3])],
        [helper.make_tensor_value_info("y", 1, [3])],
    )
    proto = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    with pytest.raises(af.GraphError, match="<bytes>"):
        af.onnx.load(proto.SerializeToString())


def test_a_constant_that_would_be_huge_is_not_made() -> None:
    nodes = [node("ConstantOfShape", "s", "a"), node("ReduceSum", "a", "y", keepdims=0)]
    proto = model(nodes, [], [("y", ())], {"s": np.array([10**5, 10**5])})
    loaded = af.onnx.load(proto.SerializeToString())
    assert max(op.outputs[0].spec.size for op in loaded.graph.ops) == 10**10
    far = [helper.make_node("Range", ["o", "n", "l"], ["y"], "endless")]
    constants = {"o": np.array(0), "n": np.array(10**12), "l": np.array(1)}
    with pytest.raises(af.GraphError, match="Range 'endless': more than"):
        af.onnx.load(model(far, [], [("y", ("n",), "int64")], constants).SerializeToString())


def test_what_is_made_counts_while_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of int8 that are cast and scaled: only the last of three arrays of each is kept."""
    monkeypatch.setattr(constants, "_FREE", 1 << 14)
    width, layers = 64, 24
    weight = (2 * np.eye(width)).astype(np.int8)
    made = {f"w{i}": weight for i in range(layers)} | {"scale": np.full((1, width), 0.5, np.float32)}
    nodes = []
    for i in range(layers):
        nodes += [node("Cast", f"w{i}", f"f{i}", to=1), node("Mul", f"f{i} scale", f"s{i}")]
        nodes.append(node("MatMul", f"v{i} s{i}", f"v{i + 1}"))
    proto = model(nodes, [("v0", (2, width))], [(f"v{layers}", (2, width))], made)
    x = np.random.default_rng(0).standard_normal((2, width)).astype("f")
    assert np.array_equal(af.onnx.load(proto.SerializeToString()).run_sync({"v0": x})[f"v{layers}"], x)


def test_what_is_made_one_after_the_other_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "_FREE", 1 << 15)

    def load(count: int) -> af.Model:
        nodes = [node("Add", "x zero", "y0")]
        for i in range(count):
            nodes += [node("Range", f"zero n{i} one", f"r{i}"), node("ReduceSum", f"r{i}", f"a{i}", keepdims=0)]
            nodes.append(node("Add", f"y{i} a{i}", f"y{i + 1}"))
        numbers = {"zero": np.array(0), "one": np.array(1)} | {f"n{i}": np.array(1000) for i in range(count)}
        proto = model(nodes, [("x", (), "int64")], [(f"y{count}", (), "int64")], numbers)
        return af.onnx.load(proto.SerializeToString())

    assert load(12).run_sync({"x": np.array(5)})["y12"] == 5 + 12 * 499_500
    with pytest.raises(af.GraphError, match=r"Range '.*': more than the file's own constants account for"):
        load(40)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-o"]], ids=["actorflow", "onnxruntime"])
def test_small_files_that_would_take_much(options: list[str]) -> None:
    """Each is an error that names the file, or a model, within seconds and megabytes."""
    if options:
        pytest.importorskip("onnxruntime")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.support.onnx_bombs", *options],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


def load(*nodes: onnx.NodeProto, **constants: np.ndarray) -> af.Model:
    return af.onnx.load(model(nodes, [("x", (2, 3))], [("y", ())], constants, 18).SerializeToString())


@pytest.mark.together(
    ("nodes", "constants", "why"),
    [
        (
            [node("ConstantOfShape", "s", "y")],
            {"s": np.array([-3])},
            r"ConstantOfShape .*\(-3,\): every axis must be a non-neg",
        ),
        ([node("Reshape", "x s", "y")], {"s": np.ones(100_000, np.int64)}, "Reshape .*shape must be at most 65536"),
        ([node("Unsqueeze", "x s", "y")], {"s": np.arange(65)}, "Unsqueeze .*at most 64 axes, got 67"),
        ([node("Split", "x", "y z", num_outputs=1 << 21)], {}, "Split .*num_outputs is 2097152, of 2 outputs"),
        (
            [node("Expand", "b s", "e"), node("EyeLike", "e", "y")],
            {"b": np.zeros(1, "f"), "s": np.array([9_000, 9_000])},
            "EyeLike .*9000x9000 elements",
        ),
    ],
)
def test_what_is_refused_is_named(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], why: str) -> None:
    with pytest.raises(af.GraphError, match=why):
        load(*nodes, **constants)


def test_what_is_too_large_to_be_folded_is_computed_in_a_run() -> None:
    row, column = np.arange(2_000, dtype="f").reshape(1, -1), np.arange(1_000, dtype="f").reshape(-1, 1)
    loaded = load(node("Add", "a b", "c"), node("ReduceMax", "c", "y", keepdims=0), a=row, b=column)
    assert [op.operation.kind for op in loaded.graph.ops if op.outputs[0].spec.size == 2_000_000] == ["Sum"]
    assert results(loaded, {"x": np.zeros((2, 3), "f")})[0]["y"] == 2_998


def test_what_is_small_is_folded() -> None:
    row, column = np.arange(60, dtype="f").reshape(1, -1), np.arange(40, dtype="f").reshape(-1, 1)
    loaded = load(node("Add", "a b", "c"), node("ReduceMax", "c", "y", keepdims=0), a=row, b=column)
    assert [op.operation.kind for op in loaded.graph.ops] == ["Constant"]


def test_a_weight_that_many_nodes_have_is_one_constant() -> None:
    nodes = [
        each for i in range(9) for each in (node("MatMul", f"x{i} w", f"p{i}"), node("Relu", f"p{i}", f"x{i + 1}"))
    ]
    proto = model(nodes, [("x0", (2, 4))], [("x9", (2, 4))], {"w": weights(4, 4)})
    loaded = af.onnx.load(proto.SerializeToString())
    assert [op.operation.kind for op in loaded.graph.ops].count("Constant") == 1


def called(depth: int, width: int) -> bytes:
    """Functions each of which calls the one before it several times."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "F0", ["t0"], ["t1"], [node("Relu", "t0", "t1")], opsets)]
    for i in range(1, depth):
        body = [helper.make_node(f"F{i - 1}", [f"t{k}"], [f"t{k + 1}"], domain="own") for k in range(width)]
        functions.append(helper.make_function("own", f"F{i}", ["t0"], [f"t{width}"], body, opsets))
    nodes = [helper.make_node(f"F{depth - 1}", ["x"], ["y"], "call", domain="own")]
    proto = model(nodes, [("x", (3,))], [("y", (3,))], functions=functions)
    proto.opset_import.extend(opsets[1:])
    return bytes(proto.SerializeToString())


@pytest.mark.together(
    ("operator", "name", "value"), [("ArgMax", "axis", 1), ("Elu", "alpha", 0.5), ("Transpose", "perm", [1, 0])]
)
def test_an_attribute_of_a_function_outside_of_one_is_refused(operator: str, name: str, value: object) -> None:
    made = node(operator, "x", "y", **{name: value})
    made.attribute[0].CopyFrom(onnx.AttributeProto(name=name, type=made.attribute[0].type, ref_attr_name="other"))
    with pytest.raises(
        af.GraphError, match=f"{operator} .*attribute '{name}' is 'other' of a function, and it is in none"
    ):
        load(made)


def test_functions_that_call_each_other() -> None:
    assert len(af.onnx.load(called(8, 2)).graph.ops) == 128
    with pytest.raises(af.GraphError, match="the calls of function 'F19' and others become more than"):
        af.onnx.load(called(20, 2))


def test_names_that_are_paths() -> None:
    nodes = [node("Relu", "x" if not i else f"a{i}", f"a{i + 1}") for i in range(200)]
    for i, each in enumerate(nodes):
        each.name = f"n{i}/" + "s/" * 300 + "x"
    with pytest.raises(af.GraphError, match=r"the names of nodes are paths to more than \d+ scopes"):
        af.onnx.load(model(nodes, [("x", (2,))], [("a200", (2,))]).SerializeToString())


def test_products_of_lengths_that_are_too_large() -> None:
    nodes = [node("Size", "x", "s"), node("Mul", "s k", "p"), node("Add", "p x", "y")]
    proto = model(nodes, [("x", ("n", 3), "int64")], [("y", ("n", 3), "int64")], {"k": np.array(1 << 60)})
    content = proto.SerializeToString()
    x = np.ones((2, 3), np.int64)
    assert (results(af.onnx.load(content), {"x": x})[0]["y"] == (6 << 60) + 1).all()
    with pytest.raises(af.GraphError, match=r"op 'y.lengths', with n = 3: Numbers.*OverflowError"):
        results(af.onnx.load(content), {"x": np.ones((3, 3), np.int64)})


def test_a_weight_that_cannot_be_made_is_refused_wherever_it_is_read() -> None:
    nodes = [
        node("Range", "zero count one", "all"),
        node("MatMul", "x w", "m"),
        node("Relu", "m", "a"),
        node("Neg", "m", "b"),
        node("Add", "a b", "y"),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "count": np.array(6_540_000), "w": weights(300, 300)}
    proto = model(nodes, [("x", (2, 300))], [("y", (2, 300))], constants)
    with pytest.raises(af.GraphError, match=r"(?s)Relu 'a': more than .*\n  Neg 'b': more than "):
        af.onnx.load(proto.SerializeToString())


def test_copies_of_weights_are_made_within_bounds() -> None:
    copies = [node("Identity", "w", f"w{i}") for i in range(200)]
    total = node("Sum", " ".join(["x", *[f"w{i}" for i in range(200)]]), "y")
    weight = np.ones((500, 500), "f")
    proto = model([*copies, total], [("x", (500, 500))], [("y", (500, 500))], {"w": weight}, 18)
    loaded = af.onnx.load(proto.SerializeToString(), trainable=True)
    assert 2 <= len(loaded.graph.variables) < 50
    assert results(loaded, {"x": weight})[0]["y"][0, 0] == 201
