"""Files whose weights are variables: names, values, gradients, fine-tuning."""

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from tests.onnx.test_layouts import kinds, node, weights
from tests.support.onnx_files import model

_random = np.random.default_rng(1)


def fixed(*shape: int) -> np.ndarray:
    """Weights that are the same whatever other tests have drawn before."""
    return _random.normal(scale=0.5, size=shape).astype("f")


INITIAL = {
    "stem/w": fixed(4, 3, 3, 3), "stem/b": fixed(4), "bn.scale": fixed(4) + 1, "bn.shift": fixed(4),
    "bn.mean": fixed(4), "bn.variance": np.abs(fixed(4)) + 1, "head.w": fixed(5, 4), "head.b": fixed(5),
    "half": np.float32(0.5),
}  # fmt: skip


def network(batch: object = "batch"):
    nodes = [
        node("Conv", "x stem/w stem/b", "a", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "a bn.scale bn.shift bn.mean bn.variance", "b"),
        node("Mul", "b half", "b1"),
        node("Tanh", "b1", "c"),
        node("GlobalAveragePool", "c", "d"),
        node("Flatten", "d", "e"),
        node("Gemm", "e head.w head.b", "y", transB=1),
    ]
    return model(nodes, [("x", (batch, 3, 6, 6))], [("y", (batch, 5))], INITIAL).SerializeToString()


def test_weights_are_variables_of_the_names_in_the_file() -> None:
    loaded = af.onnx.load(network(), trainable=True)
    found = {variable.name: variable.value for variable in loaded.graph.variables}
    assert set(found) == set(INITIAL) - {"half"}
    for name, value in INITIAL.items():
        if name != "half":
            np.testing.assert_array_equal(found[name], value)
    assert kinds(loaded)["BatchNormInference"] == 1
    assert not af.onnx.load(network()).graph.variables


def test_gradients_are_those_of_differences() -> None:
    loaded = af.onnx.load(network(2), trainable=True)
    x, graph = weights(2, 3, 6, 6), loaded.graph
    loss = ops.sum(ops.square(loaded.outputs["y"]))
    trained = [v for v in graph.variables if v.name not in ("bn.mean", "bn.variance")]
    grads = af.gradient(loss, trained)
    result = graph.run_sync({loaded.inputs["x"]: x}, fetch=[loss, *grads])
    for variable, grad in zip(trained, grads, strict=True):
        value = variable.value.copy()
        place = np.unravel_index(np.abs(result[grad]).argmax(), value.shape)
        losses = []
        for step in (1e-2, -1e-2):
            moved = value.copy()
            moved[place] += step
            variable.value = moved
            losses.append(float(graph.run_sync({loaded.inputs["x"]: x}, fetch=[loss])[loss]))
        variable.value = value
        assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(float(result[grad][place]), rel=2e-2), variable.name


def test_a_network_is_fine_tuned_behind_other_layers() -> None:
    graph = af.Graph("tuning", deterministic=True)
    x, labels = graph.blob("x", ("batch", 3, 6, 6)), graph.blob("labels", ("batch",), "int64")
    network_of_file = af.onnx.Network(network(), trainable=True, name="body")
    body = [x] >> network_of_file
    scores = nn.InnerProduct(3, weight_init=nn.init.xavier(seed=0))(*body.top)
    assert {v.name for v in network_of_file.variables} >= {"body/head.w", "body/stem/w"}
    loss = ops.softmax_loss(scores, labels)
    train = nn.Adam(0.01).minimize(loss)
    feeds = {x: np.random.default_rng(0).normal(size=(6, 3, 6, 6)).astype("f"), labels: np.arange(6) % 3}
    before = network_of_file.variables[0].value.copy()
    losses = [float(graph.run_sync(feeds, fetch=[loss, train])[loss]) for _ in range(100)]
    assert losses[-1] < 0.5 * losses[0]
    assert not np.array_equal(network_of_file.variables[0].value, before)


def test_a_network_built_twice_has_its_variables_once() -> None:
    graph = af.Graph("twice")
    body = af.onnx.Network(network(2), trainable=True, name="body")
    first, second = body(graph.blob("a", (2, 3, 6, 6))), body(graph.blob("b", (2, 3, 6, 6)))
    x = weights(2, 3, 6, 6)
    result = graph.run_sync({"a": x, "b": x}, fetch=[first, second])
    np.testing.assert_array_equal(result[first], result[second])
    assert len(graph.variables) == 8
