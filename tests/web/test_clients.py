"""Several browsers, of which one is stopped, and servers that come back."""

import asyncio
import os
import signal
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.trace.counters import NodeState
from actorflow.web import serve
from actorflow.web.live import LiveStream
from tests.support.effort import FULL
from tests.web.browsing import LIGHT, Page, browse
from tests.web.conftest import wide_graph

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STOPPED_S = 30.0 if FULL else 0.0


class Changing:
    """Has all ops of a watched graph change at every tick of the stream, and counts the ticks."""

    def __init__(self, graph: af.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graph = graph
        self.ids = np.array([op.id for op in graph.ops])
        self.is_on = True
        self.ticks = 0
        self._ticked = asyncio.Event()
        tick = LiveStream.tick

        def tick_and_change(stream: LiveStream) -> None:
            self.stream = stream
            if self.is_on:
                self._change()
            tick(stream)
            self._ticked.set()

        assert LiveStream.__init__.__kwdefaults__ is not None
        monkeypatch.setitem(LiveStream.__init__.__kwdefaults__, "interval_s", 0.01)
        monkeypatch.setattr(LiveStream, "tick", tick_and_change)

    def _change(self) -> None:
        monitor = self.graph.engine.monitor
        if monitor is None:
            return
        self.ticks += 1
        states = np.array([NodeState.WAITING, NodeState.RUNNING, NodeState.DONE], np.uint8)
        np.frombuffer(monitor.states, np.uint8)[self.ids] = states[(self.ticks + self.ids) % 3]
        np.frombuffer(monitor.dirty, np.uint8)[self.ids] = 1

    async def tick(self) -> None:
        """Wait until the next tick."""
        self._ticked.clear()
        await self._ticked.wait()

    def states(self) -> list[str]:
        """States that a page must show of the ops."""
        assert self.graph.engine.monitor is not None
        return [NodeState(self.graph.engine.monitor.states[op_id]).name.lower() for op_id in self.ids]


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Stop a browser: its own process and those that it has started."""
    processes = [process, *children_of(process)]
    for one in processes:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in processes:
            os.kill(one, signal.SIGCONT)


def children_of(process: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children_of(child)]
    return found


async def test_a_stopped_browser_costs_nothing_and_catches_up(new_page, tmp_path, monkeypatch) -> None:
    graph = wide_graph(stages=10, layers=5)
    changing = Changing(graph, monkeypatch)
    async with graph, serve(graph, port=0) as view:
        live = await new_page()
        await live.open(view.url)
        stream = changing.stream
        (first,) = stream.clients
        with browse(tmp_path, LIGHT) as (other, process):
            asleep = Page(await (await other.new_context()).new_page())
            await asleep.open(view.url)
            (client,) = stream.clients - {first}
            begin_s = time.monotonic()
            with stopped(process):
                # Connections buffer some megabytes; then it is told nothing, and falls behind.
                while client.position is None or stream.seq - client.position.states < 10:
                    await changing.tick()
                position, seq = client.position, stream.seq
                tracemalloc.start()
                before, _ = tracemalloc.get_traced_memory()
                ticks = changing.ticks
                while changing.ticks < ticks + 25 or time.monotonic() < begin_s + STOPPED_S:
                    await changing.tick()
                after, _ = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                size = len(stream._telemetry.encode(position)[0])
                assert size > 100_000, "a tick changes much"
                assert after - before < 10 * size, "what it is not told is not kept"
                assert client not in stream.clients or client.position == position
                await live.until(f"actorflow.seq > {seq}")
            changing.is_on = False
            await changing.tick()
            for page in (live, asleep):
                await page.until(f"actorflow.connection === 'live' && actorflow.seq >= {stream.seq}")
                assert await page.look("Object.values(actorflow.states)") == whole(graph, changing)
                assert not page.complaints
    assert await live.look("actorflow.resyncs") == 0


def whole(graph: af.Graph, changing: Changing) -> list[str]:
    """States of all nodes in their order; a blob has that of its writer."""
    states = dict(zip([op.name for op in graph.ops], changing.states(), strict=True))
    return [
        states[node.name]
        if node.name in states
        else states[node.producers[0].name]
        if isinstance(node, af.Blob) and node.producers
        else "idle"
        for node in graph.nodes
    ]


async def test_all_come_back_when_the_server_does(training, new_page) -> None:
    pages = [await new_page(), await new_page(color_scheme="dark")]
    async with serve(training.graph, port=0) as view:
        for page in pages:
            await page.open(view.url)
        await pages[0].page.click("#timeline-toggle")
        await training.run()
        await pages[0].until("actorflow.timeline.calls === 18")
    for page in pages:
        await page.until("actorflow.connection !== 'live'")
        await page.page.locator("#connection").get_by_text("Disconnected").wait_for()
    await training.run()
    async with serve(training.graph, port=view.port):
        for page in pages:
            await page.until("actorflow.connection === 'live' && actorflow.frames.finished === 2")
            assert set((await page.look("actorflow.calls")).values()) == {0, 2}
        await pages[0].until("actorflow.timeline.calls >= 36")
        await training.run()
        for page in pages:
            await page.until("actorflow.calls.loss === 3")


async def test_another_graph_on_the_same_port_is_shown_afresh(training, new_page) -> None:
    other = af.Graph("other")
    other.function("only", lambda x: x, af.TensorSpec.of((4, 4)))(other.blob("x", (4, 4)))
    page = await new_page()
    async with serve(training.graph, port=0) as view:
        await page.open(view.url)
        await page.click_node("loss")
        await page.until("actorflow.selected === 'loss'")
    async with other, serve(other, port=view.port):
        await page.until("actorflow.nodes.length === 3")
        assert await page.look("actorflow.nodes") == [node.name for node in other.nodes]
        assert await page.look("actorflow.selected") is None
        assert await page.page.title() == "other · actorflow"
        shown: dict[str, Any] = await page.look("actorflow.states")
        assert set(shown.values()) == {"idle"}
