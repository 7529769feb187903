"""One suite that every device must pass, whether it comes with this package or from elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from actorflow.devices import Device, DeviceOptions, check_place
from actorflow.place import Place
from actorflow.testing.conformance.arrays import ARRAYS
from actorflow.testing.conformance.bench import Bench
from actorflow.testing.conformance.copies import COPIES
from actorflow.testing.conformance.ends import CLOSE, LOOPS, RELEASE
from actorflow.testing.conformance.fences import ERRORS, FENCES, PROMPT
from actorflow.testing.conformance.graphs import GRAPHS
from actorflow.testing.conformance.lanes import LANES, SUBMIT
from actorflow.testing.conformance.memory import MEMORY
from actorflow.testing.conformance.report import (
    Checked,
    ConformanceError,
    Deviation,
    NotApplicable,
    Report,
    Requirement,
)

__all__ = ["Checked", "ConformanceError", "Report", "check_device"]

#: Each builds on those before it, so what breaks first is closest to what is wrong.
_TOPICS = (ARRAYS, SUBMIT, FENCES, COPIES, LANES, PROMPT, ERRORS, RELEASE, MEMORY, LOOPS, CLOSE, GRAPHS)


async def check_device(
    place: Place | str,
    *,
    options: DeviceOptions | None = None,
    patience_s: float = 10.0,
    fail: Callable[[Device], object] | None = None,
) -> Report:
    """Check that a device does what `actorflow.devices.Device` asks for, alone and in graphs.

    ::

        print(await check_device("shm:0"))

    Each requirement is checked with devices of its own, opened by the place's kind, and closed again. Work that many
    may see, such as threads, should not begin or end elsewhere in the process meanwhile.

    Args:
        place: Of a kind that is registered.
        options: How to open it, in graphs too.
        patience_s: After how many seconds something that has not happened counts as never happening.
        fail: Called as a lane's work with the device: launches work that fails there later, as a kernel that reads
            beyond its array may. Where there is none, that errors on the device are told is not checked.
    Returns:
        All requirements, with what was not checked and why.
    Raises:
        ConformanceError: an `AssertionError`, for the first requirement that the device breaks.
        DeviceUnavailableError: if there is no such device here.
    """
    place = Place.parse(place)
    check_place(place)
    bench = Bench(place, options, patience_s, fail)
    requirements = [requirement for topic in _TOPICS for requirement in topic.requirements]
    checks = [Checked(r.name, r.text, await _skipped(bench, r)) for r in requirements]
    return Report(place, bench.kind, tuple(checks))


async def _skipped(bench: Bench, requirement: Requirement) -> str:
    """Check one requirement; why it does not apply, if it does not."""
    try:
        await requirement.check(bench)
    except NotApplicable as reason:
        return str(reason)
    except Deviation as found:
        raise ConformanceError(bench.place, requirement, found.expected, found.actual) from None
    except Exception as error:
        raise ConformanceError(bench.place, requirement, "no exception", f"{type(error).__name__}: {error}") from error
    return ""
