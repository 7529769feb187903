"""Tools for tests of users' own code: conformance suites, planted faults, a virtual clock, checked gradients."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actorflow.testing.clock import virtual_time_loop
    from actorflow.testing.conformance import ConformanceError, Report, check_device, check_transport
    from actorflow.testing.faults import Injection, Replacement, inject, replace
    from actorflow.testing.gradient import check_gradient
    from actorflow.testing.interleaving import interleave
    from actorflow.testing.simulation import Faults, InjectedError, Simulated, SimulationError, shrink, simulate

__all__ = [
    "ConformanceError",
    "Faults",
    "InjectedError",
    "Injection",
    "Replacement",
    "Report",
    "Simulated",
    "SimulationError",
    "check_device",
    "check_gradient",
    "check_transport",
    "inject",
    "interleave",
    "replace",
    "shrink",
    "simulate",
    "virtual_time_loop",
]


if not TYPE_CHECKING:  # for which any name would be one that is there

    def __getattr__(name: str) -> object:
        """Import names when the first one is asked for: all runs of pytest import its plugin, and few anything else."""
        if name not in __all__:
            from actorflow.foreign import missing

            missing(__name__, name)
        for home in ("clock", "conformance", "faults", "gradient", "interleaving", "simulation"):
            room = importlib.import_module(f"{__name__}.{home}")
            globals().update({each: vars(room)[each] for each in __all__ if each in vars(room)})
        return globals()[name]
