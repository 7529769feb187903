"""Ops that look at what they have made: a NaN or an infinity that no input has is an error, or a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from actorflow.actors.alone import graph_of_call
from actorflow.actors.frame import Frame
from actorflow.actors.function import FunctionActor
from actorflow.actors.op import KernelActor, OpActor
from actorflow.core import release
from actorflow.devices.stream import StreamLane
from actorflow.errors import NotFiniteError, NotFiniteResultError, OpError
from actorflow.graph.nodes import Op
from actorflow.graph.options import FiniteCheck
from actorflow.interchange import to_numpy
from actorflow.trace.values import is_finite, is_number, statistics_of

_Kind = TypeVar("_Kind", bound=OpActor)


class Checked(OpActor):
    """Base of the ops of a program whose results are looked at.

    Attributes:
        check: What is looked for.
        found: Called with what a check that pauses has found, on the thread of the call.
    """

    # No slots: a class cannot have those of two bases.
    check: FiniteCheck
    found: Callable[[NotFiniteError], None]

    def _look(self, inputs: list[Any], results: Iterable[Any], number: int) -> None:
        if isinstance(self.lane, StreamLane):  # nothing of its memory is there before the work has ended
            event = self.lane.stream.record()
            event.synchronize()
            event.query()
        try:
            look(self.check, self.node, inputs, results)
        except NotFiniteResultError as finding:
            if not self.check.pause:
                raise
            alone, replay = partial(graph_of_call, self, inputs, number), partial(self.replay, inputs, number)
            error = OpError.of(self.node, finding, replay, alone)
            assert isinstance(error, NotFiniteError)
            error.frame = number
            self.found(error)


class _CheckedKernel(Checked, KernelActor):
    def _call(self, frame: Frame) -> None:
        kept = [*self.read(frame.values)]
        super()._call(frame)
        values = frame.values
        self._look(kept, [values[blob.slot] for blob in self.outputs], frame.number)

    def replay(self, inputs: list[Any], number: int) -> Any:
        results = super().replay(inputs, number)
        if not self.check.pause:
            look(self.check, self.node, inputs, results)
        return results

    def _run_kernel(self, inputs: list[Any], number: int) -> list[Any]:
        with np.errstate(all="ignore"):  # for `replay`
            return super()._run_kernel(inputs, number)


class _CheckedFunction(Checked, FunctionActor):
    def store(self, frame: Frame, result: Any) -> None:
        if self.outputs or result is not None:
            self._keep_all(frame, result)
        values = frame.values
        self._look([*self.read(values)], [values[blob.slot] for blob in self.outputs], frame.number)
        release(self.freed, frame)


@cache
def checked(kind: type[_Kind]) -> type[_Kind]:
    """The same kind of actor, which looks at what it has made; `Checked` says what it is to be given."""
    base = _CheckedFunction if issubclass(kind, FunctionActor) else _CheckedKernel
    return type(kind.__name__, (base, kind), {})


def look(check: FiniteCheck, op: Op, inputs: Sequence[Any], results: Iterable[Any]) -> None:
    """Look at what an op has made.

    Raises:
        NotFiniteResultError: if a result has what no input has.
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
