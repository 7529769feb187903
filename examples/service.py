"""A web service that recognizes handwritten digits: requests of many clients are computed together, by one graph.

Start it with ``python examples/service.py``. Without a file of weights it trains some, which takes seconds, and keeps
them (``--weights PATH``). Ask it with

    python -c "print({'image': [[0] * 8] * 8})" | tr "'" '"' | curl -d @- http://127.0.0.1:8080/classify
    head -c 64 /dev/urandom | curl -H 'Content-Type: application/octet-stream' --data-binary @- \\
        http://127.0.0.1:8080/classify

and look at http://127.0.0.1:8080/graph/. A client that hangs up is not computed any more.
"""

import argparse
import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from aiohttp import web

import actorflow as af

SIZE, CLASSES = 8, 10
BUCKETS = (1, 8, 32)


@dataclass(frozen=True)
class Model:
    """The graph, what it is fed, and what it answers."""

    graph: af.Graph
    images: af.Blob
    probabilities: af.Blob


@dataclass(frozen=True)
class Limits:
    """Limits of the service. Who waits longer than the timeout, or comes when the queue is full, is sent away."""

    queue_rows: int = 1024
    timeout_s: float = 5.0


MODEL = web.AppKey("model", Model)
LIMITS = web.AppKey("limits", Limits)
BATCHER = web.AppKey("batcher", af.Batcher)


def network() -> af.nn.NIN:
    """A small Network in Network for grey images."""
    return af.nn.NIN(CLASSES, (16, 32), name="digits")


def make_model() -> Model:
    """The network on any number of images of bytes, with random weights."""
    # Products this small are not worth BLAS's threads, which wait for each other where other processes compute.
    graph = af.Graph("classifier", deterministic=True)
    images = graph.blob("images", ("batch", SIZE, SIZE, 1))
    scores = network()(af.ops.scale(images, 1 / 255), training=False)
    return Model(graph, images, af.ops.softmax(scores, name="probabilities"))


async def train(path: Path) -> None:
    """Train the network on scikit-learn's digits, and save its weights."""
    data = af.data.digits().train
    graph = af.Graph("training")
    images, labels = graph.blob("images", ("batch", SIZE, SIZE, 1)), graph.blob("labels", ("batch",), "int64")
    net = network()
    loss = af.ops.softmax_loss(net(images, training=True), labels)
    trainer = af.nn.Trainer(loss, af.nn.Adam(0.01).minimize(loss))
    async with graph:
        await trainer.fit(af.data.Loader({images: data.images, labels: data.labels}, 64, seed=0), epochs=25)
        await af.save_weights(net, path)


async def classify(request: web.Request) -> web.Response:
    """Answer with the probability of each class."""
    image = await read_image(request)
    app = request.app
    try:
        result = await app[BATCHER].run({app[MODEL].images: image}, timeout=app[LIMITS].timeout_s)
    except (af.QueueFullError, af.BatcherClosedError, TimeoutError) as error:
        raise web.HTTPServiceUnavailable(headers={"Retry-After": "1"}, text="too busy, try again\n") from error
    return web.json_response({"probabilities": result[app[MODEL].probabilities][0].tolist()})


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
    """Number of frames, and their outcomes."""
    return web.json_response(request.app[MODEL].graph.statistics().frames._asdict())


async def run_graph(app: web.Application) -> AsyncIterator[None]:
    """Take requests while the service runs, and leave no lane behind."""
    model = app[MODEL]
    limit = app[LIMITS].queue_rows
    # Fixed numbers of rows: three plans, made before the first request.
    batched = model.graph.batched(fetch=[model.probabilities], buckets=BUCKETS, queue_rows=limit)
    async with model.graph:
        for rows in BUCKETS:
            await model.graph.run({model.images: np.zeros((rows, SIZE, SIZE, 1), np.float32)})
        async with batched as app[BATCHER]:
            yield
            await app[BATCHER].aclose()  # whoever waits is sent away


def make_app(model: Model, limits: Limits) -> web.Application:
    """The service, to be run with ``handler_cancellation=True``."""
    app = web.Application(client_max_size=1 << 16)
    app[MODEL] = model
    app[LIMITS] = limits
    app.router.add_post("/classify", classify)
    app.router.add_get("/ping", ping)
    app.router.add_get("/healthz", healthz)
    app.add_subapp("/graph", af.web.create_app(model.graph))
    app.cleanup_ctx.append(run_graph)
    return app


async def main(port: int, weights: Path) -> None:
    stop = asyncio.Event()
    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C still ends the program, less gracefully
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if not weights.exists():
        print(f"training, for {weights}", flush=True)
        await train(weights)
    model = make_model()
    await af.load_weights(model.graph["digits"], weights)
    runner = web.AppRunner(make_app(model, Limits()), handler_cancellation=True, shutdown_timeout=10)
    await runner.setup()
    try:
        gc.freeze()  # modules and the graph stay: a full collection, tens of ms long, need not look at them again
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print(f"serving on http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--weights", type=Path, default=Path("digits.safetensors"))
    options = parser.parse_args()
    af.run(main(options.port, options.weights))
