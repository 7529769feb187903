"""Names of all kinds are shown as they are, everywhere, in a real browser: never read as HTML, never too wide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.web import serve

pytestmark = pytest.mark.browser

SCALAR = af.TensorSpec.of(())
# The messages of errors, and names of stages, may have what those of nodes may not: controls.
CONTROLS = "\x07\x1b[31m\u202etxt.exe\u2066\u200d\x00"
NAMES = {
    "markup": "<img src=x onerror=hacked=1><script>hacked=2<\\script>'\"&lt;b&gt;",
    "long": "n" * 10_000,
    "words": "one and another " * 600,
    "right-to-left": "שלום עולם مرحبا (1) <b>",
    "emoji": "🚀🧮👩🏽🔬 ﷽ Z̴̨a̷l̸g̴o̵",
}
#: What is wider than the window, by the tags and classes of it.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter((e) => {
    const box = e.getBoundingClientRect();
    const scrolls = e.closest('.unseen, pre, canvas');
    return box.width && !scrolls && (box.right > innerWidth + 1 || box.left < -1);
}).map((e) => `${e.tagName}.${e.className}`)"""


@pytest.mark.parametrize("kind", NAMES)
async def test_they_are_only_text(new_page, quick_vitals, kind: str) -> None:
    name = NAMES[kind].strip()
    graph = af.Graph(name)

    def fail(x: Any) -> Any:
        if x < 0:
            raise ValueError(name + CONTROLS)
        return x

    fail.__qualname__ = name
    x = graph.blob(f"{name} x", ())
    scope = graph.subgraph(f"{name} scope")
    scope.function(name, fail, SCALAR, lane=f"{name} lane")(x)
    op = f"{name} scope/{name}"
    loader = af.pipeline.source([np.float32(1), np.float32(-1)], name=name + CONTROLS)
    async with graph, loader, serve(graph, port=0) as view:
        page = await new_page()
        await page.open(view.url)
        stream = graph.stream(loader.feed(x))
        await anext(stream)
        await page.until("actorflow.stages.length === 1")
        with pytest.raises(af.OpError):
            await anext(stream)
        await page.until("actorflow.failures.length > 0")
        assert await page.page.title() == f"{name} · actorflow"
        assert await text_of(page, "#graph-name") == name
        await page.page.fill("#search", f"scope/{name[:9]}")
        await page.until("document.querySelectorAll('#search-results span').length > 0")
        assert await text_of(page, "#search-results span") == op
        await page.page.keyboard.press("Enter")
        await page.until(f"actorflow.selected === {op!r}")
        for selector, text in (("#node h2", name), ("#node .node-sub", f"Op · {op}"), (".failures .where", op)):
            assert await text_of(page, selector) == text
        assert name in await text_of(page, "#failure-list pre")
        assert await text_of(page, "#curve-list .curve-head span") == f"{op}/out"
        assert op in await text_of(page, "#announcement")
        await page.page.mouse.move(*await page.middle_of(op))
        assert await text_of(page, "#tooltip strong") == op
        await page.page.select_option("#colour", "lane")
        assert f"cpu {name} lane" in await page.page.locator("#legend li").all_text_contents()
        await page.page.click("#timeline-toggle")
        await page.until("actorflow.bars.length > 0")
        bar = (await page.look("actorflow.bars"))[-1]
        box = await page.page.locator("#timeline").bounding_box()
        await page.page.mouse.move(box["x"] + bar["x"], box["y"] + bar["y"])
        assert await text_of(page, "#timeline-tooltip strong") == op
        for width in (1280, 375):
            await page.page.set_viewport_size({"width": width, "height": 800})
            await page.redrawn()
            assert await page.look("document.documentElement.scrollWidth <= innerWidth")
            assert await page.look(TOO_WIDE) == []
        assert await page.look("typeof hacked") == "undefined"
        found = "document.querySelectorAll('main img, main script, main svg, header script, title *').length"
        assert await page.look(found) == 0
        await stream.aclose()


async def text_of(page: Any, selector: str) -> str:
    text: str = await page.page.locator(selector).first.text_content()
    return text
