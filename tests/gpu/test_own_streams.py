"""Arrays that the application works on, on streams of its own: none is read or overwritten too early."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices.cuda import CudaDevice
from actorflow.spec import TensorSpec
from tests.support.waiting import in_threads

SPEC = TensorSpec.of(1 << 16)

#: Where the application works, and whether it feeds and drops its arrays inside of that stream's ``with`` block.
WHERE = pytest.mark.parametrize(
    ("where", "stays_inside"),
    [("default", False), ("per thread", True), ("blocking", True), ("blocking", False), ("non-blocking", True)],
)


@pytest.fixture
def stream_of(cupy: Any) -> Callable[[str], Any]:
    streams = {
        "default": lambda: cupy.cuda.Stream.null,
        "per thread": lambda: cupy.cuda.Stream.ptds,
        "blocking": cupy.cuda.Stream,
        "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
    }
    return lambda where: streams[where]()


@WHERE
def test_what_is_dropped_is_kept_while_it_is_read(
    cupy: Any, device: CudaDevice, slow_copy: Any, stream_of: Any, where: str, stays_inside: bool
) -> None:
    lane: Any = device.lane("main")
    kept, own = cupy.zeros(SPEC.shape, "f4"), stream_of(where)
    cupy.cuda.Device().synchronize()
    for value in range(1, 5):
        with lane.stream.current():
            result = device.allocate(SPEC)
            result.fill(value)
        lane.stream.synchronize()
        device.lend(result)
        with own:
            slow_copy(result, kept)
            if stays_inside:
                del result
        if not stays_inside:
            del result
        with lane.stream.current():
            device.allocate(SPEC).fill(-1)  # the same block
        cupy.cuda.Device().synchronize()
        assert (cupy.asnumpy(kept) == value).all()


def test_what_another_thread_drops_is_kept_while_it_is_read(cupy: Any, device: CudaDevice, slow_copy: Any) -> None:
    lane: Any = device.lane("main")
    kept = cupy.zeros(SPEC.shape, "f4")
    with lane.stream.current():
        results = [device.allocate(SPEC)]
        results[0].fill(1)
    lane.stream.synchronize()
    device.lend(results[0])
    cupy.cuda.Device().synchronize()

    def read() -> None:
        with cupy.cuda.Stream(non_blocking=True):
            slow_copy(results[0], kept)
            results.clear()

    in_threads(read)
    with lane.stream.current():
        device.allocate(SPEC).fill(-1)
    cupy.cuda.Device().synchronize()
    assert (cupy.asnumpy(kept) == 1).all()


@WHERE
def test_what_is_fed_is_read_when_it_is_there(
    cupy: Any, device: CudaDevice, slow_copy: Any, stream_of: Any, where: str, stays_inside: bool
) -> None:
    lane: Any = device.lane("main")
    source, fed, own = cupy.full(SPEC.shape, 7, "f4"), cupy.zeros(SPEC.shape, "f4"), stream_of(where)
    cupy.cuda.Device().synchronize()
    with own:
        slow_copy(source, fed)
        if stays_inside:
            assert device.adopt(fed) is fed
    if not stays_inside:
        assert device.adopt(fed) is fed
    with lane.stream.current():
        copy = fed.copy()
    lane.stream.synchronize()
    assert (device.download(copy) == 7).all()


@pytest.mark.parametrize("own", [None, "blocking", "non-blocking"])
async def test_a_graph_beside_the_applications_kernels(
    cupy: Any, slow_copy: Any, stream_of: Any, own: str | None
) -> None:
    """Results are read by slow kernels and dropped while the next runs take the same memory."""
    graph = af.Graph("doubled")
    with graph.at("cuda:0"):
        x = graph.blob("x", SPEC.shape)
        y = af.ops.scale(af.ops.scale(x, 4.0), 0.5)
    kept = [cupy.zeros(SPEC.shape, "f4") for _ in range(12)]
    cupy.cuda.Device().synchronize()
    stream = stream_of(own) if own else None
    async with graph:
        for value, target in enumerate(kept):
            result = await graph.run({x: np.full(SPEC.shape, value, "f4")})
            with stream or nullcontext():
                slow_copy(result[y], target)
                del result
    cupy.cuda.Device().synchronize()
    for value, target in enumerate(kept):
        assert (cupy.asnumpy(target) == 2 * value).all()
