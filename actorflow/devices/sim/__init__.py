"""``sim:N``: an accelerator for machines without one, that finds the faults real ones hide.

It has all the engine sees of a GPU: memory that the host cannot read, streams that run later and beside each other,
events. It reports faults that a real one leaves to chance: use of memory that no event orders raises `RaceError`.
"""

from actorflow.devices.sim.device import SimDevice, SimOptions, SimSegment, launch_kernel
from actorflow.devices.sim.memory import SimArray
from actorflow.devices.sim.stream import SimEvent, SimStream, current_stream
from actorflow.errors import RaceError

__all__ = [
    "RaceError",
    "SimArray",
    "SimDevice",
    "SimEvent",
    "SimOptions",
    "SimSegment",
    "SimStream",
    "current_stream",
    "launch_kernel",
]
