"""The conformance suite: right devices pass it, and each planted defect is caught by the requirement meant for it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import LifoQueue
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices import (
    CPU,
    Bucket,
    BufferPool,
    Device,
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


# -- what is wrong with devices: each function gets the right method first --------------------------------------------

Fault = Callable[..., Any]


def broken(base: type[Any], **faults: Fault) -> type[Any]:
    """A class some of whose methods are wrong."""

    def wrong(right: Any, fault: Fault) -> Any:
        return lambda self, *arguments: fault(right, self, *arguments)

    return type("Broken", (base,), {name: wrong(getattr(base, name), fault) for name, fault in faults.items()})


def lanes(**faults: Fault) -> type[CPU]:
    """The CPU with lanes that are wrong."""
    kind = broken(WorkerLane, **faults)
    return broken(CPU, _make_lane=lambda right, self, name: kind(name))


def pool(**faults: Callable[[BufferPool], Fault]) -> type[CPU]:
    """The CPU with a pool that is wrong."""

    def make(right: Fault, self: CPU) -> BufferPool:
        made: BufferPool = right(self)
        for name, fault in faults.items():
            setattr(made, name, fault(made))
        return made

    return broken(CPU, _make_pool=make)


def stream(**faults: Callable[[SimStream], Fault]) -> type[SimDevice]:
    """The simulated device with streams that are wrong."""

    def make(right: Fault, self: SimDevice, name: str) -> SimStream:
        made: SimStream = right(self, name)
        for each, fault in [(each, fault(made)) for each, fault in faults.items()]:
            setattr(made, each, fault)
        return made

    return broken(SimDevice, make_stream=make)


def ignored(_: object) -> Fault:
    return lambda *arguments: None


def kept(owner: Any, value: Any) -> Any:
    owner.__dict__.setdefault("hoard", []).append(value)
    return value


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


def early(right: Fault, lane: Any, work: Fault, argument: Any, passed: Fault, urgent: bool) -> Fence:
    fence: Fence = right(lane, work, argument, lambda _: None, urgent)
    lane.call_soon(lambda: passed(fence))
    return fence


def elsewhere(right: Fault, lane: Any, work: Fault, argument: Any, passed: Fault, urgent: bool) -> Any:
    def tell(fence: Fence) -> None:
        thread = threading.Thread(target=passed, args=(fence,), name="stranger")
        thread.start()
        thread.join()

    return right(lane, work, argument, tell, urgent)


def swallowing(right: Fault, lane: Any, work: Fault, *rest: Any) -> Any:
    def quiet(value: Any) -> None:
        with suppress(BaseException):
            work(value)

    return right(lane, quiet, *rest)


def blocking(right: Fault, lane: Any, work: Fault, *rest: Any) -> Any:
    ended = threading.Event()

    def do(value: Any) -> None:
        try:
            work(value)
        finally:
            ended.set()

    fence = right(lane, do, *rest)
    ended.wait()
    return fence


def abandoning(right: Fault, lane: Any) -> None:
    while not lane._closed and not lane._queue.empty():
        lane._queue.get()
    right(lane)


def reopened(right: Fault, lane: Any, *arguments: Any) -> Any:
    closed, lane._closed = lane._closed, False
    try:
        return right(lane, *arguments)
    finally:
        lane._closed = closed


def generous(pool: BufferPool) -> Fault:
    class Generous(Bucket):
        def take(self) -> Any:
            return self.free[-1] if self.free else self.pool.new(self.spec)

    return lambda spec: pool._buckets.setdefault(spec, Generous(pool, spec))


#: All devices of a kind that keeps them, and threads of one that does not end them.
EVERYONE: list[Device] = []
THREADS: list[tuple[threading.Thread, threading.Event]] = []


def lingering(right: Fault, self: CPU, name: str) -> Any:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name=f"lingering-{name}")
    thread.start()
    THREADS.append((thread, end))
    return right(self, name)


def deaf(right: Fault, self: CPU, *arguments: Any) -> None:
    right(self, *arguments)
    self.memory.budget_bytes = None


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
    def record(made: SimStream) -> Fault:
        right: Fault = made.record
        return lambda: kind(right())

    def wait(made: SimStream) -> Fault:
        right: Fault = made.wait
        return lambda event: right(event.inner)

    return stream(record=record, wait=wait)


def rolled(right: Fault, self: SimDevice, source: Any, target: Any) -> None:
    right(self, source, target)
    if target.size > 1:
        current_stream().launch(
            lambda _, outputs: np.copyto(outputs[0], np.roll(outputs[0], 1)), [], [target], cost_ns=0, name="roll"
        )


def all_but_the_last(right: Fault, self: SimDevice, source: Any, target: Any) -> None:
    def copy(inputs: Any, outputs: Any) -> None:
        if outputs[0].size:
            last = outputs[0].reshape(-1)[-1]
            np.copyto(outputs[0], inputs[0])
            outputs[0].reshape(-1)[-1] = last

    current_stream().launch(copy, [source], [target], cost_ns=0, name="copy")


class _Reckless(StreamPool):
    """Asks nobody whether a buffer is still in use."""

    def take(self, spec: TensorSpec, lane: Any) -> Any:
        free = self.shelf(spec).free
        return free.popleft()[0] if free else self.new(spec)


def reckless(right: Fault, self: Any) -> StreamPool:
    return _Reckless(self.allocate, weakref.WeakMethod(self._all_lanes)())


#: What is wrong, the device, and the requirement that finds it.
BROKEN: list[tuple[str, type[Device], str]] = [
    ("download() gives the memory itself", broken(CPU, download=lambda right, self, value: value), "arrays.download"),
    ("upload() takes the host's array", broken(CPU, upload=lambda right, self, value: value), "arrays.upload"),
    ("lets errors of NumPy through", broken(CPU, allocate=lambda _, self, spec: np.empty(*spec)), "arrays.no_room"),
    ("takes everything for its array", broken(CPU, is_array=lambda *_: True), "arrays.is_array"),
    ("tells before the work has ended", lanes(submit=early), "fences.not_early"),
    (
        "tells twice",
        lanes(
            submit=lambda right, lane, work, argument, passed, urgent: right(
                lane, work, argument, lambda fence: [passed(fence), lane.call_soon(lambda: passed(fence))], urgent
            )
        ),
        "fences.once",
    ),
    ("tells on a thread of its own", lanes(submit=elsewhere), "fences.once"),
    ("loses waiters that come after the end", lanes(call_soon=lambda *_: None), "fences.waiters"),
    ("one lane for all names", broken(CPU, lane=lambda right, self, name: right(self, "main")), "lanes.names"),
    (
        "the newest work first",
        lanes(__init__=lambda right, lane, name: right(lane, name) or setattr(lane, "_queue", _Pile())),
        "lanes.order",
    ),
    ("works before submit() returns", lanes(submit=blocking), "lanes.at_once"),
    ("says that it waits, and does not", lanes(wait=lambda *_: True), "lanes.wait_held"),
    ("takes work when it is closed", lanes(submit=reopened), "lanes.closed"),
    ("nothing is urgent", lanes(submit=lambda right, *given: right(*given[:-1], False)), "fences.urgent"),
    ("keeps errors to itself", lanes(submit=swallowing), "errors.work"),
    ("frees no array", broken(CPU, allocate=lambda right, self, spec: kept(self, right(self, spec))), "release.array"),
    ("counts nothing", pool(adopt=ignored), "memory.counts"),
    ("gives one buffer to many", pool(bucket=generous), "memory.apart"),
    ("its pool knows no budget", pool(make_room=ignored), "memory.budget"),
    ("has no budget, whatever is said", broken(CPU, __init__=deaf), "memory.budget"),
    (
        "stays with its first loop",
        lanes(bind=lambda right, lane, loop: right(lane, loop) if lane._loop is None else None),
        "loops.bind",
    ),
    (
        "keeps what it worked on",
        lanes(submit=lambda right, lane, work, *rest: right(lane, kept(lane, work), *rest)),
        "release.work",
    ),
    ("drops at its close what waits", lanes(close=abandoning), "close.finishes"),
    ("has a thread that does not end", broken(CPU, _make_lane=lingering), "close.threads"),
    (
        "is kept alive",
        broken(CPU, __init__=lambda right, self, *given: right(self, *given) or EVERYONE.append(self)),
        "close.forgotten",
    ),
    ("marks that have always passed", with_event(_Hasty), "fences.not_early"),
    ("leaves the last element out", broken(SimDevice, copy_in=all_but_the_last), "copies.in"),
    ("copies out the next element", broken(SimDevice, copy_out=rolled), "copies.out"),
    ("copies nothing from peers", broken(SimDevice, copy_peer=lambda *_: None), "copies.peer"),
    (
        "adopt() copies",
        broken(
            SimDevice,
            adopt=lambda right, self, value: self.upload(self.download(value)) if self.is_array(value) else None,
        ),
        "copies.adopt",
    ),
    ("streams that do not wait", stream(wait=ignored), "lanes.wait"),
    ("marks that hush failures up", with_event(_Hushed), "errors.on_device"),
    ("gives buffers that are in use", broken(SimDevice, _make_pool=reckless), "memory.in_use"),
]


#: One for each topic.
QUICK = {requirement.partition(".")[0]: what for what, _, requirement in BROKEN}.values()


@pytest.mark.parametrize(
    ("kind", "requirement"),
    [pytest.param(*rest, id=what, marks=[pytest.mark.slow] * (what not in QUICK)) for what, *rest in BROKEN],
)
def test_a_planted_defect_is_caught_by_its_requirement(
    kind: type[Device], requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sim = issubclass(kind, SimDevice)
    monkeypatch.setitem(registry._kinds, "sim" if is_sim else "broken", kind)
    # Marks that never wait are early only as long as the work takes; a busy machine may look milliseconds later.
    options = SimOptions(latency_s=0.2 if requirement == "fences.not_early" else 2e-3) if is_sim else None
    place, fail = ("sim:0", fail_on_device) if is_sim else ("broken:0", None)
    try:
        with pytest.raises(ConformanceError) as caught:
            # On one kind of loop: right devices are checked on both.
            af.run(check_device(place, options=options, patience_s=PATIENCE_S, fail=fail))
    finally:
        EVERYONE.clear()
        while THREADS:
            thread, end = THREADS.pop()
            end.set()
            thread.join()
    error = caught.value
    assert error.requirement == requirement, str(error)
    assert all(str(part) in str(error) for part in (error.place, error.expected, error.actual))
