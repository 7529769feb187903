"""For tests of what users write themselves: conformance suites, which raise AssertionError, and other orders of events."""

from actorflow.testing.gradient import check_gradient
from actorflow.testing.interleaving import interleave

__all__ = ["check_gradient", "interleave"]
