"""Devices: what a place's memory and compute are."""

from actorflow.devices.base import Device, DeviceOptions, Fence, Lane
from actorflow.devices.cpu import CPU
from actorflow.devices.memory import Bucket, Pool
from actorflow.devices.registry import check_place, device_kind, known_kinds, open_device, register_device

__all__ = [
    "CPU",
    "Bucket",
    "Device",
    "DeviceOptions",
    "Fence",
    "Lane",
    "Pool",
    "check_place",
    "device_kind",
    "known_kinds",
    "open_device",
    "register_device",
]
