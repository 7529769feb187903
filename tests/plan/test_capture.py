"""The choice of ops that are captured as one."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices.sim import SimOptions
from actorflow.plan.capture import may_be_captured
from actorflow.plan.plan import Plan


def names(plan: Plan) -> list[list[str]]:
    """The ops of each segment."""
    return [[plan.ops[index].node.name for index in segment] for segment in plan.segments]


def graph(**options: Any) -> af.Graph:
    return af.Graph("segments", **{"capture": True, "fuse": False, **options})


def scaled(target: af.Graph, name: str, x: af.Blob, lane: str | None = "main", **options: Any) -> af.Blob:
    (y,) = (target.blob(f"{name}.out", x.shape, place="sim:0"),)
    [x] >> target.op(name, af.ops.Scale(2.0), place="sim:0", lane=lane, **options) >> [y]
    return y


def summed(target: af.Graph, name: str, *terms: af.Blob, lane: str = "main") -> af.Blob:
    y = target.blob(f"{name}.out", terms[0].shape, place="sim:0")
    list(terms) >> target.op(name, af.ops.Sum(), place="sim:0", lane=lane) >> [y]
    return y


def test_a_chain_is_one() -> None:
    g = graph()
    x = g.blob("x", (4,), place="sim:0")
    scaled(g, "c", scaled(g, "b", scaled(g, "a", x)))
    plan = g.compile()
    assert names(plan) == [["a", "b", "c"]]
    assert plan.summary().count("captured: a, b, c as one, sim:0 main") == 1


def test_ops_without_lanes_get_one() -> None:
    g = graph()
    x = g.blob("x", (4,), place="sim:0")
    branches = [scaled(g, f"branch{i}", x, lane=None) for i in range(3)]
    summed(g, "total", *branches)
    assert names(g.compile()) == [["branch0", "branch1", "branch2", "total"]]


def test_a_way_over_another_lane_divides() -> None:
    g = graph()
    x = g.blob("x", (4,), place="sim:0")
    b = scaled(g, "b", scaled(g, "a", x))
    other = scaled(g, "other", b, lane="side")
    c = scaled(g, "c", b)
    scaled(g, "e", summed(g, "d", c, other))
    assert names(g.compile()) == [["a", "b", "c"], ["d", "e"]]


def test_two_lanes_that_need_each_other_both_ways() -> None:
    """Neither run has a way out and back in by itself, but together they would wait for each other."""
    g = graph()
    x = g.blob("x", (4,), place="sim:0")
    a, b = scaled(g, "a", x, "left"), scaled(g, "b", x, "right")
    scaled(g, "needs_b", b, "left")
    scaled(g, "needs_a", a, "right")
    assert names(g.compile()) == [["b", "needs_a"]]


@pytest.mark.together(
    "middle",
    [
        lambda g, x: g.function("f", lambda v: v, x.spec, place="cpu")(x),
        lambda g, x: scaled(g, "patient", x, timeout=5.0),
        lambda g, x: scaled(g, "again", x, retries=1),
        lambda g, x: af.ops.dropout(x, 0.5, seed=1),
        lambda g, x: af.ops.reshape(af.ops.reshape(x, (2, 2)), (4,)),
    ],
    ids=["function", "timeout", "retries", "random", "view"],
)
def test_what_is_not_captured_divides(middle: Any) -> None:
    g = graph()
    x = g.blob("x", (4,), place="sim:0")
    before = scaled(g, "b", scaled(g, "a", x))
    scaled(g, "d", scaled(g, "c", middle(g, before)))
    assert names(g.compile()) == [["a", "b"], ["c", "d"]]


@pytest.mark.together(
    "options",
    [
        {"capture": False},
        {"sequential": True},
        {"memory_budget": 1 << 20},
        {"devices": {"sim:0": SimOptions(memory_budget=1 << 20)}},
        {"force_cpu": True},
    ],
    ids=["off", "sequential", "budget", "device budget", "cpu"],
)
def test_where_there_are_none(options: dict[str, Any]) -> None:
    g = graph(**options)
    x = g.blob("x", (4,), place="sim:0")
    scaled(g, "b", scaled(g, "a", x))
    plan = g.compile()
    assert not plan.segments
    assert "captured" not in plan.summary()


class Step(NamedTuple):
    inputs: tuple[int, ...]
    lane: str | None
    place: str
    is_plain: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple),
        st.sampled_from((None, "left", "left", "right")),
        st.sampled_from(("sim:0", "sim:0", "sim:0", "sim:1", "cpu")),
        st.sampled_from((False, False, False, True)),
    ),
    min_size=2,
    max_size=24,
)


@given(steps=STEPS)
def test_nothing_waits_for_itself(steps: list[Step]) -> None:
    g = graph()
    values = [g.blob("x", (3,))]
    for number, step in enumerate(steps):
        inputs = [values[i % len(values)] for i in step.inputs]
        if step.is_plain:
            y = g.function(f"f{number}", lambda *v: v[0], values[0].spec, place=step.place, lane=step.lane)(*inputs)
        else:
            y = g.blob(f"y{number}", (3,), place=step.place)
            inputs >> g.op(f"op{number}", af.ops.Sum(), place=step.place, lane=step.lane) >> [y]
        values.append(y)
    plan = g.compile()
    node_of = list(range(len(plan.ops)))
    for segment in plan.segments:
        ops = [plan.ops[index] for index in segment]
        assert len(ops) > 1
        assert all(may_be_captured(op) for op in ops)
        assert len({(op.place, op.lane) for op in ops}) == 1
        assert list(segment) == sorted(set(segment))
        for index in segment:
            assert node_of[index] == index, "an op is in two segments"
            node_of[index] = -segment[0] - 1
    # With each segment as one node, all nodes can be taken one behind the other.
    edges = {
        (node_of[op.index], node_of[consumer])
        for op in plan.ops
        for slot in op.outputs
        for consumer in plan.slots[slot].consumers
    }
    left = set(node_of)
    while left:
        waiting = {after for before, after in edges if before in left and before != after}
        assert left - waiting, "segments wait for each other"
        left &= waiting
