"""What plans compute in one pass over memory: which ops are joined, and that what is told of them stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import ops
from actorflow.ops.fused import Fused
from actorflow.plan import fuse as fusing
from actorflow.plan.plan import Plan
from actorflow.show.tables import step_name
from actorflow.trace.counters import NodeNote
from tests.plan.test_random_fusion import PlantedError, Switch, assert_same, brittle
from tests.support.effort import slow

PLACES = ["cpu", "sim:0"]
SIDE = 6
X = np.random.default_rng(0).standard_normal((4, SIDE)).astype("f")


@pytest.fixture(autouse=True)
def all_values_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "LARGE_BYTES", 0)


def steps(plan: Plan) -> list[str]:
    """The steps, by the names of what they compute, without copies."""
    return [step_name(op) for op in plan.ops if op.operation.kind != "Transfer"]


def fused(plan: Plan) -> list[Fused]:
    return [op.operation for op in plan.ops if isinstance(op.operation, Fused)]


def graph_of(**options: Any) -> tuple[af.Graph, af.Blob]:
    graph = af.Graph("fuse", **options)
    return graph, graph.blob("x", X.shape)


def scaled(x: af.Blob, name: str, **options: Any) -> af.Blob:
    """An op with options of its own."""
    graph = x.graph.root
    y = graph.blob(f"{name}.out", x.shape, x.dtype, options.get("place", x.place))
    [x] >> graph.op(name, ops.Scale(2.0), **options) >> [y]
    return y


# -- what is joined ---------------------------------------------------------------------------------------------------


def test_a_chain_is_one_step_and_the_summary_names_its_parts() -> None:
    for fuse in (True, False):
        graph, x = graph_of(fuse=fuse)
        ops.add(ops.relu(ops.scale(x, 2.0, name="a"), name="b"), x, name="c")
        plan = graph.compile()
        assert steps(plan) == (["a + b + c"] if fuse else ["a", "b", "c"])
        assert ("\na + b + c " in plan.summary()) == fuse
        assert [part.node.name for op in plan.ops for part in op.parts] == (["a", "b", "c"] if fuse else [])


@pytest.mark.together("dtype", ["float32", "float64", "int8"])
def test_on_the_host_values_must_be_large(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for place in PLACES:
        for more in (0, -1):
            graph = af.Graph("large")
            with graph.at(place):
                x = graph.blob("x", fusing.LARGE_BYTES // np.dtype(dtype).itemsize + more, dtype)
                a = ops.multiply(x, x, name="a")
                ops.sum(ops.maximum(a, x, name="b"), name="c")
            is_joined = place != "cpu" or more == 0
            assert steps(graph.compile()) == (["a + b + c"] if is_joined else ["a", "b", "c"])


def test_values_inside_are_not_there_unless_they_are_asked_for() -> None:
    graph, x = graph_of()
    a = ops.scale(x, 2.0, name="a")
    b = ops.relu(a, name="b")
    c = ops.negative(b, name="c")
    for fetch, written in (([c], [c]), ([b, c], [b, c]), ([c, a, b], [a, b, c])):
        plan = graph.compile(fetch)
        (op,) = plan.ops
        assert [plan.slots[slot].blob for slot in op.outputs] == written
    assert graph.memory_cost([c]).total_bytes == X.nbytes
    assert graph.memory_cost([a, c]).total_bytes == 2 * X.nbytes


NOT_JOINED: dict[str, Callable[[af.Blob], Any]] = {
    "function": lambda x: x.graph.root.function("a", lambda value: value, x.spec)(x),
    "lane": lambda x: scaled(x, "a", lane="own"),
    "priority": lambda x: scaled(x, "a", priority=1),
    "libraries": lambda x: scaled(x, "a", libraries=["numpy"]),
    "timeout": lambda x: scaled(x, "a", timeout=5.0),
    "retries": lambda x: scaled(x, "a", retries=1),
    "view": lambda x: ops.reshape(x, x.shape, name="a"),
    "other shape": lambda x: ops.broadcast_to(ops.relu(x.graph.root.blob("row", (1, SIDE)), name="a"), x.shape),
    "random": lambda x: ops.dropout(x, 0.5, name="a"),
    "place": lambda x: scaled(x, "a", place="sim:0"),
    "softmax": lambda x: ops.softmax(x, name="a"),
}


@pytest.mark.together("kind", NOT_JOINED)
def test_what_is_not_joined(kind: str) -> None:
    graph, x = graph_of()
    y = NOT_JOINED[kind](x)
    with graph.at("cpu"):
        ops.negative(ops.relu(y, name="b"), name="c")
    found = steps(graph.compile())
    assert "a" in found
    assert "b + c" in found


@pytest.mark.parametrize(
    "options", [{"lane": "own"}, {"priority": 1}, {"libraries": ["numpy"]}, {"place": "sim:0"}], ids=str
)
def test_ops_that_are_wanted_in_one_manner_are(options: dict[str, Any]) -> None:
    graph, x = graph_of()
    scaled(scaled(x, "a", **options), "b", **options)
    plan = graph.compile()
    assert steps(plan) == ["a + b"]
    (op,) = [op for op in plan.ops if op.parts]
    assert str(op.place) == options.get("place", "cpu")
    assert op.lane == options.get("lane", "main")


def test_values_that_several_read_are_computed_once() -> None:
    graph, x = graph_of()
    a = ops.exp(x, name="a")
    ops.add(ops.relu(a, name="b"), ops.negative(a, name="c"), name="d")
    other = graph.function("f", lambda value: value, x.spec)(a)
    plan = graph.compile()
    assert steps(plan) == ["a + b + c + d", "f"]
    assert [plan.slots[slot].blob.name for slot in plan.ops[0].outputs] == ["a/out", "d/out"]
    found = graph.run_sync({x: X}, fetch=[other, "d/out"])
    np.testing.assert_array_equal(found[other], np.exp(X))
    np.testing.assert_array_equal(found["d/out"], np.maximum(np.exp(X), 0) + -np.exp(X))


def test_a_way_around_a_chain_is_no_cycle() -> None:
    """The sum needs the softmax, which needs the scaled value: two steps, though all three ops are elementwise."""
    graph, x = graph_of()
    a = ops.scale(x, 2.0, name="a")
    b = ops.relu(a, name="b")
    ops.add(b, ops.softmax(a, name="around"), name="c")
    assert steps(graph.compile()) == ["a + b", "around", "c"]
    assert_like_by_itself(lambda graph, x: around_twice(x))


def around_twice(x: af.Blob) -> list[af.Blob]:
    a = ops.scale(x, 2.0)
    c = ops.add(ops.relu(a), ops.softmax(a))
    d = ops.tanh(c)
    return [ops.add(ops.multiply(d, a), ops.softmax(d)), c]


def test_numbers_are_part_of_the_step() -> None:
    graph, x = graph_of()
    table = graph.constant(X[0])
    y = (x * 2.0 + 1.0) * table
    plan = graph.compile()
    (op,), (operation,) = plan.ops, fused(plan)
    assert [plan.slots[slot].blob for slot in op.inputs] == [x, table]
    assert [step.operation.kind for step in operation.steps] == ["Fill", "Multiply", "Fill", "Sum", "Multiply"]
    np.testing.assert_array_equal(graph.run_sync({x: X})[y], (X * np.float32(2) + np.float32(1)) * X[0])


def test_several_producers_and_variables() -> None:
    graph, x = graph_of()
    w, y = graph.variable("w", X.shape, init=3.0), graph.blob("y", X.shape)
    for name in ("one", "other"):
        [x] >> graph.op(name, ops.Scale(2.0)) >> [y]
    z = ops.multiply(ops.relu(y, name="b"), w, name="c")
    [z] >> graph.op("assign", ops.Negative()) >> [w]
    assert steps(graph.compile()) == ["one + other + sum of y + b + c", "assign"]
    value = np.full(X.shape, 3, "f")
    for _ in range(3):
        before = value.copy()
        expected = np.maximum(X * 4, 0) * value
        np.testing.assert_array_equal(graph.run_sync({x: X}, fetch=[z, "assign"])[z], expected)
        np.testing.assert_array_equal(value, before)
        value = w.value
        np.testing.assert_array_equal(value, -expected)


def test_values_of_other_shapes_are_spread_as_they_are_read() -> None:
    graph, x = graph_of()
    row, column = graph.blob("row", (SIDE,)), graph.blob("column", (4, 1))
    y = ops.add(ops.multiply(x, row, name="a"), ops.exp(column, name="c"), name="b")
    assert sorted(steps(graph.compile())) == ["a", "b", "c"]  # the longest ways to them are not equally long
    feeds = {x: X, row: X[0], column: X[:, :1]}
    np.testing.assert_array_equal(graph.run_sync(feeds)[y], X * X[0] + np.exp(X[:, :1]))


def test_reductions_along_the_same_axes_end_a_chain() -> None:
    graph, x = graph_of()
    a = ops.exp(ops.negative(x, name="a"), name="b")
    ops.sum(a, 0, name="s")
    total = ops.maximum(ops.max(a, 0, name="m"), 1.0, name="after")
    ops.mean(a, 1, name="alone")
    assert sorted(steps(graph.compile())) == ["a + b + s + m", "after", "alone"]
    np.testing.assert_array_equal(graph.run_sync({x: X}, fetch=total)[total], np.maximum(np.exp(-X).max(0), 1))


@pytest.mark.parametrize(("count", "expected"), [(32, [32]), (33, [32, 1]), (70, [32, 32, 6])])
def test_steps_of_one_chain_are_limited(count: int, expected: list[int]) -> None:
    graph, x = graph_of()
    y, value = x, X
    for _ in range(count):
        y, value = ops.scale(y, 1.1), value * np.float32(1.1)
    assert [len(op.parts) or 1 for op in graph.compile().ops] == expected
    np.testing.assert_array_equal(graph.run_sync({x: X})[y], value)


def test_inputs_and_results_of_one_chain_are_limited() -> None:
    graph, x = graph_of()
    more = [graph.blob(f"x{i}", X.shape) for i in range(12)]
    y, made = x, []
    for each in more:
        y = ops.multiply(ops.add(y, each), 0.5)
        made.append(y)
    plan = graph.compile(made)
    assert len(plan.ops) > 1
    assert all(len(op.inputs) <= 8 and len(op.outputs) <= 8 for op in plan.ops)
    assert sum(len(op.parts) for op in plan.ops) == 24
    value, found = X, graph.run_sync({x: X, **dict.fromkeys(more, X)}, fetch=made)
    for each in made:
        value = (value + X) * np.float32(0.5)
        np.testing.assert_array_equal(found[each], value)


# -- what joined ops compute -------------------------------------------------------------------------------------------


def assert_like_by_itself(build: Callable[[af.Graph, af.Blob], list[af.Blob]], value: np.ndarray = X) -> list[Plan]:
    """Compare the results of a graph whose ops are computed each by itself, bit for bit."""
    found, plans = [], []
    for fuse in (True, False):
        graph = af.Graph("like", fuse=fuse, deterministic=True)
        x = graph.blob("x", value.shape, value.dtype)
        fetches = build(graph, x)
        plans.append(graph.compile(fetches))
        feeds = {blob: spread(blob) if blob is not x else value for blob in plans[-1].feeds}
        results = graph.run_sync(feeds, fetch=fetches)
        found.append([results[blob] for blob in fetches])
    assert not any(op.parts for op in plans[1].ops)
    for mine, its in zip(*found, strict=True):
        assert_same(mine, its)
    return plans


def spread(blob: af.Blob) -> np.ndarray:
    """Numbers for a blob, positive ones for variances."""
    random = np.random.default_rng(len(blob.name))
    value = random.standard_normal(blob.shape).astype(blob.dtype)
    return np.asarray(abs(value) + 0.5 if "variance" in blob.name else value, blob.dtype)


def normalized(y: af.Blob) -> af.Blob:
    graph, channels = y.graph.root, y.shape[-1:]
    kind = "float32" if y.dtype == np.float16 else y.dtype
    statistics = [graph.blob(name, channels, kind) for name in ("mean", "variance")]
    given = [graph.blob(name, channels, y.dtype) for name in ("scale", "shift")]
    return ops.batch_norm(y, *statistics, *given)


def with_bias(y: af.Blob) -> af.Blob:
    return ops.bias(y, y.graph.root.blob("bias", y.shape[-1:], y.dtype))


def residual(y: af.Blob) -> af.Blob:
    other = ops.softmax(y.graph.root.blob("other", y.shape, y.dtype))
    return ops.relu(ops.add(with_bias(y), other))


TAILS: dict[str, Callable[[af.Blob], af.Blob]] = {
    "bias": with_bias,
    "bias, relu": lambda y: ops.relu(with_bias(y)),
    "norm": normalized,
    "norm, relu": lambda y: ops.relu(normalized(y)),
    "residual": residual,
    "hard swish": lambda y: ops.hard_swish(with_bias(y)),
    "number": lambda y: ops.minimum(y * 0.5 + 1.0, 6.0),
    "twice": lambda y: ops.multiply(y, ops.add(ops.exp(y), y)),
}


@pytest.mark.together("dtype", ["float16", "float32", *slow(["float64"])], at_once=10)
@pytest.mark.together("special", [0.0, np.nan, np.inf, -np.inf, -0.0])
@pytest.mark.together("tail", TAILS)
def test_chains_of_networks_give_the_same_to_the_bit(tail: str, special: float, dtype: str) -> None:
    value = np.random.default_rng(1).standard_normal((3, 9, 7, 8)).astype(dtype)
    value[0, 1, 2, 3] = value[1, :, :, :] = special
    plan, _ = assert_like_by_itself(lambda graph, x: [TAILS[tail](ops.softmax(x))], value)
    kinds = [op.operation.kind for op in plan.ops]
    assert ("Fused" in kinds) == (tail not in ("bias", "norm") and not ("norm" in tail and dtype == "float16"))


def test_large_chains_are_computed_block_by_block() -> None:
    value = np.random.default_rng(3).standard_normal((4, 64, 48, 24)).astype("f")
    for tail in TAILS.values():
        assert_like_by_itself(lambda graph, x, tail=tail: [tail(x)], value)  # type: ignore[misc]


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
async def test_nothing_of_the_applications_is_written_over(place: str) -> None:
    graph = af.Graph("kept")
    with graph.at(place):
        x = graph.blob("x", (3, 4, 4, 8))
        w = graph.variable("w", (8, 8), init=0.5)
        y = ops.relu(ops.negative(ops.scale(x, 2.0)))
        z = ops.add(ops.relu(ops.inner(y, w)), y)
        moved = ops.add(ops.scale(w, 0.5), 1.0)
    random = np.random.default_rng(6)
    values = [random.standard_normal(x.shape).astype("f") for _ in range(12)]
    copies = [value.copy() for value in values]
    kept = np.asarray(af.to_numpy(w.value)).copy()
    async with graph:
        async with aclosing(graph.stream([{x: value} for value in values], fetch=[y, z, moved], in_flight=4)) as stream:
            results = [result async for result in stream]
        for value, copy, result in zip(values, copies, results, strict=True):
            np.testing.assert_array_equal(value, copy)
            expected = np.maximum(-(copy * 2), 0)
            np.testing.assert_array_equal(af.to_numpy(result[y]), expected)
            np.testing.assert_allclose(
                af.to_numpy(result[z]), np.maximum(expected @ kept.T, 0) + expected, rtol=1e-5, atol=1e-5
            )
            np.testing.assert_array_equal(af.to_numpy(result[moved]), kept * 0.5 + 1)
        np.testing.assert_array_equal(af.to_numpy(w.value), kept)


async def test_a_budget_holds() -> None:
    size, budget = 1 << 16, 5 * 4 * (1 << 16)

    def built(memory_budget: int) -> tuple[af.Graph, af.Blob, af.Blob]:
        graph = af.Graph("budget", memory_budget=memory_budget)
        x = graph.blob("x", (1, size))
        a = ops.relu(ops.scale(x, 2.0))
        b = ops.softmax(a)
        return graph, x, ops.add(ops.exp(ops.negative(b)), a)

    graph, x, y = built(budget)
    values = [np.full((1, size), i, "f") for i in range(8)]
    async with graph:
        results = await asyncio.gather(*[graph.run({x: value}) for value in values])
        memory = graph.engine.resources.device(af.Place()).memory
        # What was fetched is the application's: up to a result per frame is held besides.
        assert 0 < memory.peak_bytes <= budget + len(values) * 4 * size
        assert graph.statistics().shared_bytes == 0
    for i, result in enumerate(results):
        np.testing.assert_allclose(result[y], np.exp(-1 / size) + 2 * i, rtol=1e-6)
    needed = graph.memory_cost().peak_bytes
    with pytest.raises(af.OutOfMemoryError, match=f"needs {needed:,} bytes"):
        built(needed - 1)[0].compile()


# -- what is told of the parts ----------------------------------------------------------------------------------------


def failing(place: str) -> tuple[af.Graph, af.Blob, af.Blob]:
    graph = af.Graph("failing")
    with graph.at(place):
        x = graph.blob("x", X.shape)
        y = ops.relu(brittle(ops.scale(x, 2.0, name="before")), name="after")
    return graph, x, y


@pytest.mark.parametrize("place", PLACES)
async def test_an_error_is_that_of_the_part(place: str) -> None:
    graph, x, y = failing(place)
    assert steps(graph.compile()) == ["before + brittle + after"]
    async with graph:
        await graph.run({x: X})
        Switch.on = True
        with pytest.raises(af.OpError, match=r"op 'brittle' .* failed with") as caught:
            await graph.run({x: X})
        error = caught.value
        assert error.op is graph["brittle"]
        assert f"\n  inputs: before/out float32[4, {SIDE}] on {place}\n  created at {__file__}" in str(error)
        assert "after" not in str(error).replace("before/out", "")
        if place == "cpu":
            with pytest.raises(PlantedError):
                error.replay()
        else:  # what failed there was to write over its inputs
            assert isinstance(error.__cause__.__cause__, PlantedError)
        Switch.on = False
        np.testing.assert_array_equal(af.to_numpy((await graph.run({x: X}))[y]), np.maximum(X, 0))
        profile = {op.name: graph.engine.profile[op.id] for op in graph.ops}
        assert {name: (each.calls, each.failed) for name, each in profile.items()} == {
            "before": (2, 0),
            "brittle": (2, 1),
            "after": (2, 0),
        }
        calls = graph.engine.trace.since(0)
        (failed,) = np.flatnonzero(calls.failed)
        assert calls.node[failed] == graph["brittle"].id
        assert "PlantedError" in calls.errors[failed]


@pytest.mark.parametrize("place", PLACES)
async def test_each_part_has_its_calls_and_its_share_of_the_time(place: str, calls_count_as_short: None) -> None:
    graph = af.Graph("times")
    with graph.at(place):
        x = graph.blob("x", (200, 300))
        ops.sqrt(ops.exp(ops.scale(x, 0.1, name="a"), name="b"), name="c")
    assert steps(graph.compile()) == ["a + b + c"]
    async with graph:
        for _ in range(5):
            await graph.run({x: np.ones(x.shape, "f")})
    trace, parts = graph.engine.trace, [graph[name].id for name in "abc"]
    calls = trace.since(0)
    tracks = []
    for frame in range(5):
        rows = np.flatnonzero((calls.frame == frame) & np.isin(calls.node, parts))
        assert calls.node[rows].tolist() == parts
        assert (calls.start_ns[rows[1:]] == calls.end_ns[rows[:-1]]).all()
        assert len(set(calls.track[rows])) == 1
        tracks.append(trace.tracks[calls.track[rows[0]]])
    assert tracks == (["cpu main"] + ["loop"] * 4 if place == "cpu" else ["sim:0 main"] * 5)
    for part in parts:
        elapsed, profile = (calls.end_ns - calls.start_ns)[calls.node == part], graph.engine.profile[part]
        assert (profile.calls, profile.total_ns, profile.last_ns) == (5, elapsed.sum(), elapsed[-1])


async def test_the_time_of_a_part_is_that_of_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalization is seven steps, the rest is one each."""
    monkeypatch.setattr(Fused, "times", lambda operation: [1] * len(operation.steps))
    graph = af.Graph("shares")
    ops.relu(normalized(ops.negative(graph.blob("x", (2, 5, 5, 8)))))
    (op,) = graph.compile().ops
    feeds = {blob: spread(blob) for blob in graph.compile().feeds}
    async with graph:
        for _ in range(3):
            await graph.run(feeds)
    spent_ns = [graph.engine.profile[part.node.id].total_ns for part in op.parts]
    assert len(spent_ns) == 3
    for part_ns, share in zip(spent_ns, (1, 7, 1), strict=True):
        assert abs(part_ns - sum(spent_ns) * share / 9) <= 6  # whole nanoseconds


async def test_those_who_watch_are_told_what_is_computed_together() -> None:
    graph, x = graph_of()
    ops.relu(ops.scale(x, 2.0, name="a"), name="b")
    async with graph:
        for _ in range(2):
            await graph.run({x: X})
        text = "computed in one pass: a, b"
        assert [*graph.engine.notes] == [NodeNote(graph[name].id, text) for name in "ab"]


async def test_a_frame_that_stands_still_names_all_parts() -> None:
    graph = af.Graph("stuck", stall_limit=0.01)

    async def receive() -> Any:
        await asyncio.Event().wait()

    y = graph.function("receive", receive, af.TensorSpec.of((3,)))()
    ops.relu(ops.scale(y, 2.0, name="a"), name="b")
    async with graph:
        with pytest.raises(af.StallError, match="op 'a \\+ b' waits for 1 of 1 inputs: op 'receive'"):
            await graph.run()


async def test_chains_are_captured_with_what_is_around_them() -> None:
    graph = af.Graph("captured", capture=True)
    with graph.at("sim:0"):
        x, w = graph.blob("x", X.shape), graph.variable("w", (SIDE, SIDE), init=0.5)
        y = ops.inner(ops.relu(ops.scale(x, 2.0, name="a"), name="b"), w, name="product")
        z = ops.negative(ops.exp(y, name="c"), name="d")
    plan = graph.compile()
    assert "captured: a + b, product, c + d as one, sim:0 main" in plan.summary()
    async with graph:
        for i in range(5):
            found = af.to_numpy((await graph.run({x: X * i}))[z])
            expected = -np.exp(np.maximum(X * i * 2, 0) @ np.full((SIDE, SIDE), 0.5, "f"))
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert [graph.engine.profile[op.id].calls for op in graph.ops] == [5] * 5
        assert graph.statistics().segments
