"""Files: where weights are, functions, what is refused, and what is no valid file."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import actorflow as af
from tests.onnx.test_layouts import node, weights
from tests.support.onnx_files import model


def small(**changes):
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "y")]
    return model(nodes, [("x", (1, 3, 4, 4))], [("y", (1, 5, 3, 3))], {"w": weights(5, 3, 2, 2)}, **changes)


def test_a_range_of_floats_has_whole_bounds_or_known_ones() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Cast", "s", "f", to=1),
        node("Squeeze", "f", "n"),
        node("Range", "a n b", "y"),
    ]
    constants = {"a": np.float32(0.5), "b": np.float32(1)}
    proto = model(nodes, [("x", ("n",))], [("y", ("m",))], constants)
    with pytest.raises(af.GraphError, match=r"only those between whole numbers can be loaded, not from 0\.5 to n"):
        af.onnx.load(proto.SerializeToString())
    loaded = af.onnx.load(proto.SerializeToString(), axes={"n": 3})
    assert loaded.run_sync({"x": np.zeros(3, "f")})["y"].tolist() == [0.5, 1.5, 2.5]


def test_outputs_may_have_no_shape() -> None:
    proto = small()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    x = weights(1, 3, 4, 4)
    assert af.onnx.load(proto.SerializeToString()).run_sync({"x": x})["y"].shape == (1, 5, 3, 3)
    proto.graph.node[0].input[1] = "nowhere"
    with pytest.raises(af.GraphError, match="not a valid model"):
        af.onnx.load(proto.SerializeToString())


@pytest.mark.parametrize("has_shape", [True, False])
def test_weights_in_another_file(tmp_path: Path, has_shape: bool) -> None:
    proto, path = small(), tmp_path / "model.onnx"
    if not has_shape:
        proto.graph.output[0].type.tensor_type.ClearField("shape")
    x = weights(1, 3, 4, 4)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    loaded = af.onnx.load(path)
    assert loaded.graph.name == "model"
    np.testing.assert_allclose(loaded.run_sync({"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(af.GraphError, match="weights are in other files"):
        af.onnx.load(path.read_bytes())
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(af.GraphError, match=r"model\.onnx: .*weights\.bin"):
        af.onnx.load(path)


@pytest.mark.parametrize("has_shape", [True, False])
def test_weights_outside_of_the_folder_are_not_read(tmp_path: Path, has_shape: bool) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(240))
    proto = small()
    if not has_shape:
        proto.graph.output[0].type.tensor_type.ClearField("shape")
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    path = tmp_path / "inside" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(af.GraphError, match=r"cannot be read|not a valid model"):
        af.onnx.load(path)


def outside(path: Path, count: int, **said: str) -> None:
    """A model whose weights are all the same bytes of another file."""
    (path.parent / "weights.bin").write_bytes(np.ones(6, "f").tobytes())
    proto = model(
        [helper.make_node("Sum", ["x", *[f"w{i}" for i in range(count)]], ["y"])], [("x", (2, 3))], [("y", (2, 3))]
    )
    for i in range(count):
        tensor = proto.graph.initializer.add(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[2, 3])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "weights.bin", **said}.items():
            tensor.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())


def test_weights_that_are_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    outside(path, 8)
    found = af.onnx.load(path).run_sync({"x": np.zeros((2, 3), "f")})["y"]
    np.testing.assert_array_equal(found, np.full((2, 3), 8, "f"))
    outside(path, 9)
    with pytest.raises(af.GraphError, match="its weights are 216 bytes of other files, which have 24"):
        af.onnx.load(path)


@pytest.mark.parametrize(
    "said", [{"offset": "-8"}, {"offset": "x"}, {"length": str(1 << 60)}, {"offset": str(1 << 62)}]
)
def test_parts_of_other_files_that_are_none(tmp_path: Path, said: dict[str, str]) -> None:
    outside(tmp_path / "model.onnx", 1, **said)
    with pytest.raises(af.GraphError, match=r"its weights are|cannot be read"):
        af.onnx.load(tmp_path / "model.onnx")


@pytest.mark.parametrize("how", ["link", "link of the folder", "hard link"])
def test_links_to_other_folders_are_not_followed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "inside" / "model.onnx"
    path.parent.mkdir()
    outside(path, 1, location="there/weights.bin" if how == "link of the folder" else "weights.bin")
    weights, secret = path.parent / "weights.bin", tmp_path / "secret" / "weights.bin"
    secret.parent.mkdir()
    weights.rename(secret)
    if how == "link":
        weights.symlink_to(secret)
    elif how == "hard link":
        weights.hardlink_to(secret)
    else:
        (path.parent / "there").symlink_to(secret.parent)
    with pytest.raises(af.GraphError, match="not a valid model"):
        af.onnx.load(path)


@pytest.mark.parametrize("backend", ["actorflow", "onnxruntime"])
def test_nodes_in_any_order(backend: str) -> None:
    """Not all exporters sort them; a branch reads what is outside of it."""
    pytest.importorskip("onnxruntime")
    branch = helper.make_graph(
        [helper.make_node("Neg", ["b"], ["c"])], "branch", [], [helper.make_tensor_value_info("c", 1, ["n"])]
    )
    nodes = [
        helper.make_node("Abs", ["chosen"], ["y"]),
        helper.make_node("If", ["true"], ["chosen"], then_branch=branch, else_branch=branch),
        helper.make_node("Sub", ["x", "a"], ["b"]),
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("Constant", [], ["true"], value=onnx.numpy_helper.from_array(np.array(True))),
    ]
    ends = [helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy"]
    graph = helper.make_graph(nodes, "unsorted", ends[:1], ends[1:])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.array([1, -2, 3], "f")
    assert af.onnx.load(source, backend=backend).run_sync({"x": x})["y"].tolist() == [1, 2, 3]


def test_functions_of_the_file_are_inlined() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Add", ["s", "b"], ["c"])]
    function = helper.make_function("own", "SquareAdd", ["a", "b"], ["c"], body, opsets[:1])
    graph = helper.make_graph(
        [helper.make_node("SquareAdd", ["x", "x"], ["y"], "call", domain="own")],
        "functions",
        [helper.make_tensor_value_info("x", 1, [3])],
        [helper.make_tensor_value_info("y", 1, [3])],
    )
    proto = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    x = weights(3)
    found = af.onnx.load(proto.SerializeToString()).run_sync({"x": x})["y"]
    np.testing.assert_allclose(found, x * x + x, rtol=1e-6)


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_that_is_always_taken_is_the_only_one(taken: bool) -> None:
    branches = [
        helper.make_graph(
            [helper.make_node(operator, ["x"], ["r"])], name, [], [helper.make_tensor_value_info("r", 1, [3])]
        )
        for operator, name in (("Neg", "then"), ("Exp", "else"))
    ]
    nodes = [helper.make_node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])]
    proto = model(nodes, [("x", (3,))], [("y", (3,))], {"c": np.array(taken)})
    x = weights(3)
    found = af.onnx.load(proto.SerializeToString()).run_sync({"x": x})["y"]
    np.testing.assert_allclose(found, -x if taken else np.exp(x), rtol=1e-5)


def test_all_that_is_refused_is_said_at_once() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "fine"),
        helper.make_node("RandomNormalLike", ["a"], ["b"], "layer/noise"),
        helper.make_node("Add", ["a", "b"], ["c"], "depends on it"),
        helper.make_node("NonZero", ["c"], ["d"], "count"),
        helper.make_node("Bernoulli", ["a"], ["e"], "coin"),
        helper.make_node("StringNormalizer", ["t"], ["u"], "words"),
    ]
    proto = model(nodes, [("x", (3,))], [("e", (3,)), ("c", (3,))])
    proto.graph.input.append(helper.make_tensor_value_info("t", TensorProto.STRING, [2]))
    with pytest.raises(af.GraphError) as caught:
        af.onnx.load(proto.SerializeToString())
    first, *lines, last = str(caught.value).splitlines()
    assert first == "<bytes>: these nodes cannot be loaded:"
    assert last.startswith("  backend='onnxruntime' may compute it")
    assert [line.split(":")[0].strip() for line in lines] == [
        "RandomNormalLike 'layer/noise'", "Bernoulli 'coin'", "StringNormalizer 'words'",
    ]  # fmt: skip


def test_outputs_that_are_inputs_or_constants() -> None:
    nodes = [node("Identity", "x", "y"), node("Identity", "w", "z")]
    w = weights(2)
    proto = model(nodes, [("x", (3,))], [("y", (3,)), ("z", (2,)), ("again", (3,))], {"w": w})
    proto.graph.node.append(helper.make_node("Identity", ["y"], ["again"]))
    x = weights(3)
    found = af.onnx.load(proto.SerializeToString()).run_sync({"x": x})
    assert [*found] == ["y", "z", "again"]
    for name, expected in (("y", x), ("z", w), ("again", x)):
        np.testing.assert_array_equal(found[name], expected)


def test_a_shape_of_data_that_is_not_the_declared_one_fails_in_the_run() -> None:
    proto = model([node("Reshape", "x s", "y")], [("x", (2, 3)), ("s", (2,), "int64")], [("y", (3, 2))])
    loaded = af.onnx.load(proto.SerializeToString())
    x = weights(2, 3)
    found = loaded.run_sync({"x": x, "s": np.array([3, 2])})["y"]
    np.testing.assert_array_equal(found, x.reshape(3, 2))
    with pytest.raises(af.OpError, match="declares float32"):
        loaded.run_sync({"x": x, "s": np.array([6, 1])})


def cycle():
    proto = small()
    proto.graph.node[0].input[0] = "y"
    return proto


def reads_nothing():
    proto = small()
    proto.graph.node[0].input[1] = "nowhere"
    return proto


def wrong_type():
    proto = small()
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros((5, 3, 2, 2)), "w"))
    return proto


def wrong_shape():
    proto = small()
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights(5, 4, 2, 2), "w"))
    return proto


def unknown_operator():
    proto = small()
    proto.graph.node[1].op_type = "Frobnicate"
    return proto


def short_weights():
    proto = small()
    proto.graph.initializer[0].raw_data = b"1234"
    return proto


def negative_lengths():
    proto = small()
    proto.graph.initializer[0].dims[0] = -5
    return proto


def no_outputs():
    proto = small()
    proto.graph.output[0].name = "nothing gives it"
    return proto


@pytest.mark.together(
    "make",
    [cycle, reads_nothing, wrong_type, wrong_shape, unknown_operator, short_weights, negative_lengths, no_outputs],
)
def test_what_is_no_valid_model_names_the_file(make, tmp_path: Path) -> None:
    path = tmp_path / "hostile.onnx"
    path.write_bytes(make().SerializeToString())
    with pytest.raises(af.GraphError, match=r"hostile\.onnx"):
        af.onnx.load(path)


@pytest.mark.together("part", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_part_of_a_file_is_none(part: float, tmp_path: Path) -> None:
    path, whole = tmp_path / "part.onnx", small().SerializeToString()
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(af.GraphError, match=r"part\.onnx"):
        af.onnx.load(path)


def test_bytes_that_are_something_else() -> None:
    for noise in (b"hello", bytes(100), b"\x89PNG\r\n\x1a\n" + bytes(50), np.random.default_rng(0).bytes(1000)):
        with pytest.raises(af.GraphError, match="<bytes>"):
            af.onnx.load(noise)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        af.onnx.load(tmp_path / "none.onnx")


def test_backends() -> None:
    with pytest.raises(af.GraphError, match="backend must be"):
        af.onnx.load(small().SerializeToString(), backend="tensorflow")  # type: ignore[arg-type]


def test_a_network_says_what_it_is_given() -> None:
    graph = af.Graph("wrong")
    network = af.onnx.Network(small().SerializeToString())
    with pytest.raises(af.ShapeError, match="input 'x' is float32"):
        network(graph.blob("a", (1, 3, 5, 5)))
    with pytest.raises(af.DTypeError, match="input 'x' is float32"):
        network(graph.blob("b", (1, 3, 4, 4), "float64"))
    assert not graph.ops


def test_bytes_read_no_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.bin").write_bytes(np.ones(2, "f").tobytes())
    monkeypatch.chdir(tmp_path)
    tensor = onnx.TensorProto(name="t", data_type=onnx.TensorProto.FLOAT, dims=[2])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["x", "c"], ["y"])]
    content = model(nodes, [("x", [2])], [("y", [2])]).SerializeToString()
    with pytest.raises(af.GraphError, match="its weights are in other files: give the path, not the bytes"):
        af.onnx.load(content)


@pytest.mark.parametrize(("less", "rows"), [(0, 7), (5, 2), (1, 4)])
def test_lengths_are_divided_towards_zero(less: int, rows: int) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Sub", ["s", "less"], ["d"]),
        helper.make_node("Div", ["d", "two"], ["q"]),
        helper.make_node("Cast", ["q"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    made = model(nodes, [("x", ["n", 3])], [("y", [2])], {"less": np.array([less, 8]), "two": np.array([2, 2])})
    expected = [np.trunc((rows - less) / 2), np.trunc((3 - 8) / 2)]
    assert af.onnx.load(made.SerializeToString()).run_sync({"x": np.zeros((rows, 3), "f")})["y"].tolist() == expected


@pytest.mark.parametrize("limits", [{"max_plans": 3}, {"memory_budget": 1 << 20}])
@pytest.mark.parametrize("backend", ["actorflow", "onnxruntime"])
def test_limits_of_a_graph_of_a_file(limits: dict[str, int], backend: str) -> None:
    loaded = af.onnx.load(small(), backend=backend, **limits)
    assert loaded.graph.options.max_plans == limits.get("max_plans", 64)
    assert loaded.graph.options.memory_budget_bytes == limits.get("memory_budget")
    for name, wrong in itertools.product(limits, (0, 1.5, "3")):
        with pytest.raises((af.GraphError, TypeError), match=f"{name} must be"):
            af.onnx.load(small(), backend=backend, **{name: wrong})
