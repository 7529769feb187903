"""The models once more, as functions of torch tensors: images and scores as ours, weights taken from an iterator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import actorflow as af

#: Of the transformer.
LAYERS, HEADS = 2, 4


def tensors(torch: Any, variables: Sequence[af.Variable]) -> list[Any]:
    """Leaves of the variables' values; weights of convolutions in PyTorch's order."""
    made = []
    for variable in variables:
        value = np.array(variable.value)
        if value.ndim == 4:
            value = np.ascontiguousarray(value.transpose(3, 2, 0, 1))
        made.append(torch.from_numpy(value).requires_grad_())
    return made


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

    def norm(self, x: Any) -> Any:
        scale, shift = next(self.weights), next(self.weights)
        return self.f.layer_norm(x, x.shape[-1:], scale, shift)

    def attend(self, x: Any) -> Any:
        q, k, v = (self.linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for _ in range(3))
        return self.linear(self.f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def finish(self, y: Any) -> Any:
        assert next(self.weights, None) is None
        return y


def lenet(net: Network, x: Any) -> Any:
    x = net.pool(net.relu(x.permute(0, 3, 1, 2)), 2)
    x = net.pool(net.relu(x), 2)
    return net.finish(net.linear(net.f.relu(net.linear(x))))


def nin(net: Network, x: Any) -> Any:
    """As `NIN.cifar10`, without dropout."""
    x = net.relu(net.relu(net.relu(x.permute(0, 3, 1, 2), 1, 2)))
    x = net.relu(net.relu(net.relu(net.pool(x), 1, 2)))
    x = net.f.avg_pool2d(x, 3, 2, ceil_mode=True)
    return net.finish(net.conv(net.relu(net.relu(x, 1, 1))).mean((2, 3)))


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


def encoder(net: Network, x: Any) -> Any:
    for _ in range(LAYERS):
        x = x + net.attend(net.norm(x))
        x = x + net.linear(net.f.gelu(net.linear(net.norm(x))))
    return net.finish(net.linear(net.norm(x).mean(1)))
