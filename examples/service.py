"""A web service that classifies images: each request awaits a run of one graph, on the server's own loop.

Start it with ``python examples/service.py``, ask it with

    python -c "print({'image': [[0] * 8] * 8})" | tr "'" '"' | curl -d @- http://127.0.0.1:8080/classify
    head -c 64 /dev/urandom | curl -H 'Content-Type: application/octet-stream' --data-binary @- \\
        http://127.0.0.1:8080/classify

and look at http://127.0.0.1:8080/graph/. A client that hangs up cancels its run. The weights are random: a real service
assigns trained ones to the ``value`` of the graph's variables.
"""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
from aiohttp import web

import actorflow as af

SIZE, CLASSES = 8, 10


@dataclass(frozen=True)
class Model:
    """The graph, what it is fed, and what it answers."""

    graph: af.Graph
    image: af.Blob
    probabilities: af.Blob


@dataclass(frozen=True)
class Limits:
    """Limits of the service.

    The ops of this model are so short that they run on the loop: more runs at once would answer nobody sooner, and make
    everything else wait longer. Who waits longer than the timeout, for its turn or its run, is sent away.
    """

    in_flight: int = 2
    timeout_s: float = 5.0


MODEL = web.AppKey("model", Model)
LIMITS = web.AppKey("limits", Limits)
TURNS = web.AppKey("turns", asyncio.Semaphore)


def make_model() -> Model:
    """A small Network in Network for grey images."""
    # Requests side by side use the cores better than BLAS threads within one small product.
    graph = af.Graph("classifier", deterministic=True)
    image = graph.blob("image", (1, SIZE, SIZE, 1))
    scores = af.nn.NIN(CLASSES, (16, 32))(af.ops.scale(image, 1 / 255), training=False)
    return Model(graph, image, af.ops.softmax(scores, name="probabilities"))


async def classify(request: web.Request) -> web.Response:
    """Answer with the probability of each class."""
    image = await read_image(request)
    model = request.app[MODEL]
    try:
        async with asyncio.timeout(request.app[LIMITS].timeout_s), request.app[TURNS]:
            result = await model.graph.run({model.image: image})
    except TimeoutError as error:
        raise web.HTTPServiceUnavailable(headers={"Retry-After": "1"}, text="too busy, try again\n") from error
    return web.json_response({"probabilities": result[model.probabilities][0].tolist()})


async def read_image(request: web.Request) -> np.ndarray:
    """Grey values from 0 to 255, row by row: a byte each, or ``image`` in JSON."""
    try:
        if request.content_type == "application/octet-stream":
            grey = np.frombuffer(await request.read(), dtype=np.uint8).reshape(SIZE, SIZE)
        else:
            grey = np.asarray((await request.json())["image"], dtype=np.float32)
        if grey.shape != (SIZE, SIZE):
            raise ValueError(f"shape {grey.shape}")
    except (KeyError, TypeError, ValueError) as error:
        raise web.HTTPBadRequest(text=f"expected an image of {SIZE} x {SIZE} grey values, got {error}\n") from error
    return grey.reshape(1, SIZE, SIZE, 1).astype(np.float32)


async def ping(request: web.Request) -> web.Response:
    """Nothing to do with the graph, and not held up by it."""
    return web.Response(text="pong\n")


async def healthz(request: web.Request) -> web.Response:
    """Number of runs, and their outcomes."""
    return web.json_response(request.app[MODEL].graph.statistics().frames._asdict())


async def run_graph(app: web.Application) -> AsyncIterator[None]:
    """Plan the graph before the first request, and leave no lane behind after the last one."""
    model = app[MODEL]
    async with model.graph:
        await model.graph.run({model.image: np.zeros(model.image.shape, np.float32)})
        yield


def make_app(model: Model, limits: Limits) -> web.Application:
    """The service, to be run with ``handler_cancellation=True``."""
    app = web.Application(client_max_size=1 << 16)
    app[MODEL] = model
    app[LIMITS] = limits
    app[TURNS] = asyncio.Semaphore(limits.in_flight)
    app.router.add_post("/classify", classify)
    app.router.add_get("/ping", ping)
    app.router.add_get("/healthz", healthz)
    app.add_subapp("/graph", af.web.create_app(model.graph))
    app.cleanup_ctx.append(run_graph)
    return app


async def main(port: int) -> None:
    stop = asyncio.Event()
    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C still ends the program, less gracefully
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(make_app(make_model(), Limits()), handler_cancellation=True, shutdown_timeout=10)
    await runner.setup()
    try:
        gc.freeze()  # modules and the graph stay: a full collection, tens of ms long, need not look at them again
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print(f"serving on http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    af.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8080))
