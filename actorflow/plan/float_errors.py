"""Floating-point errors: where `np.errstate` says that they raise, the op that made a NaN or an infinity fails.

Kernels compute with NumPy's errors ignored, wherever they run: what overflows inside of one may be right, as the
exponential in a sigmoid, and a lane's thread knows nothing of the application's settings. So what an op has made is
looked at instead, by plans of their own, which runs outside of such a block do not pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar, copy_context
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from actorflow.devices import device_kind
from actorflow.plan.plan import Plan


class Traps(NamedTuple):
    """Results that are errors.

    Attributes:
        nan: A NaN in a result, where no input has one.
        infinity: An infinity, likewise.
    """

    nan: bool
    infinity: bool


def _settings() -> ContextVar[Any] | None:
    """The variable in which NumPy keeps its settings; None where it has another place for them."""
    with np.errstate(all="raise"):
        inside = [*copy_context()]
    return next((variable for variable in inside if variable.name == "numpy.ufunc.extobj"), None)


_variable = _settings()


def traps_here() -> Traps | None:
    """Results that `np.errstate` makes errors around the caller; None if none are."""
    if _variable is not None and _variable.get(None) is None:  # as nearly always, and a tenth of the time of the other
        return None
    state = np.geterr()
    traps = Traps(state["invalid"] == "raise", "raise" in (state["divide"], state["over"]))
    return traps if any(traps) else None


def with_traps(plan: Plan, traps: Traps) -> Plan:
    """A plan whose kernels on the host look at what they have made; it is changed in place.

    Functions raise by themselves, as they see the settings of the code that runs the graph.
    """
    for op in (*plan.ops, *plan.folded):
        if op.kernel is not None and op.inputs and device_kind(op.place.kind).is_host:
            # Not in place: `OpError.replay` needs the inputs.
            op.kernel = replace(op.kernel, function=_trapping(op.kernel.function, traps), inplace=False)
    return plan


def _trapping(function: Callable[..., Any], traps: Traps) -> Callable[..., Any]:
    def compute(operation: Any, inputs: list[Any], outputs: list[Any] | None, *more: Any) -> Any:
        with np.errstate(all="ignore"):  # for `OpError.replay`
            returned = function(operation, inputs, outputs, *more)
        made: list[Any] = returned if outputs is None else outputs
        if traps.nan and _any(np.isnan, made) and not _any(np.isnan, inputs):
            raise FloatingPointError(f"invalid value: the result has {_count(np.isnan, made)} NaN, the inputs none")
        if traps.infinity and _any(np.isinf, made) and not _any(np.isinf, inputs):
            count = _count(np.isinf, made)
            raise FloatingPointError(f"division by zero or overflow: the result has {count} infinite, the inputs none")
        return returned

    return compute


def _any(test: Callable[[Any], Any], arrays: Iterable[Any]) -> bool:
    return any(test(array).any() for array in arrays if _is_floating(array))


def _count(test: Callable[[Any], Any], arrays: Iterable[Any]) -> int:
    return sum(int(test(array).sum()) for array in arrays if _is_floating(array))


def _is_floating(array: Any) -> bool:
    dtype = getattr(array, "dtype", None)
    return dtype is not None and dtype.kind in "fcV" and not dtype.hasobject  # ml_dtypes' bfloat16 has kind V
