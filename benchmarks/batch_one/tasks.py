"""The networks that compute, and their ONNX models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import actorflow as af
from benchmarks.inference import onnx_networks
from benchmarks.inference.onnx_networks import Network
from benchmarks.inference.tasks import TASKS as INFERENCE
from benchmarks.inference.tasks import Task

__all__ = ["MODELS", "TASKS", "Task"]


def googlenet(net: Network) -> bytes:
    """GoogLeNet without its auxiliary heads."""

    def conv(x: str, stride: int = 1) -> str:
        return net.node("Relu", net.conv(x, stride, bias=True))

    def pool(x: str, stride: int = 2, pad: int = 0) -> str:
        return net.node(
            "MaxPool", x, kernel_shape=[3, 3], strides=[stride] * 2, pads=[pad] * 4, ceil_mode=int(stride > 1)
        )

    def norm(x: str) -> str:
        return net.node("LRN", x, size=5)

    x = conv(norm(pool(conv("x", 2))))
    x = pool(norm(conv(x)))
    for blocks in (2, 5, 2):
        x = x if blocks == 2 and x.startswith("MaxPool") else pool(x)
        for _ in range(blocks):
            one, three, five = conv(x), conv(conv(x)), conv(conv(x))
            x = net.node("Concat", one, three, five, conv(pool(x, 1, 1)), axis=1)
    return net.finish(net.node("Gemm", net.average(x), net.weight(), net.weight(), transB=1))


_KNOWN = {task.name: task for task in INFERENCE}
TASKS = (
    _KNOWN["lenet"],
    _KNOWN["mobile_net"],
    Task("resnet18", "ResNet-18, 224x224x3", (1, 224, 224, 3), lambda: af.nn.ResNet(size=18), 10),
    Task("googlenet", "GoogLeNet, 224x224x3", (1, 224, 224, 3), lambda: af.nn.GoogLeNet(auxiliary=False), 10),
)
MODELS: Mapping[str, Callable[[Network], bytes]] = MappingProxyType(
    {
        "lenet": onnx_networks.lenet,
        "mobile_net": onnx_networks.mobile_net,
        "resnet18": onnx_networks.resnet18,
        "googlenet": googlenet,
    }
)
