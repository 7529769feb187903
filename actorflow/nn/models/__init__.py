"""Models: networks that are known by a name."""

from actorflow.nn.models.alexnet import AlexNet
from actorflow.nn.models.googlenet import GoogLeNet
from actorflow.nn.models.language import LSTMLanguageModel
from actorflow.nn.models.lenet import LeNet
from actorflow.nn.models.mlp import MLP
from actorflow.nn.models.nin import NIN
from actorflow.nn.models.resnet import ResNet
from actorflow.nn.models.vgg import VGG

__all__ = ["MLP", "NIN", "VGG", "AlexNet", "GoogLeNet", "LSTMLanguageModel", "LeNet", "ResNet"]
