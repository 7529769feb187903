"""CUDA devices through CuPy: streams as lanes, events as fences, pinned staging, sharing of arrays, CUDA graphs.

Importing this package loads no CuPy; opening a device does.
"""

from __future__ import annotations

from actorflow.devices.cuda.availability import CudaFinding, describe_cuda
from actorflow.devices.cuda.device import CudaDevice, CudaOptions, CudaSegment
from actorflow.devices.segment import SegmentState

__all__ = ["CudaDevice", "CudaFinding", "CudaOptions", "CudaSegment", "SegmentState", "describe_cuda"]
