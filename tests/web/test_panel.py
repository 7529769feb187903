"""The side panel in a real browser: true states, and cards that stay where they are."""

import asyncio
import contextlib
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import actorflow as af
from tests.support.effort import FULL

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SQUARE = af.TensorSpec.of((4, 4))
SCALAR = af.TensorSpec.of(())
FEED = {"x": np.ones((4, 4), "float32")}
#: Moments at which all that shows a state is compared, and looks at the places of cards.
MOMENTS, LOOKS = (200, 40) if FULL else (60, 12)
#: Places of all that a reader might look at in the tab that is shown.
PLACES = """[...document.querySelectorAll('#tabs button, .card, .card h2, .cost, .curve')]
    .filter((each) => each.checkVisibility())
    .map((each) => [each.id, ...Object.values(each.getBoundingClientRect().toJSON())])"""


class Restless:
    """A graph of two lanes and async functions, of which calls fail and frames are cancelled, all the time."""

    def __init__(self) -> None:
        self.graph = af.Graph("restless")
        self.random = Random(1)
        self.enough = False
        hidden = [self.graph.blob("x", (4, 4))]
        for layer in range(2):
            scope = self.graph.subgraph(f"layer{layer}")
            hidden = [
                scope.function(f"work{k}", self.work, SQUARE, lane=f"lane{k % 2}")(hidden[k % len(hidden)])
                for k in range(4)
            ]
        fetched = self.graph.function("fetch", self.fetch, SQUARE, concurrency=3)(hidden[0])
        joined = self.graph.function("join", lambda *xs: xs[0], SQUARE)(fetched, *hidden[1:])
        self.graph.function("loss", self.lose, SCALAR)(joined)

    def work(self, x: Any) -> Any:
        np.linalg.svd(np.ones((90, 90)))
        if self.random.random() < 0.02:
            raise ValueError("bad luck")
        return x

    async def fetch(self, x: Any) -> Any:
        for _ in range(self.random.randrange(40)):
            await asyncio.sleep(0)
        return x

    def lose(self, _: Any) -> Any:
        return np.float32(self.random.choice([0.5, self.random.random(), np.nan]))

    async def frames(self) -> None:
        """Run frames until it is enough, and cancel every fifth somewhere on its way."""
        while not self.enough:
            run = asyncio.ensure_future(self.graph.run(FEED))
            if self.random.random() < 0.2:
                for _ in range(self.random.randrange(60)):
                    await asyncio.sleep(0)
                run.cancel()
            with contextlib.suppress(af.OpError, asyncio.CancelledError):
                await run

    @contextlib.asynccontextmanager
    async def running(self, at_once: int) -> Any:
        tasks = [asyncio.create_task(self.frames()) for _ in range(at_once)]
        try:
            yield
        finally:
            self.enough = True
            await asyncio.gather(*tasks)


# What is drawn is read from the canvas: of the states' colours the one that most of a card has.
LOOK = """((ops) => {
    const canvas = document.getElementById('graph'), style = getComputedStyle(document.documentElement);
    const names = ['idle', 'waiting', 'running', 'done', 'failed', 'cancelled', 'constant', 'queued'];
    const numberOf = (name) => parseInt(style.getPropertyValue(`--${name}`).trim().slice(1), 16);
    const colours = new Map(names.map((name) => [numberOf(name), name]));
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const drawn = {}, ratio = canvas.width / canvas.clientWidth;
    actorflow.items.forEach((name, i) => {
        if (!ops.includes(name)) return;
        const [x, y, width, height] = actorflow.rectangles[i], found = {};
        const [left, top] = actorflow.toScreen(x - width / 2, y - height / 2).map((at) => at * ratio);
        const [right, bottom] = actorflow.toScreen(x + width / 2, y + height / 2).map((at) => at * ratio);
        const { data } = copy.getImageData(left, top, right - left, bottom - top);
        for (let k = 0; k < data.length; k += 4) {
            const state = colours.get(data[k] * 65536 + data[k + 1] * 256 + data[k + 2]);
            if (state) found[state] = (found[state] ?? 0) + 1;
        }
        drawn[name] = Object.entries(found).sort((a, b) => b[1] - a[1])[0]?.[0];
    });
    const all = (selector, take) => [...document.querySelectorAll(selector)].map(take);
    const counts = ['started', 'failed', 'cancelled', 'in-flight'];
    return {
        drawn, states: actorflow.states, load: actorflow.load, frames: actorflow.frames,
        legend: Object.fromEntries(all('#legend b', (b) => [b.dataset.state, Number(b.textContent)])),
        lanes: all('#lane-list li', (li) => [...li.children].map((each) => each.textContent)),
        selected: document.querySelector('#node .pill')?.textContent,
        shown: counts.map((name) => Number(document.getElementById(`frames-${name}`).textContent.replaceAll(',', ''))),
        full: actorflow.fullness('fetch')?.used ?? 0,
    };
})"""


async def test_legend_picture_and_panel_are_one_snapshot(page_of) -> None:
    restless = Restless()
    async with restless.graph, page_of(restless.graph, viewport={"width": 1400, "height": 1000}) as page:
        await page.page.click("#zoom-fit")
        ops = [op.name for op in restless.graph.ops]
        seen: set[str] = set()
        moments = set()
        async with restless.running(5):
            while len(moments) < MOMENTS:
                look = await page.look(f"{LOOK}({json.dumps(ops)})")
                states = {op: look["states"][op] for op in ops}
                if look["frames"]["started"] in moments:
                    continue
                moments.add(look["frames"]["started"])
                seen |= set(states.values())
                if look["selected"] is None:
                    assert look["drawn"] == states
                else:  # what is not near the chosen op is drawn pale
                    assert look["selected"] == states["layer1/work1"]
                if len(moments) == MOMENTS * 3 // 4:
                    await page.page.fill("#search", "layer1/work1")
                    await page.page.keyboard.press("Enter")
                counts = {name: list(states.values()).count(name) for name in look["legend"]}
                assert look["legend"] == counts
                running = [op for load in look["load"] for op in load["running"]]
                assert set(running) == {op for op, state in states.items() if state == "running"}
                assert all(len(load["running"]) <= 1 for load in look["load"] if load["name"].startswith("cpu"))
                assert states["fetch"] != "running" or 0 < running.count("fetch") == look["full"] <= 3
                assert {name: queued for name, _, queued in look["lanes"] if queued} == {
                    load["name"]: f"{load['queued']} queued" for load in look["load"] if load["queued"]
                }
                frames = [look["frames"][name] for name in ("started", "failed", "cancelled", "inFlight")]
                assert look["shown"] == frames
        assert {"running", "queued", "waiting", "done"} <= seen
        await page.until("actorflow.frames.inFlight === 0")
        after = await page.look("actorflow.states")
        assert {after[op] for op in ops} <= {"done", "failed", "cancelled"}, "nothing waits where no frame is in flight"


@pytest.mark.parametrize("tab", ["now", "ops", "curves"])
async def test_cards_stay_where_they_are_while_values_change(page_of, quick_vitals, tab: str) -> None:
    restless = Restless()
    async with restless.graph, page_of(restless.graph) as page:
        await page.show(tab)
        async with restless.running(3):
            await page.until("actorflow.frames.finished > 5 && actorflow.curves['loss/out']?.length > 5")
            await page.until(
                "actorflow.calls['layer1/work3'] > 5 && actorflow.frames.failed > 0 && actorflow.calls.loss > 0"
            )
            await page.until("document.querySelector('#tab-failures .badge').textContent")
            if tab == "ops":  # an op has a row from its first call on
                await page.until("document.querySelectorAll('.cost').length === 11")
            places, texts = await page.look(PLACES), set()
            finished = await page.look("actorflow.frames.finished")
            looks = 0
            while looks < LOOKS or len(texts) <= 5:  # values change meanwhile
                looks += 1
                finished += 2
                await page.until(f"actorflow.frames.finished >= {finished}")
                assert await page.look(PLACES) == places
                texts.add(await page.page.inner_text(f"#panel-{tab}"))


async def test_failures_leave_a_badge_until_they_are_looked_at(flaky, page_of) -> None:
    async with page_of(flaky.graph) as page:
        badge = page.page.locator("#tab-failures .badge")
        assert await badge.is_hidden()
        for number in (1, 2):
            with pytest.raises(af.OpError):
                await flaky.run(failing=11)
            await badge.get_by_text(str(number), exact=True).wait_for()
        assert await page.page.get_attribute("#tab-failures", "aria-label") == "Failures, 2 new"
        await page.show("failures")
        await badge.wait_for(state="hidden")
        await page.show("now")
        with pytest.raises(af.OpError):
            await flaky.run(failing=11)
        await badge.get_by_text("1", exact=True).wait_for()
        for _ in range(60):
            with pytest.raises(af.OpError):
                await flaky.run(failing=11)
        await page.show("failures")
        await page.page.get_by_text("63 frames have failed; the newest 50 are shown").wait_for()
        await page.page.locator("#failure-list").get_by_text("50 of the newest 50").wait_for()


async def test_tabs_by_keys_and_edges(training, page_of) -> None:
    async with page_of(training.graph) as page:
        await page.page.focus("#tab-now")
        for expected in ("Ops", "Curves", "Values", "Data", "Node", "Failures", "Now"):
            await page.page.keyboard.press("ArrowRight")
            assert await page.look("[actorflow.tab, document.activeElement.id]") == [
                expected,
                f"tab-{expected.lower()}",
            ]
            assert await page.page.locator('[role="tabpanel"]:visible').count() == 1
        width = await page.look("document.getElementById('panel').clientWidth")
        await page.page.focus("#panel-edge")
        await page.page.keyboard.press("ArrowLeft")
        assert await page.look("document.getElementById('panel').clientWidth") == width + 24
        box = await page.page.locator("#panel-edge").bounding_box()
        await page.page.mouse.move(box["x"] + 2, 400)
        await page.page.mouse.down()
        await page.page.mouse.move(box["x"] - 58, 400)
        await page.page.mouse.up()
        wide = await page.look("document.getElementById('panel').clientWidth")
        assert width + 60 < wide < width + 100
        await page.page.reload()
        await page.until("actorflow.connection === 'live'")
        assert await page.look("document.getElementById('panel').clientWidth") == wide
        await page.page.keyboard.press("h")
        assert await page.page.locator("#help").is_visible()


async def test_costs_are_labelled_and_sorted_by_what_one_asks_for(training, page_of) -> None:
    async with page_of(training.graph) as page:
        for _ in range(20):
            await training.run()
        await page.until("actorflow.calls.loss === 20 && actorflow.latency('loss')[1] > 0")
        await page.show("ops")
        for op in training.graph.ops:
            p50, p99, longest, total = await page.look(
                f"[...actorflow.latency({op.name!r}), ...actorflow.times({op.name!r})]"
            )
            assert p50 <= p99 <= longest <= total

        async def column(name: str) -> list[str]:
            heads = await page.page.locator(".heads button").all_inner_texts()
            at = [head.strip() for head in heads].index(name)
            return await page.page.locator(f".cost .figures span:nth-child({at + 1})").all_inner_texts()

        def us(text: str) -> float:
            number, unit = text.split()
            return float(number) * {"ns": 1e-3, "µs": 1, "ms": 1e3, "s": 1e6}[unit]

        for name in ("Mean", "Max", "Total"):
            await page.page.get_by_role("columnheader", name=name).get_by_role("button").click()
            times = [us(text) for text in await column(name)]
            assert times == sorted(times, reverse=True)
            assert len(times) == 18
        await page.page.select_option("#cost-group", "scope")
        names = await page.page.locator(".cost .name").all_inner_texts()
        assert set(names) == {"the whole graph", *(f"block{k}" for k in range(4))}
        assert names[0] == "the whole graph"
        whole = [us(text) for text in await column("Total")]
        assert whole[0] >= sum(whole[1:]) * 0.99
        await page.page.select_option("#cost-group", "kind")
        assert await column("Share") == ["100.0%"]


async def test_curves_can_be_read_zoomed_and_laid_over_each_other(page_of, tmp_path: Path) -> None:
    graph = af.Graph("curves")
    x = graph.blob("x", ())
    graph.function("loss", lambda x: x, SCALAR)(x)
    async with graph, page_of(graph) as page:
        for value in [*(100 / (1 + k) for k in range(40)), np.nan, -1.0]:
            await graph.run({x: np.float32(value)})
        await page.until("actorflow.curves['loss/out']?.length === 42")
        await page.show("curves")
        said, curve = page.page.locator(".curve-head b"), page.page.locator(".curve canvas")
        await said.get_by_text("-1.0000 · 1 not finite").wait_for()
        box = await curve.bounding_box()
        await page.page.mouse.move(box["x"] + 46, box["y"] + 60)
        await said.get_by_text("frame 0: 100.00", exact=True).wait_for()
        await page.page.fill("#curve-smooth", "0.5")
        await page.page.mouse.move(box["x"] + 47, box["y"] + 60)
        await said.get_by_text("frame 0: 100.00 (smooth 100.00)").wait_for()
        picture = await curve.screenshot()
        await page.page.check("#curve-log")
        assert await curve.screenshot() != picture
        width = box["width"] - 46 - 6
        await page.page.mouse.move(box["x"] + 46 + width * 10.2 / 41, box["y"] + 60)
        await page.page.mouse.down()
        await page.page.mouse.move(box["x"] + 46 + width * 20.2 / 41, box["y"] + 60)
        await page.page.mouse.up()
        await page.page.mouse.move(box["x"] + 47, box["y"] + 60)
        await said.get_by_text("frame 11: 8.3333").wait_for()
        await page.page.click("#curve-reset")
        await page.page.mouse.move(box["x"] + box["width"] - 7, box["y"] + 60)
        await said.get_by_text("frame 41: -1.0000").wait_for()
        assert await page.page.get_by_role("link", name="Save run").get_attribute("href") == "api/curves"
        saved = tmp_path / "earlier.json"
        saved.write_text(await page.look("fetch('api/curves').then((response) => response.text())"))
        content = json.loads(saved.read_text())
        assert content["graph"] == "curves"
        assert content["curves"]["loss/out"][1][40:] == [None, -1.0]
        content["curves"]["loss/out"][1][0] = 7.0
        saved.write_text(json.dumps(content))
        await page.page.set_input_files("#curve-files", [saved])
        await page.page.get_by_role("button", name="earlier").wait_for()
        await page.page.mouse.move(box["x"] + 46, box["y"] + 90)
        await said.get_by_text("frame 0: this run 100.00 (smooth 100.00), earlier 7.0000").wait_for()
        (tmp_path / "bad.json").write_text("{}")
        await page.page.set_input_files("#curve-files", [tmp_path / "bad.json"])
        await page.page.get_by_text("bad.json cannot be read as a run").wait_for()
        await page.page.get_by_role("button", name="earlier").click()
        await page.page.get_by_role("button", name="earlier").wait_for(state="detached")
