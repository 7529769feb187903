"""The page opens in a real browser: what of its tests is not slow."""

from __future__ import annotations

import pytest

from actorflow.web import serve

pytestmark = pytest.mark.browser


async def test_it_shows_the_graph(training, new_page) -> None:
    async with serve(training.graph, port=0) as view:
        page = await new_page()
        await page.open(view.url)
        assert await page.look("actorflow.nodes") == [node.name for node in training.graph.nodes]
        assert await page.page.title() == "training · actorflow"
        assert await page.page.inner_text("#graph-name") == "training"
        assert "18 ops" in await page.page.inner_text("#graph-size")
        assert await page.page.inner_text("#connection") == "Live"
