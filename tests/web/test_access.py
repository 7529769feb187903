"""The page without a mouse, for those who hear it, who want no motion, and on paper; in a real browser."""

import contextlib
from typing import Any

import numpy as np
import pytest

import actorflow as af

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCALAR = af.TensorSpec.of(())
FOCUSED = """(() => {
    const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
    return { id: e.id, tag: e.tagName, outline: style.outlineStyle, width: style.outlineWidth, seen: box.width > 0 };
})()"""
#: What can be used but has no name that is read out.
NAMELESS = """[...document.querySelectorAll('button, a, input, select, canvas[role], section, aside')].filter((e) => {
    const label = e.getAttribute('aria-label') ?? e.labels?.[0]?.textContent ?? e.textContent;
    return e.checkVisibility() && !label.trim();
}).map((e) => e.outerHTML)"""


async def test_the_keyboard_reaches_everything(training, page_of) -> None:
    async with page_of(training.graph) as page:
        await training.run()
        await page.until("actorflow.frames.finished === 1")
        await page.page.keyboard.press("t")
        await page.show("ops")
        await page.page.locator("#cost-table .name").first.wait_for()
        await page.page.click("#graph-name")  # in front of all that can be reached
        reached: dict[str, Any] = {}
        # Of the tabs the chosen one is reached, and the others from there by the arrow keys.
        kinds = 'button:not([role="tab"][tabindex="-1"]), a[href], input, select, canvas[tabindex]'
        wanted = f"[...document.querySelectorAll({kinds!r})]"
        count = await page.look(f"{wanted}.filter((e) => e.checkVisibility()).length")
        for _ in range(count + 1):
            await page.page.keyboard.press("Tab")
            focused = await page.look(FOCUSED)
            if focused["tag"] == "BODY":
                break
            assert focused["outline"] != "none", f"one does not see that {focused} has the focus"
            assert focused["width"] != "0px"
            assert focused["seen"]
            reached[focused["id"]] = focused
        assert {
            "timeline-toggle", "search", "graph", "colour", "open-all", "close-all", "zoom-in", "zoom-out", "zoom-fit",
            "help-button", "timeline", "timeline-live",
        } <= reached.keys()  # fmt: skip
        assert await page.look(NAMELESS) == []

        # From nothing to a node, its neighbours and back, and along the timeline, by keys alone.
        await page.page.keyboard.press("/")
        await page.page.keyboard.type("loss_grad")
        await page.page.keyboard.press("Enter")
        assert await page.look("actorflow.selected") == "loss_grad"
        await page.page.keyboard.press("]")
        assert await page.look("actorflow.selected") == "loss_grad/out"
        await page.page.focus("#timeline")
        span = await page.look("actorflow.timeline.span")
        await page.page.keyboard.press("+")
        assert await page.look("actorflow.timeline.span") < span
        await page.page.keyboard.press("ArrowLeft")
        assert not await page.look("actorflow.timeline.following")
        await page.page.keyboard.press("l")
        assert await page.look("actorflow.timeline.following")


async def test_failures_are_read_out(page_of) -> None:
    graph = af.Graph("failing")

    def fail(x: Any) -> Any:
        raise ValueError(f"{'abcdefghijkl'[int(x)]} is wrong, at {x:g} of {x / 3:g}")

    x = graph.blob("x", ())
    graph.function("fail", fail, SCALAR)(x)
    async with graph, page_of(graph) as page:
        told = page.page.locator("#announcement")
        assert await told.get_attribute("role") == "status"
        assert await told.text_content() == ""
        for frame in (*range(11), 11.25, 11.5):
            with contextlib.suppress(af.OpError):
                await graph.run({x: np.float32(frame)})
        await page.until("document.getElementById('announcement').textContent === 'Frame 12 failed: fail'")
        await page.show("failures")
        more = page.page.locator("#failures-more")
        await page.until("document.getElementById('failures-more').innerText === 'Show 8 more'")
        assert await page.page.locator("#failure-list li").count() == 4
        assert "2 times, latest in frame 12" in await page.page.locator("#failure-list li").first.inner_text()
        await more.click()
        assert await page.page.locator("#failure-list li").count() == 12
        assert await more.get_attribute("aria-expanded") == "true"


@pytest.mark.parametrize("calm", [True, False])
async def test_nothing_flashes_for_those_who_want_no_motion(training, page_of, calm: bool) -> None:
    async with page_of(training.graph, reduced_motion="reduce" if calm else "no-preference") as page:
        await training.run()
        await page.until("actorflow.calls.loss === 1")
        assert await page.look("actorflow.isLit('loss')") is not calm
        animated = "document.getAnimations().filter((a) => a.effect.getTiming().iterations > 1).length"
        assert await page.look(animated) == 0


async def test_nothing_is_cut_on_paper(training, page_of) -> None:
    async with page_of(training.graph, alone=True) as page:
        await training.run()
        await page.show("ops")
        await page.page.locator("#cost-table .cost").first.wait_for()
        await page.page.emulate_media(media="print")
        await page.redrawn()
        assert await page.look(
            "[document.body, document.querySelector('main'), document.querySelector('aside')]"
            ".every((e) => e.scrollHeight <= e.clientHeight + 1)"
        )
        assert await page.page.locator("#memory-list").count() == 1
        assert await page.page.locator(".zoom").is_hidden()
