"""Global averages: pixels are added up one after the other, as NumPy does it where channels are last."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.parallel import MOST_PIECES, WORTH_NS, element_ns, even_cuts, spread
from actorflow.ops.nn.pool import GlobalAverage
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.routine import Routine

_MEANS = """
def means(x, y, rows, width, first, last):
    for n in range(first, last):
        for c in range(width):
            y[n * width + c] = 0
        for row in range(n * rows, (n + 1) * rows):
            for c in range(width):
                y[n * width + c] = y[n * width + c] + x[row * width + c]
        for c in range(width):
            y[n * width + c] = y[n * width + c] / np.{dtype}(rows)
"""


@lru_cache(maxsize=2)
def _means(dtype: str) -> Routine:
    text = _MEANS.format(dtype=dtype)
    return Routine(text, "means", [*[f"{dtype}*"] * 2, *["intp"] * 4])


@kernel(GlobalAverage)
def _global_average(operation: GlobalAverage, inputs: list[Array], outputs: list[Array]) -> bool:
    (x,), (y,) = inputs, outputs
    means = _means(x.dtype.name).function
    rows, width = prod(x.shape[1:-1]), x.shape[-1]
    if means is None or not rows or width < 2 or not are_plain([x, y], x.dtype):
        return False

    def part(images: slice) -> None:
        means(id(x), id(y), rows, width, images.start, images.stop)

    work_ns = element_ns(x.size)
    spread(even_cuts(len(x), MOST_PIECES if work_ns >= WORTH_NS else 1), part, work_ns)
    return True
