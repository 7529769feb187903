"""What a simulated accelerator does: launches, marks, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.devices.sim.array import SimArray
from actorflow.devices.sim.timeline import Work
from actorflow.errors import DeviceError

if TYPE_CHECKING:
    from actorflow.devices.sim.arena import Block
    from actorflow.devices.sim.races import Source, Use
    from actorflow.devices.sim.stream import SimEvent, SimStream

Array = npt.NDArray[Any]
Arrays = Sequence[SimArray | Array]
#: What a launch calls with the contents of what it reads and of what it writes.
Function = Callable[[list[Array], list[Array]], object]


class Failure:
    """Why work on the device did not do what it should.

    Attributes:
        stream: Where.
        by: The work, for messages.
        error: What happened.
        root: The failure for whose sake the work was skipped; itself if it was not skipped.
        is_raised: Whether it was raised when the work was launched, so that no event needs to.
        is_marked: Whether an event carries it to the host.
        is_told: Whether that event has been asked.
    """

    __slots__ = ("by", "error", "is_marked", "is_raised", "is_told", "root", "stream")

    def __init__(
        self, stream: SimStream, by: str, error: DeviceError, root: Failure | None = None, is_raised: bool = False
    ) -> None:
        self.stream = stream
        self.by = by
        self.error = error
        self.root = self if root is None else root
        self.is_raised = is_raised
        self.is_marked = False
        self.is_told = False


class Launch(Work):
    """Work on a stream."""

    __slots__ = (
        "_awaited",
        "_by",
        "_failure",
        "_function",
        "_inputs",
        "_label",
        "_outputs",
        "_reads",
        "_sources",
        "_stream",
        "_writes",
    )

    def __init__(
        self, stream: SimStream, by: str, cost_ns: int, awaited: list[SimEvent], failure: Failure | None
    ) -> None:
        start_ns = max(stream.free_ns, stream.timeline.clock())
        super().__init__(start_ns, start_ns + cost_ns)
        self._stream = stream
        self._label = stream.label
        self._by = by
        self._awaited = awaited
        self._failure = failure
        self._function: Function | None = None
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []
        self._reads: list[Block] = []
        self._writes: list[Block] = []
        self._sources: list[Source] = []

    def prepare(self, function: Function, reads: Arrays, writes: Arrays, uses: Iterable[Use]) -> None:
        """Keep what `run` needs: the contents, not the arrays, which may be given back to a pool before."""
        self._function = function
        self._reads = [array.block for array in reads if isinstance(array, SimArray)]
        self._writes = [array.block for array in writes if isinstance(array, SimArray)]
        self._inputs = [array.contents if isinstance(array, SimArray) else array for array in reads]
        self._outputs = [array.contents if isinstance(array, SimArray) else array for array in writes]
        self._sources = [use.source for use in uses if use.source is not None]

    def run(self) -> None:
        for event in self._awaited:
            event.wait_until_passed()
        if self._failure is None:
            self._failure = self._skip() or self._call()
        for block in self._writes:
            block.failure = self._failure
        # Before an event can pass: then the host may use its memory again.
        self._function = None
        self._awaited, self._reads, self._writes = [], [], []
        self._inputs, self._outputs, self._sources = [], [], []

    def end(self, elapsed_ns: int) -> None:
        stream = self._stream
        stream.unfinished -= 1
        stream.busy_ns += self.finish_ns - self.start_ns if stream.options.is_timed else elapsed_ns
        if self._failure is not None:
            stream.failures.append(self._failure)

    def _skip(self) -> Failure | None:
        blamed = next((block.failure for block in self._reads if block.failure is not None), None)
        if blamed is None:
            return None
        root = blamed.root
        error = DeviceError(f"{self._by} was skipped: it needs the result of {root.by}, which failed")
        error.__cause__ = root.error
        error.work = self._label
        return Failure(self._stream, self._by, error, root)

    def _call(self) -> Failure | None:
        assert self._function is not None
        try:
            for source in self._sources:
                if not source.is_whole():
                    raise source.error()
            with np.errstate(all="ignore"):  # devices do not warn
                self._function(self._inputs, self._outputs)
        except DeviceError as error:
            return Failure(self._stream, self._by, error)
        except BaseException as error:  # noqa: BLE001  an event carries it to the host
            failed = DeviceError(f"{self._by} failed with {type(error).__name__}: {error}")
            failed.__cause__ = error
            failed.work = self._label
            return Failure(self._stream, self._by, failed)
        return None


class Mark(Work):
    """The place in a stream where an event passes."""

    __slots__ = ("awaited", "event")

    def __init__(self, event: SimEvent, awaited: list[SimEvent]) -> None:
        super().__init__(event.finish_ns, event.finish_ns)
        self.event = event
        self.awaited = awaited

    def run(self) -> None:
        for event in self.awaited:
            event.wait_until_passed()

    def end(self, elapsed_ns: int) -> None:
        self.event.stream.unfinished -= 1
        self.event.arrive()
