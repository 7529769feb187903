"""Fullness is seen at a glance, in a real browser: at nodes and edges, and in the panel."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.ranks.conftest import Ranks

pytestmark = [pytest.mark.browser, pytest.mark.slow]

VECTOR = af.TensorSpec.of(4)
FEED = {"x": np.ones(4, "float32")}


def until(event: asyncio.Event) -> Callable[[Any], Any]:
    """A function that gives its input back once something has happened."""

    async def wait(x: Any) -> Any:
        await event.wait()
        return x

    return wait


async def test_a_function_and_a_blob_that_are_full(page_of, quick_vitals) -> None:
    graph, hold = af.Graph("full"), asyncio.Event()

    x = graph.blob("x", 4)
    y = graph.function("first", lambda x: x + 1, VECTOR)(x)
    graph.function("wait", until(hold), VECTOR, concurrency=2)(y)
    async with graph, page_of(graph) as page:
        stream = graph.stream((FEED for _ in range(6)), in_flight=3)
        result = asyncio.ensure_future(anext(stream))
        await page.until("actorflow.fullness('wait')?.more === 1")
        assert await page.look("actorflow.fullness('wait')") == {"used": 2, "of": 2, "more": 1}
        await page.until("actorflow.fullness('first/out')?.used === 3")
        assert await page.look("actorflow.fullness('first/out')") == {"used": 3, "of": 3}
        card = page.page.locator("#fullness")
        await card.get_by_text("2 of 2 calls at once, 1 frame waits").wait_for()
        await card.get_by_text("3 of 3 frames", exact=True).wait_for()
        names = await card.locator(".name").all_inner_texts()
        assert names == ["wait", "Stream 0", "first/out"], "what others wait for comes first"
        await card.get_by_role("button", name="first/out").click()
        await page.until("actorflow.selected === 'first/out'")
        await page.page.locator("#node").get_by_text("value held in 3 of 3 frames").wait_for()
        x, y = await page.middle_of("wait")
        await page.page.mouse.move(x, y)
        await page.page.locator("#tooltip").get_by_text("1 frame waits").wait_for()
        hold.set()
        await result
        await stream.aclose()
        await page.show("now")
        await card.get_by_text("Nothing that is bounded is in use.").wait_for()
        assert await page.look("actorflow.fullness('wait')") is None


async def test_edges_between_other_ranks_say_who_waits(page_of, quick_vitals) -> None:
    """On rank 0's page, of a value that goes from rank 1 to the ranks 2 and 3, of which one is paused."""
    hold = asyncio.Event()

    def build(graph: af.Graph) -> None:
        x = graph.blob("x", 4)
        with graph.at("1/cpu"):
            made = graph.function("made", until(hold), VECTOR)(x)
        for rank in (2, 3):
            with graph.at(f"{rank}/cpu"):
                af.ops.scale(made, 2.0, name=f"on {rank}")

    ranks = Ranks(build, size=4)
    async with page_of(ranks.graphs[0]) as page:
        ranks.graphs[3].pause()
        running = asyncio.ensure_future(ranks.all(lambda graph, _: graph.run(FEED, fetch=["on 2/out", "on 3/out"])))
        to = "rank 1 → {}, 4, 16 B{}"
        awaited = to.format(2, ", awaited by rank 2 in 1 of 1 frames")
        await page.until(f"actorflow.edges.includes({awaited!r}) && actorflow.edges.includes({to.format(3, '')!r})")
        hold.set()
        untaken = to.format(3, ", 1 of 1 not taken by rank 3 yet")
        await page.until(f"actorflow.edges.includes({untaken!r}) && actorflow.edges.includes({to.format(2, '')!r})")
        await page.page.locator("#fullness").get_by_text("1 of 1 not taken by rank 3 yet").wait_for()
        ranks.graphs[3].resume()
        await running
        await page.until(f"actorflow.edges.includes({to.format(3, '')!r})")
    await ranks.aclose()
