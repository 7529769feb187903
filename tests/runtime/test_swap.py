"""New weights under load: a frame computes with the old ones or the new ones, whole, and nothing is lost.

A schedule is drawn from its seed: when runs and batched requests come, how long the functions between their weights
take, which of them fail or are cancelled, when frames update weights, and when these are swapped, by values that fit or
do not, whose caller may be cancelled, too.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.ops.cpu import linalg
from actorflow.testing import virtual_time_loop
from tests.support.effort import FULL, slow

SCHEDULES, PER_TEST = (10_000, 500) if FULL else (300, 15)
NAMES = ("first", "second", "third")
#: What a swap adds to the number of the one before; updates of frames add 1.
VERSION = 1000


class Schedule:
    """A graph that reads three weights one after the other, with functions between, and all that happens to it."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        self.durations = draw.choice(((0.0,), (0.0, 0.003), (0.001, 0.01)))
        self.updates = draw.random() < 0.5
        self.poisons = draw.choice((0.0, 0.2))
        self.begun, self.done = [0], 0  # versions that may be read, and the last one whose swap has returned
        self.counts = {"runs": 0, "swaps": 0, "refused": 0, "cancelled": 0}
        self.graph = graph = af.Graph("weights")
        x = graph.blob("x", ("row",), "int64")
        weights = [graph.variable(name, (), "int64") for name in NAMES]
        read, previous = [], x
        for weight in weights:
            passed = graph.blob(f"behind {weight.name}", ("row",), "int64")
            [previous + 0 * weight] >> graph.function(f"wait for {weight.name}", self.pass_on) >> [passed]
            read.append(weight + 0 * passed)
            previous = passed
        self.read = af.ops.stack(read, 1)
        if self.updates:
            self.train = [weight.assign(weight + 1) for weight in weights]
        self.model = af.Model.of(graph, fetch=self.read)

    async def pass_on(self, value: Any) -> Any:
        duration_s = self.draw.choice(self.durations)
        if duration_s:
            await asyncio.sleep(duration_s)
        if self.draw.random() < self.poisons / 3:
            raise ValueError("poisoned")
        return value

    def check(self, rows: Any, oldest: int) -> None:
        """All that a frame has read is of one version, which was there in its time."""
        assert len(np.unique(rows)) == 1, rows
        version, updates = divmod(int(rows[0, 0]), VERSION)
        assert oldest <= version
        assert version in self.begun
        assert not updates or self.updates
        self.counts["runs"] += 1

    async def ask(self, batcher: Any) -> None:
        draw, oldest = self.draw, self.done
        feeds, how = {"x": [1]}, draw.choice(("alone", "batched", "trained" if self.updates else "alone"))
        if how == "batched":
            run = batcher.run(feeds)
        elif how == "alone":
            run = self.graph.run(feeds, fetch=[self.read])
        else:
            run = self.graph.run(feeds, fetch=[self.read, *self.train], atomic=True)
        try:
            async with asyncio.timeout(draw.choice((None, None, None, 0.004))):
                self.check((await run)[self.read], oldest)
        except (af.OpError, TimeoutError):
            pass

    async def swap(self, number: int) -> None:
        values = {name: np.int64(number * VERSION) for name in NAMES}
        wrong = self.draw.choice(({}, {}, {"third": np.zeros(2, "int64")}, {"other": 1}))
        self.begun += [number] * (not wrong)
        self.counts["swaps"] += 1
        try:
            async with asyncio.timeout(self.draw.choice((None, None, 0.0, 0.002))):
                await self.model.swap({**values, **wrong})
        except af.CheckpointError:
            self.counts["refused"] += 1
        except TimeoutError:
            self.counts["cancelled"] += 1
        else:
            assert not wrong
            self.done = number

    async def main(self) -> None:
        async with asyncio.timeout(1000), self.graph, self.model.batched(max_rows=3) as batcher:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.draw.randint(5, 20)):
                    group.create_task(self.ask(batcher))
                    await asyncio.sleep(self.draw.choice((0.0, 0.0, 0.001, 0.004)))
                    if self.draw.random() < 0.4:
                        group.create_task(self.swap(self.counts["swaps"] + 1))
            self.check(np.array([[variable.value for variable in self.graph.variables]]), self.done)
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("first", slow(range(0, SCHEDULES, PER_TEST), but={0}))
def test_each_frame_has_the_old_weights_or_the_new_ones(first: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(first, first + PER_TEST):
        schedule = Schedule(seed)
        try:
            with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
                runner.run(schedule.main())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counts = {name: counts.get(name, 0) + count for name, count in schedule.counts.items()}
    assert counts["runs"] > 5 * PER_TEST  # the schedules are about something
    assert counts["swaps"] > counts["refused"] + counts["cancelled"] > counts["cancelled"] > PER_TEST / 10


def network() -> af.Model:
    graph = af.Graph("net")
    y = af.nn.InnerProduct(2, name="fc")(graph.blob("x", ("batch", 3)))
    return af.Model(graph, {"x": graph["x"]}, {"y": y})


async def of_safetensors(model: af.Model, folder: Path) -> Any:
    await af.save_weights(model.graph, folder / "w.safetensors")
    return folder / "w.safetensors"


async def of_graph(model: af.Model, folder: Path) -> Any:
    await model.save(folder / "net.af")
    return folder / "net.af"


async def of_arrays(model: af.Model, _: Path) -> Any:
    return {name: variable.value for name, variable in model.variables.items()}


@pytest.mark.parametrize("source", [of_safetensors, of_graph, of_arrays])
async def test_weights_come_from_files_and_arrays(source: Callable[..., Any], tmp_path: Path) -> None:
    trained, served = network(), network()
    trained.variables["fc/bias"].value = [1, 2]
    given = await source(trained, tmp_path)
    async with served.graph, trained.graph:
        assert await served.swap(given) == ((), ())
        rows = {"x": np.ones((4, 3), np.float32)}
        np.testing.assert_array_equal((await served.run(rows))["y"], (await trained.run(rows))["y"])
    if isinstance(given, dict):
        assert not np.shares_memory(given["fc/bias"], served.variables["fc/bias"].value)


WRONG = (
    ({"fc/weights": np.zeros((2, 3), "f")}, "it lacks 'fc/weight'.*the graph has no variable 'fc/weights'"),
    ({"fc/weight": np.zeros((3, 2), "f")}, r"variable 'fc/weight': expected shape \(2, 3\), got \(3, 2\)"),
    ({"fc/weight": np.zeros((2, 3))}, "variable 'fc/weight': expected dtype float32, got float64"),
)


@pytest.mark.together("wrong, message", WRONG)
async def test_what_does_not_fit_is_named_and_changes_nothing(wrong: Any, message: str) -> None:
    model = network()
    before = {name: variable.value for name, variable in model.variables.items()}
    given: dict[str, Any] = {"fc/bias": np.ones(2, "f"), **wrong}
    with pytest.raises(af.CheckpointError, match=f"the state dict does not fit 'net': .*{message}"):
        await model.swap(given)
    assert all(model.variables[name].value is not None for name in before)
    for name, value in before.items():
        np.testing.assert_array_equal(model.variables[name].value, value)
    loaded = await model.swap({"fc/bias": np.ones(2, "f"), "more": 1}, strict=False)
    assert loaded == (("fc/weight",), ("more",))
    assert model.variables["fc/bias"].value.tolist() == [1, 1]


async def test_an_op_cannot_await_new_weights_of_its_own_graph() -> None:
    graph = af.Graph("own")
    w, spec = graph.variable("w", (2,)), af.TensorSpec.of((2,))
    model: af.Model

    async def renew(x: Any) -> Any:
        await model.swap({"w": x})
        return x

    model = af.Model.of(graph, fetch=graph.function("renew", renew, spec)(w + 1))
    async with graph:
        with pytest.raises(af.OpError, match="op 'renew' of graph 'own' cannot await new weights of its own graph"):
            await model.run({})
    assert not w.value.any()


async def test_what_does_not_fit_on_a_device_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = af.Graph("there")
    weights = [graph.variable(name, (2,), place="sim:0") for name in ("v", "w")]
    model = af.Model.of(graph, fetch=weights[0] + weights[1])
    async with graph:
        await model.run({})
        device, uploads = graph.engine.resources.device(weights[0].place), 0
        upload = device.upload

        def full(value: Any) -> Any:
            nonlocal uploads
            uploads += 1
            if uploads == 2:
                raise af.OutOfMemoryError("no room for the second one")
            return upload(value)

        ones = {"v": np.ones(2, "f"), "w": np.ones(2, "f")}
        monkeypatch.setattr(device, "upload", full)
        with pytest.raises(af.OutOfMemoryError, match="no room for the second one"):
            await model.swap(ones)
        assert (await model.run({}))["sum/out"].tolist() == [0, 0]
        await model.swap(ones)
        assert (await model.run({}))["sum/out"].tolist() == [2, 2]
        assert uploads == 4  # and no frame has to


async def test_what_kernels_keep_of_weights_is_there_for_old_frames_and_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, widened, gate, made = af.Graph("halves"), linalg.widened, asyncio.Event(), 0
    x, w = graph.blob("x", (1, 3), "float16"), graph.variable("w", (2, 3), "float16")

    async def wait(x: Any) -> Any:
        if x[0, 0] == 2:
            await gate.wait()
        return x

    y = af.ops.inner(graph.function("wait", wait, x.spec)(x), w)
    model = af.Model(graph, {"x": x}, {"y": y})

    def widen(array: Any) -> Any:
        nonlocal made
        made += array.shape == w.shape
        return widened(array)

    async def run(number: int) -> float:
        return float((await model.run({"x": np.full((1, 3), number, "float16")}))["y"][0, 0])

    monkeypatch.setattr(linalg, "widened", widen)
    w.value = np.ones((2, 3), "float16")
    async with graph, asyncio.timeout(60):
        assert [await run(1) for _ in range(3)] == [3, 3, 3]
        assert made == 2  # kept from the second use on
        old = asyncio.create_task(run(2))
        swapping = asyncio.create_task(model.swap({"w": np.full((2, 3), 5, "float16")}))
        while w.value[0, 0] == 1:
            await asyncio.sleep(0)
        assert [await run(1) for _ in range(3)] == [15, 15, 15]
        assert not swapping.done()
        gate.set()
        assert await old == 6
        await swapping
        assert await run(1) == 15
    assert made == 3
