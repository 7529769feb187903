"""Tools for tests of what users write: conformance suites, planted faults, a virtual clock, checked gradients."""

from actorflow.testing.clock import virtual_time_loop
from actorflow.testing.conformance import ConformanceError, Report, check_device, check_transport
from actorflow.testing.faults import Injection, inject
from actorflow.testing.gradient import check_gradient
from actorflow.testing.interleaving import interleave
from actorflow.testing.simulation import Faults, InjectedError, Simulated, SimulationError, shrink, simulate

__all__ = [
    "ConformanceError",
    "Faults",
    "InjectedError",
    "Injection",
    "Report",
    "Simulated",
    "SimulationError",
    "check_device",
    "check_gradient",
    "check_transport",
    "inject",
    "interleave",
    "shrink",
    "simulate",
    "virtual_time_loop",
]
