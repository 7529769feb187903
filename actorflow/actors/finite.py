"""Results that are not finite: a NaN or an infinity that no input has is an error, or pauses the graph.

Kernels compute with NumPy's errors ignored, wherever they run: an overflow inside of one may be right, as the
exponential in a sigmoid, and a lane's thread knows nothing of the application's settings. So where errors are wanted
(`Graph._check_here`) the results of an op are looked at, in programs of their own: others do not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.devices.stream import StreamLane
from actorflow.errors import NotFiniteError, NotFiniteResultError
from actorflow.graph.nodes import Op
from actorflow.graph.options import FiniteCheck
from actorflow.interchange import to_numpy
from actorflow.trace.values import is_finite, is_number, statistics_of

if TYPE_CHECKING:
    from actorflow.actors.op import OpActor


class Look(NamedTuple):
    """A look at the results of a program's ops.

    Attributes:
        check: The check that asks for it.
        found: Called with the finding of a check that pauses, on the thread of the call.
    """

    check: FiniteCheck
    found: Callable[[NotFiniteError], None]

    def at(self, actor: OpActor, inputs: list[Any], results: Iterable[Any], number: int) -> None:
        """Look at a call of frame ``number``.

        Raises:
            NotFiniteResultError: if a result is not finite and all inputs are, unless the graph is to be paused.
        """
        if isinstance(actor.lane, StreamLane):  # nothing of its memory is there before the work has ended
            event = actor.lane.stream.record()
            event.synchronize()
            event.query()
        try:
            look(self.check, actor.node, inputs, results)
        except NotFiniteResultError as finding:
            if not self.check.pause:
                raise
            error = actor.error_of(finding, inputs, number)
            assert isinstance(error, NotFiniteError)
            error.frame = number
            self.found(error)


def look(check: FiniteCheck, op: Op, inputs: Sequence[Any], results: Iterable[Any]) -> None:
    """Look at the results of an op.

    Raises:
        NotFiniteResultError: if a result is not finite, and all inputs are.
    """
    made = [*_arrays(results)]
    if all(map(is_finite, made)):
        return
    given = [*_arrays(inputs)]
    for is_wanted, test, what in (
        (check.nan, np.isnan, "invalid value: the result has {} NaN, the inputs none"),
        (check.infinity, np.isinf, "division by zero or overflow: the result has {} infinite, the inputs none"),
    ):
        count = _count(test, made) if is_wanted else 0
        if count and not _count(test, given):
            names = [blob.name for blob in op.inputs]
            raise NotFiniteResultError(
                what.format(count),
                dict(zip(names, map(statistics_of, given), strict=False)),
                tuple(map(statistics_of, made)),
            )


def _arrays(values: Iterable[Any]) -> Iterable[npt.NDArray[Any]]:
    return (to_numpy(value) for value in values if getattr(value, "dtype", None) is not None)


def _count(test: Callable[[Any], Any], arrays: Iterable[npt.NDArray[Any]]) -> int:
    return sum(int(test(array).sum()) for array in arrays if is_number(array.dtype) and array.dtype.kind not in "biu")
