"""The tab "Values" in a real browser: what is drawn is what the frames had, for those who may see it."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import actorflow as af
from actorflow.web import serve
from tests.web.test_names import TOO_WIDE

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: The pixels of a canvas, as text: a list of as many numbers takes ten seconds on its way here.
PIXELS = """((id) => {
    const canvas = document.getElementById(id), { width, height } = canvas;
    const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
    return { width, height, data: btoa(data.reduce((text, byte) => text + String.fromCharCode(byte), '')) };
})"""
#: Ratio of contrast of each text in the tab to what is behind it.
CONTRASTS = """(() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = parse(colour).map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (e) => {
        const colour = getComputedStyle(e).backgroundColor;
        return !e.parentElement || (parse(colour)[3] ?? 1) === 1 ? colour : behind(e.parentElement);
    };
    const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    const all = [...document.querySelectorAll('#panel-values *')];
    return all.filter((e) => e.checkVisibility() && hasText(e)).map((e) => {
        const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
        return [e.textContent, (a + 0.05) / (b + 0.05)];
    });
})()"""


class Images:
    """A network of images, whose frames go on, and whose feed is known."""

    def __init__(self) -> None:
        self.graph = af.Graph("images")
        x = self.graph.blob("images", (6, 10, 12, 3))
        labels = self.graph.blob("labels", (6,), "int64")
        hidden = af.ops.relu(af.nn.Conv(4, 3)(x), name="hidden")
        scores = af.nn.InnerProduct(5)(hidden)
        af.ops.log(af.ops.scale(x, 1.0, name="scaled"), name="logs")
        af.ops.mean(x, name="number")
        af.nn.SGD(0.01).minimize(af.ops.softmax_loss(scores, labels, name="loss"))
        rng = np.random.default_rng(0)
        self.images = rng.normal(size=(6, 10, 12, 3)).astype("f")
        self.labels = np.arange(6) % 5
        self._stepped = asyncio.Event()

    async def step(self) -> None:
        await self.graph.run({"images": self.images, "labels": self.labels})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def run() -> None:
            while True:
                await self.step()
                self._stepped.set()
                await asyncio.sleep(0)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    @property
    def taps(self) -> int:
        return len(self.graph.engine.resources.taps.open)

    async def until_taps(self, count: int) -> None:
        """Wait until a frame has ended while there were so many."""
        async with asyncio.timeout(60):
            while self.taps != count:
                self._stepped.clear()
                await self._stepped.wait()


@pytest.fixture
async def images() -> AsyncIterator[Images]:
    made = Images()
    async with made.graph, made.running():
        yield made


async def choose(page: Any, name: str) -> None:
    await page.page.fill("#search", name)
    await page.until("document.querySelectorAll('#search-results li span').length > 0")
    await page.page.keyboard.press("Enter")
    await page.until(f"actorflow.selected === {json.dumps(name)}")


async def shown(page: Any, name: str) -> dict[str, Any]:
    """The newest sample of a blob, and all of it drawn."""
    await page.show("values")
    await choose(page, name)
    await page.until("actorflow.values.sample")
    sample: dict[str, Any] = await page.look("actorflow.values.sample")
    return sample


async def pixels(page: Any, of: str) -> npt.NDArray[np.uint8]:
    """Rows of a canvas, of red, green, blue and opacity."""
    drawn = await page.look(f"{PIXELS}({of!r})")
    return np.frombuffer(base64.b64decode(drawn["data"]), "u1").reshape(drawn["height"], drawn["width"], 4)


async def note(page: Any) -> str:
    text: str = await page.page.locator("#value-note").text_content()
    return text


async def test_only_where_they_are_offered(page_of, images) -> None:
    async with page_of(images.graph) as page:
        await page.show("values")
        await choose(page, "images")
        await page.until("document.getElementById('value-note').textContent.includes('values=True')")
        assert images.taps == 0
        assert await page.look("actorflow.values") == {
            "allowed": False, "sample": None, "bars": [], "layout": None, "norms": {},
        }  # fmt: skip
        assert await page.page.locator("#norms").is_hidden()


async def test_only_in_the_tab_that_has_the_token(new_page, images) -> None:
    async with serve(images.graph, port=0, values=True, token="secret") as view:
        page = await new_page()
        await page.open(view.url)
        sample = await shown(page, "images")
        assert sample["mean"] == pytest.approx(images.images.mean(), rel=1e-4)
        other = await page.page.context.new_page()  # with the cookie alone
        await other.goto(f"http://127.0.0.1:{view.port}/")
        await other.click("#tab-values")
        says = "document.getElementById('value-note').textContent.includes('token')"
        await other.evaluate(f"async () => {{ while (!{says}) await new Promise((go) => setTimeout(go, 15)); }}")
        assert not await other.evaluate("() => actorflow.values.allowed")


async def test_a_picture_has_the_values_pixel_by_pixel(page_of, images) -> None:
    async with page_of(images.graph, values=True) as page:
        await shown(page, "images")
        data, layout = await pixels(page, "value-picture"), await page.look("actorflow.values.layout")
        low, high = images.images.min(), images.images.max()
        level = np.rint(254 * (images.images.astype("d") - low) / (float(high) - float(low)))
        scale, gap = layout["scale"], layout["gap"]
        assert scale == 7, "whole pixels, four in a row"
        for number, image in enumerate(level):
            row, column = divmod(number, layout["columns"])
            top, left = row * (10 * scale + gap), column * (12 * scale + gap)
            tile = data[top : top + 10 * scale, left : left + 12 * scale, :3]
            expected = np.rint(image * 255 / 254).repeat(scale, 0).repeat(scale, 1)
            np.testing.assert_array_equal(tile, expected)
        assert "6 in all" in await page.page.locator("#value-caption").text_content()


async def test_a_histogram_is_numpys(page_of, images) -> None:
    async with page_of(images.graph, values=True) as page:
        sample = await shown(page, "images")
        counts, edges = np.histogram(images.images, 64)
        assert sample["histogram"]["counts"] == counts.tolist()
        assert [sample["histogram"]["low"], sample["histogram"]["high"]] == pytest.approx([edges[0], edges[-1]])
        # As drawn: of the middle of each bar, the pixels in its colour.
        data = await pixels(page, "value-histogram")
        accent = await page.look("getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()")
        colour = [int(accent[at : at + 2], 16) for at in (1, 3, 5)]
        middles = ((np.arange(64) + 0.45) * data.shape[1] / 64).astype(int)
        heights = (data[:, middles, :3] == colour).all(-1).sum(0)
        np.testing.assert_allclose(heights, counts / counts.max() * heights.max(), atol=1.01)
        # By pointer and by keys.
        box = await page.page.locator("#value-histogram").bounding_box()
        await page.page.mouse.move(box["x"] + box["width"] * 20.5 / 64, box["y"] + 20)
        said = page.page.locator("#value-bin")
        assert (await said.text_content()).endswith(f": {counts[20]}")
        await page.page.focus("#value-histogram")
        await page.page.keyboard.press("ArrowRight")
        assert (await said.text_content()).endswith(f": {counts[21]}")


async def test_what_is_not_finite_is_red_and_counted(page_of, images) -> None:
    async with page_of(images.graph, values=True) as page:
        sample = await shown(page, "logs/out")
        assert sample["nan"] == (images.images < 0).sum()
        assert await page.page.locator("#value-facts .bad").text_content() == f"{sample['nan']:,}"
        data = (await pixels(page, "value-picture")).reshape(-1, 4)
        failed = await page.look("getComputedStyle(document.documentElement).getPropertyValue('--failed').trim()")
        is_red = (data[:, :3] == [int(failed[at : at + 2], 16) for at in (1, 3, 5)]).all(-1) & (data[:, 3] == 255)
        layout = await page.look("actorflow.values.layout")
        assert is_red.sum() == (images.images < 0).any(-1).sum() * layout["scale"] ** 2


@pytest.mark.parametrize(
    ("name", "kind", "caption"),
    [
        ("hidden", "picture", "The first 4 of 6, channels 0 to 3 of 4"),
        ("labels", "line", "6 elements"),
        ("number", None, ""),
        ("innerproduct", None, None),
    ],
)
async def test_each_shape_has_its_view(page_of, images, name, kind, caption) -> None:
    """Of an op its output is shown."""
    if caption is None:
        name = next(blob.name for blob in images.graph.blobs if blob.shape == (6, 5) and blob.producers)
        kind, caption = "picture", "6 rows"
    async with page_of(images.graph, values=True) as page:
        sample = await shown(page, name)
        assert (sample["view"] and sample["view"]["kind"]) == kind
        assert (await page.page.locator("#value-caption").text_content()).startswith(caption)
        visible = [f"#value-{each}" for each in ("picture", "line") if await page.page.is_visible(f"#value-{each}")]
        assert visible == ([f"#value-{kind}"] if kind else [])


async def test_taps_end_with_the_page_the_tab_and_the_choice(page_of, images) -> None:
    async with page_of(images.graph, values=True) as page:
        await choose(page, "images")
        assert images.taps == 0, "nobody looks at values yet"
        await shown(page, "images")
        assert images.taps == 1
        await page.show("ops")
        await images.until_taps(0)
        await page.show("values")
        await page.page.check("#norms-on")
        await images.until_taps(2)
        await page.page.uncheck("#norms-on")
        await images.until_taps(1)
        await page.page.click("#graph-name")
        await page.page.keyboard.press("Escape")
        await images.until_taps(0)
        await shown(page, "labels")
        await page.page.close()
        await images.until_taps(0)


async def test_norms_by_layer(page_of, images) -> None:
    async with page_of(images.graph, values=True) as page:
        await page.show("values")
        await page.page.check("#norms-on")
        await page.until("Object.keys(actorflow.values.norms).length > 0")
        norms = await page.look("actorflow.values.norms")
        weights = {variable.name for variable in images.graph.variables if not variable.is_state}
        assert {*norms} == weights
        for layer in norms.values():
            assert layer["update"] == pytest.approx(0.01 * layer["gradient"], rel=0.05)
        rows = page.page.locator("#norm-rows tr")
        assert await rows.count() == len(weights)
        assert await page.page.locator("#norm-curves canvas").count() == 3
        await rows.nth(1).locator("button").click()
        assert await page.look("actorflow.selected") == list(norms)[1]
        assert await page.look("actorflow.tab") == "Values"
        await page.until("document.querySelector('#norm-rows tr:nth-child(2)').hasAttribute('data-chosen')")


async def test_a_lost_connection_is_asked_again(new_page, images) -> None:
    async with serve(images.graph, port=0, values=True) as view:
        page = await new_page()
        await page.open(view.url)
        await shown(page, "images")
        frame = await page.look("actorflow.values.sample.frame")
        port = view.port
    async with serve(images.graph, port=port, values=True):
        await page.until(f"actorflow.connection === 'live' && actorflow.values.sample?.frame > {frame}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_on_a_phone_everything_is_legible_and_named(page_of, images, scheme) -> None:
    async with page_of(images.graph, values=True, viewport={"width": 390, "height": 844}, color_scheme=scheme) as page:
        await shown(page, "images")
        await page.page.check("#norms-on")
        await page.until("Object.keys(actorflow.values.norms).length > 0")
        assert await page.look(TOO_WIDE) == []
        poor = [(text, ratio) for text, ratio in await page.look(CONTRASTS) if ratio < 4.5]
        assert not poor
        kinds = "#panel-values :is(button, input, canvas, section)"
        nameless = f"""[...document.querySelectorAll('{kinds}')].filter((e) => {{
            const by = document.getElementById(e.getAttribute('aria-labelledby'))?.textContent;
            const label = e.getAttribute('aria-label') ?? by ?? e.labels?.[0]?.textContent ?? e.textContent;
            return e.checkVisibility() && !label.trim();
        }}).map((e) => e.outerHTML)"""
        assert await page.look(nameless) == []
        assert await page.page.locator("#value-histogram").get_attribute("aria-label") == "Histogram of images"


async def test_who_wants_less_motion_sees_less(page_of, images) -> None:
    async with page_of(images.graph, values=True, reduced_motion="reduce") as page:
        await shown(page, "images")
        counted = """(async () => {
            const seen = new Set(), from = performance.now();
            const first = actorflow.values.sample.frame;
            while (performance.now() - from < 900) {
                seen.add(document.getElementById('value-frame').textContent);
                await new Promise((go) => setTimeout(go, 10));
            }
            return [seen.size, actorflow.values.sample.frame - first];
        })()"""
        changes, frames = await page.look(counted)
        assert changes <= 2
        assert frames > 0, "samples come all the same"
