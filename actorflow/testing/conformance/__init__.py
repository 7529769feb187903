"""Conformance suites: requirements on every device and every transport, of this package or of others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from actorflow.devices import Device, DeviceOptions, check_place
from actorflow.errors import seconds, whole
from actorflow.place import Place
from actorflow.testing.conformance.device_bench import DeviceBench
from actorflow.testing.conformance.devices import (
    ARRAYS,
    CLOSE,
    COPIES,
    ERRORS,
    FENCES,
    GRAPHS,
    LANES,
    LOOPS,
    MEMORY,
    PROMPT,
    RELEASE,
    SUBMIT,
)
from actorflow.testing.conformance.report import (
    Checked,
    ConformanceError,
    Deviation,
    NotApplicable,
    Report,
    Requirement,
)
from actorflow.testing.conformance.transport_bench import RankBench
from actorflow.testing.conformance.transports import EDGES, ENDS, GROUPS, NOTES
from actorflow.transport import Transport

__all__ = ["Checked", "ConformanceError", "Report", "check_device", "check_transport"]

# Each builds on those before it, so what breaks first is closest to what is wrong.
_OF_DEVICES = (ARRAYS, SUBMIT, FENCES, COPIES, LANES, PROMPT, ERRORS, RELEASE, MEMORY, LOOPS, CLOSE, GRAPHS)
_OF_TRANSPORTS = (EDGES, NOTES, GROUPS, ENDS)


async def check_device(
    place: Place | str,
    *,
    options: DeviceOptions | None = None,
    patience_s: float = 10.0,
    fail: Callable[[Device], object] | None = None,
) -> Report:
    """Check that a device does all that `actorflow.devices.Device` asks for, alone and in graphs.

    Each requirement is checked with devices of its own, opened by the place's kind, and closed again. Work that many
    may see, such as threads, should not begin or end elsewhere in the process meanwhile.

    Args:
        place: Of a kind that is registered.
        options: How to open it, in graphs too.
        patience_s: After how many seconds something that has not happened counts as never happening.
        fail: Called as a lane's work with the device: launches work that fails there later, as a kernel that reads
            beyond its array may. Where there is none, that errors on the device are told is not checked.
    Returns:
        All requirements, and which were not checked, with the reason.
    Raises:
        ConformanceError: an `AssertionError`, for the first requirement that the device breaks.
        DeviceUnavailableError: if there is no such device here.

    Example:
        >>> class Broken(af.devices.CPU):
        ...     def allocate(self, spec):
        ...         return np.empty(spec.shape)  # whatever the dtype is
        >>> af.devices.register_device("broken", Broken)
        >>> af.run(af.testing.check_device("broken:0"))
        Traceback (most recent call last):
            ...
        actorflow.testing.conformance.report.ConformanceError: device 'broken:0' breaks 'arrays.allocate'...
    """
    place = Place.parse(place)
    check_place(place)
    bench = DeviceBench(place, options, seconds("patience_s", patience_s, positive=True), fail)
    requirements = [requirement for topic in _OF_DEVICES for requirement in topic.requirements]
    return Report(
        place, bench.kind, tuple([await _checked(place, each, bench.check(each.check)) for each in requirements])
    )


async def check_transport(
    transport: Transport,
    *,
    chunk_bytes: int = 1 << 22,
    patience_s: float = 30.0,
    measure_idle: bool = False,
    freeze: Callable[[], object] | None = None,
) -> Report:
    """Check that a transport does all that `actorflow.transport.Transport` asks for.

    All ranks call this at the same time, with the same arguments; each checks its own part. The transport is closed
    at the end.

    Args:
        transport: New, with nothing under way.
        chunk_bytes: A size about which messages may be sent otherwise than about others; larger ones are tried.
        patience_s: After how many seconds something that has not happened counts as never happening.
        measure_idle: Whether to check that waiting takes no processor time, too; it takes a second.
        freeze: Makes this rank stand still, for good or for longer than the transport's ``liveness_s``, which is to be
            short; it is called on the last rank alone. Without it, that rank leaves before the others instead.
    Returns:
        All requirements, and which were not checked, with the reason.
    Raises:
        ConformanceError: an `AssertionError`, for the first requirement that the transport breaks on this rank.

    Example:
        >>> from actorflow.transport import LocalWorld
        >>> report = af.run(af.testing.check_transport(LocalWorld(1).transports[0]))
        >>> report.passed[:2], report.skipped["edges.order"]
        (('edges.address', 'notes.kept'), 'there is no other rank')
    """
    chunk_bytes, patience_s = whole("chunk_bytes", chunk_bytes, 1), seconds("patience_s", patience_s, positive=True)
    peers = RankBench(transport, asyncio.get_running_loop(), chunk_bytes, patience_s, measure_idle, freeze)
    who = f"rank {transport.rank} of {transport.size} over {transport.name}"
    try:
        requirements = [requirement for topic in _OF_TRANSPORTS for requirement in topic.requirements]
        checks = []
        for number, requirement in enumerate(requirements):
            if peers.is_out:
                checks.append(Checked(requirement.name, requirement.text, "this rank has ended before the others"))
                continue
            peers.begin(number)
            checks.append(await _checked(who, requirement, peers.within_patience(requirement.check)))
        return Report(who, type(transport), tuple(checks))
    finally:
        transport.close()


async def _checked(who: Place | str, requirement: Requirement, checking: Awaitable[None]) -> Checked:
    try:
        await checking
    except NotApplicable as reason:
        return Checked(requirement.name, requirement.text, str(reason))
    except Deviation as found:
        raise ConformanceError(who, requirement, found.expected, found.actual) from None
    except Exception as error:
        raise ConformanceError(who, requirement, "no exception", f"{type(error).__name__}: {error}") from error
    return Checked(requirement.name, requirement.text)
