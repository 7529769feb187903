"""Mistakes of this package itself end the run of a pipeline, as what user code raises does."""

import asyncio
import sys
import threading
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices import WorkerLane
from actorflow.pipeline import Pipeline, source
from actorflow.pipeline.calls.call import CallActor, CallTasks, Job
from actorflow.pipeline.calls.map import ChunkActor
from actorflow.pipeline.calls.order import InOrder, Unordered
from actorflow.pipeline.processes.workers import ProcessPool, WorkerProcess
from actorflow.pipeline.stages.branch import _BranchActor
from actorflow.pipeline.stages.join import JoinActor
from actorflow.pipeline.stages.passing import PassActor
from actorflow.pipeline.stages.source import _SourceOrder
from actorflow.pipeline.stats import StageStats
from tests.pipeline.failing import (
    AT,
    COUNT,
    leave_when_asked,
)
from tests.pipeline.user_code import (
    NUMBERS,
    PATIENCE_S,
    asynchronous,
    nothing,
    take,
)
from tests.support.effort import FULL
from tests.support.waiting import HELD_S, held_limits

pytestmark = pytest.mark.usefixtures("calls_count_as_short")


# -- what goes wrong in this package ----------------------------------------------------------------------------


def everything() -> Pipeline:
    """Nearly all stages, with calls on the loop, in threads and in tasks."""
    numbers = source(range(COUNT)).map(asynchronous(nothing), name="task").shuffle(2)
    ways = numbers.branch(
        lambda x: x % 2,
        {0: lambda p: p.map(nothing, executor="thread", name="thread"), 1: lambda p: p.filter(lambda x: True)},
    )
    tasks = ways.map(asynchronous(nothing), concurrency=3, ordered=False, timeout=3600, name="tasks")
    batches = tasks.flat_map(lambda x: [x]).batch(2, collate=list).unbatch().prefetch(2)
    return batches.zip(source(lambda epoch: iter(range(COUNT)), name="other")).map(lambda pair: pair[0]).take(COUNT)


class Planted(BaseException):
    """A mistake in this package."""


MISTAKES: list[tuple[type, str]] = [
    (InOrder, "emit"),
    (InOrder, "accept"),
    (InOrder, "gained"),
    (InOrder, "is_due"),
    (Unordered, "emit"),
    (Unordered, "gained"),
    (_SourceOrder, "_position"),
    (CallActor, "_begin"),
    (CallActor, "_concluded"),
    (CallActor, "_leave"),
    (CallActor, "_timed"),
    (JoinActor, "taken"),
    (PassActor, "_end"),
    (StageStats, "called"),
    (StageStats, "holds"),
    (CallTasks, "_goes_on"),
    (CallTasks, "_job"),
    (CallTasks, "submit"),
    (_BranchActor, "_port"),
]


@pytest.mark.parametrize("nth", [1, 2, 5] if FULL else [1, 3])
@pytest.mark.parametrize(("owner", "name"), MISTAKES, ids=lambda what: what if isinstance(what, str) else what.__name__)
async def test_mistakes_of_this_package_end_the_run(
    owner: type, name: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ends_with_a_mistake(everything(), owner, name, nth, monkeypatch)


async def ends_with_a_mistake(
    loader: Pipeline,
    owner: type,
    name: str,
    nth: int,
    monkeypatch: pytest.MonkeyPatch,
    when: Any = None,
    count: int = COUNT,
) -> None:
    """Checks a run in which the n-th call of a method raises, and the next one."""
    method, calls = getattr(owner, name), 0

    def fail(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += when is None or when(self)
        if calls == nth:
            calls += 1
            raise Planted
        return method(self, *arguments, **named)

    items: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(af.StageError) as raised:
            await asyncio.wait_for(take(loader, items, True), PATIENCE_S)
    assert raised.value.stage in [stage.name for stage in loader.stages]
    assert isinstance(raised.value.__cause__, Planted)
    assert calls > nth
    async with loader:
        items += [x async for x in loader]
    assert sorted(items) == NUMBERS[:count]


def falter(x: int) -> int:
    if not FAILED:
        FAILED.append(x)
        raise OSError("not yet")
    return x


FAILED: list[int] = []


async def test_mistakes_when_a_call_is_repeated_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    FAILED.clear()
    loader = source(range(COUNT)).map(falter, retries=1, backoff=1e-3, executor="loop")
    await ends_with_a_mistake(
        loader, CallActor, "wake", 1, monkeypatch, lambda actor: any(slot.attempt for slot in actor.waiting)
    )


async def test_mistakes_when_a_call_takes_too_long_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release = threading.Event(), threading.Event()

    def block(x: int) -> int:
        if x == AT:
            entered.set()
            assert release.wait(60)
        return x

    loader = source(range(COUNT)).map(block, executor="thread", timeout=HELD_S)
    wake = WorkerLane.add_thread

    def fail(lane: WorkerLane) -> None:
        release.set()
        wake(lane)
        raise Planted

    items: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(WorkerLane, "add_thread", fail)
        with held_limits() as end_limits:
            taking = asyncio.ensure_future(take(loader, items, True))
            await asyncio.to_thread(entered.wait)
            end_limits()
            with pytest.raises(af.StageError, match=r"stage 'block' .* failed with Planted"):
                await asyncio.wait_for(taking, PATIENCE_S)
    assert items == NUMBERS[:AT]


@pytest.mark.parametrize("count", [1, COUNT])  # what is lost with one item, others may end
@pytest.mark.parametrize(
    ("owner", "name", "nth"),
    [
        (ChunkActor, "_timed", 1),
        (WorkerProcess, "_answered", 1),
        (WorkerProcess, "_begin_message", 2),
        (ProcessPool, "_assign", 1),
    ],
)
def test_mistakes_around_processes_end_the_run(
    owner: type, name: str, nth: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        loader = source(range(count)).map(abs, executor="process")
        await ends_with_a_mistake(loader, owner, name, nth, monkeypatch, count=count)

    af.run(main())


async def test_mistakes_when_a_process_is_lost_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(worker: WorkerProcess) -> int:
        raise Planted

    loader = source(range(COUNT)).map(leave_when_asked, executor="process")
    with monkeypatch.context() as patch:
        patch.setattr(WorkerProcess, "exit_code", property(fail))
        with pytest.raises(af.StageError, match=r"stage 'leave_when_asked' .* failed with Planted") as raised:
            await asyncio.wait_for(take(loader, [], True), PATIENCE_S)
    assert raised.value.number == AT


async def test_a_process_that_cannot_be_replaced_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assign = ProcessPool._assign

    def fail(processes: ProcessPool, request: Any) -> None:
        if sys._getframe(1).f_code.co_name == "_assign_again":
            raise Planted
        assign(processes, request)

    loader = source([AT, *NUMBERS]).map(leave_when_asked, executor="process", on_error="skip")
    with monkeypatch.context() as patch:
        patch.setattr(ProcessPool, "_assign", fail)
        with pytest.raises(af.StageError, match=r"stage 'leave_when_asked' .* failed with Planted"):
            await asyncio.wait_for(take(loader, [], True), PATIENCE_S)


async def test_mistakes_when_stages_stop_are_told_and_stop_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    halt, halted = CallActor.halt, 0

    def fail(actor: CallActor) -> None:
        nonlocal halted
        halted += 1
        halt(actor)
        raise Planted

    loader = everything()
    with monkeypatch.context() as patch:
        patch.setattr(CallActor, "halt", fail)
        async with loader:
            items = aiter(loader)
            await anext(items)
            del items
    assert halted == len(told) > 5
    assert all(isinstance(context["exception"], Planted) for context in told)


async def test_mistakes_reach_who_asks_for_the_place_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(loader: Pipeline, position: Any) -> Any:
        raise Planted

    async with source(range(COUNT)) as loader:
        items = aiter(loader)
        await anext(items)
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "_frozen", fail)
            with pytest.raises(Planted):
                await asyncio.wait_for(asyncio.to_thread(loader.state_dict), PATIENCE_S)
        assert (await asyncio.to_thread(loader.state_dict))["position"] == 1


async def test_mistakes_when_an_answer_has_come_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    is_expired = Job.__dict__["is_expired"]

    def fail(job: Job, value: bool) -> None:
        if sys._getframe(1).f_code.co_name == "_answered":
            raise Planted
        is_expired.__set__(job, value)

    loader = source(range(COUNT)).map(abs, executor="process", timeout=3600)
    with monkeypatch.context() as patch:
        patch.setattr(Job, "is_expired", property(is_expired.__get__, fail))
        with pytest.raises(af.StageError, match=r"stage 'abs' .* failed with Planted"):
            await asyncio.wait_for(take(loader, [], True), PATIENCE_S)


async def test_mistakes_around_copies_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = source(range(COUNT)).map(np.array, name="arrays").to("sim:0")
    loader = loader.map(lambda x: int(af.to_numpy(x)), name="numbers")
    await ends_with_a_mistake(loader, StageStats, "called", 1, monkeypatch, lambda stats: stats.kind == "to")
