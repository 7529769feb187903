"""The page opens in a real browser: what of its tests is not slow."""

import pytest

pytestmark = pytest.mark.browser


async def test_it_shows_the_graph(training, page_of) -> None:
    async with page_of(training.graph) as page:
        assert await page.look("actorflow.nodes") == [node.name for node in training.graph.nodes]
        assert await page.page.title() == "training · actorflow"
        assert await page.page.inner_text("#graph-name") == "training"
        assert "18 ops" in await page.page.inner_text("#graph-size")
        assert await page.page.inner_text("#connection") == "Live"
