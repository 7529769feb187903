"""Names of all kinds are shown as they are, everywhere, in a real browser: never read as HTML, never too wide."""

import json
import sys
import unicodedata
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.errors import visible
from tests.support.effort import FULL

pytestmark = [pytest.mark.browser, pytest.mark.slow]

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
#: Texts and attributes with characters that are not seen, or turn others around.
HIDDEN_IN = r"""[...document.querySelectorAll('*')].flatMap((e) => [
    ...[...e.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data),
    ...[...e.attributes].map((attribute) => attribute.value),
]).filter((text) => /[\p{C}\p{Z}]/u.test(text.replaceAll(/[ \n\t]/g, '')))"""
#: What is wider than the window, by the tags and classes of it.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter((e) => {
    const box = e.getBoundingClientRect();
    const scrolls = e.closest('.unseen, pre, canvas');
    return box.width && !scrolls && (box.right > innerWidth + 1 || box.left < -1);
}).map((e) => `${e.tagName}.${e.className}`)"""


@pytest.mark.parametrize("kind", NAMES)
async def test_they_are_only_text(page_of, quick_vitals, kind: str) -> None:
    name = NAMES[kind].strip()
    graph = af.Graph(name)

    def fail(x: Any) -> Any:
        if x < 0:
            raise ValueError(name + CONTROLS)
        return x

    fail.__qualname__ = name + CONTROLS
    x = graph.blob(f"{name} x", ())
    scope = graph.subgraph(f"{name} scope")
    scope.function(name, fail, SCALAR, lane=f"{name} lane{CONTROLS}")(x)
    op = f"{name} scope/{name}"
    loader = af.pipeline.source([np.float32(1), np.float32(-1)], name=name + CONTROLS)
    async with graph, loader, page_of(graph, alone=True) as page:
        stream = graph.stream(loader.feed(x))
        await anext(stream)
        await page.until("actorflow.stages.length === 1")
        await page.show("data")
        listed = json.dumps(f"{name}{visible(CONTROLS)}")
        await page.until(f"document.getElementById('pipeline-list').textContent.includes({listed})")
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
        for tab in ("curves", "failures"):
            await page.show(tab)
            await page.redrawn()
        for selector, text in (("#node h2", name), ("#node .node-sub", f"Op · {op}"), (".failures .where", op)):
            assert await text_of(page, selector) == text
        assert f"ValueError: {name}{visible(CONTROLS)}" in await text_of(page, "#failure-list pre")
        assert await text_of(page, "#node dd") == f"{name}{visible(CONTROLS)}"
        assert await text_of(page, "#curve-list .curve-head span") == f"{op}/out"
        assert op in await text_of(page, "#announcement")
        await page.page.mouse.move(*await page.middle_of(op))
        assert await text_of(page, "#tooltip strong") == op
        await page.page.select_option("#colour", "lane")
        lane = f"cpu {name} lane{visible(CONTROLS)}"
        assert lane in await page.page.locator("#legend li").all_text_contents()
        await page.page.click("#timeline-toggle")
        await page.until("actorflow.bars.length > 0")
        bar = (await page.look("actorflow.bars"))[-1]
        box = await page.page.locator("#timeline").bounding_box()
        await page.page.mouse.move(box["x"] + bar["x"], box["y"] + bar["y"])
        assert await text_of(page, "#timeline-tooltip strong") == op
        for width in (1280, 375):
            await page.page.set_viewport_size({"width": width, "height": 800})
            for tab in ("now", "ops", "curves", "values", "data", "node", "failures"):
                await page.show(tab)
                await page.redrawn()
                assert await page.look("document.documentElement.scrollWidth <= innerWidth")
                assert await page.look(TOO_WIDE) == []
        assert await page.look("typeof hacked") == "undefined"
        assert await page.look(HIDDEN_IN) == []
        found = "document.querySelectorAll('main img, main script, main svg, header script, title *').length"
        assert await page.look(found) == 0
        await stream.aclose()


async def text_of(page: Any, selector: str) -> str:
    text: str = await page.page.locator(selector).first.text_content()
    return text


async def test_what_is_hidden_is_written_as_python_writes_it(training, page_of) -> None:
    """Every character that there is is checked, but for those of which Python and the browser may know more or less."""
    codes = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in {"Cn", "Cs"}]
    if not FULL:  # of letters, and of characters for private use, some
        codes = [code for code in codes if code % 31 == 0 or unicodedata.category(chr(code)) not in {"Lo", "Co"}]
    async with page_of(training.graph) as page:
        differing = await page.page.evaluate(
            """async ([codes, hidden]) => {
                const { parse, visible } = await import("./static/text.js"), written = new Map(hidden);
                return codes.filter((code) => {
                    const one = String.fromCodePoint(code), expected = written.get(code) ?? one;
                    const message = parse(`{"text": ${JSON.stringify(one)}}`);
                    return visible(one) !== expected || message.text !== expected;
                });
            }""",
            [codes, [(code, visible(chr(code), lines=True)) for code in codes if not chr(code).isprintable()]],
        )
        assert [hex(code) for code in differing if unicodedata.category(chr(code)) != "Cn"] == []
        escaped = r'{"a": ["\u202ex", 1], "b": "\ud800", "c": "\\u202e", "d": "a\nb\tc"}'
        parsed = await page.page.evaluate("""async (text) => (await import("./static/text.js")).parse(text)""", escaped)
        assert parsed == {"a": [r"\u202ex", 1], "b": r"\ud800", "c": r"\u202e", "d": "a\nb\\tc"}
