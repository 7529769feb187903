"""CUDA graphs: work that is launched again and again on the same buffers, launched as one.

What may be in a segment:

* kernels that only launch: nothing reads a value back, synchronizes or copies from or to pageable memory;
* the same lane, operations, kernels, shapes and buffers every time; what changes from call to call is copied into
  these buffers in front of the segment, and copied out of them behind it;
* no kernel that returns arrays of its own (``returns``) and no function: what they give would be overwritten;
* no kernel whose result depends on the host, like ``random`` ones, which are told the frame's number;
* no call of cuBLAS, cuSOLVER, cuSPARSE or cuRAND through CuPy, which refuses them while a stream is captured.

What kernels allocate for themselves comes from a pool of the segment, so a replay overwrites nobody's memory. If the
capture fails, the work is launched piece by piece for good, and `Segment.refusal` says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from actorflow.devices.cuda.availability import load_cupy
from actorflow.errors import DeviceError
from actorflow.place import Place

__all__ = ["Segment", "SegmentState"]

_logger = logging.getLogger(__name__)


class SegmentState(Enum):
    """What the next call of a segment does.

    ::

        FRESH --launched--> WARM --captured--> CAPTURED: replayed from then on
                              |---refused---> REFUSED: launched piece by piece from then on
    """

    FRESH = "fresh"
    WARM = "warm"
    CAPTURED = "captured"
    REFUSED = "refused"


class Segment:
    """Work of one lane on fixed buffers, captured at its second call and replayed from then on.

    It is itself the work that a lane is given: ``lane.submit(segment, ...)``. The first call launches the work as it
    is, so that kernels are compiled and memory is there; a capture launches nothing by itself and is launched at once.

    Args:
        name: What it is, for messages.
        place: The device.
        works: Launch the work, on the current stream, in this order; each gets the argument of the call. They leave
            nothing behind on the host: a refused capture calls them twice.

    Attributes:
        name: As above.
        state: What the next call does.
        refusal: Why the work cannot be captured; None unless `state` is REFUSED.
        replays: How many calls so far launched the graph.
    """

    def __init__(self, name: str, place: Place, works: Sequence[Callable[[Any], object]]) -> None:
        self.name = name
        self.state = SegmentState.FRESH
        self.refusal: str | None = None
        self.replays = 0
        self._works = tuple(works)
        self._cupy = load_cupy(place)
        self._graph: Any | None = None
        self._stream: Any | None = None
        self._pool = self._cupy.cuda.MemoryPool()

    def __call__(self, argument: Any = None) -> None:
        """Launch all work on the current stream, which must be the same every time.

        Args:
            argument: For the works; where it leads them to buffers, these must be at the same addresses every time.
        Raises:
            DeviceError: if it is another stream than before.
            Exception: whatever the work raises.
        """
        stream = self._cupy.cuda.get_current_stream()
        if self._stream is None:
            self._stream = stream
        elif stream != self._stream:
            raise DeviceError(f"segment {self.name!r} belongs to {self._stream}, the current stream is {stream}")
        if self.state is SegmentState.WARM:
            self._capture(stream, argument)
        if self._graph is not None:
            self._graph.launch(stream)
            self.replays += 1
        elif self.state is SegmentState.REFUSED:
            self._launch(argument)
        else:
            with self._cupy.cuda.using_allocator(self._pool.malloc):
                self._launch(argument)
            self.state = SegmentState.WARM

    def __repr__(self) -> str:
        return f"<Segment {self.name!r}: {len(self._works)} works, {self.state.value}>"

    def _launch(self, argument: Any) -> None:
        for work in self._works:
            work(argument)

    def _capture(self, stream: Any, argument: Any) -> None:
        runtime = self._cupy.cuda.runtime
        try:
            stream.begin_capture()
        except (RuntimeError, NotImplementedError) as error:
            self._refuse(error)
            return
        try:
            with self._cupy.cuda.using_allocator(self._pool.malloc):
                self._launch(argument)
        except BaseException as error:
            with suppress(runtime.CUDARuntimeError):  # it says that the capture is invalid
                stream.end_capture()  # or the stream would go on capturing
            if not isinstance(error, Exception):
                raise
            self._refuse(error)
            return
        try:
            self._graph = stream.end_capture()
        except runtime.CUDARuntimeError as error:
            self._refuse(error)
        else:
            self.state = SegmentState.CAPTURED

    def _refuse(self, error: Exception) -> None:
        self.state = SegmentState.REFUSED
        self.refusal = f"{type(error).__name__}: {error}"
        _logger.info("segment %r is launched piece by piece: %s", self.name, self.refusal)
