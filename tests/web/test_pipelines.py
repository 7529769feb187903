"""Data pipelines on the page and for programs: those that are being iterated now."""

import asyncio
import json

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

import actorflow as af
from actorflow.web import create_app


def half(x: int) -> float:
    return x / 2


async def test_loaders_are_told_of_while_they_are_iterated(training) -> None:
    loader = af.pipeline.source(range(50), name="numbers").map(half, concurrency=3)
    async with TestClient(TestServer(create_app(training.graph))) as client, loader:

        async def told() -> list[dict[str, object]]:
            async with client.get("/api/pipelines") as response:
                assert response.status == 200
                return [
                    one
                    for one in json.loads(await response.text())["pipelines"]
                    if one["stages"][0]["name"] == "numbers"
                ]

        assert await told() == []
        count = 0
        async for _ in loader:
            count += 1
            if count == 20:
                (pipeline,) = await told()
        assert await told() == []
    assert pipeline["delivered"] == 20
    assert [(stage["name"], stage["kind"], stage["concurrency"]) for stage in pipeline["stages"]] == [
        ("numbers", "source", 1),
        ("half", "map", 3),
    ]
    assert 20 <= pipeline["stages"][1]["items"] <= pipeline["stages"][0]["items"] <= 50
    assert pipeline["bottleneck"]


@pytest.mark.browser
@pytest.mark.slow
async def test_the_page_shows_stages_as_long_as_they_are_iterated(training, page_of, quick_vitals) -> None:
    loader = af.pipeline.source(range(50), name="numbers").map(half, concurrency=3, name="<halve>")
    async with page_of(training.graph) as page, loader:
        items = aiter(loader)
        await anext(items)
        await page.show("data")
        await page.page.wait_for_selector("#pipeline-list .name")
        names = await page.page.locator("#pipeline-list .name").all_inner_texts()
        assert names[-2:] == ["numbers", "<halve>"]
        await page.page.locator("#pipeline-list").get_by_text("1 items delivered").wait_for()
        await items.aclose()
        await page.page.wait_for_selector("#pipelines", state="hidden")


@pytest.mark.browser
@pytest.mark.slow
async def test_stages_stand_before_what_they_feed(training, page_of, quick_vitals) -> None:
    ones = np.ones((4, 4), np.float32)
    hold = asyncio.Event()

    async def wait(x: object) -> object:
        await hold.wait()
        return x

    left = af.pipeline.source([ones] * 60, name="left").map(wait, name="wait")
    loader = left.zip(af.pipeline.source([ones] * 60, name="right")).map(lambda pair: pair[0], name="first")
    async with page_of(training.graph) as page, loader:
        assert await page.look("actorflow.stages") == []
        stream = training.graph.stream(loader.feed(training.x), in_flight=2)
        result = asyncio.ensure_future(anext(stream))
        await page.until("actorflow.stages.length === 5")
        await page.until("actorflow.stages.find((stage) => stage.name === 'wait').queued > 0")
        boxes = {box["name"]: box for box in await page.look("actorflow.stages")}
        order = ["left", "wait", "zip", "first"]
        tops = [boxes[name]["top"] for name in order]
        assert tops == sorted(tops)
        assert boxes["right"]["top"] == boxes["wait"]["top"], "both are in front of the zip"
        assert boxes["right"]["left"] != boxes["wait"]["left"]
        rectangles = await page.look("actorflow.rectangles")
        assert max(tops) + boxes["first"]["height"] < min(y - height / 2 for _, y, _, height in rectangles)
        await page.page.locator("#legend").get_by_text("pipeline stage").wait_for()

        await page.page.keyboard.press("f")
        x, y = await page.look(
            "actorflow.toScreen(...(({ left, top, width, height }) => [left + width / 2, top + height / 2])"
            "(actorflow.stages.find((stage) => stage.name === 'wait')))"
        )
        box = await page.page.locator("#graph").bounding_box()
        assert 0 < x < box["width"], "the whole is shown with its pipelines"
        assert 0 < y < box["height"]
        await page.page.mouse.move(box["x"] + x, box["y"] + y)
        await page.page.locator("#tooltip").get_by_text("in its queue").wait_for()
        hold.set()
        await result
        await stream.aclose()
        await page.until("actorflow.stages.length === 0")
