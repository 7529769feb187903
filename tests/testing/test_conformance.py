"""The conformance suite: right devices pass it, and each planted defect is caught by the requirement meant for it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import LifoQueue
from typing import Any, ClassVar

import numpy as np
import pytest

import actorflow as af
from actorflow.devices import (
    CPU,
    Bucket,
    BufferPool,
    Device,
    DeviceOptions,
    Fence,
    SimDevice,
    SimOptions,
    WorkerLane,
    registry,
)
from actorflow.devices.sim import SimEvent, SimStream, current_stream
from actorflow.devices.stream import Event, StreamPool
from actorflow.errors import DeviceError
from actorflow.spec import TensorSpec
from actorflow.testing import ConformanceError, check_device
from tests.support.effort import slow

#: Enough for what does happen; what a broken device never does is waited for so long.
PATIENCE_S = 2.0


def fail_on_device(device: Device) -> None:
    """Launch work that fails later."""

    def fail(inputs: Any, outputs: Any) -> None:
        raise ValueError("on the device")

    current_stream().launch(fail, [], [], cost_ns=0, name="failing work")


class TestRightDevices:
    async def test_the_cpu(self) -> None:
        report = await check_device("cpu")
        assert set(report.skipped) == {"copies.staging", "errors.on_device"}

    @pytest.mark.parametrize(
        "options",
        [
            SimOptions(),
            *slow(
                [
                    SimOptions(latency_s=1e-3, kernel_s=1e-4, bandwidth=4e9, memory_bandwidth=2e10),
                    SimOptions(latency_s=1e-3, races=False),
                ]
            ),
        ],
        ids=["without costs", "with costs", "without the race detector"],
    )
    async def test_a_simulated_device(self, options: SimOptions) -> None:
        report = await check_device("sim:0", options=options, fail=fail_on_device)
        unstaged, *blocking = sorted(report.skipped)
        assert unstaged == "copies.staging"
        assert blocking == ["errors.told", "fences.urgent", "lanes.at_once", "lanes.independent", "lanes.wait_held"]
        assert all("launched on the loop" in report.skipped[name] for name in blocking)

    async def test_a_staged_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SimDevice, "is_staged", True)
        report = await check_device("sim:1")
        assert "copies.staging" in report.passed

    async def test_a_device_without_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(registry._kinds, "plain", type("Plain", (CPU,), {"libraries": ()}))
        report = await check_device("plain:0")
        assert "computed on the CPU" in report.skipped["graphs.kernels"]

    async def test_devices_that_cannot_copy_between_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SimDevice, "copy_peer", Device.copy_peer)
        report = await check_device("sim:0")
        assert report.skipped["copies.peer"] == "copy_peer() is not overridden"
        assert "graphs.peers" in report.passed

    async def test_the_report_names_every_requirement(self) -> None:
        report = await check_device("cpu")
        lines = str(report).splitlines()
        assert lines[0] == f"cpu (CPU): {len(report.passed)} of {len(report.checks)} requirements hold"
        assert len(lines) == 1 + len(report.checks)
        names = [check.name for check in report.checks]
        assert len(set(names)) == len(names)
        assert {name.partition(".")[0] for name in names} == {
            *("arrays", "close", "copies", "errors", "fences", "graphs", "lanes", "loops", "memory", "release")
        }
        assert "  copies.staging        not checked: is_staged is False" in lines


# -- lanes of worker threads that are wrong -------------------------------------------------------------------------

Work = Callable[[Any], None]
Passed = Callable[[Fence], None]


class Backwards(WorkerLane):
    """The newest work first."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._queue = _Pile()  # type: ignore[assignment]


class _Pile(LifoQueue[Any]):
    """Puts the mark that ends the queue at its end."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if item is None:
            with self.mutex:
                self.queue.insert(0, None)
                self.unfinished_tasks += 1
                self.not_empty.notify()
        else:
            super().put(item, block, timeout)


class Early(WorkerLane):
    """Tells the loop before the work has ended."""

    def submit(self, work: Work, argument: Any, passed: Passed, urgent: bool) -> Fence:
        fence = super().submit(work, argument, lambda _: None, urgent)
        self.call_soon(lambda: passed(fence))
        return fence


class Twice(WorkerLane):
    """Tells the loop twice."""

    def submit(self, work: Work, argument: Any, passed: Passed, urgent: bool) -> Fence:
        def both(fence: Fence) -> None:
            passed(fence)
            self.call_soon(lambda: passed(fence))

        return super().submit(work, argument, both, urgent)


class Elsewhere(WorkerLane):
    """Tells of ends on a thread of its own."""

    def submit(self, work: Work, argument: Any, passed: Passed, urgent: bool) -> Fence:
        def tell(fence: Fence) -> None:
            thread = threading.Thread(target=passed, args=(fence,), name="stranger")
            thread.start()
            thread.join()

        return super().submit(work, argument, tell, urgent)


class Forgetful(WorkerLane):
    """Loses waiters that come after the end."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        pass


class Swallowing(WorkerLane):
    """Keeps errors to itself."""

    def submit(self, work: Work, argument: Any, passed: Passed, urgent: bool) -> Fence:
        def quiet(value: Any) -> None:
            with suppress(BaseException):
                work(value)

        return super().submit(quiet, argument, passed, urgent)


class Lying(WorkerLane):
    """Says that it waits, and does not."""

    def wait(self, fence: Fence) -> bool:
        return True


class Blocking(WorkerLane):
    """Does the work before submit() returns."""

    def submit(self, work: Work, argument: Any, passed: Passed, urgent: bool) -> Fence:
        ended = threading.Event()

        def do(value: Any) -> None:
            try:
                work(value)
            finally:
                ended.set()

        fence = super().submit(do, argument, passed, urgent)
        ended.wait()
        return fence


class Lazy(WorkerLane):
    """Nothing is urgent, and nobody's waiting makes it so."""

    def submit(self, work: Work, argument: Any, passed: Passed, urgent: bool) -> Fence:
        return super().submit(work, argument, passed, False)


class Abandoning(WorkerLane):
    """Drops at its close what waits in the queue."""

    def close(self) -> None:
        while not self._closed and not self._queue.empty():
            self._queue.get()
        super().close()


class Hoarding(WorkerLane):
    """Keeps what it worked on last."""

    def submit(self, work: Work, argument: Any, passed: Passed, urgent: bool) -> Fence:
        self.hoard = [*getattr(self, "hoard", []), work]
        return super().submit(work, argument, passed, urgent)


class Faithful(WorkerLane):
    """Stays with its first loop."""

    def bind(self, loop: Any) -> None:
        if self._loop is None:
            super().bind(loop)


class Open(WorkerLane):
    """Takes work when it is closed, and never does it."""

    def submit(self, work: Work, argument: Any, passed: Passed, urgent: bool) -> Fence:
        closed, self._closed = self._closed, False
        try:
            return super().submit(work, argument, passed, urgent)
        finally:
            self._closed = closed


def with_lane(kind: type[WorkerLane]) -> type[CPU]:
    return type(kind.__name__, (CPU,), {"_make_lane": lambda self, name: kind(name)})


# -- devices with worker threads that are wrong ---------------------------------------------------------------------


class SharedLane(CPU):
    """Has one lane for all names."""

    def lane(self, name: str) -> Any:
        return super().lane("main")


class Showing(CPU):
    """download() gives the memory itself."""

    def download(self, value: Any) -> Any:
        return value


class Keeping(CPU):
    """upload() takes the host's array for its own."""

    def upload(self, value: Any) -> Any:
        return value


class Crude(CPU):
    """Lets the errors of NumPy through."""

    def allocate(self, spec: TensorSpec) -> Any:
        return np.empty(spec.shape, spec.dtype)


class Credulous(CPU):
    """Takes everything for its array."""

    def is_array(self, value: Any) -> bool:
        return True


class Leaking(CPU):
    """Never frees an array."""

    kept: list[Any]

    def allocate(self, spec: TensorSpec) -> Any:
        self.kept = [*getattr(self, "kept", []), super().allocate(spec)]
        return self.kept[-1]


class _Generous(Bucket):
    def take(self) -> Any:
        return self.free[-1] if self.free else self.pool.new(self.spec)


class Sharing(CPU):
    """Its pool gives one buffer to many."""

    def _make_pool(self) -> BufferPool:
        pool = BufferPool(self.allocate)
        buckets = pool._buckets
        pool.bucket = lambda spec: buckets.setdefault(spec, _Generous(pool, spec))  # type: ignore[method-assign]
        return pool


class Uncounted(CPU):
    """Its pool counts nothing."""

    def _make_pool(self) -> BufferPool:
        pool = super()._make_pool()
        pool.adopt = lambda buffer: None  # type: ignore[method-assign]
        return pool


class Spending(CPU):
    """Its pool knows no budget."""

    def _make_pool(self) -> BufferPool:
        pool = super()._make_pool()
        pool.make_room = lambda size_bytes: None  # type: ignore[method-assign]
        return pool


class Ageless(CPU):
    """Is kept alive by a list of all devices."""

    everyone: ClassVar[list[Any]] = []

    def __init__(self, place: af.Place, options: DeviceOptions | None = None) -> None:
        super().__init__(place, options)
        self.everyone.append(self)


class Lingering(CPU):
    """Has a thread that `join` does not end, but `reap` does."""

    threads: ClassVar[list[tuple[threading.Thread, threading.Event]]] = []

    def _make_lane(self, name: str) -> Any:
        end = threading.Event()
        thread = threading.Thread(target=end.wait, name=f"lingering-{name}")
        thread.start()
        self.threads.append((thread, end))
        return super()._make_lane(name)

    @classmethod
    def reap(cls) -> None:
        for thread, end in cls.threads:
            end.set()
            thread.join()
        cls.threads.clear()


class Deaf(CPU):
    """Has no budget, whatever its options say."""

    def __init__(self, place: af.Place, options: DeviceOptions | None = None) -> None:
        super().__init__(place, options)
        self.memory.budget_bytes = None


# -- devices with streams that are wrong ----------------------------------------------------------------------------


class Careless(SimDevice):
    """A stream that does not wait for events."""

    def make_stream(self, name: str) -> SimStream:
        stream = super().make_stream(name)
        stream.wait = lambda event: None  # type: ignore[method-assign]
        return stream


class _Hasty(Event):
    """A mark that has always passed."""

    def __init__(self, inner: SimEvent) -> None:
        self.inner = inner

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.inner.synchronize()

    def elapsed_ns(self, before: Event | None) -> int:
        return 0


class _Hushed(_Hasty):
    """A mark that passes where work has failed."""

    def query(self) -> bool:
        try:
            return self.inner.query()
        except DeviceError:
            return True


def with_event(kind: type[_Hasty]) -> type[SimDevice]:
    class Marked(SimDevice):
        def make_stream(self, name: str) -> SimStream:
            stream = super().make_stream(name)
            record, wait = stream.record, stream.wait
            stream.record = lambda: kind(record())  # type: ignore[assignment, method-assign]
            stream.wait = lambda event: wait(event.inner)  # type: ignore[method-assign, attr-defined]
            return stream

    return Marked


class WrongPart(SimDevice):
    """Copies out what is one element further on."""

    def copy_out(self, source: Any, target: Any) -> None:
        super().copy_out(source, target)
        if target.size > 1:
            current_stream().launch(
                lambda _, outputs: np.copyto(outputs[0], np.roll(outputs[0], 1)), [], [target], cost_ns=0, name="roll"
            )


class HalfIn(SimDevice):
    """Leaves the last element out."""

    def copy_in(self, source: Any, target: Any) -> None:
        def copy(inputs: Any, outputs: Any) -> None:
            if outputs[0].size:
                kept = outputs[0].reshape(-1)[-1]
                np.copyto(outputs[0], inputs[0])
                outputs[0].reshape(-1)[-1] = kept

        current_stream().launch(copy, [source], [target], cost_ns=0, name="copy")


class NoPeer(SimDevice):
    """Copies nothing from its peers."""

    def copy_peer(self, source: Any, target: Any) -> None:
        pass


class Copying(SimDevice):
    """adopt() copies."""

    def adopt(self, value: Any) -> Any:
        return self.upload(self.download(value)) if self.is_array(value) else None


class _Reckless(StreamPool):
    def take(self, spec: TensorSpec, lane: Any) -> Any:
        free = self.shelf(spec).free
        return free.popleft()[0] if free else self.new(spec)


class Reckless(SimDevice):
    """Its pool asks nobody whether a buffer is still in use."""

    def _make_pool(self) -> StreamPool:
        return _Reckless(self.allocate, weakref.WeakMethod(self._all_lanes)())


BROKEN: list[tuple[type[Device], str]] = [
    (Showing, "arrays.download"),
    (Keeping, "arrays.upload"),
    (Crude, "arrays.no_room"),
    (Credulous, "arrays.is_array"),
    (with_lane(Early), "fences.not_early"),
    (with_lane(Twice), "fences.once"),
    (with_lane(Elsewhere), "fences.once"),
    (with_lane(Forgetful), "fences.waiters"),
    (SharedLane, "lanes.names"),
    (with_lane(Backwards), "lanes.order"),
    (with_lane(Blocking), "lanes.at_once"),
    (with_lane(Lying), "lanes.wait_held"),
    (with_lane(Open), "lanes.closed"),
    (with_lane(Lazy), "fences.urgent"),
    (with_lane(Swallowing), "errors.work"),
    (Leaking, "release.array"),
    (Uncounted, "memory.counts"),
    (Sharing, "memory.apart"),
    (Spending, "memory.budget"),
    (Deaf, "memory.budget"),
    (with_lane(Faithful), "loops.bind"),
    (with_lane(Hoarding), "release.work"),
    (with_lane(Abandoning), "close.finishes"),
    (Lingering, "close.threads"),
    (Ageless, "close.forgotten"),
    (with_event(_Hasty), "fences.not_early"),
    (HalfIn, "copies.in"),
    (WrongPart, "copies.out"),
    (NoPeer, "copies.peer"),
    (Copying, "copies.adopt"),
    (Careless, "lanes.wait"),
    (with_event(_Hushed), "errors.on_device"),
    (Reckless, "memory.in_use"),
]


class TestBrokenDevices:
    @pytest.mark.parametrize(
        ("kind", "requirement"), [pytest.param(*entry, id=f"{entry[0].__name__}-{entry[1]}") for entry in BROKEN]
    )
    def test_a_planted_defect_is_caught_by_its_requirement(
        self, kind: type[Device], requirement: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        is_sim = issubclass(kind, SimDevice)
        monkeypatch.setitem(registry._kinds, "sim" if is_sim else "broken", kind)
        # Marks that never wait are early only as long as the work takes; a busy machine may look milliseconds later.
        options = SimOptions(latency_s=0.2 if requirement == "fences.not_early" else 2e-3) if is_sim else None
        try:
            with pytest.raises(ConformanceError) as caught:
                af.run(  # on one kind of loop: right devices are checked on both
                    check_device(
                        "sim:0" if is_sim else "broken:0",
                        options=options,
                        patience_s=PATIENCE_S,
                        fail=fail_on_device if is_sim else None,
                    )
                )
        finally:
            Lingering.reap()
            Ageless.everyone.clear()
        assert caught.value.requirement == requirement, str(caught.value)
        assert str(caught.value.place) in str(caught.value)
        assert caught.value.expected in str(caught.value)
        assert caught.value.actual in str(caught.value)
