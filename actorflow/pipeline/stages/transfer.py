"""Items to a device: copies on the lane "inbound", a few items at a time, in order.

On a device with streams the copies are launched on the loop and run later, from pinned memory where the device has
that; an item goes out when the loop has seen its copies end, so its taker need not wait for anything. On any other
device the lane's thread copies.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.actors.budget import Budget
from actorflow.core import clock_ns
from actorflow.devices import Bucket, Device, Fence
from actorflow.devices.stream import StreamDevice, StreamLane
from actorflow.errors import OutOfMemoryError
from actorflow.graph.graph import Graph
from actorflow.pipeline.stages.stage import Build, FollowingActor, Stage, StageActor, Wait, guarded
from actorflow.place import Place
from actorflow.spec import TensorSpec

_LANE = "inbound"


class Transfer(Stage):
    """`Pipeline.to`."""

    kind = "to"

    place: Place
    graph: Graph | None
    in_flight: int

    @property
    def concurrency(self) -> int:
        return self.in_flight

    def build(self, build: Build, state: Any) -> StageActor:
        loop, graph = build.run.loop, None if self.graph is None else self.graph.root
        device = build.resources.device(self, self.place, graph, loop)
        limit_bytes = None if graph is None else graph.budget_of(self.place)
        budget = None if graph is None or limit_bytes is None else graph.engine.resources.common_budget()
        allowance = None
        if graph is not None and limit_bytes is not None and budget is not None and not device.is_host:
            allowance = _Allowance(graph, self.place, budget, limit_bytes, loop)
        return _TransferActor(self, build, state, None if device.is_host else device, allowance)


class _Allowance:
    """Memory that one stage may take of the budget of a graph on a device.

    It is taken from the part of the budget that frames share, so the oldest frame never waits for a loader: see
    `actorflow.actors.budget`. An item is given back when nothing refers to its arrays any more.
    """

    def __init__(
        self, graph: Graph, place: Place, budget: Budget, limit_bytes: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._graph = graph
        self._place = place
        self._budget = budget
        self._limit_bytes = limit_bytes
        self._loop = loop

    def take(self, size_bytes: int, wake: Callable[[], None]) -> bool:
        """Take memory for an item, or return False and call ``wake`` later; raises OutOfMemoryError if it cannot be."""
        place, budget = self._place, self._budget
        variables = sum(variable.spec.size_bytes for variable in self._graph.variables if variable.place == place)
        if size_bytes > self._limit_bytes - variables:
            raise OutOfMemoryError(
                f"an item of {size_bytes} bytes does not fit on {place}: the budget of graph {self._graph.name!r} "
                f"there is {self._limit_bytes} bytes, its variables take {variables}"
            )
        room = self._limit_bytes - variables - budget.reserve(place) - budget.shared[place]
        # The memory that frames need there is not known before one has run: until then, one item.
        is_known = place in budget.capacities
        if size_bytes <= room and (is_known or not budget.shared[place]):
            budget.shared[place] += size_bytes
            return True
        if wake not in budget.waiting:
            budget.waiting.append(wake)
        return False

    def forget(self, wake: Callable[[], None]) -> None:
        """Call that function no more."""
        if wake in self._budget.waiting:
            self._budget.waiting.remove(wake)

    def release(self, size_bytes: int) -> None:
        """An array is not referred to any more. In whatever thread, and at any moment."""
        try:
            self._loop.call_soon_threadsafe(self._released, size_bytes)
        except RuntimeError:  # the loop is closed, so no frame waits
            self._budget.shared[self._place] -= size_bytes

    def _released(self, size_bytes: int) -> None:
        self._budget.shared[self._place] -= size_bytes
        self._budget.retry()


@dataclass(slots=True, eq=False)
class _Copies:
    """An item under way."""

    number: int
    item: Any
    at: Any  # its position
    value: Any = None  # the item, with the device's arrays in place of the host's
    left: int = 0  # copies that have not ended
    error: BaseException | None = None
    size_bytes: int = 0  # of arrays whose copies have not begun
    started_ns: int = field(default_factory=clock_ns)


@dataclass(slots=True, eq=False)
class _Copy:
    """One array under way; its fence, which the lane has until it has passed, keeps the array the copy reads."""

    copies: _Copies
    device: Device
    source: npt.NDArray[Any]
    staged: npt.NDArray[Any] | None = None
    target: Any = None


class _TransferActor(FollowingActor):
    def __init__(
        self, stage: Transfer, build: Build, state: Any, device: Device | None, allowance: _Allowance | None
    ) -> None:
        super().__init__(stage, build, state)
        self._device = device  # None for the host's
        self._allowance = allowance
        self._flight: deque[_Copies] = deque()
        self._staging: dict[TensorSpec, Bucket] = {}  # of the copies so far
        self._number = 0

    def step(self, now: int) -> Wait:
        inbox, out = self.inboxes[0], self.out
        while not self.is_over and (self._give() or self._begin()):
            pass
        if self.is_over:
            return Wait.NOTHING
        if not self._flight and not inbox.items and inbox.end is not None:
            return self.finish(inbox.end.error)
        return Wait.PUT if len(out.items) >= out.capacity else Wait.CALLS if self._flight else Wait.GET

    def _give(self) -> bool:
        flight, out = self._flight, self.out
        if not flight or flight[0].left or len(out.items) >= out.capacity:
            return False
        copies = flight.popleft()
        error, copies.error = copies.error, None  # its traceback refers to the copies
        if error is not None:
            self.finish(self.caught(error, copies.number, copies.item))
            return False
        self.stats.items_out += 1
        out.items.append((copies.value, copies.at))
        out.owner.wake()
        return True

    def _begin(self) -> bool:
        inbox = self.inboxes[0]
        if not inbox.items or len(self._flight) >= self._stage.in_flight:
            return False
        item, at = inbox.items[0]
        copies = _Copies(self._number, item, at)
        try:
            copies.size_bytes = 0 if self._device is None else _host_bytes(item)
            allowance = self._allowance if copies.size_bytes else None
            if allowance is not None and not allowance.take(copies.size_bytes, self.wake):
                return False
        except BaseException as error:  # noqa: BLE001  it becomes the item's; so does an item that can never fit
            copies.error = error
        inbox.items.popleft()
        inbox.source.wake()
        self._number += 1
        self.stats.items_in += 1
        self._flight.append(copies)
        if copies.error is None:
            try:
                copies.value = item if self._device is None else self._moved(item, copies, self._device)
            except BaseException as error:  # noqa: BLE001  it becomes the item's
                copies.error = error
                if self._allowance is not None:  # of copies not begun
                    self._allowance.release(copies.size_bytes)
        return True

    def _moved(self, value: Any, copies: _Copies, device: Device) -> Any:
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return self._copy(np.asarray(value), copies, device)
        if isinstance(value, Mapping):
            return {key: self._moved(part, copies, device) for key, part in value.items()}
        if isinstance(value, tuple | list):
            parts = [self._moved(part, copies, device) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    def _copy(self, source: npt.NDArray[Any], copies: _Copies, device: Device) -> Any:
        copy = _Copy(copies, device, np.asarray(source, order="C"))
        lane, spec = device.lane(_LANE), TensorSpec(source.shape, source.dtype)
        if device.is_staged:
            bucket = self._staging[spec] = device.staging.bucket(spec)
            copy.staged = bucket.take()
            np.copyto(copy.staged, source)
        if not isinstance(device, StreamDevice):
            copy.target = device.memory.bucket(spec).take()
        lane.submit(_launch, copy, self._passed, True)
        copies.left += 1
        copies.size_bytes -= spec.size_bytes
        self.stats.running += 1
        if self._allowance is not None:
            if copy.target is None:  # it could not be allocated
                self._allowance.release(spec.size_bytes)
            else:
                weakref.finalize(copy.target, self._allowance.release, spec.size_bytes).atexit = False
        return copy.target

    @guarded
    def _passed(self, fence: Fence) -> None:
        copy: _Copy = fence.argument
        copies = copy.copies
        copies.left -= 1
        self.stats.running -= 1
        copies.error = copies.error or fence.error
        if copy.staged is not None:
            self._staging[TensorSpec(copy.staged.shape, copy.staged.dtype)].give_back(copy.staged)
        if not copies.left:
            self.stats.called(clock_ns() - copies.started_ns, 1)
            self.wake()

    def halt(self) -> None:
        for copies in self._flight:
            copies.error = None
        self._flight.clear()
        if self._allowance is not None:
            self._allowance.forget(self.wake)

    @property
    def held(self) -> int:
        return super().held + len(self._flight)


def _launch(copy: _Copy) -> None:
    device, source = copy.device, copy.source if copy.staged is None else copy.staged
    if copy.target is None:
        assert isinstance(device, StreamDevice)
        lane = device.lane(_LANE)
        assert isinstance(lane, StreamLane)
        copy.target = device.memory.take(TensorSpec(source.shape, source.dtype), lane)
    device.copy_in(source, copy.target)


def _host_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray | np.generic):
        return 0 if value.dtype.hasobject else value.nbytes
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return sum(map(_host_bytes, parts))
