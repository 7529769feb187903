"""CUDA graphs: work that is launched again and again on the same buffers, launched as one.

What may be in a segment:

* kernels that only launch: nothing reads a value back, synchronizes or copies from or to pageable memory;
* the same lane, operations, kernels, shapes and buffers every time; what changes from call to call is copied into
  these buffers in front of the segment, and copied out of them behind it;
* no kernel that returns arrays of its own (``returns``) and no function: what they give would be overwritten;
* no kernel whose result depends on the host, like ``random`` ones, which are told the frame's number;
* no call of cuBLAS, cuSOLVER, cuSPARSE or cuRAND through CuPy, which refuses them while a stream is captured.

What kernels allocate for themselves comes from a pool of the segment, so a replay overwrites no other memory. If the
capture fails, the work is launched piece by piece for good, and `Segment.refusal` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from actorflow.devices import segment
from actorflow.devices.cuda.availability import load_cupy
from actorflow.devices.segment import CaptureRefusedError, SegmentState
from actorflow.errors import DeviceError
from actorflow.place import Place


class CudaSegment(segment.Segment):
    """Work of one lane on fixed buffers, as a CUDA graph.

    It is itself the work that a lane is given: ``lane.submit(segment, ...)``.

    Args:
        name: What it is, for messages.
        place: The device.
        works: Launch the work; see `actorflow.devices.segment.Segment`.
        is_warm: Whether the work has been launched before, so that the first call captures it.
    """

    def __init__(
        self, name: str, place: Place, works: Sequence[Callable[[Any], object]], is_warm: bool = False
    ) -> None:
        super().__init__(name, works, is_warm)
        self._cupy = load_cupy(place)
        self._graph: Any | None = None
        self._stream: Any | None = None
        self._pool = self._cupy.cuda.MemoryPool()

    def check_stream(self) -> None:
        stream = self._cupy.cuda.get_current_stream()
        if self._stream is None:
            self._stream = stream
        elif stream != self._stream:
            raise DeviceError(f"segment {self.name!r} belongs to {self._stream}, the current stream is {stream}")

    def launch(self, argument: Any) -> None:
        if self.state is SegmentState.REFUSED:
            super().launch(argument)
        else:
            with self._cupy.cuda.using_allocator(self._pool.malloc):
                super().launch(argument)

    def capture(self, argument: Any) -> None:
        stream, runtime = self._stream, self._cupy.cuda.runtime
        assert stream is not None
        try:
            stream.begin_capture()
            try:
                self.launch(argument)
            except BaseException:
                with suppress(runtime.CUDARuntimeError):  # it says that the capture is invalid
                    stream.end_capture()  # or the stream would go on capturing
                raise
            self._graph = stream.end_capture()
        except Exception as error:
            raise CaptureRefusedError(f"{type(error).__name__}: {error}") from error

    def replay(self) -> None:
        assert self._graph is not None
        self._graph.launch(self._stream)
