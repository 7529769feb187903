"""Products of images with a number for each channel of each image, as squeeze-and-excite has them.

NumPy goes along the channels alone there, a short row in each call. Other products are a pass over memory, and left to
others.
"""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.ops.cpu.parallel import element_ns
from actorflow.ops.elementwise import Multiply
from actorflow.ops.onednn.following import MULTIPLY
from actorflow.ops.onednn.library import DST, SRC, SRC_1, Handle, libdnnl
from actorflow.ops.onednn.steps import Call, Plain, images, kernel
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec


def _is_of_channels(_: Operation, specs: Sequence[TensorSpec]) -> bool:
    whole, other = specs if specs[0].size >= specs[1].size else specs[::-1]
    return len(whole.shape) > 2 and other.shape == (whole.shape[0], *[1] * (len(whole.shape) - 2), whole.shape[-1])


@kernel(Multiply, inplace=True, fits=_is_of_channels)
def _multiply(_: Operation, specs: Sequence[TensorSpec]) -> Call:
    is_first = specs[0].size >= specs[1].size
    whole = specs[0 if is_first else 1]

    def describe() -> Handle:
        full, one = (images(spec.shape) for spec in (specs if is_first else specs[::-1]))
        return libdnnl().descriptor("binary", MULTIPLY, full, one, full, libdnnl().attributes())

    arguments = [SRC, SRC_1] if is_first else [SRC_1, SRC]
    return Plain(describe, [*arguments, DST], element_ns(2 * whole.size))
