"""Face of a device to the engine: lanes of work, fences that prove its end, memory, copies.

A lane is a FIFO. Submitting to it returns at once with a fence; the engine hands the fence to the users of the result.
A consumer on the same lane needs nothing more, since the order of the FIFO is the proof. A consumer on another lane of
the same accelerator asks its lane to wait on the device (`Lane.wait`). All others let the loop see the fence
pass (`Fence.add_waiter`). CPU worker threads and CUDA streams with events both have this form; accelerators with
streams share is in `actorflow.devices.stream`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from actorflow.devices.memory import BufferPool
from actorflow.errors import DeviceError, whole
from actorflow.place import Place
from actorflow.spec import TensorSpec
from actorflow.threads import forget_in_child


class Stopped(BaseException):
    """Raised by work that ends early, having computed nothing: nobody waits for it any more."""


class Fence(ABC):
    """Proof that work on a lane is done or will be.

    Attributes:
        lane: Where the work was submitted.
        begun: Whether it has begun; may turn True before the loop is told.
        done: Whether it has ended, well or not; may turn True before the loop is told.
        error: The exception it raised, once done.
        elapsed_ns: How long it ran, in nanoseconds, once done.
        ended_ns: When it ended, `clock_ns`, once done; 0 where that is not known any better than by the loop.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     device = af.devices.open_device("cpu")
        ...     device.bind(asyncio.get_running_loop())
        ...     ended = asyncio.Event()
        ...     fence = device.lane("main").submit([].pop, 7, lambda fence: None, urgent=False)
        ...     fence.add_waiter(ended.set)
        ...     await ended.wait()
        ...     device.close()
        ...     device.join()
        ...     return fence.done, fence.error
        >>> af.run(main())
        (True, IndexError('pop from empty list'))
    """

    __slots__ = ("argument", "begun", "done", "elapsed_ns", "ended_ns", "error", "lane")

    def __init__(self, lane: Lane, argument: Any) -> None:
        self.lane = lane
        self.argument = argument
        self.begun = False
        self.done = False
        self.error: BaseException | None = None
        self.elapsed_ns = 0
        self.ended_ns = 0

    @property
    def runs(self) -> bool:
        """Whether the work runs at this moment, as far as that is known: it is neither behind other work nor done."""
        return self.begun and not self.done

    @abstractmethod
    def add_waiter(self, waiter: Callable[[], None]) -> None:
        """Call ``waiter()`` on the loop, soon after the work has ended. Only from the loop's thread."""

    def hurry(self) -> None:  # noqa: B027  most lanes tell of each end by itself
        """Have the loop told of the end without delay. Only from the loop's thread."""

    def stop(self) -> None:  # noqa: B027  most work cannot be stopped
        """Let the work end early, as nothing waits for it any more. Only from the loop's thread."""


class Lane(ABC):
    """A named FIFO of work on one device.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     loop, done = asyncio.get_running_loop(), []
        ...     device = af.devices.open_device("cpu")
        ...     device.bind(loop)
        ...     lane, passed = device.lane("main"), loop.create_future()
        ...     lane.submit(done.append, "first", lambda fence: None, urgent=False)
        ...     lane.submit(done.append, "second", passed.set_result, urgent=True)
        ...     fence = await passed
        ...     device.close()
        ...     device.join()
        ...     return done, fence.argument, fence.error
        >>> af.run(main())
        (['first', 'second'], 'second', None)
    """

    #: Time to have work begun there and the loop told of its end, beside the work; 0 where it is not known.
    handover_ns: int = 0

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def submit(
        self, work: Callable[[Any], None], argument: Any, passed: Callable[[Fence], None], urgent: bool
    ) -> Fence:
        """Enqueue ``work(argument)`` behind all work submitted before; returns at once.

        Args:
            work: The function; its exception becomes the fence's ``error``.
            argument: Its argument, also the fence's.
            passed: Called on the loop with the fence, after its waiters, in the order of the FIFO. Unless it is urgent
                or has a waiter, the loop may be told late, together with later work, to save wake-ups.
            urgent: Whether the loop must be told without delay.
        Raises:
            DeviceError: if the lane is closed.
        """

    @abstractmethod
    def wait(self, fence: Fence) -> bool:
        """Make all later work of this lane wait for ``fence`` without the host; False if this lane cannot."""

    def expect(self, work: bool, in_pieces: bool = False) -> None:  # noqa: B027  most lanes have a processor of their own
        """Say whether there will be work: cores are shared out among the lanes that have some. At first there will.

        Args:
            work: Whether there will be.
            in_pieces: It is that of kernels alone, which spread it themselves, so that BLAS needs no threads for it.
        """

    @abstractmethod
    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that is told of passed fences. Only while no work is pending."""

    @abstractmethod
    def close(self) -> None:
        """Stop after the work that is queued; does not wait for it. Idempotent."""

    @abstractmethod
    def join(self) -> None:
        """After `close`: block until the lane has stopped."""

    def forget_parent(self) -> None:  # noqa: B027  nothing to forget where there are no threads
        """This is the child of a fork, and the lane the parent's: it is closed here, with the work submitted to it."""


class IdleLane(Lane):
    """A lane that is given no work: of messages, or of what the thread computes that asks for it."""

    def submit(
        self, work: Callable[[Any], None], argument: Any, passed: Callable[[Fence], None], urgent: bool
    ) -> Fence:
        raise DeviceError(f"lane {self.name!r} takes no work")

    def wait(self, fence: Fence) -> bool:
        return False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        pass

    def close(self) -> None:
        pass

    def join(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Options of one device in a graph; a kind of device may have more (such as `SimOptions`).

    Args:
        libraries: Kernel libraries in the order of preference; None for the device's own order.
        memory_budget: Most bytes of buffers on the device; None for no limit.

    Example:
        >>> options = {"cpu": af.devices.DeviceOptions(libraries=("numpy",), memory_budget=1000)}
        >>> graph = af.Graph("g", devices=options)
        >>> x = graph.blob("x", [1000])
        >>> y = af.ops.sort(af.ops.sort(x))
        >>> graph.compile()
        Traceback (most recent call last):
            ...
        actorflow.errors.OutOfMemoryError: graph 'g' needs 8,000 bytes, its budget is 1,000 bytes...
    """

    libraries: tuple[str, ...] | None = None
    memory_budget: int | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if isinstance(self.libraries, str):
            raise DeviceError(f"{kind}: libraries must be a list, libraries=[{self.libraries!r}]")
        if self.memory_budget is not None:
            whole(f"{kind}: memory_budget", self.memory_budget, 0, error=DeviceError)


class Device(ABC):
    """Lanes and memory of one place.

    A kind of device is a subclass, registered by name (`actorflow.devices.register_device`, or the entry point group
    ``actorflow.devices``). An array of the device is an object with ``shape``, ``dtype`` and ``nbytes``, and with
    ``base``: None if it owns its memory, else the array whose memory it shows. Weak references can refer to it, and
    `actorflow.interchange.to_numpy` can copy it: by ``get()``, ``__array__`` or DLPack. The device keeps no references
    to arrays, since one that nothing else refers to is used again. `actorflow.testing.check_device` checks a device.

    Class attributes:
        libraries: Kernel libraries in the order of preference.
        options_type: Class of its options.
        is_host: Whether its arrays are NumPy arrays in the host's memory.
        shares_memory: Whether its arrays may be made on any memory of the host's, which several values have in turn.
        is_stream: Whether its lanes are streams: work is launched on the loop and runs later.
        is_staged: Whether copies from the host start from memory of `staging`.
        runs_functions: Whether plain functions (`Graph.function`) can run on it, with the device's arrays.
        captures: Whether the work its streams launch can be captured and replayed (`StreamDevice.make_segment`).

    Attributes:
        place: Whose device it is.
        options: How it is used.
        memory: The pool that buffers come from.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
    options_type: ClassVar[type[DeviceOptions]] = DeviceOptions
    is_host: ClassVar[bool] = False
    shares_memory: ClassVar[bool] = False
    is_stream: ClassVar[bool] = False
    is_staged: ClassVar[bool] = False
    runs_functions: ClassVar[bool] = False
    captures: ClassVar[bool] = False

    def __init__(self, place: Place, options: DeviceOptions | None = None) -> None:
        self.place = place
        self.options = self.options_type() if options is None else options
        self.memory = self._make_pool()
        self.memory.budget_bytes = self.options.memory_budget
        self._staging: BufferPool | None = None
        self._lanes: dict[str, Lane] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        forget_in_child(self)

    @classmethod
    def check(cls, place: Place) -> None:  # noqa: ARG003
        """Check that a place of this kind is there.

        Raises:
            DeviceUnavailableError: naming the library it looked for and the package to install.
        """
        return

    @classmethod
    def parallel_lanes(cls) -> int:
        """Over how many lanes a plan spreads independent ops."""
        return 4

    @abstractmethod
    def _make_lane(self, name: str) -> Lane:
        """A new lane of this name. Copies run on ``"inbound"`` and ``"outbound"``, which should go first."""

    def lane(self, name: str) -> Lane:
        """The lane of this name, made on first use."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = self._make_lane(name)
            if self._loop is not None:
                lane.bind(self._loop)
        return lane

    def expect(self, lanes: Container[Lane], in_pieces: Container[Lane] = ()) -> None:
        """Tell each lane whether it is one of those that there will be work for; see `Lane.expect`."""
        for lane in self._lanes.values():
            lane.expect(lane in lanes, lane in in_pieces)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop that is told of passed fences."""
        self._loop = loop
        for lane in self._lanes.values():
            lane.bind(loop)

    def watch_closely(self, detailed: bool) -> None:  # noqa: B027  most devices time each piece of work anyway
        """Tell the device whether the time of each piece of work is wanted by itself."""

    def close(self) -> None:
        """Stop all lanes; does not wait for them. Idempotent."""
        for lane in self._lanes.values():
            lane.close()

    def join(self) -> None:
        """After `close`: block until all lanes have stopped."""
        for lane in self._lanes.values():
            lane.join()

    def forget_parent(self) -> None:
        """This is the child of a fork: the device is the parent's, and closed here."""
        for lane in self._lanes.values():
            lane.forget_parent()

    def _make_pool(self) -> BufferPool:
        return BufferPool(self.allocate)

    @abstractmethod
    def allocate(self, spec: TensorSpec) -> Any:
        """A new C-contiguous array of the device with undefined contents.

        Raises:
            OutOfMemoryError: if there is no room.
        """

    @abstractmethod
    def is_array(self, value: Any) -> bool:
        """True if a value is an array of this very device."""

    @property
    def staging(self) -> BufferPool:
        """Host memory that copies from the host to this device start from, where `is_staged` says so."""
        if self._staging is None:
            raise DeviceError(f"place {str(self.place)!r} has no memory for staging")
        return self._staging

    @property
    def pools(self) -> tuple[BufferPool, ...]:
        """All pools of the device: of its memory, and for staging where there is one."""
        return (self.memory, self.staging) if self.is_staged else (self.memory,)

    @abstractmethod
    def copy_in(self, source: npt.NDArray[Any], target: Any) -> None:
        """Copy a host array to an array of this device of the same shape and dtype."""

    @abstractmethod
    def copy_out(self, source: Any, target: npt.NDArray[Any]) -> None:
        """Copy an array of this device to a C-contiguous host array of the same shape and dtype."""

    def copy_peer(self, source: Any, target: Any) -> None:
        """Copy an array of another device of the same kind to one of this device.

        If a kind does not override it, such copies go by way of the host.
        """
        raise DeviceError(f"devices of kind {self.place.kind!r} cannot copy between each other")

    def adopt(self, value: Any) -> Any | None:
        """A value that the application fed, as an array of this device without a copy; None if that is impossible.

        Work of the application that still writes into it is waited for, on the device where possible.
        """
        return value if self.is_array(value) else None

    def lend(self, value: Any) -> None:  # noqa: B027  nothing to do where memory is freed by reference count alone
        """An array that `memory` did not make goes to the application, which may drop it with work pending on it."""

    @abstractmethod
    def upload(self, value: npt.NDArray[Any]) -> Any:
        """A new array of this device with the contents of a host array; returns when the copy is complete."""

    def download(self, value: Any) -> npt.NDArray[Any]:
        """A new host array with the contents of an array of this device, which no work is pending on."""
        target = np.empty(value.shape, value.dtype)
        self.copy_out(value, target)
        return target
