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

    Example:
        >>> class Counting(af.devices.CPU):  # the CPU, which counts the copies to it
        ...     copies = 0
        ...
        ...     def copy_in(self, source, target):
        ...         self.copies += 1
        ...         super().copy_in(source, target)
        >>> af.devices.register_device("counting", Counting)
        >>> device = af.devices.open_device("counting:0")
        >>> device.copy_in(np.ones(2), device.allocate(af.TensorSpec.of([2], "float64")))
        >>> device.copies
        1
    """
    Place(kind=kind, device=0)  # or the name would be of no use
    if _kinds.get(kind, device) is not device or kind in _BUILT_IN:
        raise DeviceError(f"a device of kind {kind!r} is registered already: {device_kind(kind).__qualname__}")
    _kinds[kind] = device


def device_kind(kind: str) -> type[Device]:
    """The class of a kind of device, loaded on first use.

    Raises:
        DeviceUnavailableError: if there is no such kind, or its package does not load.

    Example:
        >>> af.devices.device_kind("cpu")
        <class 'actorflow.devices.cpu.CPU'>
        >>> af.devices.device_kind("tpu")
        Traceback (most recent call last):
            ...
        actorflow.errors.DeviceUnavailableError: no device of kind 'tpu'; known: cpu, sim, cuda...
    """
    found = _kinds.get(kind)
    if found is None:
        found = _kinds[kind] = _load(kind)
    return found


def known_kinds() -> tuple[str, ...]:
    """All kinds that can be named, whether or not this machine has such a device.

    Example:
        >>> af.devices.known_kinds()[:3]
        ('cpu', 'sim', 'cuda')
    """
    return tuple(dict.fromkeys([*_BUILT_IN, *_kinds, *(point.name for point in metadata.entry_points(group=GROUP))]))


def check_place(place: Place | str) -> None:
    """Check that this process has a place, which may be given by its text.

    Raises:
        DeviceUnavailableError: if its kind of device is not known here, or there is no such device.

    Example:
        >>> af.devices.check_place("sim:0")
        >>> af.devices.check_place("sim:99")
        Traceback (most recent call last):
            ...
        actorflow.errors.DeviceUnavailableError: place 'sim:99': simulated devices are sim:0 to sim:15
        More: actorflow docs devices
    """
    place = Place.parse(place)
    try:
        kind = device_kind(place.kind)
    except DeviceUnavailableError as error:
        raise DeviceUnavailableError(f"place {str(place)!r}: {error}") from error.__cause__
    kind.check(place)


def available(place: Place | str) -> bool:
    """Return whether this process has a place, which may be given by its text; `check_place` says why not.

    Raises:
        PlaceError: if the text names no place.

    Example:
        >>> af.devices.available("cpu"), af.devices.available("sim:99")
        (True, False)
    """
    try:
        check_place(place)
    except DeviceUnavailableError:
        return False
    return True


def open_device(place: Place | str, options: DeviceOptions | None = None) -> Device:
    """A device for a place, which may be given by its text, with lanes and memory of its own.

    Raises:
        DeviceUnavailableError: as for `check_place`.
        DeviceError: if the options are those of another kind.

    Example:
        >>> device = af.devices.open_device("sim:0")
        >>> device.upload(np.array([1, 2]))
        <SimArray int64[2] on sim:0>
        >>> device.close()
    """
    check_place(place := Place.parse(place))
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
