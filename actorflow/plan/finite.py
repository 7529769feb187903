"""Whether the results of ops are looked at: where `np.errstate` says that errors raise, and where the graph is told to.

Kernels compute with NumPy's errors ignored, wherever they run: what overflows inside of one may be right, as the
exponential in a sigmoid, and a lane's thread knows nothing of the application's settings. So what an op has made is
looked at instead (`actorflow.actors.checked`), in programs of their own, which runs without a check do not pay for.
"""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np

from actorflow.graph.graph import Graph
from actorflow.graph.options import FiniteCheck


def _settings() -> ContextVar[Any] | None:
    """The variable in which NumPy keeps its settings; None where it has another place for them."""
    with np.errstate(all="raise"):
        inside = [*copy_context()]
    return next((variable for variable in inside if variable.name == "numpy.ufunc.extobj"), None)


_variable = _settings()


def check_here(graph: Graph) -> FiniteCheck | None:
    """What a run of the graph that the caller starts looks for in the results of its ops; None for nothing."""
    own = graph.root._check_finite
    if own is None and _variable is not None and _variable.get(None) is None:  # as nearly always
        return None
    traps = _traps_here()
    if own is None or traps is None:
        return own or traps
    return FiniteCheck(own.nan or traps.nan, own.infinity or traps.infinity)


def _traps_here() -> FiniteCheck | None:
    """Results that `np.errstate` makes errors around the caller."""
    state = np.geterr()
    nan, infinity = state["invalid"] == "raise", "raise" in (state["divide"], state["over"])
    # Functions raise by themselves, as they see the settings of the code that runs the graph.
    return FiniteCheck(nan, infinity, kernels_of_host=True) if nan or infinity else None
