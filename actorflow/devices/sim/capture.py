"""Launches of a simulated accelerator captured, and replayed as one.

As on a real device, what is captured knows memory by address: a replay works on whatever array is there by then. It is
one launch, with one `SimOptions.kernel_s` for all its kernels, and the race detector looks at it each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from actorflow.devices.segment import CaptureRefusedError, Segment
from actorflow.devices.sim.memory import SimArray
from actorflow.errors import DeviceError

if TYPE_CHECKING:
    from actorflow.devices.sim.device import SimDevice
    from actorflow.devices.sim.stream import SimStream
    from actorflow.devices.sim.timeline import Array, Arrays, Function
    from actorflow.spec import TensorSpec

#: An array: its address, and what is there.
_At = tuple[int, "TensorSpec"]


@dataclass(frozen=True, slots=True)
class _Piece:
    """One launch.

    Attributes:
        by: The op, or what else it is, for messages.
    """

    function: Function
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    by: str
    work: str


class Captured:
    """Launches of a stream while it was captured."""

    def __init__(self) -> None:
        self.cost_ns = 0
        self._pieces: list[_Piece] = []
        self._arrays: dict[_At, int] = {}
        self._read: dict[int, None] = {}  # before any of the pieces writes there
        self._written: dict[int, None] = {}
        self._overwritten: set[int] = set()  # addresses

    def add(self, stream: SimStream, function: Function, reads: Arrays, writes: Arrays, cost_ns: int, by: str) -> None:
        """Capture a launch instead of doing it; raises CaptureRefusedError if it uses memory of the host."""
        inputs = tuple([self._number(array, by) for array in reads])
        outputs = tuple([self._number(array, by) for array in writes])
        places = [at for at, _ in self._arrays]
        is_first = [places[number] not in self._overwritten for number in inputs]
        self._read |= dict.fromkeys(compress(inputs, is_first))
        self._written |= dict.fromkeys(outputs)
        self._overwritten.update(places[number] for number in outputs)
        # The pieces need no launch of their own.
        self.cost_ns += cost_ns - (min(cost_ns, stream.options.kernel_ns(0)) if self._pieces else 0)
        self._pieces.append(_Piece(function, inputs, outputs, by, stream.label))

    def launch(self, device: SimDevice, stream: SimStream, name: str) -> None:
        """Launch all pieces as one.

        Raises:
            DeviceError: if there is no array any more where one was.
            RaceError: if it is not ordered with other work.
        """
        arrays = [device.array_at(*at) for at in self._arrays]
        contents = [array.contents for array in arrays]
        stream.label = name
        stream.launch(
            lambda *_: self._compute(contents),
            [arrays[number] for number in self._read],
            [arrays[number] for number in self._written],
            cost_ns=self.cost_ns,
            name=name,
        )

    def _number(self, array: SimArray | Array, by: str) -> int:
        if not isinstance(array, SimArray):
            raise CaptureRefusedError(f"{by} uses memory of the host")
        return self._arrays.setdefault(array.at, len(self._arrays))

    def _compute(self, contents: Sequence[Array]) -> None:
        for piece in self._pieces:
            try:
                piece.function([contents[i] for i in piece.reads], [contents[i] for i in piece.writes])
            except Exception as error:
                failed = DeviceError(f"{piece.by} failed with {type(error).__name__}: {error}")
                failed.work = piece.work
                raise failed from error


class SimSegment(Segment):
    """Work of one simulated stream on fixed memory.

    Args:
        name: What it is, for messages.
        device: The device.
        works: Launch the work; see `Segment`.
        is_warm: Whether it has been launched before.

    Example:
        >>> from actorflow.devices.sim import SimDevice, launch_kernel
        >>> device = SimDevice(af.Place.parse("sim:0"))
        >>> x, stream = device.upload(np.array([1.0])), device.make_stream("main")
        >>> def increase(inputs, outputs):
        ...     outputs[0][...] = inputs[0] + 1
        >>> work = [lambda argument: launch_kernel(increase, [x], [x], "increase")]
        >>> segment = device.make_segment("increase", work)
        >>> with stream.current():
        ...     for _ in range(3):
        ...         segment()
        >>> stream.record().synchronize()
        >>> x.get(), segment.state.name, segment.replays
        (array([4.]), 'CAPTURED', 3)
        >>> device.close()
    """

    def __init__(
        self, name: str, device: SimDevice, works: Sequence[Callable[[Any], object]], is_warm: bool = False
    ) -> None:
        super().__init__(name, works, is_warm)
        self._device = device
        self._stream: SimStream | None = None
        self._captured: Captured | None = None

    def check_stream(self) -> None:
        stream = self._device.current()
        if self._stream is None:
            self._stream = stream
        elif stream is not self._stream:
            raise DeviceError(
                f"segment {self.name!r} belongs to {self._stream.clock.where}, but {stream.clock.where} is current"
            )

    def capture(self, argument: Any) -> None:
        stream = self._stream
        assert stream is not None
        stream.captured = captured = Captured()
        try:
            self.launch(argument)
        except CaptureRefusedError:
            raise
        except Exception as error:
            raise CaptureRefusedError(f"{type(error).__name__}: {error}") from error
        finally:
            stream.captured = None
        self._captured = captured

    def replay(self) -> None:
        assert self._captured is not None
        assert self._stream is not None
        self._captured.launch(self._device, self._stream, self.name)
