"""The networks once more, as ONNX models with the same weights: channels first, as onnxruntime likes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import actorflow as af
from actorflow.nn.models import MOBILE_NETS

__all__ = ["Network", "lenet", "mobile_net", "resnet18", "resnet50"]

_OPSET, _IR = 22, 10


class Network:
    """Nodes of an ONNX model that take their weights in order."""

    def __init__(self, variables: Sequence[af.Variable], shape: tuple[int, ...]) -> None:
        self._weights = iter([np.asarray(variable.value) for variable in variables])
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        batch, *image, channels = shape
        self._input = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, channels, *image])

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        """One more node; the name of its output."""
        name = f"{operation}{len(self._nodes)}"
        self._nodes.append(helper.make_node(operation, inputs, [name], name, **attributes))
        return name

    def weight(self, value: np.ndarray | None = None) -> str:
        """A constant: the next weight, unless there is another value."""
        value = next(self._weights) if value is None else value
        name = f"weight{len(self._initializers)}"
        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def conv(self, x: str, stride: int = 1, groups: int = 1, pad: int | None = None, bias: bool = False) -> str:
        """Filters as ours are turned; by default with borders of half a kernel."""
        filters = next(self._weights)
        pad = filters.shape[0] // 2 if pad is None else pad
        inputs = [x, self.weight(filters.transpose(3, 2, 0, 1)), *([self.weight()] if bias else [])]
        return self.node("Conv", *inputs, strides=[stride] * 2, pads=[pad] * 4, group=groups)

    def norm(self, x: str, epsilon: float) -> str:
        return self.node("BatchNormalization", x, *(self.weight() for _ in range(4)), epsilon=epsilon)

    def average(self, x: str) -> str:
        return self.node("Flatten", self.node("GlobalAveragePool", x))

    def linear(self, x: str, image: tuple[int, ...] = ()) -> str:
        """An inner product; of an image (height, width), whose channels are last in the weights and first here."""
        weight = next(self._weights)
        if image:
            weight = np.moveaxis(weight.reshape(len(weight), *image, -1), -1, 1).reshape(weight.shape)
            x = self.node("Flatten", x)
        return self.node("Gemm", x, self.weight(weight), self.weight(), transB=1)

    def pool(self, x: str, kernel: int, pad: int = 0) -> str:
        return self.node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[2] * 2, pads=[pad] * 4)

    def finish(self, y: str) -> bytes:
        """The model, whose one output this is; all weights must have been taken."""
        assert next(self._weights, None) is None
        output = helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, ["batch", "classes"])
        graph = helper.make_graph(self._nodes, "network", [self._input], [output], self._initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()


def lenet(net: Network) -> bytes:
    x = "x"
    for _ in range(2):
        x = net.pool(net.node("Relu", net.conv(x, pad=0, bias=True)), 2)
    return net.finish(net.linear(net.node("Relu", net.linear(x, (4, 4)))))


def resnet18(net: Network) -> bytes:
    def conv(x: str, stride: int = 1) -> str:
        return net.norm(net.conv(x, stride), 1e-5)

    x = net.pool(net.node("Relu", conv("x", 2)), 3, 1)
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = conv(net.node("Relu", conv(x, stride)))
            x = net.node("Relu", net.node("Add", y, conv(x, stride) if stride > 1 else x))
    return net.finish(net.linear(net.average(x)))


def resnet50(net: Network) -> bytes:
    def conv(x: str, stride: int = 1) -> str:
        return net.norm(net.conv(x, stride), 1e-5)

    x = net.pool(net.node("Relu", conv("x", 2)), 3, 1)
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = net.node("Relu", conv(x))
            y = conv(net.node("Relu", conv(y, stride)))
            x = net.node("Relu", net.node("Add", y, x if block else conv(x, stride)))
    return net.finish(net.linear(net.average(x)))


def mobile_net(net: Network) -> bytes:
    def conv(x: str, stride: int = 1, groups: int = 1) -> str:
        return net.norm(net.conv(x, stride, groups), 1e-3)

    def hard_sigmoid(x: str) -> str:
        return net.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)

    def squeezed(x: str) -> str:
        factors = hard_sigmoid(net.linear(net.node("Relu", net.linear(net.average(x)))))
        return net.node("Mul", x, net.node("Unsqueeze", factors, net.weight(np.array([2, 3]))))

    activations = {"relu": "Relu", "hard_swish": "HardSwish"}
    x, channels_in = net.node("HardSwish", conv("x", 2)), 16
    for _, expanded, channels, squeezes, activation, stride in MOBILE_NETS["large"][0]:
        y = x
        if expanded != channels_in:
            y = net.node(activations[activation], conv(y))
        y = net.node(activations[activation], conv(y, stride, expanded))
        y = conv(squeezed(y) if squeezes else y)
        x = net.node("Add", y, x) if stride == 1 and channels_in == channels else y
        channels_in = channels
    x = net.average(net.node("HardSwish", conv(x)))
    return net.finish(net.linear(net.node("HardSwish", net.linear(x))))
