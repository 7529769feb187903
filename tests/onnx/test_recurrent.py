"""GRU, LSTM and RNN of files, with steps and rows of any number."""

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import actorflow as af
from tests.onnx.test_layouts import node, weights
from tests.support.onnx_files import model, results

_WIDTH, _FEATURES = 3, 4
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _made(kind: str, direction: str, is_full: bool, **attributes: Any) -> Any:
    """A file of one node of any number of steps and rows, with all inputs that it may have, or as few as it can."""
    directions, gates = 1 + (direction == "bidirectional"), _GATES[kind]
    rows = gates * _WIDTH
    constants = {"w": weights(directions, rows, _FEATURES), "r": weights(directions, rows, _WIDTH)}
    states = ["h", "c"][: 1 + (kind == "LSTM")]
    inputs: list[tuple[Any, ...]] = [("x", ("time", "batch", _FEATURES))]
    names = "x w r"
    if is_full:
        constants["b"] = weights(directions, 2 * rows)
        inputs += [("n", ("batch",), "int32"), *[(name, (directions, "batch", _WIDTH)) for name in states]]
        names += " b n " + " ".join(states)
    outputs = [("y", ("time", directions, "batch", _WIDTH))]
    outputs += [(f"last_{name}", (directions, "batch", _WIDTH)) for name in states]
    made = node(
        kind, names, " ".join(name for name, _ in outputs), hidden_size=_WIDTH, direction=direction, **attributes
    )
    return model([made], inputs, outputs, constants)


def _fed(proto: Any, time: int, batch: int) -> dict[str, np.ndarray]:
    """Numbers for the inputs; sequences of several lengths, the longest one of all steps."""
    directions = proto.graph.initializer[0].dims[0]
    shapes = {"x": (time, batch, _FEATURES)} | dict.fromkeys(("h", "c"), (directions, batch, _WIDTH))
    names = [each.name for each in proto.graph.input]
    fed = {name: weights(*shape) for name, shape in shapes.items() if name in names}
    if "n" in names:
        fed["n"] = np.minimum([time, 1, time // 2, *[time] * batch][:batch], time).astype(np.int32)
    return fed


FILES = {
    f"{kind} {direction}, {'full' if is_full else 'bare'} {more or ''}": (kind, direction, is_full, more)
    for kind, direction, is_full in product(_GATES, ("forward", "reverse", "bidirectional"), (False, True))
    for more in (({"linear_before_reset": 0}, {"linear_before_reset": 1}) if kind == "GRU" else ({},))
}
FILES["RNN of relus"] = ("RNN", "bidirectional", True, {"activations": ["Relu", "Relu"]})
# What no kernel is for.
FILES |= {
    "RNN of two kinds": ("RNN", "bidirectional", True,
        {"activations": ["Affine", "Softsign"], "activation_alpha": [0.5]}),
    "RNN clipped": ("RNN", "reverse", True, {"activations": ["Elu"], "clip": 0.3}),
    "GRU of others": ("GRU", "bidirectional", True, {"activations": ["HardSigmoid", "Relu", "Sigmoid", "LeakyRelu"]}),
    "GRU of others, reset after": ("GRU", "reverse", True,
        {"activations": ["Sigmoid", "ScaledTanh"], "linear_before_reset": 1, "activation_alpha": [0.7],
         "activation_beta": [1.5]}),
    "GRU bare": ("GRU", "forward", False, {"activations": ["Sigmoid", "Softplus"]}),
    "LSTM of others": ("LSTM", "bidirectional", True,
        {"activations": ["Softplus", "Tanh", "Relu", "Sigmoid", "Relu", "Softsign"]}),
    "LSTM clipped": ("LSTM", "forward", True, {"clip": 0.4}),
    "LSTM that forgets": ("LSTM", "reverse", True, {"input_forget": 1}),
}  # fmt: skip


@pytest.mark.together("name", FILES, at_once=13)
def test_sequences_of_any_length(name: str) -> None:
    kind, direction, is_full, more = FILES[name]
    proto = _made(kind, direction, is_full, **more)
    feeds = [_fed(proto, time, batch) for time, batch in ((5, 3), (1, 1), (2, 4))]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for fed, found in zip(feeds, results(af.onnx.load(proto.SerializeToString()), *feeds), strict=True):
        for got, want in zip(found.values(), session.run(None, fed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.together("name", FILES, at_once=13)
def test_without_steps_the_states_stay_and_without_rows_there_are_none(name: str) -> None:
    """ONNX Runtime ends the process there."""
    kind, direction, is_full, more = FILES[name]
    proto = _made(kind, direction, is_full, **more)
    feeds = [_fed(proto, time, batch) for time, batch in ((0, 3), (4, 0), (0, 0))]
    for fed, found in zip(feeds, results(af.onnx.load(proto.SerializeToString()), *feeds), strict=True):
        time, batch, _ = fed["x"].shape
        y, *lasts = found.values()
        assert (y.shape[0], y.shape[2:]) == (time, (batch, _WIDTH))
        for last, state in zip(lasts, ("h", "c"), strict=False):
            np.testing.assert_array_equal(last, fed.get(state, np.zeros(last.shape)))


def test_a_state_of_one_row_is_that_of_all() -> None:
    """Files that were exported with one row have such states, whatever they say of their batch."""
    made = node("GRU", "x w r", "y", hidden_size=3)
    made.input.extend(["", "", "h"])
    constants = {"w": weights(1, 9, 4), "r": weights(1, 9, 3), "h": weights(1, 1, 3)}
    proto = model([made], [("x", (5, "batch", 4))], [("y", (5, 1, "batch", 3))], constants).SerializeToString()
    x = weights(5, 2, 4)
    (one, both) = results(af.onnx.load(proto), {"x": x[:, :1]}, {"x": x})
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(one["y"], session.run(None, {"x": x[:, :1]})[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(both["y"][:, :, :1], one["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.together("direction", ["forward", "bidirectional"])
def test_peepholes_of_any_number_of_steps(direction: str) -> None:
    proto = _made("LSTM", direction, True)
    proto.graph.node[0].input.append("p")
    p = weights(1 + (direction == "bidirectional"), 3 * _WIDTH)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(p, "p"))
    given = proto.SerializeToString()
    feeds = [_fed(proto, time, batch) for time, batch in ((5, 3), (1, 1))]
    session = onnxruntime.InferenceSession(given, providers=["CPUExecutionProvider"])
    for fed, found in zip(feeds, results(af.onnx.load(given), *feeds), strict=True):
        for got, want in zip(found.values(), session.run(None, fed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
