"""Values of branches and loops on devices: where they go in and come out, and that what comes of it is the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.ops.transfer import Transfer
from actorflow.plan.plan import Plan
from tests.support.effort import FULL, slow
from tests.support.flow_programs import ALL_BODIES, SHAPE, Eager, Graphs, Program

COUNT = 1000 if FULL else 30


def copies(plan: Plan) -> list[str]:
    """Copies between devices in a plan, then those in each body: how many to devices, and from them."""
    ways = [op.operation.target.kind == "sim" for op in plan.ops if isinstance(op.operation, Transfer)]
    inner = [part for op in plan.ops for body in op.bodies if isinstance(body, Plan) for part in copies(body)]
    return [f"{sum(ways)} in, {len(ways) - sum(ways)} out", *inner]


def scanned(x: af.Blob, w: af.Blob) -> Any:
    """A scan that takes nothing each time."""
    return af.scan(lambda c, _: (af.ops.exp(-c) * w, None), x, length=3)[0]


def taking(x: af.Blob, w: af.Blob) -> Any:
    """A scan that takes what it carries each time."""
    return af.scan(lambda c, _: (c * w, c), x, length=3)[1]


def swapping(x: af.Blob, w: af.Blob) -> Any:
    """Two values that are carried in turn."""
    return af.scan(lambda c, _: ((c[1], c[0] * w), None), (x, x * 2), length=3)[0][0]


def with_entries(x: af.Blob, w: af.Blob) -> Any:
    """A scan that is given an entry each time."""
    return af.scan(lambda c, entry: (c * w + entry, None), x, af.ops.stack([x, x * 2], 0))[0]


def picking(x: af.Blob, w: af.Blob) -> Any:
    """The same by a body that takes the entry out of the whole array."""
    entries, zero = af.ops.stack([x, x * 2], 0), af.ops.cast(af.ops.sum(x) * 0, "int64")
    step = lambda c, _: ((c[0] * w + af.ops.take(entries, c[1]), c[1] + 1), None)  # noqa: E731
    return af.scan(step, (x, zero), length=2)[0][0]


def until(x: af.Blob, w: af.Blob) -> Any:
    """A loop that asks the device each time."""
    return af.while_loop(lambda y: af.ops.sum(y) < 100, lambda y: y * w, x)


def nested(x: af.Blob, w: af.Blob) -> Any:
    """A branch in a loop."""
    return af.scan(lambda c, _: (af.cond(af.ops.sum(c) > 10, lambda c: c - w, lambda c: c * w, c), None), x, length=4)[
        0
    ]


def handed_on(x: af.Blob, w: af.Blob) -> Any:
    """A branch that gives what it was given."""
    return af.cond(af.ops.sum(x) > 100, lambda: x * w, lambda: x)


#: What is computed on a device, where its result is wanted, and the copies in the plan and in each body.
PLACED: list[tuple[Callable[..., Any], str, list[str]]] = [
    (scanned, "sim:0", ["1 in, 0 out", "0 in, 0 out"]),
    (scanned, "cpu", ["1 in, 1 out", "0 in, 0 out"]),
    (taking, "cpu", ["1 in, 0 out", "0 in, 1 out"]),
    (with_entries, "cpu", ["1 in, 2 out", "1 in, 0 out"]),
    (picking, "cpu", ["1 in, 1 out", "0 in, 0 out"]),
    (swapping, "cpu", ["1 in, 1 out", "0 in, 0 out"]),
    (until, "cpu", ["1 in, 1 out", "0 in, 1 out", "0 in, 1 out"]),
    (nested, "cpu", ["1 in, 1 out", "0 in, 1 out", "0 in, 0 out", "0 in, 0 out"]),
    (handed_on, "cpu", ["1 in, 2 out", "0 in, 0 out", "0 in, 0 out"]),
]


def built(make: Any, place: str, target: str = "cpu", **options: Any) -> tuple[af.Graph, af.Blob, af.Variable, af.Blob]:
    """A graph that computes one of them on a place, and copies the result to another."""
    graph = af.Graph("g", **options)
    x = graph.blob("x", [3])
    w = graph.variable("w", [3], init=[2.0, 1.5, 3.0], place=place)
    with graph.at(place):
        y = make(x, w)
    return graph, x, w, y if target == place else af.nn.parallel.CopyTo(target)(y)


@pytest.mark.together("make, target, expected", PLACED)
async def test_values_stay_on_the_device_that_they_are_on(make: Any, target: str, expected: list[str]) -> None:
    graph, x, w, y = built(make, "sim:0", target)
    host, host_x, host_w, host_y = built(make, "cpu")
    async with graph, host:
        assert copies(graph.compile([y])) == expected
        given = np.array([1, 2, 3], np.float32)
        for factor in ([2.0, 1.5, 3.0], [4.0, 3.0, 1.1]):
            w.value = host_w.value = np.array(factor, np.float32)
            wanted = (await host.run({host_x: given}, fetch=[host_y]))[host_y]
            results = [(await graph.run({x: given}, fetch=[y]))[y] for _ in range(2)]
            results += [r[y] async for r in graph.stream([{x: given}] * 5, fetch=[y], in_flight=3)]
            for result in results:
                np.testing.assert_allclose(af.to_numpy(result), wanted, rtol=1e-5)


async def test_what_is_fetched_is_nobody_elses_memory() -> None:
    async with af.Graph("g") as graph:
        x = graph.blob("x", [])
        w = graph.variable("w", [2], init=[1.0, 2.0], place="sim:0")
        with graph.at("sim:0"):
            y = af.cond(x > 0, lambda: w, lambda: w * 2)
            z, _ = af.scan(lambda c, _: (c, None), w, length=2)
        result = await graph.run({x: 1}, fetch=[y, z])
        arrays = [result[y], result[z], w.held]
        assert len({array.block.low for array in arrays}) == 3
        assert [array.get().tolist() for array in arrays] == [[1, 2]] * 3


async def test_an_update_with_what_a_branch_hands_on_is_a_value_of_its_own() -> None:
    async with af.Graph("g") as graph:
        x = graph.blob("x", [])
        v, w = (graph.variable(name, [2], init=[1.0, 2.0], place="sim:0") for name in "vw")
        with graph.at("sim:0"):
            [af.cond(x > 0, lambda: w, lambda: v * 2)] >> graph.op("keep", af.ops.Copy()) >> [v]
            [w * 3] >> graph.op("grow", af.ops.Copy()) >> [w]
        for value in (1, -1, 1, 1):
            await graph.run({x: value})
        assert (np.array(v.value).tolist(), np.array(w.value).tolist()) == ([27, 54], [81, 162])


@pytest.mark.together("kind", ["cond", "scan"])
async def test_memory_is_used_again_when_all_work_on_it_has_ended(kind: str) -> None:
    """A slow kernel reads what a body is given, and what follows the body wants memory of that type."""
    options = af.devices.SimOptions(memory_bandwidth=1e8)
    async with af.Graph("g", devices={"sim:0": options}, fuse=False) as graph:
        x, on = graph.blob("x", [64]), graph.blob("on", [], "bool")
        large = graph.variable("large", [4096, 64], init=1.0, place="sim:0")
        with graph.at("sim:0"):
            copy = af.ops.negative(x)
            with graph.at("sim:0", lane="side"):
                slow = af.ops.add(large, copy)  # 20 ms
            if kind == "cond":
                y = af.cond(on, lambda: copy, lambda: copy * 2)
            else:
                y, _ = af.scan(lambda c, _: (af.ops.cos(c), None), copy, length=2)
            for _ in range(3):
                y = af.ops.sin(y)
                y = y * af.ops.cos(y)
        for _ in range(3):
            result = await graph.run({x: np.ones(64, np.float32), on: True}, fetch=[slow, y])
            assert (af.to_numpy(result[slow]) == 0).all()


async def test_weights_are_copied_for_each_item_only_if_they_are_elsewhere() -> None:
    async with af.Graph("g") as graph:
        n = graph.blob("n", [], "int64")
        w = graph.variable("w", [2], init=[3.0, 1.0], place="sim:0")

        def emitted(n: Any) -> Iterator[Any]:
            for i in range(int(n)):
                yield np.array([i, 1], np.float32)

        item = graph.function("emitted", emitted, outputs=w.spec, emits=True, in_flight=2)(n)
        with graph.at("sim:0"):
            y = af.ops.exp(-item) * w
        joined = af.collect(y, length=3)
        assert copies(graph.compile([joined])) == ["0 in, 0 out", "1 in, 1 out"]
        expected = np.exp(-np.array([[0, 1], [1, 1], [2, 1]])) * [3, 1]
        np.testing.assert_allclose((await graph.run({n: 3}, fetch=[joined]))[joined], expected, rtol=1e-5)


class OnDevices(Graphs):
    """A graph in which each op is on a place that is drawn."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __getattribute__(self, name: str) -> Any:
        made = object.__getattribute__(self, name)
        if name.startswith("_") or name in ("zero", "whole", "call", "emit"):
            return made
        place = self._rng.choice(["cpu", "sim:0", "sim:0", "sim:1"])

        def somewhere(*given: Any, **more: Any) -> Any:
            flat = [part for each in given for part in (each if isinstance(each, list | tuple) else [each])]
            graph = next(each.graph.root for each in flat if isinstance(each, af.Blob))
            with graph.at(place):
                return made(*given, **more)

        return somewhere


@pytest.mark.any_loop
@pytest.mark.together("seed", slow(range(COUNT), but=range(COUNT // 2)), at_once=5)
async def test_random_programs_on_several_devices(seed: int) -> None:
    program = Program(seed, 2, ALL_BODIES)
    rng = np.random.default_rng(seed)
    given = rng.uniform(-1, 1, (2, *SHAPE))
    expected = program(Eager, *given)
    async with af.Graph("random") as graph:
        x, w = (graph.blob(name, SHAPE, "float64") for name in "xw")
        y = program(OnDevices(seed), x, w)
        for _ in range(2):
            result = (await graph.run({x: given[0], w: given[1]}, fetch=[y]))[y]
            np.testing.assert_allclose(af.to_numpy(result), expected, rtol=1e-12, atol=1e-12)
