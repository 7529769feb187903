"""CUDA devices pass the suite that every device must pass."""

from __future__ import annotations

import pytest

from actorflow.devices import CudaOptions
from actorflow.testing import check_device

pytestmark = pytest.mark.gpu

#: What cannot be asked of any device with streams, and of CUDA: a kernel that fails spoils the whole process.
NOT_CHECKED = {
    "errors.on_device",
    "errors.told",
    "fences.urgent",
    "lanes.at_once",
    "lanes.independent",
    "lanes.wait_held",
}


@pytest.mark.parametrize("timing", [True, False])
async def test_a_cuda_device(timing: bool) -> None:
    report = await check_device("cuda:0", options=CudaOptions(timing=timing), patience_s=60.0)
    assert set(report.skipped) - {"copies.peer", "graphs.peers"} == NOT_CHECKED
