"""What of a file ONNX Runtime computes, and what is left as ordinary ops."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.checkpoint.values import Names
from actorflow.ops.operation import Operation

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

WEIGHT = np.arange(12, dtype="f").reshape(4, 3) / 10


def tensor(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, value: Any) -> Any:
    return numpy_helper.from_array(np.asarray(value), name)


def made(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any] = (), opset: int = 17) -> bytes:  # type: ignore[assignment]
    graph = helper.make_graph(nodes, "test", inputs, outputs, [*constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()  # type: ignore[no-any-return]


def network() -> bytes:
    """y = reshape(2 x + 1) @ weight, of x in two halves."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["twice"]),
        helper.make_node("Add", ["twice", "one"], ["more"]),
        helper.make_node("Shape", ["more"], ["lengths"]),
        helper.make_node("Gather", ["lengths", "zero"], ["count"]),
        helper.make_node("Concat", ["count", "four"], ["shape"], axis=0),
        helper.make_node("Reshape", ["more", "shape"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weight"], ["y"]),
    ]
    constants = [
        constant("two", np.float32(2)),
        constant("one", np.float32(1)),
        constant("zero", [0]),
        constant("four", [4]),
        constant("weight", WEIGHT),
    ]
    return made(nodes, [tensor("x", "n", 2, 2)], [tensor("y", "n", 3)], constants)


def kinds(graph: af.Graph) -> list[str]:
    return [op.operation.kind for op in graph.ops]


class TestParts:
    @pytest.mark.parametrize("count", [1, 5])
    async def test_all_of_it_where_nothing_is_trained(self, count: int) -> None:
        model = af.onnx.load(network(), backend="onnxruntime")
        assert kinds(model.graph) == ["OnnxRuntime"]
        assert model.outputs["y"].spec == af.TensorSpec.of(("n", 3))
        x = np.random.default_rng(0).random((count, 2, 2), np.float32)
        async with model.graph:
            found = await model.run({"x": x})
        np.testing.assert_allclose(found["y"], (2 * x + 1).reshape(count, 4) @ WEIGHT, rtol=1e-6)

    async def test_what_is_in_front_of_trained_weights(self) -> None:
        model = af.onnx.load(network(), trainable=True, backend="onnxruntime")
        assert kinds(model.graph).count("OnnxRuntime") == 1
        assert not {"Multiply", "Sum"} & {*kinds(model.graph)}
        (weight,) = model.graph.variables
        assert weight.name == "weight"
        loss = ops.sum(model.outputs["y"])
        slope = af.gradient(loss, weight)
        x = np.random.default_rng(0).random((5, 2, 2), np.float32)
        async with model.graph as graph:
            result = await graph.run({model.inputs["x"]: x}, fetch=[*model.outputs.values(), slope])
        rows = (2 * x + 1).reshape(5, 4)
        np.testing.assert_allclose(result[model.outputs["y"]], rows @ WEIGHT, rtol=1e-6)
        np.testing.assert_allclose(result[slope], rows.T @ np.ones((5, 3), "f"), rtol=1e-6)

    async def test_in_a_larger_graph(self) -> None:
        graph = af.Graph("larger")
        x = graph.blob("images", ("batch", 2, 2))
        y = af.onnx.Network(network(), backend="onnxruntime", name="head")(x)
        z = ops.relu(y)
        assert y.producers[0].name.startswith("head/")
        assert z.shape[0] == x.shape[0]
        async with graph:
            result = await graph.run({x: np.ones((2, 2, 2), "f")}, fetch=z)
        np.testing.assert_allclose(result[z], 3 * np.ones((2, 4), "f") @ WEIGHT, rtol=1e-6)

    async def test_several_inputs_and_outputs(self) -> None:
        nodes = [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Cast", ["sum"], ["whole"], to=TensorProto.INT64),
            helper.make_node("Neg", ["unused"], ["minus"]),
            helper.make_node("Identity", ["a"], ["same"]),
        ]
        outputs = [tensor("whole", "n", dtype=TensorProto.INT64), tensor("same", "n"), tensor("minus", 2)]
        source = made(nodes, [tensor("a", "n"), tensor("b", "n"), tensor("unused", 2)], outputs)
        model = af.onnx.load(source, backend="onnxruntime")
        async with model.graph:
            feeds = {"a": np.array([1.5, -2], "f"), "b": np.array([1, 1], "f"), "unused": np.array([3, 4], "f")}
            found = await model.run(feeds)
        assert [*found] == ["whole", "same", "minus"]
        assert found["whole"].tolist() == [2, -1]
        assert found["whole"].dtype == np.int64
        assert found["same"].tolist() == [1.5, -2]
        assert found["minus"].tolist() == [-3, -4]

    async def test_what_is_known_without_a_run(self) -> None:
        nodes = [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Constant", [], ["number"], value=constant("", np.array([7.0], "f"))),
            helper.make_node("Relu", ["x"], ["y"]),
        ]
        outputs = [tensor("shape", 2, dtype=TensorProto.INT64), tensor("number", 1), tensor("y", "n", 2)]
        model = af.onnx.load(made(nodes, [tensor("x", "n", 2)], outputs), backend="onnxruntime")
        async with model.graph:
            found = await model.run({"x": np.array([[-1, 2]] * 3, "f")})
        assert found["shape"].tolist() == [3, 2]
        assert found["number"].tolist() == [7]
        assert found["y"].tolist() == [[0, 2]] * 3

    async def test_operators_that_are_no_ops_of_ours(self) -> None:
        node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["kept"])
        source = made(
            [node, helper.make_node("Size", ["kept"], ["size"])],
            [tensor("boxes", 1, 3, 4), tensor("scores", 1, 1, 3)],
            [tensor("size", dtype=TensorProto.INT64)],
            [constant("most", [2])],
        )
        boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [5, 5, 6, 6]]], "f")
        model = af.onnx.load(source, backend="onnxruntime")
        async with model.graph:
            found = await model.run({"boxes": boxes, "scores": np.array([[[0.9, 0.8, 0.7]]], "f")})
        assert found["size"] == 6

    async def test_lengths_that_depend_on_data(self) -> None:
        """They are in the result, and the blob says nothing of them."""
        source = made([helper.make_node("NonZero", ["x"], ["y"])], [tensor("x", 4)], [tensor("y", 1, "k", dtype=7)])
        model = af.onnx.load(source, backend="onnxruntime")
        assert model.outputs["y"].spec.is_object
        async with model.graph:
            for x, expected in (([0, 5, 0, 6], [[1, 3]]), ([0, 0, 0, 0], [[]]), ([1, 1, 1, 1], [[0, 1, 2, 3]])):
                found = (await model.run({"x": np.array(x, "f")}))["y"]
                assert (found.dtype, found.tolist()) == (np.int64, expected)
        behind = [helper.make_node("NonZero", ["x"], ["k"]), helper.make_node("Cast", ["k"], ["c"], to=1)]
        product = made(
            [*behind, helper.make_node("Mul", ["c", "w"], ["y"])], [tensor("x", 4)], [tensor("y", "k", "l")],
            [constant("w", np.ones(1, "f"))],
        )  # fmt: skip
        with pytest.raises(af.GraphError, match=r"(?s)what onnxruntime gives as 'c'.*not known before a run"):
            af.onnx.load(product, backend="onnxruntime", trainable=True)

    @pytest.mark.parametrize("opened", [{}, {"n": 8}])
    async def test_lengths_that_depend_on_data_among_ordinary_ops(self, opened: dict[str, int]) -> None:
        """Boxes that are chosen, and values computed of them, are as many as they are in each run."""
        nodes = [
            helper.make_node("Relu", ["scores"], ["positive"]),
            helper.make_node("NonMaxSuppression", ["boxes", "positive", "most", "overlap", "least"], ["kept"]),
            helper.make_node("Slice", ["kept", "two", "three", "one"], ["place"]),
            helper.make_node("Squeeze", ["place", "one"], ["places"]),
            helper.make_node("Gather", ["boxes", "places"], ["chosen"], axis=1),
            helper.make_node("ReduceMax", ["chosen"], ["far"], axes=[1], keepdims=0),
            helper.make_node("Neg", ["far"], ["y"]),
            helper.make_node("Shape", ["kept"], ["shape"]),
            helper.make_node("Compress", ["positive", "which"], ["compressed"], axis=2),
            helper.make_node("Pad", ["boxes", "widths"], ["padded"]),
        ]
        ends = [
            tensor("boxes", 1, "n", 4), tensor("scores", 1, 1, "n"), tensor("which", "n", dtype=TensorProto.BOOL),
            tensor("widths", 6, dtype=TensorProto.INT64),
        ]  # fmt: skip
        outputs = [
            tensor("kept", "k", 3, dtype=TensorProto.INT64), tensor("chosen", 1, "k", 4), tensor("y", 1, 4),
            tensor("shape", 2, dtype=TensorProto.INT64), tensor("compressed", 1, 1, "c"), tensor("padded", 1, "p", "q"),
        ]  # fmt: skip
        numbers = {"most": [5], "overlap": np.float32([0.3]), "least": np.float32([0.1])}
        constants = [constant(name, each) for name, each in numbers.items()]
        constants += [constant(name, [i + 1]) for i, name in enumerate(("one", "two", "three"))]
        source = made(nodes, ends, outputs, constants)
        model = af.onnx.load(source, axes=opened)
        assert [blob.spec.is_object for blob in model.outputs.values()] == [True, True, False, False, True, True]
        peer = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        random = np.random.default_rng(0)
        async with model.graph:
            for count in [8, 8] if opened else [8, 3, 1]:
                corners = random.random((1, count, 2), np.float32)
                feeds = {
                    "boxes": np.concatenate([corners, corners + 0.4], axis=2),
                    "scores": random.standard_normal((1, 1, count), np.float32),
                    "which": random.random(count) > 0.5,
                    "widths": random.integers(0, 3, 6) * [0, 1, 1, 0, 1, 1],
                }
                feeds["scores"][0, 0, 0] = 1  # one is kept
                if count == 1:
                    feeds["which"][:] = False
                for found, expected in zip((await model.run(feeds)).values(), peer.run(None, feeds), strict=True):
                    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                    np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize(
        ("opset", "operator", "more", "how"),
        [
            *[(opset, name, [], {"axis": 1}) for opset in (11, 17) for name in ("Softmax", "LogSoftmax", "Hardmax")],
            (12, "BatchNormalization", [np.arange(1, 5, dtype="f")] * 4, {"epsilon": 0.1}),
            (17, "Flatten", [], {"axis": 2}),
            (17, "GatherElements", [np.array([[[1], [-1]]])], {"axis": 1}),
            (10, "Pad", [], {"pads": [0, 0, 1, 0, -1, 2], "value": 2.0}),
            (17, "Pad", [np.array([0, -1, 0, 0, -1, 2]), np.float32(2)], {}),
            (17, "OneHot", [np.array([3]), np.array([0, 5], "f")], {"axis": 1}),
        ],
    )
    async def test_operators_of_arrays_in_all_opsets(
        self, opset: int, operator: str, more: list[Any], how: dict[str, Any]
    ) -> None:
        """Rows that are chosen, none of them among others, give what ONNX Runtime says, whatever the opset is."""
        given = {f"c{i}": each for i, each in enumerate(more)}
        nodes = [
            helper.make_node("Compress", ["x", "which"], ["chosen"], axis=0),
            helper.make_node("Cast", ["chosen"], ["whole"], to=TensorProto.INT64),
            helper.make_node(operator, ["whole" if operator == "OneHot" else "chosen", *given], ["y"], **how),
        ]
        ends = [tensor("x", "n", 4, 2), tensor("which", "n", dtype=TensorProto.BOOL)]
        lengths = {"Flatten": 2, "OneHot": 4}.get(operator, 3)
        constants = [constant(name, each) for name, each in given.items()]
        outputs = [tensor("y", *[f"y_{i}" for i in range(lengths)])]
        source = made(nodes, ends, outputs, constants, opset)
        model, peer = af.onnx.load(source), onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        x = np.random.default_rng(0).standard_normal((3, 4, 2), np.float32)
        async with model.graph:
            for which in ([1, 0, 1], [0, 1, 0], [0, 0, 0]):
                if operator == "GatherElements" and not any(which):
                    continue  # the indices are of one row
                feeds = {"x": x, "which": np.array(which, bool)}
                (expected,), found = peer.run(None, feeds), (await model.run(feeds))["y"]
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("dtype", ["bool", "float32"])
    async def test_a_shape_that_is_declared_further_on_says_no_dtype(self, dtype: str) -> None:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        nodes = [helper.make_node("NonZero", ["x"], ["k"]), helper.make_node("Neg", ["k"], ["n"])]
        nodes.append(helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT))
        model = af.onnx.load(made(nodes, [tensor("x", 4, dtype=kind)], [tensor("y", 1, 2)]))
        assert model.values["k"].spec == af.TensorSpec.of((1, 2), "int64")
        async with model.graph:
            assert (await model.run({"x": np.array([0, 0, 1, 1], dtype)}))["y"].tolist() == [[-2, -3]]

    async def test_graphs_with_operations_of_files_are_read_from_files(self, tmp_path: Path) -> None:
        kinds = {f"{each.__module__}:{each.__name__}" for each in Operation.__subclasses__()}
        names = Names([])
        refused = {each for each in kinds if each.startswith("actorflow.onnx.") and not names.allows(each)}
        assert refused == {"actorflow.onnx.runtime:OnnxRuntime"}
        source = made([helper.make_node("NonZero", ["x"], ["y"])], [tensor("x", 4)], [tensor("y", 1, "k", dtype=7)])
        await af.onnx.load(source).save(tmp_path / "model.af")
        graph = await af.load(tmp_path / "model.af")
        async with graph:
            result = await graph.run({"x": np.array([0, 5, 0, 6], "f")})
        assert [value.tolist() for value in result.values()] == [[[1, 3]]]

    def test_operators_that_want_known_lengths(self) -> None:
        pad = helper.make_node("Pad", ["x", "widths"], ["padded"])
        conv = helper.make_node("Conv", ["padded", "w"], ["y"], "conv")
        ends = [tensor("x", 1, 1, 4, 4), tensor("widths", 8, dtype=TensorProto.INT64)]
        source = made([pad, conv], ends, [tensor("y", 1, 1, "h", "w")], [constant("w", np.ones((1, 1, 2, 2), "f"))])
        with pytest.raises(
            af.GraphError, match=r"(?s)Conv 'conv': reads what only a run knows.*backend='onnxruntime' may"
        ):
            af.onnx.load(source)

    async def test_axes_that_get_lengths(self) -> None:
        model = af.onnx.load(network(), backend="onnxruntime", axes={"n": 2})
        assert model.inputs["x"].shape == (2, 2, 2)
        assert model.outputs["y"].shape == (2, 3)
        async with model.graph:
            with pytest.raises(af.ShapeError):
                await model.run({"x": np.ones((3, 2, 2), "f")})

    def test_numbers_that_numpy_has_not(self) -> None:
        nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)]
        source = made(nodes, [tensor("x", 2)], [tensor("y", 2, dtype=TensorProto.BFLOAT16)])
        with pytest.raises(af.GraphError, match="onnxruntime and NumPy exchange no bfloat16, as 'y' is"):
            af.onnx.load(source, backend="onnxruntime")

    async def test_lengths_that_the_file_declares(self) -> None:
        source = made([helper.make_node("NonZero", ["x"], ["y"])], [tensor("x", 4)], [tensor("y", 1, 2, dtype=7)])
        model = af.onnx.load(source, backend="onnxruntime")
        async with model.graph:
            assert (await model.run({"x": np.array([0, 5, 0, 6], "f")}))["y"].tolist() == [[1, 3]]
            with pytest.raises(af.OpError, match=r"output y must be int64\[1, 2\], got int64\[1, 3\]"):
                await model.run({"x": np.array([0, 5, 7, 6], "f")})

    def test_onnxruntime_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(af.MissingExtraError, match=r"backend=\"onnxruntime\" needs 'onnxruntime'"):
            af.onnx.load(network(), backend="onnxruntime")
        assert af.onnx.load(network()).outputs["y"].shape[1] == 3

    async def test_text(self) -> None:
        nodes = [
            helper.make_node("LabelEncoder", ["x"], ["n"], keys_strings=["a", "b"], values_int64s=[7, 9]),
            helper.make_node("LabelEncoder", ["n"], ["y"], keys_int64s=[7, 9], values_strings=["u", "v"]),
        ]
        for node in nodes:
            node.domain = "ai.onnx.ml"
        inputs = [tensor("x", "n", dtype=TensorProto.STRING)]
        outputs = [tensor("n", "n", dtype=TensorProto.INT64), tensor("y", "n", dtype=TensorProto.STRING)]
        graph = helper.make_graph(nodes, "text", inputs, outputs)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
        source = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        model = af.onnx.load(source, backend="onnxruntime")
        async with model.graph:
            for given in (["b", "a", "b"], np.array(["b", "a", "b"]), np.array(["b", "a", "b"], object)):
                found = await model.run({"x": given})
                assert found["n"].tolist() == [9, 7, 9]
                assert found["y"].tolist() == ["v", "u", "v"]
        with pytest.raises(af.GraphError, match=r"(?s)text, which cannot be loaded.*backend='onnxruntime' may"):
            af.onnx.load(source)

    async def test_an_input_that_does_not_say_how_many_axes_it_has(self) -> None:
        source = onnx.ModelProto.FromString(
            made([helper.make_node("Neg", ["x"], ["y"])], [tensor("x", 2)], [tensor("y", 2)])
        )
        source.graph.input[0].type.tensor_type.ClearField("shape")
        source.graph.output[0].type.tensor_type.ClearField("shape")
        model = af.onnx.load(source, backend="onnxruntime")
        async with model.graph:
            for x in ([1, 2], [[1], [2]], 3):
                found = (await model.run({"x": x}))["y"]
                assert found.dtype == np.float32
                assert np.array_equal(found, -np.asarray(x))
        with pytest.raises(af.GraphError, match="'x' does not say how many axes it has"):
            af.onnx.load(source)

    @pytest.mark.parametrize("kind", ["Input", "Output"])
    def test_sequences(self, kind: str) -> None:
        floats = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
        if kind == "Input":
            nodes, given, found = [helper.make_node("SequenceLength", ["s"], ["y"])], [floats], [tensor("y", dtype=7)]
        else:
            nodes, given, found = [helper.make_node("SplitToSequence", ["x"], ["s"])], [tensor("x", 4)], [floats]
        with pytest.raises(af.GraphError, match=f"{kind} 's': is of type sequence, and only tensors can be loaded"):
            af.onnx.load(made(nodes, given, found), backend="onnxruntime")

    async def test_a_sparse_weight(self) -> None:
        values = helper.make_tensor("w", TensorProto.FLOAT, [2], [2.0, 3.0])
        places = helper.make_tensor("w_indices", TensorProto.INT64, [2], [0, 2])
        graph = helper.make_graph(
            [helper.make_node("Mul", ["x", "w"], ["y"])], "sparse", [tensor("x", "n", 3)], [tensor("y", "n", 3)],
            sparse_initializer=[helper.make_sparse_tensor(values, places, [3])],
        )  # fmt: skip
        source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model = af.onnx.load(source, backend="onnxruntime")
        async with model.graph:
            assert (await model.run({"x": np.ones((2, 3), "f")}))["y"].tolist() == [[2, 0, 3]] * 2

    async def test_an_output_that_the_file_says_to_be_one_number(self) -> None:
        """It was squeezed when it was exported, with a batch of one; ONNX Runtime takes no notice."""
        squeeze = helper.make_node("Squeeze", ["x"], ["y"])
        model = af.onnx.load(made([squeeze], [tensor("x", "n", 1)], [tensor("y")]), backend="onnxruntime")
        async with model.graph:
            assert (await model.run({"x": np.array([[1], [2]], "f")}))["y"].tolist() == [1, 2]
            assert (await model.run({"x": np.array([[1]], "f")}))["y"].tolist() == 1
