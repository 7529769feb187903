"""Torch's kernels for the CPU: library ``"torch"``; importing this package registers them, and imports torch.

Convolutions and poolings, float32 and float64. Arrays are lent to torch as they lie in memory: images with the channels
last are what torch calls ``channels_last``, so none is copied or permuted on the way in; weights are. What torch
allocates meanwhile, the result of a convolution say, is not counted in a graph's memory budget.
"""

from actorflow.ops.torch import conv, pool  # noqa: F401  each registers its kernels
