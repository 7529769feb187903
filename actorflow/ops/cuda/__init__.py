"""CuPy kernels for CUDA devices; importing this package registers them all, under the library ``"cupy"``.

Kernels launch on CuPy's current stream and return: they never wait for the device and never read it from the host.
Outputs are contiguous, as the device's pool makes them. Inputs need not be: elementwise kernels follow any strides, the
others copy what does not lie flat. Scratch memory comes from CuPy's pool, which hands out memory again in the order of
the stream it was taken on.

Elementwise kernels and array functions are CuPy's; what reduces, slides windows or draws numbers is CUDA C, in
``kernels/``, and that of chains that end in reductions is generated (`fused`). Number types are float16, float32
and float64; sums and exponentials of float16 are computed in float32.

One thing differs from the CPU, since a kernel cannot raise: a label that is not a class makes the loss, its gradient
for that sample and the accuracy NaN, and an index that is out of range picks NaN, or 0, and puts nothing.

`actorflow.ops.cuda.cudnn` has convolutions of a second library; it is not imported here.
"""

# fmt: off
# isort: off
from actorflow.ops.cuda import (  # noqa: F401  each registers its kernels
    conv, dropout, elementwise, fills, fused, indexing, linalg, loss, lrn, norm, ordering, pool, recurrent, reductions,
    resize, shaping, softmax, updates,
)
