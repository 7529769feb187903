"""Networks and their training: layers, initializers, known models, optimizers, trainers, several places."""

from typing import TYPE_CHECKING

from actorflow.nn import init, parallel, rates
from actorflow.nn.layers import (
    LRN,
    Activation,
    BatchNorm,
    Conv,
    ConvTranspose,
    Dropout,
    Embedding,
    Flatten,
    GlobalAverage,
    GlobalMax,
    GroupNorm,
    InnerProduct,
    InstanceNorm,
    Layer,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    Pool,
    RMSNorm,
    Softmax,
    SoftmaxLoss,
)
from actorflow.nn.models import (
    MLP,
    NIN,
    VGG,
    AlexNet,
    GoogLeNet,
    Inception,
    LeNet,
    LSTMLanguageModel,
    MobileNetV3,
    NINBlock,
    ResNet,
)
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
from actorflow.nn.recurrent import GRU, LSTM, RNN, LSTMCell
from actorflow.nn.steps import Epoch, Mean, Step
from actorflow.nn.torch_weights import load_torch
from actorflow.nn.trainer import Trainer

__all__ = [
    "GRU",
    "LRN",
    "LSTM",
    "MLP",
    "NIN",
    "RNN",
    "SGD",
    "VGG",
    "Activation",
    "Adagrad",
    "Adam",
    "AdamW",
    "AlexNet",
    "BatchNorm",
    "Clip",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Embedding",
    "Epoch",
    "Flatten",
    "GlobalAverage",
    "GlobalMax",
    "GoogLeNet",
    "GroupNorm",
    "Inception",
    "InnerProduct",
    "Linear",
    "InstanceNorm",
    "LSTMCell",
    "LSTMLanguageModel",
    "Layer",
    "LayerNorm",
    "LeNet",
    "Mean",
    "MobileNetV3",
    "MultiHeadAttention",
    "Multipliers",
    "NINBlock",
    "Optimizer",
    "Pool",
    "Progress",
    "RMSNorm",
    "RMSProp",
    "ResNet",
    "Softmax",
    "SoftmaxLoss",
    "Step",
    "Trainer",
    "bias_multipliers",
    "init",
    "layer_multipliers",
    "load_torch",
    "parallel",
    "rates",
]

if not TYPE_CHECKING:  # for which any name would be one that is there

    def __getattr__(name: str) -> object:
        from actorflow.foreign import missing

        missing(__name__, name)
