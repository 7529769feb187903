"""Short ops that fire as one: which ones, and that everything is told of each as if it had fired by itself."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.actors import tape as tape_module
from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.op import FOREVER_NS, OpActor
from actorflow.actors.tape import TapeActor
from actorflow.loop import at_once
from actorflow.plan import together
from actorflow.runtime import branches, tapes
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


# -- which ones fire on the loop ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Noted(af.ops.Operation):
    """Its input, and a note of the thread."""

    threads: list[threading.Thread] = field(compare=False)
    arguments = ("x",)
    differentiable = False

    def infer(self, x: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return (x,)

    def compute(self, x: Any) -> Any:
        self.threads.append(threading.current_thread())
        return x


@pytest.mark.parametrize(
    ("cores", "took_us", "on_loop"), [(1, 700, True), (1, 800, False), (2, 700, False), (2, 90, True)]
)
async def test_kernels_on_one_core(monkeypatch: pytest.MonkeyPatch, cores: int, took_us: int, on_loop: bool) -> None:
    monkeypatch.setattr("actorflow.actors.op.cores", lambda: cores)
    threads: list[threading.Thread] = []
    graph = af.Graph("noted")
    x = graph.blob("x", VALUE.shape, VALUE.dtype)
    graph.op("note", Noted(threads))(x)
    async with graph:
        await graph.run({x: ONES})
        (op,) = fired(graph)
        op.cost_ns = op.last_ns = 1000 * took_us
        await graph.run({x: ONES})
    assert threads[0] is not threading.current_thread()
    assert (threads[1] is threading.current_thread()) == on_loop


@pytest.mark.parametrize("cores", [1, 2])
async def test_kernels_of_some_100_us_are_one_piece_on_a_lane(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(tapes, "LIMITS", tapes.Limits())
    monkeypatch.setattr("actorflow.actors.op.cores", lambda: cores)
    threads: list[threading.Thread] = []
    graph = af.Graph("noted")
    x = y = graph.blob("x", VALUE.shape, VALUE.dtype)
    for i in range(4):
        y = graph.op(f"note{i}", Noted(threads))(y)
    async with graph:
        await graph.run({x: ONES})
        for op in fired(graph):
            op.cost_ns = op.last_ns = 150_000
        [*graph.engine._programs.values()][-1].pace.look_now()
        await graph.run({x: ONES})
        assert [len(op.parts) for op in fired(graph)] == [4]
        assert {thread.name for thread in threads[4:]} == {"actorflow-main"}


async def test_functions_on_one_core_may_wait_for_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorflow.actors.op.cores", lambda: 1)
    graph, x = chain_of([lambda x: x + 1])
    async with graph:
        await graph.run({x: ONES})
        assert [op.inline_ns for op in fired(graph)] == [100_000]


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
        cost_ns = draw(st.sampled_from((10, 100, 1 << 40)))
        ops.append(_Op(index, cost_ns, draw(st.sampled_from(lanes)), joins=draw(st.booleans())))
        for each in reads[-1]:
            ops[each].followers += (ops[index],)
    return ops, reads


class _Lane:
    pass


class _Use:
    def __init__(self, follower: Any, updates: bool) -> None:
        self.followers, self.updates = (follower,), updates


class _Op:
    attempts = turnstile = None
    updates: tuple[Any, ...] = ()
    inline_ns = 100

    def __init__(self, index: int, cost_ns: int, lane: Any, joins: bool = False) -> None:
        self.index, self.cost_ns, self.lane, self.joins = index, cost_ns, lane, joins
        self.followers: tuple[_Op, ...] = ()


_INDICES = st.sets(st.integers(0, 13), max_size=3)


@given(
    program=_programs(),
    tape_ns=st.sampled_from((150, 250, 1 << 60)),
    slice_ns=st.sampled_from((150, 450, 1 << 60)),
    turns=_INDICES,
    updating=_INDICES,
)
def test_units_wait_for_nothing_new(
    program: tuple[list[Any], list[set[int]]], tape_ns: int, slice_ns: int, turns: set[int], updating: set[int]
) -> None:
    ops, reads = program
    updates = [op for op in ops if op.index in updating and not op.followers]
    for op in updates:
        op.updates = (SimpleNamespace(bucket=None),)
    uses: list[Any] = [_Use(ops[index], bool(updates)) for index in turns if index < len(ops)]
    outside: list[frozenset[int]] = []  # what is in front of each op that is neither a turn nor a part of a tape
    for sources in reads:
        alone = {i for i in sources if ops[i].cost_ns > 100 and not ops[i].joins}
        outside.append(frozenset(alone.union(*[outside[i] for i in sources])))
    slow_updates = {op.index: {op.index} if op.cost_ns > 100 and not op.joins else set() for op in updates}
    is_one = bool(updates) and len({outside[op.index] | slow_updates[op.index] for op in updates}) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tapes, "LIMITS", tapes.Limits(tape_ns=tape_ns, slice_ns=slice_ns))
        units = at_once(tapes.find_tapes(ops, [], uses))
    assert sorted(op.index for unit in units for op in unit) == [op.index for op in ops]
    place = {op.index: position for position, unit in enumerate(units) for op in unit}
    order = [op.index for unit in units for op in unit]
    ancestors: list[set[int]] = []
    slow: list[frozenset[int]] = []  # what takes time in front of each op
    for op, sources in zip(ops, reads, strict=True):
        before = set().union(*[slow[i] | ({i} if ops[i].cost_ns > 100 else set()) for i in sources])
        turn = {-1 if is_one else -1 - op.index} if op.index in turns else set()
        slow.append(frozenset(before | turn))
        ancestors.append(sources.union(*[ancestors[i] for i in sources]))
        assert all(place[i] <= place[op.index] for i in sources), "each unit behind those that it reads from"

    def on_lane(lane: Any) -> frozenset[int]:
        """What is long there: in front of all that comes later, as the lane is a FIFO."""
        return frozenset([op.index for op in ops if op.joins and op.lane is lane])

    def in_front(op: _Op) -> frozenset[int]:
        """What takes time in front of an op, with what ends before that on its lane, having as much in front itself."""
        return slow[op.index] | {
            other.index
            for each in ancestors[op.index]
            if slow[each] or ops[each].cost_ns > 100
            for other in ops
            if other.joins and other.cost_ns > 100 and other.lane is ops[each].lane
            if order.index(other.index) < order.index(each)
            if slow[other.index] - on_lane(other.lane) == slow[each] - on_lane(other.lane)
        }

    for unit in units:
        assert len(unit) == 1 or is_one or not any(op.updates for op in unit), "frames wait for updates, one by one"
        position = {op.index: i for i, op in enumerate(unit)}
        lane = unit[0].lane
        assert len({in_front(op) - on_lane(lane) for op in unit}) == 1, "all wait for the same"
        if len(unit) > 1:
            is_long = [op.cost_ns > 100 for op in unit]
            assert all(op.joins for op in unit if op.cost_ns > 100)
            is_waited_for = slow[unit[0].index] or any(each.cost_ns > 100 for op in unit[:-1] for each in op.followers)
            most_ns = tape_ns if is_waited_for else max(slice_ns, tape_ns)
            assert sum(op.cost_ns for op in unit) <= most_ns or any(is_long)
            assert len({op.lane for op in unit}) == 1 or not (slow[unit[0].index] or any(is_long))
            assert all(position.get(i, -1) < at for index, at in position.items() for i in reads[index])
            awaited = [i for i, op in enumerate(unit) if _is_awaited(op)]
            assert not any(is_long[awaited[0] + 1 :] if awaited else []), "nobody is told late of what is not long"


def _is_awaited(op: _Op) -> bool:
    """Whether others wait for it than what follows on its lane."""
    return any(each.lane is not op.lane or (each.cost_ns > 100 and not each.joins) for each in op.followers)


def test_pieces_of_two_lanes_do_not_wait_for_each_other() -> None:
    """``a`` and ``c`` are no tape, although they wait for the same: between them is ``b``, on another lane."""
    lane, other = _Lane(), _Lane()
    ops = [
        _Op(index, cost_ns, on) for index, (cost_ns, on) in enumerate([(500, lane), (1, lane), (1, other), (1, lane)])
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
            await asyncio.wait_for(graph.run({x: ONES}), 60)
        assert len(fired(graph)) == 3


@pytest.mark.usefixtures("all_as_one")
async def test_memory_of_a_closed_graph_is_not_held_by_calls_that_are_not_written_yet() -> None:
    graph = af.Graph("chain", fuse=False)
    x = graph.blob("x", VALUE.shape, VALUE.dtype)
    af.ops.exp(af.ops.exp(af.ops.exp(x)))
    async with graph:
        for _ in range(3):
            await graph.run({x: ONES})
        assert len(fired(graph)) == 1
        (device,) = graph.engine.resources.devices.values()
        pool = weakref.ref(device.memory)
        del device
    gc.collect()
    assert pool() is None


# -- turns and updates -------------------------------------------------------------------------------------------------


def training(**options: Any) -> tuple[af.Graph, dict[af.Blob, Any], list[Any]]:
    """A step of training a perceptron, what it is fed, and what it fetches."""
    graph = af.Graph("training", **options)
    rng = np.random.default_rng(0)
    x, y = graph.blob("x", (8, 5)), graph.blob("y", (8,), "int64")
    layers = af.nn.InnerProduct(6) >> af.nn.InnerProduct(3)
    loss = af.ops.softmax_loss(layers(x), y)
    updates = af.nn.SGD(0.1, momentum=0.9).minimize(loss)
    feeds = {x: rng.standard_normal((8, 5), np.float32), y: rng.integers(0, 3, 8)}
    return graph, feeds, [loss, updates]


async def losses_of(frames: int, in_flight: int, **options: Any) -> tuple[list[bytes], int]:
    """Losses of the steps of a training, and how many ops fired in the last one."""
    graph, feeds, fetch = training(**options)
    async with graph:
        found = [
            result[fetch[0]].tobytes()
            async for result in graph.stream([feeds] * frames, fetch=fetch, in_flight=in_flight)
        ]
        return found, len(fired(graph))


@pytest.mark.parametrize("limits", ["all", "long"])
@pytest.mark.parametrize("in_flight", [1, 2, 5])
async def test_a_training_step_is_one(monkeypatch: pytest.MonkeyPatch, limits: str, in_flight: int) -> None:
    monkeypatch.setattr(tapes, "LIMITS", LIMITS[limits])
    monkeypatch.setattr(branches, "_GAIN", math.inf)  # no branch is measured apart, however slow this machine is now
    expected, ops = await losses_of(12, 1, sequential=True)
    assert ops > 5
    assert len(set(expected)) == len(expected), "weights change"
    assert await losses_of(12, in_flight) == (expected, 1)


def counted_up(graph: af.Graph, name: str, *reads: af.Blob, call: Callable[..., Any]) -> af.Variable:
    """A variable that a function counts up."""
    count = graph.variable(name, (), "int64")
    [count, *reads] >> graph.function(f"count {name}", call, lane="main") >> [count]
    return count


@pytest.mark.usefixtures("all_as_one")
@pytest.mark.parametrize("atomic", [False, True])
async def test_a_fault_leaves_what_was_updated_before(atomic: bool) -> None:
    graph = af.Graph("fault")
    first = counted_up(graph, "first", call=lambda count: count + 1)
    done = graph.blob("done", (), "int64")
    [first] >> graph.function("plus", lambda count: count, lane="main") >> [done]
    second = counted_up(graph, "second", done, call=lambda count, done: count + 1)
    async with graph:
        for _ in range(3):
            await graph.run(atomic=atomic)
        assert len(fired(graph)) == 1
        with (
            inject(graph, "count second", error=OSError("planted"), frames={3}),
            pytest.raises(af.OpError, match="count second") as caught,
        ):
            await graph.run(atomic=atomic)
        assert caught.value.updated == (() if atomic else ("first",))
        assert (first.value, second.value) == (3 + (not atomic), 3)
        await graph.run(atomic=atomic)
        assert (first.value, second.value) == (4 + (not atomic), 4)


@pytest.mark.parametrize("limits", ["off", "all"])
async def test_no_turn_is_kept_from_what_another_program_waits_for(
    monkeypatch: pytest.MonkeyPatch, limits: str
) -> None:
    monkeypatch.setattr(tapes, "LIMITS", LIMITS[limits])
    graph = af.Graph("turns")
    one, other = (graph.variable(name, VALUE.shape, VALUE.dtype) for name in ("one", "other"))
    both = [graph.function(f"count {name}", lambda count: count + 1, lane="main") for name in ("one", "other")]
    for variable, count in zip((one, other), both, strict=True):
        [variable] >> count >> [variable]
    started, looked = asyncio.Event(), asyncio.Event()
    looked.set()

    async def look(count: Any) -> Any:
        started.set()
        await looked.wait()
        return count + (await graph.run(fetch=[one]))[one]

    slow = graph.function("look", look)
    [other] >> slow >> [other]
    async with graph, asyncio.timeout(10):
        for _ in range(8):
            await graph.run(fetch=both)
        await graph.run(fetch=[slow])
        started.clear()
        looked.clear()
        first = asyncio.create_task(graph.run(fetch=[slow]))  # has the turn at `other`
        await started.wait()
        turns = graph.engine.resources.variable_actor(other)
        its = turns.last
        second = asyncio.create_task(graph.run(fetch=both))  # has the next one there, and that at `one`
        while turns.last is its:
            await asyncio.sleep(0)
        looked.set()
        await asyncio.gather(first, second)
    assert (one.value[0], other.value[0]) == (9, 8 + 8 + 9 + 1)  # as if one frame went after the other


@pytest.mark.usefixtures("all_as_one")
async def test_turns_that_pass_apart_are_waited_for_apart() -> None:
    """A frame's async function goes on when the next frame has had its turn at the variable that another op updates."""
    graph = af.Graph("apart")
    calls: list[int] = []
    again = asyncio.Event()

    def count(count: Any) -> Any:
        calls.append(int(count))
        if len(calls) % 2 == 0:
            loop.call_soon_threadsafe(again.set)
        return count + 1

    async def wait(count: Any) -> Any:
        await again.wait()
        return count + 1

    loop = asyncio.get_running_loop()
    first, second = counted_up(graph, "first", call=count), counted_up(graph, "second", call=wait)
    [second] >> graph.function("look", lambda count: count, lane="main") >> [graph.blob("seen", (), "int64")]
    async with graph:
        for _ in range(3):
            again.clear()
            await asyncio.wait_for(asyncio.gather(graph.run(), graph.run()), 60)
    assert (first.value, second.value) == (6, 6)


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
        assert done.wait(60)

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
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("is_long", [False, True])
async def test_what_is_slow_on_the_loop_goes_on_later(
    monkeypatch: pytest.MonkeyPatch, is_long: bool, watched: bool
) -> None:
    threads: list[threading.Thread] = []
    turns: list[Any] = []

    def look(x: Any) -> Any:
        threads.append(threading.current_thread())
        if not is_long:
            loop.call_soon(turns.append, [*turns])
        return x + 1

    loop = asyncio.get_running_loop()

    graph, x = chain_of([look] * 5)
    async with graph:
        for _ in range(2):
            await graph.run({x: ONES})
        (tape,) = fired(graph)
        for limit in ("_SLICE_NS", "_TURN_NS"):
            monkeypatch.setattr(tape_module, limit, -1)  # it is over when the first op has ended
        monitor = graph.engine.resources.watch() if watched else None
        graph.engine.resources.dispatcher.slice_ns = -1
        tape.cost_ns, tape._is_long = 0, is_long
        await asyncio.sleep(0)  # what slices take is counted from the loop's last turn on
        threads.clear()
        turns.clear()
        result = await graph.run({x: ONES})
        np.testing.assert_array_equal(result["f4/out"], ONES + 5)
        here = threading.current_thread()
        assert threads[0] is here
        assert {thread.name for thread in threads[1:]} == {"actorflow-main" if is_long else here.name}
        assert len(threads) == 5
        assert is_long or [len(before) for before in turns[:4]] == [0, 1, 2, 3], "the loop has its turn between them"
        assert not tape._stamps
        calls = graph.engine.trace.since(10)
        assert calls.node.tolist() == [op.id for op in graph.ops]
        assert monitor is None or {monitor.states[op.id] for op in graph.ops} == {NodeState.DONE}


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape on the loop stops behind each op."""
    monkeypatch.setattr(tape_module, "_TURN_NS", -1)
    monkeypatch.setattr(Dispatcher.__init__, "__defaults__", (-1,))


@pytest.mark.usefixtures("all_as_one", "one_at_a_time")
@pytest.mark.parametrize(
    "fetches", [[None] * 4, [None, "f2/out", "f1/out", None], ["f0/out", None, "f2/out", "f2/out"]]
)
async def test_frames_that_stop_in_the_middle_keep_their_order(fetches: list[str | None]) -> None:
    called: list[tuple[int, float]] = []

    def note(index: int) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            called.append((index, float(x[0])))
            return x

        return call

    graph, x = chain_of([note(i) for i in range(5)])
    async with graph:
        for fetch in {*fetches}:
            for _ in range(3):
                await graph.run({x: ONES}, fetch=fetch)
            for actor in fired(graph):
                actor.cost_ns = 0
        called.clear()
        started = [graph.run({x: ONES * i}, fetch=fetch) for i, fetch in enumerate(fetches)]
        await asyncio.gather(*started)
        await graph.run({x: ONES * 9})
    for index in range(5):
        frames = [frame for op, frame in called if op == index]
        assert frames == sorted(frames), f"frames overtake each other at op {index}"
    assert Counter(frame for op, frame in called if op == 0) == Counter([*range(len(fetches)), 9])


@pytest.mark.usefixtures("all_as_one", "one_at_a_time")
async def test_the_time_of_an_op_is_its_own_where_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    def clock() -> int:
        nonlocal now_ns
        now_ns += 1
        return now_ns

    def others() -> None:
        nonlocal now_ns
        now_ns += 1_000_000

    def call(x: Any) -> Any:
        if is_watched:
            loop.call_soon(others)
        return x

    is_watched = False
    loop = asyncio.get_running_loop()
    for module in ("op", "tape", "function", "dispatcher"):
        monkeypatch.setattr(f"actorflow.actors.{module}.perf_counter_ns", clock)
    monkeypatch.setattr("actorflow.devices.cpu.perf_counter_ns", clock)
    graph, x = chain_of([call] * 4)
    async with graph:
        for _ in range(2):
            await graph.run({x: ONES})
        (tape,) = fired(graph)
        tape.cost_ns = 0
        await asyncio.sleep(0)
        position = graph.engine.trace.total
        is_watched = True
        await graph.run({x: ONES})
        calls = graph.engine.trace.since(position)
        assert tape.last_ns < 1000
        assert (calls.end_ns - calls.start_ns).max() < 1000
        assert (calls.start_ns[1:] - calls.end_ns[:-1]).min() > 1_000_000
        assert not tape._gaps


@pytest.mark.usefixtures("all_as_one", "one_at_a_time")
def test_a_frame_that_is_cancelled_in_the_middle_leaves_on_any_loop() -> None:
    called: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []

    def note(index: int) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            called.append(index)
            if index == 2 and loops:
                loops.pop().call_soon(graph.cancel)
            return x

        return call

    graph, x = chain_of([note(i) for i in range(5)])

    async def warm() -> None:
        for _ in range(3):
            await graph.run({x: ONES})
        (tape,) = fired(graph)
        tape.cost_ns = 0

    async def cancelled() -> None:
        loops.append(asyncio.get_running_loop())
        with pytest.raises(af.RunCancelledError):
            await graph.run({x: ONES})

    async def again() -> None:
        await cancelled()
        await asyncio.gather(graph.run({x: ONES}), graph.run({x: ONES}))
        await graph.aclose()

    asyncio.run(warm())
    called.clear()
    asyncio.run(cancelled())  # the loop ends before the rest has been looked at
    assert called == [0, 1, 2]
    asyncio.run(again())
    assert Counter(called) == Counter({0: 4, 1: 4, 2: 4, 3: 2, 4: 2})


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


# -- trainings ---------------------------------------------------------------------------------------------------------


def layered_training(layers: int) -> tuple[af.Graph, af.Blob, af.Blob]:
    graph = af.Graph("training")
    x = y = graph.blob("x", (4, 8))
    for i in range(layers):
        y = af.ops.relu(af.ops.inner(y, graph.variable(f"w{i}", (8, 8), init=af.nn.init.gaussian(std=0.5, seed=i))))
    loss = af.ops.mean(y * y)
    af.nn.SGD(0.1, momentum=0.9).minimize(loss)
    return graph, x, loss


BATCH = np.random.default_rng(0).standard_normal((4, 8), np.float32)


async def trained(graph: af.Graph, x: af.Blob, steps: int) -> None:
    for _ in range(steps):
        await graph.run({x: BATCH})


async def test_pieces_hold_few_new_values_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "LIMITS", LIMITS["all"]._replace(updated_bytes=3 * 8 * 8 * 4))
    monkeypatch.setattr(together, "_SMALL", 0)
    graph, x, _ = layered_training(4)
    async with graph:
        await trained(graph, x, 3)
        pieces = [[update for part in op.parts or (op,) for update in part.updates] for op in fired(graph)]
        assert max(map(len, pieces)) <= 4
        assert sum(map(len, pieces)) == 8
        assert len(fired(graph)) < 6


@pytest.mark.parametrize("limits", ["off", "all"])
async def test_what_was_fed_is_forgotten_behind_its_last_reader(monkeypatch: pytest.MonkeyPatch, limits: str) -> None:
    monkeypatch.setattr(tapes, "LIMITS", LIMITS[limits])
    fed = np.ones(2)
    held: list[bool] = []

    def look(value: Any = None) -> Any:
        (frame,) = graph.engine.resources.running
        held.append(any(getattr(value, "base", None) is fed for value in frame.values))
        return value

    @dataclass(frozen=True, slots=True)
    class Look(Noted):
        def compute(self, x: Any) -> Any:
            look()
            return x + 1

    graph = af.Graph("fed")
    x = graph.blob("x", VALUE.shape, VALUE.dtype)
    y = graph.op("kernel", Look([]))(x)
    graph.function("function", look, VALUE)(y)
    async with graph:
        for _ in range(3):
            await graph.run({x: fed})
        assert any(isinstance(op, TapeActor) for op in fired(graph)) == (limits == "all")
    assert held == [True, False] * 3
