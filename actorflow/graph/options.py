"""Checked settings of graphs and ops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from actorflow.devices import DeviceOptions
from actorflow.errors import GraphError
from actorflow.place import Place
from actorflow.transport.base import Transport

#: Some 30 years.
_FOREVER_S = 1e9
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


def attempts_of(timeout: float | None, retries: int, backoff: float) -> Attempts | None:
    """Timeout and retries of an op, if it has any.

    Raises:
        GraphError: if a number is out of range.
    """
    timeout = limit_of("timeout", timeout)
    if retries < 0 or not backoff >= 0:
        raise GraphError(f"retries and backoff must not be negative, got {retries} and {backoff} s")
    if backoff == math.inf:
        raise GraphError("backoff must be finite, got inf s")
    return Attempts(timeout, retries, backoff) if retries or timeout is not None else None


def limit_of(name: str, seconds: float | None) -> float | None:
    """A time limit, if it is one: None for what is longer than any program runs, which not every loop can wait for.

    Raises:
        GraphError: if it is not positive.
    """
    if seconds is not None and not seconds > 0:  # nor NaN, by which a loop would order its timers at random
        raise GraphError(f"{name} must be positive, got {seconds} s")
    return None if seconds is None or seconds > _FOREVER_S else seconds


def capacity_of(calls: int) -> int:
    """Number of calls that a graph keeps: the next power of two.

    Raises:
        GraphError: if it is not positive.
    """
    if calls < 1:
        raise GraphError(f"trace_capacity must be positive, got {calls}")
    return 1 << (calls - 1).bit_length()


def plans_of(count: int) -> int:
    """Number of plans that a graph keeps.

    Raises:
        GraphError: if it is not positive.
    """
    if count < 1:
        raise GraphError(f"max_plans must be positive, got {count}")
    return count


def limits_of(memory_budget: int | None, max_plans: int | None) -> dict[str, Any]:
    """Fields of `GraphOptions` that are given for a graph of a file, whose own they stand for.

    Raises:
        GraphError: if one is not positive.
    """
    limits: dict[str, Any] = {} if max_plans is None else {"max_plans": plans_of(max_plans)}
    if memory_budget is not None:
        if memory_budget < 1:
            raise GraphError(f"memory_budget must be positive, got {memory_budget} bytes")
        limits["memory_budget_bytes"] = memory_budget
    return limits


def finite_check_of(check: object) -> FiniteCheck | None:
    """What is looked for in results; None for nothing.

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
