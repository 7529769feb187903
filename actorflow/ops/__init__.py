"""Operations, their functional forms, and the kernel registry.

Classes are the mathematics (`Conv`); functions (`conv`) make an op of it, with its output blobs, in the inputs'
graph, of the ``name`` that is given. Kernels live apart: `actorflow.ops.cpu` registers those for the CPU.

The functions take blobs of a graph and lazy arrays alike. Most examples show arrays, as these print their values; in
all of them ``af`` is `actorflow`, ``xp`` is `actorflow.array` and ``np`` is NumPy.

Example:
    >>> graph = af.Graph("example")
    >>> x = graph.blob("x", shape=(2, 2))
    >>> y = af.ops.cumsum(x, axis=1)
    >>> print(graph.run_sync({x: [[1, 2], [3, 4]]})[y])
    [[1. 3.]
     [3. 7.]]
    >>> print(af.ops.cumsum(xp.asarray([[1, 2], [3, 4]]), axis=1))
    [[1 3]
     [3 7]]
"""

from typing import TYPE_CHECKING

# fmt: off
# isort: off
from actorflow.ops import elementwise, fft, linalg
from actorflow.ops.collective import AllReduce
from actorflow.ops.elementwise import *  # noqa: F403  each row
from actorflow.ops.fills import Bernoulli, Fill, Gaussian, Uniform, bernoulli, fill, gaussian, he, uniform, xavier
from actorflow.ops.function import Emitting, Function
from actorflow.ops.fused import Fused
from actorflow.ops.step import Step
from actorflow.ops.indexing import (
    Flip, OneHot, Pad, Scatter, Slice, Take, TakeAlongAxis, add_at, embedding, flip, gather_nd, one_hot, pad, repeat,
    scatter, scatter_nd, slice, take, take_along_axis, take_down, tril, triu,
)
from actorflow.ops.linalg import Bias, Inner, Matmul, bias, einsum, inner, matmul, matrix_transpose, tensordot, vecdot
from actorflow.ops.nn import activation
from actorflow.ops.nn.activation import *  # noqa: F403
from actorflow.ops.nn.attention import CachedAttention, attention, rotary
from actorflow.ops.nn.conv import Conv, conv, conv_transpose
from actorflow.ops.nn.dropout import Dropout, dropout
from actorflow.ops.nn.loss import (
    Accuracy, BinaryCrossEntropy, BinaryCrossEntropyWithLogits, HingeLoss, HuberLoss, L1Loss, MseLoss, NllLoss,
    SoftmaxLoss, accuracy, binary_cross_entropy, binary_cross_entropy_with_logits, hinge_loss, huber_loss, l1_loss,
    mse_loss, nll_loss, softmax_loss,
)
from actorflow.ops.nn.lrn import LRN, lrn
from actorflow.ops.nn.norm import (
    BatchNorm, BatchNormInference, LayerNorm, batch_norm, group_norm, instance_norm, layer_norm, rms_norm,
)
from actorflow.ops.nn.pool import (
    AveragePool, GlobalAverage, MaxPool, average_pool, global_average, global_max, max_pool,
)
from actorflow.ops.nn.recurrent import GRU, LSTM, RNN, LSTMGates, gru, lstm, lstm_cell, rnn, scan
from actorflow.ops.nn.resize import Resize, resize
from actorflow.ops.nn.sampling import Sample, sample, uniform_at
from actorflow.ops.nn.softmax import LogSoftmax, Softmax, log_softmax, softmax
from actorflow.ops.nn.updates import AdagradUpdate, AdamUpdate, RmsPropUpdate, SgdUpdate, clip_by_global_norm
from actorflow.ops.operation import Layout, Operation, apply
from actorflow.ops.ordering import (
    ArgSort, CumProd, CumSum, IsIn, Nonzero, SearchSorted, Sort, argsort, cumprod, cumsum, isin, nonzero, searchsorted,
    sort, top_k,
)
from actorflow.ops.reductions import (
    ArgMax, ArgMin, CountNonzero, ReduceAll, ReduceAny, ReduceMax, ReduceMean, ReduceMin, ReduceProd, all, any, argmax,
    argmin, count_nonzero, max, mean, min, prod, sum,
)
from actorflow.ops.registry import (
    Kernel, KernelKey, find_kernel, kernel, load_library, register_library, registered_kernels,
)
from actorflow.ops.rows import binary, unary
from actorflow.ops.shaping import (
    BroadcastTo, Concat, ReduceSum, Reshape, Split, Transpose, broadcast_to, concat, expand_dims, flatten, moveaxis,
    reshape, roll, split, squeeze, stack, tile, transpose, unstack,
)
# isort: on

__all__ = [
    # operation
    "Layout", "Operation", "apply",
    # rows
    "binary", "unary",
    # registry
    "Kernel", "KernelKey", "find_kernel", "kernel", "load_library", "register_library", "registered_kernels",
    # function
    "Emitting", "Function",
    # fused
    "Fused", "Step",
    # collective
    "AllReduce",
    # fills
    "Bernoulli", "Fill", "Gaussian", "Uniform", "bernoulli", "fill", "gaussian", "he", "uniform", "xavier",
    # shaping
    "BroadcastTo", "Concat", "ReduceSum", "Reshape", "Split", "Transpose", "broadcast_to", "concat", "expand_dims",
    "flatten", "moveaxis", "reshape", "roll", "split", "squeeze", "stack", "tile", "transpose", "unstack",
    # reductions
    "ArgMax", "ArgMin", "CountNonzero", "ReduceAll", "ReduceAny", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "all", "any", "argmax", "argmin", "count_nonzero", "max", "mean", "min", "prod", "sum",
    # indexing
    "Flip", "OneHot", "Pad", "Scatter", "Slice", "Take", "TakeAlongAxis", "add_at", "embedding", "flip",
    "gather_nd", "one_hot", "pad", "repeat", "scatter", "scatter_nd", "slice", "take", "take_along_axis", "take_down",
    "tril", "triu",
    # ordering
    "ArgSort", "CumProd", "CumSum", "IsIn", "Nonzero", "SearchSorted", "Sort", "argsort", "cumprod", "cumsum", "isin",
    "nonzero", "searchsorted", "sort", "top_k",
    # linalg, fft
    "Bias", "Inner", "Matmul", "bias", "einsum", "fft", "inner", "linalg", "matmul", "matrix_transpose", "tensordot",
    "vecdot",
    # nn.attention
    "CachedAttention", "attention", "rotary",
    # nn.conv
    "Conv", "conv", "conv_transpose",
    # nn.dropout
    "Dropout", "dropout",
    # nn.loss
    "Accuracy", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "HingeLoss", "HuberLoss", "L1Loss", "MseLoss",
    "NllLoss", "SoftmaxLoss", "accuracy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_loss",
    "huber_loss", "l1_loss", "mse_loss", "nll_loss", "softmax_loss",
    # nn.lrn
    "LRN", "lrn",
    # nn.norm
    "BatchNorm", "BatchNormInference", "LayerNorm", "batch_norm", "group_norm", "instance_norm", "layer_norm",
    "rms_norm",
    # nn.pool
    "AveragePool", "GlobalAverage", "MaxPool", "average_pool", "global_average", "global_max", "max_pool",
    # nn.recurrent
    "GRU", "LSTM", "LSTMGates", "RNN", "gru", "lstm", "lstm_cell", "rnn", "scan",
    # nn.resize
    "Resize", "resize",
    # nn.sampling
    "Sample", "sample", "uniform_at",
    # nn.softmax
    "LogSoftmax", "Softmax", "log_softmax", "softmax",
    # nn.updates
    "AdagradUpdate", "AdamUpdate", "RmsPropUpdate", "SgdUpdate", "clip_by_global_norm",
]
# fmt: on
if not TYPE_CHECKING:  # which takes all names of a module that is imported with a star
    __all__ += [  # noqa: PLE0604
        *elementwise.__all__,
        *activation.__all__,
    ]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # for which any name would be one that is there

    def __getattr__(name: str) -> object:
        from actorflow.foreign import missing

        missing(__name__, name)
