"""How soon the page shows 20,000 nodes, and how often it draws them while they change; part of ``watched``."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import actorflow as af
from actorflow.trace.counters import NodeState
from benchmarks.harness import Budget, Harness, Relation, Table

__all__ = ["measure"]

FIRST, DRAWN = "from the address to the first view", "a picture, while one zooms and 100,000 calls a second come in"
_CALLS_PER_S, _TICK_S = 100_000, 0.06
#: Milliseconds from when the page began to load until all that is first shown was drawn.
_FIRST_VIEW = """new Promise((done) => {
    const look = () => (window.actorflow?.connection === 'live' && !actorflow.isBusy && actorflow.framesDrawn > 0 &&
        actorflow.nodes.length ? done(performance.now()) : requestAnimationFrame(look));
    look();
})"""
#: Milliseconds per picture, for so many milliseconds, in which each picture moves the camera.
_ZOOM = """new Promise((done) => {
    const canvas = document.getElementById('graph'), box = canvas.getBoundingClientRect();
    const start = performance.now(), drawn = actorflow.framesDrawn;
    const step = (now) => {
        if (now - start > %d) return done((performance.now() - start) / (actorflow.framesDrawn - drawn));
        const deltaY = Math.floor((now - start) / 500) %% 2 ? 30 : -30;
        canvas.dispatchEvent(new WheelEvent('wheel', { deltaY, clientX: box.x + 300, clientY: box.y + 300 }));
        requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
})"""


async def measure(harness: Harness) -> Table | None:
    """Milliseconds until all is shown, and per picture; None where there is no browser."""
    browsing, graphs = harness.peer("tests.web.browsing"), harness.peer("tests.web.conftest")
    if browsing is None or graphs is None or harness.peer("playwright") is None:
        return None
    if not browsing.CHROMIUM.exists():
        harness.leave_out(f"the page in a browser: {browsing.CHROMIUM} is not there")
        return None
    graph = graphs.wide_graph(stages=harness.pick(10, 1), layers=10)
    zoomed_ms = harness.pick(3000, 300)
    with tempfile.TemporaryDirectory() as profile, browsing.browse(Path(profile)) as (browser, _):
        async with graph, af.web.serve(graph, port=0) as view:

            async def first_view() -> float:
                context = await browser.new_context(viewport={"width": 1400, "height": 900})
                page = await context.new_page()
                await page.goto(view.url, wait_until="commit")
                ms: float = await page.evaluate(f"() => {_FIRST_VIEW}")
                await context.close()
                return ms

            context = await browser.new_context(viewport={"width": 1400, "height": 900})
            page = await context.new_page()
            await page.goto(view.url)
            await page.evaluate(f"() => {_FIRST_VIEW}")
            await page.click("#open-all")
            await page.evaluate(f"() => {_FIRST_VIEW}")

            async def drawn() -> float:
                changing = asyncio.create_task(_change(graph))
                try:
                    ms: float = await page.evaluate(f"() => {_ZOOM % zoomed_ms}")
                finally:
                    changing.cancel()
                    await asyncio.wait([changing])
                return ms

            return await harness.compare(
                f"the page, {len(graph.nodes):,} nodes, in Chromium without a GPU",
                "ms",
                {FIRST: first_view, DRAWN: drawn},
                budgets=[
                    Budget("the first view within 1,000 ms", FIRST, Relation.AT_MOST, 1000),
                    Budget("45 pictures a second: at most 22.2 ms each", DRAWN, Relation.AT_MOST, 1000 / 45),
                ],
            )


async def _change(graph: Any) -> None:
    """Leave the traces of as many calls as come in between two ticks, on and on."""
    ids, rounds = np.array([op.id for op in graph.ops]), 0
    each = int(_CALLS_PER_S * _TICK_S)
    while True:
        monitor, rounds = graph.engine.monitor, rounds + 1
        chosen = ids[np.arange(rounds * each, (rounds + 1) * each) % len(ids)]
        np.frombuffer(monitor.states, np.uint8)[chosen] = NodeState.RUNNING if rounds % 2 else NodeState.DONE
        np.frombuffer(monitor.dirty, np.uint8)[chosen] = 1
        await asyncio.sleep(_TICK_S)
