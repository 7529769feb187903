"""A web service that answers each request with a run of one graph, and shows that graph live.

Start it with ``python examples/service.py``, ask it with

    curl -d '{"features": [1, 0, 0, 0]}' http://127.0.0.1:8080/classify

and look at http://127.0.0.1:8080/graph/. Requests overlap: each run is a frame of its own on the server's loop, and a
client that hangs up cancels its run.
"""

import asyncio
import sys

import numpy as np
from aiohttp import web

import actorflow as af

FEATURES, CLASSES = 4, 3
GRAPH = web.AppKey("graph", af.Graph)


def make_graph() -> af.Graph:
    """Features, weighed by what a (pretended) store knows, to class probabilities."""
    graph = af.Graph("service")
    features = graph.blob("features", shape=(1, FEATURES))
    importance = graph.blob("importance", shape=(1, FEATURES))
    weights = graph.variable("weights", shape=(CLASSES, FEATURES), init=af.nn.init.gaussian(std=1, seed=0))
    [features] >> graph.function("look up", look_up) >> [importance]
    af.ops.softmax(af.ops.inner(af.ops.mul(features, importance), weights), name="probabilities")
    return graph


async def look_up(features: np.ndarray) -> np.ndarray:
    await asyncio.sleep(0.005)  # stands for a request to a store
    return np.ones_like(features)


async def classify(request: web.Request) -> web.Response:
    try:
        features = np.asarray((await request.json())["features"], dtype="float32")[np.newaxis]
    except (KeyError, TypeError, ValueError) as error:
        raise web.HTTPBadRequest(text="expected JSON with a list of numbers named features") from error
    try:
        result = await request.app[GRAPH].run({"features": features})
    except af.ShapeError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    return web.json_response({"probabilities": result["probabilities/out"][0].round(4).tolist()})


async def close_graph(app: web.Application):
    yield
    await app[GRAPH].aclose()


def make_app() -> web.Application:
    app = web.Application()
    app[GRAPH] = graph = make_graph()
    app.router.add_post("/classify", classify)
    app.add_subapp("/graph", af.web.create_app(graph))
    app.cleanup_ctx.append(close_graph)
    return app


async def main(port: int) -> None:
    runner = web.AppRunner(make_app(), handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print(f"serving on http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    try:
        af.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8080))
    except KeyboardInterrupt:
        pass
