"""Kinds of devices by name; a kind is loaded when a place first names it."""

from __future__ import annotations

from importlib import import_module, metadata

from actorflow.devices.base import Device, DeviceOptions
from actorflow.errors import DeviceError, DeviceUnavailableError
from actorflow.place import Place

#: Entry points of this group name a kind and give its class; those of this package need none.
GROUP = "actorflow.devices"

_BUILT_IN = {
    "cpu": ("actorflow.devices.cpu", "CPU"),
    "sim": ("actorflow.devices.sim", "SimDevice"),
    "cuda": ("actorflow.devices.cuda", "CudaDevice"),
}
_kinds: dict[str, type[Device]] = {}


def register_device(kind: str, device: type[Device]) -> None:
    """Make a kind of device known; a package that is installed does it by an entry point instead.

    Args:
        kind: Its name in places: lower-case letters, digits and ``_``.
        device: The class.
    Raises:
        DeviceError: if the kind is registered already, for another class.
    """
    Place(kind=kind, device=0)  # or the name would be of no use
    if _kinds.get(kind, device) is not device or kind in _BUILT_IN:
        raise DeviceError(f"a device of kind {kind!r} is registered already: {device_kind(kind).__qualname__}")
    _kinds[kind] = device


def device_kind(kind: str) -> type[Device]:
    """The class of a kind of device, loaded on first use.

    Raises:
        DeviceUnavailableError: if there is no such kind, or its package does not load.
    """
    found = _kinds.get(kind)
    if found is None:
        found = _kinds[kind] = _load(kind)
    return found


def known_kinds() -> tuple[str, ...]:
    """All kinds that can be named, whether or not this machine has such a device."""
    return tuple(dict.fromkeys([*_BUILT_IN, *_kinds, *(point.name for point in metadata.entry_points(group=GROUP))]))


def check_place(place: Place) -> None:
    """Check that this process has a place.

    Raises:
        DeviceUnavailableError: if its kind of device is not known here, or there is no such device.
    """
    try:
        kind = device_kind(place.kind)
    except DeviceUnavailableError as error:
        raise DeviceUnavailableError(f"place {str(place)!r}: {error}") from error.__cause__
    kind.check(place)


def open_device(place: Place, options: DeviceOptions | None = None) -> Device:
    """A device for a place, with lanes and memory of its own.

    Raises:
        DeviceUnavailableError: as for `check_place`.
        DeviceError: if the options are those of another kind.
    """
    check_place(place)
    kind = device_kind(place.kind)
    if options is not None and not isinstance(options, kind.options_type) and type(options) is not DeviceOptions:
        raise DeviceError(f"place {str(place)!r} takes {kind.options_type.__name__}, got {type(options).__name__}")
    return kind(place, options)


def _load(kind: str) -> type[Device]:
    if kind in _BUILT_IN:
        module, name = _BUILT_IN[kind]
        found = getattr(import_module(module), name)
    else:
        points = [point for point in metadata.entry_points(group=GROUP) if point.name == kind]
        if not points:
            raise DeviceUnavailableError(f"no device of kind {kind!r}; known: {', '.join(known_kinds())}")
        try:
            found = points[0].load()
        except (ImportError, AttributeError) as error:
            raise DeviceUnavailableError(
                f"the device of kind {kind!r} ({points[0].value}) does not load: {error}"
            ) from error
    if not (isinstance(found, type) and issubclass(found, Device)):
        raise DeviceUnavailableError(f"the device of kind {kind!r} is not a subclass of Device: {found!r}")
    return found
