"""Devices: what a place's memory and compute are.

The kinds other than the CPU are loaded when they are first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from actorflow.devices.base import Device, DeviceOptions, Fence, Lane
from actorflow.devices.cpu import CPU, WorkerLane
from actorflow.devices.memory import Bucket, Pool
from actorflow.devices.registry import check_place, device_kind, known_kinds, open_device, register_device

if TYPE_CHECKING:
    from actorflow.devices.cuda import CudaDevice as CudaDevice
    from actorflow.devices.cuda import CudaOptions as CudaOptions
    from actorflow.devices.segment import CaptureRefusedError as CaptureRefusedError
    from actorflow.devices.segment import Segment as Segment
    from actorflow.devices.sim import SimArray as SimArray
    from actorflow.devices.sim import SimDevice as SimDevice
    from actorflow.devices.sim import SimOptions as SimOptions
    from actorflow.devices.stream import Event as Event
    from actorflow.devices.stream import Stream as Stream
    from actorflow.devices.stream import StreamDevice as StreamDevice
    from actorflow.devices.stream import StreamLane as StreamLane

_HOME_OF = {
    "CaptureRefusedError": "segment",
    "CudaDevice": "cuda",
    "CudaOptions": "cuda",
    "Event": "stream",
    "Segment": "segment",
    "SimArray": "sim",
    "SimDevice": "sim",
    "SimOptions": "sim",
    "Stream": "stream",
    "StreamDevice": "stream",
    "StreamLane": "stream",
}

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
    "Pool",
    "Segment",
    "SimArray",
    "SimDevice",
    "SimOptions",
    "Stream",
    "StreamDevice",
    "StreamLane",
    "WorkerLane",
    "check_place",
    "device_kind",
    "known_kinds",
    "open_device",
    "register_device",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
