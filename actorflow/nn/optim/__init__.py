"""Optimizers: updates of variables as ops of the graph."""

from actorflow.nn.optim.adagrad import Adagrad
from actorflow.nn.optim.adam import Adam, AdamW
from actorflow.nn.optim.multipliers import Multipliers, bias_multipliers, layer_multipliers
from actorflow.nn.optim.optimizer import Clip, Optimizer
from actorflow.nn.optim.rmsprop import RMSProp
from actorflow.nn.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Clip",
    "Multipliers",
    "Optimizer",
    "RMSProp",
    "bias_multipliers",
    "layer_multipliers",
]
