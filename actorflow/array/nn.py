"""Operations of neural networks on arrays: those of `actorflow.ops`, which their docstrings are from.

`lift` does the same for other ones.
"""

from __future__ import annotations

from actorflow import ops
from actorflow.array.transforms.lifting import lift

accuracy = lift(ops.accuracy)
average_pool = lift(ops.average_pool)
binary_cross_entropy = lift(ops.binary_cross_entropy)
conv = lift(ops.conv)
conv_transpose = lift(ops.conv_transpose)
dropout = lift(ops.dropout)
elu = lift(ops.elu)
embedding = lift(ops.embedding)
gelu = lift(ops.gelu)
global_average = lift(ops.global_average)
inner = lift(ops.inner)
leaky_relu = lift(ops.leaky_relu)
log_softmax = lift(ops.log_softmax)
lrn = lift(ops.lrn)
max_pool = lift(ops.max_pool)
mse_loss = lift(ops.mse_loss)
nll_loss = lift(ops.nll_loss)
one_hot = lift(ops.one_hot)
relu = lift(ops.relu)
sigmoid = lift(ops.sigmoid)
silu = lift(ops.silu)
softmax = lift(ops.softmax)
softmax_loss = lift(ops.softmax_loss)
softplus = lift(ops.softplus)
