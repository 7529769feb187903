"""A simulated device with a clock that the test turns, and short forms of what tests do with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actorflow.devices.sim import SimArray, SimDevice, SimEvent, SimOptions, SimStream
from actorflow.place import Place
from actorflow.spec import TensorSpec


class Sim:
    """Devices whose time stands still until the test lets it pass."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.devices: list[SimDevice] = []

    def device(self, place: str = "sim:0", **options: Any) -> SimDevice:
        """A device; its clock is this object's."""
        device = SimDevice(Place.parse(place), SimOptions(clock=lambda: self.now_ns, **options))
        self.devices.append(device)
        return device

    def array(self, device: SimDevice, *values: float, dtype: str = "float32") -> SimArray:
        """An array with these contents."""
        return device.upload(np.array(values, dtype))

    def empty(self, device: SimDevice, *shape: int) -> SimArray:
        """An array of float32 with undefined contents."""
        return device.allocate(TensorSpec.of(shape))

    def launch(
        self,
        stream: SimStream,
        label: str,
        reads: Any = (),
        writes: Any = (),
        function: Any = lambda inputs, outputs: None,
        cost_ns: int = 0,
    ) -> Any:
        """Launch work under the name of an op."""
        stream.label = label
        return stream.launch(function, reads, writes, cost_ns=cost_ns, name="work")

    def copy(self, stream: SimStream, label: str, copy: Any, source: Any, target: Any) -> None:
        """Launch a copy under the name of an op."""
        stream.label = label
        with stream.current():
            copy(source, target)

    def advance(self, duration_ns: int) -> None:
        """Let time pass."""
        self.now_ns += duration_ns
        for device in self.devices:
            device.timeline.wake()

    def finish(self, stream: SimStream) -> SimEvent:
        """Let a stream's work run to its end, without the host's seeing it."""
        event = stream.record()
        thread = threading.Thread(target=event.synchronize)
        thread.start()
        thread.join()
        return event

    def close(self) -> None:
        for device in self.devices:
            device.close()
        for device in self.devices:
            device.join()


@pytest.fixture
def sim() -> Iterator[Sim]:
    """Makes devices, and closes them."""
    sim = Sim()
    yield sim
    sim.close()
