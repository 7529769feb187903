"""Requirements on devices and transports, by name, and reports of findings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import ActorflowError
from actorflow.place import Place

Check = Callable[..., Awaitable[None]]


class ConformanceError(ActorflowError, AssertionError):
    """A device or transport does not do as `actorflow.devices.Device` or `actorflow.transport.Transport` asks for.

    Attributes:
        place: Which device, or which rank of a transport.
        requirement: Name of the requirement that it breaks, ``"fences.waiters"`` say.
        expected: The behaviour required.
        actual: The behaviour seen.
    """

    def __init__(self, place: Place | str, requirement: Requirement, expected: str, actual: str) -> None:
        who = f"device {str(place)!r}" if isinstance(place, Place) else place
        super().__init__(
            f"{who} breaks {requirement.name!r}: {requirement.text}\n  expected: {expected}\n  actual:   {actual}"
        )
        self.place = place
        self.requirement = requirement.name
        self.expected = expected
        self.actual = actual


class Deviation(Exception):  # noqa: N818  becomes a ConformanceError, which knows the requirement
    """A check found something else than it should."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"expected {expected}, got {actual}")
        self.expected = expected
        self.actual = actual


class NotApplicable(Exception):  # noqa: N818  no error
    """A requirement says nothing about this device or transport; the message says why."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a device or transport must do."""

    name: str  # topic and name
    text: str  # what is required
    check: Check  # finds out


class Topic:
    """The requirements of one topic, in the order in which they are checked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requirements: list[Requirement] = []

    def requires(self, name: str, text: str) -> Callable[[Check], Check]:
        """The decorated function checks a requirement."""

        def add(check: Check) -> Check:
            self.requirements.append(Requirement(f"{self.name}.{name}", text, check))
            return check

        return add


class Checked(NamedTuple):
    """A requirement that was looked at."""

    name: str
    text: str  # what is required
    skipped: str = ""  # why it was not checked; empty if it holds


@dataclass(frozen=True)
class Report:
    """Findings of `check_device` or `check_transport`; printing it gives one line per requirement.

    Attributes:
        place: Which device, or which rank.
        kind: Its class.
        checks: All requirements, in the order in which they were checked.

    Example:
        >>> from actorflow.testing.conformance import Checked
        >>> checks = Checked("lanes.fifo", "work runs in its order"), Checked("memory.budget", "is kept", "no budget")
        >>> report = af.testing.Report("cpu", af.devices.CPU, checks)
        >>> report.passed, report.skipped
        (('lanes.fifo',), {'memory.budget': 'no budget'})
        >>> print(report)
        cpu (CPU): 1 of 2 requirements hold
          lanes.fifo     work runs in its order
          memory.budget  not checked: no budget
    """

    place: Place | str
    kind: type[Any]
    checks: tuple[Checked, ...]

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the requirements that hold."""
        return tuple(check.name for check in self.checks if not check.skipped)

    @property
    def skipped(self) -> dict[str, str]:
        """The requirements that were not checked, by name, and why."""
        return {check.name: check.skipped for check in self.checks if check.skipped}

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [f"{self.place} ({self.kind.__qualname__}): {len(self.passed)} of {len(self.checks)} requirements hold"]
        for check in self.checks:
            said = f"not checked: {check.skipped}" if check.skipped else check.text
            lines.append(f"  {check.name:<{width}}  {said}")
        return "\n".join(lines)


def expect(holds: object, expected: str, actual: str) -> None:
    """Check a condition; raises Deviation if it does not hold."""
    if not holds:
        raise Deviation(expected, actual)


@contextmanager
def refusing(kind: type[Exception], what: str, otherwise: str = "it is accepted") -> Iterator[None]:
    """Check that the block raises an error of a kind for something; raises Deviation if it does not."""
    try:
        yield
    except kind:
        return
    raise Deviation(f"{kind.__name__} {what}", otherwise)


def same(actual: npt.NDArray[Any], expected: npt.NDArray[Any], what: str) -> None:
    """Check that two arrays have the same type and contents; raises Deviation naming the first element that differs."""
    kinds = [f"{array.dtype}{list(array.shape)}" for array in (actual, expected)]
    expect(kinds[0] == kinds[1], f"{what}: {kinds[1]}", kinds[0])
    differs = np.atleast_1d(np.asarray(actual != expected))
    if differs.any():
        first = tuple(int(i) for i in np.argwhere(differs)[0])
        at = first if expected.ndim else ()
        raise Deviation(
            f"{what} with {expected[at]} at {list(first)}",
            f"{actual[at]} there; {np.count_nonzero(differs)} of {expected.size} elements differ",
        )
