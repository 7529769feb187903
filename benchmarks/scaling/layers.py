"""GoogLeNet as a table: how long each layer computes, and how many bytes of parameters it has.

The times are a share of an iteration in proportion to the layer's multiplications, which the shapes of its arrays give;
the backward pass takes twice the forward pass. An iteration of the Purine2 paper took 0.72 s (100,000 of 64 images per
GPU in 20 hours).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import actorflow as af
from actorflow.nn.models import GoogLeNet

__all__ = ["ITERATION_S", "Layer", "googlenet"]

ITERATION_S = 0.72


class Layer(NamedTuple):
    """One layer with weights: seconds of both passes, and elements of weights and biases."""

    name: str
    forward_s: float
    backward_s: float
    elements: int


def googlenet(iteration_s: float = ITERATION_S) -> list[Layer]:
    """The layers of GoogLeNet without auxiliary heads, 64 images of 224x224, in the order of the forward pass."""
    graph = af.Graph("googlenet")
    x = graph.blob("x", (64, 224, 224, 3))
    GoogLeNet(auxiliary=False)(x)
    counted: dict[str, tuple[int, int]] = {}
    for op in graph.ops:
        weights = [blob for blob in op.inputs if isinstance(blob, af.Variable)]
        if not weights:
            continue
        name = op.name.rpartition("/")[0]
        work, elements = counted.get(name, (0, 0))
        for weight in weights:
            elements += weight.spec.size
            if len(weight.shape) > 1:  # a product over all but the output's axis of the weights
                work += op.outputs[0].spec.size * math.prod(weight.shape) // op.outputs[0].shape[-1]
        counted[name] = work, elements
    total = sum(work for work, _ in counted.values())
    seconds = iteration_s / 3 / total
    return [Layer(name, work * seconds, 2 * work * seconds, elements) for name, (work, elements) in counted.items()]
