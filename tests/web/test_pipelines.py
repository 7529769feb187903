"""Data pipelines on the page and for programs: those that are being iterated now."""

from __future__ import annotations

import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

import actorflow as af
from actorflow.web import create_app, serve


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
async def test_the_page_shows_stages_as_long_as_they_are_iterated(training, new_page) -> None:
    loader = af.pipeline.source(range(50), name="numbers").map(half, concurrency=3, name="<halve>")
    async with serve(training.graph, port=0) as view, loader:
        page = await new_page()
        await page.open(view.url)
        items = aiter(loader)
        await anext(items)
        await page.page.wait_for_selector("#pipeline-list .name")
        names = await page.page.locator("#pipeline-list .name").all_inner_texts()
        assert names[-2:] == ["numbers", "<halve>"]
        assert "1 items delivered" in await page.page.inner_text("#pipeline-list")
        await items.aclose()
        await page.page.wait_for_selector("#pipelines", state="hidden")
