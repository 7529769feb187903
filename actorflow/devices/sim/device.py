"""The simulated accelerator, and how it behaves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from actorflow.core import clock_ns
from actorflow.devices.base import DeviceOptions
from actorflow.devices.memory import BufferPool
from actorflow.devices.segment import CaptureRefusedError, Segment
from actorflow.devices.sim.memory import Arena, SimArray
from actorflow.devices.sim.stream import Array, Arrays, Function, SimStream, Timeline, current_stream
from actorflow.devices.stream import StreamDevice, StreamLane
from actorflow.devices.team import team
from actorflow.errors import DeviceError, DeviceUnavailableError, flag, real, seconds, whole
from actorflow.place import Place
from actorflow.spec import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions(DeviceOptions):
    """Behaviour of a simulated accelerator. By default nothing takes modelled time: work runs as fast as it can.

    Args:
        latency_s: Seconds that each copy takes before its first byte.
        bandwidth: Bytes per second of a copy from the host, to the host, or between devices; None for no limit.
        kernel_s: Seconds that each kernel takes.
        memory_bandwidth: Bytes per second that a kernel reads and writes besides; None for no limit.
        memory_bytes: Size of the device's memory.
        races: Whether use of memory that nothing orders is looked for.
        clock: Where the time of the model comes from, in nanoseconds.

    Example:
        >>> options = af.devices.SimOptions(latency_s=1e-5, bandwidth=1e9)
        >>> options.copy_ns(1000)  # 10 us, and a nanosecond per byte
        11000
        >>> graph = af.Graph("g", devices={"sim:0": options})
        >>> x = graph.blob("x", [2])
        >>> y = af.ops.exp(af.nn.parallel.CopyTo("sim:0")(x))
        >>> af.to_numpy(graph.run_sync({x: [0, 0]})[y])
        array([1., 1.], dtype=float32)
    """

    latency_s: float = 0.0
    bandwidth: float | None = None
    kernel_s: float = 0.0
    memory_bandwidth: float | None = None
    memory_bytes: int = 1 << 34
    races: bool = True
    clock: Callable[[], int] = clock_ns

    def __post_init__(self) -> None:
        DeviceOptions.__post_init__(self)
        for name in ("latency_s", "kernel_s"):
            seconds(f"SimOptions: {name}", getattr(self, name), error=DeviceError)
        whole("SimOptions: memory_bytes", self.memory_bytes, 0, error=DeviceError)
        for name in ("bandwidth", "memory_bandwidth"):
            if getattr(self, name) is not None:
                real(f"SimOptions: {name}", getattr(self, name), above=0, finite=False, error=DeviceError)
        flag("SimOptions: races", self.races)

    @property
    def is_timed(self) -> bool:
        """True if anything takes modelled time."""
        return bool(self.latency_s or self.kernel_s or self.bandwidth or self.memory_bandwidth)

    def copy_ns(self, size_bytes: int) -> int:
        """Modelled nanoseconds of a copy."""
        return _nanoseconds(self.latency_s, size_bytes, self.bandwidth)

    def kernel_ns(self, size_bytes: int) -> int:
        """Modelled nanoseconds of a kernel that reads and writes ``size_bytes`` in all."""
        return _nanoseconds(self.kernel_s, size_bytes, self.memory_bandwidth)


def _nanoseconds(fixed_s: float, size_bytes: int, bandwidth: float | None) -> int:
    moving_s = 0.0 if bandwidth is None else size_bytes / bandwidth
    return round((fixed_s + moving_s) * 1e9)


_At = tuple[int, "TensorSpec"]  # an array: its address and its spec


@dataclass(frozen=True, slots=True)
class _Piece:
    """One launch."""

    function: Function
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    by: str  # the op or other work, for messages
    work: str


class Captured:
    """Launches of a stream while it was captured.

    As on a real device, a captured segment knows memory by address: a replay works on the array there by then. It
    is one launch, with one `SimOptions.kernel_s` for all its kernels, and the race detector looks at it each time.
    """

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
        """Launch all pieces as one; raises DeviceError if an array is gone, RaceError if nothing orders it."""
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
        name: Its name, for messages.
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
        finally:
            stream.captured = None
        self._captured = captured

    def replay(self) -> None:
        assert self._captured is not None
        assert self._stream is not None
        self._captured.launch(self._device, self._stream, self.name)


_COUNT = 16  # there are ``sim:0`` up to one less


class SimDevice(StreamDevice):
    """An accelerator that is not there: streams, events and memory of its own, with the arithmetic done by NumPy.

    Work runs later, in a thread of the device, at the time that a model gives; see `SimOptions` for the model, and
    `actorflow.devices.sim.memory` for how unordered use of memory is found.

    Attributes:
        timeline: When the device does each piece of work.
        arena: Its memory.

    Example:
        >>> device = af.devices.SimDevice(af.Place.parse("sim:0"))
        >>> array = device.upload(np.array([1.0, 2.0]))
        >>> device.download(array)
        array([1., 2.])
        >>> device.close()
    """

    libraries = ("sim",)
    options_type = SimOptions

    options: SimOptions

    # Copies start from where the data are. Tests that want staging say so in a subclass: `staging` is there.
    is_staged: ClassVar[bool] = False
    captures: ClassVar[bool] = True

    def __init__(self, place: Place, options: DeviceOptions | None = None) -> None:
        if options is not None and not isinstance(options, SimOptions):
            options = SimOptions(libraries=options.libraries, memory_budget=options.memory_budget)
        super().__init__(place, options)
        self.timeline = Timeline(f"actorflow-{place}", self.options.clock)
        self.arena = Arena(str(place), self.options.memory_bytes, self.options.races)
        self._staging = BufferPool()
        self._arrays: weakref.WeakValueDictionary[int, SimArray] = weakref.WeakValueDictionary()  # by address
        # One thread computes. From here on, as for the lanes of the CPU.
        team.lane_started()
        self._end = weakref.finalize(self, _end, self.timeline)
        self._end.atexit = False

    @classmethod
    def check(cls, place: Place) -> None:
        """Check that the index is below 16.

        Raises:
            DeviceUnavailableError: if it is not.
        """
        if place.device >= _COUNT:
            raise DeviceUnavailableError(f"place {str(place)!r}: simulated devices are sim:0 to sim:{_COUNT - 1}")

    def make_stream(self, name: str) -> SimStream:
        return SimStream(name, self.place, self.options, self.timeline)

    def make_segment(self, name: str, works: Sequence[Callable[[Any], object]]) -> SimSegment:
        return SimSegment(name, self, works, is_warm=True)

    def whereabouts(self, array: SimArray) -> int:
        return array.block.low

    def watch_closely(self, detailed: bool) -> None:
        """Nothing to choose: each piece of work has its own mark always, so that a failure names the right one."""

    def close(self) -> None:
        super().close()
        self._end()

    def join(self) -> None:
        super().join()
        self.timeline.join()

    def allocate(self, spec: TensorSpec) -> SimArray:
        if spec.dtype.hasobject:
            raise DeviceError(f"{self.place} has no memory for Python objects: {spec}")
        array = SimArray(self.place, self.arena.allocate(spec), np.empty(spec.shape, spec.dtype))
        self._arrays[array.block.low] = array
        return array

    def array_at(self, address: int, spec: TensorSpec) -> SimArray:
        """The array that is there, or a view of it, for work that knows only its address.

        Raises:
            DeviceError: if no array of this type is there any more.
        """
        array = self._arrays.get(address)
        if array is None or array.nbytes != spec.size_bytes or array.dtype != spec.dtype:
            found = "nothing" if array is None else repr(array)
            raise DeviceError(f"address {address:#x} of {self.place}: expected {spec}, found {found}")
        return array if array.shape == spec.shape else array.reshape(spec.shape)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, SimArray) and value.place == self.place

    def copy_in(self, source: npt.NDArray[Any], target: SimArray) -> None:
        self._copy("copy_in", source, target)

    def copy_out(self, source: SimArray, target: npt.NDArray[Any]) -> None:
        self._copy("copy_out", source, target)

    def copy_peer(self, source: SimArray, target: SimArray) -> None:
        self._copy("copy_peer", source, target)

    def upload(self, value: npt.NDArray[Any]) -> SimArray:
        """A new array with the contents of a host array, at once and without modelled time.

        Raises:
            OutOfMemoryError: if there is no room.
            RaceError: if its memory was freed before the host had seen the end of all work on it.
        """
        array = self.allocate(TensorSpec(value.shape, value.dtype))
        use = array.use(writes=True)
        if use is not None:
            use.region.check(None, "the host", use.low, use.high, writes=True)
        np.copyto(array.contents, value)
        return array

    def download(self, value: SimArray) -> npt.NDArray[Any]:
        return value.get()

    def forget_parent(self) -> None:
        super().forget_parent()
        self.timeline.forget_parent()
        self._end.detach()  # the count of threads has forgotten it, too

    def _make_lane(self, name: str) -> StreamLane:
        stream = self.make_stream(name)
        lane = StreamLane(name, self, stream)
        lane.detailed = True
        stream.is_polled = True
        return lane

    def _copy(self, name: str, source: SimArray | npt.NDArray[Any], target: SimArray | npt.NDArray[Any]) -> None:
        stream = self.current()
        if source.shape != target.shape or source.dtype != target.dtype:
            raise DeviceError(
                f"{name} on {self.place}: source {TensorSpec(source.shape, source.dtype)} and "
                f"target {TensorSpec(target.shape, target.dtype)} differ"
            )
        cost_ns = self.options.copy_ns(target.nbytes)
        stream.launch(
            lambda read, written: np.copyto(written[0], read[0]), [source], [target], cost_ns=cost_ns, name=name
        )

    def current(self) -> SimStream:
        """The stream that is current, one of this device.

        Raises:
            DeviceError: if another device's is, or none.
        """
        stream = current_stream()
        if stream.place != self.place:
            raise DeviceError(f"a stream of {stream.place} is current, but {self.place} should do the work")
        return stream


def launch_kernel(function: Function, inputs: Sequence[Any], outputs: Sequence[Any], name: str) -> None:
    """Have the current stream's device run a kernel of NumPy.

    Args:
        function: Called later as ``function(inputs, outputs)`` with NumPy arrays.
        inputs: Arrays of the device that it reads.
        outputs: Arrays of the device that it writes, wholly.
        name: Its name, for messages.
    Raises:
        DeviceError: if an array is not on the stream's device.
        RaceError: if it is not ordered with other work.

    Example:
        >>> from actorflow.devices.sim import SimDevice, launch_kernel
        >>> device = SimDevice(af.Place.parse("sim:0"))
        >>> x, y = device.upload(np.array([1.0, 4.0])), device.allocate(af.TensorSpec.of([2], "float64"))
        >>> stream = device.make_stream("main")
        >>> with stream.current():
        ...     launch_kernel(lambda inputs, outputs: np.sqrt(*inputs, out=outputs[0]), [x], [y], "sqrt")
        >>> stream.record().synchronize()
        >>> y.get()
        array([1., 2.])
        >>> device.close()
    """
    stream = current_stream()
    for array in (*inputs, *outputs):
        if not isinstance(array, SimArray) or array.place != stream.place:
            raise DeviceError(f"{name} on {stream.clock.where} takes arrays of {stream.place}, got {array!r}")
    size_bytes = sum(array.nbytes for array in (*inputs, *outputs))
    stream.launch(function, inputs, outputs, cost_ns=stream.options.kernel_ns(size_bytes), name=name)


def _end(timeline: Timeline) -> None:
    timeline.close()
    team.lane_stopped()
