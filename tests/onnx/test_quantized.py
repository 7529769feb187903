"""Pairs of QuantizeLinear and DequantizeLinear against ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.onnx import narrow

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

X = np.concatenate(
    [np.random.default_rng(1).standard_normal(60) * 90, [0.5, 1.5, -0.5, 1e9, -1e9, np.inf, -np.inf, 0.0]]
).reshape(4, 17).astype(np.float32)  # fmt: skip
DTYPES = ["int8", "uint8", "int16", "uint16"]


def pair(dtype: str, *, zero: Any = 3, scale: Any = 1.0, second: float = 1.0, reads: bool = False) -> bytes:
    """Numbers quantized and back; ``reads`` has the integers given, too."""
    arrays = {"s": np.asarray(scale, np.float32), "t": np.asarray(scale, np.float32) * np.float32(second)}
    if zero is not None:
        arrays["z"] = np.asarray(zero, dtype)
    zeros = [] if zero is None else ["z"]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", *zeros], ["q"], output_dtype=0 if zeros else kind),
        helper.make_node("DequantizeLinear", ["q", "t", *zeros], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 17]) for name in "xy"]
    gives = [ends[1], *([helper.make_tensor_value_info("q", kind, ["n", 17])] if reads else [])]
    given = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "pair", ends[:1], gives, given)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()  # type: ignore[no-any-return]


def compare(source: bytes) -> af.Model:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    model = af.onnx.load(source)
    with model.graph:
        given = [*model.run_sync({"x": X}).values()]
    for found, expected in zip(given, peer.run(None, {"x": X}), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    return model


def has_integers(model: af.Model) -> bool:
    """Whether a run makes integers of the numbers."""
    return any(blob.dtype.kind in "iu" and blob.spec.axes for op in model.graph.ops for blob in op.outputs)


@pytest.mark.together("dtype", DTYPES)
@pytest.mark.together("zero", [0, 3, 100, None])
def test_there_and_back_without_integers(dtype: str, zero: Any) -> None:
    assert not has_integers(compare(pair(dtype, zero=zero)))


@pytest.mark.together("dtype", DTYPES)
def test_integers_that_are_read(dtype: str) -> None:
    assert has_integers(compare(pair(dtype, reads=True)))


@pytest.mark.together("dtype", DTYPES)
def test_back_by_another_scale(dtype: str) -> None:
    assert has_integers(compare(pair(dtype, second=2.0)))


@pytest.mark.together("dtype", DTYPES)
def test_scales_of_columns(dtype: str) -> None:
    scale = np.arange(1, 18) / 4
    compare(pair(dtype, zero=np.full(17, 2), scale=scale))


def test_integers_of_32_bits_go_through() -> None:
    """They are more than floating-point numbers of 32 bits have."""
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"])
    ends = [helper.make_tensor_value_info("x", TensorProto.INT32, [2]), helper.make_tensor_value_info("y", 1, [2])]
    graph = helper.make_graph([node], "back", ends[:1], ends[1:], [numpy_helper.from_array(np.float32(0.5), "s")])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    model = af.onnx.load(source)
    with model.graph:
        assert model.run_sync({"x": np.array([7, -3], np.int32)})["y"].tolist() == [3.5, -1.5]


@pytest.mark.parametrize("size", [3, 8, 21])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 0.5])
def test_numbers_are_rounded_alike_with_and_without_compiled_code(
    size: int, odd: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    x[1] = odd
    found = []
    for _ in range(2):
        found.append(narrow.quantized(x))
        monkeypatch.setattr(narrow, "narrow", lambda: None)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isfinite(found[0][1]) == (not np.isinf(odd))


@pytest.mark.parametrize("shape", [(5, 16), (1, 7), (2, 3, 33)])
def test_products_of_what_is_quantized_in_each_run(shape: tuple[int, ...], tmp_path: Path) -> None:
    """The scale of the weight has one element on one axis, beside one without axes; there and back gives the same."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.integers(-63, 64, (shape[-1], 40), dtype=np.int8), "ws": np.float32([0.25])}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["scale"]),
        helper.make_node("Mul", ["wide", "scale"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    ends[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    given = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    more = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("q", 2), ("s", 1), ("z", 2))]
    graph = helper.make_graph(nodes, "dynamic", ends[:1], [ends[1], *more], given)
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    peer, model = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]), af.onnx.load(source)
    af.onnx.save(model, tmp_path / "again.onnx")
    again = af.onnx.load(tmp_path / "again.onnx")
    with model.graph, again.graph:
        for x in (rng.standard_normal(shape), rng.random(shape) + 1, np.zeros(shape)):
            x = x.astype(np.float32)
            expected = peer.run(None, {"x": x})
            for found in (model.run_sync({"x": x}), again.run_sync({"x": x})):
                for mine, its in zip(found.values(), expected, strict=True):
                    assert (mine.dtype, mine.shape) == (its.dtype, its.shape)
                    np.testing.assert_allclose(mine, its, rtol=1e-6)
