"""Layers, initializers, models and optimizers."""

from actorflow.nn import init
from actorflow.nn.layers import (
    Activation,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAverage,
    InnerProduct,
    NINBlock,
    Pool,
    SoftmaxLoss,
)
from actorflow.nn.models import NIN
from actorflow.nn.sgd import SGD, Multipliers, bias_multipliers

__all__ = [
    "NIN",
    "SGD",
    "Activation",
    "Conv2d",
    "Dropout",
    "Flatten",
    "GlobalAverage",
    "InnerProduct",
    "Multipliers",
    "NINBlock",
    "Pool",
    "SoftmaxLoss",
    "bias_multipliers",
    "init",
]
