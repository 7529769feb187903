"""The order of ops where several are ready."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import actorflow as af

SPEC = af.TensorSpec.of((), "int64")


def noted(order: list[str], name: str) -> Callable[[np.ndarray], np.ndarray]:
    def note(x: np.ndarray) -> np.ndarray:
        order.append(name)
        return x

    return note


@pytest.mark.usefixtures("calls_count_as_short")  # the order is that within a lane, or that on the loop
@pytest.mark.parametrize("fed", [True, False])
async def test_the_longest_way_to_go_first(fed: bool) -> None:
    order: list[str] = []
    graph = af.Graph("order")
    x = graph.blob("x", (), "int64")
    start = x if fed else graph.function("start", noted(order, "start"), SPEC, lane="main")(x)
    for length in (1, 3, 2):
        y = start
        for step in range(length):
            name = f"{length}.{step}"
            y = graph.function(name, noted(order, name), SPEC, lane="main")(y)
    async with graph:
        for _ in range(4):  # on the lane, then on the loop
            order.clear()
            await graph.run({x: 1})
            assert [name for name in order if name.endswith(".0")] == ["3.0", "2.0", "1.0"]


@pytest.mark.parametrize("fed", [True, False])
async def test_a_priority_counts_as_so_many_ops_and_for_what_leads_there(fed: bool) -> None:
    order: list[str] = []
    graph = af.Graph("order")
    x = graph.blob("x", (), "int64")
    start = x if fed else graph.function("start", noted(order, "start"), SPEC, lane="main")(x)
    long = graph.function("long", noted(order, "long"), SPEC, lane="main")(start)
    graph.function("behind it", noted(order, "behind it"), SPEC, lane="main")(long)
    graph.function("lowered", noted(order, "lowered"), SPEC, lane="main", priority=-1)(start)
    graph.function("plain", noted(order, "plain"), SPEC, lane="main")(start)
    before = graph.function("before", noted(order, "before"), SPEC, lane="main")(start)
    graph.function("urgent", noted(order, "urgent"), SPEC, lane="main", priority=5)(before)
    async with graph:
        await graph.run({x: 1})
    assert [name for name in order if name in {"before", "long", "plain", "lowered"}] == [
        "before",
        "long",
        "plain",
        "lowered",
    ]


async def test_reading_a_constant_variable_is_no_wait() -> None:
    order: list[str] = []
    graph = af.Graph("order")
    x, w = graph.blob("x", (), "int64"), graph.variable("w", (), "int64")
    graph.function("plain", noted(order, "plain"), SPEC, lane="main")(x)
    [w] >> graph.function("update", noted(order, "update"), priority=1, lane="main") >> [w]
    reader = graph.function("reader", lambda w, x: order.append("reader") or x, SPEC, priority=2, lane="main")
    reader(graph.variable("constant", (), "int64"), x)
    async with graph:
        await graph.run({x: 1})
    assert order.index("reader") < order.index("plain")
    assert set(order) == {"plain", "update", "reader"}
