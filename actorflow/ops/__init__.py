"""Operations, their functional forms, and the kernel registry.

Classes are the mathematics (`Conv2d`); functions (`conv2d`) make an op of it, with its output blobs, in the inputs'
graph. Kernels live apart: `actorflow.ops.cpu` registers those for the CPU.
"""

from actorflow.ops.activation import (
    Relu,
    ReluDown,
    Sigmoid,
    SigmoidDown,
    Softmax,
    SoftmaxDown,
    Tanh,
    TanhDown,
    relu,
    sigmoid,
    softmax,
    tanh,
)
from actorflow.ops.basic import (
    Copy,
    Fill,
    Mul,
    Reshape,
    Scale,
    Sum,
    add,
    copy,
    fill,
    flatten,
    mul,
    reshape,
    scale,
)
from actorflow.ops.conv import Conv2d, Conv2dDown, Conv2dWeight, conv2d
from actorflow.ops.convert import Cast, Transpose, cast, transpose
from actorflow.ops.function import Function
from actorflow.ops.libraries import load_library, register_library
from actorflow.ops.linear import Bias, BiasDown, Inner, InnerDown, InnerWeight, bias, inner
from actorflow.ops.loss import Accuracy, SoftmaxLoss, SoftmaxLossDown, accuracy, softmax_loss
from actorflow.ops.noise import Dropout, DropoutDown, dropout
from actorflow.ops.operation import Layout, Operation
from actorflow.ops.pool import (
    AveragePool2d,
    AveragePool2dDown,
    GlobalAverage,
    GlobalAverageDown,
    MaxPool2d,
    MaxPool2dDown,
    average_pool2d,
    global_average,
    max_pool2d,
)
from actorflow.ops.registry import Kernel, KernelKey, find_kernel, kernel, registered_kernels
from actorflow.ops.update import SgdUpdate

__all__ = [
    "Accuracy",
    "AveragePool2d",
    "AveragePool2dDown",
    "Bias",
    "BiasDown",
    "Cast",
    "Conv2d",
    "Conv2dDown",
    "Conv2dWeight",
    "Copy",
    "Dropout",
    "DropoutDown",
    "Fill",
    "Function",
    "GlobalAverage",
    "GlobalAverageDown",
    "Inner",
    "InnerDown",
    "InnerWeight",
    "Kernel",
    "KernelKey",
    "Layout",
    "MaxPool2d",
    "MaxPool2dDown",
    "Mul",
    "Operation",
    "Relu",
    "ReluDown",
    "Reshape",
    "Scale",
    "SgdUpdate",
    "Sigmoid",
    "SigmoidDown",
    "Softmax",
    "SoftmaxDown",
    "SoftmaxLoss",
    "SoftmaxLossDown",
    "Sum",
    "Tanh",
    "TanhDown",
    "Transpose",
    "accuracy",
    "add",
    "average_pool2d",
    "bias",
    "cast",
    "conv2d",
    "copy",
    "dropout",
    "fill",
    "find_kernel",
    "flatten",
    "global_average",
    "inner",
    "kernel",
    "load_library",
    "max_pool2d",
    "mul",
    "register_library",
    "registered_kernels",
    "relu",
    "reshape",
    "scale",
    "sigmoid",
    "softmax",
    "softmax_loss",
    "tanh",
    "transpose",
]
