"""The contrast of all that is drawn, in both themes."""

from typing import Any

import numpy as np
import pytest

import actorflow as af

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TABS = ["now", "ops", "curves", "data", "node", "failures"]
#: Contrast by WCAG 2 of what is drawn: each visible text with what is behind it, by the styles that the browser uses.
CONTRASTS = """(() => {
    const context = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const read = (colour) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((c, k) => a * c + (1 - a) * below[k]);
    const luminance = (colour) => colour.map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
    const contrast = (a, b) => {
        const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
        return (high + 0.05) / (low + 0.05);
    };
    const ground = (at) => {
        const below = at.parentElement ? ground(at.parentElement) : [255, 255, 255];
        return over(read(getComputedStyle(at).backgroundColor), below);
    };
    const found = [];
    const look = (text, at, style) => {
        const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        const behind = ground(at), ink = over(read(style.color), behind);
        const what = `${text.trim().slice(0, 40)} <${at.tagName} ${at.className}>`;
        found.push([contrast(ink, behind) / (isLarge ? 3 : 4.5), what]);
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
        const at = node.parentElement;
        if (!node.data.trim() || at.closest(':disabled, .unseen, option')) continue;
        if (!at.checkVisibility({ visibilityProperty: true })) continue;
        look(node.data, at, getComputedStyle(at));
    }
    for (const input of document.querySelectorAll('input[placeholder]')) {
        if (input.checkVisibility()) look(input.placeholder, input, getComputedStyle(input, '::placeholder'));
    }
    // What is drawn in the canvas takes its colours from here.
    const style = getComputedStyle(document.documentElement);
    const named = (name) => read(style.getPropertyValue(`--${name}`)).slice(0, 3);
    const states = ['idle', 'waiting', 'running', 'done', 'failed', 'cancelled', 'constant', 'queued'];
    const pairs = [];
    for (const state of states) {
        pairs.push([state, 'surface', 3], [state, 'page', 3]);
        const tint = over([...named(state), 0.16], named('surface')); // of a card that is lit
        for (const ink of ['text', 'muted']) found.push([contrast(named(ink), tint) / 4.5, `${ink} on ${state}`]);
    }
    const lines = ['edge', 'channel', 'copy', 'variable-line', 'stage-line', 'accent', 'hot'];
    for (const name of lines) pairs.push([name, 'page', 3]);
    for (const name of ['blob', 'variable', 'box', 'page']) pairs.push(['text', name, 4.5]);
    pairs.push(['muted', 'page', 4.5], ['muted', 'box', 4.5], ['surface', 'failed', 4.5]);
    for (const [ink, behind, least] of pairs) {
        found.push([contrast(named(ink), named(behind)) / least, `${ink} on ${behind}`]);
    }
    return found;
})()"""


async def busy(graph: af.Graph) -> None:
    """Frames of which the last has a NaN, and one fails."""
    for value in (1.0, 2.0, -1.0):
        await graph.run({"x": np.float32(value)}, fetch="loss")
    graph.resume()
    with pytest.raises(af.OpError):
        await graph.run({"x": np.float32(7)}, fetch="loss")
    graph.pause("for the test")


@pytest.fixture
def graph() -> af.Graph:
    graph = af.Graph("looked at", check_finite=af.FiniteCheck(pause=True))
    x = graph.blob("x", ())

    def check(x: Any) -> Any:
        if x > 3:
            raise ValueError("too large")
        return x

    with graph.subgraph("part"):
        y = af.ops.log(graph.function("check", check, x.spec)(x), name="log")
    z = af.ops.maximum(y, graph.variable("weight", (), init=1.0), name="loss")
    assert z.shape == ()
    return graph


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_all_texts_can_be_read(graph: af.Graph, page_of: Any, scheme: str) -> None:
    async with graph, page_of(graph, control=True, color_scheme=scheme) as page:
        await busy(graph)
        await page.until("actorflow.frames.failed === 1 && actorflow.found.length && actorflow.control.paused")
        await page.page.fill("#search", "log")
        await page.page.keyboard.press("Enter")
        await page.until("actorflow.selected")
        await page.page.keyboard.press("t")
        for tab in TABS:
            await page.show(tab)
            await page.redrawn()
            await judge(page, f"tab {tab}")
        await page.page.fill("#search", "lo")
        await judge(page, "search")
        await page.page.fill("#search", "nothing is called so")
        await judge(page, "no search results")
        await page.page.click("#cancel")
        await judge(page, "question")


async def judge(page: Any, where: str) -> None:
    found = await page.look(CONTRASTS)
    assert len(found) > 60
    bad = sorted({text: round(share, 2) for share, text in found if share < 1}.items(), key=lambda pair: pair[1])
    assert not bad, f"{where}: of the contrast that there must be"
