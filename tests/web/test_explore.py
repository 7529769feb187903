"""Finding one's way in a graph, in a real browser: scopes, selection, paths, colours, links, keys, and large graphs."""

import asyncio
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.trace.counters import NodeState
from actorflow.web import serve
from tests.web.conftest import wide_graph

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SQUARE = af.TensorSpec.of((4, 4))


async def test_a_large_graph_begins_with_its_scopes_closed(page_of, make_training_graph) -> None:
    graph, x, _ = make_training_graph("deep", blocks=60)
    async with graph, page_of(graph) as page:
        closed = {"block0/", "block59/", "loss", "x"}
        assert closed <= set(await page.look("actorflow.items"))
        assert await page.look("actorflow.open") == []
        edges = await page.look("actorflow.edges")
        assert "4×4, 64 B" in edges, "one blob between two scopes"
        await graph.run({x: np.ones((4, 4), "float32")})
        await page.until("actorflow.stateOf('block7') === 'done'")

        await page.click_node("block0")
        await page.until("actorflow.selected === 'block0'")
        before = await page.middle_of("block0")
        await page.page.mouse.dblclick(*before)
        await page.until("actorflow.open.includes('block0')")
        assert {"block0/w", "block0/apply", "block0/update"} <= set(await page.look("actorflow.items"))
        assert "block0/" not in await page.look("actorflow.items")
        await page.page.keyboard.press("c")
        await page.until("actorflow.items.includes('block0/')")
        assert await page.middle_of("block0") == pytest.approx(before, abs=1.0), "what was opened stays where it was"

        await page.page.click("#open-all")
        assert len(await page.look("actorflow.items")) == len(graph.nodes)
        await page.page.keyboard.press("Shift+C")
        assert await page.look("actorflow.open") == []
        await page.page.fill("#search", "block31/grad_w")
        await page.page.keyboard.press("Enter")
        await page.until("actorflow.selected === 'block31/grad_w'")
        assert await page.look("actorflow.open") == ["block31"], "what is chosen can be seen"


async def test_an_op_says_what_it_computes(page_of) -> None:
    graph = af.Graph("costs")
    af.ops.exp(graph.blob("x", (40, 50)), name="known")
    af.ops.exp(graph.blob("z", ("rows", 3)), name="open")
    async with page_of(graph) as page:
        for name, said in (("known", "2,000"), ("open", "3*rows")):
            await page.click_node(name)
            await page.until(f"actorflow.selected === '{name}'")
            await page.page.locator('#node dt:text-is("FLOPs") + dd').get_by_text(said).wait_for()


async def test_a_closed_scope_shows_the_most_urgent_state(page_of) -> None:
    graph = af.Graph("scoped")
    entered, release = asyncio.Event(), asyncio.Event()

    async def hold(x: Any) -> Any:
        entered.set()
        await release.wait()
        return x

    x = graph.blob("x", (4, 4))
    scope = graph.subgraph("outer").subgraph("inner")
    y = scope.function("first", lambda x: x, SQUARE)(x)
    scope.function("hold", hold, SQUARE)(y)
    async with graph, page_of(graph) as page:
        await page.page.click("#close-all")
        run = asyncio.create_task(graph.run({x: np.ones((4, 4), "float32")}))
        await entered.wait()
        await page.until("actorflow.stateOf('outer') === 'running' && actorflow.stateOf('outer/inner') === 'running'")
        release.set()
        await run
        await page.until("actorflow.stateOf('outer') === 'done'")


#: Random graphs of cells and what is wrong with their layouts: overlaps, edges that do not go down, differences.
LAYOUTS = """import('/static/layout.js').then(({ layout }) => {
    const wrong = [];
    let seed = 7;
    const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
    for (let round = 0; round < ROUNDS; round++) {
        const count = 1 + random(60), degree = random(4), acyclic = round % 3 > 0;
        const graph = { widths: [], heights: [], isBlob: [], from: [], to: [], cut: [] };
        for (let i = 0; i < count; i++) {
            graph.widths.push(20 + random(300));
            graph.heights.push(10 + random(200));
            graph.isBlob.push(random(2) === 0);
            for (let k = 0; k < degree && i; k++) {
                graph.from.push(acyclic ? random(i) : random(count));
                graph.to.push(i);
                graph.cut.push(random(8) === 0);
            }
        }
        const room = [undefined, { sideways: false }, { sideways: true }][round % 4 % 3];
        if (room) Object.assign(room, { width: 900, height: 700 });
        const drawn = () => (room ? layout(graph, room) : layout(graph));
        const drawing = drawn(), { x, y, width, height, routes } = drawing;
        if (JSON.stringify(drawn()) !== JSON.stringify(drawing)) wrong.push([round, 'differs']);
        routes.forEach((route, e) => {
            const isFree = graph.cut[e] || graph.from[e] === graph.to[e];
            if (!route) return void (isFree || wrong.push([round, 'no route', e]));
            const ends = [[graph.from[e], route[0], route[1]], [graph.to[e], route.at(-2), route.at(-1)]];
            for (const [cell, px, py] of ends) {
                const across = Math.abs(px - x[cell]) - graph.widths[cell] / 2;
                const off = Math.max(across, Math.abs(py - y[cell]) - graph.heights[cell] / 2);
                if (Math.abs(off) > 1e-6) wrong.push([round, 'ends beside its cell', e]);
            }
            const isOutside = (at, n) => at < -1e-6 || at > (n % 2 ? height : width) + 1e-6;
            if (route.some(isOutside)) wrong.push([round, 'route outside', e]);
        });
        for (let i = 0; i < count; i++) {
            const w = graph.widths[i] / 2, h = graph.heights[i] / 2, slack = 1e-6;
            const within = (at, half, size) => at - half >= -slack && at + half <= size + slack;
            if (!within(x[i], w, width) || !within(y[i], h, height)) wrong.push([round, 'outside', i]);
            for (let j = 0; j < i; j++) {
                const across = Math.abs(x[i] - x[j]) < w + graph.widths[j] / 2 - slack;
                const down = Math.abs(y[i] - y[j]) < h + graph.heights[j] / 2 - slack;
                if (across && down) wrong.push([round, 'overlap', i, j]);
            }
        }
        graph.from.forEach((from, e) => {
            const to = graph.to[e];
            if (acyclic && !room && !graph.cut[e] && y[from] >= y[to]) wrong.push([round, 'upwards', e]);
        });
    }
    return wrong.slice(0, 5);
})"""


async def test_layouts_of_random_graphs(training, page_of) -> None:
    async with page_of(training.graph) as page:
        assert await page.look(LAYOUTS.replace("ROUNDS", "400")) == []


PICTURES = """Promise.all(['structure', 'arrange', 'arranging'].map((name) => import(`/static/${name}.js`))).then(
    async ([{ Structure }, { Arranger }, { Arranging }]) => {
        const graph = await (await fetch('/api/graph')).json();
        const { skeleton, scopes } = new Structure(graph);
        const all = scopes.names.keys().toArray().slice(1), some = all.filter((scope) => scope % 3 === 0);
        const here = new Arranger(skeleton), there = new Arranging(() => {});
        const came = [], pictures = [], window = { width: 900, height: 700 };
        const wanted = [[skeleton, all], [null, some], [null, null], [skeleton, some]];
        const ask = (then) => wanted.forEach(([graph, open], k) => there.arrange(graph, open, window, then(k)));
        await new Promise((done) => ask((k) => (picture) => {
            came.push(k);
            pictures.push(picture);
            if (came.length === wanted.length) done();
        }));
        const text = (picture) => JSON.stringify(Object.entries(picture).map(([name, column]) => [name, ...column]));
        return [came, wanted.map(([, open], k) => text(here.arrange(open, window)) === text(pictures[k]))];
    })"""


@pytest.mark.parametrize("has_worker", [True, False])
async def test_a_worker_arranges_large_graphs_as_the_page_does(new_page, has_worker: bool) -> None:
    graph = wide_graph(stages=2, layers=4)
    async with graph, serve(graph, port=0) as view:
        page = await new_page(alone=True)
        if not has_worker:
            await page.page.route("**/arrange-worker.js", lambda route: route.abort())
        await page.open(view.url)
        assert await page.look(PICTURES) == [[0, 1, 2, 3], [True] * 4]
        await page.page.click("#open-all")
        await page.until(f"actorflow.items.length === {len(graph.nodes)}")
        await page.page.locator("#busy").wait_for(state="hidden")


def googlenet() -> af.Graph:
    """GoogLeNet in training, with its auxiliary heads, and once more for testing."""
    graph = af.Graph("googlenet")
    images, labels = graph.blob("images", (1, 224, 224, 3)), graph.blob("labels", (1,), "int64")
    network = af.nn.GoogLeNet(10)
    loss = network.loss(network(images, training=True), labels)
    af.nn.SGD(0.1, momentum=0.9).minimize(loss)
    with graph.subgraph("test"):
        af.ops.accuracy(network(images, training=False), labels)
    return graph


def flat() -> af.Graph:
    """2,000 nodes without a scope."""
    graph = af.Graph("flat")
    x = graph.blob("x", (4, 4))
    for number in range(1000):
        x = graph.function(f"op{number}", lambda x: x, SQUARE)(x)
    return graph


def apart(a: list[float], b: list[float]) -> bool:
    """Whether two rectangles, by their middles and sizes, do not overlap."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = a, b
    return abs(x1 - x2) >= (w1 + w2) / 2 - 1e-6 or abs(y1 - y2) >= (h1 + h2) / 2 - 1e-6


#: Middles and sizes of what lies on the picture: the menus, the legend, the buttons to zoom.
OVERLAYS = """[...document.querySelectorAll('#stage .overlay')].filter((each) => each.checkVisibility()).map((each) => {
    const { left, top, width, height } = each.getBoundingClientRect(), stage = graph.getBoundingClientRect();
    return [left - stage.left + width / 2, top - stage.top + height / 2, width, height];
}).filter(([, , width]) => width)"""


@pytest.mark.parametrize("make", [googlenet, flat, lambda: wide_graph(10, 10)], ids=["googlenet", "flat", "wide"])
async def test_all_of_a_network_is_seen_and_can_be_read_at_first(page_of, make: Any) -> None:
    graph = make()
    async with graph, page_of(graph, viewport={"width": 1400, "height": 900}) as page:
        await page.until("actorflow.labels.length > 0 || actorflow.edges.length < 12")
        await page.until("document.getElementById('moment-text').textContent === 'No frame has run yet'")
        scale, rectangles, labels = await page.look("[actorflow.camera.scale, actorflow.rectangles, actorflow.labels]")
        assert 12.5 * scale >= 11, "titles"
        assert len(rectangles) > 8
        width, height = await page.look("[graph.clientWidth, graph.clientHeight]")
        overlays = await page.look(OVERLAYS)
        assert len(overlays) == 4
        for x, y, w, h in rectangles:
            left, top = await page.look(f"actorflow.toScreen({x - w / 2}, {y - h / 2})")
            right, bottom = await page.look(f"actorflow.toScreen({x + w / 2}, {y + h / 2})")
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
            card = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
            assert all(apart(card, overlay) for overlay in overlays), "nothing lies on it"
        drawn = [*rectangles, *([label[key] for key in ("x", "y", "width", "height")] for label in labels)]
        assert all(apart(a, b) for a, b in combinations(drawn, 2))


async def test_backward_and_update_parts_are_folded_into_their_layers(page_of) -> None:
    graph = af.Graph("folded")
    x = graph.blob("x", (2, 3))
    loss = af.ops.softmax_loss(af.nn.InnerProduct(4)(x), graph.blob("labels", (2,), "int64"))
    train = af.nn.SGD(0.1, momentum=0.9).minimize(loss)
    async with graph, page_of(graph) as page:
        await page.page.click("#open-all")
        items = await page.look("actorflow.items")
        assert not [name for name in items if "gradient" in name or name.endswith((".update", ".velocity"))]
        feeds = {x: np.ones((2, 3), "float32"), graph["labels"]: np.zeros(2, "int64")}
        await graph.run(feeds, fetch=[loss, train])
        update = next(op.name for op in graph.ops if op.name.endswith("weight.update"))
        await page.until(f"actorflow.calls[{update!r}] === 1")
        weight = update.removesuffix(".update").rpartition("/")[2].replace(".", "/")
        forward, backward, updated = await page.look(f"actorflow.passUs({weight.rpartition('/')[0]!r})")
        assert min(forward, backward, updated) > 0
        await page.page.click("#fold")
        await page.until("!actorflow.isBusy && !actorflow.isFolded")
        assert await page.look(f"actorflow.calls[{update!r}]") == 1, "what is known stays"
        await page.page.click("#open-all")
        assert len(await page.look("actorflow.items")) == len(graph.nodes)
        await page.page.keyboard.press("b")
        await page.until("!actorflow.isBusy && actorflow.isFolded")
        assert await page.look(f"actorflow.passUs({weight.rpartition('/')[0]!r})") == [forward, backward, updated]


async def test_scopes_open_to_a_depth_and_to_what_is_hot_or_failed(page_of) -> None:
    graph = af.Graph("deep")
    x = h = graph.blob("x", ())

    def fail(x: Any) -> Any:
        raise ValueError("no")

    for number in range(200):
        scope = graph.subgraph(f"a{number}").subgraph("b").subgraph("c")
        h = scope.function("op", fail if number == 150 else (lambda x: x), af.TensorSpec.of(()))(h)
    async with graph, page_of(graph) as page:
        with pytest.raises(af.OpError):
            await graph.run({x: np.float32(1)})
        await page.until("actorflow.failed['a150/b/c/op'] === 1")
        await page.page.keyboard.press("e")
        await page.until("actorflow.selected === 'a150/b/c/op'")
        assert "a150/b/c" in await page.look("actorflow.open")
        assert "a150/b/c/op" in await page.look("actorflow.items")
        await page.page.select_option("#open-some", "one")
        depths = {name.count("/") for name in await page.look("actorflow.open") if "…" not in name}
        assert depths <= {0}
        await page.page.keyboard.press("w")
        await page.until("actorflow.items.some((name) => name.endsWith('/c/op'))")


async def test_scopes_are_boxes_around_what_is_in_them(training, page_of) -> None:
    async with page_of(training.graph) as page:
        await page.page.click("#open-all")
        names, rectangles, boxes = await page.look("[actorflow.items, actorflow.rectangles, actorflow.boxes]")
        assert {box["name"] for box in boxes} == {f"block{i}" for i in range(4)}
        for box in boxes:
            for name, (x, y, width, height) in zip(names, rectangles, strict=True):
                inside = (
                    box["left"] <= x - width / 2
                    and x + width / 2 <= box["left"] + box["width"]
                    and box["top"] <= y - height / 2
                    and y + height / 2 <= box["top"] + box["height"]
                )
                assert inside == name.startswith(f"{box['name']}/"), (box["name"], name)
        assert all(apart(a, b) for a, b in combinations(rectangles, 2))


async def test_the_critical_path_goes_through_what_takes_longest(page_of) -> None:
    graph = af.Graph("paths")
    x = graph.blob("x", (300, 300))
    spec = af.TensorSpec.of((300, 300))
    short = graph.function("short", lambda x: x, spec)(x)
    long = graph.function("long", lambda x: x @ x @ x, spec)(x)
    graph.function("end", lambda a, b: a, spec)(short, long)
    async with graph, page_of(graph) as page:
        await graph.run({x: np.ones((300, 300), "float32")})
        await page.until("actorflow.calls.end === 1")
        await page.page.keyboard.press("p")
        await page.until("actorflow.critical.length > 0")
        assert set(await page.look("actorflow.critical")) == {"x", "long", "long/out", "end", "end/out"}
        await page.click_node("short")
        await page.until("actorflow.critical.includes('short')")
        assert set(await page.look("actorflow.critical")) == {"x", "short", "short/out", "end", "end/out"}
        await page.page.locator("#node").get_by_text("through it").wait_for()
        await page.page.keyboard.press("]")
        assert await page.look("actorflow.selected") == "short/out"
        await page.page.keyboard.press("[")
        assert await page.look("actorflow.selected") == "short"


async def test_colours_tell_lanes_devices_and_ranks_apart(page_of) -> None:
    graph = af.Graph("placed")
    x = graph.blob("x", (4, 4))
    y = graph.function("here", lambda x: x, SQUARE, lane="left")(x)
    graph.function("beside", lambda x: x, SQUARE, lane="right")(x)
    with graph.at("1/cpu"):
        af.ops.relu(y)
    async with page_of(graph) as page:
        legend = page.page.locator("#legend")
        assert any(edge.startswith("rank 0 → 1, 4×4") for edge in await page.look("actorflow.edges"))
        await legend.get_by_text("between ranks").wait_for()
        for mode, shown in (
            ("lane", ["cpu left", "cpu right"]),
            ("device", ["cpu"]),
            ("rank", ["rank 0", "rank 1"]),
        ):
            await page.page.select_option("#colour", mode)
            assert await page.look("actorflow.colour") == mode
            for text in shown:
                await legend.get_by_text(text, exact=True).wait_for()
        await page.page.locator("#graph").click(position={"x": 5, "y": 400})
        await page.page.keyboard.press("k")
        assert await page.look("actorflow.colour") == "state"


async def test_the_address_brings_one_back(new_page, page_of, make_training_graph) -> None:
    graph, _, _ = make_training_graph("linked", blocks=60)
    async with graph, page_of(graph) as page:
        await page.page.fill("#search", "block5/grad_w")
        await page.page.keyboard.press("Enter")
        await page.page.select_option("#colour", "lane")
        await page.page.click("#timeline-toggle")
        await page.until("location.hash.includes('timeline=1') && location.hash.includes('colour=lane')")
        other = await new_page()
        await other.open(page.page.url)
        await other.until("actorflow.selected === 'block5/grad_w'")
        assert await other.look("actorflow.open") == ["block5"]
        assert await other.look("actorflow.colour") == "lane"
        assert await other.page.locator("#dock").is_visible()
        here, there = [await p.look("actorflow.camera") for p in (page, other)]
        assert there == pytest.approx(here, rel=0.01, abs=1.0)


async def test_pan_and_zoom(training, page_of) -> None:
    async with page_of(training.graph) as page:
        mouse = page.page.mouse
        before = await page.look("actorflow.placeOf('loss')")
        await mouse.move(400, 400)
        await mouse.down()
        await mouse.move(430, 380, steps=4)
        await mouse.up()
        after = await page.look("actorflow.placeOf('loss')")
        assert [round(b - a, 6) for a, b in zip(before, after, strict=True)] == [30, -20]
        assert await page.look("actorflow.selected") is None, "a drag selects nothing"
        # The place under the pointer stays where it is.
        box = await page.page.locator("#graph").bounding_box()
        pointer = [round(at) for at in after]
        await mouse.move(box["x"] + pointer[0], box["y"] + pointer[1])
        scale = await page.look("actorflow.camera.scale")
        await mouse.wheel(0, -300)
        await page.until(f"actorflow.camera.scale > {scale}")
        zoomed, closer = await page.look("[actorflow.placeOf('loss'), actorflow.camera.scale / " + f"{scale}]")
        assert zoomed == pytest.approx([p + closer * (at - p) for p, at in zip(pointer, after, strict=True)], abs=0.5)
        await page.page.click("#zoom-fit")
        places = await page.look("actorflow.nodes.map(actorflow.placeOf)")
        assert all(0 <= x <= box["width"] and 0 <= y <= box["height"] for x, y in places)


#: How often the page could be drawn between the wish to open all scopes and the picture of that.
OPEN_ALL = """new Promise((done) => {
    let drawn = 0;
    document.getElementById('open-all').click();
    const look = () => (actorflow.isBusy ? requestAnimationFrame(() => (drawn += 1, look())) : done(drawn));
    look();
})"""


async def test_twenty_thousand_nodes_stay_responsive(page_of) -> None:
    graph = wide_graph(stages=10, layers=10)
    ids = np.array([op.id for op in graph.ops])
    rounds = 0

    def change() -> None:
        """Leave the traces of 6,000 calls: as many as a tick has at 100,000 a second."""
        nonlocal rounds
        monitor, rounds = graph.engine.monitor, rounds + 1
        chosen = ids[np.arange(rounds * 6000, (rounds + 1) * 6000) % len(ids)]
        np.frombuffer(monitor.states, np.uint8)[chosen] = NodeState.RUNNING if rounds % 2 else NodeState.DONE
        np.frombuffer(monitor.dirty, np.uint8)[chosen] = 1

    async with graph, page_of(graph) as page:
        assert await page.look("actorflow.nodes.length") == len(graph.nodes) == 20_001
        assert len(await page.look("actorflow.items")) < 100
        drawn = await page.look(OPEN_ALL)
        assert drawn > 0, "the page is drawn while the graph is arranged"
        assert await page.look("actorflow.items.length") == 20_001
        assert await page.look("actorflow.edges.length") > 37_000
        await page.page.mouse.move(400, 400)
        for step in range(12):
            # Each gesture moves the camera and is drawn while changes come in.
            drawn, seq, camera = await page.look("[actorflow.framesDrawn, actorflow.seq, actorflow.camera]")
            change()
            await page.page.mouse.wheel(0, -240 if step < 8 else 240)
            await page.until(f"actorflow.framesDrawn > {drawn} && actorflow.camera.scale !== {camera['scale']!r}")
            await page.until(f"actorflow.seq > {seq}")
        states = np.frombuffer(graph.engine.monitor.states, np.uint8)[ids]
        running = int((states == NodeState.RUNNING).sum())
        await page.until(f"Object.values(actorflow.states).filter((s) => s === 'running').length >= {running}")
        await page.page.fill("#search", "stage9/layer9/op9_9")
        await page.page.keyboard.press("Enter")
        await page.until("actorflow.selected === 'stage9/layer9/op9_9'")
