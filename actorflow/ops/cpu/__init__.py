"""NumPy kernels for the CPU; importing this package registers them all.

Kernels keep what fits in a core's cache there: elementwise ones work in blocks, convolutions image by image. Scratch
memory belongs to the thread (`buffers`), so any number of kernels may run at once.
"""

from actorflow.ops.cpu import activation, basic, conv, convert, linear, loss, noise, pool, update

__all__ = ["activation", "basic", "conv", "convert", "linear", "loss", "noise", "pool", "update"]
