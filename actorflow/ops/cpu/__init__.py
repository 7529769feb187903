"""NumPy kernels for the CPU; importing this package registers them all.

Kernels keep what fits in a core's cache there: elementwise ones work in blocks, convolutions image by image. Scratch
memory belongs to the thread (`buffers`), so any number of kernels may run at once.
"""

from actorflow.ops.cpu import (
    activation,
    arithmetic,
    basic,
    clipping,
    conv,
    convert,
    fills,
    fused,
    indexing,
    joining,
    linear,
    loss,
    lrn,
    matmul,
    noise,
    norm,
    pair_loss,
    pool,
    recurrent,
    reduce,
    slicing,
    softmax,
    ufuncs,
    update,
)

__all__ = [
    "activation",
    "arithmetic",
    "basic",
    "clipping",
    "conv",
    "convert",
    "fills",
    "fused",
    "indexing",
    "joining",
    "linear",
    "loss",
    "lrn",
    "matmul",
    "noise",
    "norm",
    "pair_loss",
    "pool",
    "recurrent",
    "reduce",
    "slicing",
    "softmax",
    "ufuncs",
    "update",
]
