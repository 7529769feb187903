"""Operators of com.microsoft against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.onnx.operators import recurrent

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT = TensorProto.FLOAT


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def whole(kind: Any, *shape: int, seed: int = 0) -> Any:
    """Integers of which ONNX Runtime's sums of two products fit 16 bits, as they must on some processors."""
    info = np.iinfo(kind)
    low = max(info.min, -60)
    return np.random.default_rng(seed).integers(low, info.max if low == 0 else 60, shape, kind, endpoint=True)


def compare(
    operator: str, feeds: dict[str, Any], constants: dict[str, Any], names: str, outputs: int = 1,
    tolerance: float = 1e-5, domain: str = "com.microsoft", **attributes: Any,
) -> None:  # fmt: skip
    """Check that a node gives what ONNX Runtime gives, with the first axis of what is fed open, and with two lengths.

    ``names`` are its inputs; a dash is none.
    """
    node = helper.make_node(
        operator, [name.strip("-") for name in names.split()], [f"y{i}" for i in range(outputs)], domain=domain,
        **attributes,
    )  # fmt: skip
    ends = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), ["n", *each.shape[1:]])
        for name, each in feeds.items()
    ]
    given = [numpy_helper.from_array(each, name) for name, each in constants.items()]
    results = [helper.make_tensor_value_info(f"y{i}", FLOAT, None) for i in range(outputs)]
    graph = helper.make_graph([node], "test", ends, results, given)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    source = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # with several it may round each row by itself
    peer = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    model = af.onnx.load(source)
    with model.graph:
        for some in (feeds, {name: each[:1] for name, each in feeds.items()}):
            found, expected = model.run_sync(some), peer.run(None, some)
            for (name, mine), its in zip(found.items(), expected, strict=True):
                assert (mine.dtype, mine.shape) == (its.dtype, its.shape), name
                np.testing.assert_allclose(mine, its, rtol=tolerance, atol=tolerance, err_msg=name)


X = draw(3, 4, 8)


@pytest.mark.parametrize("operator", ["Gelu", "BiasGelu", "FastGelu", "biased FastGelu", "QuickGelu"])
def test_activations(operator: str) -> None:
    has_bias = operator.lower().startswith("bias")
    bias, names = ({"b": draw(8)}, "x b") if has_bias else ({}, "x")
    compare(operator.removeprefix("biased "), {"x": X}, bias, names, tolerance=2e-5,
            **({"alpha": 1.3} if operator == "QuickGelu" else {}))  # fmt: skip


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0)])
def test_products(turned: tuple[int, int]) -> None:
    b = draw(*((6, 8) if turned[1] else (4, 6) if turned[0] else (8, 6)))
    compare("FusedMatMul", {"a": X}, {"b": b}, "a b", transA=turned[0], transB=turned[1], alpha=0.5)


def test_norms() -> None:
    more = {"scale": draw(8, seed=1), "shift": draw(8, seed=2), "bias": draw(8, seed=3)}
    feeds = {"x": X, "skip": draw(3, 4, 8, seed=4)}
    compare("SkipLayerNormalization", feeds, more, "x skip scale shift bias", epsilon=1e-5)
    scales = {name: more[name] for name in ("scale", "bias")}
    compare("SkipSimplifiedLayerNormalization", feeds, scales, "x skip scale bias", epsilon=1e-5)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_quantized_products(kind: Any) -> None:
    more = {"b": whole(kind, 8, 5), "by": np.float32([0.02]), "zero": np.array([3], kind), "bias": draw(5)}
    compare("DynamicQuantizeMatMul", {"a": X}, more, "a b by zero bias", tolerance=1e-4)
    more = {**more, "scale": np.float32([0.1]), "least": np.array([7], np.uint8)}
    compare(
        "MatMulIntegerToFloat", {"a": whole(np.uint8, 3, 4, 8)}, more, "a b scale by least zero bias", tolerance=1e-4
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_weights_of_few_bits(bits: int, has_zeros: bool) -> None:
    columns, rows, block = 6, 40, 16
    blocks = 3
    constants = {"b": whole(np.uint8, columns, blocks, block * bits // 8), "scale": np.abs(draw(columns * blocks)) / 20}
    if has_zeros:
        constants["zero"] = whole(np.uint8, columns * (-(-blocks * bits // 8)))
    names = f"a b scale {'zero' if has_zeros else ''}"
    compare("MatMulNBits", {"a": draw(3, 2, rows)}, constants, names, tolerance=2e-3,
            K=rows, N=columns, bits=bits, block_size=block)  # fmt: skip


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("masked", [True, False])
def test_attention(causal: int, masked: bool) -> None:
    feeds: dict[str, Any] = {"x": X}
    if masked:
        feeds["mask"] = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], np.int32)
    compare("Attention", feeds, {"w": draw(8, 24), "b": draw(24, seed=1)}, "x w b mask" if masked else "x w b",
            num_heads=2, unidirectional=causal)  # fmt: skip


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_lstm_of_eight_bits(kind: Any, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count, features, width = 1 + (direction == "bidirectional"), 5, 6
    constants = {"w": whole(kind, count, features, 4 * width), "r": whole(kind, count, width, 4 * width, seed=1)}
    constants |= {"b": draw(count, 8 * width), "h": draw(count, 2, width), "c": draw(count, 2, width, seed=1)}
    for name in ("w", "r"):
        constants[f"{name}_scale"] = np.full(count, 0.005, np.float32)
        constants[f"{name}_zero"] = np.full(count, 130 if kind is np.uint8 else 3, kind)
    names = "x w r b - h c - w_scale w_zero r_scale r_zero"
    for _ in range(2):
        compare("DynamicQuantizeLSTM", {"x": draw(7, 2, features)}, constants, names, 3,
                hidden_size=width, direction=direction)  # fmt: skip
        monkeypatch.setattr(recurrent, "narrow", lambda: None)  # as without compiled code


def test_lstms_of_one_operation_keep_their_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of each are packed once, at their first use."""
    packed = []
    monkeypatch.setattr(
        recurrent, "_packed", lambda weight, old=recurrent._packed: (packed.append(weight[0, 0]), old(weight))[1]
    )
    shared, scale, steps, width = recurrent.QuantizedLSTM(False), np.float32([0.01]), draw(7, 2, 5), 6
    with af.Graph("g") as graph:
        x, state = graph.blob("x", steps.shape), graph.constant(np.zeros((2, width), np.float32))
        found = []
        for number in range(2):
            weights = [graph.constant(np.full((n, 4 * width), number + 1, np.int16)) for n in (5, width)]
            more = [graph.constant(each) for each in (scale, scale, draw(4 * width))]
            found.append(graph.op(f"lstm{number}", shared)(x, state, state, *weights, *more)[0])
        runs = [graph.run_sync({x: steps}, fetch=found) for _ in range(3)]
    assert sorted(packed) == [1, 1, 2, 2]
    for run in runs[1:]:
        np.testing.assert_array_equal(run[found[0]], runs[0][found[0]])
        assert not np.array_equal(run[found[0]], run[found[1]])


def test_sums_of_eight_bits_that_are_too_large_for_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one step, by the definition: ONNX Runtime's are cut off on some processors."""
    features, width, step = 640, 3, np.float32(1 / 255)
    random = np.random.default_rng(0)
    signs = random.choice([-1, 1], 4 * width)
    weight = (random.integers(120, 128, (1, features, 4 * width)) * signs).astype(np.int8)
    whole_x = random.integers(200, 256, (1, 1, features))
    whole_x[0, 0, 0] = 255  # so that the scale is 1 / 255
    sums = whole_x[0].astype(np.int64) @ weight[0].astype(np.int64)
    scale = np.float32(1.5 / np.abs(sums).max() / step)
    constants = {
        "w": weight,
        "r": np.zeros((1, width, 4 * width), np.int8),
        "s": np.full(1, scale),
        "z": np.zeros(1, np.int8),
    }
    given = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    names = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=width)
    ends = [helper.make_tensor_value_info("x", FLOAT, whole_x.shape), helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph([node], "test", ends[:1], ends[1:], given)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    source = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    into, out, _, new = np.split(sums[0] * np.float64(scale) * step, 4)
    expected = np.tanh(np.tanh(new) / (1 + np.exp(-into))) / (1 + np.exp(-out))
    for _ in range(2):
        model = af.onnx.load(source)
        with model.graph:
            found = model.run_sync({"x": whole_x.astype(np.float32) * step})["y"]
        np.testing.assert_allclose(found[0, 0, 0], expected, rtol=1e-5)
        monkeypatch.setattr(recurrent, "narrow", lambda: None)  # as without compiled code


@pytest.mark.together("interleaved", [0, 1])
@pytest.mark.together("features", [8, 12])
@pytest.mark.together("form", ["first", "each", "by heads"])
def test_rotary_embedding(interleaved: int, features: int, form: str) -> None:
    steps, heads = 4, 2
    shape = (3, heads, steps, features) if form == "by heads" else (3, steps, heads * features)
    places = np.add.outer([0, 2, 1], range(steps))
    feeds = {"x": draw(*shape)} | ({"place": places} if form == "each" else {})
    more = {} if form == "each" else {"place": np.array([2])}
    angle = draw(9, 4)
    constants = more | {"cos": np.cos(angle), "sin": np.sin(angle)}
    compare("RotaryEmbedding", feeds, constants, "x place cos sin", interleaved=interleaved, num_heads=heads,
            rotary_embedding_dim=8 if features > 8 else 0)  # fmt: skip


def test_what_is_refused() -> None:
    with pytest.raises(af.GraphError, match="transBatchA and transBatchB are not supported"):
        compare("FusedMatMul", {"a": X}, {"b": draw(8, 6)}, "a b", transBatchA=1)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("steps", "held", "total"), [(4, 0, 4), (1, 3, 4), (1, 6, 6), (2, 3, 5), (4, 6, 4)])
@pytest.mark.parametrize("more", [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1, "scale": 0.3},
                                  {"local_window_size": 2}])  # fmt: skip
def test_grouped_attention(packed: bool, steps: int, held: int, total: int, more: dict[str, Any]) -> None:
    """Of rows with as many keys each, or, where one step comes, with fewer."""
    heads, served, width, rows = 4, 2, 16, 1 if 1 < steps < total else 2
    feeds = {"q": draw(rows, steps, heads * width), "k": draw(rows, steps, served * width, seed=1)}
    feeds["v"] = draw(rows, steps, served * width, seed=2)
    if packed:
        feeds = {"q": np.concatenate([*feeds.values()], axis=2)}
    for name in ("pk", "pv") if held else ():
        feeds[name] = draw(rows, served, held, width, seed=len(name))
    feeds["seqlens"] = np.int32([total - 1, total - 1 - (steps == 1)][:rows])
    constants = {"total": np.int32([total])}
    names = f"q {'- -' if packed else 'k v'} {'pk pv' if held else '- -'} seqlens total"
    if "do_rotary" in more:
        angles = np.float32(np.arange(8)[:, None] * np.arange(1, 1 + width // 2)) / 9
        constants |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        names += " cos sin"
    compare("GroupQueryAttention", feeds, constants, names, 3, num_heads=heads, kv_num_heads=served, **more)
