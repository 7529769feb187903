"""Devices: the memory and compute of a place.

The kinds other than the CPU are loaded when they are first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from actorflow.devices.base import Device, DeviceOptions, Fence, Lane
from actorflow.devices.cpu import CPU, WorkerLane
from actorflow.devices.memory import Bucket, BufferPool
from actorflow.devices.registry import available, check_place, device_kind, known_kinds, open_device, register_device
from actorflow.devices.segment import CaptureRefusedError, Segment
from actorflow.devices.stream import Event, Stream, StreamDevice, StreamLane

if TYPE_CHECKING:
    from actorflow.devices.cuda import CudaDevice as CudaDevice
    from actorflow.devices.cuda import CudaOptions as CudaOptions
    from actorflow.devices.sim import SimArray as SimArray
    from actorflow.devices.sim import SimDevice as SimDevice
    from actorflow.devices.sim import SimOptions as SimOptions

__all__ = [
    "CPU",
    "Bucket",
    "CaptureRefusedError",
    "CudaDevice",
    "CudaOptions",
    "Device",
    "DeviceOptions",
    "Event",
    "Fence",
    "Lane",
    "BufferPool",
    "Segment",
    "SimArray",
    "SimDevice",
    "SimOptions",
    "Stream",
    "StreamDevice",
    "StreamLane",
    "WorkerLane",
    "available",
    "check_place",
    "device_kind",
    "known_kinds",
    "open_device",
    "register_device",
]


def __getattr__(name: str) -> Any:
    if name not in {"CudaDevice", "CudaOptions", "SimArray", "SimDevice", "SimOptions"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind = importlib.import_module(f"{__name__}.{'cuda' if name.startswith('Cuda') else 'sim'}")
    globals()[name] = value = getattr(kind, name)
    return value
