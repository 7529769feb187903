"""Constants are there before the first frame: no frame computes them, gives them back or writes into them."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.errors import OpError, OutOfMemoryError
from actorflow.ops.fills import Constant
from actorflow.plan.planner import SMALL_BYTES
from actorflow.trace.counters import NodeState
from tests.ranks.conftest import Ranks

PLACES = ["cpu", "sim:0"]
X = np.array([1.0, -2.0, 3.0], np.float32)
C = np.array([0.5, 2.0, 4.0], np.float32)


@dataclass(frozen=True)
class Fragile(ops.Operation):
    """An operation whose kernel can be made to fail, and counts its calls."""

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs


CALLS: list[str] = []


@ops.kernel(Fragile)
def _fragile(operation: Fragile, inputs: list[Any], outputs: list[Any]) -> None:
    CALLS.append("fragile")
    if inputs[0].min() < 0:
        raise ValueError("less than nothing")
    outputs[0][...] = inputs[0]


@pytest.fixture(autouse=True)
def calls() -> list[str]:
    CALLS.clear()
    return CALLS


def network(place: str = "cpu", **options: Any) -> tuple[af.Graph, af.Blob, af.Blob]:
    """``((x + c) * 2 - c.exp()) / 3``, where only what has ``x`` in it is computed in each frame."""
    graph = af.Graph("constants", **options)
    x = graph.blob("x", (3,), place=place)
    with graph.at(place):
        c = graph.constant(C, name="c")
        d = ops.exp(c, name="d")
        y = ops.divide(ops.subtract(ops.multiply(ops.add(x, c), 2.0), d), 3.0, name="y")
    return graph, x, y


def expected(x: np.ndarray) -> np.ndarray:
    return ((x + C) * 2 - np.exp(C)) / 3


def steps(graph: af.Graph, fetch: Any = None) -> list[str]:
    return [op.operation.kind for op in graph.compile(fetch).ops]


# -- what is computed once --------------------------------------------------------------------------------------------


def test_a_network_with_many_numbers_has_no_ops_for_them() -> None:
    graph = af.Graph("numbers")
    x = y = graph.blob("x", (4, 5))
    w = graph.variable("w", (5, 5), init=af.nn.init.gaussian(std=0.1, seed=0))
    for i in range(10):
        y = ops.maximum(ops.add(ops.multiply(ops.inner(y, w), 1.0 + i), 0.5), -1.0)
    loss = ops.mean(ops.square(ops.subtract(y, 1.0)))
    train = af.nn.SGD(0.1, momentum=0.9).minimize(loss)
    plan = graph.compile([train])
    assert sum(type(op.operation) is Constant for op in graph.ops) >= 31
    assert not {"Constant", "Fill"} & {op.operation.kind for op in plan.ops}
    graph.run_sync({x: np.ones((4, 5), "f")}, fetch=train)
    folded = {op.node.id for op in plan.folded}
    assert len(folded) >= 31
    assert not folded & graph.engine.profile.keys()


_SOME = SMALL_BYTES // 4


@pytest.mark.together(
    ("make", "left"),
    [
        (lambda g: g.constant(np.zeros(_SOME + 1, "f")), []),
        (lambda g: ops.fill(g, 1.0, _SOME), []),
        (lambda g: ops.fill(g, 1.0, _SOME + 1), ["Fill"]),
        (lambda g: ops.broadcast_to(g.constant(1.0), (_SOME,)), []),
        (lambda g: ops.broadcast_to(g.constant(1.0), (_SOME + 1,)), ["BroadcastTo"]),
        (lambda g: ops.cast(g.constant(np.zeros(_SOME + 1, "f")), "float64"), []),
        (lambda g: ops.concat([g.constant(np.zeros(_SOME, "f")), g.constant(np.ones(_SOME, "f"))]), []),
        (lambda g: ops.concat([c := g.constant(np.zeros(_SOME, "f")), c]), ["Concat"]),
        (lambda g: ops.sqrt(ops.sum(ops.transpose(g.constant(np.ones((3, 2)))))), []),
        (lambda g: ops.add(ops.gaussian(g, 3), 1.0), ["Gaussian", "Sum"]),
        (lambda g: ops.dropout(g.constant(C), 0.5)[0], ["Dropout", "Slice"]),
        (lambda g: g.function("f", np.exp, af.TensorSpec.of(3))(g.constant(C)), ["Function"]),
        (lambda g: g.op("sure", ops.Exp(), retries=1)(g.constant(C)), ["Exp"]),
        (lambda g: g.apply(Fragile(), g.constant(C)), []),
    ],
)
def test_what_is_computed_once(make, left) -> None:
    """What reads nothing or constants alone, has no state, and is not much larger than what it is made of."""
    graph = af.Graph("g")
    made = make(graph)
    reader = graph.function("read", lambda value: None, outputs=())
    reader(made)
    assert steps(graph, [reader]) == [*left, "Function"]


def test_updates_and_sums_of_several_producers_are_not() -> None:
    graph = af.Graph("g")
    w, y = graph.variable("w", (3,)), graph.blob("y", (3,))
    graph.op("assign", Constant(C))() >> graph.op("copy", ops.Copy()) >> [w]
    for name in ("one", "other"):
        graph.op(name, Constant(C)) >> [y]
    assert sorted(steps(graph)) == ["Constant", "Constant", "Copy", "Sum"]
    assert graph.run_sync()[y].tolist() == [1.0, 4.0, 8.0]
    assert w.value.tolist() == C.tolist()


@pytest.mark.parametrize("place", PLACES)
def test_the_plan_shows_them_apart(place) -> None:
    graph, _, y = network(place, fuse=False)
    plan = graph.compile([y])
    kinds = [op.operation.kind for op in plan.ops if op.operation.kind not in ("Stage", "Transfer")]
    assert kinds == ["Sum", "Multiply", "Subtract", "Divide"]
    assert "\nconstant: c, number, number_1, d" in plan.summary()
    assert "style=dotted" in plan.to_dot()
    assert plan.footprint(af.Place.parse(place)).constant_bytes == 12 + 12 + 4 + 4
    assert "constants: 32 bytes" in str(plan.footprint(af.Place.parse(place)))


# -- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_what_is_fetched_is_the_applications(place) -> None:
    graph, x, y = network(place)
    d = graph.resolve("d/out")
    for _ in range(3):
        result = graph.run_sync({x: X}, fetch=[y, d])
        assert str(graph.resolve("d/out").place) == place
        np.testing.assert_allclose(af.to_numpy(result[d]), np.exp(C), rtol=1e-6)
        np.testing.assert_allclose(af.to_numpy(result[y]), expected(X), rtol=1e-6)
        if place == "cpu":
            result[d][:] = 0


def test_a_frame_of_constants_alone() -> None:
    graph = af.Graph("g")
    total = ops.sum(graph.constant(C))
    assert graph.run_sync()[total] == C.sum()
    assert dict(graph.run_sync(fetch=total.producers[0])) == {}


def test_no_op_writes_into_them() -> None:
    """Not a kernel that computes in place, and not a function."""
    graph = af.Graph("g")
    x, c = graph.blob("x", (3,)), graph.constant(C)
    y = ops.multiply(ops.add(c, x), x)
    for _ in range(3):
        np.testing.assert_array_equal(graph.run_sync({x: X}, fetch=y)[y], (C + X) * X)

    def spoil(value: np.ndarray) -> np.ndarray:
        value[:] = 0
        return value

    z = graph.function("spoil", spoil, af.TensorSpec.of(3))(c)
    with pytest.raises(OpError, match="read-only"):
        graph.run_sync(fetch=z)
    np.testing.assert_array_equal(graph.run_sync({x: X}, fetch=y)[y], (C + X) * X)


def test_programs_share_them_until_the_graph_changes(calls) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,), place="sim:0")
    c = graph.apply(Fragile(), graph.constant(C, place="sim:0"))
    y, z = ops.add(x, c, name="y"), ops.multiply(x, c, name="z")
    for fetch in (y, z, [y, z], y):
        graph.run_sync({x: X}, fetch=fetch)
    assert calls == ["fragile"]
    (on_sim,) = graph.engine.resources.constants[x.place].values()
    w = ops.multiply(y, 2.0, name="w")
    np.testing.assert_array_equal(af.to_numpy(graph.run_sync({x: X}, fetch=w)[w]), (X + C) * 2)
    assert calls == ["fragile"] * 2
    assert all(array is not on_sim for array in graph.engine.resources.constants[x.place].values())
    graph.prune([z])
    np.testing.assert_array_equal(af.to_numpy(graph.run_sync({x: X})[z]), X * C)
    assert calls == ["fragile"] * 3


def test_a_dry_run_computes_none(calls) -> None:
    graph = af.Graph("g", dry_run=True)
    c = graph.apply(Fragile(), graph.constant(-C))
    assert graph.run_sync()[c] == c.spec
    assert not calls


# -- memory -----------------------------------------------------------------------------------------------------------


def test_a_budget_counts_them() -> None:
    def graph_with(budget: int) -> tuple[af.Graph, af.Blob]:
        graph = af.Graph("g", memory_budget=budget, fuse=False)
        x, big = graph.blob("x", (1000,)), graph.constant(np.ones(1000, "f"))
        return graph, ops.sum(ops.add(ops.add(x, big), big))

    graph, y = graph_with(12_100)
    assert graph.run_sync({"x": np.ones(1000, "f")}, fetch=y)[y] == 3000
    with pytest.raises(OutOfMemoryError, match=r"constants: 4,000 bytes"):
        graph_with(8_000)[0].compile()


def test_a_device_holds_each_once() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (1000,), place="sim:0")
    big = graph.constant(np.ones(1000, "f"), place="sim:0")
    y = ops.add(ops.add(x, big), big)
    for _ in range(3):
        graph.run_sync({x: np.ones(1000, "f")}, fetch=y)
    memory = graph.engine.resources.devices[x.place].memory
    held = memory.held_bytes
    for _ in range(5):
        graph.run_sync({x: np.ones(1000, "f")}, fetch=y)
    assert memory.held_bytes == held
    assert sum(array.nbytes for array in graph.engine.resources.constants[x.place].values()) == 4000


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_a_failure_names_the_op(place) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,), place=place)
    bad = graph.apply(Fragile(), graph.constant(-C, place=place), name="bad")
    y, z = ops.add(x, bad), ops.add(x, 1.0)
    for _ in range(2):
        with pytest.raises(
            OpError, match=r"op 'bad' \(Fragile\(\)\) failed with ValueError: less than nothing"
        ) as caught:
            graph.run_sync({x: X}, fetch=y)
        assert "test_constants.py" in str(caught.value)
        assert caught.value.op is bad.producers[0]
        with pytest.raises(ValueError, match="less than nothing"):
            caught.value.replay()
        np.testing.assert_array_equal(af.to_numpy(graph.run_sync({x: X}, fetch=z)[z]), X + 1)


def test_floating_point_errors_are_trapped_where_that_is_asked_for() -> None:
    graph = af.Graph("g")
    y = ops.log(graph.constant(-1.0))
    for _ in range(2):
        assert np.isnan(graph.run_sync()[y])
        with np.errstate(invalid="raise"), pytest.raises(OpError, match=r"op 'log' .* FloatingPointError"):
            graph.run_sync()


def test_an_op_that_fails_in_a_frame_is_replayed_with_them() -> None:
    graph = af.Graph("g")
    x, c = graph.blob("x", (3,)), graph.constant(C)

    def check(x: np.ndarray, c: np.ndarray) -> np.ndarray:
        raise ValueError(f"{c.tolist()}")

    graph.function("check", check, af.TensorSpec.of(3))(x, c)
    with pytest.raises(OpError, match=r"0\.5, 2\.0, 4\.0") as caught:
        graph.run_sync({x: X})
    with pytest.raises(ValueError, match=r"0\.5"):
        caught.value.replay()


# -- watching ---------------------------------------------------------------------------------------------------------


def test_watchers_see_constants_and_not_ops_that_never_run() -> None:
    graph, x, y = network()
    resources = graph.engine.resources
    early = resources.watch()
    graph.run_sync({x: X}, fetch=y)

    def states(monitor: Any) -> dict[str, str]:
        return {op.name: NodeState(monitor.states[op.id]).name for op in graph.ops}

    done = dict.fromkeys(("sum", "multiply", "subtract", "y"), "DONE")
    constant = dict.fromkeys(("c", "d", "number", "number_1"), "CONSTANT")
    assert states(early) == done | constant
    resources.unwatch()
    late = resources.watch()
    assert states(late) == dict.fromkeys(done, "IDLE") | constant
    resources.unwatch()


# -- ranks ------------------------------------------------------------------------------------------------------------


async def test_each_rank_computes_them_itself() -> None:
    def build(graph: af.Graph) -> list[af.Blob]:
        with graph.at("0/cpu"):
            x = graph.blob("x", (3,))
            c = ops.exp(graph.constant(C), name="c")
        with graph.at("1/cpu"):
            return [ops.add(ops.multiply(x, c), 2.0, name="y"), c]

    ranks = Ranks(build)
    assert [graph.compile().summary().count("send of") for graph in ranks.graphs] == [1, 0]  # of x
    first, second = await ranks.all(lambda graph, blobs: graph.run({"x": X}, fetch=blobs))
    np.testing.assert_allclose(first["c/out"], np.exp(C), rtol=1e-6)
    np.testing.assert_allclose(second["y/out"], X * np.exp(C) + 2, rtol=1e-6)
    assert len(first) == len(second) == 1
    await ranks.aclose()


# -- random graphs ----------------------------------------------------------------------------------------------------

_UNARY = {"negative": np.negative, "absolute": np.absolute, "square": np.square}
_BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum}
_RESHAPED = {(2, 3): (6,), (6,): (3, 2), (3, 2): (2, 3), (): (1,), (1,): ()}
_LEAVES = ["fed", "fed", "array", "array", "number"]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Leaves, then operations by name with the positions of what they read."""
    leaves = [("fed", (2, 3)), ("array", (2, 3))]
    leaves += [
        (draw(st.sampled_from(_LEAVES)), draw(st.sampled_from([*_RESHAPED]))) for _ in range(draw(st.integers(0, 4)))
    ]
    program: list[tuple[Any, ...]] = list(leaves)
    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from([*_UNARY, *_BINARY, *_BINARY, "reshape", "scaled", "sum", "large"]))
        reads = [draw(st.integers(0, len(program) - 1)) for _ in range(2 if kind in _BINARY else 1)]
        program.append((kind, *reads))
    return program


def computed(program: list[tuple[Any, ...]], feeds: list[np.ndarray], made: Any) -> list[Any]:
    """The values of a program, by NumPy (``made`` is None) or as blobs."""
    values: list[Any] = []
    fed, random = iter(feeds), np.random.default_rng(0)
    for kind, *rest in program:
        if kind in ("fed", "array", "number"):
            shape = rest[0] if kind != "number" else ()
            constant = random.integers(-3, 4, shape).astype(float)
            value = next(fed) if kind == "fed" else constant if made is None else made(constant)
        else:
            x, *more = [values[i] for i in rest]
            if more and np.broadcast_shapes((), x.shape) != more[0].shape and () not in (x.shape, more[0].shape):
                more = [x]
            if kind == "reshape":
                target = _RESHAPED.get(x.shape, x.shape)
                value = x.reshape(target) if made is None else ops.reshape(x, target)
            elif kind == "scaled":
                value = x * 0.5 if made is None else ops.multiply(x, 0.5)
            elif kind == "sum":
                value = np.sum(x) if made is None else ops.sum(x)
            elif kind == "large":
                shape = (2000, 6) if x.shape == (6,) else x.shape
                value = np.broadcast_to(x, shape) if made is None else ops.broadcast_to(x, shape)
            else:
                table = _UNARY | _BINARY
                value = table[kind](x, *more) if made is None else getattr(ops, kind)(x, *more)
        values.append(np.asarray(value) if made is None else value)
    return values


@given(programs(), st.sampled_from(PLACES), st.booleans(), st.data())
def test_random_graphs_give_what_numpy_gives(program, place, capture, data) -> None:
    graph = af.Graph("random", capture=capture)
    shapes = [rest[0] for kind, *rest in program if kind == "fed"]
    with graph.at(place):
        sources = [graph.blob(f"x{i}", shape, "float64") for i, shape in enumerate(shapes)]
        blobs = computed(program, sources, graph.constant)
    fetched = data.draw(st.lists(st.integers(len(sources), len(blobs) - 1), min_size=1, unique=True))
    random = np.random.default_rng(1)
    frames = [[random.integers(-3, 4, shape).astype(float) for shape in shapes] for _ in range(5)]

    async def run() -> list[Any]:
        feeds = [dict(zip(sources, frame, strict=True)) for frame in frames]
        async with aclosing(graph.stream(feeds, fetch=[blobs[i] for i in fetched], in_flight=3)) as stream:
            results = [result async for result in stream]
        await graph.aclose()
        return results

    for result, frame in zip(asyncio.run(run()), frames, strict=True):
        values = computed(program, frame, None)
        for i in fetched:
            np.testing.assert_allclose(af.to_numpy(result[blobs[i]]), values[i], rtol=1e-12)
