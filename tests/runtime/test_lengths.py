"""Lengths of open axes, frame by frame: what errors, recordings, spans and the page say of them."""

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.trace.recording import TraceCopy, read_trace
from actorflow.web.telemetry import Telemetry
from actorflow.web.vitals import Vitals
from actorflow.web.wire import capture
from tests.support.effort import FULL


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((count, 3), np.float32)}


def doubled(**options: Any) -> af.Graph:
    graph = af.Graph("open", **options)
    ops.scale(graph.blob("x", ("batch", 3)), 2.0, name="double")
    return graph


async def test_a_failed_frame_says_how_long_its_axes_were() -> None:
    def picky(x: np.ndarray) -> np.ndarray:
        if len(x) == 4:
            raise ValueError("not four")
        return x

    graph = af.Graph("open")
    x = graph.blob("x", ("batch", 3))
    graph.function("picky", picky, x.spec)(x)
    async with graph:
        await graph.run(rows(5))
        with pytest.raises(af.OpError, match=r"(?sm)not four.*created at.*\n  with batch = 4$"):
            await graph.run(rows(4))
        await graph.run(rows(2))
        assert graph.engine.errors[-1].message.endswith("with batch = 4")


async def test_a_recording_keeps_the_lengths_of_frames(tmp_path: Path) -> None:
    graph = doubled()
    async with graph:
        for count in (7, 1, 7):
            await graph.run(rows(count))
        await graph.save_trace(tmp_path / "trace.json.gz")
    expected = {0: (("batch", 7),), 1: (("batch", 1),), 2: (("batch", 7),)}
    assert graph.recording().lengths == expected
    assert read_trace(tmp_path / "trace.json.gz").lengths == expected
    events = json.loads(TraceCopy.of(graph).recording().to_json())["traceEvents"]
    said = [event["args"] for event in events if event.get("cat") == "frame" and event["ph"] == "b"]
    assert said == [{"frame": number, "axes": dict(lengths)} for number, lengths in expected.items()]


async def test_spans_have_lengths_as_attributes() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    graph = doubled()
    graph.instrument(tracer_provider=provider)
    async with graph:
        await graph.run(rows(6))
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "run open"]
    assert span.attributes is not None
    assert span.attributes["actorflow.axes.batch"] == 6


async def test_the_page_is_told_of_open_shapes_and_of_lengths() -> None:
    graph = doubled()
    async with graph:
        for count in (3, 5):
            await graph.run(rows(count))
        encoded = capture(graph.name, graph.revision, graph.nodes)
        nodes = json.loads(encoded.message)["nodes"]
        tracks, _ = Telemetry(graph.engine, encoded, 0).encode_calls(None)
        assert [node["shape"] for node in nodes if node["name"] == "x"] == [["batch", 3]]
        assert json.loads(tracks)["lengths"] == [[0, "batch = 3"], [1, "batch = 5"]]


async def test_frames_that_wait_are_listed_with_their_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorflow.web.vitals._OLD_S", 0.0)
    graph = af.Graph("open")
    x = graph.blob("x", ("batch", 3))
    seen: list[Any] = []

    async def look(value: np.ndarray) -> np.ndarray:
        seen.extend(Vitals(graph.engine).report()["waiting"])
        return value

    graph.function("look", look, x.spec)(x)
    async with graph:
        await graph.run(rows(9))
    assert [frame["lengths"] for frame in seen] == ["batch = 9"]


async def test_a_length_that_takes_more_than_the_budget_fails_alone() -> None:
    graph = doubled(memory_budget=1_000)
    async with graph:
        await graph.run(rows(10))
        with pytest.raises(af.OutOfMemoryError, match=r"needs [\d,]+ bytes with batch = 1000, its budget is 1,000"):
            await graph.run(rows(1000))
        (doubled_rows,) = (await graph.run(rows(11))).values()
        assert doubled_rows.shape == (11, 3)


async def test_constants_that_follow_from_lengths_are_those_of_each_frame() -> None:
    graph = af.Graph("open")
    x = graph.blob("x", ("batch",))
    count = ops.sum(ops.fill(graph, 1.0, x.shape))  # an op that is the same for all lengths, of one that is not
    half = ops.scale(count, 0.5)
    table = graph.constant(np.arange(4.0, dtype=np.float32))
    y = x * half + ops.sum(table)
    async with graph:
        for length in (3, 8, 3, 1):
            result = await graph.run({x: np.ones(length, np.float32)}, fetch=[y])
            np.testing.assert_array_equal(result[y], np.full(length, length / 2 + 6))
        assert len(graph.engine.resources.constants[x.place]) == 4  # one of each length, and one of all


class TestMemory:
    """What the plans of several lengths take: no more than those that are kept, and in steady state none is made."""

    def training(self, place: str, **options: Any) -> tuple[af.Graph, list[Any]]:
        graph = af.Graph("lengths", deterministic=True, **options)
        with graph.at(place):
            x, labels = graph.blob("x", ("batch", 16, 16, 1)), graph.blob("labels", ("batch",), "int64")
            loss = ops.softmax_loss(nn.LeNet(4, (2, 3, 5))(x), labels)
            return graph, [nn.SGD(0.1, momentum=0.9).minimize(loss)]

    def feeds(self, count: int) -> dict[str, np.ndarray]:
        return {"x": np.ones((count, 16, 16, 1), np.float32), "labels": np.zeros(count, np.int64)}

    @pytest.mark.parametrize(("place", "options"), [("cpu", {}), ("sim:0", {}), ("sim:0", {"capture": True})])
    async def test_no_buffer_is_made_once_all_plans_are(self, place: str, options: dict[str, Any]) -> None:
        graph, fetch = self.training(place, **options)
        random, counts = np.random.default_rng(0), np.arange(1, 25, 1 if FULL else 3)
        async with graph:
            for _ in range(2):
                for count in random.permutation(counts):
                    await graph.run(self.feeds(count), fetch=fetch)
            memory = graph.engine.resources.device(af.Place.parse(place)).memory
            before = memory.allocations, memory.held_bytes
            for _ in range(2):
                for count in random.permutation(counts):
                    await graph.run(self.feeds(count), fetch=fetch)
            assert (memory.allocations, memory.held_bytes) == before

    @pytest.mark.parametrize(("place", "options"), [("cpu", {}), ("sim:0", {}), ("sim:0", {"capture": True})])
    async def test_plans_that_are_not_kept_give_their_memory_back(self, place: str, options: dict[str, Any]) -> None:
        graph, fetch = self.training(place, max_plans=2, **options)
        made: weakref.WeakSet[Any] = weakref.WeakSet()
        async with graph:
            for count in (30, 29):
                await graph.run(self.feeds(count), fetch=fetch)
            memory = graph.engine.resources.device(af.Place.parse(place)).memory
            of_two = memory.held_bytes
            for count in range(28, 0, -1 if FULL else -4):
                await graph.run(self.feeds(count), fetch=fetch)
                made.update(graph.engine._programs.values())
                assert memory.used_bytes < memory.held_bytes <= of_two
                assert len(made) == 2, "a program that is not kept dies with its last frame"
            assert memory.held_bytes < of_two / 2

    async def test_frames_of_a_plan_that_is_not_kept_end_well(self) -> None:
        graph, fetch = self.training("sim:0", max_plans=1)
        counts = [5, 9, 5, 2, 9, 5]
        async with graph:
            stream = graph.stream([self.feeds(count) for count in counts], fetch=fetch, in_flight=4)
            assert [result.lengths["batch"] async for result in stream] == counts


@pytest.mark.parametrize("is_run", [True, False])
async def test_the_plans_that_were_used_last_are_kept(is_run: bool) -> None:
    graph = doubled(max_plans=2)
    kept = []
    async with graph:
        for count in (1, 1, 2, 1, 3, 1, 2):
            if count == 2 and not is_run:
                graph.engine.program(None, rows(2))
            else:
                await graph.run(rows(count))
            kept.append([dict(key[2] or ())["batch"] for key in graph.engine._programs])
    assert kept == [[1], [1], [1, 2], [2, 1], [1, 3], [3, 1], [1, 2]]
    with pytest.raises(af.GraphError, match="max_plans must be at least 1"):
        doubled(max_plans=0)


async def test_lengths_of_other_shapes_are_found_anew() -> None:
    graph = af.Graph("pairs")
    x, y = graph.blob("x", ("n", 2)), graph.blob("y", ("m", 2))
    graph.function("count", lambda x, y: np.float32(100 * len(x) + len(y)), af.TensorSpec.of(()))(x, y)
    async with graph:
        for n in (*range(1, 70), 1):
            rows, one = np.ones((n, 2), "f"), [[1, 1]]
            for feeds, lengths in (
                ({x: rows, y: rows[:1]}, (n, 1)),
                ({y: rows, "x": one}, (1, n)),
                ({x: rows, "y": one}, (n, 1)),
            ):
                (value,) = (await graph.run(feeds)).values()
                assert value == 100 * lengths[0] + lengths[1]
        with pytest.raises(af.FeedError, match="no feed says the length of 'n'"):
            await graph.run({y: np.ones((2, 2), "f")})
        with pytest.raises(af.ShapeError):
            await graph.run({x: np.ones((2, 3), "f"), y: np.ones((2, 2), "f")})
