"""Products of images with a number for each channel of each image, as squeeze-and-excite has them.

NumPy goes along the channels alone there, a short row in each call. Other products are a pass over memory, and left to
others.
"""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.ops.cpu.parallel import element_ns
from actorflow.ops.elementwise import Multiply
from actorflow.ops.onednn.following import MULTIPLY
from actorflow.ops.onednn.library import DST, SRC, SRC_1, Handle, UnsupportedError, libdnnl
from actorflow.ops.onednn.steps import Call, Plain, images, kernel
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec


@kernel(Multiply, inplace=True)
def _multiply(_: Operation, specs: Sequence[TensorSpec]) -> Call:
    is_first = specs[0].size >= specs[1].size
    whole, other = specs if is_first else specs[::-1]
    batch, *size, channels = whole.shape if len(whole.shape) > 2 else (0, 0, 0)
    if other.shape != (batch, *[1] * len(size), channels):
        raise UnsupportedError("other products")

    def describe(specs: Sequence[TensorSpec]) -> Handle:
        full, one = (images(spec.shape) for spec in (specs if is_first else specs[::-1]))
        return libdnnl().descriptor("binary", MULTIPLY, full, one, full, libdnnl().attributes())

    arguments = [SRC, SRC_1] if is_first else [SRC_1, SRC]
    return Plain(describe, specs, [*arguments, DST], element_ns(2 * whole.size))
