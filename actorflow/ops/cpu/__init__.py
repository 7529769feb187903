"""NumPy kernels for the CPU; importing this package registers them all.

Kernels keep small arrays in a core's cache: elementwise ones work in blocks, convolutions image by image. Scratch
memory belongs to the thread (`buffers`), so any number of kernels may run at once.
"""

# fmt: off
# isort: off
from actorflow.ops.cpu import (  # noqa: F401  each registers its kernels
    activation, attention, conv, described, dropout, elementwise, fills, fused, indexing, linalg, loss, lrn, norm, pool,
    recurrent, reductions, resize, shaping, softmax, together, updates,
)
