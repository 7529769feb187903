"""Layers, initializers, models and optimizers."""

from actorflow.nn import init, rates
from actorflow.nn.layers import (
    Activation,
    Conv,
    ConvTranspose,
    Dropout,
    Flatten,
    GlobalAverage,
    GlobalMax,
    InnerProduct,
    NINBlock,
    Pool,
    SoftmaxLoss,
)
from actorflow.nn.metrics import Mean
from actorflow.nn.models import NIN
from actorflow.nn.norm import LRN, BatchNorm, LayerNorm
from actorflow.nn.optim import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Clip,
    Multipliers,
    Optimizer,
    RMSProp,
    bias_multipliers,
    layer_multipliers,
)
from actorflow.nn.progress import Progress
from actorflow.nn.recurrent import LSTM, LSTMCell
from actorflow.nn.trainer import Epoch, Step, Trainer

__all__ = [
    "LRN",
    "LSTM",
    "NIN",
    "SGD",
    "Activation",
    "Adagrad",
    "Adam",
    "AdamW",
    "BatchNorm",
    "Clip",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Epoch",
    "Flatten",
    "GlobalAverage",
    "GlobalMax",
    "InnerProduct",
    "LSTMCell",
    "LayerNorm",
    "Mean",
    "Multipliers",
    "NINBlock",
    "Optimizer",
    "Pool",
    "Progress",
    "RMSProp",
    "SoftmaxLoss",
    "Step",
    "Trainer",
    "bias_multipliers",
    "init",
    "layer_multipliers",
    "rates",
]
