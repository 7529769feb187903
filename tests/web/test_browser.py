"""The page in a real browser, in the same loop as the server and the graph that it shows."""

import asyncio
import contextlib
import re
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import actorflow as af
from actorflow.trace.counters import NodeState
from actorflow.web import create_app, serve

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCALAR = af.TensorSpec.of(())


def server_states(graph: af.Graph) -> dict[str, str]:
    """States that the page must show of each op."""
    engine = graph.engine
    shown = {}
    for op in graph.ops:
        state = NodeState(engine.monitor.states[op.id])
        if state is NodeState.IDLE and op.id in engine.profile:
            state = NodeState.DONE
        shown[op.name] = state.name.lower()
    return shown


async def op_states(page: Any, graph: af.Graph) -> dict[str, str]:
    states = await page.look("actorflow.states")
    return {op.name: states[op.name] for op in graph.ops}


async def test_it_draws_ops_in_the_colour_of_their_state(training, page_of) -> None:
    async with page_of(training.graph) as page:
        # Looks at the canvas itself: the left stripe of an op's box.
        stripe = """(() => {
            const [x, y] = actorflow.placeOf('block0/apply'), canvas = document.getElementById('graph');
            const [, , width] = actorflow.rectangles[actorflow.items.indexOf('block0/apply')];
            const left = x - (width / 2 - 3) * actorflow.camera.scale;
            const copy = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
            copy.drawImage(canvas, Math.round(left), Math.round(y), 1, 1, 0, 0, 1, 1);
            return copy.getImageData(0, 0, 1, 1).data.slice(0, 3).join();
        })()"""

        async def colour(state: str) -> str:
            text = await page.look(f"getComputedStyle(document.documentElement).getPropertyValue('--{state}')")
            return ",".join(str(int(text.strip()[i : i + 2], 16)) for i in (1, 3, 5))

        await page.until(f"{stripe} === {await colour('idle')!r}")
        await training.run()
        await page.until(f"{stripe} === {await colour('done')!r}")


async def test_what_no_frame_computes_is_shown_as_constant(page_of) -> None:
    graph = af.Graph("constants")
    x = graph.blob("x", (2,))
    with graph.subgraph("inner"):
        double = graph.constant([1.0, 2.0], name="c") * 2.0
    y = x + double
    async with graph, page_of(graph) as page:
        assert set((await op_states(page, graph)).values()) == {"idle"}
        await graph.run({x: [1, 2]}, fetch=y)
        await page.until("actorflow.states.sum === 'done' && actorflow.frames.finished === 1")
        constant = dict.fromkeys(("inner/c", "inner/number", "inner/multiply"), "constant")
        assert await op_states(page, graph) == constant | {"sum": "done"} == server_states(graph)
        assert await page.look("actorflow.states['inner/c/out']") == "constant"
        assert await page.look("actorflow.stateOf('inner')") == "constant"


async def test_a_blob_shows_the_state_of_its_writers(gated, page_of) -> None:
    async with page_of(gated.graph) as page:
        run = gated.start()
        await page.until("actorflow.states['hold/out'] === 'running' && actorflow.states['first/out'] === 'done'")
        assert await page.look("actorflow.states.x") == "idle"
        gated.release.set()
        await run


async def test_after_a_reload_it_agrees_with_the_server(gated, page_of) -> None:
    async with page_of(gated.graph) as page:
        gated.release.set()
        for _ in range(3):
            await gated.start()
        gated.release.clear()
        gated.entered.clear()
        run = gated.start()
        await gated.entered.wait()
        await page.page.reload()
        await page.until("actorflow.connection === 'live' && actorflow.states.hold === 'running'")
        assert await op_states(page, gated.graph) == server_states(gated.graph)
        assert await page.look("actorflow.calls.first") == 4
        assert await page.look("actorflow.calls.last") == 3
        assert await page.look("actorflow.frames") == {
            "started": 4, "finished": 3, "failed": 0, "cancelled": 0, "inFlight": 1,
        }  # fmt: skip
        assert len((await page.look("actorflow.curves"))["last/out"]) == 3
        gated.release.set()
        await run


async def test_two_browsers_at_once(training, new_page) -> None:
    async with serve(training.graph, port=0) as view:
        pages = [await new_page(), await new_page(color_scheme="dark")]
        for page in pages:
            await page.open(view.url)
        for _ in range(20):
            await training.run()
        for page in pages:
            await page.until("actorflow.frames.finished === 20 && actorflow.calls.loss === 20")
            assert await op_states(page, training.graph) == server_states(training.graph)
        await pages[0].page.close()
        await training.run()
        await pages[1].until("actorflow.frames.finished === 21 && actorflow.calls.loss === 21")


async def test_a_foreign_site_sees_nothing(training, new_page) -> None:
    async def blank(_request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>elsewhere</title>", content_type="text/html")

    elsewhere = web.Application()
    elsewhere.router.add_get("/", blank)
    async with serve(training.graph, port=0) as view, TestServer(elsewhere) as other:
        page = await new_page()
        response = await page.page.goto(f"http://evil.example:{view.port}/")
        assert response.status == 403
        page.complaints.clear()  # the browser's own word of the 403
        for origin in (f"http://evil.example:{other.port}/", f"http://localhost:{other.port}/"):
            await page.page.goto(origin)
            outcome = await page.look(
                f"""new Promise((end) => {{
                    const socket = new WebSocket('ws://127.0.0.1:{view.port}/stream');
                    socket.onopen = () => end('open');
                    socket.onerror = () => end('refused');
                }})"""
            )
            assert outcome == "refused"
            assert any("403" in complaint for complaint in page.complaints)
            page.complaints.clear()


async def test_a_missing_delta_is_noticed_and_made_good(training, new_page) -> None:
    page = await new_page(alone=True)
    dropped: list[str] = []
    requests: list[str] = []

    def meddle(socket: Any) -> None:
        server = socket.connect_to_server()

        def from_server(message: str | bytes) -> None:
            # A status after the first one; its like goes missing once.
            if isinstance(message, str) and '"full": false' in message and not dropped:
                dropped.append(message)
            else:
                socket.send(message)

        def from_page(message: str | bytes) -> None:
            requests.append(str(message))
            server.send(message)

        server.on_message(from_server)
        socket.on_message(from_page)

    await page.page.route_web_socket(re.compile("/stream$"), meddle)
    async with serve(training.graph, port=0) as view:
        await page.open(view.url)
        await training.run()
        await page.until("actorflow.calls.loss === 1")
        while not dropped:
            await page.look("1")
        await training.run()
        await page.until("actorflow.frames.finished === 2 && actorflow.calls.loss === 2")
        assert len((await page.look("actorflow.curves"))["loss/out"]) == 2
        assert await page.look("actorflow.resyncs") == 1
        assert requests == ['{"type":"resync"}']


async def test_it_comes_back_when_the_server_does(training, new_page) -> None:
    page = await new_page()
    async with serve(training.graph, port=0) as view:
        await page.open(view.url)
    await page.page.locator("#connection").get_by_text("Disconnected").wait_for()  # it also says when it tries again
    await training.run()
    async with serve(training.graph, port=view.port):
        await page.until("actorflow.connection === 'live' && actorflow.frames.finished === 1")


async def test_a_growing_graph_is_followed(training, page_of) -> None:
    async with page_of(training.graph) as page:
        await page.click_node("loss")
        await page.until("actorflow.selected === 'loss'")
        camera = await page.look("actorflow.camera")
        training.graph.function("late", lambda x: x.max(), SCALAR)(training.loss)
        await page.until("actorflow.nodes.includes('late')")
        assert await page.look("actorflow.selected") == "loss"
        assert await page.look("actorflow.camera") == camera, "the reader's place is kept"


async def test_a_node_can_be_inspected(training, page_of) -> None:
    async with page_of(training.graph) as page:
        await training.run()
        await page.click_node("loss")
        await page.until("actorflow.selected === 'loss' && actorflow.calls.loss === 1")
        panel = page.page.locator("#node")
        for text in ("Op · loss", "cpu, lane auto", "conftest.py"):
            await panel.get_by_text(text).first.wait_for()
        await panel.get_by_role("button", name="block3/apply/out").click()
        assert await page.look("actorflow.selected") == "block3/apply/out"
        await panel.get_by_text("(4, 4)").wait_for()
        await page.page.keyboard.press("Escape")
        assert await page.look("actorflow.selected") is None
        assert await panel.is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_failed_calls_of_a_node_are_shown_where_there_are_any(flaky, page_of, scheme: str) -> None:
    async with page_of(flaky.graph, color_scheme=scheme) as page:
        await flaky.run(failing=0)
        await page.click_node("flaky")
        await page.until("actorflow.selected === 'flaky' && actorflow.calls.flaky === 1")
        term, panel = page.page.locator("#node dt", has_text="Failed"), page.page.locator("#node")
        assert await term.is_hidden()
        await flaky.run(failing=1)
        await panel.get_by_text("1 call", exact=True).wait_for()
        await term.wait_for()
        flaky.repeating.clear()
        flaky.go_on.clear()
        flaky.failing = 2
        run = asyncio.create_task(flaky.graph.run({flaky.x: np.float32(1)}))
        await flaky.repeating.wait()
        await panel.get_by_text("3 calls", exact=True).wait_for()
        assert await page.look("[actorflow.calls.flaky, actorflow.states.flaky]") == [2, "running"]
        await page.page.reload()
        await page.until("actorflow.connection === 'live' && actorflow.failed.flaky === 3")
        assert await page.look("actorflow.failed.steady") == 0
        flaky.go_on.set()
        await run
        await page.until("actorflow.calls.flaky === 3")
        await page.click_node("steady")
        await page.until("actorflow.selected === 'steady'")
        await term.wait_for(state="hidden")
        await page.click_node("flaky")
        await panel.get_by_text("3 calls", exact=True).wait_for()


async def test_failures_and_diverged_losses_are_shown(page_of) -> None:
    graph = af.Graph("failing")
    x = graph.blob("x", ())

    def check(x: Any) -> Any:
        if x < 0:
            raise ValueError("negative input")
        return x

    graph.function("check", check, SCALAR)(x)
    async with graph, page_of(graph) as page:
        for value in (0.5, float("nan"), -1.0):
            with contextlib.suppress(af.OpError):
                await graph.run({x: np.float32(value)})
        await page.until("actorflow.frames.failed === 1 && actorflow.states.check === 'failed'")
        await page.until("actorflow.failures.length === 1")
        assert await page.look("actorflow.curves") == {"check/out": [0.5, None]}
        await page.show("failures")
        await page.page.locator("#failure-list").get_by_text("negative input").wait_for()
        await page.show("curves")
        await page.page.locator("#curve-list").get_by_text("not finite").wait_for()
        await page.show("failures")
        await page.page.locator("#failure-list button").click()
        assert await page.look("actorflow.selected") == "check"


async def test_it_fits_a_phone(training, page_of) -> None:
    async with page_of(
        training.graph, viewport={"width": 375, "height": 720}, has_touch=True, device_scale_factor=2
    ) as page:
        await training.run()
        await page.until("actorflow.frames.finished === 1")
        await page.show("ops")
        await page.page.locator("#cost-table .cost").first.wait_for()
        assert await page.look("document.documentElement.scrollWidth <= innerWidth")
        width, height = await page.look("[graph.clientWidth, graph.clientHeight]")
        assert width == 375
        assert height > 300


async def test_below_a_prefix(training, new_page) -> None:
    app = web.Application()
    app.add_subapp("/some/graph", create_app(training.graph))
    async with TestServer(app) as server:
        page = await new_page()
        await page.open(f"http://127.0.0.1:{server.port}/some/graph")
        assert await page.look("actorflow.nodes.length") == len(training.graph.nodes)
        await page.page.close()


async def test_notes_on_fallbacks_and_copies_are_shown(page_of) -> None:
    graph = af.Graph("mixed")
    with graph.at("sim:0"):
        x = graph.blob("x", 3)
        y = graph.function("half", lambda a: a / 2, af.TensorSpec.of(3))(x)
        af.ops.relu(y)
    async with graph, page_of(graph) as page:
        await page.click_node("half")
        await graph.run({x: np.ones(3, np.float32)})
        panel = page.page.locator("#node")
        await panel.get_by_text("functions run on the CPU, not on sim:0").wait_for()
        await page.click_node("half/out")
        await panel.get_by_text("copied cpu -> sim:0, lane inbound").wait_for()
