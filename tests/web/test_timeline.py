"""The timeline and the numbers, in a real browser."""

import asyncio
import contextlib
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.web import serve
from actorflow.web import vitals as vitals_module

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SQUARE = af.TensorSpec.of((4, 4))


async def click_bar(page: Any, bar: dict[str, Any]) -> None:
    box = await page.page.locator("#timeline").bounding_box()
    await page.page.mouse.click(box["x"] + bar["x"], box["y"] + bar["y"])


async def test_from_a_bar_to_the_node_and_back(page_of) -> None:
    graph = af.Graph("timed")
    x = graph.blob("x", (200, 200))
    spec = af.TensorSpec.of((200, 200))
    y = graph.function("slow", lambda x: x @ x @ x @ x, spec, lane="own")(x)
    graph.function("quick", lambda y: y, spec)(y)
    async with graph, page_of(graph) as page:
        await page.page.click("#timeline-toggle")
        for _ in range(4):
            await graph.run({x: np.ones((200, 200), "float32")})
        await page.until("actorflow.timeline.calls === 8")
        assert "cpu own" in await page.look("actorflow.timeline.tracks")
        await page.until("actorflow.bars.some((bar) => bar.node === 'slow')")

        await page.click_node("slow")
        await page.page.get_by_role("button", name="Latest call").click()
        await page.until("!actorflow.timeline.following && actorflow.bars.some((bar) => bar.node === 'slow')")
        await page.page.keyboard.press("Escape")
        assert await page.look("actorflow.selected") is None
        await page.redrawn()
        bar = (await page.look("actorflow.bars.filter((bar) => bar.node === 'slow')"))[-1]
        assert bar["frame"] == 3
        await click_bar(page, bar)
        await page.until("actorflow.selected === 'slow'")

        span = await page.look("actorflow.timeline.span")
        box = await page.page.locator("#timeline").bounding_box()
        await page.page.mouse.move(box["x"] + bar["x"], box["y"] + bar["y"])
        await page.page.locator("#timeline-tooltip").get_by_text("frame 3").wait_for()
        await page.page.mouse.wheel(0, -300)
        await page.until(f"actorflow.timeline.span < {span}")
        await page.page.click("#timeline-live")
        assert await page.look("actorflow.timeline.following")


async def test_calls_are_there_once_after_a_change_and_after_a_reconnection(training, new_page) -> None:
    graph = training.graph

    async def has_all_calls() -> None:
        await page.until(f"actorflow.revision === {graph.revision} && !actorflow.isBusy")
        await page.until(f"actorflow.timeline.calls === {graph.engine.trace.total}")

    async with serve(graph, port=0) as view:
        page = await new_page()
        await page.open(view.url)
        await page.page.click("#timeline-toggle")
        await training.run()
        await has_all_calls()
        graph.function("extra", lambda x: x, af.TensorSpec.of(()))(training.loss)
        await has_all_calls()
    await page.until("actorflow.connection === 'closed'")
    async with serve(graph, port=view.port):
        await page.until("actorflow.connection === 'live'")
        await training.run()
        await has_all_calls()


async def test_frames_in_flight_are_told_apart(page_of) -> None:
    graph = af.Graph("flying")
    both = asyncio.Event()
    running = 0

    async def meet(x: Any) -> Any:
        nonlocal running
        running += 1
        if running == 2:
            both.set()
        await both.wait()
        return x

    x = graph.blob("x", (4, 4))
    graph.function("meet", meet, SQUARE, concurrency=2)(x)
    async with graph, page_of(graph) as page:
        await page.page.click("#timeline-toggle")
        feed = {x: np.ones((4, 4), "float32")}
        await asyncio.gather(graph.run(feed), graph.run(feed))
        await page.until("actorflow.bars.length === 2")
        first, second = await page.look("actorflow.bars")
        assert {first["frame"], second["frame"]} == {0, 1}
        assert first["y"] != second["y"], "overlapping calls are on levels of their own"
        assert "async functions" in await page.look("actorflow.timeline.tracks")


async def test_failed_calls_are_told_apart(page_of) -> None:
    graph, failures = af.Graph("failing"), 3

    async def fetch(x: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionError(f"<b>no</b> line, {failures} left")
        return x

    x = graph.blob("x", (4, 4))
    fetched = graph.function("fetch", fetch, SQUARE, retries=2, backoff=0.002)(x)
    graph.function("use", lambda x: x, SQUARE)(fetched)
    async with graph, page_of(graph) as page:
        await page.page.click("#timeline-toggle")
        feed = {x: np.ones((4, 4), "float32")}
        with contextlib.suppress(af.OpError):
            await graph.run(feed)
        await graph.run(feed)
        await page.until("actorflow.timeline.calls === 5")
        await page.until("actorflow.bars.length === 5")
        bars = await page.look("actorflow.bars")
        errors = {(bar["frame"], bar["error"]) for bar in bars if bar["node"] == "fetch"}
        assert errors == {
            (0, "ConnectionError: <b>no</b> line, 2 left"),
            (0, "ConnectionError: <b>no</b> line, 1 left"),
            (0, "ConnectionError: <b>no</b> line, 0 left"),
            (1, None),
        }
        bar = next(bar for bar in bars if (bar["error"] or "").endswith("1 left"))
        box = await page.page.locator("#timeline").bounding_box()
        await page.page.mouse.move(box["x"] + bar["x"], box["y"] + bar["y"])
        await page.page.locator("#timeline-tooltip .bad").get_by_text("<b>no</b> line, 1 left").wait_for()


async def test_an_op_says_how_long_its_calls_take(training, page_of, quick_vitals) -> None:
    async with page_of(training.graph) as page:
        for _ in range(50):
            await training.run()
        await page.until("actorflow.latency('loss')[1] > 0")
        p50, p99 = await page.look("actorflow.latency('loss')")
        assert 0 < p50 <= p99
        await page.click_node("loss")
        await page.page.locator("#node").get_by_text("Median, p99").wait_for()
        await page.show("ops")
        await page.page.locator("#cost-table").get_by_text("p99").first.wait_for()
        await page.show("now")
        await page.page.locator("#memory-list").get_by_text("no budget").wait_for()
        await page.page.locator("#loop-lag").get_by_text("median").wait_for()


async def test_why_a_frame_waits_is_said(gated, page_of, monkeypatch, quick_vitals) -> None:
    now_s = 0.0
    monkeypatch.setattr(vitals_module, "monotonic", lambda: now_s)
    async with page_of(gated.graph) as page:
        run = gated.start()
        await page.until("actorflow.states.hold === 'running'")
        waiting = page.page.locator("#waiting")
        assert await waiting.get_by_text("No frame waits.").is_visible()
        now_s = 2.0
        await waiting.get_by_text("op 'last' waits for 1 of 1 inputs: op 'hold'").wait_for()
        assert await page.page.locator("#stalled").is_hidden(), "that is not long enough to be a stall"
        now_s = 3600.0
        await waiting.get_by_text("No call has ended for 60 min").wait_for()
        gated.release.set()
        await run
        await waiting.get_by_text("No frame waits.").wait_for()


async def test_an_error_shows_the_line_and_the_inputs(page_of) -> None:
    graph = af.Graph("wrong")

    def divide(x: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    x = graph.blob("x", (4, 4))
    graph.subgraph("deep").function("divide", divide, SQUARE)(x)
    async with graph, page_of(graph) as page:
        await page.page.click("#close-all")
        with contextlib.suppress(af.OpError):
            await graph.run({x: np.ones((4, 4), "float32")})
        await page.show("failures")
        failures = page.page.locator("#panel-failures")
        for text in ("by nothing", "x float32[4, 4] on cpu", "test_timeline.py"):
            await failures.get_by_text(text).first.wait_for()
        await failures.get_by_role("button").click()
        await page.until("actorflow.selected === 'deep/divide' && actorflow.open.includes('deep')")


async def test_a_range_is_summed_up_and_a_call_shows_what_it_reads_and_feeds(page_of) -> None:
    graph = af.Graph("flow")
    x = graph.blob("x", (4, 4))
    left = graph.function("left", lambda x: x, SQUARE)(x)
    right = graph.function("right", lambda x: x, SQUARE)(x)
    middle = graph.function("middle", lambda a, b: a + b, SQUARE)(left, right)
    graph.function("after", lambda x: x, SQUARE)(middle)
    async with graph, page_of(graph) as page:
        await page.page.click("#timeline-toggle")
        for _ in range(3):
            await graph.run({x: np.ones((4, 4), "float32")})
        await page.until("actorflow.timeline.calls === 12")
        await page.page.focus("#timeline")
        await page.page.keyboard.press("s")
        summed = await page.look("actorflow.timeline.summed")
        assert {op["name"]: op["calls"] for op in summed["ops"]} == dict.fromkeys(
            ("left", "right", "middle", "after"), 3
        )
        assert sum(lane["calls"] for lane in summed["lanes"]) == 12
        profile = graph.engine.profile
        for op in summed["ops"]:
            total_ns = profile[graph[op["name"]].id].total_ns
            assert op["seconds"] == pytest.approx(total_ns / 1e9, rel=1e-3, abs=1e-9)
        sums = page.page.locator("#timeline-sums")
        await sums.get_by_role("rowheader", name="middle").wait_for()
        await page.page.keyboard.press("Escape")
        await sums.wait_for(state="hidden")
        await page.page.click("#timeline-range")
        box = await page.page.locator("#timeline").bounding_box()
        await page.page.mouse.move(box["x"] + 140, box["y"] + 40)
        await page.page.mouse.down()
        await page.page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 50)
        await page.page.mouse.up()
        await sums.get_by_role("rowheader", name="after").wait_for()
        assert not await page.look("actorflow.timeline.following")
        await page.page.get_by_role("button", name="Close the sums").click()

        await page.click_node("middle")
        await page.page.get_by_role("button", name="Latest call").click()
        flows = await page.look("actorflow.timeline.flows")
        assert (flows["call"], sorted(flows["from"]), flows["to"]) == ("middle", ["left", "right"], ["after"])
        await page.page.keyboard.press("Escape")
        assert await page.look("actorflow.timeline.flows") is None


@pytest.mark.parametrize("apart_s", [0.0, 30.0])
async def test_it_opens_on_a_few_frames_however_far_they_are_apart(training, page_of, apart_s: float) -> None:
    trace = training.graph.engine.trace
    key = trace.key(training.graph["loss"].id)
    for frame in range(12):  # calls of the past, as if frames had come so far apart
        trace.add(trace.origin_ns + int(frame * (apart_s + 0.0012) * 1e9) + 1_000_000, 1_000_000, key, frame)
    async with page_of(training.graph) as page:
        await page.page.click("#timeline-toggle")
        await page.until("actorflow.timeline.calls === 12")
        await page.until("new Set(actorflow.bars.map((bar) => bar.frame)).size === 6")


async def test_requests_of_batched_runs_stand_above_their_frames(page_of) -> None:
    graph = af.Graph("asked")
    af.ops.scale(graph.blob("x", ("batch", 4)), 2.0, name="twice")
    async with graph, page_of(graph) as page:
        await page.page.click("#timeline-toggle")
        async with graph.batched(max_rows=4) as batcher:
            await asyncio.gather(*[batcher.run({"x": np.ones((2, 4), np.float32)}) for _ in range(4)])
            with pytest.raises(af.RunTimeoutError):
                await batcher.run({"x": np.ones((1, 4), np.float32)}, timeout=0)
        await page.until("actorflow.timeline.requests.length === 5")
        requests = await page.look("actorflow.timeline.requests")
        assert [request["frames"] for request in requests] == [[0], [0], [1], [1], []]
        assert [request["outcome"] for request in requests] == [*["finished"] * 4, "RunTimeoutError"]
