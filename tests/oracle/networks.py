"""The models once more, as functions of torch tensors: images and scores as ours, weights taken from an iterator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import actorflow as af
from actorflow.nn.models import MOBILE_NETS


def tensors(torch: Any, variables: Sequence[af.Variable]) -> list[Any]:
    """Leaves of the variables' values; weights of convolutions in PyTorch's order."""
    made = []
    for variable in variables:
        value = np.array(variable.value)
        if value.ndim == 4:
            value = np.ascontiguousarray(value.transpose(3, 2, 0, 1))
        made.append(torch.from_numpy(value).requires_grad_())
    return made


def ours(gradient: np.ndarray) -> np.ndarray:
    """A gradient by one of these tensors in our order."""
    return gradient.transpose(2, 3, 1, 0) if gradient.ndim == 4 else gradient


class Network:
    """Layers of a torch network that take their weights in order."""

    def __init__(self, torch: Any, weights: Sequence[Any]) -> None:
        self.torch, self.f, self.weights = torch, torch.nn.functional, iter(weights)

    def conv(self, x: Any, stride: int = 1, pad: int = 0, groups: int = 1) -> Any:
        weight, bias = next(self.weights), next(self.weights)
        return self.f.conv2d(x, weight, bias, stride, pad, groups=groups)

    def relu(self, x: Any, stride: int = 1, pad: int = 0, groups: int = 1) -> Any:
        return self.f.relu(self.conv(x, stride, pad, groups))

    def linear(self, x: Any) -> Any:
        weight, bias = next(self.weights), next(self.weights)
        flat = x.permute(0, 2, 3, 1).flatten(1) if x.ndim == 4 else x
        return self.f.linear(flat, weight, bias)

    def pool(self, x: Any, kernel: int = 3, stride: int = 2, pad: int = 0, ceil: bool = True) -> Any:
        return self.f.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil)

    def lrn(self, x: Any) -> Any:
        return self.f.local_response_norm(x, 5, 1e-4, 0.75, 1.0)

    def norm(self, x: Any, epsilon: float = 1e-5) -> Any:
        scale, shift, mean, variance = (next(self.weights) for _ in range(4))
        moved = (mean.detach().clone(), variance.detach().clone())
        return self.f.batch_norm(x, *moved, scale, shift, training=True, eps=epsilon)

    def finish(self, y: Any) -> Any:
        assert next(self.weights, None) is None
        return y


def lenet(net: Network, x: Any) -> Any:
    x = net.pool(net.relu(x.permute(0, 3, 1, 2)), 2)
    x = net.pool(net.relu(x), 2)
    return net.finish(net.linear(net.f.relu(net.linear(x))))


def alexnet(net: Network, x: Any) -> Any:
    x = net.pool(net.lrn(net.relu(x.permute(0, 3, 1, 2), 4)))
    x = net.pool(net.lrn(net.relu(x, 1, 2, 2)))
    x = net.relu(net.relu(net.relu(x, 1, 1), 1, 1, 2), 1, 1, 2)
    x = net.f.relu(net.linear(net.pool(x)))
    return net.finish(net.linear(net.f.relu(net.linear(x))))


def vgg13(net: Network, x: Any) -> Any:
    x = x.permute(0, 3, 1, 2)
    for _ in range(5):
        x = net.pool(net.relu(net.relu(x, 1, 1), 1, 1), 2)
    x = net.f.relu(net.linear(x))
    return net.finish(net.linear(net.f.relu(net.linear(x))))


def nin(net: Network, x: Any) -> Any:
    """As `NIN.cifar10`, without dropout."""
    x = net.relu(net.relu(net.relu(x.permute(0, 3, 1, 2), 1, 2)))
    x = net.relu(net.relu(net.relu(net.pool(x), 1, 2)))
    x = net.f.avg_pool2d(x, 3, 2, ceil_mode=True)
    return net.finish(net.conv(net.relu(net.relu(x, 1, 1))).mean((2, 3)))


def resnet18(net: Network, x: Any) -> Any:
    """For small images."""

    def conv(x: Any, stride: int, pad: int) -> Any:
        return net.norm(net.f.conv2d(x, next(net.weights), None, stride, pad))

    x = net.f.relu(conv(x.permute(0, 3, 1, 2), 1, 1))
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = conv(net.f.relu(conv(x, stride, 1)), 1, 1)
            x = net.f.relu(y + (conv(x, 2, 0) if stride == 2 else x))
    return net.finish(net.linear(x.mean((2, 3))))


def mobile_net(net: Network, x: Any) -> Any:
    """The small one, without dropout."""

    def conv(x: Any, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
        return net.norm(net.f.conv2d(x, next(net.weights), None, stride, kernel // 2, groups=groups), 1e-3)

    def factors(x: Any) -> Any:
        y = net.linear(net.f.relu(net.linear(x.mean((2, 3)))))
        return (y / 6 + 0.5).clamp(0, 1)[:, :, None, None]  # hardsigmoid's own gradient has 1/6 in float32 alone

    x, channels_in = net.f.hardswish(conv(x.permute(0, 3, 1, 2), 3, 2)), 16
    for kernel, expanded, channels, squeezes, activation, stride in MOBILE_NETS["small"][0]:
        activate = net.f.relu if activation == "relu" else net.f.hardswish
        y = activate(conv(x)) if expanded != channels_in else x
        y = activate(conv(y, kernel, stride, expanded))
        y = conv(y * factors(y) if squeezes else y)
        x = x + y if stride == 1 and channels_in == channels else y
        channels_in = channels
    x = net.f.hardswish(conv(x)).mean((2, 3))
    return net.finish(net.linear(net.f.hardswish(net.linear(x))))


def googlenet(net: Network, x: Any, auxiliary: bool) -> list[Any]:
    """Scores, then those of the auxiliary heads, without dropout."""
    seen = []
    x = net.lrn(net.pool(net.relu(x.permute(0, 3, 1, 2), 2, 3)))
    x = net.pool(net.lrn(net.relu(net.relu(x), 1, 1)))
    for block in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        if block in ("4a", "5a"):
            x = net.pool(x)
        one = net.relu(x)
        three = net.relu(net.relu(x), 1, 1)
        five = net.relu(net.relu(x), 1, 2)
        x = net.torch.cat([one, three, five, net.relu(net.pool(x, 3, 1, 1))], 1)
        if block in ("4a", "4d"):
            seen.append(x)
    scores = [net.linear(x.mean((2, 3)))]
    for y in seen if auxiliary else ():
        y = net.relu(net.f.avg_pool2d(y, 5, 3, ceil_mode=True))
        scores.append(net.linear(net.f.relu(net.linear(y))))
    return net.finish(scores)
