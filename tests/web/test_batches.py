"""Batched runs on the page and for programs."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

import actorflow as af
from actorflow.trace.batches import SECONDS, Histogram
from actorflow.web import create_app
from actorflow.web.vitals import batches

ROW = np.ones((1, 4), "float32")


@pytest.fixture
def graph() -> af.Graph:
    graph = af.Graph("doubling")
    af.ops.scale(graph.blob("x", ("batch", 4)), 2.0, name="double")
    return graph


def test_quantiles_are_estimated_within_buckets() -> None:
    histogram = Histogram((1, 2, 4))
    assert histogram.statistics().quantile(0.5) == 0
    for value in (0.5, 1.5, 1.6, 3.0):
        histogram.add(value)
    figures = histogram.statistics()
    assert figures.counts == (1, 2, 1, 0)
    assert [figures.quantile(share) for share in (0.25, 0.5, 0.75, 1.0)] == [1, 1.5, 2, 4]
    assert figures.mean == pytest.approx(1.65)
    histogram.add(100)
    assert histogram.statistics().quantile(1.0) == 4, "the last limit, above which nothing is known"


async def test_open_batchers_are_told_of(graph: af.Graph) -> None:
    async with graph:
        assert batches(graph.engine) == []
        async with graph.batched(max_rows=4) as batcher, graph.batched():
            await asyncio.gather(*[batcher.run({"x": ROW}) for _ in range(6)])
            first, second = json.loads(json.dumps(batches(graph.engine)))
        assert batches(graph.engine) == []
    assert (first["number"], second["number"]) == (0, 1)
    assert (first["waiting_rows"], first["queue_rows"], first["finished"]) == (0, 1024, 6)
    assert (first["rows"]["limits"], first["rows"]["counts"], first["rows"]["mean"]) == ([1, 2, 4], [0, 1, 1, 0], 3)
    assert sum(first["latency_s"]["counts"]) == 6
    assert second["finished"] == 0
    assert second["rows"]["p99"] == 0


async def test_metrics(graph: af.Graph) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    async def families(client: Any) -> dict[str, Any]:
        async with client.get("/metrics") as response:
            assert response.status == 200
            return {family.name: family for family in text_string_to_metric_families(await response.text())}

    async with graph, TestClient(TestServer(create_app(graph))) as client:
        assert not any(name.startswith("actorflow_batch") for name in await families(client))
        async with graph.batched(max_rows=4, buckets=[4]) as batcher:
            await asyncio.gather(*[batcher.run({"x": ROW}) for _ in range(6)])
            found = await families(client)
    samples = {(s.name, *sorted(s.labels.values())): s.value for s in found["actorflow_batch_rows"].samples}
    assert samples["actorflow_batch_rows_bucket", "+Inf", "0", "doubling"] == 2
    assert samples["actorflow_batch_rows_bucket", "0", "2.0", "doubling"] == 1
    assert samples["actorflow_batch_rows_sum", "0", "doubling"] == 6
    assert samples["actorflow_batch_rows_count", "0", "doubling"] == 2
    ends = {s.labels["end"]: s.value for s in found["actorflow_batch_requests"].samples if s.name.endswith("_total")}
    assert ends == {"finished": 6, "failed": 0, "cancelled": 0, "expired": 0, "refused": 0}
    (padded,) = [s.value for s in found["actorflow_batch_padded_rows"].samples if s.name.endswith("_total")]
    assert padded == 2
    assert [s.value for s in found["actorflow_batch_waiting_rows"].samples] == [0]
    for name in ("actorflow_batch_wait_seconds", "actorflow_batch_latency_seconds"):
        limits = [s.labels["le"] for s in found[name].samples if "le" in s.labels]
        assert limits == [*map(str, SECONDS), "+Inf"]


async def test_metrics_of_sessions() -> None:
    pytest.importorskip("prometheus_client")
    graph = sums()
    async with graph, TestClient(TestServer(create_app(graph))) as client, graph.batched(max_sessions=5) as batcher:
        async with batcher.session() as session, batcher.session():
            for _ in range(3):
                await session.run({"x": [1]})
            async with client.get("/metrics") as response:
                lines = (await response.text()).splitlines()
    labels = '{batcher="0",graph="sums"}'
    figures = ("sessions", 2), ("session_slots", 5), ("steps_total", 3)
    figures += ("first_step_seconds_count", 1), ("between_steps_seconds_count", 2)
    for name, count in figures:
        assert f"actorflow_batch_{name}{labels} {count}.0" in lines, name


def sums() -> af.Graph:
    graph = af.Graph("sums")
    total = graph.state("total", ["row"])
    total.assign(total + graph.blob("x", ["row"]))
    return graph


@pytest.mark.browser
@pytest.mark.slow
async def test_the_page_shows_sessions_as_rows(page_of: Any, quick_vitals: None) -> None:
    graph = sums()
    async with graph, page_of(graph) as page, graph.batched() as batcher:
        async with batcher.session() as session, batcher.session():
            for _ in range(3):
                await session.run({"x": [1]})
            await page.show("data")
            rows = page.page.locator("#batch-list tr")
            await page.page.locator("#batch-list").get_by_text("2 of 1,024 sessions, 3 steps").wait_for()
            assert await rows.locator("th").all_text_contents() == ["Session 1", "Session 0"]
            assert await rows.first.locator("td").first.text_content() == "0 steps"
            assert (await rows.last.locator("td").last.text_content()).startswith("idle ")
            await page.page.locator("#batch-list").get_by_text("Between steps: mean").wait_for()


@pytest.mark.browser
@pytest.mark.slow
async def test_the_page_shows_batches(graph: af.Graph, page_of: Any, quick_vitals: None) -> None:
    async with graph, page_of(graph) as page:
        assert not await page.page.is_visible("#batches")
        await page.page.fill("#search", "x")
        await page.page.keyboard.press("Enter")
        await page.page.locator("#node").get_by_text("(batch, 4)").wait_for()
        async with graph.batched(max_rows=4) as batcher:
            await asyncio.gather(*[batcher.run({"x": ROW}) for _ in range(6)])
            await page.show("data")
            await page.page.locator("#batch-list").get_by_text("Requests: 6 finished").wait_for()
            for text in ("0 of 1,024 rows wait, 0 frames in flight", "Rows per frame: mean 3.0", "Latency: mean"):
                await page.page.locator("#batch-list").get_by_text(text).wait_for()
            bars = page.page.locator("#batch-list .bars").first.locator("i")
            assert await bars.evaluate_all("all => all.map((bar) => bar.title)") == ["up to 2.0: 1", "up to 4.0: 1"]
        await page.page.wait_for_selector("#batches", state="hidden")
