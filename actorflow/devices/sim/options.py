"""How a simulated accelerator behaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

from actorflow.devices.base import DeviceOptions
from actorflow.errors import DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions(DeviceOptions):
    """How a simulated accelerator behaves. By default nothing takes modelled time: work runs as fast as it can.

    Args:
        latency_s: Seconds that each copy takes before its first byte.
        bandwidth: Bytes per second of a copy from the host, to the host, or between devices; None for no limit.
        kernel_s: Seconds that each kernel takes.
        memory_bandwidth: Bytes per second that a kernel reads and writes besides; None for no limit.
        memory_bytes: Size of the device's memory.
        races: Whether use of memory that nothing orders is looked for.
        clock: Where the time of the model comes from, in nanoseconds.
    """

    latency_s: float = 0.0
    bandwidth: float | None = None
    kernel_s: float = 0.0
    memory_bandwidth: float | None = None
    memory_bytes: int = 1 << 34
    races: bool = True
    clock: Callable[[], int] = perf_counter_ns

    def __post_init__(self) -> None:
        for name in ("latency_s", "kernel_s", "memory_bytes"):
            if getattr(self, name) < 0:
                raise DeviceError(f"SimOptions: {name} must be at least 0, got {getattr(self, name)}")
        for name in ("bandwidth", "memory_bandwidth"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise DeviceError(f"SimOptions: {name} must be positive or None, got {value}")

    @property
    def is_timed(self) -> bool:
        """Whether anything takes modelled time."""
        return bool(self.latency_s or self.kernel_s or self.bandwidth or self.memory_bandwidth)

    def copy_ns(self, size_bytes: int) -> int:
        """Modelled nanoseconds of a copy."""
        return _nanoseconds(self.latency_s, size_bytes, self.bandwidth)

    def kernel_ns(self, size_bytes: int) -> int:
        """Modelled nanoseconds of a kernel that reads and writes so many bytes in all."""
        return _nanoseconds(self.kernel_s, size_bytes, self.memory_bandwidth)


def _nanoseconds(fixed_s: float, size_bytes: int, bandwidth: float | None) -> int:
    moving_s = 0.0 if bandwidth is None else size_bytes / bandwidth
    return round((fixed_s + moving_s) * 1e9)
