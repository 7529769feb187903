"""Several graphs on one page, what moment a page shows, and frames of before."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import actorflow as af
from actorflow.cli.demo import Training
from actorflow.data import digits
from actorflow.web.vitals import idle


@pytest.fixture
async def calling():
    """A graph that calls another one, and a third of the same name as the first."""
    inner, outer, same = af.Graph("to scale"), af.Graph("outer"), af.Graph("outer")
    values = inner.blob("values", ["n"])
    scaled = values * inner.variable("factor", [], init=3.0)
    x = outer.blob("x", ["rows"])
    y = outer.call(inner, {values: x + 1}, fetch=scaled, name="call it")
    async with inner, outer, same:
        yield SimpleNamespace(graphs=[outer, inner, same], run=lambda: outer.run({x: [1, 2]}), x=x, y=y)


async def test_each_has_a_page_below_its_name_and_a_list_says_who_calls_whom(served, calling) -> None:
    await calling.run()
    async with served(calling.graphs) as client:
        text = await (await client.get("/")).text()
        assert 'src="static/graphs.js"' in text
        assert (await client.get("/static/graphs.js")).status == 200
        outer, inner, same = json.loads(await (await client.get("/api/graphs")).text())["graphs"]
        assert [each["path"] for each in (outer, inner, same)] == ["outer", "to-scale", "outer-2"]
        assert outer["calls"] == [{"op": "call it", "path": "to-scale", "calls": 1}]
        assert inner["frames"]["finished"] == 1
        assert inner["calls"] == same["calls"] == []
        assert outer["idle"]["since_s"] >= 0
        assert same["idle"]["since_s"] is None
        for name, graph in zip(("outer", "to-scale", "outer-2"), calling.graphs, strict=True):
            assert 'src="static/main.js"' in await (await client.get(f"/{name}/")).text()
            health = json.loads(await (await client.get(f"/{name}/healthz")).text())
            assert health["graph"] == graph.name
            async with client.ws_connect(f"/{name}/stream") as socket:
                message = json.loads((await socket.receive()).data)
                assert (message["name"], message["others"]) == (graph.name, True)
                calls = [node["calls"] for node in message["nodes"] if "calls" in node]
                assert calls == ([{"graph": "to scale", "path": "../to-scale/"}] if name == "outer" else [])
        assert (await client.get("/nowhere/")).status == 404
        assert (await client.get("/outer/", headers={"Host": "evil.example"})).status == 403
        assert (await client.get("/api/graphs", headers={"Host": "evil.example"})).status == 403


async def test_the_token_is_for_all_of_them(served, calling) -> None:
    async with served(calling.graphs, token="secret") as client:
        for path in ("/", "/api/graphs", "/outer/"):
            assert (await client.get(path)).status == 401
            assert (await client.get(path, headers={"Authorization": "Bearer secret"})).status == 200


@pytest.mark.parametrize("count", [0, 2])
def test_they_must_be_different_ones(count: int) -> None:
    with pytest.raises(ValueError, match="expected one graph or several different ones"):
        af.web.create_app([af.Graph("g")] * count)


def test_nodes_of_the_demo_are_made_by_its_own_lines() -> None:
    data = digits(seed=0).standardized()
    assert Path(Training(data, epochs=1, batch=64, seed=0).graph["loss"].site.filename).name == "demo.py"


async def test_a_graph_says_since_when_it_rests(training) -> None:
    assert idle(training.graph.engine) == {"since_s": None, "streamed": False}
    await training.run()
    found = idle(training.graph.engine)
    assert found is not None
    assert found["since_s"] >= 0
    assert not found["streamed"]
    stream = training.graph.stream([{training.x: np.ones((4, 4), np.float32)}] * 2)
    await anext(stream)
    assert idle(training.graph.engine) is None
    await stream.aclose()
    found = idle(training.graph.engine)
    assert found is not None
    assert found["streamed"]


@pytest.mark.browser
@pytest.mark.slow
async def test_a_reader_goes_from_the_list_to_a_graph_and_to_the_one_that_it_calls(new_page, calling) -> None:
    await calling.run()
    page = await new_page()
    async with af.web.serve(calling.graphs, port=0, control=True) as view:
        await page.page.goto(view.url)
        await page.page.get_by_text("1 call", exact=True).wait_for()
        assert await page.page.locator("#graphs svg path").count() == 1
        await page.page.locator("article h2").first.click()
        await page.until("actorflow.connection === 'live' && !actorflow.isBusy && actorflow.control.allowed")
        await page.click_node("call it")
        await page.page.locator("#node .facts a").click()
        await page.until("actorflow.name === 'to scale' && actorflow.control.allowed")
        await page.page.click("#all-graphs")
        await page.page.wait_for_selector("#graphs article")
        assert page.complaints == []


@pytest.mark.browser
@pytest.mark.slow
async def test_a_frame_of_before_is_shown_until_one_goes_back_to_now(page_of, quick_vitals) -> None:
    graph, fails = af.Graph("g"), False

    def may_fail(x: np.ndarray) -> np.ndarray:
        if fails:
            raise ValueError("no")
        return x

    x = graph.blob("x", [2])
    middle = graph.function("middle", may_fail, af.TensorSpec((2,), "float32"))(x)
    y = graph.function("last", lambda x: x + 1, af.TensorSpec((2,), "float32"))(middle)
    async with graph, page_of(graph, values=True) as page:
        assert await page.look("actorflow.moment") == "No frame has run yet"
        await page.page.keyboard.press("t")
        await page.click_node("last")
        await page.show("values")
        for number in range(5):
            fails = number == 2
            await asyncio.gather(graph.run({x: [number, 0]}, fetch=[y]), return_exceptions=True)
            if number == 0:
                await page.until("actorflow.values.sample?.frame === 0")
        await page.until("document.getElementById('past-frame').textContent === '4'")
        await page.until("actorflow.states.last === 'done'")
        assert await page.look("actorflow.keptFrames") == [0, 1, 2, 3, 4]
        await page.page.locator("#past").focus()
        await page.page.keyboard.press("ArrowLeft")
        await page.page.keyboard.press("ArrowLeft")
        await page.until("actorflow.past === 2 && actorflow.states.middle === 'failed'")
        assert await page.look("actorflow.states.last") == "idle"
        assert await page.look("actorflow.values.sample.frame") <= 2
        assert (await page.look("actorflow.moment")).startswith("Frame 2, ")
        fails = False
        await graph.run({x: [9, 0]})
        await page.until("actorflow.frames.finished === 5")
        assert await page.look("actorflow.states.middle") == "failed", "what comes meanwhile is kept aside"
        await page.page.click("#now")
        await page.until("actorflow.past === null && actorflow.states.last === 'done'")
        assert await page.look("[actorflow.calls.middle, actorflow.failed.middle]") == [5, 1]
        assert page.complaints == []


@pytest.mark.browser
@pytest.mark.slow
async def test_on_a_phone_curves_come_first(training, page_of) -> None:
    await training.run()
    async with page_of(training.graph, viewport={"width": 390, "height": 500}) as page:
        await page.until("actorflow.tab === 'Curves'")
        curves, stage = [await page.page.locator(each).bounding_box() for each in ("#panel", "#stage")]
        assert curves["y"] < stage["y"]
        await page.page.evaluate("document.getElementById('stage').scrollIntoView()")
        before = await page.page.locator("#stage").bounding_box()
        await page.click_node("loss")
        await page.until("actorflow.tab === 'Node'")
        assert abs((await page.page.locator("#stage").bounding_box())["y"] - before["y"]) < 2
