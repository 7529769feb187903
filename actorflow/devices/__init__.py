"""Devices: what a place's memory and compute are."""

from __future__ import annotations

from collections.abc import Callable

from actorflow.devices.base import Device, Fence, Lane
from actorflow.devices.cpu import CPU
from actorflow.devices.memory import Bucket, Pool
from actorflow.errors import DeviceUnavailableError, PlaceError
from actorflow.place import Place

__all__ = ["CPU", "Bucket", "Device", "Fence", "Lane", "Pool", "check_place", "open_device"]

_kinds: dict[str, Callable[[Place], Device]] = {"cpu": CPU}


def check_place(place: Place) -> None:
    """Check that this process has a place.

    Raises:
        PlaceError: if it names another rank.
        DeviceUnavailableError: if its kind of device is not known here.
    """
    if place.rank != 0:
        raise PlaceError(f"place {str(place)!r} is on rank {place.rank}, but this program has 1 rank")
    if place.kind not in _kinds:
        known = ", ".join(_kinds)
        raise DeviceUnavailableError(f"place {str(place)!r}: no device of kind {place.kind!r}; known: {known}")


def open_device(place: Place) -> Device:
    """A device for a place, with lanes and memory of its own.

    Raises:
        PlaceError, DeviceUnavailableError: as for `check_place`.
    """
    check_place(place)
    return _kinds[place.kind](place)
