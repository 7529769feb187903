"""What one does with the page first of all, in Chromium and in Firefox; everything else is tested in Chromium alone."""

from typing import Any

import numpy as np
import pytest

import actorflow as af

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SQUARE = {"x": np.ones((4, 4), "float32")}


async def test_first_view_states_panel(gated: Any, page_of_each: Any) -> None:
    """That it says nothing in the console is seen to at the end of each test."""
    async with page_of_each(gated.graph) as page:
        assert set(await page.look("actorflow.items")) == {node.name for node in gated.graph.nodes}
        assert await page.page.inner_text("#connection") == "Live"
        run = gated.start()
        await page.until("actorflow.states.hold === 'running' && actorflow.states.last === 'waiting'")
        await page.page.locator('#legend b[data-state="running"]').get_by_text("1", exact=True).wait_for()
        await page.click_node("first")
        await page.until("actorflow.selected === 'first' && actorflow.tab === 'Node'")
        await page.page.locator("#node").get_by_text("Op · first").wait_for()
        await page.page.locator("#node .pill").get_by_text("done").wait_for()
        gated.release.set()
        await run
        await page.until("actorflow.states.last === 'done' && actorflow.frames.finished === 1")
        assert await page.look("[actorflow.calls.hold, actorflow.states.first]") == [1, "done"]
        await page.show("curves")
        await page.page.locator("#curve-list canvas").wait_for()
        assert await page.look("actorflow.curves['last/out']") == [1]
        await page.show("ops")
        await page.page.locator("#cost-table .cost").nth(2).wait_for()


async def test_search_and_keys(training: Any, page_of_each: Any) -> None:
    async with page_of_each(training.graph) as page:
        keyboard = page.page.keyboard
        await keyboard.press("Shift+C")
        await page.until("actorflow.items.includes('block0/')")
        await keyboard.press("/")
        await keyboard.type("UPDATE")
        assert await page.page.locator("#search-results li").count() == 4
        await keyboard.press("ArrowDown")
        await keyboard.press("Enter")
        await page.until("actorflow.selected === 'block2/update'")
        assert await page.look("actorflow.open") == ["block2"]
        middle = await page.look("[graph.clientWidth / 2, graph.clientHeight / 2]")
        assert await page.look("actorflow.placeOf('block2/update')") == middle
        await page.page.fill("#search", "no such node")
        await page.page.get_by_text("Nothing has this in its name").wait_for()
        await page.page.locator("#search").press("Escape")
        await page.page.locator("#graph").focus()
        await keyboard.press("[")
        await page.until("actorflow.selected === 'block2/w'")
        await keyboard.press("Escape")
        assert await page.look("actorflow.selected") is None
        await keyboard.press("t")
        assert await page.page.locator("#dock").is_visible()
        await training.run()
        await page.until("actorflow.bars.length > 5")
        await keyboard.press("?")
        await page.page.locator("#help").get_by_text("Show the whole graph").wait_for()
        assert await page.page.locator("#help dt").count() == await page.page.locator("#help dd").count() > 10
        await keyboard.press("t")
        assert await page.page.locator("#dock").is_visible(), "keys do nothing behind the help"
        await keyboard.press("Escape")
        assert await page.page.locator("#help").is_hidden()


async def test_a_large_graph_and_a_failure(make_training_graph: Any, page_of_each: Any) -> None:
    graph, _, loss = make_training_graph("deep", blocks=60)
    fail = graph.function("fail", lambda loss: 1 / 0, af.TensorSpec.of(()))(loss)
    async with graph, page_of_each(graph) as page:
        assert await page.look("actorflow.open") == []
        with pytest.raises(af.OpError):
            await graph.run(SQUARE, fetch=fail)
        await page.until("actorflow.states.fail === 'failed'")
        await page.page.locator("#tab-failures .badge").get_by_text("1", exact=True).wait_for()
        await page.show("failures")
        await page.page.locator("#failure-list").get_by_text("division by zero").wait_for()
        await page.click_node("block7")
        await page.until("actorflow.selected === 'block7'")
        await page.page.keyboard.press("o")
        await page.until("actorflow.open.includes('block7')")
        await page.page.click("#zoom-in")
        await page.redrawn()


#: The largest difference between small rectangles drawn pixel by pixel and the same filled by the canvas, of 255.
SPECKS = """import('/static/specks.js').then(({ Specks }) => {
    const [specks, plain] = [0, 1].map(() => {
        const context = new OffscreenCanvas(90, 60).getContext('2d', { alpha: false, willReadFrequently: true });
        context.fillStyle = '#f2f4f8';
        context.fillRect(0, 0, 90, 60);
        context.scale(2, 2); // which is not for what is given in pixels
        return context;
    });
    const small = new Specks();
    let most = 0;
    for (let round = 0; round < 2; round++) { // the second one over the first: nothing is left of it
        small.begin(90, 60);
        for (let k = 0; k < 64; k++) {
            const left = 11 * (k % 8) - 3 + k / 20 + round, top = 7.6 * Math.floor(k / 8) - 2 + k / 30;
            const colour = ['#2566e8', 'rgb(200 30 90)'][k % 2];
            const width = 0.3 + k / 8, height = 0.4 + k / 20, alpha = k % 3 ? 1 : 0.28;
            small.add(left, top, left + width, top + height, colour, alpha);
            plain.fillStyle = colour;
            plain.globalAlpha = alpha;
            plain.fillRect(left / 2, top / 2, width / 2, height / 2);
        }
        small.draw(specks);
        const [mine, its] = [specks, plain].map((context) => context.getImageData(0, 0, 90, 60).data);
        mine.forEach((value, at) => (most = Math.max(most, Math.abs(value - its[at]))));
    }
    return most;
})"""


async def test_small_rectangles_look_as_if_filled(training: Any, page_of_each: Any) -> None:
    async with page_of_each(training.graph) as page:
        assert await page.look(SPECKS) <= 8
