"""Checked settings of graphs and ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar, copy_context
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from actorflow.devices import DeviceOptions
from actorflow.errors import GraphError, flag, seconds, time_limit, whole
from actorflow.place import Place
from actorflow.transport.base import Transport

#: Longest wait before a repetition that doubling leads to.
_LONGEST_WAIT_S = 86_400.0


class Attempts(NamedTuple):
    """Time limit of an op's calls, number of repetitions of a failed one, and the first wait before a repetition."""

    timeout_s: float | None
    retries: int
    backoff_s: float

    def wait_s(self, failures: int) -> float:
        """Seconds before a call that has failed again is repeated: doubled each time, a day at most.

        Args:
            failures: Number of failures before this one.
        """
        doubled = self.backoff_s * 2.0 ** min(failures, 64)
        return max(self.backoff_s, min(doubled, _LONGEST_WAIT_S))


class Hints(NamedTuple):
    """Kernels that the user prefers.

    Attributes:
        libraries: In the order of preference, before the device's own; None leaves the choice to the device.
        force_cpu: Whether to compute on the CPU wherever the arrays live.
    """

    libraries: tuple[str, ...] | None = None
    force_cpu: bool = False


class FiniteCheck(NamedTuple):
    """What is looked for in the results of ops whose inputs have none of it, and what follows; see `Graph`.

    Attributes:
        nan: Whether a NaN is.
        infinity: Whether an infinity is, which masks may have on purpose.
        pause: Whether to warn and to pause the graph, where the run would fail otherwise; the frame goes on to its end.
        kernels_of_host: Whether to look at results of kernels on the host alone, not at those of functions and of
            accelerators, as ``np.errstate(invalid="raise")`` around a run does.

    Example:
        >>> graph = af.Graph("g", check_finite=af.FiniteCheck(infinity=False))
        >>> x = graph.blob("x", [2])
        >>> y = af.ops.log(x)
        >>> graph.run_sync({x: [1, 0]})[y].tolist()  # an infinity is allowed
        [0.0, -inf]
        >>> graph.run_sync({x: [1, -1]})
        Traceback (most recent call last):
            ...
        actorflow.errors.NotFiniteError: op 'log' (Log()) failed with FloatingPointError: invalid value...
    """

    nan: bool = True
    infinity: bool = True
    pause: bool = False
    kernels_of_host: bool = False


with np.errstate(all="raise"):
    _inside: list[ContextVar[Any]] = [*copy_context()]
#: The variable in which NumPy keeps its settings; None where it has another place for them. It has no value where
#: nobody has set any, as nearly always.
NUMPYS = next((variable for variable in _inside if variable.name == "numpy.ufunc.extobj"), None)


def with_numpys(check: FiniteCheck | None) -> FiniteCheck | None:
    """A check, and besides it one for what `np.errstate` around the caller makes errors."""
    state = np.geterr()
    nan, infinity = state["invalid"] == "raise", "raise" in (state["divide"], state["over"])
    if not (nan or infinity):
        return check
    if check is None:  # functions raise by themselves, as they see the settings of the code that runs the graph
        return FiniteCheck(nan, infinity, kernels_of_host=True)
    return FiniteCheck(check.nan or nan, check.infinity or infinity)


class GraphOptions(NamedTuple):
    """Settings of a root graph; see `Graph`."""

    memory_budget_bytes: int | None = None
    sequential: bool = False
    deterministic: bool = False
    dry_run: bool = False
    stall_limit_s: float | None = None
    block_limit_s: float | None = None
    hints: Hints | None = None
    devices: Mapping[Place, DeviceOptions] = MappingProxyType({})
    capture: bool = False
    fuse: bool = True
    world: Transport | None = None
    trace_capacity: int = 1 << 16
    max_plans: int = 64

    @property
    def has_budget(self) -> bool:
        """True if memory is limited, on whatever device."""
        limits = (self.memory_budget_bytes, *[device.memory_budget for device in self.devices.values()])
        return any(limit is not None for limit in limits)


def attempts_of(timeout: float | None, retries: int, backoff: float) -> Attempts | None:
    """Timeout and retries of an op, if it has any.

    Raises:
        GraphError: if a number is out of range.
    """
    if timeout is None and type(retries) is int and type(backoff) is float and retries == backoff == 0:
        return None
    limit_s, times = time_limit("timeout", timeout, positive=True), whole("retries", retries, 0)
    backoff_s = seconds("backoff", backoff)
    return Attempts(limit_s, times, backoff_s) if times or limit_s is not None else None


def limits_of(memory_budget: int | None, max_plans: int | None) -> dict[str, Any]:
    """Fields of `GraphOptions` that are given for a graph of a file, whose own they stand for.

    Raises:
        GraphError: if one is not positive.
        TypeError: if one is no whole number.
    """
    limits = {} if max_plans is None else {"max_plans": whole("max_plans", max_plans, 1)}
    if memory_budget is not None:
        limits["memory_budget_bytes"] = whole("memory_budget", memory_budget, 1)
    return limits


def finite_check_of(check: object) -> FiniteCheck | None:
    """Check of results; None for none.

    Raises:
        GraphError: if it is neither a bool nor a `FiniteCheck`.
    """
    if isinstance(check, FiniteCheck):
        return check if check.nan or check.infinity else None
    if not isinstance(check, bool | None):
        raise GraphError(f"check_finite must be True, False or a FiniteCheck, got {check!r}")
    return FiniteCheck() if check else None


def hints_of(libraries: Sequence[str] | None, force_cpu: bool) -> Hints | None:
    """Preferred kernels, if any are.

    Raises:
        GraphError: if the libraries are not a list.
    """
    if isinstance(libraries, str):
        raise GraphError(f"libraries must be a list, libraries=[{libraries!r}]")
    force_cpu = flag("force_cpu", force_cpu)
    if libraries is None and not force_cpu:
        return None
    return Hints(None if libraries is None else tuple(libraries), force_cpu)


def device_options_of(devices: Mapping[Place | str, DeviceOptions]) -> Mapping[Place, DeviceOptions]:
    """Options by place, which may be given by its text.

    Raises:
        GraphError: if they are not `DeviceOptions`; `PlaceError` if a text is not a place.
    """
    for place, options in devices.items():
        if not isinstance(options, DeviceOptions):
            raise GraphError(f"devices: options of {str(place)!r} must be DeviceOptions, got {options!r}")
    return MappingProxyType({Place.parse(place): options for place, options in devices.items()})
