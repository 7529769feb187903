"""Short ops that fire as one: which ones, and that everything is told of each as if it had fired by itself."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.actors.op import FOREVER_NS, OpActor
from actorflow.actors.tape import TapeActor
from actorflow.loop import at_once
from actorflow.runtime import tapes
from actorflow.testing import inject
from actorflow.trace.counters import NodeState
from tests.support.tapes import LIMITS

VALUE = af.TensorSpec.of((2,), "float64")
ONES = np.ones(2)


@pytest.fixture(autouse=True)
def as_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "LIMITS", tapes.Limits(tape_ns=1 << 60))


@pytest.fixture
def all_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "LIMITS", LIMITS["all"])


def chain_of(functions: list[Callable[..., Any]], name: str = "tape") -> tuple[af.Graph, af.Blob]:
    graph = af.Graph(name)
    x = y = graph.blob("x", VALUE.shape, VALUE.dtype)
    for index, function in enumerate(functions):
        y = graph.function(f"f{index}", function, VALUE)(y)
    return graph, x


def fired(graph: af.Graph) -> list[OpActor]:
    """What fires in the graph's newest program."""
    return [*graph.engine._programs.values()][-1].ops


# -- which ones --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("calls_count_as_short")
async def test_measured_ops_become_a_tape() -> None:
    graph, x = chain_of([lambda x: x + 1] * 5)
    async with graph:
        for _ in range(tapes.LIMITS.frames):
            await graph.run({x: ONES})
        assert len(fired(graph)) == 5
        result = await graph.run({x: ONES})
        assert len(fired(graph)) == 1
        np.testing.assert_array_equal(result["f4/out"], ONES + 5)


async def test_long_kernels_that_all_else_waits_for_become_a_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "LIMITS", LIMITS["chains"])
    graph = af.Graph("chain", fuse=False)
    x = graph.blob("x", VALUE.shape, VALUE.dtype)
    y = af.ops.negative(af.ops.square(x, name="a"), name="b")
    left, right = af.ops.square(y, name="left"), af.ops.absolute(y, name="right")
    y = graph.function("f", np.sqrt, VALUE)(af.ops.sqrt(af.ops.add(left, right, name="c"), name="d"))
    async with graph:
        for _ in range(2):
            result = await graph.run({x: 2 * ONES})
        assert [actor.what for actor in fired(graph)] == ["a to b", "left", "right", "c to d", "f"]
    np.testing.assert_allclose(result[y], np.full(2, 20**0.25))


@pytest.mark.parametrize("options", [{"sequential": True}, {"memory_budget": 1 << 20}, {"dry_run": True}])
@pytest.mark.usefixtures("all_as_one")
async def test_each_op_by_itself_where_that_is_wanted(options: dict[str, Any]) -> None:
    graph = af.Graph("apart", **options)
    x = graph.blob("x", VALUE.shape, VALUE.dtype)
    af.ops.relu(graph.function("f", np.negative, VALUE)(x))
    async with graph:
        for _ in range(3):
            await graph.run({x: ONES})
        assert not any(isinstance(actor, TapeActor) for actor in fired(graph))


@st.composite
def _programs(draw: st.DrawFn) -> tuple[list[Any], list[set[int]]]:
    """Ops, and those that each reads from."""
    lanes = [_Lane(), _Lane()]
    reads: list[set[int]] = []
    ops: list[Any] = []
    for index in range(draw(st.integers(0, 14))):
        reads.append(draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set())
        cost_ns = draw(st.sampled_from((10, 100, 400, 1 << 40)))
        ops.append(_Op(index, cost_ns, draw(st.sampled_from(lanes))))
        for each in reads[-1]:
            ops[each].followers += (ops[index],)
    return ops, reads


class _Lane:
    pass


class _Use:
    def __init__(self, follower: Any) -> None:
        self.followers = (follower,)


class _Op:
    attempts = turnstile = None
    updates = ()
    inline_ns = 100

    def __init__(self, index: int, cost_ns: int, lane: Any) -> None:
        self.index, self.cost_ns, self.lane = index, cost_ns, lane
        self.followers: tuple[_Op, ...] = ()


@given(
    program=_programs(),
    tape_ns=st.sampled_from((150, 250, 1 << 60)),
    chain_ns=st.sampled_from((0, 1_000, 1 << 60)),
    turns=st.sets(st.integers(0, 13), max_size=3),
)
def test_units_wait_for_nothing_new(
    program: tuple[list[Any], list[set[int]]], tape_ns: int, chain_ns: int, turns: set[int]
) -> None:
    ops, reads = program
    uses: list[Any] = [_Use(ops[index]) for index in turns if index < len(ops)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tapes, "LIMITS", tapes.Limits(tape_ns=tape_ns, chain_ns=chain_ns))
        units = at_once(tapes.find_tapes(ops, [], uses))
    assert sorted(op.index for unit in units for op in unit) == [op.index for op in ops]
    place = {op.index: position for position, unit in enumerate(units) for op in unit}
    slow: list[frozenset[int]] = []  # what takes time in front of each op
    for op, sources in zip(ops, reads, strict=True):
        before = set().union(*[slow[i] | ({i} if ops[i].cost_ns > 100 else set()) for i in sources])
        slow.append(frozenset(before | ({-1 - op.index} if op.index in turns else set())))
        assert all(place[i] <= place[op.index] for i in sources), "each unit behind those that it reads from"
    ancestors: list[set[int]] = []
    for sources in reads:
        ancestors.append(sources.union(*[ancestors[i] for i in sources]))
    for unit in units:
        members, last = {op.index for op in unit}, unit[-1].index
        assert len({slow[op.index] - members for op in unit}) == 1, "all wait for the same"
        if len(unit) > 1 and unit[0].cost_ns > 100:
            assert sum(op.cost_ns for op in unit) <= chain_ns
            assert len({op.lane for op in unit}) == 1
            assert all(one.index in ancestors[other.index] for one, other in pairwise(unit))
            others = [i for i, before in enumerate(ancestors) if i not in members and before & members]
            assert all(last in ancestors[i] for i in others), "nobody waits for the end but those who would"
        elif len(unit) > 1:
            assert all(op.cost_ns <= 100 for op in unit)
            assert sum(op.cost_ns for op in unit) <= tape_ns
            assert len({op.lane for op in unit}) == 1 or not slow[unit[0].index]
            position = {op.index: i for i, op in enumerate(unit)}
            assert all(position.get(i, -1) < at for index, at in position.items() for i in reads[index])


def test_pieces_of_two_lanes_do_not_wait_for_each_other() -> None:
    """``a`` and ``c`` are no tape, although they wait for the same: between them is ``b``, on another lane."""
    lane, other = _Lane(), _Lane()
    ops = [
        _Op(index, cost_ns, on) for index, (cost_ns, on) in enumerate([(500, other), (1, lane), (1, other), (1, lane)])
    ]
    slow, a, b, c = ops
    slow.followers, a.followers, b.followers = (a,), (b, c), (c,)
    units: Any = at_once(tapes.find_tapes(ops, [], []))  # type: ignore[arg-type]
    assert [[op.index for op in unit] for unit in units] == [[0], [1], [2], [3]]


@pytest.mark.usefixtures("all_as_one")
async def test_no_op_waits_for_what_another_one_waits_for() -> None:
    """The async function ends only when ``free`` has been called, which is short, and followed by what awaits it."""
    graph = af.Graph("free")
    x = graph.blob("x", VALUE.shape, VALUE.dtype)
    called = asyncio.Event()

    async def wait(x: Any) -> Any:
        await called.wait()
        return x

    def free(x: Any) -> Any:
        loop.call_soon_threadsafe(called.set)
        return x

    loop = asyncio.get_running_loop()
    awaited = graph.function("wait", wait, VALUE)(x)
    freed = graph.function("free", free, VALUE)(x)
    af.ops.relu(graph.function("join", np.add, VALUE)(awaited, freed))
    async with graph:
        for _ in range(3):
            called.clear()
            await asyncio.wait_for(graph.run({x: ONES}), 20)
        assert len(fired(graph)) == 3


# -- what is told of each ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("all_as_one")
@pytest.mark.parametrize("position", range(5))
async def test_a_planted_fault_names_its_op(position: int) -> None:
    graph, x = chain_of([lambda x: x + 1] * 5)
    for _ in range(2):
        await graph.run({x: ONES})
    with inject(graph, f"f{position}", error=OSError("planted"), frames={3}):
        await graph.run({x: ONES})
        assert len(fired(graph)) == 1
        with pytest.raises(af.OpError, match=f"f{position}") as caught:
            await graph.run({x: ONES})
        assert caught.value.op is graph[f"f{position}"]
        assert isinstance(caught.value.__cause__, OSError)
        assert "test_tapes.py" in str(caught.value)
    profile = graph.engine.profile
    assert [profile[graph[f"f{i}"].id].failed for i in range(5)] == [int(i == position) for i in range(5)]
    assert [profile[graph[f"f{i}"].id].calls for i in range(5)] == [3 + (i < position) for i in range(5)]
    calls = graph.engine.trace.since(0)
    assert Counter(calls.frame.tolist()) == {0: 5, 1: 5, 2: 5, 3: position + 1}
    assert [*calls.errors] == [15 + position]
    await graph.run({x: ONES})
    await graph.aclose()


@pytest.mark.usefixtures("all_as_one")
async def test_a_failed_call_is_replayed_alone() -> None:
    seen: list[float] = []

    def fail(x: Any) -> Any:
        seen.append(float(x[0]))
        raise ValueError("always")

    graph, x = chain_of([lambda x: x + 1, lambda x: x + 1, fail, lambda x: x + 1])
    async with graph:
        with pytest.raises(af.OpError) as caught:
            await graph.run({x: ONES})
        with pytest.raises(ValueError, match="always"):
            caught.value.replay()
    assert seen == [3.0, 3.0]


@pytest.mark.usefixtures("all_as_one")
@pytest.mark.parametrize("on_lane", [False, True])
async def test_a_cancelled_frame_stops_behind_the_op_that_runs(on_lane: bool) -> None:
    called: list[int] = []
    cancels = False

    def cancel() -> None:
        if not on_lane:
            graph.cancel()
            return
        done = threading.Event()
        loop.call_soon_threadsafe(lambda: (graph.cancel(), done.set()))
        assert done.wait(20)

    def count(index: int) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            called.append(index)
            if index == 2 and cancels:
                cancel()
            return x

        return call

    graph, x = chain_of([count(i) for i in range(5)])
    loop = asyncio.get_running_loop()
    async with graph:
        for _ in range(4):
            await graph.run({x: ONES})
        (tape,) = fired(graph)
        tape.cost_ns = FOREVER_NS if on_lane else 0
        called.clear()
        cancels = True
        with pytest.raises(af.RunCancelledError):
            await graph.run({x: ONES})
        cancels = False
        await graph.run({x: ONES})
        assert called == [0, 1, 2, 0, 1, 2, 3, 4]
        assert not tape._stamps


@pytest.mark.usefixtures("all_as_one")
async def test_each_function_has_a_context_of_its_own() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    seen: list[str] = []

    def look(x: Any) -> Any:
        seen.append(variable.get())
        variable.set("changed")
        return x

    graph, x = chain_of([look] * 3)
    async with graph:
        variable.set("the caller's")
        await graph.run({x: ONES})
    assert seen == ["the caller's"] * 3


@pytest.mark.usefixtures("all_as_one")
@pytest.mark.parametrize("capacity", [4, 1024])
async def test_the_trace_has_each_call_in_order(capacity: int) -> None:
    graph = af.Graph("traced", trace_capacity=capacity)
    x = graph.blob("x", VALUE.shape, VALUE.dtype)
    y = graph.function("first", np.negative, VALUE)(x)
    y = af.ops.exp(af.ops.relu(y))  # computed in one pass
    graph.function("last", np.negative, VALUE)(y)
    async with graph:
        for _ in range(3):
            await graph.run({x: ONES})
        assert len(fired(graph)) == 1
        calls = graph.engine.trace.since(0)
        order = [op.id for op in graph.ops] * 3
        assert calls.node.tolist() == order[-capacity:]
        assert calls.lost == max(0, 12 - capacity)
        assert graph.engine.trace.total == 12
        assert (np.diff(calls.end_ns) >= 0).all()
        assert (calls.end_ns[:-1] <= calls.start_ns[1:]).all()
        for op in graph.ops:
            assert graph.engine.profile[op.id].calls == 3
            own = (calls.end_ns - calls.start_ns)[calls.node == op.id]
            assert capacity < 12 or graph.engine.profile[op.id].total_ns == own.sum()


@pytest.mark.usefixtures("all_as_one")
async def test_watchers_see_the_state_of_each() -> None:
    states: list[list[int]] = []

    def look(x: Any) -> Any:
        states.append([monitor.states[op.id] for op in graph.ops])
        return x

    graph, x = chain_of([look] * 3)
    async with graph:
        monitor = graph.engine.resources.watch()
        await graph.run({x: ONES})
        assert len(fired(graph)) == 1
        final = [monitor.states[op.id] for op in graph.ops]
        fired(graph)[0].cost_ns = 0  # on the loop, where nobody can look meanwhile
        await graph.run({x: ONES})
        assert [monitor.states[op.id] for op in graph.ops] == final
        graph.engine.resources.unwatch()
    waiting, running, done = NodeState.WAITING, NodeState.RUNNING, NodeState.DONE
    assert states[:3] == [[running, waiting, waiting], [done, running, waiting], [done, done, running]]
    assert final == [done] * 3


# -- when ops become slow ----------------------------------------------------------------------------------------------


async def test_a_tape_is_taken_apart_when_an_op_becomes_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    slow_ns = 0

    def clock() -> int:
        nonlocal now_ns
        now_ns += 1
        return now_ns

    def third(x: Any) -> Any:
        nonlocal now_ns
        now_ns += slow_ns
        return x

    for module in ("op", "tape", "function", "dispatcher"):
        monkeypatch.setattr(f"actorflow.actors.{module}.perf_counter_ns", clock)
    monkeypatch.setattr("actorflow.devices.cpu.perf_counter_ns", clock)
    graph, x = chain_of([np.negative, np.negative, third, np.negative, np.negative])
    async with graph:
        for _ in range(tapes.LIMITS.frames + 1):
            await graph.run({x: ONES})
        assert [len(actor.parts) for actor in fired(graph)] == [5]
        slow_ns = 10_000_000
        await graph.run({x: ONES})
        slow_ns = 0
        await graph.run({x: ONES})
        assert [len(actor.parts) for actor in fired(graph)] == [5]  # once is an accident
        slow_ns = 10_000_000
        for _ in range(3):
            await graph.run({x: ONES})
        assert [len(actor.parts) for actor in fired(graph)] == [2, 0, 2]
        assert graph.engine.profile[graph["f2"].id].calls == tapes.LIMITS.frames + 6
