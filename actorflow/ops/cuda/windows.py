"""Windows as the CUDA C of convolution and pooling takes them."""

from __future__ import annotations

from actorflow.ops.nn.windows import Windows


def three(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """Values of three axes; ``missing`` stands for leading axes that there are not."""
    return (*(missing,) * (3 - len(values)), *values)


def arguments(w: Windows) -> tuple[int, ...]:
    """Arguments of the functions behind windows.cuh, from the sizes on."""
    before = three(tuple(pad for pad, _ in w.pad), 0)
    steps = (*three(w.size, 1), *three(w.out, 1), *three(w.kernel, 1), *three(w.stride, 1))
    return (*steps, *before, *three(w.dilation, 1))
